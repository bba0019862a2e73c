//! Sums and means of numbers, for `sum` and `avg` over rows and over the elements of collections.
//!
//! Whole numbers are added in 128 bits, which no number of rows overflows. The result is checked
//! against its own type. Decimals keep the larger scale. A mean of whole numbers is truncated, a
//! mean of decimals is rounded with halves to even.
//!
//! A total has an encoding, so that a replica can send the total of its rows to the coordinator:
//! `i64 count`, then `f64` (float, double), `i32 scale, unscaled` (decimal), the number's own bytes
//! (varint), or `i128`; all big-endian.

use crate::types::{CqlType, Decimal, Value, digits};
use num_bigint::BigInt;
use std::cmp::Ordering;
use thiserror::Error;

/// Why numbers have no sum.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TotalError {
    /// The sum does not fit into the type of the numbers.
    #[error("Sum overflow. Values should be casted to a wider type.")]
    Overflow,
    /// The scales are too far apart: the sum would have as many digits.
    #[error("The scales of the numbers to be added lie too far apart")]
    Scales,
    /// The bytes of a number or of a partial total are malformed, or it is too long to be brought
    /// to another scale.
    #[error("{0}")]
    Malformed(String),
}

/// The total of numbers of one type.
#[derive(Clone, PartialEq, Debug)]
pub struct Total {
    ty: CqlType,
    count: i64,
    whole: i128,
    large: BigInt,
    decimal: Decimal,
    float: f64,
}

impl Total {
    /// A total without numbers.
    pub fn new(ty: &CqlType) -> Self {
        let decimal = Decimal::new(0, 0);
        Total { ty: ty.clone(), count: 0, whole: 0, large: BigInt::ZERO, decimal, float: 0.0 }
    }

    /// Adds one serialised number. A value of no bytes is ignored.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), TotalError> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.ty {
            CqlType::Float | CqlType::Double | CqlType::Decimal | CqlType::Varint => {
                match Value::decode(&self.ty, bytes).map_err(|error| TotalError::Malformed(error.to_string()))? {
                    Value::Float(v) => self.float += f64::from(v),
                    Value::Double(v) => self.float += v,
                    Value::Decimal(v) => self.decimal = sum(&self.decimal, &v)?,
                    Value::Varint(v) => self.large += v,
                    _ => return Ok(()),
                }
            }
            _ => self.whole += i128::from(machine_integer(bytes)),
        }
        self.count += 1;
        Ok(())
    }

    /// The encoded total, for [`Total::add_part`] of a total of the same type.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.count.to_be_bytes().to_vec();
        match self.ty {
            CqlType::Float | CqlType::Double => out.extend_from_slice(&self.float.to_be_bytes()),
            CqlType::Decimal => {
                out.extend_from_slice(&self.decimal.scale.to_be_bytes());
                out.extend_from_slice(&self.decimal.unscaled.to_signed_bytes_be());
            }
            CqlType::Varint => out.extend_from_slice(&self.large.to_signed_bytes_be()),
            _ => out.extend_from_slice(&self.whole.to_be_bytes()),
        }
        out
    }

    /// Adds another total of this type.
    pub fn add_part(&mut self, part: &[u8]) -> Result<(), TotalError> {
        self.try_add_part(part)?.ok_or_else(|| TotalError::Malformed("the total of a part is malformed".into()))
    }

    /// `None`: the bytes are not a total.
    fn try_add_part(&mut self, part: &[u8]) -> Result<Option<()>, TotalError> {
        let Some((count, part)) = part.split_first_chunk::<8>() else { return Ok(None) };
        match self.ty {
            CqlType::Float | CqlType::Double => {
                let Ok(float) = part.try_into().map(f64::from_be_bytes) else { return Ok(None) };
                self.float += float;
            }
            CqlType::Decimal => {
                let Some((scale, unscaled)) = part.split_first_chunk::<4>() else { return Ok(None) };
                let part = Decimal::new(i32::from_be_bytes(*scale), BigInt::from_signed_bytes_be(unscaled));
                self.decimal = sum(&self.decimal, &part)?;
            }
            CqlType::Varint => self.large += BigInt::from_signed_bytes_be(part),
            _ => {
                let Ok(whole) = part.try_into().map(i128::from_be_bytes) else { return Ok(None) };
                self.whole = self.whole.checked_add(whole).ok_or(TotalError::Overflow)?;
            }
        }
        self.count = self.count.saturating_add(i64::from_be_bytes(*count));
        Ok(Some(()))
    }

    /// The serialised sum; zero if there are no numbers.
    pub fn sum(self) -> Result<Option<Vec<u8>>, TotalError> {
        let value = match self.ty {
            CqlType::Float => Value::Float(self.float as f32),
            CqlType::Double => Value::Double(self.float),
            CqlType::Decimal => Value::Decimal(self.decimal),
            CqlType::Varint => Value::Varint(self.large),
            _ => Value::Varint(self.whole.into()),
        };
        encoded(&value, &self.ty)
    }

    /// The serialised mean; zero if there are no numbers.
    pub fn mean(self) -> Result<Option<Vec<u8>>, TotalError> {
        let count = self.count.max(1);
        let value = match self.ty {
            CqlType::Float => Value::Float((self.float / count as f64) as f32),
            CqlType::Double => Value::Double(self.float / count as f64),
            CqlType::Decimal => Value::Decimal(quotient(&self.decimal, count)),
            CqlType::Varint => Value::Varint(self.large / count),
            _ => Value::Varint((self.whole / i128::from(count)).into()),
        };
        encoded(&value, &self.ty)
    }
}

