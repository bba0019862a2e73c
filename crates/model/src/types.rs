//! CQL types and the encoding of their values.
//!
//! Values pass through Messina as the bytes of the native protocol (version 3 and later: 32-bit
//! lengths in collections), which sstables also store. This module has the types ([`CqlType`]),
//! their names ([`CqlType`]'s `Display`, [`parse`], [`class_name`]) and their protocol ids
//! ([`wire`]). The functions [`validate`], [`canonical`] and [`compare`], and [`collection`], work
//! on bytes. [`Value`] is the decoded form, for code where its cost does not matter.
//!
//! Invariant: no bytes or text from outside make it panic. It uses no clock, schema or socket.

mod canonical;
pub mod class_name;
pub mod collection;
mod compare;
pub mod compatibility;
mod cursor;
mod decimal;
pub mod digits;
mod duration;
mod error;
mod from_json;
mod json;
mod json_tree;
pub mod limits;
mod literal;
mod name;
mod notation;
pub mod parse;
mod places;
mod scalar_text;
pub mod temporal;
mod user_type;
mod validate;
mod value;
pub mod vint;
pub mod wire;

use std::sync::Arc;

pub use canonical::canonical;
pub use compare::compare;
pub use decimal::Decimal;
pub use duration::Duration;
pub use error::{ValueError, shortened};
pub use from_json::{AbsentFields, MAX_ABSENT_BYTES, fold_name};
pub use json::{JsonNotation, json_expansion, json_string};
pub use json_tree::Json;
pub use literal::CqlNotation;
pub use name::{Quoted, is_reserved_keyword};
pub use notation::{NO_LIMIT, Notation, TextError, TextSteps, push_text, shown_limit};
pub use places::Places;
pub use scalar_text::parse_scalar;
pub use user_type::{Fields, UserType, in_field_order};
pub use validate::validate;
pub use value::Value;

use serde::{Deserialize, Serialize};

/// A type of CQL. Cloning is cheap: nested types are shared.
///
/// `frozen` says whether the value is one cell. Types nested in another type count as frozen,
/// marked or not; [`CqlType::freeze`] makes that explicit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CqlType {
    /// 7-bit text.
    Ascii,
    /// Signed 64-bit integer.
    Bigint,
    /// Arbitrary bytes.
    Blob,
    /// One byte, zero or not.
    Boolean,
    /// Distributed counter; its client-side value is a 64-bit integer.
    Counter,
    /// Days, unsigned 32 bits, 2^31 is 1970-01-01.
    Date,
    /// Arbitrary precision decimal: 32-bit scale and varint.
    Decimal,
    /// IEEE double.
    Double,
    /// Months, days, nanoseconds.
    Duration,
    /// IEEE single.
    Float,
    /// IPv4 or IPv6 address.
    Inet,
    /// Signed 32-bit integer.
    Int,
    /// Signed 16-bit integer.
    Smallint,
    /// UTF-8 text (`varchar` is the same type).
    Text,
    /// Nanoseconds of a day.
    Time,
    /// Milliseconds since 1970.
    Timestamp,
    /// Version 1 UUID, ordered by time.
    Timeuuid,
    /// Signed 8-bit integer.
    Tinyint,
    /// Any UUID.
    Uuid,
    /// Arbitrary precision integer.
    Varint,
    /// The type without values of old compact tables.
    Empty,
    /// `list<elem>`.
    List {
        /// Type of the elements.
        elem: Arc<CqlType>,
        /// Whether the list is one cell.
        frozen: bool,
    },
    /// `set<elem>`.
    Set {
        /// Type of the elements.
        elem: Arc<CqlType>,
        /// Whether the set is one cell.
        frozen: bool,
    },
    /// `map<key, value>`.
    Map {
        /// Type of the keys.
        key: Arc<CqlType>,
        /// Type of the values.
        value: Arc<CqlType>,
        /// Whether the map is one cell.
        frozen: bool,
    },
    /// `tuple<...>`, always frozen.
    Tuple(Arc<[CqlType]>),
    /// A user-defined type.
    Udt(Arc<UserType>),
    /// `vector<elem, dim>`, always frozen.
    Vector {
        /// Type of the elements.
        elem: Arc<CqlType>,
        /// Number of elements, at least 1.
        dim: u32,
    },
    /// A type of which only the class name is known; its values are opaque bytes.
    Custom(Arc<str>),
}

impl CqlType {
    /// The types with a name of their own in CQL, without parameters (`varchar` is `text`).
    pub const NATIVE: [CqlType; 20] = [
        CqlType::Ascii,
        CqlType::Bigint,
        CqlType::Blob,
        CqlType::Boolean,
        CqlType::Counter,
        CqlType::Date,
        CqlType::Decimal,
        CqlType::Double,
        CqlType::Duration,
        CqlType::Float,
        CqlType::Inet,
        CqlType::Int,
        CqlType::Smallint,
        CqlType::Text,
        CqlType::Time,
        CqlType::Timestamp,
        CqlType::Timeuuid,
        CqlType::Tinyint,
        CqlType::Uuid,
        CqlType::Varint,
    ];

