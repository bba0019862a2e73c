//! `client_encryption_options`: a map, as in scylla.yaml.
//!
//! On the command line it is one word:
//! `enabled=true,certificate=/etc/messina/node.crt,keyfile=/etc/messina/node.key`.

use super::map::{self, MapSetting};
use super::setting::Setting;
use rt::tls::TlsFiles;
use std::path::PathBuf;

/// TLS of client connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientEncryption {
    /// Whether TLS is on. None: not set, which means off.
    pub enabled: Option<bool>,
    /// The node's certificate.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub keyfile: Option<PathBuf>,
    /// The root certificates for clients' certificates.
    pub truststore: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub require_client_auth: bool,
    /// Options of other products that were set and have no effect here.
    pub others: Vec<String>,
}

impl ClientEncryption {
    /// The TLS files; `None` if TLS is off. The error is for the operator.
    pub fn files(&self) -> Result<Option<TlsFiles>, String> {
        if self.enabled != Some(true) {
            return Ok(None);
        }
        let needed = |file: &Option<PathBuf>, name: &str| {
            file.clone().ok_or_else(|| format!("client_encryption_options: enabled needs {name}"))
        };
        map::refuse("client_encryption_options", &self.others)?;
        let truststore = match self.require_client_auth {
            true => Some(needed(&self.truststore, "truststore for require_client_auth")?),
            false => None,
        };
        Ok(Some(TlsFiles {
            certificate: needed(&self.certificate, "certificate")?,
            keyfile: needed(&self.keyfile, "keyfile")?,
            truststore,
        }))
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let is_forgotten = self.enabled.is_none() && (self.certificate.is_some() || self.keyfile.is_some());
        let forgotten = is_forgotten.then(|| {
            "client_encryption_options: clients are not encrypted, because enabled is not set: add `enabled: true`, or \
             `enabled: false` for no encryption"
                .to_owned()
        });
        let others = self.others.iter().map(|name| format!("client_encryption_options: {name} has no effect"));
        forgotten.into_iter().chain(others).collect()
    }
}

impl MapSetting for ClientEncryption {
    const WANTED: &'static str = "a map of enabled, certificate, keyfile, truststore and require_client_auth";

    const OPTIONS: &'static [&'static str] =
        &["enabled", "certificate", "keyfile", "truststore", "require_client_auth"];

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "enabled" => self.enabled = Some(bool::from_word(value)?),
            "certificate" => self.certificate = map::path(value),
            "keyfile" => self.keyfile = map::path(value),
            "truststore" => self.truststore = map::path(value),
            "require_client_auth" => self.require_client_auth = bool::from_word(value)?,
            _ => return None,
        }
        Some(())
    }

    fn ignore(&mut self, name: &str) {
        self.others.push(name.to_owned());
    }

    fn options(&self) -> impl IntoIterator<Item = (&'static str, Option<String>)> {
        [
            ("enabled", self.enabled.map(|enabled| enabled.to_string())),
            ("certificate", map::shown(self.certificate.as_deref())),
            ("keyfile", map::shown(self.keyfile.as_deref())),
            ("truststore", map::shown(self.truststore.as_deref())),
            ("require_client_auth", map::switch(self.require_client_auth)),
        ]
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
    fn what_is_not_known_has_no_effect_unless_it_would_make_the_node_safer() {
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
