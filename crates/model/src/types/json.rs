//! Values as JSON by Cassandra's rules: numbers plain (NaN and infinities are null), map keys
//! always strings, timestamps with a blank between date and time, blobs as "0x...".

use super::collection::{Elements, counted};
use super::literal::scalar_text;
use super::{CqlType, Value, ValueError, digits, temporal};

/// Why a value is not written as JSON.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JsonError {
    /// The text would be longer than its limit, bytes.
    #[error("A JSON text would be longer than {0} bytes")]
    TooLong(usize),
    /// A number has too many digits.
    #[error(transparent)]
    Number(#[from] ValueError),
}

/// The value for "no limit": a number with too many digits is then written as its bytes.
const NO_LIMIT: usize = usize::MAX;

impl Value {
    /// The value, of type `ty`, as JSON text. A number of more than [`digits::MAX_DIGITS`] digits
    /// is a string with the CQL call that makes it of its bytes.
    pub fn to_json_string(&self, ty: &CqlType) -> String {
        let mut out = String::new();
        let _ = push(self, ty, NO_LIMIT, &mut out);
        out
    }

    /// Appends the value, of type `ty`, as JSON text, unless `out` would become longer than `limit`
    /// bytes. Little more than `limit` bytes are ever written.
    pub fn push_json(&self, ty: &CqlType, limit: usize, out: &mut String) -> Result<(), JsonError> {
        push(self, ty, limit.min(NO_LIMIT - 1), out)
    }
}

/// The escape of a byte within a JSON string, if it needs one. All such bytes are ASCII.
fn escape(byte: u8) -> Option<&'static str> {
    const CONTROLS: [&str; 32] = [
        "\\u0000", "\\u0001", "\\u0002", "\\u0003", "\\u0004", "\\u0005", "\\u0006", "\\u0007", "\\b", "\\t", "\\n",
        "\\u000b", "\\f", "\\r", "\\u000e", "\\u000f", "\\u0010", "\\u0011", "\\u0012", "\\u0013", "\\u0014",
        "\\u0015", "\\u0016", "\\u0017", "\\u0018", "\\u0019", "\\u001a", "\\u001b", "\\u001c", "\\u001d", "\\u001e",
        "\\u001f",
    ];
    match byte {
        b'"' => Some("\\\""),
        b'\\' => Some("\\\\"),
        byte => CONTROLS.get(usize::from(byte)).copied(),
    }
}

/// Appends `text` as a JSON string.
pub(super) fn push_string(text: &str, out: &mut String) {
    out.push('"');
    let mut written = 0;
    for (at, byte) in text.bytes().enumerate() {
        if let Some(escaped) = escape(byte) {
            out.push_str(&text[written..at]);
            out.push_str(escaped);
            written = at + 1;
        }
    }
    out.push_str(&text[written..]);
    out.push('"');
}

/// As [`push_string`], unless `out` would become longer than `limit`. Capacity is reserved once, so
/// that a long text is not copied as it grows.
fn push_string_within(text: &str, limit: usize, out: &mut String) -> Result<(), JsonError> {
    let escapes: usize = text.bytes().filter_map(escape).map(|escaped| escaped.len() - 1).sum();
    let len = text.len() + escapes + 2;
    if len > limit.saturating_sub(out.len()) {
        return Err(JsonError::TooLong(limit));
    }
    out.reserve(len);
    push_string(text, out);
    Ok(())
}

/// Appends the text of each item by `each`, separated by commas, in brackets.
fn push_items<T>(
    brackets: [char; 2],
    items: impl IntoIterator<Item = T>,
    limit: usize,
    out: &mut String,
    mut each: impl FnMut(T, &mut String) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    out.push(brackets[0]);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        each(item, out)?;
        if out.len() >= limit {
            return Err(JsonError::TooLong(limit));
        }
    }
    out.push(brackets[1]);
    Ok(())
}

