//! Values as JSON by Cassandra's rules: numbers plain (NaN and infinities are null), map keys
//! always strings, timestamps with a blank between date and time, blobs as "0x...".

use super::literal::scalar_text;
use super::notation::{NO_LIMIT, Notation, TextError, push_text};
use super::{CqlType, Value, digits, temporal};

/// The notation of JSON.
#[derive(Clone, Copy, Debug)]
pub struct JsonNotation {
    /// Whether a number of more than [`digits::MAX_DIGITS`] digits is written as a string with the
    /// CQL call that makes it of its bytes. Otherwise it is an error.
    shows_long_numbers: bool,
}

impl JsonNotation {
    /// For clients: a number with too many digits is an error.
    pub const STRICT: JsonNotation = JsonNotation { shows_long_numbers: false };

    /// For people who look at data: every value has a text.
    pub const SHOWN: JsonNotation = JsonNotation { shows_long_numbers: true };
}

impl Notation for JsonNotation {
    fn brackets(&self, ty: &CqlType) -> [char; 2] {
        match ty {
            CqlType::Map { .. } | CqlType::Udt(_) => ['{', '}'],
            _ => ['[', ']'],
        }
    }

    fn push_scalar(&self, ty: &CqlType, bytes: &[u8], limit: usize, out: &mut String) -> Result<(), TextError> {
        if *ty == CqlType::Text
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return push_string_within(text, limit, out);
        }
        self.push_value(&Value::decode(ty, bytes)?, limit, out)
    }

    /// A name with capitals keeps its CQL quotes within the JSON string, so that it is read as the
    /// same name.
    fn push_field(&self, name: &str, out: &mut String) {
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            push_string(&format!("\"{name}\""), out);
        } else {
            push_string(name, out);
        }
    }

    /// A JSON string is used unchanged. Any other key becomes a string.
    fn end_key(&self, start: usize, limit: usize, out: &mut String) -> Result<(), TextError> {
        if out[start..].starts_with('"') {
            return Ok(());
        }
        let key = out.split_off(start);
        push_string_within(&key, limit, out)
    }
}

impl JsonNotation {
    /// Appends a value without parts.
    fn push_value(self, value: &Value, limit: usize, out: &mut String) -> Result<(), TextError> {
        match value {
            Value::Null => out.push_str("null"),
            Value::Empty => out.push_str("\"\""),
            Value::Float(v) if !v.is_finite() => out.push_str("null"),
            Value::Double(v) if !v.is_finite() => out.push_str("null"),
            Value::Varint(_) | Value::Decimal(_) if digits::check_has_text(value).is_err() => {
                if !self.shows_long_numbers {
                    digits::check_has_text(value)?;
                }
                return push_string_within(&scalar_text(value).unwrap_or_default(), limit, out);
            }
            Value::Timestamp(v) => push_string(&temporal::format_timestamp(*v, ' '), out),
            Value::Text(text) => return push_string_within(text, limit, out),
            Value::Blob(_) | Value::Uuid(_) | Value::Inet(_) | Value::Date(_) | Value::Time(_) | Value::Duration(_) => {
                return push_string_within(&scalar_text(value).unwrap_or_default(), limit, out);
            }
            _ => out.push_str(&scalar_text(value).unwrap_or_else(|| "null".to_owned())),
        }
        Ok(())
    }
}

impl Value {
    /// The value, of type `ty`, as JSON text of any length, in the form of [`JsonNotation::SHOWN`].
    /// `null` for a value that is not of the type.
    pub fn to_json_string(&self, ty: &CqlType) -> String {
        let mut out = String::new();
        // Without a limit, what was encoded can be written.
        let _ = match ty.has_parts() {
            true => {
                let bytes = self.encode(ty).unwrap_or_default();
                push_text(JsonNotation::SHOWN, ty, bytes.as_deref(), NO_LIMIT, &mut out)
            }
            false => JsonNotation::SHOWN.push_value(self, NO_LIMIT, &mut out),
        };
        out
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

/// A text as a JSON string.
pub fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(text, &mut out);
    out
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

/// Like [`push_string`], unless `out` would become longer than `limit`. Capacity is reserved once,
/// so that a long text is not copied as it grows.
fn push_string_within(text: &str, limit: usize, out: &mut String) -> Result<(), TextError> {
    let escapes: usize = text.bytes().filter_map(escape).map(|escaped| escaped.len() - 1).sum();
    let len = text.len() + escapes + 2;
    if len > limit.saturating_sub(out.len()) {
        return Err(TextError::TooLong(limit));
    }
    out.reserve(len);
    push_string(text, out);
    Ok(())
}

/// About how many bytes of JSON each byte of a value of type `ty` can become, at least 1. A value
/// that ends before its first field has a `null` for each field.
pub fn json_expansion(ty: &CqlType) -> usize {
    /// The bytes of such a value in a list: its length, and the length of a null.
    const SHORTEST: usize = 8;
    let mut most = 1;
    ty.any(&mut |ty| {
        let nulls = match ty {
            CqlType::Tuple(types) => types.len() * "null, ".len(),
            CqlType::Udt(user_type) => user_type.fields.iter().map(|(name, _)| name.len() + "\"\": null, ".len()).sum(),
            _ => 0,
        };
        most = most.max(nulls / SHORTEST);
        false
    });
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::UserType;

    #[test]
    fn the_expansion_is_that_of_missing_fields() {
        let wide = |fields: usize| {
            let fields = (0..fields).map(|n| (format!("f{}", n % 10), CqlType::Int)).collect();
            CqlType::udt(UserType { keyspace: "ks".into(), name: "u".into(), fields, frozen: true })
        };
        let list = CqlType::list(wide(1_000));
        for (ty, expansion) in [
            (CqlType::Int, 1),
            (CqlType::map(CqlType::Text, CqlType::list(CqlType::Blob)), 1),
            (CqlType::tuple([CqlType::Int, CqlType::Int]), 1),
            (wide(4), 6),
            (wide(1_000), 1_500),
            (CqlType::map(CqlType::Int, CqlType::tuple([list.clone()])), 1_500),
        ] {
            assert_eq!(json_expansion(&ty), expansion, "{ty}");
        }
        let short = crate::types::collection::build_list(vec![[0xffu8; 4]; 100]);
        let mut text = String::new();
        push_text(JsonNotation::STRICT, &list, Some(&short), NO_LIMIT, &mut text).expect("it is a list");
        let exact = text.len() / short.len();
        assert!((1_300..=1_500).contains(&exact), "{exact}");
    }
}
