//! Values and types in a statement: literals, collections, markers, function calls, type names.

use std::borrow::Cow;

use uuid::Uuid;

use super::{Name, QualifiedName};

/// A bind marker, as an index into `ParsedStatement::markers`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Marker(pub usize);

/// A constant. Numbers keep their text, because their type is not known to the parser.
#[derive(Clone, PartialEq, Debug)]
pub enum Literal {
    /// A string without its quotes. Doubled quotes are replaced by single ones.
    String(String),
    /// Digits with an optional minus sign, of any length.
    Integer(String),
    /// A number with a point or exponent, or `NaN`, `Infinity`, `-Infinity`. `str::parse::<f64>`
    /// accepts all of them.
    Float(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A UUID.
    Uuid(Uuid),
    /// The hexadecimal digits of a blob, without `0x`. An odd number of digits is invalid for a
    /// blob.
    Hex(String),
    /// The text of a duration, which `syntax::Duration` parses.
    Duration(String),
    /// `null`.
    Null,
}

impl Literal {
    /// The constant as text, for options: the content of a string, the text of anything else.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Literal::String(text) | Literal::Integer(text) | Literal::Float(text) | Literal::Duration(text) => {
                Cow::Borrowed(text)
            }
            Literal::Boolean(true) => Cow::Borrowed("true"),
            Literal::Boolean(false) => Cow::Borrowed("false"),
            Literal::Uuid(uuid) => Cow::Owned(uuid.to_string()),
            Literal::Hex(digits) => Cow::Owned(format!("0x{digits}")),
            Literal::Null => Cow::Borrowed("null"),
        }
    }
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Term {
    /// A constant.
    Literal(Literal),
    /// `[a, b]`: a list or a vector.
    List(Vec<Term>),
    /// `{a, b}`. `{}` is an empty set or an empty map, depending on the type.
    Set(Vec<Term>),
    /// `{k: v}` with at least one pair.
    Map(Vec<(Term, Term)>),
    /// `{field: v}` with at least one field. A field may be repeated.
    UserType(Vec<(Name, Term)>),
    /// `(a, b)`, also with a single value.
    Tuple(Vec<Term>),
    /// `?` or `:name`.
    Marker(Marker),
    /// `f(a, b)`.
    Call(FunctionCall<Term>),
    /// `(type) value`.
    Hint(TypeName, Box<Term>),
}

/// A function call. Arguments are `Term`s in values and `SelectExpr`s in SELECT clauses.
#[derive(Clone, PartialEq, Debug)]
pub struct FunctionCall<Argument> {
    /// The function.
    pub name: QualifiedName,
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// The name of a type.
#[derive(Clone, PartialEq, Debug)]
pub enum TypeName {
    /// A native type.
    Native(NativeType),
    /// `list<T>`.
    List(Box<TypeName>),
    /// `set<T>`.
    Set(Box<TypeName>),
    /// `map<K, V>`.
    Map(Box<TypeName>, Box<TypeName>),
    /// `tuple<T, ...>`.
    Tuple(Vec<TypeName>),
    /// `vector<T, n>`. A number that exceeds 64 bits is replaced by the largest. Its validity is
    /// not checked.
    Vector(Box<TypeName>, i64),
    /// `frozen<T>`.
    Frozen(Box<TypeName>),
    /// A user type.
    User(QualifiedName),
    /// A class name in quotes.
    Custom(String),
}

/// A native type. `varchar` is `Text`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum NativeType {
    Ascii,
    Bigint,
    Blob,
    Boolean,
    Counter,
    Date,
    Decimal,
    Double,
    Duration,
    Float,
    Inet,
    Int,
    Smallint,
    Text,
    Time,
    Timestamp,
    Timeuuid,
    Tinyint,
    Uuid,
    Varint,
}
