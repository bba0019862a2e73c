//! Connections between nodes: `server_encryption_options`, a map as in scylla.yaml, and
//! `internode_compression`.
//!
//! On the command line the map is one word:
//! `internode_encryption=all,certificate=/etc/messina/node.crt,keyfile=/etc/messina/node.key`.

use super::map::{self, MapSetting};
use super::setting::Setting;
use super::tls_options::{TlsOptions, needed};
use internode::Between;
use rt::tls::PeerFiles;

const NAME: &str = "server_encryption_options";

/// The connections on which bodies are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InternodeCompression(pub Between);

const COMPRESSION: &[(&str, Between)] = &[("none", Between::None), ("dc", Between::Datacenters), ("all", Between::All)];
const ENCRYPTION: &[(&str, Between)] =
    &[("none", Between::None), ("rack", Between::Racks), ("dc", Between::Datacenters), ("all", Between::All)];

fn named(names: &[(&str, Between)], word: &str) -> Option<Between> {
    names.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, between)| *between)
}

fn name(names: &[(&'static str, Between)], between: Between) -> &'static str {
    names.iter().find(|(_, known)| *known == between).map_or("none", |(name, _)| name)
}

impl Setting for InternodeCompression {
    const WANTED: &'static str = "none, dc (between datacenters) or all";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        named(COMPRESSION, word).map(InternodeCompression)
    }

    fn show(&self) -> String {
        name(COMPRESSION, self.0).to_owned()
    }
}

/// TLS of connections between nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerEncryption {
    /// Cassandra's option `enabled`, if set. It must not contradict `between`.
    pub enabled: Option<bool>,
    /// The connections that are encrypted.
    pub between: Between,
    /// Whether `between` was set.
    pub is_said: bool,
    /// The TLS files, and whether connecting nodes must show a certificate.
    pub tls: TlsOptions,
}

impl ServerEncryption {
    /// The TLS files; `None` if TLS is off. The error is for the operator.
    pub fn files(&self) -> Result<Option<PeerFiles>, String> {
        if self.enabled.is_some_and(|enabled| enabled != (self.between != Between::None)) {
            return Err("server_encryption_options: enabled contradicts internode_encryption".to_owned());
        }
        if self.between == Between::None {
            return Ok(None);
        }
        map::refuse(NAME, &self.tls.others)?;
        let needed = |file, name| needed(file, name, "server_encryption_options: internode_encryption");
        Ok(Some(PeerFiles {
            certificate: needed(&self.tls.certificate, "certificate")?,
            keyfile: needed(&self.tls.keyfile, "keyfile")?,
            truststore: needed(&self.tls.truststore, "truststore")?,
            require_client_auth: self.tls.require_client_auth,
        }))
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let is_forgotten = !self.is_said && self.tls.has_files();
        let forgotten = is_forgotten.then(|| {
            "server_encryption_options: connections between nodes are not encrypted, because internode_encryption is not set: \
             add `internode_encryption: all`, or `internode_encryption: none` for no encryption"
                .to_owned()
        });
        let open = (self.between != Between::None && !self.tls.require_client_auth).then(|| {
            "server_encryption_options: without require_client_auth, any client of the port can impersonate a node"
                .to_owned()
        });
        forgotten.into_iter().chain(open).chain(self.tls.without_effect(NAME)).collect()
    }
}

impl MapSetting for ServerEncryption {
    const WANTED: &'static str = "a map of internode_encryption (none, rack, dc or all), certificate, keyfile, truststore and require_client_auth";

    const OPTIONS: &'static [&'static str] =
        &["enabled", "internode_encryption", "certificate", "keyfile", "truststore", "require_client_auth"];

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "enabled" => self.enabled = Some(bool::from_word(value)?),
            "internode_encryption" => (self.between, self.is_said) = (named(ENCRYPTION, value)?, true),
            _ => self.tls.set(name, value)?,
        }
        Some(())
    }

    fn ignore(&mut self, name: &str) {
        self.tls.others.push(name.to_owned());
    }

    fn options(&self) -> impl IntoIterator<Item = (&'static str, Option<String>)> {
        let between = self.is_said.then(|| name(ENCRYPTION, self.between).to_owned());
        let enabled = ("enabled", self.enabled.map(|enabled| enabled.to_string()));
        [enabled, ("internode_encryption", between)].into_iter().chain(self.tls.options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Raw;

    fn read(pairs: &[(&str, &str)]) -> Option<ServerEncryption> {
        let map = Raw::Map(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
        ServerEncryption::read(&map).ok().flatten()
    }

    const FILES: [(&str, &str); 3] = [("certificate", "/c"), ("keyfile", "/k"), ("truststore", "/t")];

    fn with(more: &[(&str, &str)]) -> ServerEncryption {
        read(&[&FILES[..], more].concat()).expect("fine")
    }

    #[test]
    fn a_map_and_a_word_say_the_same() {
        let all = with(&[("internode_encryption", "Rack"), ("require_client_auth", "true")]);
        assert_eq!(all.between, Between::Racks);
        let word = "internode_encryption=rack,certificate=/c,keyfile=/k,truststore=/t,require_client_auth=true";
        assert_eq!(all.show(), word);
        assert_eq!(ServerEncryption::from_word(word), Some(all.clone()));
        let files = PeerFiles {
            certificate: "/c".into(),
            keyfile: "/k".into(),
            truststore: "/t".into(),
            require_client_auth: true,
        };
        assert_eq!(all.files(), Ok(Some(files)));
        assert_eq!(all.warnings().len(), 0);
        assert_eq!(with(&[]).files(), Ok(None));
        assert_eq!(read(&[("internode_encryption", "transitional")]), None);
        for (word, between) in [("none", Between::None), ("dc", Between::Datacenters), ("all", Between::All)] {
            assert_eq!(InternodeCompression::from_word(word), Some(InternodeCompression(between)));
            assert_eq!(InternodeCompression(between).show(), word);
        }
        assert_eq!(InternodeCompression::from_word("rack"), None);
    }

    #[test]
    fn missing_and_less_safe_options_are_reported() {
        for missing in ["certificate", "keyfile", "truststore"] {
            let pairs: Vec<_> = FILES.into_iter().filter(|(name, _)| *name != missing).collect();
            let read = read(&[&pairs[..], &[("internode_encryption", "all")]].concat()).expect("fine");
            assert!(read.files().is_err_and(|why| why.contains(missing)));
        }
        let open = with(&[("internode_encryption", "dc"), ("priority_string", "x")]);
        assert!(open.files().is_ok());
        assert_eq!(open.warnings().len(), 2);
        assert!(with(&[("enabled", "true")]).files().is_err_and(|why| why.contains("contradicts")));
        assert!(with(&[("enabled", "true"), ("internode_encryption", "all")]).files().is_ok());
        for name in map::REFUSED {
            assert!(with(&[("internode_encryption", "all"), (name, "x")]).files().is_err_and(|why| why.contains(name)));
        }
    }
}
