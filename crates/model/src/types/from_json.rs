//! Values from JSON, for INSERT JSON and fromJson. The output of [`Value::to_json_string`] is read
//! as the same value, and every scalar may also be a string.

use num_bigint::BigInt;

use super::{CqlType, Decimal, Json, Places, Value, ValueError};

/// A number with a larger exponent would have so many digits. No machine integer has that many.
const MAX_EXPONENT: u32 = 10_000;

impl Value {
    /// The value of type `ty` for `json`. Null is [`Value::Null`]; inside of a collection it is an
    /// error.
    pub fn from_json(ty: &CqlType, json: &Json) -> Result<Value, ValueError> {
        if *json == Json::Null {
            return Ok(Value::Null);
        }
        match ty {
            CqlType::Ascii | CqlType::Text => match json {
                Json::Text(text) => Value::from_text(ty, text),
                _ => Err(ValueError::new(format!("{ty} must be represented as string in JSON, instead got '{json}'"))),
            },
            CqlType::Tinyint | CqlType::Smallint | CqlType::Int | CqlType::Bigint | CqlType::Counter => {
                integer(ty, json)
            }
            CqlType::Varint => match json {
                Json::Number(text) => whole(text)?.map(Value::Varint).ok_or_else(|| {
                    ValueError::new(format!("Incorrect JSON value for varint type: {json} is not a whole number"))
                }),
                _ => scalar(ty, json, true),
            },
            CqlType::Decimal | CqlType::Float | CqlType::Double => scalar(ty, json, true),
            CqlType::Boolean => match json {
                Json::Bool(value) => Ok(Value::Boolean(*value)),
                Json::Text(text) if text.trim().eq_ignore_ascii_case("true") => Ok(Value::Boolean(true)),
                Json::Text(text) if text.trim().eq_ignore_ascii_case("false") => Ok(Value::Boolean(false)),
                _ => Err(ValueError::new(format!("Invalid JSON object {json}"))),
            },
            CqlType::Timestamp => match json {
                Json::Number(_) => match integer(&CqlType::Bigint, json)? {
                    Value::Bigint(millis) => Ok(Value::Timestamp(millis)),
                    other => Ok(other),
                },
                Json::Text(text) => Value::from_text(ty, text),
                _ => Err(ValueError::new("timestamp_type must be represented as string or integer")),
            },
            CqlType::List { elem, .. } => Ok(Value::List(elements(ty, elem, json)?)),
            CqlType::Set { elem, .. } => Ok(Value::Set(elements(ty, elem, json)?)),
            CqlType::Vector { elem, .. } => Ok(Value::Vector(elements(ty, elem, json)?)),
            CqlType::Map { key, value, .. } => {
                let json = unpacked(json)?;
                let Json::Object(members) = json.as_ref() else { return Err(must_be(ty, "Object")) };
                let entry = |(name, member): &(String, Json)| {
                    Ok((key_from_json(key, name)?, not_null(Value::from_json(value, member)?)?))
                };
                Ok(Value::Map(members.iter().map(entry).collect::<Result<_, ValueError>>()?))
            }
            CqlType::Tuple(types) => {
                let json = unpacked(json)?;
                let Json::List(values) = json.as_ref() else { return Err(must_be(ty, "Array")) };
                if values.len() > types.len() {
                    let (got, most) = (values.len(), types.len());
                    return Err(ValueError::new(format!("Too many values ({got}) for tuple with size {most}")));
                }
                let fields = values.iter().zip(types.iter()).map(|(value, ty)| Value::from_json(ty, value));
                Ok(Value::Tuple(fields.collect::<Result<_, _>>()?))
            }
            CqlType::Udt(user_type) => {
                let json = unpacked(json)?;
                let Json::Object(members) = json.as_ref() else { return Err(must_be(ty, "Object")) };
                let folded: Vec<String> = members.iter().map(|(name, _)| fold_name(name)).collect();
                let names = members.iter().map(|(name, _)| &name[..]).chain(folded.iter().map(|name| &name[..]));
                let places = Places::of(names, user_type.fields.iter().map(|(name, _)| &name[..]));
                let mut fields = vec![Value::Null; user_type.fields.len()];
                for ((name, member), folded) in members.iter().zip(&folded) {
                    let index = places.get(&&folded[..]).or_else(|| places.get(&&name[..]));
                    let Some(index) = index else {
                        let of = &user_type.name;
                        return Err(ValueError::new(format!("Extraneous field definition for user type {of}: {name}")));
                    };
                    fields[index] = Value::from_json(&user_type.fields[index].1, member)?;
                }
                Ok(Value::Udt(fields))
            }
            _ => scalar(ty, json, false),
        }
    }
}

