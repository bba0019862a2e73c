//! The order of serialised values, as in Cassandra and ScyllaDB.
//!
//! Clustering order, set and map order, `min`/`max` and relations all use [`compare`]. The caller
//! inverts it for descending columns. It is a total preorder on *all* byte strings, including
//! malformed ones. Fixed-width values of a wrong length are ordered by length. The malformed rest
//! of a collection is ignored. It never panics, and allocates only for decimals of equal magnitude.

use std::cmp::Ordering;

use super::collection::{self, VectorElements};
use super::{CqlType, decimal};

/// Compares two serialised values of type `ty`. A value of no bytes comes before all others.
#[inline]
pub fn compare(ty: &CqlType, a: &[u8], b: &[u8]) -> Ordering {
    match ty {
        CqlType::Text | CqlType::Ascii | CqlType::Blob => a.cmp(b),
        CqlType::Int => fixed(a, b, i32::from_be_bytes),
        CqlType::Bigint | CqlType::Timestamp | CqlType::Counter | CqlType::Time => fixed(a, b, i64::from_be_bytes),
        CqlType::Timeuuid => fixed(a, b, timeuuid_key),
        CqlType::Uuid => fixed(a, b, uuid_key),
        _ => compare_others(ty, a, b),
    }
}

fn compare_others(ty: &CqlType, a: &[u8], b: &[u8]) -> Ordering {
    match ty {
        CqlType::Tinyint => fixed(a, b, i8::from_be_bytes),
        CqlType::Smallint => fixed(a, b, i16::from_be_bytes),
        CqlType::Date => fixed(a, b, u32::from_be_bytes),
        CqlType::Boolean => fixed(a, b, |[byte]: [u8; 1]| byte != 0),
        CqlType::Float => fixed(a, b, |bytes| float_key(f32::from_be_bytes(bytes))),
        CqlType::Double => fixed(a, b, |bytes| double_key(f64::from_be_bytes(bytes))),
        CqlType::Varint => varint(a, b),
        CqlType::Decimal => decimal::compare_bytes(a, b),
        CqlType::List { elem, .. } | CqlType::Set { elem, .. } => sequences(a, b, 1, |_| elem),
        CqlType::Map { key, value, .. } => sequences(a, b, 2, |i| if i % 2 == 0 { key } else { value }),
        CqlType::Tuple(types) => fields(types.iter(), a, b),
        CqlType::Udt(user_type) => fields(user_type.fields.iter().map(|(_, ty)| ty), a, b),
        CqlType::Vector { elem, dim } => {
            vectors(elem, collection::vector_elements(elem, *dim, a), collection::vector_elements(elem, *dim, b))
        }
        _ => a.cmp(b),
    }
}

/// Orders values of `N` bytes by their key, and values of any other length by length, then bytes.
#[inline(always)]
fn fixed<const N: usize, K: Ord>(a: &[u8], b: &[u8], key: impl Fn([u8; N]) -> K) -> Ordering {
    match (<[u8; N]>::try_from(a), <[u8; N]>::try_from(b)) {
        (Ok(a), Ok(b)) => key(a).cmp(&key(b)),
        _ => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
    }
}

/// The 60-bit timestamp of a version 1 UUID, of its first 8 bytes.
#[inline]
fn uuid_time(msb: u64) -> u64 {
    (msb & 0x0fff) << 48 | (msb >> 16 & 0xffff) << 32 | msb >> 32
}

/// By time, then by the *signed* bytes of the lower half (a legacy of Cassandra). The version does
/// not count.
#[inline]
fn timeuuid_key(bytes: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_be_bytes(bytes);
    (uuid_time((whole >> 64) as u64), whole as u64 ^ 0x8080_8080_8080_8080)
}

/// By version, then version 1 by time, and all others by bytes.
#[inline]
fn uuid_key(bytes: [u8; 16]) -> (u8, u64, u64) {
    let whole = u128::from_be_bytes(bytes);
    let msb = (whole >> 64) as u64;
    let version = bytes[6] >> 4;
    (version, if version == 1 { uuid_time(msb) } else { msb }, whole as u64)
}

