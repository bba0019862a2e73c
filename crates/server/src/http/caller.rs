//! Refuses requests that a web page of another site makes.
//!
//! The HTTP ports have no authentication and rely on their address, usually loopback. A browser on
//! such a machine can reach them, so any page could make it send requests. Such requests are
//! recognized by headers. `Origin` and `Sec-Fetch-Site` name another site. If another site's name
//! was made to resolve to this address, `Host` is not a name of this node.

use axum::http::Request;
use axum::http::header::{HOST, HeaderName, ORIGIN};
use std::net::{IpAddr, Ipv6Addr};

/// The relation between the page that makes the request and this node. Sent by browsers.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The callers whose requests a port answers.
#[derive(Clone, Debug)]
pub struct Callers {
    bound: IpAddr,
    /// Allowed names in lower case. `*` allows any name.
    allowed: Vec<String>,
    /// Whether the name in `Host` is checked.
    checks_names: bool,
}

impl Callers {
    /// For an admin port at address `bound`. The names in `allowed` are accepted too.
    pub fn of_administration(bound: IpAddr, allowed: &[String]) -> Callers {
        Callers { bound, allowed: allowed.iter().map(|name| bare(name)).collect(), checks_names: true }
    }

    /// For a metrics port. It is read-only, and Prometheus may know it by any name. So any name is
    /// accepted if the address is not loopback and no names are configured.
    pub fn of_metrics(bound: IpAddr, allowed: &[String]) -> Callers {
        let checks_names = bound.to_canonical().is_loopback() || !allowed.is_empty();
        Callers { checks_names, ..Callers::of_administration(bound, allowed) }
    }

    /// Refuses a request of another site's page. `local` is the address at which the request
    /// arrived.
    pub fn check<B>(&self, request: &Request<B>, local: Option<IpAddr>) -> Result<(), String> {
        let headers = request.headers();
        let mut hosts = Vec::new();
        hosts.extend(request.uri().authority().map(|authority| authority.as_str()));
        for host in headers.get_all(HOST) {
            hosts.push(host.to_str().map_err(|_| "The header Host is not text".to_owned())?);
        }
        if self.checks_names
            && let Some(host) = hosts.iter().find(|host| !self.is_own(host, local))
        {
            return Err(format!("Host {host:?} is not an address or name of this node: see http_allowed_hosts"));
        }
        for site in headers.get_all(SEC_FETCH_SITE) {
            if !matches!(site.as_bytes(), b"same-origin" | b"none") {
                return Err("The request comes from a page of another site (Sec-Fetch-Site)".to_owned());
            }
        }
        for origin in headers.get_all(ORIGIN) {
            let from = origin.to_str().unwrap_or_default();
            let authority = from.strip_prefix("http://").or_else(|| from.strip_prefix("https://"));
            let is_same = |host: &&str| authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host));
            if !hosts.iter().any(is_same) {
                return Err(format!("The request comes from a page of another site: Origin {from:?}"));
            }
        }
        Ok(())
    }

    /// Whether a host, with or without a port, denotes this node.
    fn is_own(&self, host: &str, local: Option<IpAddr>) -> bool {
        let Some(name) = without_port(host).map(bare) else { return false };
        if self.allowed.iter().any(|allowed| *allowed == name || allowed == "*") || name == "localhost" {
            return true;
        }
        let Ok(address) = name.parse::<IpAddr>().map(|address| address.to_canonical()) else { return false };
        let is = |own: IpAddr| own.to_canonical() == address;
        is(self.bound) && !address.is_unspecified()
            || local.is_some_and(is)
            || matches!(address, IpAddr::V4(v4) if v4 == std::net::Ipv4Addr::LOCALHOST)
            || address == IpAddr::V6(Ipv6Addr::LOCALHOST)
    }
}

