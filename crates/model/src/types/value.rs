//! Decoded values, for text, JSON, functions and tests. The hot path works on bytes.
//!
//! A [`Value`] does not know its type. Encoding requires a type, and fails if they do not match.
//! Decoding validates as [`super::validate`] does, so every decoded value can be encoded again
//! (sets and maps sorted, missing fields null).
//!
//! A decoded value takes many times the memory of its bytes: each missing field is a null. So code
//! of a node decodes only values of types without parts. It writes others as text by
//! [`super::push_text`], and reads them from JSON by [`super::Json::encode`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use num_bigint::BigInt;
use num_traits::ToPrimitive;
use uuid::Uuid;

use super::validate::wrong_length;
use super::{CqlType, Decimal, Duration, ValueError, collection, validate};

/// A decoded value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// A value of no bytes, of a type for which that is not an ordinary value.
    Empty,
    /// `boolean`.
    Boolean(bool),
    /// `tinyint`.
    Tinyint(i8),
    /// `smallint`.
    Smallint(i16),
    /// `int`.
    Int(i32),
    /// `bigint`, and `counter` as clients see it.
    Bigint(i64),
    /// `varint`.
    Varint(BigInt),
    /// `decimal`.
    Decimal(Decimal),
    /// `float`.
    Float(f32),
    /// `double`.
    Double(f64),
    /// `text` and `ascii`.
    Text(String),
    /// `blob` and custom types.
    Blob(Vec<u8>),
    /// `uuid` and `timeuuid`.
    Uuid(Uuid),
    /// `inet`.
    Inet(IpAddr),
    /// `date`: days, 2^31 is 1970-01-01.
    Date(u32),
    /// `time`: nanoseconds of the day.
    Time(i64),
    /// `timestamp`: milliseconds since 1970.
    Timestamp(i64),
    /// `duration`.
    Duration(Duration),
    /// `list`.
    List(Vec<Value>),
    /// `set`.
    Set(Vec<Value>),
    /// `map`.
    Map(Vec<(Value, Value)>),
    /// `tuple`; missing trailing fields are null.
    Tuple(Vec<Value>),
    /// A user type, fields in its order; missing trailing fields are null.
    Udt(Vec<Value>),
    /// `vector`.
    Vector(Vec<Value>),
}

impl Value {
    /// Decodes `bytes`, or null.
    pub fn decode_optional(ty: &CqlType, bytes: Option<&[u8]>) -> Result<Value, ValueError> {
        bytes.map_or(Ok(Value::Null), |bytes| Value::decode(ty, bytes))
    }

    /// Decodes `bytes` as a value of type `ty`, checking all of them.
    pub fn decode(ty: &CqlType, bytes: &[u8]) -> Result<Value, ValueError> {
        validate(ty, bytes)?;
        decode_valid(ty, bytes)
    }

    /// The bytes of this value as type `ty`; `None` for null. Whole numbers of any kind can be
    /// encoded as any numeric type that holds them.
    pub fn encode(&self, ty: &CqlType) -> Result<Option<Vec<u8>>, ValueError> {
        match self {
            Value::Null => Ok(None),
            _ => self.encode_present(ty).map(Some),
        }
    }

    /// The value as a whole number, if it is one.
    pub fn to_bigint(&self) -> Option<BigInt> {
        Some(match self {
            Value::Tinyint(v) => (*v).into(),
            Value::Smallint(v) => (*v).into(),
            Value::Int(v) => (*v).into(),
            Value::Bigint(v) => (*v).into(),
            Value::Varint(v) => v.clone(),
            _ => return None,
        })
    }

    /// The value as a whole number, if it is one and fits.
    pub fn to_i64(&self) -> Option<i64> {
        match self {
            Value::Tinyint(v) => Some((*v).into()),
            Value::Smallint(v) => Some((*v).into()),
            Value::Int(v) => Some((*v).into()),
            Value::Bigint(v) => Some(*v),
            Value::Varint(v) => v.to_i64(),
            _ => None,
        }
    }

