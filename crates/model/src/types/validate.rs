//! Validation of bytes as values of a type. Every value from a client or another node is validated
//! once, so that all other code can rely on it.

use super::{CqlType, ValueError, collection, duration, temporal};

/// Whether `bytes` are a value of type `ty`, including the contents of collections, tuples and user
/// types.
///
/// A value of no bytes is legal for most types (see [`CqlType::allows_empty`]): a legacy value that
/// is not null.
#[inline]
pub fn validate(ty: &CqlType, bytes: &[u8]) -> Result<(), ValueError> {
    match ty {
        CqlType::Blob | CqlType::Custom(_) | CqlType::Varint => Ok(()),
        CqlType::Text => match std::str::from_utf8(bytes) {
            Ok(_) => Ok(()),
            Err(error) => Err(not_utf8(error.valid_up_to())),
        },
        CqlType::Int => sized(ty, bytes, 4),
        CqlType::Bigint | CqlType::Timestamp | CqlType::Double => sized(ty, bytes, 8),
        CqlType::Uuid => sized(ty, bytes, 16),
        _ => validate_others(ty, bytes),
    }
}

fn validate_others(ty: &CqlType, bytes: &[u8]) -> Result<(), ValueError> {
    if bytes.is_empty() {
        return if ty.allows_empty() { Ok(()) } else { Err(wrong_length(ty, bytes)) };
    }
    match ty {
        CqlType::Ascii => match bytes.iter().position(|byte| !byte.is_ascii()) {
            None => Ok(()),
            Some(at) => Err(ValueError::new(format!(
                "Validation failed - non-ASCII character in an ASCII string, at byte offset {at}"
            ))),
        },
        CqlType::Timeuuid => {
            sized(ty, bytes, 16)?;
            match bytes[6] >> 4 {
                1 => Ok(()),
                version => Err(ValueError::new(format!("Unsupported UUID version ({version}) for a timeuuid"))),
            }
        }
        CqlType::Time => {
            sized(ty, bytes, 8)?;
            let nanos = i64::from_be_bytes(bytes.try_into().expect("8 bytes, just checked"));
            if (0..temporal::NANOS_PER_DAY).contains(&nanos) {
                Ok(())
            } else {
                Err(ValueError::new(format!("Time of day out of range: {nanos} nanoseconds")))
            }
        }
        CqlType::Inet => match bytes.len() {
            4 | 16 => Ok(()),
            _ => Err(wrong_length(ty, bytes)),
        },
        CqlType::Decimal if bytes.len() < 4 => Err(wrong_length(ty, bytes)),
        CqlType::Decimal => Ok(()),
        CqlType::Duration => duration::Duration::from_bytes(bytes).map(drop),
        CqlType::List { elem, .. } | CqlType::Set { elem, .. } => {
            let mut elements = collection::elements(bytes)?;
            for element in &mut elements {
                validate(elem, element?).map_err(|e| e.inside(format_args!("In an element of {ty}")))?;
            }
            no_trailing(ty, elements.trailing())
        }
        CqlType::Map { key, value, .. } => {
            let mut pairs = collection::pairs(bytes)?;
            for pair in &mut pairs {
                let (k, v) = pair?;
                validate(key, k).map_err(|e| e.inside(format_args!("In a key of {ty}")))?;
                validate(value, v).map_err(|e| e.inside(format_args!("In a value of {ty}")))?;
            }
            no_trailing(ty, pairs.trailing())
        }
        CqlType::Vector { elem, dim } => {
            let mut elements = collection::vector_elements(elem, *dim, bytes);
            for element in &mut elements {
                let element = element.map_err(|_| wrong_length(ty, bytes))?;
                validate(elem, element).map_err(|e| e.inside(format_args!("In an element of {ty}")))?;
            }
            no_trailing(ty, elements.trailing())
        }
        CqlType::Tuple(types) => fields(ty, types.iter(), bytes),
        CqlType::Udt(user_type) => fields(ty, user_type.fields.iter().map(|(_, ty)| ty), bytes),
        _ => match ty.value_len() {
            Some(len) => sized(ty, bytes, len),
            None => Ok(()),
        },
    }
}

fn fields<'t>(ty: &CqlType, types: impl Iterator<Item = &'t CqlType>, bytes: &[u8]) -> Result<(), ValueError> {
    let mut fields = collection::fields(bytes);
    for (i, field_type) in types.enumerate() {
        let Some(field) = fields.next() else { return Ok(()) };
        if let Some(field) = field? {
            validate(field_type, field).map_err(|e| e.inside(format_args!("In field {i} of {ty}")))?;
        }
    }
    if fields.is_done() { Ok(()) } else { Err(ValueError::new(format!("Too many fields in a value of type {ty}"))) }
}

#[inline]
fn sized(ty: &CqlType, bytes: &[u8], len: usize) -> Result<(), ValueError> {
    if bytes.len() == len || bytes.is_empty() { Ok(()) } else { Err(wrong_length(ty, bytes)) }
}

fn no_trailing(ty: &CqlType, trailing: &[u8]) -> Result<(), ValueError> {
    match trailing.len() {
        0 => Ok(()),
        n => Err(ValueError::new(format!("Unexpected {n} bytes after the end of a value of type {ty}"))),
    }
}

#[cold]
fn not_utf8(at: usize) -> ValueError {
    ValueError::new(format!("Validation failed - non-UTF8 character in a UTF8 string, at byte offset {at}"))
}

#[cold]
pub(super) fn wrong_length(ty: &CqlType, bytes: &[u8]) -> ValueError {
    let got = bytes.len();
    ValueError::new(match (ty, ty.value_len()) {
        (CqlType::Inet, _) => format!("Expected 4 or 16 bytes for a value of type inet, got {got}"),
        (CqlType::Decimal, _) => format!("Expected at least 4 bytes for a value of type decimal, got {got}"),
        (_, Some(1)) => format!("Expected 1 byte for a value of type {ty}, got {got}"),
        (_, Some(len)) => format!("Expected {len} bytes for a value of type {ty}, got {got}"),
        (_, None) => format!("Not enough bytes for a value of type {ty}, got {got}"),
    })
}
