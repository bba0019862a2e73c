//! Values as text: constants of CQL and JSON.

use proptest::prelude::*;

use super::strategy::{any_type, scalar_type, value_of};
use crate::types::collection::{self, build_tuple};
use crate::types::{
    AbsentFields, CqlNotation, CqlType, Decimal, Duration, Json, JsonNotation, MAX_ABSENT_BYTES, NO_LIMIT, Quoted,
    UserType, Value, parse_scalar, push_text, temporal,
};

/// Whether JSON has every value of the type: it has no NaN, and no two members of one name.
fn json_has_all(ty: &CqlType) -> bool {
    !ty.any(&mut |ty| match ty {
        CqlType::Float | CqlType::Double => true,
        CqlType::Udt(u) => u
            .fields
            .iter()
            .enumerate()
            .any(|(i, (name, _))| u.fields[..i].iter().any(|(other, _)| other.eq_ignore_ascii_case(name))),
        _ => false,
    })
}

/// A value of a tuple or user type without its last fields; others unchanged.
fn shortened(ty: &CqlType, bytes: &[u8], missing: usize) -> Vec<u8> {
    if bytes.is_empty() || !matches!(ty, CqlType::Tuple(_) | CqlType::Udt(_)) {
        return bytes.to_vec();
    }
    let fields: Vec<Option<&[u8]>> = collection::fields(bytes).map(Result::unwrap).collect();
    build_tuple(fields.iter().take(fields.len().saturating_sub(missing)).copied())
}

fn joined(brackets: [&str; 2], parts: impl Iterator<Item = String>) -> String {
    format!("{}{}{}", brackets[0], parts.collect::<Vec<_>>().join(", "), brackets[1])
}

/// The JSON text of a tree of decoded values.
fn json_of(value: &Value, ty: &CqlType) -> String {
    match (value, ty) {
        (Value::List(values), CqlType::List { elem, .. })
        | (Value::Set(values), CqlType::Set { elem, .. })
        | (Value::Vector(values), CqlType::Vector { elem, .. }) => {
            joined(["[", "]"], values.iter().map(|value| json_of(value, elem)))
        }
        (Value::Map(entries), CqlType::Map { key, value, .. }) => {
            let entry = |(k, v): &(Value, Value)| {
                let mut name = json_of(k, key);
                if !name.starts_with('"') {
                    name = Json::Text(name).to_string();
                }
                format!("{name}: {}", json_of(v, value))
            };
            joined(["{", "}"], entries.iter().map(entry))
        }
        (Value::Tuple(values), CqlType::Tuple(types)) => {
            joined(["[", "]"], values.iter().zip(types.iter()).map(|(value, ty)| json_of(value, ty)))
        }
        (Value::Udt(values), CqlType::Udt(user_type)) => {
            let field = |(value, (name, ty)): (&Value, &(String, CqlType))| {
                let has_capitals = name.chars().any(|c| c.is_ascii_uppercase());
                let name = if has_capitals { format!("\"{name}\"") } else { name.clone() };
                format!("{}: {}", Json::Text(name), json_of(value, ty))
            };
            joined(["{", "}"], values.iter().zip(&user_type.fields).map(field))
        }
        (Value::Null, _) => "null".to_owned(),
        (scalar, ty) => match ty.has_parts() {
            true => "\"\"".to_owned(),
            false => scalar.to_json_string(ty),
        },
    }
}

