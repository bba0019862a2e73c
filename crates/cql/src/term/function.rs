//! The native functions: which there are, which one a call means, and what it gives.
//!
//! Null in, null out, for all that take arguments. Aggregates are not functions of a row and live with the selectors.

use super::cast;
use crate::error::Error;
use crate::select::aggregate::Kind;
use crate::syntax::QualifiedName;
use bytes::Bytes;
use model::CqlType;
use model::key::encode_partition_key;
use model::types::{self, Value, temporal};

/// A function, with the types that tell its variants apart.
#[derive(Clone, PartialEq, Debug)]
pub enum Function {
    /// `now()`, `currenttimeuuid()`: a time UUID, another one at each call.
    Now,
    /// `uuid()`: a random UUID.
    Uuid,
    /// `currenttimestamp()`.
    CurrentTimestamp,
    /// `currentdate()`.
    CurrentDate,
    /// `currenttime()`.
    CurrentTime,
    /// `mintimeuuid(timestamp)`: below or equal to every time UUID of that millisecond.
    MinTimeuuid,
    /// `maxtimeuuid(timestamp)`: above or equal to them.
    MaxTimeuuid,
    /// `todate(x)`.
    ToDate(CqlType),
    /// `totimestamp(x)`, `dateof(timeuuid)`.
    ToTimestamp(CqlType),
    /// `tounixtimestamp(x)`, `unixtimestampof(timeuuid)`.
    ToUnixTimestamp(CqlType),
    /// `intasblob(x)` and the like.
    AsBlob(CqlType),
    /// `blobasint(x)` and the like.
    FromBlob(CqlType),
    /// `token(keys...)` of a partition key of these types.
    Token(Vec<CqlType>),
    /// `tojson(x)`.
    ToJson(CqlType),
    /// `cast(x as type)`.
    Cast(CqlType, CqlType),
}

/// An argument as far as it is known before a function is chosen.
pub struct Argument<'a> {
    /// As it was written, for messages.
    pub shown: String,
    /// Its type, if it has one by itself.
    pub ty: Option<CqlType>,
    /// Whether it could be of a type.
    pub fits: Box<dyn Fn(&CqlType) -> bool + 'a>,
}

/// The function that a call means.
#[derive(Debug)]
pub struct Found {
    /// It.
    pub function: Function,
    /// The types of its parameters.
    pub parameters: Vec<CqlType>,
    /// The type of its result.
    pub result: CqlType,
}

/// A function's name with its keyspace, as result columns and messages have it.
pub fn full_name(name: &QualifiedName) -> String {
    match &name.keyspace {
        Some(keyspace) => format!("{keyspace}.{}", name.name),
        None => format!("system.{}", name.name),
    }
}

/// Finds the function that a call means. `key_types` are those of the table's partition key.
pub fn resolve(name: &QualifiedName, arguments: &[Argument<'_>], key_types: &[CqlType]) -> Result<Found, Error> {
    let known = if name.keyspace.as_ref().is_none_or(|keyspace| keyspace.as_str() == "system") {
        candidates(&name.name.to_ascii_lowercase().replace('_', ""), arguments, key_types)
    } else {
        Vec::new()
    };
    if known.is_empty() && Kind::of_name(&name.name).is_some() {
        return Err(Error::invalid(format!("Aggregation function {} is not allowed here", full_name(name))));
    }
    if known.is_empty() {
        return Err(Error::invalid(format!("Unknown function {} called", full_name(name))));
    }
    if let [only] = &known[..]
        && only.parameters.len() != arguments.len()
    {
        return Err(Error::invalid(format!(
            "Invalid number of arguments in call to function {}: {} required but {} provided",
            full_name(name),
            only.parameters.len(),
            arguments.len()
        )));
    }
    let accepts = |found: &Found, exact: bool| {
        found.parameters.len() == arguments.len()
            && found.parameters.iter().zip(arguments).all(|(parameter, argument)| match &argument.ty {
                Some(ty) if exact => ty == parameter,
                Some(ty) => super::typing::assignable(ty, parameter),
                None => (argument.fits)(parameter),
            })
    };
    for exact in [true, false] {
        let mut matching = known.iter().filter(|found| accepts(found, exact));
        match (matching.next(), matching.next()) {
            (Some(_), None) => {
                let at = known.iter().position(|found| accepts(found, exact)).expect("one matches");
                return Ok(known.into_iter().nth(at).expect("it is there"));
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "Ambiguous call to function {} (can be matched by following signatures: {}): use type casts to disambiguate",
                    full_name(name),
                    signatures(name, &known)
                )));
            }
            _ => {}
        }
    }
    if let [only] = &known[..] {
        let wrong = only.parameters.iter().zip(arguments).position(|(parameter, argument)| match &argument.ty {
            Some(ty) => !super::typing::assignable(ty, parameter),
            None => !(argument.fits)(parameter),
        });
        if let Some(i) = wrong {
            return Err(Error::invalid(format!(
                "Type error: {} cannot be passed as argument {i} of function {} of type {}",
                arguments[i].shown,
                full_name(name),
                only.parameters[i]
            )));
        }
    }
    Err(Error::invalid(format!(
        "Invalid call to function {}, none of its type signatures match (known type signatures: {})",
        full_name(name),
        signatures(name, &known)
    )))
}

