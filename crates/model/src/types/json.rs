//! Values as JSON, by Cassandra's rules: numbers plain (NaN and infinities null), keys of maps always strings,
//! timestamps with a blank between date and time, blobs as "0x...".

use super::literal::{push_listed, scalar_text};
use super::{CqlType, Value, temporal};

impl Value {
    /// The value, of type `ty`, as JSON text.
    pub fn to_json_string(&self, ty: &CqlType) -> String {
        let mut out = String::new();
        push(self, ty, &mut out);
        out
    }
}

/// Appends `text` as a JSON string.
pub(super) fn push_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn push(value: &Value, ty: &CqlType, out: &mut String) {
    match (value, ty) {
        (Value::Null, _) => out.push_str("null"),
        (Value::Empty, _) => out.push_str("\"\""),
        (Value::Float(v), _) if !v.is_finite() => out.push_str("null"),
        (Value::Double(v), _) if !v.is_finite() => out.push_str("null"),
        (Value::Timestamp(v), _) => push_string(&temporal::format_timestamp(*v, ' '), out),
        (
            Value::Text(_)
            | Value::Blob(_)
            | Value::Uuid(_)
            | Value::Inet(_)
            | Value::Date(_)
            | Value::Time(_)
            | Value::Duration(_),
            _,
        ) => push_string(&scalar_text(value).unwrap_or_default(), out),
        (Value::List(values), CqlType::List { elem, .. })
        | (Value::Set(values), CqlType::Set { elem, .. })
        | (Value::Vector(values), CqlType::Vector { elem, .. }) => {
            push_listed(['[', ']'], values, out, |value, out| push(value, elem, out));
        }
        (Value::Map(entries), CqlType::Map { key, value: value_type, .. }) => {
            push_listed(['{', '}'], entries, out, |(k, v), out| {
                let mut name = String::new();
                push(k, key, &mut name);
                // A key that is a string already stands as it is; any other becomes one.
                if name.starts_with('"') {
                    out.push_str(&name)
                } else {
                    push_string(&name, out)
                }
                out.push_str(": ");
                push(v, value_type, out);
            });
        }
        (Value::Tuple(values), CqlType::Tuple(types)) => {
            push_listed(['[', ']'], values.iter().zip(types.iter()), out, |(value, ty), out| push(value, ty, out));
        }
        (Value::Udt(values), CqlType::Udt(user_type)) => {
            push_listed(['{', '}'], values.iter().zip(&user_type.fields), out, |(value, (name, ty)), out| {
                push_field_name(name, out);
                out.push_str(": ");
                push(value, ty, out);
            });
        }
        _ => out.push_str(&scalar_text(value).unwrap_or_else(|| "null".to_owned())),
    }
}

/// A name with capitals keeps its CQL quotes inside the JSON string, so that it reads back as the same name.
fn push_field_name(name: &str, out: &mut String) {
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        push_string(&format!("\"{name}\""), out);
    } else {
        push_string(name, out);
    }
}