/// The CQL literal of a tree of decoded values.
fn literal_of(value: &Value, ty: &CqlType) -> String {
    match (value, ty) {
        (Value::List(values), CqlType::List { elem, .. }) | (Value::Vector(values), CqlType::Vector { elem, .. }) => {
            joined(["[", "]"], values.iter().map(|value| literal_of(value, elem)))
        }
        (Value::Set(values), CqlType::Set { elem, .. }) => {
            joined(["{", "}"], values.iter().map(|value| literal_of(value, elem)))
        }
        (Value::Map(entries), CqlType::Map { key, value, .. }) => {
            let entry = |(k, v): &(Value, Value)| format!("{}: {}", literal_of(k, key), literal_of(v, value));
            joined(["{", "}"], entries.iter().map(entry))
        }
        (Value::Tuple(values), CqlType::Tuple(types)) => {
            joined(["(", ")"], values.iter().zip(types.iter()).map(|(value, ty)| literal_of(value, ty)))
        }
        (Value::Udt(values), CqlType::Udt(user_type)) => {
            let field = |(value, (name, ty)): (&Value, &(String, CqlType))| {
                format!("{}: {}", Quoted(name), literal_of(value, ty))
            };
            joined(["{", "}"], values.iter().zip(&user_type.fields).map(field))
        }
        (scalar, ty) => match ty.has_parts() {
            true => "null".to_owned(),
            false => scalar.to_cql_literal(ty),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4 * ProptestConfig::default().cases))]

    #[test]
    fn scalar_literals_round_trip(
        (ty, value) in scalar_type().prop_flat_map(|ty| { let value = value_of(&ty); (Just(ty), value) })
    ) {
        let literal = value.to_cql_literal(&ty);
        let text = match literal.strip_prefix('\'') {
            Some(quoted) => quoted.strip_suffix('\'').unwrap().replace("''", "'"),
            None => literal,
        };
        let bytes = value.encode(&ty).unwrap().unwrap();
        let is_nan = |v: &Value| matches!(v, Value::Float(v) if v.is_nan()) || matches!(v, Value::Double(v) if v.is_nan());
        if is_nan(&value) {
            prop_assert!(is_nan(&Value::from_text(&ty, &text).unwrap()));
        } else {
            prop_assert_eq!(parse_scalar(&ty, &text).unwrap(), bytes);
        }
    }

    #[test]
    fn json_values_round_trip(
        (ty, value) in any_type()
            .prop_filter("JSON has all values", json_has_all)
            .prop_flat_map(|ty| { let value = value_of(&ty); (Just(ty), value) })
    ) {
        let text = value.to_json_string(&ty);
        let json = Json::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        let again = json.encode(&ty, &mut AbsentFields::default());
        prop_assert_eq!(again, value.encode(&ty), "{} {}", ty, text);
    }

    #[test]
    fn bytes_are_written_as_their_decoded_values_are(
        (ty, value) in any_type().prop_flat_map(|ty| { let value = value_of(&ty); (Just(ty), value) }),
        missing in 0usize..4,
    ) {
        let bytes = shortened(&ty, &value.encode(&ty).unwrap().unwrap(), missing);
        let decoded = Value::decode(&ty, &bytes).unwrap();
        let (mut json, mut literal) = (String::new(), String::new());
        push_text(JsonNotation::SHOWN, &ty, Some(&bytes), NO_LIMIT, &mut json).unwrap();
        prop_assert_eq!(json, json_of(&decoded, &ty), "{}", ty);
        push_text(CqlNotation, &ty, Some(&bytes), NO_LIMIT, &mut literal).unwrap();
        prop_assert_eq!(literal, literal_of(&decoded, &ty), "{}", ty);
    }

    #[test]
    fn foreign_json_does_not_panic(ty in any_type(), text in "\\PC{0,20}|[\\[\\]{}:,\"0-9eE.+\\-nulltrefas\\\\ ]{0,30}") {
        if let Ok(json) = Json::parse(&text) {
            prop_assert_eq!(Json::parse(&json.to_string()), Ok(json.clone()));
            let _ = json.encode(&ty, &mut AbsentFields::default());
        }
    }

    #[test]
    fn foreign_text_does_not_panic(ty in scalar_type(), text in "\\PC{0,20}|[-+0-9eE.:TZPYMDWHSmounsdwy µ]{0,20}") {
        let _ = parse_scalar(&ty, &text);
    }
}

