//! `CAST(x AS type)`: between number types, between date and time types, and to text.

use super::call::{date_of_millis, millis_of};
use super::numbers::is_number;
use crate::error::Error;
use bytes::Bytes;
use model::CqlType;
use model::types::{Decimal, Value, digits, shortened};
use num_bigint::BigInt;
use num_traits::{FromPrimitive, ToPrimitive};

/// Whether values of one type can be cast to the other.
pub fn is_allowed(from: &CqlType, to: &CqlType) -> bool {
    use CqlType::*;
    if from == to {
        return true;
    }
    match to {
        Text => !matches!(
            from,
            Blob | List { .. } | Set { .. } | Map { .. } | Tuple(_) | Udt(_) | Vector { .. } | Custom(_) | Empty
        ),
        Ascii => is_number(from) || matches!(from, Boolean | Timestamp | Date | Time | Timeuuid | Uuid | Inet),
        Timestamp => matches!(from, Timeuuid | Date),
        Date => matches!(from, Timeuuid | Timestamp),
        _ => is_number(from) && is_number(to) && *to != Counter,
    }
}

/// Casts a value of type `from` to type `to`. The types must be allowed by [`is_allowed`].
pub fn cast(value: &Value, from: &CqlType, to: &CqlType) -> Result<Option<Bytes>, Error> {
    let bad = |error: model::types::ValueError| Error::invalid(error.to_string());
    if matches!(value, Value::Null | Value::Empty) {
        return Ok(None);
    }
    let encoded = |value: &Value, ty: &CqlType| Ok(value.encode(ty).map_err(bad)?.map(Bytes::from));
    if from == to {
        return encoded(value, to);
    }
    match to {
        CqlType::Text | CqlType::Ascii => {
            digits::check_has_text(value).map_err(bad)?;
            Ok(Some(text_of(value, from).into_bytes().into()))
        }
        CqlType::Timestamp | CqlType::Date => {
            let Some(bytes) = encoded(value, from)? else { return Ok(None) };
            let Some(millis) = millis_of(from, &bytes) else { return Ok(None) };
            Ok(Some(match to {
                CqlType::Date => date_of_millis(millis),
                _ => Bytes::copy_from_slice(&millis.to_be_bytes()),
            }))
        }
        _ => {
            if let Value::Decimal(v) = value
                && v.scale != 0
                && is_whole(to)
            {
                digits::check_digit_limit(&v.unscaled, "decimal").map_err(bad)?;
            }
            let cast = number(value, to).ok_or_else(|| {
                let shown = shortened(text_of(value, from), MAX_SHOWN);
                Error::invalid(format!("Cannot cast value {shown} to type {to}"))
            })?;
            encoded(&cast, to)
        }
    }
}

/// The most characters of a value that an error shows.
const MAX_SHOWN: usize = 1_000;

fn is_whole(ty: &CqlType) -> bool {
    !matches!(ty, CqlType::Float | CqlType::Double | CqlType::Decimal)
}

fn text_of(value: &Value, ty: &CqlType) -> String {
    let literal = value.to_cql_literal(ty);
    match literal.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        Some(inner) => inner.replace("''", "'"),
        None => literal,
    }
}

/// Converts a number to another number type. Narrowing integers wraps around, as casts of machine
/// integers do.
fn number(value: &Value, to: &CqlType) -> Option<Value> {
    let float = || match value {
        Value::Float(v) => Some(f64::from(*v)),
        Value::Double(v) => Some(*v),
        Value::Decimal(v) => Some(v.to_f64()),
        other => other.to_bigint()?.to_f64(),
    };
    let integer = || match value {
        Value::Float(v) => BigInt::from_f32(v.trunc()),
        Value::Double(v) => BigInt::from_f64(v.trunc()),
        Value::Decimal(v) => whole_part(v),
        other => other.to_bigint(),
    };
    let low = || -> Option<i64> {
        match value {
            // Floats are cast to narrow types by way of int, and that cast saturates, as casts of
            // machine numbers do.
            Value::Float(v) if *to != CqlType::Bigint => Some(i64::from(*v as i32)),
            Value::Double(v) if *to != CqlType::Bigint => Some(i64::from(*v as i32)),
            Value::Float(v) => Some(*v as i64),
            Value::Double(v) => Some(*v as i64),
            _ => {
                let bytes = integer()?.to_signed_bytes_le();
                let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
                let mut out = [fill; 8];
                let len = bytes.len().min(8);
                out[..len].copy_from_slice(&bytes[..len]);
                Some(i64::from_le_bytes(out))
            }
        }
    };
    Some(match to {
        CqlType::Tinyint => Value::Tinyint(low()? as i8),
        CqlType::Smallint => Value::Smallint(low()? as i16),
        CqlType::Int => Value::Int(low()? as i32),
        CqlType::Bigint => Value::Bigint(low()?),
        CqlType::Varint => Value::Varint(integer()?),
        CqlType::Float => Value::Float(float()? as f32),
        CqlType::Double => Value::Double(float()?),
        CqlType::Decimal => match value {
            Value::Float(v) => Value::Decimal(format!("{v:?}").parse().ok()?),
            Value::Double(v) => Value::Decimal(format!("{v:?}").parse().ok()?),
            Value::Decimal(v) => Value::Decimal(v.clone()),
            other => Value::Decimal(Decimal::new(0, other.to_bigint()?)),
        },
        _ => return None,
    })
}

/// The largest scale, positive or negative. A larger one would produce a number of as many digits.
const MAX_SCALE: i32 = 10_000;

fn whole_part(decimal: &Decimal) -> Option<BigInt> {
    if decimal.scale.unsigned_abs() > MAX_SCALE as u32 {
        return None;
    }
    let power = BigInt::from(10).pow(decimal.scale.unsigned_abs());
    Some(if decimal.scale >= 0 { &decimal.unscaled / power } else { &decimal.unscaled * power })
}