    fn encode_present(&self, ty: &CqlType) -> Result<Vec<u8>, ValueError> {
        let mismatch = || ValueError::new(format!("A {} is not a value of type {ty}", self.kind()));
        Ok(match (ty, self) {
            (_, Value::Empty) if ty.allows_empty() => Vec::new(),
            (CqlType::Ascii, Value::Text(v)) => {
                validate(ty, v.as_bytes())?;
                v.clone().into_bytes()
            }
            (CqlType::Text, Value::Text(v)) => v.clone().into_bytes(),
            (CqlType::Blob | CqlType::Custom(_), Value::Blob(v)) => v.clone(),
            (CqlType::Boolean, Value::Boolean(v)) => vec![u8::from(*v)],
            (CqlType::Tinyint, _) => self.narrow(ty, |v| i8::try_from(v).ok())?.to_be_bytes().into(),
            (CqlType::Smallint, _) => self.narrow(ty, |v| i16::try_from(v).ok())?.to_be_bytes().into(),
            (CqlType::Int, _) => self.narrow(ty, |v| i32::try_from(v).ok())?.to_be_bytes().into(),
            (CqlType::Bigint | CqlType::Counter, _) => self.narrow(ty, Some)?.to_be_bytes().into(),
            (CqlType::Varint, _) => self.to_bigint().ok_or_else(mismatch)?.to_signed_bytes_be(),
            (CqlType::Decimal, Value::Decimal(v)) => {
                let mut out = Vec::new();
                v.write_to(&mut out);
                out
            }
            (CqlType::Decimal, _) => {
                let mut out = Vec::new();
                Decimal::new(0, self.to_bigint().ok_or_else(mismatch)?).write_to(&mut out);
                out
            }
            (CqlType::Float, Value::Float(v)) => v.to_be_bytes().into(),
            (CqlType::Double, Value::Double(v)) => v.to_be_bytes().into(),
            (CqlType::Float, _) => {
                let number = self.to_bigint().and_then(|v| v.to_f32()).ok_or_else(mismatch)?;
                number.to_be_bytes().into()
            }
            (CqlType::Double, _) => {
                let number = self.to_bigint().and_then(|v| v.to_f64()).ok_or_else(mismatch)?;
                number.to_be_bytes().into()
            }
            (CqlType::Uuid, Value::Uuid(v)) => v.as_bytes().to_vec(),
            (CqlType::Timeuuid, Value::Uuid(v)) => {
                validate(ty, v.as_bytes())?;
                v.as_bytes().to_vec()
            }
            (CqlType::Inet, Value::Inet(IpAddr::V4(v))) => v.octets().into(),
            (CqlType::Inet, Value::Inet(IpAddr::V6(v))) => v.octets().into(),
            (CqlType::Date, Value::Date(v)) => v.to_be_bytes().into(),
            (CqlType::Time, Value::Time(v)) => {
                let bytes = v.to_be_bytes();
                validate(ty, &bytes)?;
                bytes.into()
            }
            (CqlType::Timestamp, Value::Timestamp(v)) => v.to_be_bytes().into(),
            (CqlType::Duration, Value::Duration(v)) => {
                let mut out = Vec::new();
                Duration::new(v.months, v.days, v.nanos)?.write_to(&mut out);
                out
            }
            (CqlType::List { elem, .. }, Value::List(values)) => collection::build_list(encode_all(elem, values)?),
            (CqlType::Set { elem, .. }, Value::Set(values)) => collection::build_set(elem, encode_all(elem, values)?),
            (CqlType::Map { key, value, .. }, Value::Map(entries)) => {
                let entries = entries
                    .iter()
                    .map(|(k, v)| Ok((encode_element(key, k)?, encode_element(value, v)?)))
                    .collect::<Result<_, ValueError>>()?;
                collection::build_map(key, entries)
            }
            (CqlType::Vector { elem, dim }, Value::Vector(values)) => {
                if values.len() != *dim as usize {
                    return Err(ValueError::new(format!(
                        "A value of type {ty} needs {dim} elements, got {}",
                        values.len()
                    )));
                }
                collection::build_vector(elem, encode_all(elem, values)?)
            }
            (CqlType::Tuple(types), Value::Tuple(values)) => encode_fields(ty, types.iter(), values)?,
            (CqlType::Udt(user_type), Value::Udt(values)) => {
                encode_fields(ty, user_type.fields.iter().map(|(_, ty)| ty), values)?
            }
            _ => return Err(mismatch()),
        })
    }

    fn narrow<T>(&self, ty: &CqlType, fit: impl FnOnce(i64) -> Option<T>) -> Result<T, ValueError> {
        if self.to_bigint().is_none() {
            return Err(ValueError::new(format!("A {} is not a value of type {ty}", self.kind())));
        }
        self.to_i64().and_then(fit).ok_or_else(|| ValueError::new(format!("A number is out of range for type {ty}")))
    }

    /// The kind of the value, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Empty => "value of no bytes",
            Value::Boolean(_) => "boolean",
            Value::Tinyint(_) | Value::Smallint(_) | Value::Int(_) | Value::Bigint(_) | Value::Varint(_) => "integer",
            Value::Decimal(_) => "decimal",
            Value::Float(_) => "float",
            Value::Double(_) => "double",
            Value::Text(_) => "text",
            Value::Blob(_) => "blob",
            Value::Uuid(_) => "uuid",
            Value::Inet(_) => "inet",
            Value::Date(_) => "date",
            Value::Time(_) => "time",
            Value::Timestamp(_) => "timestamp",
            Value::Duration(_) => "duration",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Map(_) => "map",
            Value::Tuple(_) => "tuple",
            Value::Udt(_) => "value of a user type",
            Value::Vector(_) => "vector",
        }
    }
}

fn encode_element(ty: &CqlType, value: &Value) -> Result<Vec<u8>, ValueError> {
    value.encode(ty)?.ok_or_else(|| ValueError::new("null is not supported inside collections"))
}

