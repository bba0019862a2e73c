//! Values as text, written directly from their bytes, part by part.
//!
//! No tree of decoded values is made. A few bytes can be many values: a value of a user type may
//! end before its last fields, and each missing field is a null. So memory and time depend on the
//! text, which has a limit and can be written in steps.

use std::slice;

use super::collection::{Elements, Fields, VectorElements, counted, fields, vector_elements};
use super::validate::wrong_length;
use super::{CqlType, ValueError};

/// Why a value is not written as text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TextError {
    /// The text would be longer than its limit, bytes.
    #[error("The text of a value would be longer than {0} bytes")]
    TooLong(usize),
    /// The bytes are no value of their type, or a number has too many digits.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// The limit for texts without a limit.
pub const NO_LIMIT: usize = usize::MAX;

/// The most bytes of the text of a value, for each byte of the value, where data is only shown.
/// Only values of user types and tuples that lack most of their fields are longer.
const SHOWN_PER_BYTE: usize = 16;

/// The limit for the text of a value of `bytes` bytes, where data is only shown. `short`: the limit
/// for a value of no bytes.
pub fn shown_limit(bytes: usize, short: usize) -> usize {
    bytes.saturating_mul(SHOWN_PER_BYTE).saturating_add(short)
}

/// A notation for values: JSON, or literals of CQL. Parts are separated by commas, a key or field
/// from its value by a colon, and a null is `null`.
pub trait Notation {
    /// The brackets around the parts of a value of this type.
    fn brackets(&self, ty: &CqlType) -> [char; 2];

    /// Appends a value without parts: of a type that has none, or a value of no bytes. An error if
    /// the bytes are no value of their type. A value that would make `out` longer than `limit` may
    /// be refused before it is written.
    fn push_scalar(&self, ty: &CqlType, bytes: &[u8], limit: usize, out: &mut String) -> Result<(), TextError>;

    /// Appends the name of a field of a user type.
    fn push_field(&self, name: &str, out: &mut String);

    /// Completes a map's key, which begins at `start`.
    fn end_key(&self, start: usize, limit: usize, out: &mut String) -> Result<(), TextError>;
}

/// Appends a value, or null, as text, unless `out` would become longer than `limit` bytes. At most
/// one value without parts is written beyond the limit.
pub fn push_text<N: Notation>(
    notation: N,
    ty: &CqlType,
    value: Option<&[u8]>,
    limit: usize,
    out: &mut String,
) -> Result<(), TextError> {
    let mut steps = TextSteps::new(notation, ty, value, limit, out)?;
    while !steps.step(usize::MAX)? {}
    Ok(())
}

/// Writes a value as text, some parts at a time.
#[derive(Debug)]
pub struct TextSteps<'v, 'o, N> {
    notation: N,
    /// The values that are being written, from the outermost one to the innermost one.
    open: Vec<Open<'v>>,
    limit: usize,
    out: &'o mut String,
}

/// A value of which some parts are written.
#[derive(Debug)]
struct Open<'v> {
    parts: Parts<'v>,
    close: char,
    is_first: bool,
    /// Where the value begins, if it is the key of a map.
    key_start: Option<usize>,
}

/// The parts of a value that are not written yet.
#[derive(Debug)]
enum Parts<'v> {
    Elements(&'v CqlType, Elements<'v>),
    /// The alternating keys and values of a map.
    Entries(&'v CqlType, &'v CqlType, Elements<'v>),
    Vector(&'v CqlType, VectorElements<'v>),
    Tuple(slice::Iter<'v, CqlType>, Fields<'v>),
    UserType(slice::Iter<'v, (String, CqlType)>, Fields<'v>),
}

/// The role of a part in the value around it.
enum Role<'v> {
    Plain,
    Key,
    /// The value under a key.
    Keyed,
    Field(&'v str),
}

type Part<'v> = (Role<'v>, &'v CqlType, Option<&'v [u8]>);

impl<'v> Parts<'v> {
    /// The parts of a value. `None` if the type has no parts.
    fn of(ty: &'v CqlType, bytes: &'v [u8]) -> Result<Option<Self>, ValueError> {
        Ok(Some(match ty {
            CqlType::List { elem, .. } | CqlType::Set { elem, .. } => Parts::Elements(elem, counted(bytes, 1)?),
            CqlType::Map { key, value, .. } => Parts::Entries(key, value, counted(bytes, 2)?),
            CqlType::Vector { elem, dim } => Parts::Vector(elem, vector_elements(elem, *dim, bytes)),
            CqlType::Tuple(types) => Parts::Tuple(types.iter(), fields(bytes)),
            CqlType::Udt(user_type) => Parts::UserType(user_type.fields.iter(), fields(bytes)),
            _ => return Ok(None),
        }))
    }

