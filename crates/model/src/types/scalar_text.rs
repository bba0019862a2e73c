//! Scalar values from the text of a constant: the text in the quotes of `'2024-02-29'`, or a bare
//! `1e-3`.

use std::net::IpAddr;

use num_bigint::BigInt;
use uuid::Uuid;

use super::{CqlType, Decimal, Duration, Value, ValueError, digits, temporal, validate};

/// The bytes of the value of the scalar type `ty` with this text.
pub fn parse_scalar(ty: &CqlType, text: &str) -> Result<Vec<u8>, ValueError> {
    let value = Value::from_text(ty, text)?;
    Ok(value.encode(ty)?.unwrap_or_default())
}

impl Value {
    /// The value of the scalar type `ty` with this text, without quotes. Collections, tuples and
    /// user types have no such form.
    pub fn from_text(ty: &CqlType, text: &str) -> Result<Value, ValueError> {
        let number = || ValueError::new(format!("Unable to make {ty} from '{text}'"));
        Ok(match ty {
            CqlType::Text => Value::Text(text.to_owned()),
            CqlType::Ascii => {
                validate(ty, text.as_bytes())?;
                Value::Text(text.to_owned())
            }
            CqlType::Blob | CqlType::Custom(_) => Value::Blob(parse_hex(text)?),
            CqlType::Boolean if text.eq_ignore_ascii_case("true") => Value::Boolean(true),
            CqlType::Boolean if text.eq_ignore_ascii_case("false") => Value::Boolean(false),
            CqlType::Boolean => return Err(ValueError::new(format!("unable to make boolean from \"{text}\""))),
            CqlType::Tinyint => Value::Tinyint(text.parse().map_err(|_| number())?),
            CqlType::Smallint => Value::Smallint(text.parse().map_err(|_| number())?),
            CqlType::Int => Value::Int(text.parse().map_err(|_| number())?),
            CqlType::Bigint | CqlType::Counter => Value::Bigint(text.parse().map_err(|_| number())?),
            CqlType::Varint => {
                digits::check_digits(text.trim_start_matches(['-', '+']).len())?;
                Value::Varint(text.parse::<BigInt>().map_err(|_| number())?)
            }
            CqlType::Decimal => Value::Decimal(text.parse::<Decimal>()?),
            CqlType::Float => Value::Float(text.parse().map_err(|_| number())?),
            CqlType::Double => Value::Double(text.parse().map_err(|_| number())?),
            CqlType::Uuid => Value::Uuid(parse_uuid(text)?),
            CqlType::Timeuuid => {
                let uuid = parse_uuid(text)?;
                validate(ty, uuid.as_bytes())?;
                Value::Uuid(uuid)
            }
            CqlType::Inet => Value::Inet(parse_inet(text)?),
            CqlType::Date => Value::Date(temporal::parse_date(text)?),
            CqlType::Time => Value::Time(temporal::parse_time(text)?),
            CqlType::Timestamp => Value::Timestamp(temporal::parse_timestamp(text)?),
            CqlType::Duration => Value::Duration(text.parse::<Duration>()?),
            _ => return Err(ValueError::new(format!("A value of type {ty} cannot be written as one constant"))),
        })
    }
}

/// Only the form with hyphens, as CQL has it.
fn parse_uuid(text: &str) -> Result<Uuid, ValueError> {
    let parsed = if text.len() == 36 { Uuid::try_parse(text).ok() } else { None };
    parsed.ok_or_else(|| ValueError::new(format!("unable to make UUID from '{text}'")))
}

/// Only addresses: a host name would make the outcome depend on where it is evaluated.
fn parse_inet(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError::new(format!("Failed to parse inet address '{text}'")))
}

/// `0x` and an even number of hexadecimal digits.
fn parse_hex(text: &str) -> Result<Vec<u8>, ValueError> {
    let invalid = || ValueError::new(format!("'{text}' is not a blob: expected 0x and an even number of hex digits"));
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).ok_or_else(invalid)?;
    decode_hex(digits).ok_or_else(invalid)
}

/// An even number of hexadecimal digits, and nothing else.
pub(super) fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let nibble = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    pairs.iter().map(|&[high, low]| Some(nibble(high)? << 4 | nibble(low)?)).collect()
}

/// Appends lower-case hexadecimal digits.
pub(super) fn push_hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from_digit(nibble.into(), 16).expect("a nibble is a hex digit"));
        }
    }
}
