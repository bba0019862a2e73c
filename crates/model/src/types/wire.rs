//! Types in the metadata of result sets: the `[option]` of native protocol version 4.
//!
//! Vectors, and other types without a protocol id, are sent as custom types with their class name.

use super::limits::{self, MAX_TYPE_DEPTH, MAX_TYPE_NODES};
use super::{CqlType, UserType, ValueError, class_name};

const CUSTOM: u16 = 0x0000;
const LIST: u16 = 0x0020;
const MAP: u16 = 0x0021;
const SET: u16 = 0x0022;
const UDT: u16 = 0x0030;
const TUPLE: u16 = 0x0031;

/// Ids of the types without parameters.
const NATIVE: [(u16, CqlType); 20] = [
    (0x0001, CqlType::Ascii),
    (0x0002, CqlType::Bigint),
    (0x0003, CqlType::Blob),
    (0x0004, CqlType::Boolean),
    (0x0005, CqlType::Counter),
    (0x0006, CqlType::Decimal),
    (0x0007, CqlType::Double),
    (0x0008, CqlType::Float),
    (0x0009, CqlType::Int),
    (0x000b, CqlType::Timestamp),
    (0x000c, CqlType::Uuid),
    (0x000d, CqlType::Text),
    (0x000e, CqlType::Varint),
    (0x000f, CqlType::Timeuuid),
    (0x0010, CqlType::Inet),
    (0x0011, CqlType::Date),
    (0x0012, CqlType::Time),
    (0x0013, CqlType::Smallint),
    (0x0014, CqlType::Tinyint),
    (0x0015, CqlType::Duration),
];

/// Appends the `[option]` of `ty`.
pub fn write_option(ty: &CqlType, out: &mut Vec<u8>) {
    match ty {
        CqlType::List { elem, .. } => {
            put_u16(LIST, out);
            write_option(elem, out);
        }
        CqlType::Set { elem, .. } => {
            put_u16(SET, out);
            write_option(elem, out);
        }
        CqlType::Map { key, value, .. } => {
            put_u16(MAP, out);
            write_option(key, out);
            write_option(value, out);
        }
        CqlType::Tuple(types) => {
            put_u16(TUPLE, out);
            put_count(types.len(), out);
            types.iter().for_each(|ty| write_option(ty, out));
        }
        CqlType::Udt(user_type) => {
            put_u16(UDT, out);
            put_string(&user_type.keyspace, out);
            put_string(&user_type.name, out);
            put_count(user_type.fields.len(), out);
            for (name, ty) in &user_type.fields {
                put_string(name, out);
                write_option(ty, out);
            }
        }
        _ => match NATIVE.iter().find(|(_, native)| native == ty) {
            Some((id, _)) => put_u16(*id, out),
            None => {
                put_u16(CUSTOM, out);
                put_string(&class_name::of(ty), out);
            }
        },
    }
}

fn put_u16(value: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    // `limits::check` ensures that a type has fewer fields.
    put_u16(u16::try_from(count).unwrap_or(u16::MAX), out);
}

/// DDL refuses names, and types with class names, that are longer than a string may be. Older ones
/// are truncated.
fn put_string(text: &str, out: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(u16::MAX.into())];
    put_count(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// Takes an `[option]` from the front of `input`. Collections and user types are frozen inside but
/// not outside, because the protocol does not say.
pub fn read_option(input: &mut &[u8]) -> Result<CqlType, ValueError> {
    read(input, 1, &mut 0)
}

fn take_u16(input: &mut &[u8]) -> Result<u16, ValueError> {
    let (head, rest) = input.split_first_chunk::<2>().ok_or_else(ValueError::truncated)?;
    *input = rest;
    Ok(u16::from_be_bytes(*head))
}

fn take_string(input: &mut &[u8]) -> Result<String, ValueError> {
    let len = take_u16(input)?.into();
    let (text, rest) = input.split_at_checked(len).ok_or_else(ValueError::truncated)?;
    *input = rest;
    String::from_utf8(text.to_vec()).map_err(|_| ValueError::new("A name in a type is not valid UTF-8"))
}

fn read(input: &mut &[u8], depth: usize, nodes: &mut usize) -> Result<CqlType, ValueError> {
    *nodes += 1;
    if depth > MAX_TYPE_DEPTH {
        return Err(limits::too_deep("A type"));
    }
    if *nodes > MAX_TYPE_NODES {
        return Err(limits::too_many("A type"));
    }
    let mut nested = |input: &mut &[u8]| read(input, depth + 1, nodes).map(|ty| ty.freeze());
    Ok(match take_u16(input)? {
        CUSTOM => class_name::parse(&take_string(input)?)?,
        LIST => CqlType::list(nested(input)?),
        SET => CqlType::set(nested(input)?),
        MAP => {
            let key = nested(input)?;
            CqlType::map(key, nested(input)?)
        }
        TUPLE => {
            let count = take_u16(input)?;
            let fields: Vec<CqlType> = (0..count).map(|_| nested(input)).collect::<Result<_, _>>()?;
            CqlType::tuple(fields)
        }
        UDT => {
            let (keyspace, name) = (take_string(input)?, take_string(input)?);
            let count = take_u16(input)?;
            let fields =
                (0..count).map(|_| Ok((take_string(input)?, nested(input)?))).collect::<Result<_, ValueError>>()?;
            CqlType::udt(UserType { keyspace, name, fields, frozen: false })
        }
        id => match NATIVE.iter().find(|(native, _)| *native == id) {
            Some((_, ty)) => ty.clone(),
            None => return Err(ValueError::new(format!("Unknown type id 0x{id:04x}"))),
        },
    })
}
