//! `client_encryption_options`: the one setting that is a map, as in scylla.yaml.
//!
//! On the command line it is one word: `enabled=true,certificate=/etc/messina/node.crt,keyfile=/etc/messina/node.key`.

use super::setting::{BadValue, Raw, Setting};
use rt::tls::TlsFiles;
use std::fmt::Write;
use std::path::PathBuf;

/// How connections of clients are encrypted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientEncryption {
    /// Whether they are.
    pub enabled: bool,
    /// The node's certificate.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub keyfile: Option<PathBuf>,
    /// The roots of clients' certificates.
    pub truststore: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub require_client_auth: bool,
    /// Options that were set and are not known here.
    pub others: Vec<String>,
}

/// Options without which a node would be less safe than its operator thinks: they are refused.
const REFUSED: &[&str] = &["certificate_revocation_list", "keystore", "keystore_password", "truststore_password"];

impl ClientEncryption {
    /// The files to use; `None` if nothing is encrypted. The error is for the operator.
    pub fn files(&self) -> Result<Option<TlsFiles>, String> {
        if !self.enabled {
            return Ok(None);
        }
        let needed = |file: &Option<PathBuf>, name: &str| {
            file.clone().ok_or_else(|| format!("client_encryption_options: enabled needs {name}"))
        };
        if let Some(refused) = self.others.iter().find(|name| REFUSED.contains(&name.as_str())) {
            return Err(format!(
                "client_encryption_options: {refused} is not supported; certificates and keys are PEM files"
            ));
        }
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

    /// What the operator should know of.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.others.iter().map(|name| format!("client_encryption_options: {name} has no effect"))
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let path = || (!value.is_empty()).then(|| PathBuf::from(value));
        match name {
            "enabled" => self.enabled = bool::from_word(value)?,
            "certificate" => self.certificate = path(),
            "keyfile" => self.keyfile = path(),
            "truststore" => self.truststore = path(),
            "require_client_auth" => self.require_client_auth = bool::from_word(value)?,
            other => self.others.push(other.to_owned()),
        }
        Some(())
    }

    fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut encryption = ClientEncryption::default();
        for (name, value) in pairs {
            encryption.set(name.trim(), value.trim())?;
        }
        Some(encryption)
    }

    /// What is set, of what is known here.
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let switch = |on: bool| on.then(|| "true".to_owned());
        [
            ("enabled", switch(self.enabled)),
            ("certificate", path(&self.certificate)),
            ("keyfile", path(&self.keyfile)),
            ("truststore", path(&self.truststore)),
            ("require_client_auth", switch(self.require_client_auth)),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .collect()
    }
}

impl Setting for ClientEncryption {
    const WANTED: &'static str = "a map of enabled, certificate, keyfile, truststore and require_client_auth";
    const KIND: &'static str = "map";

    fn from_word(word: &str) -> Option<Self> {
        let pairs = word.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| pair.split_once('='));
        ClientEncryption::of(pairs.collect::<Option<Vec<_>>>()?)
    }

    fn show(&self) -> String {
        let mut out = String::new();
        for (name, value) in self.pairs() {
            let comma = if out.is_empty() { "" } else { "," };
            let _ = write!(out, "{comma}{name}={value}");
        }
        out
    }

    fn json(&self) -> String {
        let pairs = self.pairs().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        serde_json::Value::Object(pairs.collect()).to_string()
    }

    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Null => Ok(None),
            Raw::Map(pairs) => {
                let read = ClientEncryption::of(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())));
                read.map(Some).ok_or_else(|| Self::bad("a map with another value".to_owned()))
            }
            Raw::Scalar(word) => Self::from_word(word.trim()).map(Some).ok_or_else(|| Self::bad(format!("'{word}'"))),
            Raw::List(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(with("priority_string").warnings().count(), 1);
        for name in REFUSED {
            assert!(with(name).files().is_err_and(|why| why.contains(name)));
        }
    }
}