/// Orders as Java does: -0.0 before 0.0, every NaN equal and after everything.
#[inline]
fn double_key(value: f64) -> i64 {
    let bits = if value.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { value.to_bits() } as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

#[inline]
fn float_key(value: f32) -> i32 {
    let bits = if value.is_nan() { f32::NAN.to_bits() & !(1 << 31) } else { value.to_bits() } as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// Two's complement numbers of any length, compared without decoding them.
fn varint(a: &[u8], b: &[u8]) -> Ordering {
    if a.is_empty() || b.is_empty() {
        return a.len().cmp(&b.len());
    }
    let (a_negative, b_negative) = (a[0] >= 0x80, b[0] >= 0x80);
    if a_negative != b_negative {
        return b_negative.cmp(&a_negative);
    }
    let (a, b) = (significant(a), significant(b));
    let by_length = a.len().cmp(&b.len());
    // Of two negative numbers, the longer one is less. Numbers of equal length are ordered by
    // bytes, for either sign.
    (if a_negative { by_length.reverse() } else { by_length }).then_with(|| a.cmp(b))
}

/// Without the leading bytes that only repeat the sign.
fn significant(bytes: &[u8]) -> &[u8] {
    let sign = if bytes[0] >= 0x80 { 0xff } else { 0 };
    let redundant = bytes.windows(2).take_while(|pair| pair[0] == sign && (pair[1] ^ sign) < 0x80).count();
    &bytes[redundant..]
}

fn optional(ty: &CqlType, a: Option<&[u8]>, b: Option<&[u8]>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => compare(ty, a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

/// Lists, sets and maps: the first different element decides, then the shorter one is less.
fn sequences<'t>(a: &[u8], b: &[u8], per_entry: u64, ty: impl Fn(usize) -> &'t CqlType) -> Ordering {
    // A value of no bytes comes before the empty collection, which has a count.
    if a.is_empty() || b.is_empty() {
        return a.len().cmp(&b.len());
    }
    let mut a = collection::elements_lenient(a, per_entry);
    let mut b = collection::elements_lenient(b, per_entry);
    for i in 0.. {
        match (a.next_lenient(), b.next_lenient()) {
            (Some(x), Some(y)) => match optional(ty(i), x, y) {
                Ordering::Equal => {}
                decided => return decided,
            },
            (x, y) => return x.is_some().cmp(&y.is_some()),
        }
    }
    Ordering::Equal
}

/// Tuples and user types: field by field, null before any value; missing trailing fields are null.
fn fields<'t>(types: impl Iterator<Item = &'t CqlType>, a: &[u8], b: &[u8]) -> Ordering {
    if a.is_empty() || b.is_empty() {
        return a.len().cmp(&b.len());
    }
    let (mut a, mut b) = (collection::fields(a), collection::fields(b));
    for ty in types {
        // A type can have thousands of fields more.
        if a.is_done() && b.is_done() {
            break;
        }
        match optional(ty, a.next_lenient(), b.next_lenient()) {
            Ordering::Equal => {}
            decided => return decided,
        }
    }
    Ordering::Equal
}

fn vectors(elem: &CqlType, mut a: VectorElements<'_>, mut b: VectorElements<'_>) -> Ordering {
    loop {
        let (x, y) = (a.next().and_then(Result::ok), b.next().and_then(Result::ok));
        if x.is_none() && y.is_none() {
            return Ordering::Equal;
        }
        match optional(elem, x, y) {
            Ordering::Equal => {}
            decided => return decided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn missing_fields_are_not_compared_one_by_one() {
        let (types, compared) = (vec![CqlType::Int; 4_000], Cell::new(0));
        let counted = || types.iter().inspect(|_| compared.set(compared.get() + 1));
        let field = |value: i32| collection::build_tuple([Some(value.to_be_bytes())]);
        let nulls = [0xff; 8];
        for (a, b, expected) in [
            (&field(1)[..], &field(1)[..], Ordering::Equal),
            (&field(1), &field(2), Ordering::Less),
            (&nulls[..4], &nulls, Ordering::Equal),
            (&nulls, &field(1), Ordering::Less),
        ] {
            compared.set(0);
            assert_eq!(fields(counted(), a, b), expected);
            assert!(compared.get() <= 3, "{} fields", compared.get());
        }
    }
}