#[test]
fn timestamps() {
    let base = 1_296_705_900_000; // 2011-02-03T04:05:00Z
    for (text, millis) in [
        ("1299038700000", 1_299_038_700_000),
        ("-5", -5),
        ("2011-02-03 04:05+0000", base),
        ("2011-02-03 04:05", base),
        ("2011-02-03T04:05", base),
        ("2011-02-03t04:05Z", base),
        ("2011-02-03 04:05:00 UTC", base),
        ("2011-02-03T04:05:00.000+00:00", base),
        ("2011-02-03T06:05:00+02", base),
        ("2011-02-03 00:35:00-0330", base),
        ("2011-02-03 04:05:01.5", base + 1_500),
        ("2011-02-03 04:05:01.25", base + 1_250),
        ("2011-2-3 4:5", base),
        ("2011-02-03", base - (4 * 60 + 5) * 60_000),
        ("2011-02-03+0000", base - (4 * 60 + 5) * 60_000),
        ("2011-02-03 +01:00", base - (5 * 60 + 5) * 60_000),
        ("1970-01-01", 0),
        ("1969-12-31 23:59:59.999Z", -1),
        ("2024-02-29T12:00:00.123Z", 1_709_208_000_123),
    ] {
        assert_eq!(temporal::parse_timestamp(text), Ok(millis), "{text}");
    }
    for wrong in [
        "",
        "now",
        "2011-02-03 04",
        "2011-02-03 04:05:06.1234",
        "2011-02-29",
        "2011-13-01",
        "2011-02-03 25:00",
        "2011-02-03 04:05 X",
        "2011-02-03 04:05+1",
        "2011-02-03T",
        "99999999999999999999",
    ] {
        assert!(temporal::parse_timestamp(wrong).is_err(), "{wrong}");
    }
    assert_eq!(temporal::format_timestamp(base + 7, 'T'), "2011-02-03T04:05:00.007Z");
    assert_eq!(temporal::format_timestamp(-1, ' '), "1969-12-31 23:59:59.999Z");
}

