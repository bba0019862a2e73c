//! Values as JSON by Cassandra's rules: numbers plain (NaN and infinities are null), map keys
//! always strings, timestamps with a blank between date and time, blobs as "0x...".

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

/// Stands for no limit: then a number of too many digits is written as its bytes.
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
                let mut name = String::new();
                push(k, key, limit, &mut name)?;
                // A key that is a JSON string already is used as it is; any other becomes a string.
                if name.starts_with('"') {
                    out.push_str(&name)
                } else {
                    push_string_within(&name, limit, out)?;
                }
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

/// A name with capitals keeps its CQL quotes within the JSON string, so that it is read as the same
/// name.
fn push_field_name(name: &str, out: &mut String) {
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        push_string(&format!("\"{name}\""), out);
    } else {
        push_string(name, out);
    }
}
