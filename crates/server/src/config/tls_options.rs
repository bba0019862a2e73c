//! What `client_encryption_options` and `server_encryption_options` have in common: the files of
//! TLS, and whether the other side must show a certificate.

use super::map;
use super::setting::Setting;
use std::path::PathBuf;

/// The common options.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsOptions {
    /// The node's certificate.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub keyfile: Option<PathBuf>,
    /// The roots of the other side's certificates.
    pub truststore: Option<PathBuf>,
    /// Whether the side that connects must show a certificate.
    pub require_client_auth: bool,
    /// Options of other products that were set and have no effect here.
    pub others: Vec<String>,
}

impl TlsOptions {
    /// Sets an option. `None` if it is not a common one, or has a wrong value.
    pub fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "certificate" => self.certificate = map::path(value),
            "keyfile" => self.keyfile = map::path(value),
            "truststore" => self.truststore = map::path(value),
            "require_client_auth" => self.require_client_auth = bool::from_word(value)?,
            _ => return None,
        }
        Some(())
    }

    /// The options as they are shown, in the order of the documentation.
    pub fn options(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("certificate", map::shown(self.certificate.as_deref())),
            ("keyfile", map::shown(self.keyfile.as_deref())),
            ("truststore", map::shown(self.truststore.as_deref())),
            ("require_client_auth", map::switch(self.require_client_auth)),
        ]
    }

    /// Whether the files of the node are given.
    pub fn has_files(&self) -> bool {
        self.certificate.is_some() || self.keyfile.is_some()
    }

    /// The warnings about options without effect in the map `setting`.
    pub fn without_effect(&self, setting: &str) -> impl Iterator<Item = String> {
        self.others.iter().map(move |name| format!("{setting}: {name} has no effect"))
    }
}

/// A file that an option needs. `wanted_by` is the option with its map.
pub fn needed(file: &Option<PathBuf>, name: &str, wanted_by: &str) -> Result<PathBuf, String> {
    file.clone().ok_or_else(|| format!("{wanted_by} needs {name}"))
}