/// The name of a column or field for a JSON member's name: in lower case, unless it is in quotes of
/// its own.
pub fn fold_name(name: &str) -> String {
    match name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(exact) => exact.replace("\"\"", "\""),
        None => name.to_lowercase(),
    }
}

fn scalar(ty: &CqlType, json: &Json, numbers: bool) -> Result<Value, ValueError> {
    match json {
        Json::Text(text) => Value::from_text(ty, text),
        Json::Number(text) if numbers => Value::from_text(ty, text),
        _ if numbers => {
            Err(ValueError::new(format!("{ty} must be represented as numeric or string in JSON, instead got '{json}'")))
        }
        _ => Err(ValueError::new(format!("{ty} must be represented as string in JSON, instead got '{json}'"))),
    }
}

/// A whole number, possibly written with a point or an exponent (`12.0`, `1e3`), because JSON has
/// only one kind of number.
fn integer(ty: &CqlType, json: &Json) -> Result<Value, ValueError> {
    match json {
        Json::Text(text) => Value::from_text(ty, text),
        Json::Number(text) => {
            let incorrect =
                || ValueError::new(format!("Incorrect JSON value for {ty} type: {json} is not a whole number"));
            let whole = whole(text).ok().flatten().ok_or_else(incorrect)?;
            Value::from_text(ty, &whole.to_string()).map_err(|_| ValueError::new(format!("Value {json} out of range")))
        }
        _ => Err(ValueError::new(format!("Incorrect JSON value for {ty} type: {json}"))),
    }
}

/// The whole number that a text spells; none if it spells another number.
fn whole(text: &str) -> Result<Option<BigInt>, ValueError> {
    let decimal: Decimal = text.parse()?;
    if decimal.scale.unsigned_abs() > MAX_EXPONENT {
        return Ok((decimal.unscaled == BigInt::ZERO).then_some(BigInt::ZERO));
    }
    let power = BigInt::from(10).pow(decimal.scale.unsigned_abs());
    if decimal.scale <= 0 {
        return Ok(Some(decimal.unscaled * power));
    }
    Ok((&decimal.unscaled % &power == BigInt::ZERO).then(|| decimal.unscaled / power))
}

/// A list or object may be given as a string of JSON, which is parsed.
fn unpacked(json: &Json) -> Result<std::borrow::Cow<'_, Json>, ValueError> {
    match json {
        Json::Text(text) => Json::parse(text).map(std::borrow::Cow::Owned),
        other => Ok(std::borrow::Cow::Borrowed(other)),
    }
}

fn must_be(ty: &CqlType, what: &str) -> ValueError {
    ValueError::new(format!("{ty} must be represented as JSON {what}"))
}

fn not_null(value: Value) -> Result<Value, ValueError> {
    match value {
        Value::Null => Err(ValueError::new("null is not supported inside collections")),
        value => Ok(value),
    }
}

fn elements(ty: &CqlType, elem: &CqlType, json: &Json) -> Result<Vec<Value>, ValueError> {
    let json = unpacked(json)?;
    let Json::List(values) = json.as_ref() else { return Err(must_be(ty, "Array")) };
    values.iter().map(|value| not_null(Value::from_json(elem, value)?)).collect()
}

