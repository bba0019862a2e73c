//! The client of a node's REST interface, and the encoding of paths.

use crate::Failure;
use serde_json::Value;

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

pub(crate) struct Api {
    agent: ureq::Agent,
    base: String,
}

impl Api {
    pub fn new(base: &str) -> Api {
        // No timeout: a compaction may take any time.
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        Api { agent: config.into(), base: base.trim_end_matches('/').to_owned() }
    }

    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.answer(self.agent.get(format!("{}{path}", self.base)).call())
    }

    pub fn send(&self, method: Method, path: &str) -> Result<Value, Failure> {
        let url = format!("{}{path}", self.base);
        self.answer(match method {
            Method::Post => self.agent.post(url).send_empty(),
            Method::Delete => self.agent.delete(url).call(),
        })
    }

    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
        let mut answer =
            answer.map_err(|error| Failure::new(format!("cannot reach a node at {}: {error}", self.base)))?;
        let text = answer.body_mut().read_to_string()?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if answer.status().is_success() {
            return Ok(value);
        }
        let why = value.get("message").and_then(Value::as_str).map_or_else(|| value.to_string(), str::to_owned);
        Err(Failure::new(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_quoted() {
        assert_eq!(query(&[("tag", "a b"), ("kn", ""), ("cf", "x,y")]), "?tag=a%20b&cf=x%2Cy");
        assert_eq!(query(&[("tag", "")]), "");
    }
}
