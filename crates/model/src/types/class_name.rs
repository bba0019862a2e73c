//! The class names of types, `org.apache.cassandra.db.marshal.*`: used in the headers of sstables,
//! in custom types of the protocol, and in quoted types of CQL.
//!
//! Only the outermost frozen collection or user type is wrapped in FrozenType. Everything nested is
//! frozen, marked or not (old files omit the marks). Tuples and vectors are never wrapped. Names
//! may be given without their package.
//!
//! Types nested beyond the limits are parsed as one opaque type, whose values are read as bytes.

use super::cursor::Cursor;
use super::limits::{MAX_TYPE_DEPTH, MAX_TYPE_NODES};
use super::parse::{MAX_NESTING, MAX_VECTOR_DIMENSION};
use super::scalar_text::{decode_hex, push_hex};
use super::{CqlType, UserType, ValueError};

/// The package of the classes, which may be omitted.
pub const PACKAGE: &str = "org.apache.cassandra.db.marshal.";

/// The class name of `ty`.
pub fn of(ty: &CqlType) -> String {
    let mut out = String::new();
    push(ty, TypePosition::Top, &mut out);
    out
}

/// The class name of a clustering column. Descending order is part of it.
pub fn of_clustering(ty: &CqlType, descending: bool) -> String {
    if descending { format!("{PACKAGE}ReversedType({})", of(ty)) } else { of(ty) }
}

/// The class name of a partition key of these columns.
pub fn of_partition_key<'t>(types: impl IntoIterator<Item = &'t CqlType>) -> String {
    let names: Vec<String> = types.into_iter().map(of).collect();
    match names.as_slice() {
        [single] => single.clone(),
        several => format!("{PACKAGE}CompositeType({})", several.join(",")),
    }
}

fn native(ty: &CqlType) -> Option<&'static str> {
    Some(match ty {
        CqlType::Ascii => "AsciiType",
        CqlType::Bigint => "LongType",
        CqlType::Blob => "BytesType",
        CqlType::Boolean => "BooleanType",
        CqlType::Counter => "CounterColumnType",
        CqlType::Date => "SimpleDateType",
        CqlType::Decimal => "DecimalType",
        CqlType::Double => "DoubleType",
        CqlType::Duration => "DurationType",
        CqlType::Float => "FloatType",
        CqlType::Inet => "InetAddressType",
        CqlType::Int => "Int32Type",
        CqlType::Smallint => "ShortType",
        CqlType::Text => "UTF8Type",
        CqlType::Time => "TimeType",
        CqlType::Timestamp => "TimestampType",
        CqlType::Timeuuid => "TimeUUIDType",
        CqlType::Tinyint => "ByteType",
        CqlType::Uuid => "UUIDType",
        CqlType::Varint => "IntegerType",
        CqlType::Empty => "EmptyType",
        _ => return None,
    })
}

/// The position of a type within another. Nested types are frozen, and are not marked again inside
/// of a frozen one.
#[derive(Clone, Copy, PartialEq)]
enum TypePosition {
    Top,
    InMultiCell,
    InFrozen,
}

fn push(ty: &CqlType, place: TypePosition, out: &mut String) {
    let frozen = place != TypePosition::Top || ty.is_frozen();
    let wrapped = matches!(
        ty,
        CqlType::List { .. } | CqlType::Set { .. } | CqlType::Map { .. } | CqlType::Udt(_) if frozen && place != TypePosition::InFrozen
    );
    if wrapped {
        out.push_str(PACKAGE);
        out.push_str("FrozenType(");
    }
    let inner = if frozen { TypePosition::InFrozen } else { TypePosition::InMultiCell };
    match ty {
        CqlType::List { elem, .. } => push_parameters("ListType", [&**elem], inner, out),
        CqlType::Set { elem, .. } => push_parameters("SetType", [&**elem], inner, out),
        CqlType::Map { key, value, .. } => push_parameters("MapType", [&**key, &**value], inner, out),
        CqlType::Tuple(types) => push_parameters("TupleType", types.iter(), TypePosition::InFrozen, out),
        CqlType::Udt(user_type) => {
            out.push_str(PACKAGE);
            out.push_str("UserType(");
            out.push_str(&user_type.keyspace);
            out.push(',');
            push_hex(user_type.name.as_bytes(), out);
            for (name, ty) in &user_type.fields {
                out.push(',');
                push_hex(name.as_bytes(), out);
                out.push(':');
                push(ty, inner, out);
            }
            out.push(')');
        }
        CqlType::Vector { elem, dim } => {
            out.push_str(PACKAGE);
            out.push_str("VectorType(");
            push(elem, if place == TypePosition::Top { TypePosition::InMultiCell } else { place }, out);
            out.push_str(&format!(" , {dim})"));
        }
        CqlType::Custom(name) => out.push_str(name),
        _ => {
            out.push_str(PACKAGE);
            out.push_str(native(ty).unwrap_or("BytesType"));
        }
    }
    if wrapped {
        out.push(')');
    }
}

