//! Resolves the types of a statement, with the user types of a keyspace.

use crate::error::Error;
use crate::syntax::ast::{NativeType, TypeName};
use cluster::Metadata;
use model::CqlType;
use model::types::limits::{self, Extent, MAX_TYPE_NODES};
use model::types::{class_name, parse};

/// The most characters of a type in an error.
const MAX_SHOWN: usize = 100;

/// The type that `written` denotes in a statement on `keyspace`, checked as the type of a column or
/// a field.
pub fn resolve(metadata: &Metadata, keyspace: &str, written: &TypeName) -> Result<CqlType, Error> {
    let invalid = |error: model::types::ValueError| Error::invalid(error.to_string());
    // Checked before the type is built, because building it visits all nested types.
    if nodes(metadata, keyspace, written, 0) > MAX_TYPE_NODES {
        return Err(invalid(limits::too_many(short(written))));
    }
    let ty = of(metadata, keyspace, written, Nested::InNothing)?;
    limits::check(&ty, short(written)).map_err(invalid)?;
    parse::check(&ty).map_err(invalid)?;
    Ok(ty)
}

/// The number of nodes of a type plus `before`. Stops early beyond the limit.
fn nodes(metadata: &Metadata, keyspace: &str, written: &TypeName, before: usize) -> usize {
    if before > MAX_TYPE_NODES {
        return before;
    }
    match written {
        TypeName::Frozen(inner) => nodes(metadata, keyspace, inner, before),
        TypeName::List(inner) | TypeName::Set(inner) | TypeName::Vector(inner, _) => {
            nodes(metadata, keyspace, inner, before + 1)
        }
        TypeName::Map(key, value) => {
            let before = nodes(metadata, keyspace, key, before + 1);
            nodes(metadata, keyspace, value, before)
        }
        TypeName::Tuple(fields) => {
            fields.iter().fold(before + 1, |before, field| nodes(metadata, keyspace, field, before))
        }
        TypeName::User(name) => {
            let found = metadata.keyspace(keyspace).and_then(|keyspace| keyspace.types.get(name.name.as_str()));
            before + found.map_or(1, |user_type| Extent::of(&CqlType::Udt(user_type.clone())).nodes)
        }
        TypeName::Native(_) | TypeName::Custom(_) => before + 1,
    }
}

/// The text of the type, shortened.
fn short(written: &TypeName) -> String {
    let shown = shown(written);
    match shown.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("Type {}...", &shown[..end]),
        None => format!("Type {shown}"),
    }
}

/// Whether the type is nested in a type that freezes it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nested {
    InNothing,
    InFrozen,
}

fn of(metadata: &Metadata, keyspace: &str, written: &TypeName, nested: Nested) -> Result<CqlType, Error> {
    let inner = |written: &TypeName| of(metadata, keyspace, written, nested);
    let frozen = |written: &TypeName| of(metadata, keyspace, written, Nested::InFrozen);
    Ok(match written {
        TypeName::Native(native) => self::native(*native),
        TypeName::List(elem) => CqlType::list(element(written, inner(elem)?, nested)?),
        TypeName::Set(elem) => CqlType::set(element(written, inner(elem)?, nested)?),
        TypeName::Map(key, value) => {
            CqlType::map(element(written, inner(key)?, nested)?, element(written, inner(value)?, nested)?)
        }
        TypeName::Tuple(fields) => {
            let fields = fields.iter().map(frozen).collect::<Result<Vec<_>, Error>>()?;
            CqlType::tuple(fields).freeze()
        }
        TypeName::Vector(elem, dimension) => {
            let most = i64::from(parse::MAX_VECTOR_DIMENSION);
            if !(1..=most).contains(dimension) {
                return Err(Error::invalid(format!("Vectors must have a dimension greater than 0 and at most {most}")));
            }
            CqlType::vector(frozen(elem)?.freeze(), *dimension as u32)
        }
        TypeName::Frozen(written) => {
            let ty = frozen(written)?;
            if matches!(**written, TypeName::Native(_)) {
                return Err(Error::invalid(format!(
                    "frozen<> is only allowed on collections, tuples, and user-defined types (got {ty})"
                )));
            }
            ty.freeze()
        }
        TypeName::User(name) => {
            let own = name.keyspace.as_ref().map_or(keyspace, |name| name.as_str());
            if own != keyspace {
                return Err(Error::invalid(format!(
                    "Statement on keyspace {keyspace} cannot refer to a user type in keyspace {own}; user types can only be \
                     used in the keyspace they are defined in"
                )));
            }
            let found = metadata.keyspace(keyspace).and_then(|keyspace| keyspace.types.get(name.name.as_str()));
            let user_type = found.ok_or_else(|| Error::invalid(format!("Unknown type {keyspace}.{}", name.name)))?;
            CqlType::Udt(user_type.clone())
        }
        TypeName::Custom(class) => {
            let ty = class_name::parse(class).map_err(|error| Error::invalid(error.to_string()))?;
            if ty.any(&mut |ty| matches!(ty, CqlType::Custom(_) | CqlType::Udt(_) | CqlType::Empty)) {
                return Err(Error::invalid(format!("Unable to find abstract-type class '{class}'")));
            }
            ty
        }
    })
}

/// Checks the element type of the collection `outer`: it must be frozen unless the collection is.
fn element(outer: &TypeName, ty: CqlType, nested: Nested) -> Result<CqlType, Error> {
    if nested == Nested::InNothing && ty.is_multi_cell() {
        let what = if ty.is_collection() { "collections" } else { "UDTs" };
        let outer = shown(outer);
        return Err(Error::invalid(format!("Non-frozen {what} are not allowed inside collections: {outer}")));
    }
    Ok(ty)
}

/// The text of the type.
fn shown(written: &TypeName) -> String {
    match written {
        TypeName::Native(native) => self::native(*native).to_string(),
        TypeName::List(elem) => format!("list<{}>", shown(elem)),
        TypeName::Set(elem) => format!("set<{}>", shown(elem)),
        TypeName::Map(key, value) => format!("map<{}, {}>", shown(key), shown(value)),
        TypeName::Tuple(fields) => format!("tuple<{}>", fields.iter().map(shown).collect::<Vec<_>>().join(", ")),
        TypeName::Vector(elem, dimension) => format!("vector<{}, {dimension}>", shown(elem)),
        TypeName::Frozen(inner) => format!("frozen<{}>", shown(inner)),
        TypeName::User(name) => name.to_string(),
        TypeName::Custom(class) => format!("'{class}'"),
    }
}

fn native(native: NativeType) -> CqlType {
    match native {
        NativeType::Ascii => CqlType::Ascii,
        NativeType::Bigint => CqlType::Bigint,
        NativeType::Blob => CqlType::Blob,
        NativeType::Boolean => CqlType::Boolean,
        NativeType::Counter => CqlType::Counter,
        NativeType::Date => CqlType::Date,
        NativeType::Decimal => CqlType::Decimal,
        NativeType::Double => CqlType::Double,
        NativeType::Duration => CqlType::Duration,
        NativeType::Float => CqlType::Float,
        NativeType::Inet => CqlType::Inet,
        NativeType::Int => CqlType::Int,
        NativeType::Smallint => CqlType::Smallint,
        NativeType::Text => CqlType::Text,
        NativeType::Time => CqlType::Time,
        NativeType::Timestamp => CqlType::Timestamp,
        NativeType::Timeuuid => CqlType::Timeuuid,
        NativeType::Tinyint => CqlType::Tinyint,
        NativeType::Uuid => CqlType::Uuid,
        NativeType::Varint => CqlType::Varint,
    }
}
