//! The client of a node's REST interface, and the encoding of paths.

use crate::Failure;
use crate::failure::TIMED_OUT;
use clap::ArgMatches;
use serde_json::Value;
use std::net::Ipv6Addr;
use std::time::Duration;
use ureq::http::StatusCode;

/// The text of an argument; empty if it was not given, or the command does not have it.
pub(crate) fn text<'a>(arguments: &'a ArgMatches, name: &str) -> &'a str {
    arguments.try_get_one::<String>(name).ok().flatten().map(String::as_str).unwrap_or_default()
}

/// The query string of all pairs with a value.
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let given: Vec<String> = pairs
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

/// Percent-encodes everything but unreserved characters.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[derive(Clone, Copy)]
pub(crate) enum Method {
    Post,
    Delete,
}

/// The port of the admin interface, unless the configuration names another one (`api_port`).
const PORT: u16 = 10_000;
/// The most characters of a foreign answer that are shown.
const SHOWN: usize = 200;

/// The URL of the admin interface at an address with or without scheme and port.
fn url(address: &str) -> String {
    let address = address.trim().trim_end_matches('/');
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    if scheme != "http" || rest.contains('/') {
        return format!("{scheme}://{rest}");
    }
    match (rest.parse::<Ipv6Addr>(), rest.rsplit_once(']')) {
        (Ok(ip), _) => format!("http://[{ip}]:{PORT}"),
        (_, Some((_, ""))) => format!("http://{rest}:{PORT}"),
        (_, None) if !rest.contains(':') => format!("http://{rest}:{PORT}"),
        _ => format!("http://{rest}"),
    }
}

/// The time limit for a connection to a node.
const CONNECT: Duration = Duration::from_secs(10);
/// The time limit for the answer to a request that only reads.
const READ: Duration = Duration::from_secs(30);

pub(crate) struct Api {
    agent: ureq::Agent,
    base: String,
}

impl Api {
    pub fn new(base: &str) -> Api {
        // No timeout of answers: a compaction may take any time.
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT)).build();
        Api { agent: config.into(), base: url(base) }
    }

    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.get_within(path, READ)
    }

    /// Like [`Api::get`], for an answer that may take any time.
    pub fn get_when_done(&self, path: &str) -> Result<Value, Failure> {
        self.answer(self.agent.get(format!("{}{path}", self.base)).call())
    }

    fn get_within(&self, path: &str, limit: Duration) -> Result<Value, Failure> {
        let config = self.agent.get(format!("{}{path}", self.base)).config();
        let request = config.timeout_recv_response(Some(limit)).timeout_recv_body(Some(limit)).build();
        self.answer(request.call())
    }

    pub fn send(&self, method: Method, path: &str) -> Result<Value, Failure> {
        let url = format!("{}{path}", self.base);
        self.answer(match method {
            Method::Post => self.agent.post(url).send_empty(),
            Method::Delete => self.agent.delete(url).call(),
        })
    }

    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
        let mut answer = answer.map_err(|error| {
            Failure::new(match error {
                ureq::Error::Timeout(_) => format!("the node at {} does not answer in time", self.base),
                error => format!("cannot reach a node at {}: {error}", self.base),
            })
        })?;
        let text = answer.body_mut().read_to_string()?;
        let status = answer.status();
        let exit_status = if status == StatusCode::REQUEST_TIMEOUT { TIMED_OUT } else { 1 };
        interpret(&self.base, status, text).map_err(|why| Failure { why, exit_status })
    }
}

/// The value in an answer. The error is the node's. If another program answered, the error shows
/// its response.
fn interpret(base: &str, status: StatusCode, text: String) -> Result<Value, String> {
    let value = serde_json::from_str::<Value>(&text);
    match value {
        Ok(value) if status.is_success() => return Ok(value),
        // A request without a result has no text.
        Err(_) if status.is_success() && text.is_empty() => return Ok(Value::String(text)),
        Ok(value) => {
            if let Some(why) = value.get("message").and_then(Value::as_str) {
                return Err(why.to_owned());
            }
        }
        Err(_) => {}
    }
    let text = text.trim();
    let shown: String = text.chars().take(SHOWN).collect();
    let what = match (shown.is_empty(), shown.len() < text.len()) {
        (true, _) => String::new(),
        (false, cut) => format!(" and the text {shown:?}{}", if cut { "..." } else { "" }),
    };
    Err(format!(
        "the server at {base} is not the admin interface of a node (api_port, {PORT} by default): it answers with the HTTP \
         status {status}{what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_scheme_and_no_port() {
        for (address, expected) in [
            ("http://127.0.0.1:10000", "http://127.0.0.1:10000"),
            ("http://127.0.0.1:10000/", "http://127.0.0.1:10000"),
            ("127.0.0.1", "http://127.0.0.1:10000"),
            ("127.0.0.1:10001", "http://127.0.0.1:10001"),
            ("http://127.0.0.1", "http://127.0.0.1:10000"),
            ("node.example", "http://node.example:10000"),
            ("::1", "http://[::1]:10000"),
            ("[::1]", "http://[::1]:10000"),
            ("[::1]:10001", "http://[::1]:10001"),
            ("http://[::1]", "http://[::1]:10000"),
            ("https://127.0.0.1", "https://127.0.0.1"),
            ("http://proxy/node1", "http://proxy/node1"),
        ] {
            assert_eq!(url(address), expected, "{address}");
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the client blocks its thread, so no shard runs here")]
    fn a_node_that_does_not_answer_is_reported_in_time() {
        // The kernel completes connections that the process does not accept.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let api = Api::new(&silent.local_addr().expect("an address").to_string());
        let failure = api.get_within("/", Duration::from_millis(50)).expect_err("no answer");
        assert!(failure.why.ends_with("does not answer in time"), "{}", failure.why);
    }

    #[test]
    fn servers_that_are_not_the_admin_interface_are_named() {
        let answer = |status, text: &str| interpret("http://h:9180", status, text.to_owned());
        assert_eq!(answer(StatusCode::OK, "[1]"), Ok(serde_json::json!([1])));
        assert_eq!(answer(StatusCode::OK, ""), Ok(Value::String(String::new())));
        assert_eq!(answer(StatusCode::BAD_REQUEST, r#"{"message": "no", "code": 400}"#), Err("no".to_owned()));
        let place = "the server at http://h:9180 is not the admin interface of a node (api_port, 10000 by default): it answers with";
        for (status, text, end) in [
            (StatusCode::NOT_FOUND, "", "the HTTP status 404 Not Found"),
            (StatusCode::OK, "<html>", "the HTTP status 200 OK and the text \"<html>\""),
            (StatusCode::NOT_FOUND, "\"\"", "the HTTP status 404 Not Found and the text \"\\\"\\\"\""),
        ] {
            assert_eq!(answer(status, text), Err(format!("{place} {end}")));
        }
        let long = answer(StatusCode::OK, &"ä".repeat(300)).expect_err("not JSON");
        assert!(long.ends_with("ä\"...") && long.matches('ä').count() == SHOWN, "{long}");
    }

    #[test]
    fn queries_are_quoted() {
        assert_eq!(query(&[("tag", "a b"), ("kn", ""), ("cf", "x,y")]), "?tag=a%20b&cf=x%2Cy");
        assert_eq!(query(&[("tag", "")]), "");
    }
}