fn push_parameters<'t>(
    name: &str,
    types: impl IntoIterator<Item = &'t CqlType>,
    place: TypePosition,
    out: &mut String,
) {
    out.push_str(PACKAGE);
    out.push_str(name);
    out.push('(');
    for (i, ty) in types.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        push(ty, place, out);
    }
    out.push(')');
}

/// The meaning of a class name: a type, alone or as part of a key.
enum Parsed {
    Type(CqlType),
    Reversed(CqlType),
    Composite(Vec<CqlType>),
}

/// Parses the class name of a type. An unknown class becomes [`CqlType::Custom`].
pub fn parse(text: &str) -> Result<CqlType, ValueError> {
    match parse_any(text)? {
        Parsed::Type(ty) => Ok(ty),
        Parsed::Reversed(_) => Err(ValueError::new(format!("'{text}' is not the type of a value"))),
        Parsed::Composite(_) => Ok(CqlType::Custom(text.into())),
    }
}

/// Parses the class name of a clustering column, and whether its order is descending.
pub fn parse_clustering(text: &str) -> Result<(CqlType, bool), ValueError> {
    match parse_any(text)? {
        Parsed::Type(ty) => Ok((ty, false)),
        Parsed::Reversed(ty) => Ok((ty, true)),
        Parsed::Composite(_) => Ok((CqlType::Custom(text.into()), false)),
    }
}

/// Parses the class name of a partition key into the types of its columns.
pub fn parse_partition_key(text: &str) -> Result<Vec<CqlType>, ValueError> {
    match parse_any(text)? {
        Parsed::Type(ty) => Ok(vec![ty]),
        Parsed::Composite(types) => Ok(types),
        Parsed::Reversed(_) => Err(ValueError::new(format!("'{text}' is not the type of a partition key"))),
    }
}

fn parse_any(text: &str) -> Result<Parsed, ValueError> {
    let mut parser = Parser { cursor: Cursor::new(text, "a type class"), nesting: 0, nodes: 0 };
    let parsed = parser.any(0)?;
    parser.cursor.end()?;
    Ok(parsed)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    /// The number of open parameter lists, including the lists of wrappers.
    nesting: usize,
    /// The number of types so far.
    nodes: usize,
}

