//! Values in the two notations of Cassandra's printer: JSON for cells and clustering columns, and
//! plain text for partition keys and the paths of cells.
//!
//! Neither is exactly the notation of CQL's JSON functions. Numbers and addresses look as Java
//! prints them, and in plain text a collection is its bytes. Bytes that are not a valid value of
//! their type are shown as hexadecimal digits, never as an error. A dump must show the file as it
//! is.

use model::hex;
use model::types::{CqlType, JsonNotation, Notation, TextError, Value, json_string, push_text, shown_limit, validate};
use std::net::IpAddr;

/// The most bytes of the text of a short value.
const SHORT_TEXT: usize = 1 << 20;

/// Text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    json_string(text)
}

/// A value as JSON.
pub(super) fn json(ty: &CqlType, bytes: &[u8]) -> String {
    if *ty == CqlType::Counter {
        // The printer reads the start of the counter context as a number.
        return bytes.first_chunk().map_or(0, |bytes| i64::from_be_bytes(*bytes)).to_string();
    }
    let mut out = String::new();
    let limit = shown_limit(bytes.len(), SHORT_TEXT);
    match push_text(CassandraNotation, ty, Some(bytes), limit, &mut out) {
        Ok(()) => out,
        Err(_) => quoted(&hex(bytes)),
    }
}

/// The JSON of Cassandra's printer.
struct CassandraNotation;

impl Notation for CassandraNotation {
    fn brackets(&self, ty: &CqlType) -> [char; 2] {
        JsonNotation::SHOWN.brackets(ty)
    }

    fn push_scalar(&self, ty: &CqlType, bytes: &[u8], limit: usize, out: &mut String) -> Result<(), TextError> {
        if !matches!(ty, CqlType::Inet | CqlType::Float | CqlType::Double | CqlType::Duration) {
            return JsonNotation::SHOWN.push_scalar(ty, bytes, limit, out);
        }
        match Value::decode(ty, bytes)? {
            Value::Inet(address) => out.push_str(&quoted(&long_address(address))),
            Value::Float(v) if v.is_finite() => out.push_str(&java_number(v)),
            Value::Double(v) if v.is_finite() => out.push_str(&java_number(v)),
            value @ Value::Duration(_) => out.push_str(&quoted(&duration(&value, ty))),
            value => out.push_str(&value.to_json_string(ty)),
        }
        Ok(())
    }

    fn push_field(&self, name: &str, out: &mut String) {
        let shown = if name.to_lowercase() == *name { name.to_owned() } else { format!("\"{name}\"") };
        out.push_str(&quoted(&shown));
    }

    fn end_key(&self, start: usize, limit: usize, out: &mut String) -> Result<(), TextError> {
        JsonNotation::SHOWN.end_key(start, limit, out)
    }
}

/// A value as plain text, for keys and paths.
pub(super) fn plain(ty: &CqlType, bytes: &[u8]) -> String {
    if ty.has_parts() && !bytes.is_empty() {
        return match ty {
            CqlType::Tuple(types) if validate(ty, bytes).is_ok() => fields(bytes, types.iter()),
            CqlType::Udt(user_type) if validate(ty, bytes).is_ok() => {
                fields(bytes, user_type.fields.iter().map(|(_, ty)| ty))
            }
            _ => hex(bytes),
        };
    }
    let Ok(value) = Value::decode(ty, bytes) else { return hex(bytes) };
    match (value, ty) {
        (Value::Text(text), _) => text,
        (Value::Empty | Value::Null, _) => String::new(),
        (Value::Blob(_), _) => hex(bytes),
        (Value::Inet(address), _) => long_address(address),
        (Value::Float(v), _) => java_number(v),
        (Value::Double(v), _) => java_number(v),
        (value @ Value::Duration(_), ty) => duration(&value, ty),
        (value @ Value::Timestamp(_), ty) => bare(&value, ty).replacen(' ', "T", 1),
        (value, ty) => bare(&value, ty),
    }
}

/// A duration. One of zero length has no units.
fn duration(value: &Value, ty: &CqlType) -> String {
    let text = bare(value, ty);
    if text == "0s" { String::new() } else { text }
}

/// The JSON form without quotes.
fn bare(value: &Value, ty: &CqlType) -> String {
    let text = value.to_json_string(ty);
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).map(str::to_string).unwrap_or(text)
}

/// Fields separated by colons; null is an at sign. Missing fields at the end are not shown.
fn fields<'t>(bytes: &[u8], types: impl Iterator<Item = &'t CqlType>) -> String {
    let texts = model::types::collection::fields(bytes).zip(types).map(|(field, ty)| match field {
        Ok(Some(bytes)) => plain(ty, bytes).replace(':', "\\:").replace('@', "\\@"),
        _ => "@".to_string(),
    });
    texts.collect::<Vec<_>>().join(":")
}

