//! The order of values: its laws, and known orders of each type.

use std::cmp::Ordering::{self, Equal, Greater, Less};

use num_bigint::BigInt;
use proptest::collection::vec;
use proptest::prelude::*;

use super::strategy::{any_type, big_int, typed_bytes};
use crate::types::{CqlType, Decimal, Value, compare};

fn assert_ascending(ty: &CqlType, ascending: &[Vec<u8>]) {
    for (i, a) in ascending.iter().enumerate() {
        for (j, b) in ascending.iter().enumerate() {
            assert_eq!(compare(ty, a, b), i.cmp(&j), "{ty}: {a:x?} and {b:x?}");
        }
    }
}

fn assert_ascending_values(ty: &CqlType, values: impl IntoIterator<Item = Value>) {
    let mut bytes: Vec<_> = values.into_iter().map(|value| value.encode(ty).unwrap().unwrap()).collect();
    if ty.allows_empty() && !bytes[0].is_empty() {
        bytes.insert(0, Vec::new());
    }
    assert_ascending(ty, &bytes);
}

fn assert_laws(ty: &CqlType, a: &[u8], b: &[u8], c: &[u8]) -> Result<(), TestCaseError> {
    prop_assert_eq!(compare(ty, a, a), Equal);
    let (ab, bc, ac) = (compare(ty, a, b), compare(ty, b, c), compare(ty, a, c));
    prop_assert_eq!(compare(ty, b, a), ab.reverse());
    if ab == bc {
        prop_assert_eq!(ac, ab);
    }
    if ab == Equal {
        prop_assert_eq!(ac, bc);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4 * ProptestConfig::default().cases))]

    #[test]
    fn laws_hold_for_values((ty, [a, b, c]) in typed_bytes::<3>()) {
        assert_laws(&ty, &a, &b, &c)?;
        // Empty comes before everything.
        if !a.is_empty() {
            prop_assert_eq!(compare(&ty, b"", &a), Less);
        }
    }

    #[test]
    fn laws_hold_for_foreign_bytes(
        ty in any_type(),
        bytes in prop::array::uniform3(vec(prop_oneof![4 => Just(0u8), 2 => 1u8..5, 1 => any::<u8>()], 0..24)),
    ) {
        assert_laws(&ty, &bytes[0], &bytes[1], &bytes[2])?;
    }

    #[test]
    fn integers_order_as_numbers(a: i64, b: i64) {
        prop_assert_eq!(compare(&CqlType::Bigint, &a.to_be_bytes(), &b.to_be_bytes()), a.cmp(&b));
        let (a, b) = (a as i32, b as i32);
        prop_assert_eq!(compare(&CqlType::Int, &a.to_be_bytes(), &b.to_be_bytes()), a.cmp(&b));
        let (a, b) = (a as i8, b as i8);
        prop_assert_eq!(compare(&CqlType::Tinyint, &a.to_be_bytes(), &b.to_be_bytes()), a.cmp(&b));
    }

    #[test]
    fn varints_order_as_numbers(a in vec(any::<u8>(), 1..12), b in vec(any::<u8>(), 1..12), pad in 0usize..3) {
        let number = BigInt::from_signed_bytes_be;
        prop_assert_eq!(compare(&CqlType::Varint, &a, &b), number(&a).cmp(&number(&b)));
        // Superfluous sign bytes change nothing.
        let mut padded = vec![if a[0] >= 0x80 { 0xff } else { 0 }; pad];
        padded.extend_from_slice(&a);
        prop_assert_eq!(compare(&CqlType::Varint, &a, &padded), Equal);
    }

    #[test]
    fn decimals_order_as_numbers(
        (x, y) in (big_int(), big_int()), (a, b) in (-40i32..40, -40i32..40), same_number: bool,
    ) {
        // The same number at another scale, or another number.
        let y = if same_number && b >= a { &x * BigInt::from(10).pow((b - a) as u32) } else { y };
        let expected = (&x * BigInt::from(10).pow((40 - a) as u32)).cmp(&(&y * BigInt::from(10).pow((40 - b) as u32)));
        let bytes = |decimal: Decimal| { let mut out = Vec::new(); decimal.write_to(&mut out); out };
        let (x, y) = (bytes(Decimal::new(a, x)), bytes(Decimal::new(b, y)));
        prop_assert_eq!(compare(&CqlType::Decimal, &x, &y), expected);
    }

    #[test]
    fn doubles_order_by_total_order(a: u64, b: u64) {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        let expected = if a.is_nan() || b.is_nan() { a.is_nan().cmp(&b.is_nan()) } else { a.total_cmp(&b) };
        prop_assert_eq!(compare(&CqlType::Double, &a.to_be_bytes(), &b.to_be_bytes()), expected);
    }

    #[test]
    fn floats_order_by_total_order(a: u32, b: u32) {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        let expected = if a.is_nan() || b.is_nan() { a.is_nan().cmp(&b.is_nan()) } else { a.total_cmp(&b) };
        prop_assert_eq!(compare(&CqlType::Float, &a.to_be_bytes(), &b.to_be_bytes()), expected);
    }
}

