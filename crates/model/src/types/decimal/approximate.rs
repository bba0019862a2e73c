//! Approximate arithmetic with long decimals, by their leading bits. Exact arithmetic with all
//! their digits takes more than linear time.

use super::Decimal;
use num_bigint::{BigUint, Sign};
use std::cmp::Ordering;

/// The most bits of a number that is cheap to compute with exactly.
const FEW_BITS: u64 = 4_096;

/// Bits of an [`Approximate`] number.
const BITS: u64 = 256;

/// Bits of the mantissa that may be wrong after about 70 multiplications, each with an error of at
/// most one unit. Generous.
const UNSURE_BITS: u64 = 64;

/// A positive number by its leading bits: `mantissa` times two to the power of `exponent`. The
/// mantissa has exactly [`BITS`] bits.
struct Approximate {
    mantissa: BigUint,
    exponent: i64,
}

impl Approximate {
    fn of(number: &BigUint) -> Self {
        Self::scaled(number, 0)
    }

    /// `number`, which is not zero, times two to the power of `exponent`.
    fn scaled(number: &BigUint, exponent: i64) -> Self {
        let bits = number.bits();
        let mantissa = if bits >= BITS { number >> (bits - BITS) } else { number << (BITS - bits) };
        Approximate { mantissa, exponent: exponent + bits as i64 - BITS as i64 }
    }

    fn times(&self, other: &Self) -> Self {
        Self::scaled(&(&self.mantissa * &other.mantissa), self.exponent + other.exponent)
    }

    fn over(&self, other: &Self) -> Self {
        let quotient = (&self.mantissa << BITS) / &other.mantissa;
        Self::scaled(&quotient, self.exponent - other.exponent - BITS as i64)
    }

    fn ten_to(power: u32) -> Self {
        let mut result = Self::of(&BigUint::from(1u32));
        let ten = Self::of(&BigUint::from(10u32));
        for bit in (0..32).rev() {
            result = result.times(&result);
            if power >> bit & 1 == 1 {
                result = result.times(&ten);
            }
        }
        result
    }

    fn to_f64(&self) -> f64 {
        let exponent = self.exponent + BITS as i64;
        if exponent > 1_100 {
            return f64::INFINITY;
        }
        if exponent < -1_200 {
            return 0.0;
        }
        // Between 2^63 and 2^64, and a power of two in two steps: the second may be subnormal.
        let leading = (&self.mantissa >> (BITS - 64)).iter_u64_digits().next().unwrap_or_default();
        let power = (exponent - 64) as i32;
        let half = power / 2;
        leading as f64 * 2f64.powi(half) * 2f64.powi(power - half)
    }

    /// How two numbers compare; none if that takes more bits.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        if self.exponent != other.exponent {
            // Neighbours may be the same number, rounded to either side of a power of two.
            let far = self.exponent.abs_diff(other.exponent) > 1;
            return far.then(|| self.exponent.cmp(&other.exponent));
        }
        let order = self.mantissa.cmp(&other.mantissa);
        let difference = if order == Ordering::Greater {
            &self.mantissa - &other.mantissa
        } else {
            &other.mantissa - &self.mantissa
        };
        (difference.bits() > UNSURE_BITS).then_some(order)
    }
}

impl Decimal {
    /// The nearest number in floating point; of a long number the nearest or its neighbour.
    pub fn to_f64(&self) -> f64 {
        if self.unscaled.bits() <= FEW_BITS {
            return self.to_string().parse().unwrap_or(f64::NAN);
        }
        let number = Approximate::of(self.unscaled.magnitude());
        let power = Approximate::ten_to(self.scale.unsigned_abs());
        let magnitude = if self.scale > 0 { number.over(&power) } else { number.times(&power) }.to_f64();
        if self.unscaled.sign() == Sign::Minus { -magnitude } else { magnitude }
    }
}

/// Compares two decimals above zero by their leading bits. Returns `None` if these do not decide,
/// or if exact arithmetic is cheap.
pub(super) fn compare_leading(a: &Decimal, b: &Decimal) -> Option<Ordering> {
    if a.unscaled.bits().max(b.unscaled.bits()) <= FEW_BITS {
        return None;
    }
    let distance = Approximate::ten_to(a.scale.abs_diff(b.scale));
    let (x, y) = (Approximate::of(a.unscaled.magnitude()), Approximate::of(b.unscaled.magnitude()));
    if a.scale < b.scale { x.times(&distance).compare(&y) } else { x.compare(&y.times(&distance)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CqlType, compare};
    use num_bigint::BigInt;

    /// A number of `bytes` bytes.
    fn long(bytes: usize) -> BigInt {
        BigInt::from_signed_bytes_be(&[&[1][..], &vec![0xa5; bytes - 1]].concat())
    }

    #[test]
    fn long_decimals_become_floating_point_by_their_leading_digits() {
        let ten = BigInt::from(10);
        for digits in [500u32, 2_000, 100_000] {
            let number: BigInt = BigInt::from(23_456_789_012i64) * ten.pow(digits);
            for (scale, expected) in [
                (digits as i32 + 10, 2.345_678_901_2),
                (digits as i32 + 300, 2.345_678_901_2e-290),
                (digits as i32 + 320, 2.345_678_901_2e-310),
                (digits as i32 + 400, 0.0),
                (digits as i32 - 290, 2.345_678_901_2e300),
                (digits as i32 - 400, f64::INFINITY),
                (i32::MAX, 0.0),
                (i32::MIN, f64::INFINITY),
            ] {
                for sign in [1, -1] {
                    let (found, expected) = (Decimal::new(scale, &number * sign).to_f64(), expected * f64::from(sign));
                    let near = found == expected || (found / expected - 1.0).abs() < 1e-14;
                    assert!(near, "{digits} {scale}: {found} instead of {expected}");
                }
            }
        }
        // What takes seconds if all digits are made.
        assert!(Decimal::new(9_000_000, long(4 << 20)).to_f64().is_infinite());
        assert_eq!(Decimal::new(i32::MAX, long(4 << 20)).to_f64(), 0.0);
    }

    #[test]
    fn long_decimals_compare_by_their_leading_digits() {
        let bytes = |scale: i32, unscaled: BigInt| {
            let mut out = Vec::new();
            Decimal::new(scale, unscaled).write_to(&mut out);
            out
        };
        let order = |a: &[u8], b: &[u8]| compare(&CqlType::Decimal, a, b);
        let number: BigInt = BigInt::from(10).pow(3_000) * 7;
        for (a, b, expected) in [
            (bytes(0, number.clone()), bytes(3_000, &number * BigInt::from(10).pow(3_000)), Ordering::Equal),
            (bytes(0, number.clone()), bytes(3_000, &number * BigInt::from(10).pow(3_000) + 1), Ordering::Less),
            (bytes(-3_000, 7.into()), bytes(0, number.clone()), Ordering::Equal),
            (bytes(-3_000, 7.into()), bytes(0, &number - 1), Ordering::Greater),
            (bytes(-3_000, 8.into()), bytes(0, number.clone()), Ordering::Greater),
            (bytes(-3_000, (-8).into()), bytes(0, -number.clone()), Ordering::Less),
        ] {
            assert_eq!(order(&a, &b), expected);
            assert_eq!(order(&b, &a), expected.reverse());
        }
        // The exact way multiplies by ten to the power of a million.
        let (a, b) = (bytes(0, long(1 << 20)), bytes(1_000_000, long((1 << 20) + 415_241)));
        assert_ne!(order(&a, &b), Ordering::Equal);
        assert_eq!(order(&a, &b), order(&b, &a).reverse());
    }
}
