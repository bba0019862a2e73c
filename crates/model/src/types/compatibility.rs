//! Decides which changes of a column's type keep stored data readable. Pure.
//!
//! A change of type rewrites no data, so bytes written under the old type are read under the new
//! one. There are three rules:
//! - [`keeps_values`]: every old value is valid in the new type, and sstables encode both types
//!   with the same width. For static and regular columns.
//! - [`keeps_order`]: values also keep their order. For clustering columns, elements of sets and
//!   keys of maps.
//! - [`keeps_bytes`]: each value also keeps its bytes when it is written again under the new type.
//!   For partition keys, because the token is computed from the bytes: a tuple with more fields
//!   would be another partition.
//!
//! Inside a frozen collection or a tuple each element has a length, so widths do not matter there.
//! Elements of lists and values of maps are compared by value.

use super::{CqlType, UserType};

/// Whether cells of a static or regular column written as `old` can be read as `new`.
pub fn keeps_values(old: &CqlType, new: &CqlType) -> bool {
    match (old, new) {
        _ if old == new => true,
        // One cell per element, with the width of the element type.
        (CqlType::List { elem: old, frozen: false }, CqlType::List { elem: new, frozen: false }) => {
            keeps_values(old, new)
        }
        (CqlType::Set { elem: old, frozen: false }, CqlType::Set { elem: new, frozen: false }) => keeps_order(old, new),
        (
            CqlType::Map { key: old_key, value: old, frozen: false },
            CqlType::Map { key: new_key, value: new, frozen: false },
        ) => keeps_order(old_key, new_key) && keeps_values(old, new),
        (CqlType::Udt(old), CqlType::Udt(new)) if !old.frozen && !new.frozen => {
            is_later(old, new, Growth::Allowed, keeps_order)
        }
        _ if old.is_multi_cell() || new.is_multi_cell() => false,
        _ => old.fixed_width() == new.fixed_width() && nested_values(old, new),
    }
}

/// Whether single-cell values written as `old` are valid as `new`, regardless of widths.
fn nested_values(old: &CqlType, new: &CqlType) -> bool {
    use CqlType::*;
    let native = match (old, new) {
        (Counter | Custom(_) | Empty, _) => false,
        (_, Blob) | (Timeuuid, Uuid) | (Timestamp, Bigint) | (Bigint, Timestamp) | (Int | Bigint, Varint) => true,
        _ => false,
    };
    native || keeps_order(old, new) || nested(old, new, Growth::Allowed, nested_values)
}

/// Whether every value of `old` is valid in `new`, with the same order.
pub fn keeps_order(old: &CqlType, new: &CqlType) -> bool {
    let text = matches!((old, new), (CqlType::Ascii, CqlType::Text) | (CqlType::Ascii | CqlType::Text, CqlType::Blob));
    old == new || text || is_one_cell(old, new) && nested(old, new, Growth::Allowed, keeps_order)
}

/// Whether every value of `old` is valid in `new`, with the same bytes also when written again.
pub fn keeps_bytes(old: &CqlType, new: &CqlType) -> bool {
    use CqlType::*;
    let native = matches!(
        (old, new),
        (Ascii, Text)
            | (Ascii | Text | Decimal | Varint | Inet, Blob)
            | (Timeuuid, Uuid)
            | (Timestamp, Bigint)
            | (Bigint, Timestamp)
    );
    old == new || native || is_one_cell(old, new) && nested(old, new, Growth::Refused, keeps_bytes)
}

fn is_one_cell(old: &CqlType, new: &CqlType) -> bool {
    !old.is_multi_cell() && !new.is_multi_cell()
}

/// Whether a tuple may have more fields in the new type. Old values lack them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    Allowed,
    Refused,
}

/// Compares frozen collections of the same kind, and tuples, by element. `rule` applies to all
/// elements. Elements that decide an order must also keep the order.
fn nested(old: &CqlType, new: &CqlType, growth: Growth, rule: fn(&CqlType, &CqlType) -> bool) -> bool {
    let sorted = |old: &CqlType, new: &CqlType| keeps_order(old, new) && rule(old, new);
    let (old, new) = (old.freeze(), new.freeze());
    match (&old, &new) {
        (CqlType::List { elem: old, .. }, CqlType::List { elem: new, .. }) => rule(old, new),
        (CqlType::Set { elem: old, .. }, CqlType::Set { elem: new, .. }) => sorted(old, new),
        (CqlType::Map { key: old_key, value: old, .. }, CqlType::Map { key: new_key, value: new, .. }) => {
            sorted(old_key, new_key) && rule(old, new)
        }
        (CqlType::Tuple(old), CqlType::Tuple(new)) => {
            let lengths = match growth {
                Growth::Allowed => old.len() <= new.len(),
                Growth::Refused => old.len() == new.len(),
            };
            lengths && old.iter().zip(new.iter()).all(|(old, new)| rule(old, new))
        }
        (CqlType::Udt(old), CqlType::Udt(new)) => is_later(old, new, growth, rule),
        _ => false,
    }
}