fn signatures(name: &QualifiedName, known: &[Found]) -> String {
    let one = |found: &Found| {
        let parameters: Vec<String> = found.parameters.iter().map(CqlType::to_string).collect();
        format!("{} : ({}) -> {}", full_name(name), parameters.join(", "), found.result)
    };
    known.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn candidates(name: &str, arguments: &[Argument<'_>], key_types: &[CqlType]) -> Vec<Found> {
    use CqlType::*;
    let found = |function: Function, parameters: Vec<CqlType>, result: CqlType| Found { function, parameters, result };
    let over = |types: &[CqlType], function: fn(CqlType) -> Function, result: CqlType| -> Vec<Found> {
        types.iter().map(|ty| found(function(ty.clone()), vec![ty.clone()], result.clone())).collect()
    };
    match name {
        "now" | "currenttimeuuid" => vec![found(Function::Now, vec![], Timeuuid)],
        "uuid" => vec![found(Function::Uuid, vec![], CqlType::Uuid)],
        "currenttimestamp" => vec![found(Function::CurrentTimestamp, vec![], Timestamp)],
        "currentdate" => vec![found(Function::CurrentDate, vec![], Date)],
        "currenttime" => vec![found(Function::CurrentTime, vec![], Time)],
        "mintimeuuid" => vec![found(Function::MinTimeuuid, vec![Timestamp], Timeuuid)],
        "maxtimeuuid" => vec![found(Function::MaxTimeuuid, vec![Timestamp], Timeuuid)],
        "todate" => over(&[Timeuuid, Timestamp], Function::ToDate, Date),
        "totimestamp" => over(&[Timeuuid, Date], Function::ToTimestamp, Timestamp),
        "tounixtimestamp" => over(&[Timeuuid, Timestamp, Date], Function::ToUnixTimestamp, Bigint),
        "dateof" => over(&[Timeuuid], Function::ToTimestamp, Timestamp),
        "unixtimestampof" => over(&[Timeuuid], Function::ToUnixTimestamp, Bigint),
        "token" if !key_types.is_empty() => {
            vec![found(Function::Token(key_types.to_vec()), key_types.to_vec(), Bigint)]
        }
        "tojson" => {
            let ty = arguments.first().and_then(|argument| argument.ty.clone()).unwrap_or(Text);
            vec![found(Function::ToJson(ty.clone()), vec![ty], Text)]
        }
        _ => {
            if let Some(ty) = name.strip_suffix("asblob").and_then(blob_type) {
                vec![found(Function::AsBlob(ty.clone()), vec![ty], Blob)]
            } else if let Some(ty) = name.strip_prefix("blobas").and_then(blob_type) {
                vec![found(Function::FromBlob(ty.clone()), vec![Blob], ty)]
            } else {
                Vec::new()
            }
        }
    }
}

fn blob_type(name: &str) -> Option<CqlType> {
    types::parse::native(name).filter(|ty| !matches!(ty, CqlType::Blob | CqlType::Empty))
}

impl Function {
    /// Whether it gives the same for the same arguments at any time.
    pub fn is_pure(&self) -> bool {
        use Function::*;
        !matches!(self, Now | Uuid | CurrentTimestamp | CurrentDate | CurrentTime)
    }

    /// The result for these arguments, which are valid values of its parameters' types.
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
            let value = value_of(ty, arguments.first().and_then(Option::as_deref))?;
            return Ok(Some(value.to_json_string(ty).into_bytes().into()));
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
                    Error::invalid(format!("In call to function system.blobas{ty}, value 0x{} is not a valid binary representation for type {ty}", hex(first)))
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
            Function::Cast(from, to) => cast::cast(&value_of(from, Some(first))?, from, to)?,
            _ => None,
        })
    }
}

fn value_of(ty: &CqlType, bytes: Option<&[u8]>) -> Result<Value, Error> {
    Value::decode_optional(ty, bytes).map_err(|error| Error::invalid(error.to_string()))
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

/// The milliseconds since 1970 of a timestamp, date or time UUID; none if it is empty.
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

/// A version 1 UUID of a millisecond, some ticks of 100 ns after its start, with this lower half.
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
