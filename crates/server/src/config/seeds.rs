//! The setting `seeds`: the nodes that a new node asks first.
//!
//! It is `10.0.0.1,db2.example.com:7001`, a list of such, or `seed_provider` as in scylla.yaml and
//! cassandra.yaml. [`crate::seeds`] resolves names when the addresses are needed.

use super::setting::{BadValue, Raw, Setting};
use crate::seeds;
use serde_yaml_ng::Value;
use std::net::{IpAddr, SocketAddr};

/// Addresses or names, with a port if it is not `storage_port`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seeds(Vec<(Host, Option<u16>)>);

/// The address or name of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Seeds {
    /// The seeds that are addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().filter_map(|(host, _)| match host {
            Host::Address(address) => Some(*address),
            Host::Name(_) => None,
        })
    }

    /// Whether there are no seeds: the node is a cluster of one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The addresses and names. `port` is used for seeds without a port.
    pub fn with_port(&self, port: u16) -> seeds::Seeds {
        let mut out = seeds::Seeds::default();
        for (host, own) in &self.0 {
            let port = own.unwrap_or(port);
            match host {
                Host::Address(address) => out.addresses.push(SocketAddr::new(*address, port)),
                Host::Name(name) => out.names.push((name.clone(), port)),
            }
        }
        out
    }

    /// The text of the seeds in a `seed_provider`.
    pub fn of_provider(provider: &Value) -> Option<&str> {
        provider.as_sequence()?.first()?.get("parameters")?.as_sequence()?.first()?.get("seeds")?.as_str()
    }
}

fn seed(word: &str) -> Option<(Host, Option<u16>)> {
    if let Ok(address) = word.parse::<SocketAddr>() {
        return Some((Host::Address(address.ip()), Some(address.port())));
    }
    if let Some(address) = IpAddr::from_word(word) {
        return Some((Host::Address(address), None));
    }
    let (name, port) = match word.split_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok()?)),
        None => (word, None),
    };
    is_name(name).then(|| (Host::Name(name.to_owned()), port))
}

/// Whether a word can be a host name. A mistyped IP address must not be resolved as a name.
fn is_name(word: &str) -> bool {
    let labels = || word.strip_suffix('.').unwrap_or(word).split('.');
    let is_label = |label: &str| {
        let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        plain && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    word.len() <= 253
        && labels().all(is_label)
        && !labels().all(|label| label.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Setting for Seeds {
    const WANTED: &'static str = "IP addresses or host names with commas between them";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        let words = word.split(',').map(str::trim).filter(|word| !word.is_empty());
        let seeds: Vec<_> = words.map(seed).collect::<Option<_>>()?;
        // A list with nothing but commas is a mistake, and must not create a separate cluster.
        (!seeds.is_empty() || word.trim().is_empty()).then_some(Seeds(seeds))
    }

    fn show(&self) -> String {
        let seeds = self.0.iter().map(|seed| match seed {
            (Host::Address(address), Some(port)) => SocketAddr::new(*address, *port).to_string(),
            (Host::Address(address), None) => address.to_string(),
            (Host::Name(name), Some(port)) => format!("{name}:{port}"),
            (Host::Name(name), None) => name.clone(),
        });
        seeds.collect::<Vec<_>>().join(",")
    }

    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Null => Ok(None),
            Raw::Scalar(word) => Self::from_word(word).map(Some).ok_or_else(|| Self::bad(format!("'{word}'"))),
            Raw::List(words) => Self::read(&Raw::Scalar(words.join(","))),
            Raw::Map(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_and_shown() {
        let seeds = Seeds::from_word("127.0.0.1, localhost,10.0.0.2:7001,[::1]:7002").expect("addresses");
        assert_eq!(seeds.show(), "127.0.0.1,127.0.0.1,10.0.0.2:7001,[::1]:7002");
        assert_eq!(seeds.with_port(7000).addresses[2], ([10, 0, 0, 2], 7001).into());
        assert_eq!(seeds.with_port(7000).addresses[0], ([127, 0, 0, 1], 7000).into());
        assert!(Seeds::from_word("").is_some_and(|seeds| seeds.is_empty()));
        let names = Seeds::from_word("db-1,db2.example.com:7001,1.2.3.4").expect("names");
        assert_eq!(names.show(), "db-1,db2.example.com:7001,1.2.3.4");
        assert_eq!(names.with_port(7000).names, [("db-1".to_owned(), 7000), ("db2.example.com".to_owned(), 7001)]);
        for wrong in ["1.2.3", "1.2.3.4.5", "a b", "x:port", "-x", "a..b", "1.2.3.4:x", "[::1", "a/b"] {
            assert!(Seeds::from_word(wrong).is_none(), "{wrong}");
        }
        let list = Raw::List(vec!["127.0.0.1".into(), "127.0.0.2".into()]);
        assert_eq!(
            Seeds::read(&list).map(|seeds| seeds.map(|seeds| seeds.show())),
            Ok(Some("127.0.0.1,127.0.0.2".into()))
        );
    }

    #[test]
    fn a_seed_provider_is_understood() {
        let text = "- class_name: x\n  parameters:\n    - seeds: \"127.0.0.1,127.0.0.2\"\n";
        let provider: Value = serde_yaml_ng::from_str(text).expect("YAML");
        assert_eq!(Seeds::of_provider(&provider), Some("127.0.0.1,127.0.0.2"));
        assert_eq!(Seeds::of_provider(&Value::Null), None);
    }
}