/// A name in lower case, without the brackets of an address and without the final dot of a domain
/// name.
fn bare(name: &str) -> String {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The part before the port: `[::1]:10000`, `name:10000`, or an address or a name alone.
fn without_port(host: &str) -> Option<&str> {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if host.starts_with('[') {
        let (address, rest) = host.split_at(host.find(']')? + 1);
        let port = if rest.is_empty() { rest } else { rest.strip_prefix(':')? };
        return is_port(port).then_some(address);
    }
    match host.split_once(':') {
        None => Some(host),
        Some((name, port)) if is_port(port) => Some(name),
        // An IPv6 address without brackets.
        Some(_) => Some(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ask(callers: &Callers, local: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder().uri("/storage_service/keyspaces");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let local = local.parse().expect("an address");
        callers.check(&request.body(()).expect("a request"), Some(local))
    }

    fn own(bound: &str, local: &str, allowed: &[&str], host: &str) -> bool {
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let callers = Callers::of_administration(bound.parse().expect("an address"), &allowed);
        ask(&callers, local, &[("host", host)]).is_ok()
    }

    #[test]
    fn the_node_is_known_by_its_addresses_localhost_and_configured_names() {
        for host in [
            "127.7.7.7",
            "127.7.7.7:10000",
            "localhost",
            "LocalHost:10000",
            "localhost.:1",
            "127.0.0.1:10000",
            "[::1]:10000",
        ] {
            assert!(own("127.7.7.7", "127.7.7.7", &[], host), "{host}");
        }
        for host in [
            "evil.example",
            "127.7.7.8",
            "127.7.7.7.evil.example",
            "localhost.evil.example",
            "",
            "x:y",
            "[::1]x",
            "0.0.0.0",
            "10.1.2.3",
        ] {
            assert!(!own("127.7.7.7", "127.7.7.7", &[], host), "{host}");
        }
        assert!(own("0.0.0.0", "10.1.2.3", &[], "10.1.2.3:10000"), "the address at which the request came in");
        assert!(!own("0.0.0.0", "10.1.2.3", &[], "0.0.0.0:10000"));
        assert!(own("::", "2001:db8::7", &[], "[2001:DB8:0::7]:10000"));
        assert!(own("::", "::ffff:10.1.2.3", &[], "10.1.2.3"), "an IPv4 client of an IPv6 port");
        assert!(own("::1", "::1", &[], "::1"));
        assert!(own("10.1.2.3", "10.1.2.3", &["Node1.Example"], "node1.example:10000"));
        assert!(!own("10.1.2.3", "10.1.2.3", &["node1.example"], "node2.example:10000"));
        assert!(own("10.1.2.3", "10.1.2.3", &["*"], "any.example"));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let bound = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for callers in [Callers::of_administration(bound, &[]), Callers::of_metrics(bound, &[])] {
            let host = ("host", "localhost:10000");
            let asked = |headers: &[(&str, &str)]| ask(&callers, "127.0.0.1", &[&[host], headers].concat()).is_ok();
            assert!(asked(&[]));
            assert!(asked(&[("origin", "http://localhost:10000"), ("sec-fetch-site", "same-origin")]));
            assert!(asked(&[("sec-fetch-site", "none")]));
            for origin in ["http://evil.example", "null", "http://localhost:3000", "http://localhost", "", "file://"] {
                assert!(!asked(&[("origin", origin)]), "{origin}");
            }
            for site in ["cross-site", "same-site", "", "other"] {
                assert!(!asked(&[("sec-fetch-site", site)]), "{site}");
            }
            assert!(!asked(&[("host", "evil.example")]), "each of several hosts must be this node's");
        }
        assert!(ask(&Callers::of_administration(bound, &[]), "127.0.0.1", &[]).is_ok(), "browsers always send Host");
    }

    #[test]
    fn metrics_go_by_any_name_where_the_network_reaches_them() {
        let scrape = |bound: &str, allowed: &[&str], headers: &[(&str, &str)]| {
            let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
            let callers = Callers::of_metrics(bound.parse().expect("an address"), &allowed);
            ask(&callers, bound, headers).is_ok()
        };
        assert!(scrape("10.1.2.3", &[], &[("host", "node1.example:9180")]));
        assert!(!scrape("127.0.0.1", &[], &[("host", "node1.example:9180")]));
        assert!(!scrape("10.1.2.3", &["node2.example"], &[("host", "node1.example:9180")]));
        assert!(!scrape("10.1.2.3", &[], &[("host", "node1.example:9180"), ("origin", "http://evil.example")]));
    }
}
