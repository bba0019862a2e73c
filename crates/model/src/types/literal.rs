//! Values as CQL text that is read as the same value.

use std::fmt::Write as _;

use super::{CqlType, Quoted, Value, digits, scalar_text, temporal};

impl Value {
    /// The value, of type `ty`, as a CQL term: `'it''s'`, `0xca`, `{'a': [1, 2]}`, `(1, null)`,
    /// `{field: 1}`.
    pub fn to_cql_literal(&self, ty: &CqlType) -> String {
        let mut out = String::new();
        push(self, ty, &mut out);
        out
    }
}

fn push_quoted(text: &str, out: &mut String) {
    out.push('\'');
    out.push_str(&text.replace('\'', "''"));
    out.push('\'');
}

/// Appends the text of each item by `each`, separated by commas, in brackets.
fn push_listed<T>(
    brackets: [char; 2],
    items: impl IntoIterator<Item = T>,
    out: &mut String,
    mut each: impl FnMut(T, &mut String),
) {
    out.push(brackets[0]);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        each(item, out);
    }
    out.push(brackets[1]);
}

/// The text of a scalar without quotes; `None` for other values. Numbers keep a form that is read
/// as their type.
pub(super) fn scalar_text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Boolean(v) => v.to_string(),
        Value::Tinyint(v) => v.to_string(),
        Value::Smallint(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Bigint(v) => v.to_string(),
        Value::Varint(v) if digits::has_text(v) => v.to_string(),
        Value::Decimal(v) if digits::has_text(&v.unscaled) => v.to_string(),
        // Its digits take too long to make. This function call gives the same value.
        Value::Varint(v) => bytes_as("varint", &v.to_signed_bytes_be()),
        Value::Decimal(v) => {
            let mut bytes = Vec::new();
            v.write_to(&mut bytes);
            bytes_as("decimal", &bytes)
        }
        Value::Float(v) if v.is_nan() => "NaN".to_owned(),
        Value::Float(v) if v.is_infinite() => infinity(*v > 0.0),
        Value::Float(v) => format!("{v:?}"),
        Value::Double(v) if v.is_nan() => "NaN".to_owned(),
        Value::Double(v) if v.is_infinite() => infinity(*v > 0.0),
        Value::Double(v) => format!("{v:?}"),
        Value::Text(v) => v.clone(),
        Value::Blob(v) => {
            let mut out = String::with_capacity(2 + 2 * v.len());
            push_blob(v, &mut out);
            out
        }
        Value::Uuid(v) => v.to_string(),
        Value::Inet(v) => v.to_string(),
        Value::Date(v) => temporal::format_date(*v),
        Value::Time(v) => temporal::format_time(*v),
        Value::Timestamp(v) => temporal::format_timestamp(*v, 'T'),
        Value::Duration(v) => v.to_string(),
        _ => return None,
    })
}

fn push_blob(bytes: &[u8], out: &mut String) {
    out.push_str("0x");
    scalar_text::push_hex(bytes, out);
}

/// The call that makes a value of a native type of its bytes.
fn bytes_as(ty: &str, bytes: &[u8]) -> String {
    let mut out = format!("blobas{ty}(");
    out.reserve(2 * bytes.len() + 3);
    push_blob(bytes, &mut out);
    out.push(')');
    out
}

fn infinity(positive: bool) -> String {
    if positive { "Infinity" } else { "-Infinity" }.to_owned()
}

fn push(value: &Value, ty: &CqlType, out: &mut String) {
    match (value, ty) {
        (Value::Null, _) => out.push_str("null"),
        (Value::Empty, _) => match ty.native_name() {
            // There is no constant for it, but a function call.
            Some(name) => {
                let _ = write!(out, "blobas{name}(0x)");
            }
            None => out.push_str("null"),
        },
        (Value::Text(_) | Value::Inet(_) | Value::Date(_) | Value::Time(_) | Value::Timestamp(_), _) => {
            push_quoted(&scalar_text(value).unwrap_or_default(), out);
        }
        (Value::List(values), CqlType::List { elem, .. }) | (Value::Vector(values), CqlType::Vector { elem, .. }) => {
            push_listed(['[', ']'], values, out, |value, out| push(value, elem, out));
        }
        (Value::Set(values), CqlType::Set { elem, .. }) => {
            push_listed(['{', '}'], values, out, |value, out| push(value, elem, out));
        }
        (Value::Map(entries), CqlType::Map { key, value: value_type, .. }) => {
            push_listed(['{', '}'], entries, out, |(k, v), out| {
                push(k, key, out);
                out.push_str(": ");
                push(v, value_type, out);
            });
        }
        (Value::Tuple(values), CqlType::Tuple(types)) => {
            push_listed(['(', ')'], values.iter().zip(types.iter()), out, |(value, ty), out| push(value, ty, out));
        }
        (Value::Udt(values), CqlType::Udt(user_type)) => {
            push_listed(['{', '}'], values.iter().zip(&user_type.fields), out, |(value, (name, ty)), out| {
                let _ = write!(out, "{}: ", Quoted(name));
                push(value, ty, out);
            });
        }
        // A collection with another type has no literal. The caller is responsible for matching
        // value and type.
        _ => out.push_str(&scalar_text(value).unwrap_or_else(|| "null".to_owned())),
    }
}
