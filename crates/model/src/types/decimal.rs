//! Decimals: an unbounded integer and a scale. Nothing here expands an exponent: a value of a few
//! bytes can be 10^2000000000, and must cost no more than its bytes.

mod approximate;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use num_bigint::{BigInt, BigUint, Sign};

use super::{CqlType, ValueError, compare, digits};

/// `unscaled` times ten to the power of `-scale`. Equality compares both parts, so 1.0 is not 1.00;
/// [`super::compare`] orders by the number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal {
    /// The number of digits right of the point; negative for trailing zeros left of it.
    pub scale: i32,
    /// The digits.
    pub unscaled: BigInt,
}

impl Decimal {
    /// `unscaled` times ten to the power of `-scale`.
    pub fn new(scale: i32, unscaled: impl Into<BigInt>) -> Self {
        Decimal { scale, unscaled: unscaled.into() }
    }

    /// The decimal with this encoding; `None` if there are too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (scale, unscaled) = bytes.split_first_chunk::<4>()?;
        Some(Decimal { scale: i32::from_be_bytes(*scale), unscaled: BigInt::from_signed_bytes_be(unscaled) })
    }

    /// Appends the serialised form.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.scale.to_be_bytes());
        out.extend_from_slice(&self.unscaled.to_signed_bytes_be());
    }
}

impl Ord for Decimal {
    /// By the number, then (to agree with equality) by scale.
    fn cmp(&self, other: &Self) -> Ordering {
        compare_numbers(self, other).then(self.scale.cmp(&other.scale))
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// In plain form if that is short, otherwise with an exponent (`1.5E+40`), as in Java.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unscaled.sign() == Sign::Minus {
            f.write_str("-")?;
        }
        let digits = self.unscaled.magnitude().to_string();
        let scale = i64::from(self.scale);
        let exponent = digits.len() as i64 - 1 - scale;
        if scale == 0 {
            f.write_str(&digits)
        } else if scale > 0 && exponent >= -6 {
            let scale = self.scale as usize;
            match digits.len().checked_sub(scale) {
                Some(whole @ 1..) => write!(f, "{}.{}", &digits[..whole], &digits[whole..]),
                _ => write!(f, "0.{digits:0>scale$}"),
            }
        } else {
            f.write_str(&digits[..1])?;
            if digits.len() > 1 {
                write!(f, ".{}", &digits[1..])?;
            }
            write!(f, "E{exponent:+}")
        }
    }
}

impl FromStr for Decimal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let invalid = || ValueError::new(format!("unable to make BigDecimal from '{text}'"));
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().map_err(|_| invalid())?),
            None => (text, 0),
        };
        let (negative, unsigned) = match mantissa.as_bytes().first() {
            Some(b'-') => (true, &mantissa[1..]),
            Some(b'+') => (false, &mantissa[1..]),
            _ => (false, mantissa),
        };
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let mut digits = String::with_capacity(whole.len() + fraction.len());
        digits.push_str(whole);
        digits.push_str(fraction);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        digits::check_digits(digits.len())?;
        let magnitude: BigUint = digits.parse().map_err(|_| invalid())?;
        let scale = (fraction.len() as i64).checked_sub(exponent).and_then(|scale| i32::try_from(scale).ok());
        let scale = scale.ok_or_else(invalid)?;
        let sign = if negative { Sign::Minus } else { Sign::Plus };
        Ok(Decimal { scale, unscaled: BigInt::from_biguint(sign, magnitude) })
    }
}

/// Compares serialised decimals as numbers. Bytes that are too few come first, by length and bytes.
pub(super) fn compare_bytes(a: &[u8], b: &[u8]) -> Ordering {
    let (Some((a_scale, a_unscaled)), Some((b_scale, b_unscaled))) =
        (a.split_first_chunk::<4>(), b.split_first_chunk::<4>())
    else {
        return a.len().min(4).cmp(&b.len().min(4)).then_with(|| a.cmp(b));
    };
    let (a_scale, b_scale) = (i32::from_be_bytes(*a_scale), i32::from_be_bytes(*b_scale));
    if a_scale == b_scale && !a_unscaled.is_empty() && !b_unscaled.is_empty() {
        return compare(&CqlType::Varint, a_unscaled, b_unscaled);
    }
    if let (Some(x), Some(y)) = (small(a_unscaled), small(b_unscaled)) {
        let difference = a_scale.abs_diff(b_scale);
        if difference <= 18 {
            // Below 2^63 * 10^18, which fits.
            let factor = 10i128.pow(difference);
            return if a_scale < b_scale { (x * factor).cmp(&y) } else { x.cmp(&(y * factor)) };
        }
    }
    let number = |scale, unscaled| Decimal { scale, unscaled: BigInt::from_signed_bytes_be(unscaled) };
    compare_numbers(&number(a_scale, a_unscaled), &number(b_scale, b_unscaled))
}

/// A two's complement number of up to 8 bytes.
fn small(bytes: &[u8]) -> Option<i128> {
    if bytes.len() > 8 {
        return None;
    }
    let sign = if bytes.first().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
    Some(bytes.iter().fold(sign, |value, &byte| value << 8 | i128::from(byte)))
}

fn compare_numbers(a: &Decimal, b: &Decimal) -> Ordering {
    let (sign, other) = (a.unscaled.sign(), b.unscaled.sign());
    if sign != other || sign == Sign::NoSign {
        return sign.cmp(&other);
    }
    let magnitude = compare_magnitudes(a, b);
    if sign == Sign::Minus { magnitude.reverse() } else { magnitude }
}

/// Compares the positions of the first digits. If they are equal, the scales differ by no more than
/// the numbers of digits, so that converting to one scale costs no more than the existing digits.
fn compare_magnitudes(a: &Decimal, b: &Decimal) -> Ordering {
    let (a_low, a_high) = first_digit(a);
    let (b_low, b_high) = first_digit(b);
    if a_high < b_low {
        return Ordering::Less;
    }
    if b_high < a_low {
        return Ordering::Greater;
    }
    if let Some(order) = approximate::compare_leading(a, b) {
        return order;
    }
    let factor = BigUint::from(10u32).pow(a.scale.abs_diff(b.scale));
    let (x, y) = (a.unscaled.magnitude(), b.unscaled.magnitude());
    if a.scale < b.scale { (x * factor).cmp(y) } else { x.cmp(&(y * factor)) }
}

/// Bounds of `digits - scale`, from the number of bits: log10(2) rounded down and up.
fn first_digit(number: &Decimal) -> (i64, i64) {
    let digits = |bits: u64, log10_of_2: u128| (u128::from(bits) * log10_of_2 / 10_000_000_000) as i64 + 1;
    let bits = number.unscaled.bits();
    let scale = i64::from(number.scale);
    (digits(bits.saturating_sub(1), 3_010_299_956) - scale, digits(bits, 3_010_299_957) - scale)
}