/// An address as Java prints it: no group of zeros is left out.
fn long_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => address.segments().map(|group| format!("{group:x}")).join(":"),
    }
}

/// A floating-point number as Java prints it: always with a point, and with an exponent outside
/// 0.001 to 10,000,000.
fn java_number<F: Into<f64> + Copy + std::fmt::Display + std::fmt::LowerExp>(value: F) -> String {
    let wide: f64 = value.into();
    if wide.is_nan() {
        return "NaN".to_string();
    }
    if wide.is_infinite() {
        return if wide > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let pointed = |digits: &str| if digits.contains('.') { digits.to_string() } else { format!("{digits}.0") };
    if wide == 0.0 || (1e-3..1e7).contains(&wide.abs()) {
        return pointed(&format!("{value}"));
    }
    let scientific = format!("{value:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) => format!("{}E{exponent}", pointed(digits)),
        None => scientific,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::types::UserType;
    use model::types::collection::{build_list, build_map_sorted, build_tuple};

    #[test]
    fn numbers_look_as_java_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.5, "1.5"),
            (100.0, "100.0"),
            (0.001, "0.001"),
            (0.0001, "1.0E-4"),
            (9999999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (-123456789.125, "-1.23456789125E8"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, text) in cases {
            assert_eq!(java_number(value), text);
        }
        assert_eq!(java_number(3.4e38f32), "3.4E38");
        assert_eq!(java_number(0.1f32), "0.1");
    }

    #[test]
    fn the_two_notations_differ_where_cassandra_has_them_differ() {
        let list = CqlType::List { elem: std::sync::Arc::new(CqlType::Int), frozen: true };
        let bytes = [0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7];
        assert_eq!((json(&list, &bytes), plain(&list, &bytes)), ("[7]".into(), "000000010000000400000007".into()));
        let zero = 0i64.to_be_bytes();
        assert_eq!(json(&CqlType::Timestamp, &zero), "\"1970-01-01 00:00:00.000Z\"");
        assert_eq!(plain(&CqlType::Timestamp, &zero), "1970-01-01T00:00:00.000Z");
        assert_eq!(plain(&CqlType::Inet, &std::net::Ipv6Addr::LOCALHOST.octets()), "0:0:0:0:0:0:0:1");
        let tuple = CqlType::Tuple([CqlType::Text, CqlType::Int].into());
        assert_eq!(plain(&tuple, b"\0\0\0\x03a:b\xff\xff\xff\xff"), "a\\:b:@");
        assert_eq!(json(&CqlType::Duration, &[0, 0, 0]), "\"\"");
        assert_eq!(json(&CqlType::Duration, &[2, 0, 0]), "\"1mo\"");
        // Not an int, so it is shown as hexadecimal digits.
        assert_eq!(json(&CqlType::Int, &[1, 2]), "\"0102\"");
    }

    #[test]
    fn parts_are_shown_as_single_values_are() {
        let address = CqlType::set(CqlType::Inet);
        let bytes = build_list([std::net::Ipv6Addr::LOCALHOST.octets()]);
        assert_eq!(json(&address, &bytes), "[\"0:0:0:0:0:0:0:1\"]");
        let fields = vec![("e".to_owned(), CqlType::Double), ("\u{e9}A".to_owned(), CqlType::Float)];
        let fields = fields.into();
        let ty = CqlType::udt(UserType { keyspace: "ks".into(), name: "u".into(), fields, frozen: true });
        let bytes = build_tuple([Some(1e7f64.to_be_bytes().to_vec()), Some(f32::NAN.to_be_bytes().to_vec())]);
        assert_eq!(json(&ty, &bytes), "{\"e\": 1.0E7, \"\\\"\u{e9}A\\\"\": null}");
        assert_eq!(plain(&ty, &bytes), "1.0E7:NaN");
        let map = CqlType::map(CqlType::Int, ty);
        let bytes = build_map_sorted([(5i32.to_be_bytes(), [0xffu8; 4])]);
        assert_eq!(json(&map, &bytes), "{\"5\": {\"e\": null, \"\\\"\u{e9}A\\\"\": null}}");
    }

    #[test]
    fn a_value_with_a_much_longer_text_is_shown_as_its_bytes() {
        let fields = (0..4_000).map(|n| (format!("f{n}"), CqlType::Int)).collect();
        let wide = CqlType::udt(UserType { keyspace: "ks".into(), name: "wide".into(), fields, frozen: true });
        let list = CqlType::list(wide).freeze();
        let bytes = build_list(vec![[0xffu8; 4]; 8_000]);
        let text = json(&list, &bytes);
        assert_eq!((text.len(), plain(&list, &bytes).len()), (2 + 2 * bytes.len(), 2 * bytes.len()));
        assert!(text.starts_with("\"00001f40"));
    }
}
