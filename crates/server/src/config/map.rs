//! Settings that are maps of names and words, as scylla.yaml has them for encryption.
//!
//! On the command line such a map is one word: `enabled=true,certificate=/etc/messina/node.crt`.

use super::file::nearest;
use super::setting::{BadValue, Raw, Setting};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A setting that is a map.
pub trait MapSetting: Default {
    /// Describes the map to the operator.
    const WANTED: &'static str;

    /// The options that have an effect here.
    const OPTIONS: &'static [&'static str];

    /// Sets one of [`MapSetting::OPTIONS`]. `None` if its value is invalid.
    fn set(&mut self, name: &str, value: &str) -> Option<()>;

    /// Records that an option of Cassandra or ScyllaDB without effect here was set.
    fn ignore(&mut self, name: &str);

    /// The options that are set, without those without effect, in the order in which they are
    /// shown.
    fn options(&self) -> impl IntoIterator<Item = (&'static str, Option<String>)>;
}

/// Parses the path of an option; an empty word means none.
pub fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

/// Formats the path of an option.
pub fn shown(path: Option<&Path>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

/// Formats a switch of an option, if it is on.
pub fn switch(on: bool) -> Option<String> {
    on.then(|| "true".to_owned())
}

/// Options that make a node safer. They are not supported, and are refused if TLS is on: without
/// them, the node would be less safe than its operator expects.
pub const REFUSED: &[&str] = &[
    "certificate_revocation_list",
    "keystore",
    "keystore_password",
    "keystore_password_file",
    "outbound_keystore",
    "outbound_keystore_password",
    "outbound_keystore_password_file",
    "truststore_password",
    "truststore_password_file",
];

/// Other options that Cassandra or ScyllaDB have in these maps. They have no effect here.
const WITHOUT_EFFECT: &[&str] = &[
    "accepted_protocols",
    "algorithm",
    "certificate_validity_warn_threshold",
    "cipher_suites",
    "enable_legacy_ssl_storage_port",
    "enable_session_tickets",
    "legacy_ssl_storage_port_enabled",
    "max_certificate_validity_period",
    "optional",
    "priority_string",
    "protocol",
    "require_endpoint_verification",
    "ssl_context_factory",
    "store_type",
];

/// Refuses unknown options in the map `setting`. The error is for the operator.
pub fn refuse(setting: &str, others: &[String]) -> Result<(), String> {
    match others.iter().find(|name| REFUSED.contains(&name.as_str())) {
        Some(refused) => Err(format!("{setting}: {refused} is not supported; certificates and keys are PEM files")),
        None => Ok(()),
    }
}

/// The option that names this file, with the name of its map, for errors.
pub fn option_of(setting: &str, map: &impl MapSetting, file: &Path) -> String {
    let shown = file.display().to_string();
    match pairs(map).find(|(_, value)| *value == shown) {
        Some((option, _)) => format!("{setting}: {option}"),
        None => setting.to_owned(),
    }
}

fn of<'a, M: MapSetting>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<M, BadValue> {
    let mut map = M::default();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (name, value) in pairs {
        let (name, value) = (name.trim(), value.trim());
        if let Some((_, other)) = seen.iter().find(|(earlier, other)| *earlier == name && *other != value) {
            return Err(M::bad(format!("{name} with two values, '{other}' and '{value}',")));
        }
        seen.push((name, value));
        if M::OPTIONS.contains(&name) {
            map.set(name, value).ok_or_else(|| M::bad(format!("'{name}: {value}'")))?;
        } else if REFUSED.contains(&name) || WITHOUT_EFFECT.contains(&name) {
            map.ignore(name);
        } else {
            // A misspelt option could leave the node without TLS.
            let known = M::OPTIONS.iter().chain(REFUSED).chain(WITHOUT_EFFECT).copied();
            return Err(BadValue::unknown_option(name, nearest(name, known), M::OPTIONS));
        }
    }
    Ok(map)
}

/// The options of a map that is written as one word.
fn pairs_of(word: &str) -> Option<Vec<(&str, &str)>> {
    word.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| pair.split_once('=')).collect()
}

fn pairs(map: &impl MapSetting) -> impl Iterator<Item = (&'static str, String)> {
    map.options().into_iter().filter_map(|(name, value)| value.map(|value| (name, value)))
}

impl<M: MapSetting> Setting for M {
    const WANTED: &'static str = <M as MapSetting>::WANTED;
    const KIND: &'static str = "map";

    fn from_word(word: &str) -> Option<Self> {
        of(pairs_of(word)?).ok()
    }

    fn show(&self) -> String {
        let mut out = String::new();
        for (name, value) in pairs(self) {
            let comma = if out.is_empty() { "" } else { "," };
            let _ = write!(out, "{comma}{name}={value}");
        }
        out
    }

    fn json(&self) -> String {
        let pairs = pairs(self).map(|(name, value)| (name.to_owned(), value.into()));
        serde_json::Value::Object(pairs.collect()).to_string()
    }

    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Null => Ok(None),
            Raw::Map(pairs) => of(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))).map(Some),
            Raw::Scalar(word) => match pairs_of(word) {
                Some(pairs) => of(pairs).map(Some),
                None => Err(Self::bad(format!("'{word}'"))),
            },
            Raw::List(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }
}
