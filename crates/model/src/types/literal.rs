//! Values as CQL text that is read as the same value.

use std::fmt::Write as _;

use super::notation::{NO_LIMIT, Notation, TextError, push_text};
use super::{CqlType, Quoted, Value, digits, scalar_text, temporal};

/// The notation of CQL terms: `'it''s'`, `0xca`, `{'a': [1, 2]}`, `(1, null)`, `{field: 1}`.
#[derive(Clone, Copy, Debug)]
pub struct CqlNotation;

impl Notation for CqlNotation {
    fn brackets(&self, ty: &CqlType) -> [char; 2] {
        match ty {
            CqlType::List { .. } | CqlType::Vector { .. } => ['[', ']'],
            CqlType::Tuple(_) => ['(', ')'],
            _ => ['{', '}'],
        }
    }

    fn push_scalar(&self, ty: &CqlType, bytes: &[u8], _: usize, out: &mut String) -> Result<(), TextError> {
        push_value(&Value::decode(ty, bytes)?, ty, out);
        Ok(())
    }

    fn push_field(&self, name: &str, out: &mut String) {
        let _ = write!(out, "{}", Quoted(name));
    }

    fn end_key(&self, _: usize, _: usize, _: &mut String) -> Result<(), TextError> {
        Ok(())
    }
}

impl Value {
    /// The value, of type `ty`, as a CQL term of any length. `null` for a value that is not of the
    /// type.
    pub fn to_cql_literal(&self, ty: &CqlType) -> String {
        let mut out = String::new();
        match ty.has_parts() {
            true => {
                let bytes = self.encode(ty).unwrap_or_default();
                // Without a limit, what was encoded can be written.
                let _ = push_text(CqlNotation, ty, bytes.as_deref(), NO_LIMIT, &mut out);
            }
            false => push_value(self, ty, &mut out),
        }
        out
    }
}

fn push_quoted(text: &str, out: &mut String) {
    out.push('\'');
    out.push_str(&text.replace('\'', "''"));
    out.push('\'');
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

/// Appends a value without parts.
fn push_value(value: &Value, ty: &CqlType, out: &mut String) {
    match value {
        Value::Empty => match ty.native_name() {
            // There is no constant for it, but a function call.
            Some(name) => {
                let _ = write!(out, "blobas{name}(0x)");
            }
            None => out.push_str("null"),
        },
        Value::Text(_) | Value::Inet(_) | Value::Date(_) | Value::Time(_) | Value::Timestamp(_) => {
            push_quoted(&scalar_text(value).unwrap_or_default(), out);
        }
        _ => out.push_str(&scalar_text(value).unwrap_or_else(|| "null".to_owned())),
    }
}
