//! Type names.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{Name, NativeType, QualifiedName, TypeName};
use crate::syntax::keyword::Class;

/// Words that ScyllaDB reserves, so that they cannot name user types.
const RESERVED_TYPE_NAMES: [&str; 8] = ["byte", "complex", "date", "empty", "enum", "interval", "macaddr", "bitstring"];

impl Parser<'_> {
    pub(super) fn type_name(&mut self) -> Result<TypeName> {
        self.nested(Self::type_name_inner)
    }

    fn type_name_inner(&mut self) -> Result<TypeName> {
        if self.peek() == Kind::String {
            return self.string().map(TypeName::Custom);
        }
        if self.is_mark(1, M::Less)
            && let Kind::Word(keyword, _) = self.peek()
            && let Some(parametric) = self.parametric_type(keyword)?
        {
            return Ok(parametric);
        }
        if !self.is_mark(1, M::Dot)
            && let Kind::Word(keyword, _) = self.peek()
            && let Some(native) = native_type(keyword)
        {
            self.advance();
            return Ok(TypeName::Native(native));
        }
        self.user_type_name().map(TypeName::User)
    }

    /// A type with parameters. `None` if the keyword does not have parameters.
    fn parametric_type(&mut self, keyword: K) -> Result<Option<TypeName>> {
        if !matches!(keyword, K::List | K::Set | K::Map | K::Tuple | K::Vector | K::Frozen) {
            return Ok(None);
        }
        self.advance();
        self.advance();
        let first = self.type_name()?;
        let type_name = match keyword {
            K::List => TypeName::List(Box::new(first)),
            K::Set => TypeName::Set(Box::new(first)),
            K::Frozen => TypeName::Frozen(Box::new(first)),
            K::Map => {
                self.expect(M::Comma)?;
                TypeName::Map(Box::new(first), Box::new(self.type_name()?))
            }
            K::Vector => {
                self.expect(M::Comma)?;
                if self.peek() != Kind::Integer {
                    return Err(self.mismatch("INTEGER"));
                }
                let digits = self.advance();
                let limit = if digits.starts_with('-') { i64::MIN } else { i64::MAX };
                TypeName::Vector(Box::new(first), digits.parse().unwrap_or(limit))
            }
            _ => {
                let mut members = vec![first];
                while self.eat(M::Comma) {
                    members.push(self.type_name()?);
                }
                TypeName::Tuple(members)
            }
        };
        self.expect(M::Greater)?;
        Ok(Some(type_name))
    }

    /// A native type, for CAST.
    pub(super) fn native_type(&mut self) -> Result<TypeName> {
        let Kind::Word(keyword, _) = self.peek() else { return Err(self.no_alternative()) };
        let native = native_type(keyword).ok_or_else(|| self.no_alternative())?;
        self.advance();
        Ok(TypeName::Native(native))
    }

    /// The name of a user type, which cannot be the name of a native type.
    pub(super) fn user_type_name(&mut self) -> Result<QualifiedName> {
        let keyspace = if self.is_name(0) && self.is_mark(1, M::Dot) {
            let keyspace = self.take_name();
            self.advance();
            Some(keyspace)
        } else {
            None
        };
        Ok(QualifiedName { keyspace, name: self.plain_type_name()? })
    }

    fn plain_type_name(&mut self) -> Result<Name> {
        match self.peek() {
            Kind::QuotedName | Kind::Word(_, Class::Plain) | Kind::Word(K::Key, _) => Ok(self.take_name()),
            Kind::Ident | Kind::Word(K::Empty, _) => {
                let reserved = self.token(0).text(self.source).to_ascii_lowercase();
                if RESERVED_TYPE_NAMES.contains(&reserved.as_str()) {
                    return Err(self.error(format!("Invalid (reserved) user type name {reserved}")));
                }
                Ok(self.take_name())
            }
            _ => Err(self.no_alternative()),
        }
    }
}

fn native_type(keyword: K) -> Option<NativeType> {
    Some(match keyword {
        K::Ascii => NativeType::Ascii,
        K::Bigint => NativeType::Bigint,
        K::Blob => NativeType::Blob,
        K::Boolean => NativeType::Boolean,
        K::Counter => NativeType::Counter,
        K::Date => NativeType::Date,
        K::Decimal => NativeType::Decimal,
        K::Double => NativeType::Double,
        K::Duration => NativeType::Duration,
        K::Float => NativeType::Float,
        K::Inet => NativeType::Inet,
        K::Int => NativeType::Int,
        K::Smallint => NativeType::Smallint,
        K::Text | K::Varchar => NativeType::Text,
        K::Time => NativeType::Time,
        K::Timestamp => NativeType::Timestamp,
        K::Timeuuid => NativeType::Timeuuid,
        K::Tinyint => NativeType::Tinyint,
        K::Uuid => NativeType::Uuid,
        K::Varint => NativeType::Varint,
        _ => return None,
    })
}
