//! `hinted_handoff_enabled`: true, false, or datacenters.
//!
//! Any other word is the name of a datacenter, which need not have members yet. A misspelt `true`
//! must not turn hints off. So a word that is close to a usual one is refused, and a datacenter
//! without members causes a warning ([`Handoff::warn_of_unknown`]). A list in brackets has names
//! only.

use super::file::distance;
use super::setting::{BadValue, Raw, Setting};
use coordinator::hints::KeptFor;
use std::collections::BTreeSet;

/// Usual words, and up to how many edits a word counts as a misspelling of them and is refused.
const USUAL: &[(&str, usize)] = &[("true", 2), ("false", 2), ("yes", 1), ("enabled", 2), ("disabled", 2)];

/// The configured nodes that get hints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handoff(pub KeptFor);

impl Setting for Handoff {
    const WANTED: &'static str = "`true`, `false`, or names of datacenters";
    const KIND: &'static str = "hinted handoff enabled";

    fn from_word(word: &str) -> Option<Self> {
        Some(Handoff(match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => KeptFor::All,
            "false" | "no" | "off" | "0" => KeptFor::NoNode,
            _ => match word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
                Some(list) => KeptFor::Datacenters(names(list.split(','))?),
                None if nearly(word).is_some() => return None,
                None => KeptFor::Datacenters(names(word.split(','))?),
            },
        }))
    }

    fn show(&self) -> String {
        match &self.0 {
            KeptFor::All => "true".to_owned(),
            KeptFor::NoNode => "false".to_owned(),
            KeptFor::Datacenters(names) => {
                let (plain, found) = (names.join(","), Some(self.clone()));
                if Self::from_word(&plain) == found { plain } else { format!("[{plain}]") }
            }
        }
    }

    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Null => Ok(None),
            Raw::Scalar(word) => Self::from_word(word.trim()).map(Some).ok_or_else(|| match nearly(word.trim()) {
                Some(usual) => Self::bad(format!(
                    "'{word}' (did you mean {usual}? a datacenter of that name is written as a list: [{}])",
                    word.trim()
                )),
                None => Self::bad(format!("'{word}'")),
            }),
            Raw::List(words) => match names(words.iter().map(String::as_str)) {
                Some(names) => Ok(Some(Handoff(KeptFor::Datacenters(names)))),
                None => Err(Self::bad("a list without names".to_owned())),
            },
            Raw::Map(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }
}

fn names<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<String>> {
    let names: Vec<String> = words.map(|word| word.trim().to_owned()).collect();
    let is_name = |name: &String| !name.is_empty() && !name.contains(|c: char| c.is_control() || "[]\"'".contains(c));
    (!names.is_empty() && names.iter().all(is_name)).then_some(names)
}

/// The usual word that the operator may have meant. Names of datacenters mostly have digits or more
/// letters.
fn nearly(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    if word.len() < 3 || !word.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return None;
    }
    USUAL.iter().find(|(usual, edits)| distance(&word, usual) <= *edits).map(|(usual, _)| *usual)
}

impl Handoff {
    /// Warns about configured datacenters without members.
    pub fn warn_of_unknown(kept_for: &KeptFor, known: &BTreeSet<&str>) {
        let unknown = Self::unknown(kept_for, known);
        if !unknown.is_empty() {
            tracing::warn!(
                datacenters = unknown.join(","),
                known = known.iter().copied().collect::<Vec<_>>().join(","),
                "hinted_handoff_enabled lists datacenters without nodes: hints are kept only for nodes of the listed datacenters"
            );
        }
    }

    fn unknown<'a>(kept_for: &'a KeptFor, known: &BTreeSet<&str>) -> Vec<&'a str> {
        let KeptFor::Datacenters(names) = kept_for else { return Vec::new() };
        names.iter().map(String::as_str).filter(|name| !known.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_no_or_datacenters() {
        let read = |word: &str| Handoff::read(&Raw::Scalar(word.to_owned()));
        let some = |names: &[&str]| KeptFor::Datacenters(names.iter().map(|name| (*name).to_owned()).collect());
        for (word, expected, shown) in [
            ("true", KeptFor::All, "true"),
            ("FALSE", KeptFor::NoNode, "false"),
            ("dc1, DC2", some(&["dc1", "DC2"]), "dc1,DC2"),
        ] {
            let found = read(word).expect(word).expect(word);
            assert_eq!((&found.0, found.show().as_str()), (&expected, shown));
        }
        for word in ["ture", "Treu", "flase", "fals", "yess", "enable", "disabled", "\0", "\"true\""] {
            assert!(read(word).is_err(), "{word:?}");
        }
        let why = read("ture").expect_err("nearly true").to_string();
        assert!(why.contains("did you mean true?") && why.contains("[ture]"), "{why}");
        for word in ["us", "eu", "tokyo", "dc1", "no1", "maybe"] {
            assert_eq!(read(word).expect(word).expect(word).0, some(&[word]));
        }
        let odd = read("[ture]").expect("a list").expect("a value");
        assert_eq!((&odd.0, odd.show().as_str()), (&some(&["ture"]), "[ture]"));
        assert_eq!(Handoff::unknown(&odd.0, &BTreeSet::from(["dc1"])), ["ture"]);
        assert!(Handoff::unknown(&some(&["dc1"]), &BTreeSet::from(["dc1", "dc2"])).is_empty());
        assert!(read("dc1,,dc2").is_err() && read("").is_err());
        let list = Handoff::read(&Raw::List(vec!["a".into(), "b".into()]));
        assert_eq!(list, Ok(Some(Handoff(some(&["a", "b"])))));
        assert!(Handoff::read(&Raw::List(Vec::new())).is_err());
    }
}