fn push(value: &Value, ty: &CqlType, limit: usize, out: &mut String) -> Result<(), JsonError> {
    match (value, ty) {
        (Value::Null, _) => out.push_str("null"),
        (Value::Empty, _) => out.push_str("\"\""),
        (Value::Float(v), _) if !v.is_finite() => out.push_str("null"),
        (Value::Double(v), _) if !v.is_finite() => out.push_str("null"),
        (Value::Varint(_) | Value::Decimal(_), _) if digits::check_has_text(value).is_err() => {
            if limit != NO_LIMIT {
                digits::check_has_text(value)?;
            }
            push_string(&scalar_text(value).unwrap_or_default(), out);
        }
        (Value::Timestamp(v), _) => push_string(&temporal::format_timestamp(*v, ' '), out),
        (Value::Text(text), _) => return push_string_within(text, limit, out),
        (
            Value::Blob(_) | Value::Uuid(_) | Value::Inet(_) | Value::Date(_) | Value::Time(_) | Value::Duration(_),
            _,
        ) => return push_string_within(&scalar_text(value).unwrap_or_default(), limit, out),
        (Value::List(values), CqlType::List { elem, .. })
        | (Value::Set(values), CqlType::Set { elem, .. })
        | (Value::Vector(values), CqlType::Vector { elem, .. }) => {
            return push_items(['[', ']'], values, limit, out, |value, out| push(value, elem, limit, out));
        }
        (Value::Map(entries), CqlType::Map { key, value: value_type, .. }) => {
            return push_items(['{', '}'], entries, limit, out, |(k, v), out| {
                push_key(k, key, limit, out)?;
                out.push_str(": ");
                push(v, value_type, limit, out)
            });
        }
        (Value::Tuple(values), CqlType::Tuple(types)) => {
            let fields = values.iter().zip(types.iter());
            return push_items(['[', ']'], fields, limit, out, |(value, ty), out| push(value, ty, limit, out));
        }
        (Value::Udt(values), CqlType::Udt(user_type)) => {
            let fields = values.iter().zip(&user_type.fields);
            return push_items(['{', '}'], fields, limit, out, |(value, (name, ty)), out| {
                push_field_name(name, out);
                out.push_str(": ");
                push(value, ty, limit, out)
            });
        }
        _ => out.push_str(&scalar_text(value).unwrap_or_else(|| "null".to_owned())),
    }
    if out.len() > limit { Err(JsonError::TooLong(limit)) } else { Ok(()) }
}

/// Appends a key of a map. A JSON string is used unchanged. Any other value becomes a string.
fn push_key(key: &Value, ty: &CqlType, limit: usize, out: &mut String) -> Result<(), JsonError> {
    let mut name = String::new();
    push(key, ty, limit, &mut name)?;
    match name.starts_with('"') {
        true => out.push_str(&name),
        false => push_string_within(&name, limit, out)?,
    }
    Ok(())
}

/// A value in a collection of more bytes than this is written in steps of its own.
const LARGE_ELEMENT: usize = 16 << 10;

/// Writes the JSON text of a large collection some elements at a time. [`Value::push_json`] writes
/// the same text.
#[derive(Debug)]
pub struct JsonSteps<'v> {
    /// The collections that are being written, from the outermost one to the innermost one.
    open: Vec<Open<'v>>,
    limit: usize,
    out: String,
}

/// A collection of which some elements are written.
#[derive(Debug)]
struct Open<'v> {
    /// The elements, or the alternating keys and values.
    rest: Elements<'v>,
    /// The type of the keys of a map.
    key: Option<&'v CqlType>,
    elem: &'v CqlType,
    is_first: bool,
}

impl<'v> Open<'v> {
    /// `None` unless it is a list, a set or a map.
    fn of(ty: &'v CqlType, value: &'v [u8]) -> Option<Result<Open<'v>, ValueError>> {
        let (key, elem, per_entry) = match ty {
            CqlType::List { elem, .. } | CqlType::Set { elem, .. } => (None, elem, 1),
            CqlType::Map { key, value, .. } => (Some(&**key), value, 2),
            _ => return None,
        };
        let rest = counted(value, per_entry);
        Some(rest.map(|rest| Open { rest, key, elem, is_first: true }))
    }

    fn bracket(&self, brackets: [char; 2]) -> char {
        brackets[usize::from(self.key.is_some())]
    }
}