#[test]
fn floats_with_special_values() {
    let nan_with_sign = Value::Double(f64::from_bits(0xfff8_0000_0000_0001));
    let ascending = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, f64::MIN_POSITIVE, 1.5, f64::INFINITY].map(Value::Double);
    assert_ascending_values(&CqlType::Double, ascending.into_iter().chain([nan_with_sign]));
    let ascending = [f32::NEG_INFINITY, -1.5, -0.0, 0.0, 1.5, f32::INFINITY, f32::NAN].map(Value::Float);
    assert_ascending_values(&CqlType::Float, ascending);
}

#[test]
fn decimals_with_huge_exponents_are_compared_without_expanding_them() {
    let ascending = [
        Decimal::new(i32::MIN, -1),
        Decimal::new(i32::MIN + 1, -1),
        Decimal::new(0, -1),
        Decimal::new(i32::MAX, -1),
        Decimal::new(77, 0),
        Decimal::new(i32::MAX, 1),
        Decimal::new(i32::MAX, 2),
        Decimal::new(i32::MAX - 1, 1),
        Decimal::new(0, 1),
        Decimal::new(1, 11),
        Decimal::new(i32::MIN, 1),
        Decimal::new(i32::MIN, 10),
    ];
    assert_ascending_values(&CqlType::Decimal, ascending.map(Value::Decimal));
}

#[test]
fn timeuuids_order_by_time_then_signed_bytes() {
    let uuid = |text: &str| text.parse().map(Value::Uuid).unwrap();
    assert_ascending_values(
        &CqlType::Timeuuid,
        [
            uuid("ffffffff-0000-1000-8000-000000000000"),
            uuid("00000000-0001-1000-8000-000000000000"),
            uuid("00000000-0000-1001-8000-000000000000"),
        ],
    );
    assert_ascending_values(
        &CqlType::Timeuuid,
        [
            uuid("00000000-0000-1001-8000-000000000080"),
            uuid("00000000-0000-1001-8000-0000000000ff"),
            uuid("00000000-0000-1001-8000-000000000000"),
            uuid("00000000-0000-1001-8000-00000000007f"),
            uuid("00000000-0000-1001-0000-000000000000"),
        ],
    );
}

#[test]
fn uuids_order_by_version_then_time_or_bytes() {
    let uuid = |text: &str| text.parse().map(Value::Uuid).unwrap();
    assert_ascending_values(
        &CqlType::Uuid,
        [
            uuid("ffffffff-0000-1000-8000-000000000000"),
            uuid("00000000-0001-1000-8000-000000000000"),
            uuid("00000000-0001-1000-8000-00000000007f"),
            uuid("00000000-0001-1000-8000-000000000080"),
            uuid("00000000-0000-4000-8000-000000000000"),
            uuid("00000001-0000-4000-8000-000000000000"),
            uuid("f0000001-0000-4000-8000-000000000000"),
        ],
    );
}

#[test]
fn dates_and_addresses_order_unsigned() {
    assert_ascending_values(&CqlType::Date, [0, 1, 1 << 31, u32::MAX].map(Value::Date));
    let inet = |text: &str| Value::Inet(text.parse().unwrap());
    assert_ascending_values(&CqlType::Inet, [inet("::1"), inet("1.2.3.4"), inet("200.0.0.1"), inet("ff00::")]);
    assert_ascending_values(&CqlType::Boolean, [Value::Boolean(false), Value::Boolean(true)]);
}

#[test]
fn collections_order_by_elements_then_length() {
    let ints = |values: &[i32]| values.iter().map(|v| Value::Int(*v)).collect::<Vec<_>>();
    assert_ascending_values(
        &CqlType::list(CqlType::Int),
        [ints(&[]), ints(&[-1, 9]), ints(&[1]), ints(&[1, -5]), ints(&[2])].map(Value::List),
    );
    let map =
        |entries: &[(i32, i32)]| Value::Map(entries.iter().map(|(k, v)| (Value::Int(*k), Value::Int(*v))).collect());
    assert_ascending_values(
        &CqlType::map(CqlType::Int, CqlType::Int),
        [map(&[]), map(&[(1, 5)]), map(&[(1, 5), (2, 0)]), map(&[(1, 6)]), map(&[(2, -1)])],
    );
    assert_ascending_values(
        &CqlType::vector(CqlType::Int, 2),
        [ints(&[-1, 0]), ints(&[0, -1]), ints(&[0, 1])].map(Value::Vector),
    );
}

#[test]
fn tuples_order_by_field_with_null_first() {
    let ty = CqlType::tuple([CqlType::Int, CqlType::Text]);
    let text = |v: &str| Value::Text(v.to_owned());
    assert_ascending_values(
        &ty,
        [
            Value::Tuple(vec![Value::Null, text("b")]),
            Value::Tuple(vec![Value::Int(1), Value::Null]),
            Value::Tuple(vec![Value::Int(1), text("")]),
            Value::Tuple(vec![Value::Int(1), text("a")]),
            Value::Tuple(vec![Value::Int(2), Value::Null]),
        ],
    );
    let short = [0, 0, 0, 4, 0, 0, 0, 1];
    let long = Value::Tuple(vec![Value::Int(1), Value::Null]).encode(&ty).unwrap().unwrap();
    assert_eq!(compare(&ty, &short, &long), Ordering::Equal, "a missing field is null");
    assert_eq!(compare(&ty, &long, b""), Greater);
}
