//! Values of the configuration that do not fit the machine: its CPUs, its disk, its files.
//!
//! An error names the key, and what the machine has.

use crate::config::map::{self, MapSetting};
use crate::start_error::StartError;
use rt::tls::TlsError;

/// An error of files that this setting names, with the option of the file.
pub fn tls_error(setting: &str, map: &impl MapSetting) -> impl Fn(TlsError) -> StartError {
    move |error| {
        let place = match &error {
            TlsError::File { file, .. } => map::option_of(setting, map, file),
            TlsError::Unfit { .. } => setting.to_owned(),
        };
        StartError(format!("{place}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Setting;

    #[test]
    fn an_error_of_a_tls_file_names_the_option() {
        let map = |files: &str| <crate::config::encryption::ClientEncryption as Setting>::from_word(files);
        let map = map("enabled=true,certificate=/nowhere/c,keyfile=/nowhere/k").expect("fine");
        let error = map.files().expect("fine").expect("enabled").load().expect_err("no files");
        let StartError(why) = tls_error("client_encryption_options", &map)(error);
        assert!(why.starts_with("client_encryption_options: keyfile: /nowhere/k: No such file"), "{why}");
    }
}