impl<'a> Parser<'a> {
    /// Text up to the next separator.
    fn word(&mut self) -> Result<&'a str, ValueError> {
        self.cursor.skip_space();
        let len =
            self.cursor.rest.find(|c: char| "(),:".contains(c) || c.is_whitespace()).unwrap_or(self.cursor.rest.len());
        if len == 0 {
            return Err(self.cursor.unexpected());
        }
        Ok(self.cursor.take(len))
    }

    /// A word that is a name in hexadecimal.
    fn hex_name(&mut self) -> Result<String, ValueError> {
        let word = self.word()?;
        decode_hex(word).and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| self.cursor.unexpected())
    }

    /// A type in parameters.
    fn ty(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        match self.any(depth)? {
            Parsed::Type(ty) => Ok(ty),
            _ => Err(self.cursor.unexpected()),
        }
    }

    fn one(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        self.cursor.expect('(')?;
        let ty = self.ty(depth)?;
        self.cursor.expect(')')?;
        Ok(ty)
    }

    fn several(&mut self, depth: usize) -> Result<Vec<CqlType>, ValueError> {
        self.cursor.expect('(')?;
        let mut types = Vec::new();
        loop {
            types.push(self.ty(depth)?);
            if !self.cursor.eat(',') {
                break;
            }
        }
        self.cursor.expect(')')?;
        Ok(types)
    }

    /// The type at this position, with `depth` types around it.
    fn any(&mut self, depth: usize) -> Result<Parsed, ValueError> {
        if self.nesting == MAX_NESTING {
            return Err(ValueError::new(format!("Types may not nest deeper than {MAX_NESTING}")));
        }
        self.nesting += 1;
        let parsed = self.any_at(depth);
        self.nesting -= 1;
        parsed
    }

    fn any_at(&mut self, depth: usize) -> Result<Parsed, ValueError> {
        self.cursor.skip_space();
        let start = self.cursor.rest;
        let name = self.word()?;
        let short = match name.strip_prefix(PACKAGE) {
            Some(short) => short,
            None if !name.contains('.') => name,
            None => return self.custom(start),
        };
        let is_wrapper = matches!(short, "FrozenType" | "ReversedType" | "CompositeType");
        self.nodes += usize::from(!is_wrapper);
        // The width of a vector's values may depend on its elements, so these must be parsed.
        let is_beyond = depth + 1 >= MAX_TYPE_DEPTH || (self.nodes > MAX_TYPE_NODES && short != "VectorType");
        if is_beyond && depth > 0 && !is_wrapper && self.cursor.rest.trim_start().starts_with('(') {
            return self.custom(start);
        }
        Ok(Parsed::Type(match short {
            "ListType" => CqlType::list(self.one(depth + 1)?.freeze()),
            "SetType" => CqlType::set(self.one(depth + 1)?.freeze()),
            "MapType" => {
                let types = self.several(depth + 1)?;
                let [key, value] = types.as_slice() else { return Err(self.cursor.unexpected()) };
                CqlType::map(key.freeze(), value.freeze())
            }
            "TupleType" => CqlType::tuple(self.several(depth + 1)?).freeze(),
            "FrozenType" => self.one(depth)?.freeze(),
            "UserType" => self.user_type(depth)?,
            "VectorType" => {
                self.cursor.expect('(')?;
                let elem = self.ty(depth + 1)?.freeze();
                self.cursor.expect(',')?;
                let dim = self.word()?.parse().map_err(|_| self.cursor.unexpected())?;
                self.cursor.expect(')')?;
                if !(1..=MAX_VECTOR_DIMENSION).contains(&dim) {
                    return Err(self.cursor.unexpected());
                }
                CqlType::vector(elem, dim)
            }
            "ReversedType" => return self.one(depth).map(Parsed::Reversed),
            "CompositeType" => return self.several(depth).map(Parsed::Composite),
            "DateType" => CqlType::Timestamp,
            "LexicalUUIDType" => CqlType::Uuid,
            "EmptyType" => CqlType::Empty,
            _ => match CqlType::NATIVE.iter().find(|ty| native(ty) == Some(short)) {
                Some(ty) => ty.clone(),
                None => return self.custom(start),
            },
        }))
    }

    fn user_type(&mut self, depth: usize) -> Result<CqlType, ValueError> {
        self.cursor.expect('(')?;
        let keyspace = self.word()?.to_owned();
        self.cursor.expect(',')?;
        let name = self.hex_name()?;
        let mut fields = Vec::new();
        while self.cursor.eat(',') {
            let field = self.hex_name()?;
            self.cursor.expect(':')?;
            fields.push((field, self.ty(depth + 1)?));
        }
        self.cursor.expect(')')?;
        Ok(CqlType::udt(UserType { keyspace, name, fields: fields.into(), frozen: false }))
    }

    /// An unknown class: its text up to the end of its parameters.
    fn custom(&mut self, start: &'a str) -> Result<Parsed, ValueError> {
        self.cursor.skip_space();
        if self.cursor.rest.starts_with('(') {
            let mut open = 0usize;
            let end = self.cursor.rest.find(|c| {
                match c {
                    '(' => open += 1,
                    ')' => open -= 1,
                    _ => {}
                }
                open == 0
            });
            let end = end.ok_or_else(|| self.cursor.unexpected())?;
            self.cursor.rest = &self.cursor.rest[end + 1..];
        }
        let text = start[..start.len() - self.cursor.rest.len()].trim_end();
        Ok(Parsed::Type(CqlType::Custom(text.into())))
    }
}