    /// A list that is not frozen.
    pub fn list(elem: CqlType) -> Self {
        CqlType::List { elem: Arc::new(elem), frozen: false }
    }

    /// A set that is not frozen.
    pub fn set(elem: CqlType) -> Self {
        CqlType::Set { elem: Arc::new(elem), frozen: false }
    }

    /// A map that is not frozen.
    pub fn map(key: CqlType, value: CqlType) -> Self {
        CqlType::Map { key: Arc::new(key), value: Arc::new(value), frozen: false }
    }

    /// A tuple.
    pub fn tuple(fields: impl IntoIterator<Item = CqlType>) -> Self {
        CqlType::Tuple(fields.into_iter().collect())
    }

    /// A vector.
    pub fn vector(elem: CqlType, dim: u32) -> Self {
        CqlType::Vector { elem: Arc::new(elem), dim }
    }

    /// A user-defined type.
    pub fn udt(user_type: UserType) -> Self {
        CqlType::Udt(Arc::new(user_type))
    }

    /// Whether a column of this type holds many cells: a collection or user type that is not
    /// frozen.
    #[inline]
    pub fn is_multi_cell(&self) -> bool {
        match self {
            CqlType::List { frozen, .. } | CqlType::Set { frozen, .. } | CqlType::Map { frozen, .. } => !frozen,
            CqlType::Udt(u) => !u.frozen,
            _ => false,
        }
    }

    /// Whether a value is one cell (the opposite of [`CqlType::is_multi_cell`]).
    #[inline]
    pub fn is_frozen(&self) -> bool {
        !self.is_multi_cell()
    }

    /// Whether the type is a list, set or map.
    #[inline]
    pub fn is_collection(&self) -> bool {
        matches!(self, CqlType::List { .. } | CqlType::Set { .. } | CqlType::Map { .. })
    }

    /// Whether values of the type consist of other values.
    pub fn has_parts(&self) -> bool {
        self.is_collection() || matches!(self, CqlType::Tuple(_) | CqlType::Udt(_) | CqlType::Vector { .. })
    }

    /// The same type, frozen at every level.
    pub fn freeze(&self) -> CqlType {
        if self.is_deeply_frozen() {
            return self.clone();
        }
        match self {
            CqlType::List { elem, .. } => CqlType::List { elem: Arc::new(elem.freeze()), frozen: true },
            CqlType::Set { elem, .. } => CqlType::Set { elem: Arc::new(elem.freeze()), frozen: true },
            CqlType::Map { key, value, .. } => {
                CqlType::Map { key: Arc::new(key.freeze()), value: Arc::new(value.freeze()), frozen: true }
            }
            CqlType::Tuple(fields) => CqlType::Tuple(fields.iter().map(CqlType::freeze).collect()),
            CqlType::Vector { elem, dim } => CqlType::Vector { elem: Arc::new(elem.freeze()), dim: *dim },
            CqlType::Udt(u) => CqlType::udt(UserType {
                keyspace: u.keyspace.clone(),
                name: u.name.clone(),
                fields: u.fields.iter().map(|(n, t)| (n.clone(), t.freeze())).collect(),
                frozen: true,
            }),
            _ => self.clone(),
        }
    }

    /// The same type with everything *inside* it frozen, and itself unchanged: the form of every
    /// column type.
    pub fn freeze_nested(&self) -> CqlType {
        match self {
            CqlType::List { elem, frozen: false } => CqlType::list(elem.freeze()),
            CqlType::Set { elem, frozen: false } => CqlType::set(elem.freeze()),
            CqlType::Map { key, value, frozen: false } => CqlType::map(key.freeze(), value.freeze()),
            CqlType::Udt(u) if !u.frozen => CqlType::udt(UserType {
                keyspace: u.keyspace.clone(),
                name: u.name.clone(),
                fields: u.fields.iter().map(|(n, t)| (n.clone(), t.freeze())).collect(),
                frozen: false,
            }),
            _ => self.freeze(),
        }
    }

    fn is_deeply_frozen(&self) -> bool {
        !self.any(&mut |t| t.is_multi_cell())
    }

