//! The names of types in CQL text, as in `system_schema` and DESCRIBE, and quoting of identifiers.

use std::fmt::{self, Display, Formatter, Write as _};

use super::{CqlType, parse};

/// Words that CQL does not accept as a name unless they are quoted.
const RESERVED: [&str; 62] = [
    "add",
    "allow",
    "alter",
    "and",
    "apply",
    "asc",
    "authorize",
    "batch",
    "begin",
    "by",
    "columnfamily",
    "create",
    "default",
    "delete",
    "desc",
    "describe",
    "drop",
    "entries",
    "execute",
    "from",
    "full",
    "grant",
    "if",
    "in",
    "index",
    "infinity",
    "insert",
    "into",
    "is",
    "keyspace",
    "limit",
    "materialized",
    "mbean",
    "mbeans",
    "modify",
    "nan",
    "norecursive",
    "not",
    "null",
    "of",
    "on",
    "or",
    "order",
    "primary",
    "rename",
    "replace",
    "revoke",
    "schema",
    "select",
    "set",
    "table",
    "to",
    "token",
    "truncate",
    "unlogged",
    "unset",
    "update",
    "use",
    "using",
    "view",
    "where",
    "with",
];

/// Whether `word`, in lower case, must be quoted to be a name.
pub fn is_reserved_keyword(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// Shows an identifier with quotes if it needs them.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = self.0;
        let mut bytes = name.bytes();
        let plain = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase())
            && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if plain && !is_reserved_keyword(name) {
            return f.write_str(name);
        }
        f.write_char('"')?;
        f.write_str(&name.replace('"', "\"\""))?;
        f.write_char('"')
    }
}

impl CqlType {
    /// The name of a type without parameters.
    #[inline]
    pub(super) fn native_name(&self) -> Option<&'static str> {
        Some(match self {
            CqlType::Ascii => "ascii",
            CqlType::Bigint => "bigint",
            CqlType::Blob => "blob",
            CqlType::Boolean => "boolean",
            CqlType::Counter => "counter",
            CqlType::Date => "date",
            CqlType::Decimal => "decimal",
            CqlType::Double => "double",
            CqlType::Duration => "duration",
            CqlType::Float => "float",
            CqlType::Inet => "inet",
            CqlType::Int => "int",
            CqlType::Smallint => "smallint",
            CqlType::Text => "text",
            CqlType::Time => "time",
            CqlType::Timestamp => "timestamp",
            CqlType::Timeuuid => "timeuuid",
            CqlType::Tinyint => "tinyint",
            CqlType::Uuid => "uuid",
            CqlType::Varint => "varint",
            CqlType::Empty => "empty",
            _ => return None,
        })
    }
}

/// `nested` types are frozen, marked or not.
fn show(ty: &CqlType, nested: bool, f: &mut Formatter<'_>) -> fmt::Result {
    if let Some(name) = ty.native_name() {
        return f.write_str(name);
    }
    let marked = match ty {
        CqlType::Tuple(_) => true,
        CqlType::Vector { .. } | CqlType::Custom(_) => false,
        _ => nested || ty.is_frozen(),
    };
    if marked {
        f.write_str("frozen<")?;
    }
    match ty {
        CqlType::List { elem, .. } => show_parameters("list", &[elem], f)?,
        CqlType::Set { elem, .. } => show_parameters("set", &[elem], f)?,
        CqlType::Map { key, value, .. } => show_parameters("map", &[key, value], f)?,
        CqlType::Tuple(fields) => show_parameters("tuple", &fields.iter().collect::<Vec<_>>(), f)?,
        // Unquoted, it would read as the native type.
        CqlType::Udt(user_type) if parse::native(&user_type.name).is_some() => write!(f, "\"{}\"", user_type.name)?,
        CqlType::Udt(user_type) => Quoted(&user_type.name).fmt(f)?,
        CqlType::Vector { elem, dim } => {
            f.write_str("vector<")?;
            show(elem, true, f)?;
            write!(f, ", {dim}>")?;
        }
        CqlType::Custom(class) => write!(f, "'{}'", class.replace('\'', "''"))?,
        _ => {}
    }
    if marked { f.write_char('>') } else { Ok(()) }
}

fn show_parameters(name: &str, types: &[&CqlType], f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "{name}<")?;
    for (i, ty) in types.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        show(ty, true, f)?;
    }
    f.write_char('>')
}

/// The CQL name: `map<text, frozen<list<int>>>`.
impl Display for CqlType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        show(self, false, f)
    }
}
