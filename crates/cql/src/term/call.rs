//! Evaluates native functions.
//!
//! Functions with arguments return null if any argument is null, except for `tojson`.

use super::cast;
use super::collections;
use super::function::Function;
use crate::error::Error;
use bytes::Bytes;
use model::CqlType;
use model::hex;
use model::key::encode_partition_key;
use model::types::{self, AbsentFields, Json, JsonNotation, TextError, Value, push_text, temporal};

/// The limit on the JSON text of a value or row, in bytes. The largest mutation (16 MiB) fits in
/// hexadecimal. Each nested `tojson` can multiply the length of a text by escaping it. Without a
/// limit, nested calls would exhaust memory before the size of the result is checked.
pub(crate) const MAX_JSON_BYTES: usize = 32 << 20;

/// The error for a value that has no JSON text of that length.
pub(crate) fn no_json(error: TextError) -> Error {
    Error::invalid(match error {
        TextError::TooLong(limit) => format!("A JSON text would be longer than {limit} bytes"),
        TextError::Value(error) => error.to_string(),
    })
}

/// Appends a value as JSON text.
pub(crate) fn push_json(ty: &CqlType, value: Option<&[u8]>, out: &mut String) -> Result<(), Error> {
    push_text(JsonNotation::STRICT, ty, value, MAX_JSON_BYTES, out).map_err(no_json)
}

impl Function {
    /// Evaluates the function. The arguments must be valid values of its parameter types.
    pub fn call(&self, arguments: &[Option<Bytes>]) -> Result<Option<Bytes>, Error> {
        let now_millis = || rt::time::wall_micros().div_euclid(1000);
        match self {
            Function::Now => return Ok(Some(Bytes::copy_from_slice(rt::random::time_uuid().as_bytes()))),
            Function::Uuid => return Ok(Some(Bytes::copy_from_slice(rt::random::uuid_v4().as_bytes()))),
            Function::CurrentTimestamp => return Ok(Some(long(now_millis()))),
            Function::CurrentDate => return Ok(Some(date_of_millis(now_millis()))),
            Function::CurrentTime => {
                let nanos = rt::time::wall_nanos().rem_euclid(temporal::NANOS_PER_DAY as i128);
                return Ok(Some(long(nanos as i64)));
            }
            _ => {}
        }
        if let Function::ToJson(ty) = self {
            let mut out = String::new();
            push_json(ty, arguments.first().and_then(Option::as_deref), &mut out)?;
            return Ok(Some(out.into_bytes().into()));
        }
        let mut given = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                Some(argument) => given.push(argument),
                None => return Ok(None),
            }
        }
        let Some(first) = given.first() else { return Ok(None) };
        Ok(match self {
            Function::MinTimeuuid => {
                millis_of(&CqlType::Timestamp, first).map(|ms| time_uuid(ms, 0, 0x8080_8080_8080_8080)).transpose()?
            }
            Function::MaxTimeuuid => millis_of(&CqlType::Timestamp, first)
                .map(|ms| time_uuid(ms, 9999, 0x7f7f_7f7f_7f7f_7f7f))
                .transpose()?,
            Function::ToDate(ty) => millis_of(ty, first).map(date_of_millis),
            Function::ToTimestamp(ty) | Function::ToUnixTimestamp(ty) => millis_of(ty, first).map(long),
            Function::AsBlob(_) => Some((*first).clone()),
            Function::FromBlob(ty) => {
                types::validate(ty, first).map_err(|_| {
                    Error::invalid(format!(
                        "In call to function system.blobas{ty}, value 0x{} is not a valid binary representation for type {ty}",
                        hex(first)
                    ))
                })?;
                Some((*first).clone())
            }
            Function::Token(_) => {
                let components: Vec<&[u8]> = given.iter().map(|bytes| &bytes[..]).collect();
                let mut key = Vec::new();
                if components.len() > 1
                    && components.iter().any(|component| component.len() > model::key::MAX_KEY_BYTES)
                {
                    return Err(Error::invalid("A partition key component is too long for token()"));
                }
                encode_partition_key(&components, &mut key);
                Some(long(model::token::of_key(&key).0))
            }
            Function::Cast(from, to) => {
                let value = Value::decode(from, first).map_err(|error| Error::invalid(error.to_string()))?;
                cast::cast(&value, from, to)?
            }
            Function::FromJson(ty) => from_json(ty, first)?,
            Function::Math(math, ty) => math.call(ty, first)?,
            Function::Collection(fold, ty) => fold.call(ty, first)?,
            Function::SetIntersection(elem) => match &given[..] {
                [one, other] => Some(collections::intersect(elem, one, other)?),
                _ => None,
            },
            _ => None,
        })
    }
}