/// The key of a map, which is always a string in JSON.
fn key_from_json(ty: &CqlType, name: &str) -> Result<Value, ValueError> {
    let compound = ty.is_collection() || matches!(ty, CqlType::Tuple(_) | CqlType::Udt(_) | CqlType::Vector { .. });
    let json = if compound { Json::parse(name)? } else { Json::Text(name.to_owned()) };
    not_null(Value::from_json(ty, &json)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::UserType;

    fn read(ty: &CqlType, text: &str) -> Result<String, String> {
        let json = Json::parse(text).map_err(|error| error.to_string())?;
        let value = Value::from_json(ty, &json).map_err(|error| error.to_string())?;
        let bytes = value.encode(ty).map_err(|error| error.to_string())?;
        let value = Value::decode_optional(ty, bytes.as_deref()).map_err(|error| error.to_string())?;
        Ok(value.to_cql_literal(ty))
    }

    fn user_type() -> CqlType {
        CqlType::udt(UserType {
            keyspace: "k".into(),
            name: "u".into(),
            fields: vec![("a".into(), CqlType::Int), ("Big".into(), CqlType::list(CqlType::Text).freeze())],
            frozen: true,
        })
    }

    #[test]
    fn every_type_reads() {
        use CqlType::*;
        let map = CqlType::map(Int, CqlType::list(Text).freeze());
        let listed = CqlType::map(CqlType::list(Int).freeze(), Boolean);
        for (ty, text, literal) in [
            (Ascii, "\"x\"", "'x'"),
            (Text, "\"it's \\u00e9\"", "'it''s é'"),
            (Tinyint, "-128", "-128"),
            (Smallint, "\"300\"", "300"),
            (Int, "12.0", "12"),
            (Int, "1e3", "1000"),
            (Bigint, "9223372036854775807", "9223372036854775807"),
            (Varint, "123456789012345678901234567890", "123456789012345678901234567890"),
            (Varint, "\"-5\"", "-5"),
            (Decimal, "1.50", "1.50"),
            (Decimal, "\"1e10\"", "1E+10"),
            (Float, "1.5", "1.5"),
            (Double, "\"NaN\"", "NaN"),
            (Double, "3", "3.0"),
            (Boolean, "true", "true"),
            (Boolean, "\" False\"", "false"),
            (Blob, "\"0xCAFE\"", "0xcafe"),
            (Uuid, "\"12345678-1234-4234-8234-123456789abc\"", "12345678-1234-4234-8234-123456789abc"),
            (Timeuuid, "\"50554d6e-29bb-11e5-b345-feff819cdc9f\"", "50554d6e-29bb-11e5-b345-feff819cdc9f"),
            (Inet, "\"::1\"", "'::1'"),
            (Date, "\"2024-02-29\"", "'2024-02-29'"),
            (Time, "\"12:34:56.789\"", "'12:34:56.789000000'"),
            (Timestamp, "\"2024-02-29 12:00:00.000Z\"", "'2024-02-29T12:00:00.000Z'"),
            (Timestamp, "1000", "'1970-01-01T00:00:01.000Z'"),
            (Duration, "\"1h30m\"", "1h30m"),
            (Int, "null", "null"),
            (CqlType::list(Int), "[3, \"1\", 2]", "[3, 1, 2]"),
            (CqlType::set(Int), "[3, 1, 2, 1]", "{1, 2, 3}"),
            (CqlType::set(Int), "\"[2, 1]\"", "{1, 2}"),
            (map, r#"{"2": ["a"], "1": []}"#, "{1: [], 2: ['a']}"),
            (listed, r#"{"[1, 2]": true, "[]": false}"#, "{[]: false, [1, 2]: true}"),
            (CqlType::tuple([Int, Text]), r#"[1, null]"#, "(1, null)"),
            (CqlType::vector(Float, 2), "[1, 2.5]", "[1.0, 2.5]"),
            (user_type(), r#"{"A": 1, "\"Big\"": ["x"]}"#, "{a: 1, \"Big\": ['x']}"),
            (user_type(), r#"{"Big": ["x"]}"#, "{a: null, \"Big\": ['x']}"),
        ] {
            assert_eq!(read(&ty, text), Ok(literal.to_owned()), "{ty} from {text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        use CqlType::*;
        for (ty, text, message) in [
            (Text, "1", "text must be represented as string in JSON, instead got '1'"),
            (Int, "1.5", "Incorrect JSON value for int type: 1.5 is not a whole number"),
            (Int, "2147483648", "Value 2147483648 out of range"),
            (Int, "1e2000000", "Incorrect JSON value for int type: 1e2000000 is not a whole number"),
            (Int, "true", "Incorrect JSON value for int type: true"),
            (Boolean, "1", "Invalid JSON object 1"),
            (Float, "true", "float must be represented as numeric or string in JSON, instead got 'true'"),
            (Uuid, "5", "uuid must be represented as string in JSON, instead got '5'"),
            (Timestamp, "true", "timestamp_type must be represented as string or integer"),
            (CqlType::list(Int), "{}", "list<int> must be represented as JSON Array"),
            (CqlType::list(Int), "[null]", "null is not supported inside collections"),
            (CqlType::map(Int, Int), "[]", "map<int, int> must be represented as JSON Object"),
            (CqlType::map(Int, Int), r#"{"1": null}"#, "null is not supported inside collections"),
            (CqlType::tuple([Int]), "[1, 2]", "Too many values (2) for tuple with size 1"),
            (user_type(), r#"{"nothere": 1}"#, "Extraneous field definition for user type u: nothere"),
        ] {
            assert_eq!(read(&ty, text), Err(message.to_owned()), "{ty} from {text}");
        }
    }
}