impl<'v> JsonSteps<'v> {
    /// Appends a value to `out`. `None` if the value is written in one step: it is no list, set or
    /// map.
    pub fn new(
        ty: &'v CqlType,
        value: &'v [u8],
        limit: usize,
        out: &mut String,
    ) -> Option<Result<JsonSteps<'v>, JsonError>> {
        let outer = match Open::of(ty, value)? {
            Ok(outer) => outer,
            Err(error) => return Some(Err(error.into())),
        };
        out.push(outer.bracket(['[', '{']));
        Some(Ok(JsonSteps { open: vec![outer], limit: limit.min(NO_LIMIT - 1), out: std::mem::take(out) }))
    }

    /// Writes elements of about `bytes` bytes. True if all are written.
    pub fn step(&mut self, bytes: usize) -> Result<bool, JsonError> {
        let end = self.out.len().saturating_add(bytes);
        while self.out.len() < end {
            let Some(inner) = self.open.last_mut() else { return Ok(true) };
            let Some(next) = inner.rest.next() else {
                self.out.push(inner.bracket([']', '}']));
                self.open.pop();
                continue;
            };
            let mut next = next?;
            if !std::mem::take(&mut inner.is_first) {
                self.out.push_str(", ");
            }
            if let Some(key) = inner.key {
                push_key(&Value::decode(key, next)?, key, self.limit, &mut self.out)?;
                self.out.push_str(": ");
                next = inner.rest.next().transpose()?.unwrap_or_default();
            }
            let elem = inner.elem;
            match if next.len() > LARGE_ELEMENT { Open::of(elem, next) } else { None } {
                Some(large) => {
                    let large = large?;
                    self.out.push(large.bracket(['[', '{']));
                    self.open.push(large);
                }
                None => push(&Value::decode(elem, next)?, elem, self.limit, &mut self.out)?,
            }
            if self.out.len() >= self.limit {
                return Err(JsonError::TooLong(self.limit));
            }
        }
        Ok(self.open.is_empty())
    }

    /// The text, once all is written.
    pub fn finish(self) -> String {
        self.out
    }
}

/// A name with capitals keeps its CQL quotes within the JSON string, so that it is read as the same
/// name.
fn push_field_name(name: &str, out: &mut String) {
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        push_string(&format!("\"{name}\""), out);
    } else {
        push_string(name, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_write_the_same_text() {
        let ints = CqlType::list(CqlType::Int);
        let map = CqlType::map(CqlType::Int, ints.clone());
        let texts = CqlType::map(CqlType::Text, CqlType::Text);
        let list = |n: i32| Value::List((0..n).map(Value::Int).collect());
        let text = |text: &str| Value::Text(text.to_owned());
        for (ty, value) in [
            (&ints, list(0)),
            (&ints, list(20_000)),
            (&map, Value::Map(vec![(Value::Int(1), list(20_000)), (Value::Int(2), list(2)), (Value::Int(3), list(0))])),
            (&map, Value::Map(Vec::new())),
            (&texts, Value::Map(vec![(text("a\""), text("b")), (text("c"), text(""))])),
        ] {
            let bytes = value.encode(ty).expect("it is of its type").expect("not null");
            let mut expected = "{x: ".to_owned();
            value.push_json(ty, 1 << 20, &mut expected).expect("it is short");
            for step in [1, 100, 1 << 20] {
                let mut out = "{x: ".to_owned();
                let mut steps = JsonSteps::new(ty, &bytes, 1 << 20, &mut out).expect("a collection").expect("valid");
                while !steps.step(step).expect("it is short") {}
                assert_eq!(steps.finish(), expected);
            }
        }
        let bytes = list(20_000).encode(&ints).expect("it is of its type").expect("not null");
        let mut steps = JsonSteps::new(&ints, &bytes, 1000, &mut String::new()).expect("a list").expect("valid");
        assert_eq!(steps.step(1 << 20), Err(JsonError::TooLong(1000)));
    }
}
