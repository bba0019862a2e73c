//! Arbitrary types and arbitrary values of a type.

use std::sync::Arc;

use num_bigint::BigInt;
use proptest::collection::vec;
use proptest::prelude::*;
use uuid::Uuid;

use crate::types::{CqlType, Decimal, Duration, UserType, Value, temporal};

/// A native type other than counter.
pub fn scalar_type() -> impl Strategy<Value = CqlType> {
    proptest::sample::select(&CqlType::NATIVE[..]).prop_filter("not a counter", |ty| !ty.is_counter())
}

/// A type as a column may have it: frozen inside.
pub fn any_type() -> impl Strategy<Value = CqlType> {
    (nested_type(), any::<bool>()).prop_map(|(ty, frozen)| if frozen { ty } else { thaw(&ty) })
}

fn thaw(ty: &CqlType) -> CqlType {
    match ty {
        CqlType::List { elem, .. } => CqlType::List { elem: elem.clone(), frozen: false },
        CqlType::Set { elem, .. } => CqlType::Set { elem: elem.clone(), frozen: false },
        CqlType::Map { key, value, .. } => CqlType::Map { key: key.clone(), value: value.clone(), frozen: false },
        CqlType::Udt(user_type) => CqlType::udt(UserType { frozen: false, ..UserType::clone(user_type) }),
        other => other.clone(),
    }
}

fn ordered(ty: CqlType) -> CqlType {
    if ty.contains_duration() { CqlType::Text } else { ty }
}

fn nested_type() -> impl Strategy<Value = CqlType> {
    scalar_type().prop_recursive(3, 12, 4, |inner| {
        let field = ("[a-zA-Z\"][a-z0-9_ é]{0,5}", inner.clone());
        prop_oneof![
            inner.clone().prop_map(|t| CqlType::list(t).freeze()),
            inner.clone().prop_map(|t| CqlType::set(ordered(t)).freeze()),
            (inner.clone(), inner.clone()).prop_map(|(k, v)| CqlType::map(ordered(k), v).freeze()),
            vec(inner.clone(), 1..4).prop_map(CqlType::tuple),
            (inner, 1u32..4).prop_map(|(t, dim)| CqlType::vector(t, dim)),
            ("[a-zA-Z][a-z0-9_]{0,6}", vec(field, 1..4)).prop_map(|(name, fields)| {
                CqlType::udt(UserType { keyspace: "ks".to_owned(), name, fields: fields.into(), frozen: true })
            }),
        ]
    })
}

pub fn duration() -> impl Strategy<Value = Duration> {
    (any::<i32>(), any::<i32>(), any::<i64>(), any::<bool>()).prop_map(|(months, days, nanos, negative)| {
        if negative {
            Duration { months: months | i32::MIN, days: days | i32::MIN, nanos: nanos | i64::MIN }
        } else {
            Duration { months: months & i32::MAX, days: days & i32::MAX, nanos: nanos & i64::MAX }
        }
    })
}

pub fn big_int() -> impl Strategy<Value = BigInt> {
    prop_oneof![
        any::<i64>().prop_map(BigInt::from),
        (-300i32..300).prop_map(BigInt::from),
        vec(any::<u8>(), 0..24).prop_map(|bytes| BigInt::from_signed_bytes_be(&bytes)),
    ]
}

/// A value of type `ty`, never null.
pub fn value_of(ty: &CqlType) -> BoxedStrategy<Value> {
    match ty {
        CqlType::Ascii => "[ -~]{0,6}".prop_map(Value::Text).boxed(),
        CqlType::Text => ".{0,6}".prop_map(Value::Text).boxed(),
        CqlType::Blob | CqlType::Custom(_) => vec(any::<u8>(), 0..8).prop_map(Value::Blob).boxed(),
        CqlType::Empty => Just(Value::Empty).boxed(),
        CqlType::Boolean => any::<bool>().prop_map(Value::Boolean).boxed(),
        CqlType::Tinyint => any::<i8>().prop_map(Value::Tinyint).boxed(),
        CqlType::Smallint => any::<i16>().prop_map(Value::Smallint).boxed(),
        CqlType::Int => prop_oneof![any::<i32>(), -3i32..3].prop_map(Value::Int).boxed(),
        CqlType::Bigint | CqlType::Counter => any::<i64>().prop_map(Value::Bigint).boxed(),
        CqlType::Varint => big_int().prop_map(Value::Varint).boxed(),
        CqlType::Decimal => (prop_oneof![any::<i32>(), -5i32..40], big_int())
            .prop_map(|(scale, unscaled)| Value::Decimal(Decimal { scale, unscaled }))
            .boxed(),
        CqlType::Float => any::<u32>().prop_map(|bits| Value::Float(f32::from_bits(bits))).boxed(),
        CqlType::Double => any::<u64>().prop_map(|bits| Value::Double(f64::from_bits(bits))).boxed(),
        CqlType::Uuid => any::<u128>().prop_map(|bits| Value::Uuid(Uuid::from_u128(bits))).boxed(),
        CqlType::Timeuuid => {
            any::<u128>().prop_map(|bits| Value::Uuid(Uuid::from_u128(bits & !(0xf << 76) | 1 << 76))).boxed()
        }
        CqlType::Inet => prop_oneof![
            any::<[u8; 4]>().prop_map(|octets| Value::Inet(octets.into())),
            any::<[u8; 16]>().prop_map(|octets| Value::Inet(octets.into())),
        ]
        .boxed(),
        CqlType::Date => any::<u32>().prop_map(Value::Date).boxed(),
        CqlType::Time => (0..temporal::NANOS_PER_DAY).prop_map(Value::Time).boxed(),
        CqlType::Timestamp => any::<i64>().prop_map(Value::Timestamp).boxed(),
        CqlType::Duration => duration().prop_map(Value::Duration).boxed(),
        CqlType::List { elem, .. } => vec(value_of(elem), 0..4).prop_map(Value::List).boxed(),
        CqlType::Set { elem, .. } => vec(value_of(elem), 0..4).prop_map(Value::Set).boxed(),
        CqlType::Map { key, value, .. } => vec((value_of(key), value_of(value)), 0..4).prop_map(Value::Map).boxed(),
        CqlType::Vector { elem, dim } => vec(value_of(elem), *dim as usize).prop_map(Value::Vector).boxed(),
        CqlType::Tuple(types) => fields(types.iter()).prop_map(Value::Tuple).boxed(),
        CqlType::Udt(user_type) => fields(user_type.fields.iter().map(|(_, ty)| ty)).prop_map(Value::Udt).boxed(),
    }
}

fn fields<'t>(types: impl Iterator<Item = &'t CqlType>) -> BoxedStrategy<Vec<Value>> {
    types.map(|ty| prop_oneof![4 => value_of(ty), 1 => Just(Value::Null)]).collect::<Vec<_>>().boxed()
}

/// A type and `N` values of it, serialised.
pub fn typed_bytes<const N: usize>() -> impl Strategy<Value = (CqlType, [Vec<u8>; N])> {
    any_type().prop_flat_map(|ty| {
        let shared = Arc::new(ty);
        let of_type = shared.clone();
        let bytes = value_of(&shared).prop_map(move |value| value.encode(&of_type).unwrap().unwrap());
        let all = proptest::collection::vec(bytes, N).prop_map(|all| <[Vec<u8>; N]>::try_from(all).unwrap());
        (Just(CqlType::clone(&shared)), all)
    })
}
