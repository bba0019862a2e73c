//! `abs`, `exp`, `log`, `log10`, `round`: functions of a number that return the same type.
//!
//! Machine numbers are computed in 64-bit floating point and converted to their type. `varint` and
//! `decimal` are computed in fixed point, to 32 significant digits. They have no NaN, so an
//! undefined result, such as the logarithm of zero, is an error for them.

use crate::error::Error;
use bytes::Bytes;
use model::CqlType;
use model::types::{Decimal, Value, digits, shortened};
use num_bigint::{BigInt, Sign};
use num_traits::{Signed, ToPrimitive};

/// A mathematical function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Math {
    /// The absolute value.
    Abs,
    /// e to this power.
    Exp,
    /// The natural logarithm.
    Log,
    /// The logarithm to base 10.
    Log10,
    /// The nearest integer, halves away from zero. Halves of floating point numbers are rounded up.
    Round,
}

impl Math {
    /// The function with this name in lower case.
    pub fn of_name(name: &str) -> Option<Math> {
        Some(match name {
            "abs" => Math::Abs,
            "exp" => Math::Exp,
            "log" => Math::Log,
            "log10" => Math::Log10,
            "round" => Math::Round,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Math::Abs => "abs",
            Math::Exp => "exp",
            Math::Log => "log",
            Math::Log10 => "log10",
            Math::Round => "round",
        }
    }

    fn of_float(self, x: f64) -> f64 {
        match self {
            Math::Abs => x.abs(),
            Math::Exp => x.exp(),
            Math::Log => x.ln(),
            Math::Log10 => x.log10(),
            Math::Round => (x + 0.5).floor(),
        }
    }

    /// Evaluates the function for a number of this type.
    pub fn call(self, ty: &CqlType, bytes: &[u8]) -> Result<Option<Bytes>, Error> {
        let wrong = |error: model::types::ValueError| Error::invalid(error.to_string());
        let value = match Value::decode(ty, bytes).map_err(wrong)? {
            Value::Empty | Value::Null => return Ok(None),
            Value::Float(v) => Value::Float(self.of_float(f64::from(v)) as f32),
            Value::Double(v) => Value::Double(self.of_float(v)),
            Value::Decimal(v) => Value::Decimal(self.of_decimal(&v)?),
            Value::Varint(v) => Value::Varint(self.of_large(&v)?),
            whole => Value::Varint(self.of_whole(&whole, ty)),
        };
        let range = |_| Error::invalid(format!("The result of {} is out of range for type {ty}", self.name()));
        Ok(value.encode(ty).map_err(range)?.map(Bytes::from))
    }

    /// For machine integers. The result saturates, as casts from floating point do. The absolute
    /// value of the smallest number wraps around.
    fn of_whole(self, value: &Value, ty: &CqlType) -> BigInt {
        let x = value.to_i64().unwrap_or_default();
        let (low, high) = match ty {
            CqlType::Tinyint => (i64::from(i8::MIN), i64::from(i8::MAX)),
            CqlType::Smallint => (i64::from(i16::MIN), i64::from(i16::MAX)),
            CqlType::Int => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => (i64::MIN, i64::MAX),
        };
        match self {
            Math::Round => x.into(),
            Math::Abs if x == low => low.into(),
            Math::Abs => x.abs().into(),
            _ => (self.of_float(x as f64) as i64).clamp(low, high).into(),
        }
    }

    fn of_large(self, x: &BigInt) -> Result<BigInt, Error> {
        Ok(match self {
            Math::Round => x.clone(),
            Math::Abs => x.abs(),
            _ => {
                let result = self.of_decimal(&Decimal::new(0, x.clone()))?;
                let power = BigInt::from(10).pow(result.scale.unsigned_abs());
                if result.scale < 0 { result.unscaled * power } else { result.unscaled / power }
            }
        })
    }

    fn of_decimal(self, x: &Decimal) -> Result<Decimal, Error> {
        match self {
            Math::Abs => Ok(Decimal::new(x.scale, x.unscaled.abs())),
            Math::Round => round(x),
            Math::Exp => {
                let fixed = fixed_of(x).filter(|fixed| fixed.abs() <= one() * MAX_EXPONENT);
                let fixed =
                    fixed.ok_or_else(|| Error::invalid(format!("The argument {} of exp is too large", shown(x))))?;
                let power = exp(&fixed.abs());
                Ok(significant(&if fixed.is_negative() { divide(&one(), &power) } else { power }))
            }
            Math::Log | Math::Log10 => {
                let ln = ln(x)?;
                Ok(significant(&if self == Math::Log { ln } else { divide(&ln, &ln_of_ten()) }))
            }
        }
    }
}

/// Decimal places of fixed-point computations, far more than are kept.
const PLACES: u32 = 90;
/// Significant digits of results.
const DIGITS: usize = 32;
/// The limit on the magnitude of arguments of `exp`. Its results then have a few hundred digits,
/// and very small results are rounded to zero.
const MAX_EXPONENT: i32 = 1_000;
/// The limit on scales. A larger scale would produce a number of as many digits.
const MAX_SCALE: u32 = 10_000;

fn one() -> BigInt {
    BigInt::from(10).pow(PLACES)
}

fn multiply(a: &BigInt, b: &BigInt) -> BigInt {
    a * b / one()
}

fn divide(a: &BigInt, b: &BigInt) -> BigInt {
    a * one() / b
}

/// A decimal as an error shows it.
fn shown(x: &Decimal) -> String {
    const MAX_SHOWN: usize = 100;
    if !digits::has_text(&x.unscaled) {
        return format!("of {} bytes", x.unscaled.bits() / 8 + 1);
    }
    shortened(x.to_string(), MAX_SHOWN)
}

/// Converts a decimal to fixed point. `None` if it is too long, or its scale exceeds the limit.
fn fixed_of(x: &Decimal) -> Option<BigInt> {
    if x.scale.unsigned_abs() > MAX_SCALE || !digits::has_text(&x.unscaled) {
        return None;
    }
    let shift = i64::from(PLACES) - i64::from(x.scale);
    let power = BigInt::from(10).pow(shift.unsigned_abs() as u32);
    Some(if shift >= 0 { &x.unscaled * power } else { &x.unscaled / power })
}

/// `exp` of a non-negative number. Halves the argument until it is small, evaluates the series, and
/// squares the result as often.
fn exp(x: &BigInt) -> BigInt {
    const HALVINGS: u32 = 16;
    let small = x / BigInt::from(1u64 << HALVINGS);
    let (mut term, mut sum) = (one(), one());
    for n in 1.. {
        term = multiply(&term, &small) / n;
        if term.sign() == Sign::NoSign {
            break;
        }
        sum += &term;
    }
    (0..HALVINGS).fold(sum, |power, _| multiply(&power, &power))
}

/// The logarithm of a number between 1 and 10: twice the inverse hyperbolic tangent of (x - 1) / (x
/// + 1), by its series.
fn ln_of_digit(x: &BigInt) -> BigInt {
    let ratio = divide(&(x - one()), &(x + one()));
    let square = multiply(&ratio, &ratio);
    let (mut power, mut sum) = (ratio.clone(), ratio);
    for n in 1u32.. {
        power = multiply(&power, &square);
        if power.sign() == Sign::NoSign {
            break;
        }
        sum += &power / (2 * n + 1);
    }
    sum * 2
}

fn ln_of_ten() -> BigInt {
    ln_of_digit(&(one() * 10))
}

fn ln(x: &Decimal) -> Result<BigInt, Error> {
    if x.unscaled.sign() != Sign::Plus {
        return Err(Error::invalid("Natural log of number zero or less"));
    }
    let too_large = || Error::invalid(format!("The argument {} of log is too large", shown(x)));
    if !digits::has_text(&x.unscaled) {
        return Err(too_large());
    }
    let digits = x.unscaled.magnitude().to_string().len() as i64;
    // The mantissa has one digit before the point.
    let mantissa = Decimal::new((digits - 1).try_into().unwrap_or(i32::MAX), x.unscaled.clone());
    let mantissa = fixed_of(&mantissa).ok_or_else(too_large)?;
    let exponent = digits - 1 - i64::from(x.scale);
    Ok(ln_of_digit(&mantissa) + ln_of_ten() * exponent)
}

/// Converts a fixed-point number to a decimal of [`DIGITS`] significant digits, without trailing
/// zeros.
fn significant(fixed: &BigInt) -> Decimal {
    let mut scale = PLACES as i32;
    let mut unscaled = fixed.clone();
    let digits = unscaled.magnitude().to_string().len();
    if digits > DIGITS {
        let power = BigInt::from(10).pow((digits - DIGITS) as u32);
        let half = &power / 2 * if unscaled.is_negative() { -1 } else { 1 };
        unscaled = (unscaled + half) / power;
        scale -= (digits - DIGITS) as i32;
    }
    if unscaled.sign() == Sign::NoSign {
        return Decimal::new(0, 0);
    }
    while scale > 0 && (&unscaled % 10i32).to_i32() == Some(0) {
        unscaled /= 10;
        scale -= 1;
    }
    Decimal::new(scale, unscaled)
}

/// Rounds halves away from zero.
fn round(x: &Decimal) -> Result<Decimal, Error> {
    if x.scale <= 0 {
        return Ok(x.clone());
    }
    // A digit takes more than three bits. A number with more places than digits is below a half.
    if i64::from(x.scale) > (x.unscaled.bits() / 3 + 1) as i64 {
        return Ok(Decimal::new(0, 0));
    }
    digits::check_digit_limit(&x.unscaled, "decimal").map_err(|error| Error::invalid(error.to_string()))?;
    let power = BigInt::from(10).pow(x.scale.unsigned_abs());
    let half = &power / 2 * if x.unscaled.is_negative() { -1 } else { 1 };
    Ok(Decimal::new(0, (&x.unscaled + half) / power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(math: Math, ty: &CqlType, number: &str) -> Result<String, String> {
        let bytes = model::types::parse_scalar(ty, number).expect(number);
        let result = math.call(ty, &bytes).map_err(|error| error.to_string())?;
        Ok(Value::decode_optional(ty, result.as_deref()).expect("it is valid").to_cql_literal(ty))
    }

    #[test]
    fn results() {
        use CqlType::{Bigint, Decimal, Double, Float, Int, Tinyint, Varint};
        use Math::*;
        for (math, ty, number, expected) in [
            (Abs, Int, "-5", "5"),
            (Abs, Tinyint, "-128", "-128"),
            (Abs, Double, "-1.5", "1.5"),
            (Abs, Decimal, "-1.50", "1.50"),
            (Abs, Varint, "-123456789012345678901234567890", "123456789012345678901234567890"),
            (Exp, Int, "5", "148"),
            (Exp, Tinyint, "100", "127"),
            (Exp, Double, "0", "1.0"),
            (Exp, Float, "1", "2.7182817"),
            (Exp, Decimal, "0", "1"),
            (Exp, Decimal, "1", "2.7182818284590452353602874713527"),
            (Exp, Decimal, "-1.5", "0.22313016014842982893328047076401"),
            (Exp, Varint, "10", "22026"),
            (Log, Int, "100", "4"),
            (Log, Double, "1", "0.0"),
            (Log, Decimal, "1", "0"),
            (Log, Decimal, "2", "0.69314718055994530941723212145818"),
            (Log, Decimal, "1e100", "230.25850929940456840179914546844"),
            (Log10, Bigint, "1000000", "6"),
            (Log10, Decimal, "1000", "3"),
            (Log10, Decimal, "0.01", "-2"),
            (Log10, Varint, "100000000000000000000", "20"),
            (Round, Double, "2.5", "3.0"),
            (Round, Double, "-2.5", "-2.0"),
            (Round, Float, "1.4", "1.0"),
            (Round, Decimal, "2.5", "3"),
            (Round, Decimal, "-2.5", "-3"),
            (Round, Decimal, "0.05", "0"),
            (Round, Decimal, "1e3", "1E+3"),
            (Round, Int, "7", "7"),
        ] {
            assert_eq!(result(math, &ty, number), Ok(expected.to_owned()), "{math:?}({number}) of {ty}");
        }
    }

    #[test]
    fn arguments_without_a_result_are_errors() {
        for (math, number, message) in [
            (Math::Log, "0", "Natural log of number zero or less"),
            (Math::Log10, "-1", "Natural log of number zero or less"),
            (Math::Exp, "1e2000000000", "The argument 1E+2000000000 of exp is too large"),
            (Math::Exp, "1001", "The argument 1001 of exp is too large"),
        ] {
            assert_eq!(result(math, &CqlType::Decimal, number), Err(message.to_owned()));
        }
        assert_eq!(result(Math::Log, &CqlType::Double, "0"), Ok("-Infinity".to_owned()));
    }
}