fn from_json(ty: &CqlType, text: &[u8]) -> Result<Option<Bytes>, Error> {
    let text = std::str::from_utf8(text).map_err(|_| Error::invalid("A text is not valid UTF-8"))?;
    let failed = |why: String| Error::FunctionFailure {
        keyspace: "system".to_owned(),
        function: "fromjson".to_owned(),
        argument_types: vec!["text".to_owned()],
        message: format!("Failed parsing fromJson parameter: {why}"),
    };
    let json = Json::parse(text).map_err(|error| failed(error.to_string()))?;
    let value = json.encode(ty, &mut AbsentFields::default());
    Ok(value.map_err(|error| failed(error.to_string()))?.map(Bytes::from))
}

fn long(value: i64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

const MILLIS_PER_DAY: i64 = 86_400_000;
/// 100 ns ticks between 1582-10-15 and 1970-01-01.
const UUID_EPOCH_TICKS: i64 = 0x01B2_1DD2_1381_4000;

pub(crate) fn date_of_millis(millis: i64) -> Bytes {
    let days = millis.div_euclid(MILLIS_PER_DAY) + i64::from(temporal::DATE_EPOCH);
    Bytes::copy_from_slice(&(days as u32).to_be_bytes())
}

/// The milliseconds since 1970 of a timestamp, date or time UUID. `None` if it is empty.
pub(crate) fn millis_of(ty: &CqlType, bytes: &[u8]) -> Option<i64> {
    match ty {
        CqlType::Timestamp => Some(i64::from_be_bytes(bytes.try_into().ok()?)),
        CqlType::Date => {
            let days = u32::from_be_bytes(bytes.try_into().ok()?);
            Some((i64::from(days) - i64::from(temporal::DATE_EPOCH)) * MILLIS_PER_DAY)
        }
        CqlType::Timeuuid => {
            let high = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
            let ticks = (high & 0x0fff) << 48 | (high >> 16 & 0xffff) << 32 | high >> 32;
            Some((ticks as i64 - UUID_EPOCH_TICKS).div_euclid(10_000))
        }
        _ => None,
    }
}

/// A version 1 UUID for a millisecond plus ticks of 100 ns, with this lower half.
fn time_uuid(millis: i64, ticks: i64, low_half: u64) -> Result<Bytes, Error> {
    let since_1970 = millis.checked_mul(10_000).and_then(|start| start.checked_add(ticks));
    let since_1582 =
        since_1970.and_then(|ticks| ticks.checked_add(UUID_EPOCH_TICKS)).and_then(|t| u64::try_from(t).ok());
    let Some(ticks) = since_1582.filter(|ticks| *ticks < 1 << 60) else {
        return Err(Error::invalid(format!("Timestamp {millis} is out of the range of time UUIDs")));
    };
    let high = (ticks & 0xffff_ffff) << 32 | (ticks >> 32 & 0xffff) << 16 | 0x1000 | (ticks >> 48 & 0x0fff);
    let whole = u128::from(high) << 64 | u128::from(low_half);
    Ok(Bytes::copy_from_slice(&whole.to_be_bytes()))
}
