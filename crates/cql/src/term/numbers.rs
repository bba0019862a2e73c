//! Sums and means of numbers: what `sum` and `avg` compute over rows, and their collection forms over elements.
//!
//! Whole numbers are added in 128 bits, which no number of rows overflows; the result is checked against its own type. Decimals
//! keep the larger scale. A mean of whole numbers is cut, that of decimals rounded with halves to even.

use crate::error::Error;
use bytes::Bytes;
use model::CqlType;
use model::types::{Decimal, Value};
use num_bigint::BigInt;
use std::cmp::Ordering;

/// Whether values of a type are numbers.
pub fn is_number(ty: &CqlType) -> bool {
    use CqlType::*;
    matches!(ty, Tinyint | Smallint | Int | Bigint | Counter | Varint | Decimal | Float | Double)
}

/// The types of numbers that functions over all of them have a variant for.
pub const NUMBERS: [CqlType; 8] = [
    CqlType::Tinyint,
    CqlType::Smallint,
    CqlType::Int,
    CqlType::Bigint,
    CqlType::Float,
    CqlType::Double,
    CqlType::Varint,
    CqlType::Decimal,
];

/// Numbers of one type, added up.
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
    /// Nothing yet.
    pub fn new(ty: &CqlType) -> Self {
        let decimal = Decimal::new(0, 0);
        Total { ty: ty.clone(), count: 0, whole: 0, large: BigInt::ZERO, decimal, float: 0.0 }
    }

    /// One more number, serialised. A value of no bytes does not count.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.ty {
            CqlType::Float | CqlType::Double | CqlType::Decimal | CqlType::Varint => {
                match Value::decode(&self.ty, bytes).map_err(|error| Error::invalid(error.to_string()))? {
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

    /// The sum, serialised; of nothing it is zero.
    pub fn sum(self) -> Result<Option<Bytes>, Error> {
        let value = match self.ty {
            CqlType::Float => Value::Float(self.float as f32),
            CqlType::Double => Value::Double(self.float),
            CqlType::Decimal => Value::Decimal(self.decimal),
            CqlType::Varint => Value::Varint(self.large),
            _ => Value::Varint(self.whole.into()),
        };
        encoded(&value, &self.ty)
    }

    /// The mean, serialised; of nothing it is zero.
    pub fn mean(self) -> Result<Option<Bytes>, Error> {
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

fn encoded(value: &Value, ty: &CqlType) -> Result<Option<Bytes>, Error> {
    let overflow = |_| Error::invalid("Sum overflow. Values should be casted to a wider type.");
    Ok(value.encode(ty).map_err(overflow)?.map(Bytes::from))
}

/// An integer of at most 8 bytes.
fn machine_integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
    bytes.iter().fold(sign, |value, byte| value << 8 | i64::from(*byte))
}

/// Numbers whose scales lie further apart than this are not added: the sum would have as many digits.
const MAX_SCALE_DISTANCE: i64 = 10_000;

fn sum(a: &Decimal, b: &Decimal) -> Result<Decimal, Error> {
    let scale = a.scale.max(b.scale);
    let raised = |decimal: &Decimal| {
        let distance = i64::from(scale) - i64::from(decimal.scale);
        if distance > MAX_SCALE_DISTANCE && decimal.unscaled != BigInt::ZERO {
            return Err(Error::invalid("The scales of the numbers to be added lie too far apart"));
        }
        Ok(&decimal.unscaled * BigInt::from(10).pow(distance.min(MAX_SCALE_DISTANCE) as u32))
    };
    Ok(Decimal::new(scale, raised(a)? + raised(b)?))
}

/// The quotient at the dividend's scale, halves to even.
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

    fn totals(ty: &CqlType, numbers: &[&str]) -> (Result<String, String>, Result<String, String>) {
        let mut total = Total::new(ty);
        for number in numbers {
            let bytes = model::types::parse_scalar(ty, number).expect(number);
            total.add(&bytes).expect("scales are near");
        }
        let shown = |result: Result<Option<Bytes>, Error>| match result {
            Ok(bytes) => Ok(Value::decode_optional(ty, bytes.as_deref()).expect("it is valid").to_cql_literal(ty)),
            Err(error) => Err(error.to_string()),
        };
        (shown(total.clone().sum()), shown(total.mean()))
    }

    #[test]
    fn sums_and_means() {
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
            assert_eq!(totals(&ty, numbers), (Ok(sum.to_owned()), Ok(mean.to_owned())), "{ty} {numbers:?}");
        }
    }

    #[test]
    fn a_sum_that_does_not_fit_is_an_error_and_its_mean_is_not() {
        let (sum, mean) = totals(&CqlType::Tinyint, &["127", "127"]);
        assert_eq!(sum, Err("Sum overflow. Values should be casted to a wider type.".to_owned()));
        assert_eq!(mean, Ok("127".to_owned()));
    }
}
