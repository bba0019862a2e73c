//! Lists of host names.

use super::guardrail::Word;

/// A host name, an address, or `*` for any, without a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostName(pub String);

impl Word for HostName {
    const LIST: &'static str = "a list of host names or addresses without ports, or *";

    fn of(word: &str) -> Option<Self> {
        let is_name = |word: &str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let address = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
        let known = word == "*" || is_name(word) || address.parse::<std::net::Ipv6Addr>().is_ok();
        known.then(|| HostName(word.to_ascii_lowercase()))
    }

    fn word(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_has_no_port_and_no_scheme() {
        for word in ["node1.Example", "10.1.2.3", "::1", "[::1]", "*"] {
            assert_eq!(HostName::of(word).map(|name| name.word()), Some(word.to_ascii_lowercase()));
        }
        for word in ["node1:9180", "http://node1", "a b", "*.example"] {
            assert_eq!(HostName::of(word), None, "{word}");
        }
    }
}