/// Whether ALTER TYPE can have turned one user type into the other. Fields may have other names and
/// types, and more fields may follow, but no field may have moved. Types in use are always equal
/// here; `old` may be the type of a dropped column.
fn is_later(old: &UserType, new: &UserType, growth: Growth, rule: fn(&CqlType, &CqlType) -> bool) -> bool {
    let lengths = match growth {
        Growth::Allowed => old.fields.len() <= new.fields.len(),
        Growth::Refused => old.fields.len() == new.fields.len(),
    };
    let stayed = |at: usize, name: &str| new.field_index(name).is_none_or(|place| place == at);
    (&old.keyspace, &old.name) == (&new.keyspace, &new.name)
        && lengths
        && old.fields.iter().enumerate().all(|(at, (name, _))| stayed(at, name))
        && old.fields.iter().zip(&new.fields).all(|((_, old), (_, new))| rule(old, new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::parse;

    /// Old type, new type, and the rules that hold: values, order, bytes.
    const CASES: &[(&str, &str, &str)] = &[
        ("int", "int", "vob"),
        ("ascii", "text", "vob"),
        ("text", "ascii", ""),
        ("ascii", "blob", "vob"),
        ("text", "blob", "vob"),
        ("varint", "blob", "vb"),
        ("timeuuid", "uuid", "vb"),
        ("uuid", "timeuuid", ""),
        ("timestamp", "bigint", "vb"),
        ("int", "bigint", ""),
        // Sstables store an int without a length, but a blob or a varint with one.
        ("int", "blob", ""),
        ("int", "varint", ""),
        // Inside a frozen collection every element has its length.
        ("frozen<list<int>>", "frozen<list<varint>>", "v"),
        ("frozen<list<int>>", "frozen<list<blob>>", "v"),
        ("frozen<list<text>>", "frozen<list<blob>>", "vob"),
        ("frozen<list<int>>", "frozen<list<bigint>>", ""),
        // Elements of sets and keys of maps sort, values of maps do not.
        ("frozen<set<ascii>>", "frozen<set<text>>", "vob"),
        ("frozen<set<timeuuid>>", "frozen<set<uuid>>", ""),
        ("frozen<set<int>>", "frozen<set<blob>>", ""),
        ("frozen<map<ascii, timeuuid>>", "frozen<map<text, uuid>>", "vb"),
        ("frozen<map<timeuuid, int>>", "frozen<map<uuid, int>>", ""),
        ("frozen<list<frozen<map<text, int>>>>", "frozen<list<frozen<map<text, varint>>>>", "v"),
        ("frozen<list<int>>", "frozen<set<int>>", ""),
        ("frozen<list<int>>", "blob", "v"),
        // Tuples grow, and never shrink. A partition key keeps its bytes.
        ("tuple<int, text>", "tuple<int, text, int>", "vo"),
        ("tuple<int>", "tuple<varint>", "v"),
        ("tuple<int, text>", "tuple<int>", ""),
        ("tuple<int, ascii>", "tuple<int, text>", "vob"),
        ("frozen<list<tuple<int>>>", "frozen<list<tuple<int, int>>>", "vo"),
        ("frozen<set<tuple<int>>>", "frozen<set<tuple<int, int>>>", "vo"),
        ("frozen<map<tuple<int>, tuple<int>>>", "frozen<map<tuple<int, int>, tuple<int, text>>>", "vo"),
        // A multi-cell collection stores each element like a cell of the element's type.
        ("list<ascii>", "list<text>", "v"),
        ("list<int>", "list<varint>", ""),
        ("list<tuple<int>>", "list<tuple<int, int>>", "v"),
        ("set<text>", "set<blob>", "v"),
        ("set<timeuuid>", "set<uuid>", ""),
        ("map<text, timeuuid>", "map<blob, uuid>", "v"),
        ("map<text, int>", "map<text, blob>", ""),
        ("list<int>", "frozen<list<int>>", ""),
        ("frozen<list<int>>", "list<int>", ""),
        ("vector<float, 2>", "vector<float, 3>", ""),
        ("vector<float, 2>", "vector<float, 2>", "vob"),
    ];

    #[test]
    fn a_change_of_type_keeps_what_depends_on_the_bytes() {
        for (old, new, expected) in CASES {
            let ty = |text: &str| parse::parse(text, &|_, _| None).unwrap_or_else(|error| panic!("{text}: {error}"));
            let (before, after) = (ty(old), ty(new));
            let rules = [
                ('v', keeps_values(&before, &after)),
                ('o', keeps_order(&before, &after)),
                ('b', keeps_bytes(&before, &after)),
            ];
            let held: String = rules.into_iter().filter(|(_, holds)| *holds).map(|(letter, _)| letter).collect();
            assert_eq!(held, *expected, "{old} to {new}");
        }
    }
}