fn encode_all(ty: &CqlType, values: &[Value]) -> Result<Vec<Vec<u8>>, ValueError> {
    values.iter().map(|value| encode_element(ty, value)).collect()
}

fn encode_fields<'t>(
    ty: &CqlType,
    types: impl ExactSizeIterator<Item = &'t CqlType>,
    values: &[Value],
) -> Result<Vec<u8>, ValueError> {
    if values.len() > types.len() {
        return Err(ValueError::new(format!("Too many fields in a value of type {ty}")));
    }
    let fields: Vec<_> = values.iter().zip(types).map(|(value, ty)| value.encode(ty)).collect::<Result<_, _>>()?;
    Ok(collection::build_tuple(fields))
}

/// Decodes bytes that have passed [`validate`]. Fails, without a panic, on others.
fn decode_valid(ty: &CqlType, bytes: &[u8]) -> Result<Value, ValueError> {
    if bytes.is_empty() && !ty.empty_is_ordinary() {
        return Ok(Value::Empty);
    }
    let all = |elem: &CqlType| -> Result<Vec<Value>, ValueError> {
        collection::elements(bytes)?.map(|element| decode_valid(elem, element?)).collect()
    };
    Ok(match ty {
        CqlType::Ascii | CqlType::Text => {
            Value::Text(String::from_utf8(bytes.to_vec()).map_err(|_| ValueError::new("A text is not valid UTF-8"))?)
        }
        CqlType::Blob | CqlType::Custom(_) => Value::Blob(bytes.to_vec()),
        CqlType::Empty => Value::Empty,
        CqlType::Boolean => Value::Boolean(array::<1>(ty, bytes)?[0] != 0),
        CqlType::Tinyint => Value::Tinyint(i8::from_be_bytes(array(ty, bytes)?)),
        CqlType::Smallint => Value::Smallint(i16::from_be_bytes(array(ty, bytes)?)),
        CqlType::Int => Value::Int(i32::from_be_bytes(array(ty, bytes)?)),
        CqlType::Bigint | CqlType::Counter => Value::Bigint(i64::from_be_bytes(array(ty, bytes)?)),
        CqlType::Varint => Value::Varint(BigInt::from_signed_bytes_be(bytes)),
        CqlType::Decimal => Value::Decimal(Decimal::from_bytes(bytes).ok_or_else(|| wrong_length(ty, bytes))?),
        CqlType::Float => Value::Float(f32::from_be_bytes(array(ty, bytes)?)),
        CqlType::Double => Value::Double(f64::from_be_bytes(array(ty, bytes)?)),
        CqlType::Uuid | CqlType::Timeuuid => Value::Uuid(Uuid::from_bytes(array(ty, bytes)?)),
        CqlType::Inet => Value::Inet(match bytes.len() {
            4 => Ipv4Addr::from(array::<4>(ty, bytes)?).into(),
            _ => Ipv6Addr::from(array::<16>(ty, bytes)?).into(),
        }),
        CqlType::Date => Value::Date(u32::from_be_bytes(array(ty, bytes)?)),
        CqlType::Time => Value::Time(i64::from_be_bytes(array(ty, bytes)?)),
        CqlType::Timestamp => Value::Timestamp(i64::from_be_bytes(array(ty, bytes)?)),
        CqlType::Duration => Value::Duration(Duration::from_bytes(bytes)?),
        CqlType::List { elem, .. } => Value::List(all(elem)?),
        CqlType::Set { elem, .. } => Value::Set(all(elem)?),
        CqlType::Map { key, value, .. } => Value::Map(
            collection::pairs(bytes)?
                .map(|pair| {
                    let (k, v) = pair?;
                    Ok((decode_valid(key, k)?, decode_valid(value, v)?))
                })
                .collect::<Result<_, ValueError>>()?,
        ),
        CqlType::Vector { elem, dim } => Value::Vector(
            collection::vector_elements(elem, *dim, bytes)
                .map(|element| decode_valid(elem, element?))
                .collect::<Result<_, _>>()?,
        ),
        CqlType::Tuple(types) => Value::Tuple(decode_fields(types.iter(), bytes)?),
        CqlType::Udt(user_type) => Value::Udt(decode_fields(user_type.fields.iter().map(|(_, ty)| ty), bytes)?),
    })
}

fn decode_fields<'t>(types: impl Iterator<Item = &'t CqlType>, bytes: &[u8]) -> Result<Vec<Value>, ValueError> {
    let mut fields = collection::fields(bytes);
    types
        .map(|ty| match fields.next().transpose()?.flatten() {
            Some(field) => decode_valid(ty, field),
            None => Ok(Value::Null),
        })
        .collect()
}

fn array<const N: usize>(ty: &CqlType, bytes: &[u8]) -> Result<[u8; N], ValueError> {
    bytes.try_into().map_err(|_| wrong_length(ty, bytes))
}
