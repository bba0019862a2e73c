//! Settings that are maps of names and words, as scylla.yaml has them for encryption.
//!
//! On the command line such a map is one word: `enabled=true,certificate=/etc/messina/node.crt`.

use super::setting::{BadValue, Raw, Setting};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A setting that is a map.
pub trait MapSetting: Default {
    /// What a map should look like, for the operator.
    const WANTED: &'static str;

    /// Takes one option. `None` if its value is not one of its kind; names that are not known are kept for `warnings`.
    fn set(&mut self, name: &str, value: &str) -> Option<()>;

    /// What is set, of what is known here; in the order in which it is shown.
    fn options(&self) -> impl IntoIterator<Item = (&'static str, Option<String>)>;
}

/// A path as an option has it; an empty word sets none.
pub fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

/// A path as an option shows it.
pub fn shown(path: Option<&Path>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

/// A switch as an option shows it: only when it is on.
pub fn switch(on: bool) -> Option<String> {
    on.then(|| "true".to_owned())
}

/// Options without which a node would be less safe than its operator thinks.
pub const REFUSED: &[&str] = &["certificate_revocation_list", "keystore", "keystore_password", "truststore_password"];

/// Refuses those among the options of `setting` that are not known here. The error is for the operator.
pub fn refuse(setting: &str, others: &[String]) -> Result<(), String> {
    match others.iter().find(|name| REFUSED.contains(&name.as_str())) {
        Some(refused) => Err(format!("{setting}: {refused} is not supported; certificates and keys are PEM files")),
        None => Ok(()),
    }
}

fn of<'a, M: MapSetting>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<M> {
    let mut map = M::default();
    for (name, value) in pairs {
        map.set(name.trim(), value.trim())?;
    }
    Some(map)
}

fn pairs(map: &impl MapSetting) -> impl Iterator<Item = (&'static str, String)> {
    map.options().into_iter().filter_map(|(name, value)| value.map(|value| (name, value)))
}

impl<M: MapSetting> Setting for M {
    const WANTED: &'static str = <M as MapSetting>::WANTED;
    const KIND: &'static str = "map";

    fn from_word(word: &str) -> Option<Self> {
        let pairs = word.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| pair.split_once('='));
        of(pairs.collect::<Option<Vec<_>>>()?)
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
            Raw::Map(pairs) => {
                let read = of(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())));
                read.map(Some).ok_or_else(|| Self::bad("a map with another value".to_owned()))
            }
            Raw::Scalar(word) => Self::from_word(word.trim()).map(Some).ok_or_else(|| Self::bad(format!("'{word}'"))),
            Raw::List(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }
}
