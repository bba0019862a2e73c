//! Values as written: literals, collections, markers, function calls; and types as written.

use std::borrow::Cow;

use uuid::Uuid;

use super::{Name, QualifiedName};

/// A bind marker, by its place in `ParsedStatement::markers`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Marker(pub usize);

/// A constant as written. Numbers keep their text: the type they become is not known here.
#[derive(Clone, PartialEq, Debug)]
pub enum Literal {
    /// A string, its quotes removed and doubled quotes made single.
    String(String),
    /// Digits, perhaps after a minus sign; of any length.
    Integer(String),
    /// A number with a point or exponent, or `NaN`, `Infinity`, `-Infinity`; `str::parse::<f64>` reads all of them.
    Float(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A UUID.
    Uuid(Uuid),
    /// The hexadecimal digits of a blob, without `0x`; their number may be odd, which no blob has.
    Hex(String),
    /// A duration as written; `syntax::Duration` reads it.
    Duration(String),
    /// `null`.
    Null,
}

impl Literal {
    /// The constant as options and properties see it: the text of a string, anything else as written.
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

/// A value as written.
#[derive(Clone, PartialEq, Debug)]
pub enum Term {
    /// A constant.
    Literal(Literal),
    /// `[a, b]`: a list or a vector.
    List(Vec<Term>),
    /// `{a, b}`; `{}` too, which is an empty set or an empty map as the type asks.
    Set(Vec<Term>),
    /// `{k: v}` with at least one pair.
    Map(Vec<(Term, Term)>),
    /// `{field: v}` with at least one field, as written: a field may be repeated.
    UserType(Vec<(Name, Term)>),
    /// `(a, b)`, also of one value.
    Tuple(Vec<Term>),
    /// `?` or `:name`.
    Marker(Marker),
    /// `f(a, b)`.
    Call(FunctionCall<Term>),
    /// `(type) value`.
    Hint(TypeName, Box<Term>),
}

/// A function and its arguments, which are `Term`s in values and `SelectExpr`s in selections.
#[derive(Clone, PartialEq, Debug)]
pub struct FunctionCall<Argument> {
    /// The function.
    pub name: QualifiedName,
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// A type as written.
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
    /// `vector<T, n>`; a number too large for 64 bits is cut to the largest. Whether it makes sense is not checked.
    Vector(Box<TypeName>, i64),
    /// `frozen<T>`.
    Frozen(Box<TypeName>),
    /// The name of a user type.
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
