//! Values from JSON, for INSERT JSON and fromJson. The output of [`Value::to_json_string`] is read
//! as the same value, and every scalar may also be a string.
//!
//! The bytes of a value are written directly. Decoded values would take many times as much memory:
//! a short object can be of a type with thousands of fields.

use std::borrow::Cow;

use num_bigint::BigInt;

use super::collection::{NULL_BYTES, build_map, build_set, put_nulls};
use super::{CqlType, Decimal, Json, UserType, Value, ValueError, in_field_order, vint};

/// The largest exponent of a text that is read as a whole number. No machine integer has as many
/// digits as such a number.
const MAX_EXPONENT: u32 = 10_000;

/// The most bytes for the fields that the JSON of a row or a call leaves out: twice the largest
/// mutation. The same limit holds for literals of CQL.
pub const MAX_ABSENT_BYTES: usize = 32 << 20;

/// The bytes that are left for fields which JSON leaves out. Each of them is stored as a null.
#[derive(Debug)]
pub struct AbsentFields {
    left: usize,
}

impl Default for AbsentFields {
    fn default() -> Self {
        AbsentFields { left: MAX_ABSENT_BYTES }
    }
}

impl AbsentFields {
    fn take(&mut self, fields: usize) -> Result<(), ValueError> {
        self.left = self.left.checked_sub(fields * NULL_BYTES).ok_or_else(too_many_absent)?;
        Ok(())
    }
}

#[cold]
fn too_many_absent() -> ValueError {
    ValueError::new(format!(
        "The values, with a null for each field of a user type that they leave out, are longer than the limit of \
         {MAX_ABSENT_BYTES} bytes"
    ))
}

impl Json {
    /// The bytes of the value of type `ty` for this JSON. `None` for null; inside of a collection
    /// it is an error.
    pub fn encode(&self, ty: &CqlType, absent: &mut AbsentFields) -> Result<Option<Vec<u8>>, ValueError> {
        let mut out = Vec::new();
        Ok(append(ty, self, absent, &mut out)?.then_some(out))
    }
}

/// Appends the bytes of a value. False, and nothing is appended, if it is null.
fn append(ty: &CqlType, json: &Json, absent: &mut AbsentFields, out: &mut Vec<u8>) -> Result<bool, ValueError> {
    if *json == Json::Null {
        return Ok(false);
    }
    match ty {
        CqlType::List { elem, .. } => {
            let json = unpacked(json)?;
            let values = list(ty, &json)?;
            out.extend_from_slice(&i32_of(values.len())?);
            for value in values {
                append_sized(out, |out| append_present(elem, value, absent, out).map(|()| true))?;
            }
        }
        CqlType::Set { elem, .. } => {
            let json = unpacked(json)?;
            let values = list(ty, &json)?.iter();
            let values = values.map(|value| present(elem, value, absent)).collect::<Result<_, _>>()?;
            out.extend(build_set(elem, values));
        }
        CqlType::Map { key, value, .. } => {
            let json = unpacked(json)?;
            let entry = |(name, member): &(String, Json)| -> Result<_, ValueError> {
                Ok((present(key, &key_json(key, name)?, absent)?, present(value, member, absent)?))
            };
            let entries = object(ty, &json)?.iter().map(entry).collect::<Result<_, _>>()?;
            out.extend(build_map(key, entries));
        }
        CqlType::Vector { elem, dim } => append_vector((ty, elem, *dim), json, absent, out)?,
        CqlType::Tuple(types) => {
            let json = unpacked(json)?;
            let values = list(ty, &json)?;
            if values.len() > types.len() {
                let (got, most) = (values.len(), types.len());
                return Err(ValueError::new(format!("Too many values ({got}) for tuple with size {most}")));
            }
            for (value, ty) in values.iter().zip(types.iter()) {
                append_sized(out, |out| append(ty, value, absent, out))?;
            }
        }
        CqlType::Udt(user_type) => append_user_type(ty, user_type, json, absent, out)?,
        _ => match scalar_of(ty, json)?.encode(ty)? {
            Some(bytes) => out.extend(bytes),
            None => return Ok(false),
        },
    }
    Ok(true)
}

fn append_vector(
    (ty, elem, dim): (&CqlType, &CqlType, u32),
    json: &Json,
    absent: &mut AbsentFields,
    out: &mut Vec<u8>,
) -> Result<(), ValueError> {
    let json = unpacked(json)?;
    let values = list(ty, &json)?;
    if values.len() != dim as usize {
        return Err(ValueError::new(format!("A value of type {ty} needs {dim} elements, got {}", values.len())));
    }
    for value in values {
        if elem.fixed_width().is_some() {
            append_present(elem, value, absent, out)?;
            continue;
        }
        let element = present(elem, value, absent)?;
        vint::write_unsigned(element.len() as u64, out);
        out.extend(element);
    }
    Ok(())
}