fn encoded(value: &Value, ty: &CqlType) -> Result<Option<Vec<u8>>, TotalError> {
    value.encode(ty).map_err(|_| TotalError::Overflow)
}

/// An integer of at most 8 bytes.
fn machine_integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
    bytes.iter().fold(sign, |value, byte| value << 8 | i64::from(*byte))
}

/// Numbers whose scales are further apart are not added: the sum would have as many digits.
const MAX_SCALE_DISTANCE: i64 = 10_000;

fn sum(a: &Decimal, b: &Decimal) -> Result<Decimal, TotalError> {
    let scale = a.scale.max(b.scale);
    let raised = |decimal: &Decimal| {
        let distance = i64::from(scale) - i64::from(decimal.scale);
        if distance == 0 {
            return Ok(decimal.unscaled.clone());
        }
        digits::check_digit_limit(&decimal.unscaled, "decimal")
            .map_err(|error| TotalError::Malformed(error.to_string()))?;
        if distance > MAX_SCALE_DISTANCE && decimal.unscaled != BigInt::ZERO {
            return Err(TotalError::Scales);
        }
        Ok(&decimal.unscaled * BigInt::from(10).pow(distance.min(MAX_SCALE_DISTANCE) as u32))
    };
    Ok(Decimal::new(scale, raised(a)? + raised(b)?))
}

/// The quotient with the scale of the dividend, halves rounded to even.
fn quotient(decimal: &Decimal, divisor: i64) -> Decimal {
    let divisor = BigInt::from(divisor);
    let (quotient, rest) = (&decimal.unscaled / &divisor, &decimal.unscaled % &divisor);
    let twice: BigInt = BigInt::from(rest.magnitude().clone()) * 2;
    let sign = if decimal.unscaled < BigInt::ZERO { -1 } else { 1 };
    let odd = &quotient % 2 != BigInt::ZERO;
    let up = match twice.cmp(&divisor) {
        Ordering::Greater => true,
        Ordering::Equal => odd,
        Ordering::Less => false,
    };
    Decimal::new(decimal.scale, if up { quotient + sign } else { quotient })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(ty: &CqlType, numbers: &[&str]) -> Total {
        let mut total = Total::new(ty);
        for number in numbers {
            let bytes = crate::types::parse_scalar(ty, number).expect(number);
            total.add(&bytes).expect("scales are near");
        }
        total
    }

    fn shown(total: Total) -> (Result<String, String>, Result<String, String>) {
        let ty = total.ty.clone();
        let shown = |result: Result<Option<Vec<u8>>, TotalError>| match result {
            Ok(bytes) => Ok(Value::decode_optional(&ty, bytes.as_deref()).expect("it is valid").to_cql_literal(&ty)),
            Err(error) => Err(error.to_string()),
        };
        (shown(total.clone().sum()), shown(total.mean()))
    }

    #[test]
    fn sums_and_means_of_numbers_and_of_parts() {
        use CqlType::*;
        for (ty, numbers, sum, mean) in [
            (Int, &["1", "2", "4"][..], "7", "2"),
            (Int, &["-1", "-2", "-4"], "-7", "-2"),
            (Int, &[], "0", "0"),
            (Tinyint, &["100", "27"], "127", "63"),
            (Bigint, &["-9223372036854775808", "9223372036854775807"], "-1", "0"),
            (
                Varint,
                &["123456789012345678901234567890", "2"],
                "123456789012345678901234567892",
                "61728394506172839450617283946",
            ),
            (Float, &["1.5", "2.5"], "4.0", "2.0"),
            (Double, &["1", "2"], "3.0", "1.5"),
            (Decimal, &["1.5", "2.25"], "3.75", "1.88"),
            (Decimal, &["0.5", "0.0"], "0.5", "0.2"),
        ] {
            let expected = (Ok(sum.to_owned()), Ok(mean.to_owned()));
            assert_eq!(shown(added(&ty, numbers)), expected, "{ty} {numbers:?}");
            for at in 0..=numbers.len() {
                let mut parts = added(&ty, &numbers[..at]);
                parts.add_part(&added(&ty, &numbers[at..]).to_bytes()).expect("it is a part");
                assert_eq!(shown(parts), expected, "{ty} {numbers:?} in two parts, cut at {at}");
            }
        }
    }

    #[test]
    fn a_sum_that_does_not_fit_is_an_error_and_its_mean_is_not() {
        let (sum, mean) = shown(added(&CqlType::Tinyint, &["127", "127"]));
        assert_eq!(sum, Err("Sum overflow. Values should be casted to a wider type.".to_owned()));
        assert_eq!(mean, Ok("127".to_owned()));
    }

    #[test]
    fn bytes_that_are_no_part_are_refused() {
        use CqlType::*;
        for ty in [Int, Counter, Float, Double, Decimal] {
            for len in [0, 7, 8, 11, 17, 23] {
                let added = Total::new(&ty).add_part(&vec![0; len]);
                // Any bytes after a scale are a number.
                if ty == Decimal && len >= 12 {
                    continue;
                }
                assert!(matches!(added, Err(TotalError::Malformed(_))), "{ty} {len}: {added:?}");
            }
        }
        let mut most = Total::new(&Bigint);
        let part = [&1i64.to_be_bytes()[..], &i128::MAX.to_be_bytes()].concat();
        most.add_part(&part).expect("it fits");
        assert_eq!(most.add_part(&part), Err(TotalError::Overflow));
    }
}