#[test]
fn dates_and_times() {
    for (text, days) in [
        ("1970-01-01", 1 << 31),
        ("1970-01-02", (1 << 31) + 1),
        ("2024-02-29", (1 << 31) + 19_782),
        ("1969-12-31", (1 << 31) - 1),
        ("2147483648", 1 << 31),
        ("0", 0),
        ("-5877641-06-23", 0),
        ("5881580-07-11", u32::MAX),
    ] {
        assert_eq!(temporal::parse_date(text), Ok(days), "{text}");
    }
    for wrong in ["", "-1", "4294967296", "2024-02-30", "5881580-07-12", "2024-02", "2024-02-29 ", "x"] {
        assert!(temporal::parse_date(wrong).is_err(), "{wrong}");
    }
    assert_eq!(temporal::format_date(0), "-5877641-06-23");
    assert_eq!(temporal::format_date((1 << 31) + 19_782), "2024-02-29");

    for (text, nanos) in [
        ("13:14:15.123456789", 47_655_123_456_789),
        ("13:14:15", 47_655_000_000_000),
        ("00:00:00.5", 500_000_000),
        ("86399999999999", 86_399_999_999_999),
    ] {
        assert_eq!(temporal::parse_time(text), Ok(nanos), "{text}");
    }
    for wrong in ["", "24:00:00", "13:14", "13:60:00", "13:14:15.", "13:14:15.1234567890", "-1", "86400000000000"] {
        assert!(temporal::parse_time(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn durations() {
    let of = |months, days, nanos| Duration { months, days, nanos };
    for (text, value) in [
        ("1y2mo3w4d5h6m7s8ms9us10ns", of(14, 25, 18_367_008_009_010)),
        ("1Y2MO3W4D", of(14, 25, 0)),
        ("-1d12h", of(0, -1, -43_200_000_000_000)),
        ("10µs", of(0, 0, 10_000)),
        ("0s", of(0, 0, 0)),
        ("P1Y2M3DT4H5M6S", of(14, 3, 14_706_000_000_000)),
        ("PT30M", of(0, 0, 1_800_000_000_000)),
        ("-P5W", of(0, -35, 0)),
        ("P0001-02-03T04:05:06", of(14, 3, 14_706_000_000_000)),
        ("-9223372036854775808ns", of(0, 0, i64::MIN)),
    ] {
        assert_eq!(text.parse(), Ok(value), "{text}");
    }
    for wrong in [
        "",
        "-",
        "P",
        "PT",
        "1",
        "1x",
        "1d1y",
        "1d1d",
        "1us1µs",
        "--1d",
        "9223372036854775808ns",
        "200000000y",
        "P1-2-3",
    ] {
        assert!(wrong.parse::<Duration>().is_err(), "{wrong}");
    }
    assert_eq!(of(14, 25, 18_367_008_009_010).to_string(), "1y2mo25d5h6m7s8ms9us10ns");
    assert_eq!(of(0, -1, 0).to_string(), "-1d");
    assert_eq!(of(0, 0, 0).to_string(), "0s");
}

#[test]
fn decimals() {
    for (text, scale, unscaled, shown) in [
        ("12345.678", 3, 12_345_678, "12345.678"),
        ("1e-3", 3, 1, "0.001"),
        ("-1.50", 2, -150, "-1.50"),
        ("+.5", 1, 5, "0.5"),
        ("5.", 0, 5, "5"),
        ("1E+10", -10, 1, "1E+10"),
        ("1.5e10", -9, 15, "1.5E+10"),
        ("0.0000001", 7, 1, "1E-7"),
        ("0", 0, 0, "0"),
        ("-0.5", 1, -5, "-0.5"),
        ("1e2147483648", i32::MIN, 1, "1E+2147483648"),
    ] {
        assert_eq!(text.parse::<Decimal>(), Ok(Decimal::new(scale, unscaled)), "{text}");
        assert_eq!(Decimal::new(scale, unscaled).to_string(), shown);
    }
    for wrong in ["", ".", "-", "1e", "e5", "1.2.3", "0x10", "--1", "-+1", "1e2147483649", "1e99999999999999999999"] {
        assert!(wrong.parse::<Decimal>().is_err(), "{wrong}");
    }
}

#[test]
fn scalars_that_are_refused() {
    for (ty, text) in [
        (CqlType::Int, "2147483648"),
        (CqlType::Int, ""),
        (CqlType::Int, "1.0"),
        (CqlType::Tinyint, "128"),
        (CqlType::Boolean, "yes"),
        (CqlType::Blob, "ca"),
        (CqlType::Blob, "0xc"),
        (CqlType::Blob, "0xzz"),
        (CqlType::Uuid, "123e4567e89b42d3a456426614174000"),
        (CqlType::Timeuuid, "123e4567-e89b-42d3-a456-426614174000"),
        (CqlType::Inet, "localhost"),
        (CqlType::Inet, "1.2.3"),
        (CqlType::Ascii, "é"),
        (CqlType::list(CqlType::Int), "[1]"),
    ] {
        assert!(parse_scalar(&ty, text).is_err(), "{ty} {text}");
    }
}

fn sample() -> (CqlType, Value) {
    let addr = CqlType::udt(UserType {
        keyspace: "ks".to_owned(),
        name: "addr".to_owned(),
        fields: vec![("street".to_owned(), CqlType::Text), ("No".to_owned(), CqlType::Int)].into(),
        frozen: true,
    });
    let ty = CqlType::map(CqlType::Int, CqlType::tuple([addr, CqlType::list(CqlType::Blob)])).freeze();
    let addr = Value::Udt(vec![Value::Text("o'\"x".to_owned()), Value::Null]);
    let pair = Value::Tuple(vec![addr, Value::List(vec![Value::Blob(vec![0xca, 0xfe]), Value::Blob(vec![])])]);
    (ty, Value::Map(vec![(Value::Int(7), pair)]))
}

#[test]
fn literals() {
    let (ty, value) = sample();
    assert_eq!(value.to_cql_literal(&ty), "{7: ({street: 'o''\"x', \"No\": null}, [0xcafe, 0x])}");
    for (ty, value, literal) in [
        (CqlType::Int, Value::Empty, "blobasint(0x)"),
        (CqlType::Double, Value::Double(f64::NEG_INFINITY), "-Infinity"),
        (CqlType::Double, Value::Double(1.0), "1.0"),
        (CqlType::Float, Value::Float(f32::NAN), "NaN"),
        (CqlType::Timestamp, Value::Timestamp(0), "'1970-01-01T00:00:00.000Z'"),
        (CqlType::Duration, Value::Duration(Duration { months: 1, days: 2, nanos: 0 }), "1mo2d"),
        (CqlType::set(CqlType::Int), Value::Set(vec![]), "{}"),
        (CqlType::vector(CqlType::Int, 1), Value::Vector(vec![Value::Int(1)]), "[1]"),
    ] {
        assert_eq!(value.to_cql_literal(&ty), literal);
    }
}

#[test]
fn json() {
    let (ty, value) = sample();
    let expected = r#"{"7": [{"street": "o'\"x", "\"No\"": null}, ["0xcafe", "0x"]]}"#;
    assert_eq!(value.to_json_string(&ty), expected);
    for (ty, value, json) in [
        (CqlType::Double, Value::Double(f64::NAN), "null"),
        (CqlType::Timestamp, Value::Timestamp(0), r#""1970-01-01 00:00:00.000Z""#),
        (CqlType::Text, Value::Text("a\n\u{1}".to_owned()), r#""a\n\u0001""#),
        (CqlType::Varint, Value::Varint(12.into()), "12"),
        (CqlType::Date, Value::Date(1 << 31), r#""1970-01-01""#),
        (
            CqlType::map(CqlType::Text, CqlType::Boolean),
            Value::Map(vec![(Value::Text("k".to_owned()), Value::Boolean(true))]),
            r#"{"k": true}"#,
        ),
    ] {
        assert_eq!(value.to_json_string(&ty), json);
    }
}

fn wide(fields: usize) -> CqlType {
    let fields = (0..fields).map(|n| (format!("f{n}"), CqlType::Int)).collect();
    CqlType::udt(UserType { keyspace: "ks".to_owned(), name: "wide".to_owned(), fields, frozen: true })
}

#[test]
fn json_that_leaves_out_many_fields_is_bounded() {
    const FIELDS: usize = 4_000;
    let most = MAX_ABSENT_BYTES / (4 * FIELDS);
    let list = CqlType::list(wide(FIELDS)).freeze();
    let objects = |count: usize| Json::List(vec![Json::Object(Vec::new()); count]);
    let bytes = objects(most).encode(&list, &mut AbsentFields::default()).unwrap().unwrap();
    assert_eq!(collection::count(&bytes), Ok(most));
    assert!(bytes.capacity() < 2 * MAX_ABSENT_BYTES + (1 << 16), "{} bytes", bytes.capacity());
    let refused = |json: Json, ty: &CqlType, absent: &mut AbsentFields| {
        let error = json.encode(ty, absent).expect_err("it is too long").to_string();
        assert!(error.contains("longer than the limit of 33554432 bytes"), "{error}");
    };
    refused(objects(most + 1), &list, &mut AbsentFields::default());
    refused(objects(500_000), &CqlType::set(wide(FIELDS)), &mut AbsentFields::default());
    let keys = Json::Object((0..most + 1).map(|n| (format!("{{\"f0\":{n}}}"), Json::Bool(true))).collect());
    refused(keys, &CqlType::map(wide(FIELDS), CqlType::Boolean), &mut AbsentFields::default());
    // The values of a row share the limit.
    let mut absent = AbsentFields::default();
    assert!(objects(most / 2).encode(&list, &mut absent).is_ok());
    assert!(objects(most / 2).encode(&list, &mut absent).is_ok());
    refused(objects(most / 2), &list, &mut absent);
}

#[test]
fn json_of_some_fields_is_the_value_of_all() {
    let ty = wide(40);
    for (text, given) in [
        ("{}", vec![]),
        (r#"{"f3": 7}"#, vec![(3, 7)]),
        (r#"{"F39": 1, "f0": 2, "f20": 3, "f0": 4}"#, vec![(0, 4), (20, 3), (39, 1)]),
        (r#"{"f1": 5, "f2": null}"#, vec![(1, 5)]),
    ] {
        let mut values = vec![Value::Null; 40];
        given.into_iter().for_each(|(at, value): (usize, i32)| values[at] = Value::Int(value));
        let bytes = Json::parse(text).unwrap().encode(&ty, &mut AbsentFields::default());
        assert_eq!(bytes, Value::Udt(values).encode(&ty), "{text}");
    }
}
