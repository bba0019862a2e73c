//! Values of guardrails: thresholds that may be off, restrictions that may only warn, and lists.

use super::setting::{BadValue, Raw, Setting};
use cql::api::Consistency;
use cql::guardrails::Restriction;

/// A threshold; -1, as in ScyllaDB, for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold(pub Option<u32>);

impl Setting for Threshold {
    const WANTED: &'static str = "a number, or -1 for none";
    const KIND: &'static str = "integer";

    fn from_word(word: &str) -> Option<Self> {
        match word {
            "-1" => Some(Threshold(None)),
            number => number.parse().ok().map(|number| Threshold(Some(number))),
        }
    }

    fn show(&self) -> String {
        self.0.map_or_else(|| "-1".to_owned(), |number| number.to_string())
    }

    fn json(&self) -> String {
        self.show()
    }
}

impl Setting for Restriction {
    const WANTED: &'static str = "true, false or warn";
    const KIND: &'static str = "restriction";

    fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(Restriction::On),
            "false" | "no" | "off" | "0" => Some(Restriction::Off),
            "warn" => Some(Restriction::Warn),
            _ => None,
        }
    }

    fn show(&self) -> String {
        match self {
            Restriction::On => "true".to_owned(),
            Restriction::Off => "false".to_owned(),
            Restriction::Warn => "warn".to_owned(),
        }
    }
}

/// An element of a list.
pub trait Word: Sized {
    /// Describes a list of such words.
    const LIST: &'static str;

    /// Parses a word.
    fn of(word: &str) -> Option<Self>;

    /// The word as it is written in the file.
    fn word(&self) -> String;
}

/// The class of a replication strategy, without its package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strategy(pub String);

impl Word for Strategy {
    const LIST: &'static str = "a list of replication strategies";

    fn of(word: &str) -> Option<Self> {
        let name = word.rsplit('.').next()?;
        let known = ["SimpleStrategy", "NetworkTopologyStrategy", "LocalStrategy", "EverywhereStrategy"];
        known.contains(&name).then(|| Strategy(name.to_owned()))
    }

    fn word(&self) -> String {
        self.0.clone()
    }
}

impl Word for Consistency {
    const LIST: &'static str = "a list of consistency levels";

    fn of(word: &str) -> Option<Self> {
        Consistency::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(word))
    }

    fn word(&self) -> String {
        self.name().to_owned()
    }
}

/// Several words: a list in YAML, or separated by commas, optionally in brackets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List<T>(pub Vec<T>);

impl<T: Word> Setting for List<T> {
    const WANTED: &'static str = T::LIST;
    const KIND: &'static str = "string list";

    fn from_word(word: &str) -> Option<Self> {
        let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
        let words = bare.split(',').map(|word| word.trim().trim_matches(['\'', '"']));
        words.filter(|word| !word.is_empty()).map(T::of).collect::<Option<_>>().map(List)
    }

    fn show(&self) -> String {
        self.0.iter().map(T::word).collect::<Vec<_>>().join(",")
    }

    fn json(&self) -> String {
        serde_json::Value::from(self.0.iter().map(T::word).collect::<Vec<_>>()).to_string()
    }

    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::List(words) => Self::read(&Raw::Scalar(words.join(","))),
            Raw::Scalar(word) => match Self::from_word(word.trim()) {
                Some(list) => Ok(Some(list)),
                None => Err(BadValue::new(format!("'{word}'"), Self::WANTED)),
            },
            Raw::Null => Ok(None),
            Raw::Map(_) | Raw::Other => Err(BadValue::new("a nested value".to_owned(), Self::WANTED)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        type Strategies = List<Strategy>;
        let simple = List(vec![Strategy("SimpleStrategy".to_owned())]);
        for raw in [
            Raw::Scalar("SimpleStrategy".to_owned()),
            Raw::Scalar("[\"org.apache.cassandra.locator.SimpleStrategy\"]".to_owned()),
            Raw::List(vec!["SimpleStrategy".to_owned()]),
        ] {
            assert_eq!(Strategies::read(&raw), Ok(Some(simple.clone())));
        }
        assert_eq!(Strategies::read(&Raw::Scalar("[]".to_owned())), Ok(Some(List(Vec::new()))));
        assert_eq!(Strategies::read(&Raw::List(Vec::new())), Ok(Some(List(Vec::new()))));
        assert!(Strategies::read(&Raw::Scalar("NoStrategy".to_owned())).is_err());
        let levels = List::<Consistency>::from_word("any, LOCAL_ONE");
        assert_eq!(levels, Some(List(vec![Consistency::Any, Consistency::LocalOne])));
        assert_eq!(levels.map(|levels| levels.json()), Some("[\"ANY\",\"LOCAL_ONE\"]".to_owned()));
    }

    #[test]
    fn thresholds_may_be_off() {
        assert_eq!(Threshold::from_word("-1"), Some(Threshold(None)));
        assert_eq!(Threshold::from_word("3"), Some(Threshold(Some(3))));
        assert_eq!(Threshold::from_word("-2"), None);
        assert_eq!(Threshold(None).json(), "-1");
    }
}
