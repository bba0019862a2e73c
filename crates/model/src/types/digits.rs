//! Limits for numbers of any length: their conversion between text and bytes takes more than linear
//! time.
//!
//! A `varint` or `decimal` that is bound as bytes may be as long as any value. Its digits are only
//! made, or read, up to [`MAX_DIGITS`]: a statement holds its shard meanwhile.

use super::{Value, ValueError};
use num_bigint::BigInt;

/// The most digits of a `varint` or `decimal` that is read from text or written as text.
pub const MAX_DIGITS: usize = 16_384;

/// The most bits of a number that is written as text: [`MAX_DIGITS`] times the binary logarithm of
/// ten, rounded up.
const MAX_BITS: u64 = 54_427;

/// Whether a number is short enough to be written as text.
pub fn has_text(number: &BigInt) -> bool {
    number.bits() <= MAX_BITS
}

/// Refuses a number whose text would be too long.
pub fn check_has_text(value: &Value) -> Result<(), ValueError> {
    match value {
        Value::Varint(number) => check_digit_limit(number, "varint"),
        Value::Decimal(number) => check_digit_limit(&number.unscaled, "decimal"),
        _ => Ok(()),
    }
}

/// Refuses a `varint` or the digits of a `decimal` that are longer than the limit.
pub fn check_digit_limit(number: &BigInt, what: &str) -> Result<(), ValueError> {
    if has_text(number) {
        return Ok(());
    }
    let bytes = number.bits() / 8 + 1;
    Err(ValueError::new(format!(
        "A {what} of {bytes} bytes is too long to be converted: the limit is {MAX_DIGITS} digits"
    )))
}

/// Refuses a text of more digits than the limit.
pub(super) fn check_digits(digits: usize) -> Result<(), ValueError> {
    if digits <= MAX_DIGITS {
        return Ok(());
    }
    Err(ValueError::new(format!("A number of {digits} digits is too long: the limit is {MAX_DIGITS} digits")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{AbsentFields, CqlType, Decimal, Json, JsonNotation, TextError, parse_scalar, push_text};

    /// A number of `bytes` bytes.
    fn long(bytes: usize) -> BigInt {
        BigInt::from_signed_bytes_be(&[&[1][..], &vec![0xa5; bytes - 1]].concat())
    }

    fn read_json(ty: &CqlType, json: &Json) -> Result<(), ValueError> {
        json.encode(ty, &mut AbsentFields::default()).map(drop)
    }

    #[test]
    fn texts_of_too_many_digits_are_refused() {
        for digits in [MAX_DIGITS, MAX_DIGITS + 1, 3_000_000] {
            let text = "9".repeat(digits);
            let json = Json::parse(&text).expect("it is JSON");
            let quoted = Json::Text(text.clone());
            for ty in [CqlType::Varint, CqlType::Decimal] {
                let read = [parse_scalar(&ty, &text).map(drop)]
                    .into_iter()
                    .chain([&json, &quoted].map(|json| read_json(&ty, json)));
                for read in read {
                    match read {
                        Ok(()) => assert_eq!(digits, MAX_DIGITS),
                        Err(error) => {
                            let error = error.to_string();
                            assert!(digits > MAX_DIGITS && error.len() < 1_100, "{} bytes", error.len());
                            assert!(error.contains("16384"), "{error}");
                        }
                    }
                }
            }
            // No whole number has so many digits, and the error does not show them all.
            let error = read_json(&CqlType::Int, &json).expect_err("out of range").to_string();
            assert!(error.len() < 1_100, "{} bytes", error.len());
        }
    }

    #[test]
    fn the_longest_number_that_is_read_is_written() {
        let text = "9".repeat(MAX_DIGITS);
        let value = Value::from_text(&CqlType::Varint, &text).expect("it is within the limit");
        assert!(check_has_text(&value).is_ok());
        assert_eq!(value.to_cql_literal(&CqlType::Varint), text);
        assert_eq!(value.to_json_string(&CqlType::Varint), text);
    }

    #[test]
    fn longer_numbers_are_written_as_their_bytes_or_refused() {
        // Quadratic conversions would take many seconds.
        let varint = Value::Varint(long(1 << 20));
        let decimal = Value::Decimal(Decimal::new(5, long(1 << 20)));
        for (value, ty, start) in [
            (varint, CqlType::Varint, "blobasvarint(0x01a5a5"),
            (decimal, CqlType::Decimal, "blobasdecimal(0x0000000501a5a5"),
        ] {
            let literal = value.to_cql_literal(&ty);
            assert!(literal.starts_with(start) && literal.len() < 3 << 20);
            assert!(value.to_json_string(&ty)[1..].starts_with(start));
            let lists = CqlType::list(ty.clone());
            let list = Value::List(vec![value.clone()]);
            for (ty, value) in [(ty, value), (lists, list)] {
                let bytes = value.encode(&ty).expect("it is of its type");
                let mut out = String::new();
                let refused = push_text(JsonNotation::STRICT, &ty, bytes.as_deref(), usize::MAX, &mut out);
                let Err(TextError::Value(error)) = refused else { panic!("it is too long: {refused:?}") };
                assert!(error.to_string().contains("16384 digits"), "{error}");
            }
        }
    }
}