/// Appends a value of a user type: the fields that the object has, and nulls between them. The last
/// member of a name counts.
fn append_user_type(
    ty: &CqlType,
    user_type: &UserType,
    json: &Json,
    absent: &mut AbsentFields,
    out: &mut Vec<u8>,
) -> Result<(), ValueError> {
    let json = unpacked(json)?;
    let members = object(ty, &json)?;
    let mut given: Vec<(usize, &Json)> = Vec::with_capacity(members.len());
    for (name, member) in members {
        let index = user_type.field_index(&fold_name(name)).or_else(|| user_type.field_index(name));
        let of = &user_type.name;
        let unknown = || ValueError::new(format!("Extraneous field definition for user type {of}: {name}"));
        given.push((index.ok_or_else(unknown)?, member));
    }
    in_field_order(&mut given);
    absent.take(user_type.fields.len() - given.len())?;
    let mut next = 0;
    for (index, member) in given {
        put_nulls(index - next, out);
        append_sized(out, |out| append(&user_type.fields[index].1, member, absent, out))?;
        next = index + 1;
    }
    put_nulls(user_type.fields.len() - next, out);
    Ok(())
}

/// Appends the length of what `write` appends, and behind it the bytes. The length of null if it is
/// null.
fn append_sized(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<bool, ValueError>,
) -> Result<(), ValueError> {
    let start = out.len();
    put_nulls(1, out);
    let begin = out.len();
    if write(out)? {
        let len = i32_of(out.len() - begin)?;
        out[start..begin].copy_from_slice(&len);
    }
    Ok(())
}

fn i32_of(len: usize) -> Result<[u8; 4], ValueError> {
    i32::try_from(len).map(i32::to_be_bytes).map_err(|_| ValueError::new("A value is longer than 2 GiB"))
}

/// Appends a value that must not be null.
fn append_present(ty: &CqlType, json: &Json, absent: &mut AbsentFields, out: &mut Vec<u8>) -> Result<(), ValueError> {
    match append(ty, json, absent, out)? {
        true => Ok(()),
        false => Err(ValueError::new("null is not supported inside collections")),
    }
}

/// The bytes of a value that must not be null.
fn present(ty: &CqlType, json: &Json, absent: &mut AbsentFields) -> Result<Vec<u8>, ValueError> {
    let mut out = Vec::new();
    append_present(ty, json, absent, &mut out)?;
    Ok(out)
}

/// A value of a type without parts.
fn scalar_of(ty: &CqlType, json: &Json) -> Result<Value, ValueError> {
    match ty {
        CqlType::Ascii | CqlType::Text => match json {
            Json::Text(text) => Value::from_text(ty, text),
            _ => Err(ValueError::new(format!("{ty} must be represented as string in JSON, instead got '{json}'"))),
        },
        CqlType::Tinyint | CqlType::Smallint | CqlType::Int | CqlType::Bigint | CqlType::Counter => integer(ty, json),
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
        _ => scalar(ty, json, false),
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
fn unpacked(json: &Json) -> Result<Cow<'_, Json>, ValueError> {
    match json {
        Json::Text(text) => Json::parse(text).map(Cow::Owned),
        other => Ok(Cow::Borrowed(other)),
    }
}

fn list<'j>(ty: &CqlType, json: &'j Json) -> Result<&'j [Json], ValueError> {
    match json {
        Json::List(values) => Ok(values),
        _ => Err(must_be(ty, "Array")),
    }
}

fn object<'j>(ty: &CqlType, json: &'j Json) -> Result<&'j [(String, Json)], ValueError> {
    match json {
        Json::Object(members) => Ok(members),
        _ => Err(must_be(ty, "Object")),
    }
}

fn must_be(ty: &CqlType, what: &str) -> ValueError {
    ValueError::new(format!("{ty} must be represented as JSON {what}"))
}

/// The JSON of a map's key, which is always a string in JSON.
fn key_json(ty: &CqlType, name: &str) -> Result<Json, ValueError> {
    if ty.has_parts() { Json::parse(name) } else { Ok(Json::Text(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::UserType;

    fn read(ty: &CqlType, text: &str) -> Result<String, String> {
        let json = Json::parse(text).map_err(|error| error.to_string())?;
        let bytes = json.encode(ty, &mut AbsentFields::default()).map_err(|error| error.to_string())?;
        let value = Value::decode_optional(ty, bytes.as_deref()).map_err(|error| error.to_string())?;
        Ok(value.to_cql_literal(ty))
    }

    fn user_type() -> CqlType {
        CqlType::udt(UserType {
            keyspace: "k".into(),
            name: "u".into(),
            fields: vec![("a".into(), CqlType::Int), ("Big".into(), CqlType::list(CqlType::Text).freeze())].into(),
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
    fn json_values_of_other_types_are_refused() {
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
