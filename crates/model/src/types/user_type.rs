//! User-defined types, whose fields are found by name without a look at each field.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::CqlType;
use super::places::NameIndex;

/// A user-defined type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserType {
    /// The keyspace it belongs to.
    pub keyspace: String,
    /// Its name, unquoted.
    pub name: String,
    /// Its fields in order.
    pub fields: Fields,
    /// Whether a value is one cell.
    pub frozen: bool,
}

impl UserType {
    /// The position of the field called `name`.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.index_of(name)
    }
}

/// The fields of a user type in order, names unquoted.
///
/// A statement can have many thousands of values of a type with thousands of fields. So names are
/// found by an index, which is made once, when it is first needed.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields {
    fields: Vec<(String, CqlType)>,
    #[serde(skip)]
    index: OnceLock<NameIndex>,
}

/// Up to this number, fields are searched one after the other, without an index.
const FEW_FIELDS: usize = 16;

impl Fields {
    fn index_of(&self, wanted: &str) -> Option<usize> {
        if self.fields.len() <= FEW_FIELDS {
            return self.fields.iter().position(|(name, _)| name == wanted);
        }
        let name_at = |at: usize| self.fields[at].0.as_str();
        self.index.get_or_init(|| NameIndex::of(self.fields.len(), name_at)).find(&wanted, name_at)
    }
}

/// Orders the values of fields by the positions of the fields. Of several values for a field, only
/// the last one is kept.
pub fn in_field_order<T>(values: &mut Vec<(usize, T)>) {
    values.sort_by_key(|(at, _)| *at);
    values.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            std::mem::swap(later, kept);
        }
        same
    });
}

impl Deref for Fields {
    type Target = [(String, CqlType)];

    fn deref(&self) -> &Self::Target {
        &self.fields
    }
}

impl From<Vec<(String, CqlType)>> for Fields {
    fn from(fields: Vec<(String, CqlType)>) -> Self {
        Fields { fields, index: OnceLock::new() }
    }
}

impl FromIterator<(String, CqlType)> for Fields {
    fn from_iter<I: IntoIterator<Item = (String, CqlType)>>(fields: I) -> Self {
        fields.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'f> IntoIterator for &'f Fields {
    type Item = &'f (String, CqlType);
    type IntoIter = std::slice::Iter<'f, (String, CqlType)>;

    fn into_iter(self) -> Self::IntoIter {
        self.fields.iter()
    }
}

// The index follows from the fields, so it is not part of their identity.

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl Eq for Fields {}

impl Hash for Fields {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fields.hash(state);
    }
}

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fields.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_type(fields: usize) -> UserType {
        let fields = (0..fields).rev().map(|n| (format!("f{n}"), CqlType::Int)).collect();
        UserType { keyspace: "ks".into(), name: "u".into(), fields, frozen: true }
    }

    #[test]
    fn fields_are_found_by_name() {
        for count in [0, 1, FEW_FIELDS, FEW_FIELDS + 1, 4_000] {
            let user_type = user_type(count);
            for (at, (name, _)) in user_type.fields.iter().enumerate() {
                assert_eq!(user_type.field_index(name), Some(at));
            }
            for unknown in ["", "f", "f4000", "g0"] {
                assert_eq!(user_type.field_index(unknown), None);
            }
        }
    }

    #[test]
    fn the_last_value_of_a_field_is_kept() {
        let mut values = vec![(3, 'a'), (1, 'b'), (3, 'c'), (0, 'd'), (1, 'e'), (3, 'f')];
        in_field_order(&mut values);
        assert_eq!(values, [(0, 'd'), (1, 'e'), (3, 'f')]);
    }

    #[test]
    fn the_index_changes_neither_identity_nor_serialization() {
        let (used, fresh) = (user_type(100), user_type(100));
        assert_eq!(used.field_index("f7"), Some(92));
        assert_eq!(used, fresh);
        let text = serde_json::to_string(&used).expect("it is serializable");
        assert_eq!(text, serde_json::to_string(&fresh).expect("it is serializable"));
        assert!(text.contains(r#""fields":[["f99","Int"],"#), "{text}");
        let read: UserType = serde_json::from_str(&text).expect("it was serialized");
        assert_eq!((read.field_index("f7"), &read), (Some(92), &used));
    }
}