    /// The same type with each user type replaced by a tuple of its fields.
    pub fn expand_user_types(&self) -> CqlType {
        let expanded = |ty: &Arc<CqlType>| Arc::new(ty.expand_user_types());
        match self {
            CqlType::List { elem, frozen } => CqlType::List { elem: expanded(elem), frozen: *frozen },
            CqlType::Set { elem, frozen } => CqlType::Set { elem: expanded(elem), frozen: *frozen },
            CqlType::Map { key, value, frozen } => {
                CqlType::Map { key: expanded(key), value: expanded(value), frozen: *frozen }
            }
            CqlType::Tuple(fields) => CqlType::Tuple(fields.iter().map(CqlType::expand_user_types).collect()),
            CqlType::Vector { elem, dim } => CqlType::Vector { elem: expanded(elem), dim: *dim },
            CqlType::Udt(u) => CqlType::tuple(u.fields.iter().map(|(_, ty)| ty.expand_user_types())),
            _ => self.clone(),
        }
    }

    /// Whether `test` holds for this type or any type inside it.
    pub fn any(&self, test: &mut impl FnMut(&CqlType) -> bool) -> bool {
        if test(self) {
            return true;
        }
        match self {
            CqlType::List { elem, .. } | CqlType::Set { elem, .. } | CqlType::Vector { elem, .. } => elem.any(test),
            CqlType::Map { key, value, .. } => key.any(test) || value.any(test),
            CqlType::Tuple(fields) => fields.iter().any(|t| t.any(test)),
            CqlType::Udt(u) => u.fields.iter().any(|(_, t)| t.any(test)),
            _ => false,
        }
    }

    /// Whether the type is `duration` or has one inside it. Durations have no order, so such a type
    /// cannot be a key.
    pub fn contains_duration(&self) -> bool {
        self.any(&mut |t| *t == CqlType::Duration)
    }

    /// Whether the type is the counter type.
    #[inline]
    pub fn is_counter(&self) -> bool {
        *self == CqlType::Counter
    }

    /// Whether the type is a counter or has one inside it (the latter is never legal).
    pub fn contains_counter(&self) -> bool {
        self.any(&mut CqlType::is_counter)
    }

    /// Calls `each` with the user types in this type, but not with those inside of these.
    pub fn each_user_type(&self, each: &mut impl FnMut(&Arc<UserType>)) {
        match self {
            CqlType::List { elem, .. } | CqlType::Set { elem, .. } | CqlType::Vector { elem, .. } => {
                elem.each_user_type(each);
            }
            CqlType::Map { key, value, .. } => {
                key.each_user_type(each);
                value.each_user_type(each);
            }
            CqlType::Tuple(fields) => fields.iter().for_each(|ty| ty.each_user_type(each)),
            CqlType::Udt(user_type) => each(user_type),
            _ => {}
        }
    }

    /// Whether the user type `name` of `keyspace` is this type or inside it.
    pub fn references_udt(&self, keyspace: &str, name: &str) -> bool {
        self.any(&mut |t| matches!(t, CqlType::Udt(u) if u.name == name && u.keyspace == keyspace))
    }

    /// The length in bytes that every non-empty value has, if there is one.
    #[inline]
    pub fn value_len(&self) -> Option<usize> {
        Some(match self {
            CqlType::Boolean | CqlType::Tinyint => 1,
            CqlType::Smallint => 2,
            CqlType::Int | CqlType::Float | CqlType::Date => 4,
            CqlType::Bigint | CqlType::Counter | CqlType::Double | CqlType::Time | CqlType::Timestamp => 8,
            CqlType::Uuid | CqlType::Timeuuid => 16,
            CqlType::Empty => 0,
            CqlType::Vector { elem, dim } => return elem.fixed_width()?.checked_mul(*dim as usize),
            _ => return None,
        })
    }

    /// The width of values that sstables and vectors store without a length. Some types of a fixed
    /// length are not among them: tinyint, smallint, date, time and counter have a length there.
    #[inline]
    pub fn fixed_width(&self) -> Option<usize> {
        match self {
            CqlType::Tinyint | CqlType::Smallint | CqlType::Date | CqlType::Time | CqlType::Counter => None,
            _ => self.value_len(),
        }
    }

    /// Whether a value of no bytes is an ordinary value: empty text or blob, not a legacy "empty"
    /// of another type.
    #[inline]
    pub fn empty_is_ordinary(&self) -> bool {
        matches!(self, CqlType::Ascii | CqlType::Text | CqlType::Blob | CqlType::Empty | CqlType::Custom(_))
    }

    /// Whether a value of no bytes is legal: ordinary, or tolerated as the legacy "empty" that is
    /// not null. Durations, lists, sets, maps and vectors have none.
    #[inline]
    pub fn allows_empty(&self) -> bool {
        !matches!(
            self,
            CqlType::Duration
                | CqlType::Counter
                | CqlType::List { .. }
                | CqlType::Set { .. }
                | CqlType::Map { .. }
                | CqlType::Vector { .. }
        )
    }
}

#[cfg(test)]
mod tests;
