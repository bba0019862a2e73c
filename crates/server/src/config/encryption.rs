//! `client_encryption_options`: a map, as in scylla.yaml.
//!
//! On the command line it is one word:
//! `enabled=true,certificate=/etc/messina/node.crt,keyfile=/etc/messina/node.key`.

use super::map::{self, MapSetting};
use super::setting::Setting;
use super::tls_options::{TlsOptions, needed};
use rt::tls::TlsFiles;

const NAME: &str = "client_encryption_options";

/// TLS of client connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientEncryption {
    /// Whether TLS is on. None: not set, which means off.
    pub enabled: Option<bool>,
    /// The TLS files, and whether clients must show a certificate.
    pub tls: TlsOptions,
}

impl ClientEncryption {
    /// The TLS files; `None` if TLS is off. The error is for the operator.
    pub fn files(&self) -> Result<Option<TlsFiles>, String> {
        if self.enabled != Some(true) {
            return Ok(None);
        }
        map::refuse(NAME, &self.tls.others)?;
        let needed = |file, name| needed(file, name, "client_encryption_options: enabled");
        let truststore = match self.tls.require_client_auth {
            true => Some(needed(&self.tls.truststore, "truststore for require_client_auth")?),
            false => None,
        };
        Ok(Some(TlsFiles {
            certificate: needed(&self.tls.certificate, "certificate")?,
            keyfile: needed(&self.tls.keyfile, "keyfile")?,
            truststore,
        }))
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let is_forgotten = self.enabled.is_none() && self.tls.has_files();
        let forgotten = is_forgotten.then(|| {
            "client_encryption_options: clients are not encrypted, because enabled is not set: add `enabled: true`, or \
             `enabled: false` for no encryption"
                .to_owned()
        });
        forgotten.into_iter().chain(self.tls.without_effect(NAME)).collect()
    }
}

impl MapSetting for ClientEncryption {
    const WANTED: &'static str = "a map of enabled, certificate, keyfile, truststore and require_client_auth";

    const OPTIONS: &'static [&'static str] =
        &["enabled", "certificate", "keyfile", "truststore", "require_client_auth"];

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "enabled" => self.enabled = Some(bool::from_word(value)?),
            _ => self.tls.set(name, value)?,
        }
        Some(())
    }

    fn ignore(&mut self, name: &str) {
        self.tls.others.push(name.to_owned());
    }

    fn options(&self) -> impl IntoIterator<Item = (&'static str, Option<String>)> {
        let enabled = ("enabled", self.enabled.map(|enabled| enabled.to_string()));
        [enabled].into_iter().chain(self.tls.options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Raw;

    fn map(pairs: &[(&str, &str)]) -> Raw {
        Raw::Map(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_map_and_a_word_say_the_same() {
        let all = map(&[
            ("enabled", "true"),
            ("certificate", "/c"),
            ("keyfile", "/k"),
            ("truststore", "/t"),
            ("require_client_auth", "True"),
        ]);
        let read = ClientEncryption::read(&all).expect("fine").expect("something");
        let word = "enabled=true,certificate=/c,keyfile=/k,truststore=/t,require_client_auth=true";
        assert_eq!(read.show(), word);
        assert_eq!(ClientEncryption::from_word(word).as_ref(), Some(&read));
        let files = TlsFiles { certificate: "/c".into(), keyfile: "/k".into(), truststore: Some("/t".into()) };
        assert_eq!(read.files(), Ok(Some(files)));
        assert!(read.json().contains(r#""keyfile":"/k""#), "{}", read.json());
        let off = ClientEncryption::read(&map(&[("enabled", "false"), ("certificate", "/c")]))
            .expect("fine")
            .expect("something");
        assert_eq!(off.files(), Ok(None));
    }

    #[test]
    fn unknown_options_have_no_effect_unless_they_would_make_the_node_safer() {
        let with = |name: &str| {
            let pairs = [("enabled", "true"), ("certificate", "/c"), ("keyfile", "/k"), (name, "x")];
            ClientEncryption::read(&map(&pairs)).expect("fine").expect("something")
        };
        assert!(with("priority_string").files().is_ok());
        assert_eq!(with("priority_string").warnings().len(), 1);
        for name in map::REFUSED {
            assert!(with(name).files().is_err_and(|why| why.contains(name)));
        }
    }

    #[test]
    fn an_option_has_one_value() {
        let read = |word: &str| ClientEncryption::read(&Raw::Scalar(word.to_owned()));
        let error = read("certificate=/a,enabled=false,certificate=/b").expect_err("two values").to_string();
        assert!(error.starts_with("certificate with two values, '/a' and '/b', is not a map of"), "{error}");
        assert!(read("certificate=/a,enabled=false,certificate=/a").is_ok());
    }
}
