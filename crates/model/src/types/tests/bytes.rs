//! Encoding, decoding and validation agree; nothing panics on foreign bytes.

use std::borrow::Cow;

use proptest::collection::vec;
use proptest::prelude::*;

use super::strategy::{any_type, big_int, duration, typed_bytes, value_of};
use crate::types::{
    CqlNotation, CqlType, Decimal, Duration, JsonNotation, NO_LIMIT, Value, canonical, collection, compare, push_text,
    validate, vint,
};

proptest! {
    #[test]
    fn encoded_values_are_valid_and_decode_to_themselves(
        (ty, value) in any_type().prop_flat_map(|ty| { let value = value_of(&ty); (Just(ty), value) })
    ) {
        let bytes = value.encode(&ty).unwrap().unwrap();
        prop_assert_eq!(validate(&ty, &bytes), Ok(()));
        let decoded = Value::decode(&ty, &bytes).unwrap();
        prop_assert_eq!(decoded.encode(&ty).unwrap().unwrap(), bytes.clone());
        prop_assert!(matches!(canonical(&ty, &bytes), Ok(Cow::Borrowed(_))), "what is built is canonical");
    }

    #[test]
    fn foreign_bytes_fail_without_panic(ty in any_type(), bytes in vec(any::<u8>(), 0..40)) {
        let valid = validate(&ty, &bytes).is_ok();
        prop_assert_eq!(Value::decode(&ty, &bytes).is_ok(), valid);
        let json = push_text(JsonNotation::SHOWN, &ty, Some(&bytes), NO_LIMIT, &mut String::new());
        prop_assert_eq!(json.is_ok(), valid);
        prop_assert_eq!(push_text(CqlNotation, &ty, Some(&bytes), NO_LIMIT, &mut String::new()).is_ok(), valid);
    }

    #[test]
    fn damaged_bytes_fail_without_panic(
        (ty, [bytes]) in typed_bytes::<1>(), cut: prop::sample::Index, flip: prop::sample::Index, byte: u8,
    ) {
        let shorter = &bytes[..cut.index(bytes.len() + 1)];
        prop_assert_eq!(Value::decode(&ty, shorter).is_ok(), validate(&ty, shorter).is_ok());
        let mut changed = bytes.clone();
        if !changed.is_empty() {
            let at = flip.index(changed.len());
            changed[at] = byte;
        }
        if let Ok(value) = Value::decode(&ty, &changed) {
            value.to_cql_literal(&ty);
            value.to_json_string(&ty);
            let again = value.encode(&ty).unwrap().unwrap();
            prop_assert_eq!(validate(&ty, &again), Ok(()));
            let once = canonical(&ty, &changed).unwrap();
            prop_assert_eq!(&canonical(&ty, &once).unwrap(), &once);
        }
        compare(&ty, &changed, &bytes);
        compare(&ty, shorter, &bytes);
    }

    #[test]
    fn vints_round_trip(value: u64, shift in 0u32..64) {
        let value = value >> shift;
        let mut out = Vec::new();
        vint::write_unsigned(value, &mut out);
        prop_assert_eq!(out.len(), vint::unsigned_len(value));
        let mut rest = &out[..];
        prop_assert_eq!(vint::read_unsigned(&mut rest), Some(value));
        prop_assert!(rest.is_empty());
        prop_assert_eq!(vint::read_unsigned(&mut &out[..out.len() - 1]), None);

        let signed = value as i64;
        out.clear();
        vint::write_signed(signed, &mut out);
        prop_assert_eq!(vint::read_signed(&mut &out[..]), Some(signed));
    }

    #[test]
    fn durations_round_trip(value in duration()) {
        let mut out = Vec::new();
        value.write_to(&mut out);
        prop_assert_eq!(Duration::from_bytes(&out), Ok(value));
    }

    #[test]
    fn decimals_round_trip(scale: i32, unscaled in big_int()) {
        let value = Decimal { scale, unscaled };
        let mut out = Vec::new();
        value.write_to(&mut out);
        prop_assert_eq!(Decimal::from_bytes(&out), Some(value));
    }

    #[test]
    fn built_sets_are_sorted_without_duplicates(values in vec(-20i32..20, 0..30)) {
        let bytes = collection::build_set(&CqlType::Int, values.iter().map(|v| v.to_be_bytes()).collect());
        let expected: std::collections::BTreeSet<i32> = values.into_iter().collect();
        let got: Vec<i32> = collection::elements(&bytes).unwrap()
            .map(|e| i32::from_be_bytes(e.unwrap().try_into().unwrap())).collect();
        prop_assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn built_maps_are_sorted_and_the_last_value_stays(entries in vec((-10i32..10, any::<u8>()), 0..30)) {
        let bytes = collection::build_map(
            &CqlType::Int, entries.iter().map(|(k, v)| (k.to_be_bytes(), [*v])).collect());
        let expected: std::collections::BTreeMap<i32, u8> = entries.into_iter().collect();
        let got: Vec<(i32, u8)> = collection::pairs(&bytes).unwrap().map(|pair| {
            let (k, v) = pair.unwrap();
            (i32::from_be_bytes(k.try_into().unwrap()), v[0])
        }).collect();
        prop_assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn vints_have_the_bytes_of_the_format() {
    let cases: [(u64, &[u8]); 8] = [
        (0, &[0x00]),
        (127, &[0x7f]),
        (128, &[0x80, 0x80]),
        (256, &[0x81, 0x00]),
        (16383, &[0xbf, 0xff]),
        (16384, &[0xc0, 0x40, 0x00]),
        ((1 << 56) - 1, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (u64::MAX, &[0xff; 9]),
    ];
    for (value, bytes) in cases {
        let mut out = Vec::new();
        vint::write_unsigned(value, &mut out);
        assert_eq!(out, bytes, "{value}");
    }
}

#[test]
fn values_have_the_bytes_of_the_protocol() {
    let cases: [(CqlType, Value, &[u8]); 9] = [
        (CqlType::Int, Value::Int(-42), &[0xff, 0xff, 0xff, 0xd6]),
        (CqlType::Varint, Value::Varint(128.into()), &[0x00, 0x80]),
        (CqlType::Decimal, Value::Decimal(Decimal::new(3, 12345678)), &[0, 0, 0, 3, 0x00, 0xbc, 0x61, 0x4e]),
        (CqlType::Duration, Value::Duration(Duration { months: 1, days: 2, nanos: -0 }), &[2, 4, 0]),
        (CqlType::Date, Value::Date(1 << 31), &[0x80, 0, 0, 0]),
        (
            CqlType::list(CqlType::Tinyint),
            Value::List(vec![Value::Tinyint(3), Value::Tinyint(-1)]),
            &[0, 0, 0, 2, 0, 0, 0, 1, 3, 0, 0, 0, 1, 0xff],
        ),
        (
            CqlType::tuple([CqlType::Tinyint, CqlType::Text]),
            Value::Tuple(vec![Value::Null, Value::Text("a".to_owned())]),
            &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, b'a'],
        ),
        (
            CqlType::vector(CqlType::Boolean, 2),
            Value::Vector(vec![Value::Boolean(true), Value::Boolean(false)]),
            &[1, 0],
        ),
        (
            CqlType::vector(CqlType::Text, 2),
            Value::Vector(vec![Value::Text("ab".to_owned()), Value::Text(String::new())]),
            &[2, b'a', b'b', 0],
        ),
    ];
    for (ty, value, bytes) in cases {
        assert_eq!(value.encode(&ty).unwrap().unwrap(), bytes, "{ty}");
        assert_eq!(Value::decode(&ty, bytes).unwrap(), value, "{ty}");
    }
}

#[test]
fn wrong_values_are_refused() {
    let list = CqlType::list(CqlType::Int);
    let cases: [(CqlType, &[u8], &str); 15] = [
        (CqlType::Int, &[1, 2, 3, 4, 5], "Expected 4 bytes for a value of type int, got 5"),
        (CqlType::Bigint, &[1], "Expected 8 bytes for a value of type bigint, got 1"),
        (CqlType::Tinyint, &[1, 2], "Expected 1 byte for a value of type tinyint, got 2"),
        (CqlType::Text, b"ab\xff", "non-UTF8 character in a UTF8 string, at byte offset 2"),
        (CqlType::Ascii, "é".as_bytes(), "non-ASCII character"),
        (CqlType::Timeuuid, &[0x40; 16], "Unsupported UUID version (4)"),
        (CqlType::Time, &86_400_000_000_000i64.to_be_bytes(), "out of range"),
        (CqlType::Inet, &[1, 2, 3], "Expected 4 or 16 bytes"),
        (CqlType::Decimal, &[1, 2, 3], "at least 4 bytes"),
        (CqlType::Duration, &[], "Not enough bytes"),
        (CqlType::Duration, &[1, 2, 0], "same sign"),
        (list.clone(), &[], "Not enough bytes"),
        (list.clone(), &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], "null is not supported inside collections"),
        (list.clone(), &[0, 0, 0, 0, 7], "Unexpected 1 bytes"),
        (CqlType::tuple([CqlType::Int]), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "Too many fields"),
    ];
    for (ty, bytes, why) in cases {
        let error = validate(&ty, bytes).expect_err(why).to_string();
        assert!(error.contains(why), "{ty}: {error}");
    }
    let nested = validate(&list, &[0, 0, 0, 1, 0, 0, 0, 1, 9]).unwrap_err().to_string();
    assert_eq!(nested, "In an element of list<int>: Expected 4 bytes for a value of type int, got 1");
}

#[test]
fn a_huge_count_costs_nothing() {
    let ty = CqlType::list(CqlType::Int);
    assert!(Value::decode(&ty, &[0x7f, 0xff, 0xff, 0xff]).is_err());
}

#[test]
fn empty_values_are_legal_where_they_always_were() {
    for ty in CqlType::NATIVE {
        let legal = !matches!(ty, CqlType::Duration | CqlType::Counter);
        assert_eq!(validate(&ty, b"").is_ok(), legal, "{ty}");
        assert_eq!(ty.allows_empty(), legal, "{ty}");
    }
    assert_eq!(Value::decode(&CqlType::Int, b""), Ok(Value::Empty));
    assert_eq!(Value::decode(&CqlType::Text, b""), Ok(Value::Text(String::new())));
}

#[test]
fn sets_and_maps_are_put_in_order_at_every_level() {
    let set = CqlType::set(CqlType::Tinyint);
    let ty = CqlType::tuple([CqlType::map(CqlType::Tinyint, set.freeze()), CqlType::list(set)]).freeze();
    let unordered = collection::build_list([[2u8], [1], [2]]);
    let ordered = collection::build_list([[1u8], [2]]);
    let entries = |entries: &[(u8, &Vec<u8>)]| collection::build_map_sorted(entries.iter().map(|(k, v)| ([*k], *v)));
    let sent = collection::build_tuple([
        Some(entries(&[(3, &ordered), (1, &unordered), (3, &unordered)])),
        Some(collection::build_list([&unordered])),
    ]);
    let stored = collection::build_tuple([
        Some(entries(&[(1, &ordered), (3, &ordered)])),
        Some(collection::build_list([&ordered])),
    ]);
    assert_eq!(canonical(&ty, &sent).unwrap(), stored);
    assert!(matches!(canonical(&ty, &stored), Ok(Cow::Borrowed(_))));
    assert!(canonical(&ty, &sent[..sent.len() - 1]).is_err());
}

#[test]
fn short_tuples_have_null_fields() {
    let ty = CqlType::tuple([CqlType::Tinyint, CqlType::Int]);
    let decoded = Value::decode(&ty, &[0, 0, 0, 1, 5]).unwrap();
    assert_eq!(decoded, Value::Tuple(vec![Value::Tinyint(5), Value::Null]));
}

#[test]
fn whole_numbers_pass_as_any_number_that_holds_them() {
    let value = Value::Int(300);
    assert_eq!(value.encode(&CqlType::Bigint).unwrap().unwrap(), 300i64.to_be_bytes());
    assert_eq!(value.encode(&CqlType::Double).unwrap().unwrap(), 300f64.to_be_bytes());
    assert!(value.encode(&CqlType::Tinyint).is_err());
    assert!(value.encode(&CqlType::Text).is_err());
}