    fn next(&mut self) -> Result<Option<Part<'v>>, ValueError> {
        Ok(match self {
            Parts::Elements(elem, rest) => rest.next().transpose()?.map(|bytes| (Role::Plain, *elem, Some(bytes))),
            Parts::Entries(key, value, rest) => {
                let is_key = rest.remaining() % 2 == 0;
                let (role, ty) = if is_key { (Role::Key, *key) } else { (Role::Keyed, *value) };
                rest.next().transpose()?.map(|bytes| (role, ty, Some(bytes)))
            }
            Parts::Vector(elem, rest) => rest.next().transpose()?.map(|bytes| (Role::Plain, *elem, Some(bytes))),
            Parts::Tuple(types, rest) => match types.next() {
                Some(ty) => Some((Role::Plain, ty, rest.next().transpose()?.flatten())),
                None => None,
            },
            Parts::UserType(types, rest) => match types.next() {
                Some((name, ty)) => Some((Role::Field(name), ty, rest.next().transpose()?.flatten())),
                None => None,
            },
        })
    }

    /// Whether no bytes are left behind the last part.
    fn is_done(&self) -> bool {
        match self {
            Parts::Elements(_, rest) | Parts::Entries(_, _, rest) => rest.trailing().is_empty(),
            Parts::Vector(_, rest) => rest.trailing().is_empty(),
            Parts::Tuple(_, rest) | Parts::UserType(_, rest) => rest.is_done(),
        }
    }
}

impl<'v, 'o, N: Notation> TextSteps<'v, 'o, N> {
    /// Begins to append a value, or null, to `out`.
    pub fn new(
        notation: N,
        ty: &'v CqlType,
        value: Option<&'v [u8]>,
        limit: usize,
        out: &'o mut String,
    ) -> Result<Self, TextError> {
        let mut steps = TextSteps { notation, open: Vec::new(), limit, out };
        steps.push(ty, value, None)?;
        Ok(steps)
    }

    /// Writes parts of about `bytes` bytes. True if all are written.
    pub fn step(&mut self, bytes: usize) -> Result<bool, TextError> {
        let end = self.out.len().saturating_add(bytes);
        while self.out.len() < end {
            let Some(inner) = self.open.last_mut() else { return Ok(true) };
            let Some((role, ty, bytes)) = inner.parts.next()? else {
                self.close()?;
                continue;
            };
            if !std::mem::take(&mut inner.is_first) && !matches!(role, Role::Keyed) {
                self.out.push_str(", ");
            }
            let mut key_start = None;
            match role {
                Role::Plain | Role::Keyed => {}
                Role::Key => key_start = Some(self.out.len()),
                Role::Field(name) => {
                    self.notation.push_field(name, self.out);
                    self.out.push_str(": ");
                }
            }
            self.push(ty, bytes, key_start)?;
        }
        Ok(self.open.is_empty())
    }

    /// Writes a value without parts, or begins one with parts.
    fn push(&mut self, ty: &'v CqlType, bytes: Option<&'v [u8]>, key_start: Option<usize>) -> Result<(), TextError> {
        let parts = match bytes {
            None => {
                self.out.push_str("null");
                None
            }
            // A value of no bytes has no parts. Most types with parts have no such value.
            Some([]) if ty.has_parts() && !ty.allows_empty() => return Err(wrong_length(ty, &[]).into()),
            Some([]) => {
                self.notation.push_scalar(ty, &[], self.limit, self.out)?;
                None
            }
            Some(bytes) => {
                let parts = Parts::of(ty, bytes)?;
                if parts.is_none() {
                    self.notation.push_scalar(ty, bytes, self.limit, self.out)?;
                }
                parts
            }
        };
        match parts {
            Some(parts) => {
                let [open, close] = self.notation.brackets(ty);
                self.out.push(open);
                self.open.push(Open { parts, close, is_first: true, key_start });
            }
            None => self.end_value(key_start)?,
        }
        self.check_limit()
    }

    /// Ends the innermost value.
    fn close(&mut self) -> Result<(), TextError> {
        let Some(Open { parts, close, key_start, .. }) = self.open.pop() else { return Ok(()) };
        if !parts.is_done() {
            return Err(ValueError::new("Unexpected bytes after the end of a value").into());
        }
        self.out.push(close);
        self.end_value(key_start)?;
        self.check_limit()
    }

    fn end_value(&mut self, key_start: Option<usize>) -> Result<(), TextError> {
        if let Some(start) = key_start {
            self.notation.end_key(start, self.limit, self.out)?;
            self.out.push_str(": ");
        }
        Ok(())
    }

