//! Types as written in a statement, resolved against a keyspace's user types.

use crate::error::Error;
use crate::syntax::ast::{NativeType, TypeName};
use cluster::Metadata;
use model::CqlType;
use model::types::{class_name, parse};

/// The type that `written` means in a statement on `keyspace`, checked as the type of a column or a field.
pub fn resolve(metadata: &Metadata, keyspace: &str, written: &TypeName) -> Result<CqlType, Error> {
    let ty = of(metadata, keyspace, written)?;
    parse::check(&ty).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(ty)
}

fn of(metadata: &Metadata, keyspace: &str, written: &TypeName) -> Result<CqlType, Error> {
    let inner = |written: &TypeName| of(metadata, keyspace, written);
    Ok(match written {
        TypeName::Native(native) => self::native(*native),
        TypeName::List(elem) => CqlType::list(inner(elem)?),
        TypeName::Set(elem) => CqlType::set(inner(elem)?),
        TypeName::Map(key, value) => CqlType::map(inner(key)?, inner(value)?),
        TypeName::Tuple(fields) => {
            let fields = fields.iter().map(inner).collect::<Result<Vec<_>, Error>>()?;
            CqlType::tuple(fields).freeze()
        }
        TypeName::Vector(elem, dimension) => {
            let most = i64::from(parse::MAX_VECTOR_DIMENSION);
            if !(1..=most).contains(dimension) {
                return Err(Error::invalid(format!("Vectors must have a dimension greater than 0 and at most {most}")));
            }
            CqlType::vector(inner(elem)?.freeze(), *dimension as u32)
        }
        TypeName::Frozen(written) => {
            let ty = inner(written)?;
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
