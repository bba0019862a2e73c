//! `hinted_handoff_enabled`: yes, no, or for which datacenters.

use super::setting::{BadValue, Raw, Setting};
use cluster::hints::KeptFor;

/// For which nodes hints are kept, as it is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handoff(pub KeptFor);

impl Setting for Handoff {
    const WANTED: &'static str = "`true`, `false`, or names of datacenters";
    const KIND: &'static str = "hinted handoff enabled";

    fn from_word(word: &str) -> Option<Self> {
        Some(Handoff(match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => KeptFor::All,
            "false" | "no" | "off" => KeptFor::Nobody,
            _ => KeptFor::Datacenters(names(word.split(','))?),
        }))
    }

    fn show(&self) -> String {
        match &self.0 {
            KeptFor::All => "true".to_owned(),
            KeptFor::Nobody => "false".to_owned(),
            KeptFor::Datacenters(names) => names.join(","),
        }
    }

    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Null => Ok(None),
            Raw::Scalar(word) => Self::from_word(word.trim()).map(Some).ok_or_else(|| Self::bad(format!("'{word}'"))),
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
    (!names.is_empty() && names.iter().all(|name| !name.is_empty())).then_some(names)
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
            ("FALSE", KeptFor::Nobody, "false"),
            ("dc1, DC2", some(&["dc1", "DC2"]), "dc1,DC2"),
        ] {
            let found = read(word).expect(word).expect(word);
            assert_eq!((&found.0, found.show().as_str()), (&expected, shown));
        }
        assert!(read("dc1,,dc2").is_err() && read("").is_err());
        let list = Handoff::read(&Raw::List(vec!["a".into(), "b".into()]));
        assert_eq!(list, Ok(Some(Handoff(some(&["a", "b"])))));
        assert!(Handoff::read(&Raw::List(Vec::new())).is_err());
    }
}