    fn check_limit(&self) -> Result<(), TextError> {
        if self.out.len() > self.limit { Err(TextError::TooLong(self.limit)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::JsonNotation;
    use super::*;
    use crate::types::{UserType, Value, collection};

    const JSON: JsonNotation = JsonNotation::STRICT;

    fn wide(fields: usize) -> CqlType {
        let fields = (0..fields).map(|n| (format!("f{n}"), CqlType::Int)).collect();
        CqlType::udt(UserType { keyspace: "ks".into(), name: "wide".into(), fields, frozen: true })
    }

    /// A list of values that end before their first field.
    fn short_values(count: usize) -> Vec<u8> {
        collection::build_list((0..count).map(|_| [0xffu8; 4]))
    }

    fn json(ty: &CqlType, bytes: &[u8], limit: usize) -> (Result<(), TextError>, String) {
        let mut out = String::new();
        let result = push_text(JSON, ty, Some(bytes), limit, &mut out);
        (result, out)
    }

    #[test]
    fn steps_write_the_same_text() {
        let ints = CqlType::list(CqlType::Int);
        let map = CqlType::map(ints.clone(), wide(3));
        let wides = CqlType::tuple([CqlType::Text, CqlType::list(wide(40))]);
        let list = |n: i32| Value::List((0..n).map(Value::Int).collect());
        let few = Value::Udt(vec![Value::Int(1), Value::Null, Value::Int(3)]);
        let bytes = |ty: &CqlType, value: Value| value.encode(ty).expect("it is of its type").expect("not null");
        for (ty, bytes) in [
            (&ints, bytes(&ints, list(0))),
            (&ints, bytes(&ints, list(20_000))),
            (&map, bytes(&map, Value::Map(vec![(list(2_000), few.clone()), (list(2), few.clone()), (list(0), few)]))),
            (&map, bytes(&map, Value::Map(Vec::new()))),
            (&wides, collection::build_tuple([Some(b"a\"".to_vec()), Some(short_values(100))])),
            (&CqlType::Text, b"plain".to_vec()),
        ] {
            let (written, expected) = json(ty, &bytes, 1 << 20);
            assert_eq!(written, Ok(()));
            for step in [1, 100, 1 << 20] {
                let mut out = "{x: ".to_owned();
                let mut steps = TextSteps::new(JSON, ty, Some(&bytes), 1 << 20, &mut out).expect("it is short");
                while !steps.step(step).expect("it is short") {}
                assert_eq!(out, format!("{{x: {expected}"));
            }
        }
    }

    #[test]
    fn the_text_of_short_values_ends_at_the_limit() {
        const LIMIT: usize = 1 << 16;
        let list = CqlType::list(wide(4_000)).freeze();
        let bytes = short_values(130_000);
        let map = CqlType::map(list.clone(), CqlType::Int);
        for (ty, bytes) in [
            (CqlType::tuple([CqlType::tuple([list.clone()])]), {
                collection::build_tuple([Some(collection::build_tuple([Some(&bytes)]))])
            }),
            (map, collection::build_map_sorted([(&bytes, 1i32.to_be_bytes())])),
            (list, bytes),
        ] {
            let (written, text) = json(&ty, &bytes, LIMIT);
            assert_eq!(written, Err(TextError::TooLong(LIMIT)));
            assert!(text.capacity() <= 2 * LIMIT, "{} bytes for {ty}", text.capacity());
        }
    }

    #[test]
    fn a_step_writes_about_its_bytes() {
        let ty = CqlType::list(wide(4_000));
        let bytes = short_values(10);
        let mut out = String::new();
        let mut steps = TextSteps::new(JSON, &ty, Some(&bytes), 1 << 20, &mut out).expect("it is short");
        let mut count = 1;
        while !steps.step(1_000).expect("it is short") {
            count += 1;
        }
        assert!(out.len() / count < 1_100, "{} bytes in {count} steps", out.len());
    }

    #[test]
    fn texts_of_exactly_the_limit_are_written() {
        let ty = CqlType::map(CqlType::list(CqlType::Int), CqlType::Text);
        let key = Value::List(vec![Value::Int(1), Value::Int(22)]);
        let value = Value::Map(vec![(key, Value::Text("a\n".into()))]);
        let bytes = value.encode(&ty).expect("it is of its type").expect("not null");
        let text = r#"{"[1, 22]": "a\n"}"#;
        assert_eq!(json(&ty, &bytes, text.len()), (Ok(()), text.to_owned()));
        for limit in 0..text.len() {
            assert_eq!(json(&ty, &bytes, limit).0, Err(TextError::TooLong(limit)));
        }
    }

    #[test]
    fn malformed_values_are_errors() {
        let ints = CqlType::list(CqlType::Int);
        let pair = CqlType::tuple([CqlType::Int, CqlType::Int]);
        for (ty, bytes) in [
            (&ints, &b""[..]),
            (&ints, b"\0\0\0\x01"),
            (&ints, b"\0\0\0\0x"),
            (&ints, b"\xff\xff\xff\xff"),
            (&ints, b"\0\0\0\x01\0\0\0\x02ab"),
            (&pair, b"\0\0\0\x04abcd\0"),
            (&pair, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            (&CqlType::Text, b"\xff"),
            (&CqlType::vector(CqlType::Int, 2), b"abcd"),
            (&CqlType::vector(CqlType::Int, 1), b"abcde"),
            (&CqlType::map(CqlType::Int, CqlType::Int), b"\0\0\0\x01\0\0\0\x04abcd"),
        ] {
            assert!(super::super::validate(ty, bytes).is_err(), "{ty} {bytes:?}");
            assert!(matches!(json(ty, bytes, NO_LIMIT).0, Err(TextError::Value(_))), "{ty} {bytes:?}");
        }
    }
}
