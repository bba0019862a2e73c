//! SELECT statements and relations.

use super::{Attributes, FunctionCall, Marker, Name, QualifiedName, Term, TypeName};

/// `SELECT`.
#[derive(Clone, PartialEq, Debug)]
pub struct Select {
    /// `JSON`.
    pub json: bool,
    /// `DISTINCT`.
    pub distinct: bool,
    /// The SELECT clause.
    pub selection: Selection,
    /// The FROM clause. ScyllaDB allows a SELECT without it.
    pub from: Option<SelectFrom>,
    /// The WHERE clause.
    pub relations: Vec<Relation>,
    /// The GROUP BY clause.
    pub group_by: Vec<Name>,
    /// The ORDER BY clause.
    pub order_by: Vec<OrderBy>,
    /// PER PARTITION LIMIT: an integer or a marker.
    pub per_partition_limit: Option<Term>,
    /// LIMIT: an integer or a marker.
    pub limit: Option<Term>,
    /// ALLOW FILTERING.
    pub allow_filtering: bool,
    /// BYPASS CACHE.
    pub bypass_cache: bool,
    /// USING TIMEOUT, SERVICE LEVEL.
    pub attributes: Attributes,
}

/// The table of a SELECT.
#[derive(Clone, PartialEq, Debug)]
pub struct SelectFrom {
    /// The table.
    pub table: QualifiedName,
    /// `MUTATION_FRAGMENTS(table)`.
    pub mutation_fragments: bool,
}

/// The SELECT clause.
#[derive(Clone, PartialEq, Debug)]
pub enum Selection {
    /// `*`.
    All,
    /// Expressions; at least one.
    Items(Vec<SelectItem>),
}

/// One expression of a SELECT clause.
#[derive(Clone, PartialEq, Debug)]
pub struct SelectItem {
    /// The expression.
    pub expr: SelectExpr,
    /// `AS alias`.
    pub alias: Option<Name>,
}

/// An expression of a SELECT clause.
#[derive(Clone, PartialEq, Debug)]
pub enum SelectExpr {
    /// A column.
    Column(Name),
    /// A value, with or without a type hint.
    Value(Term),
    /// `count(*)` or `count(1)`.
    CountRows,
    /// `writetime(column)` of a column, an element or a field. `Target::Tuple` and similar do not
    /// occur.
    WriteTime(Target),
    /// `ttl(column)`, with the same targets.
    Ttl(Target),
    /// A function call on expressions, including aggregates and `token`.
    Call(FunctionCall<SelectExpr>),
    /// `CAST(expression AS type)`.
    Cast(Box<SelectExpr>, TypeName),
    /// `expression.field`.
    Field(Box<SelectExpr>, Name),
    /// `expression[key]`.
    Element(Box<SelectExpr>, Term),
    /// `expression[from..to]`. Both bounds are optional.
    Slice(Box<SelectExpr>, Option<Term>, Option<Term>),
}

/// A condition of a WHERE or IF clause.
#[derive(Clone, PartialEq, Debug)]
pub enum Relation {
    /// `target op value`.
    Compare {
        /// The left side.
        target: Target,
        /// The operator.
        op: CompareOp,
        /// The right side.
        value: Term,
    },
    /// `target [NOT] IN values`.
    In {
        /// The left side.
        target: Target,
        /// `NOT IN`.
        negated: bool,
        /// The right side.
        values: InValues,
    },
    /// `column CONTAINS [KEY] value`.
    Contains {
        /// The collection.
        column: Name,
        /// `CONTAINS KEY`.
        key: bool,
        /// The value or key.
        value: Term,
    },
    /// `column IS NOT NULL`.
    IsNotNull {
        /// The column.
        column: Name,
    },
}

/// The left side of a relation.
#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    /// `c`.
    Column(Name),
    /// `c[key]`.
    Element(Name, Term),
    /// `c.field`; only in IF clauses, `writetime` and `ttl`.
    Field(Name, Name),
    /// `(a, b)`; at least one column.
    Tuple(Vec<Name>),
    /// `token(a, b)`; at least one column.
    Token(Vec<Name>),
    /// A call of another function.
    Call(FunctionCall<SelectExpr>),
}

/// The right side of IN.
#[derive(Clone, PartialEq, Debug)]
pub enum InValues {
    /// `(a, b)`, possibly empty. For a tuple of columns, each term is a tuple or a marker.
    List(Vec<Term>),
    /// `?` or `:name` for the entire list.
    Marker(Marker),
}

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum CompareOp {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
    Ne,
    Like,
}

/// One element of ORDER BY.
#[derive(Clone, PartialEq, Debug)]
pub enum OrderBy {
    /// `column [ASC | DESC]`.
    Column {
        /// The column.
        column: Name,
        /// `DESC`.
        descending: bool,
    },
    /// `column ANN OF vector`.
    Ann {
        /// The vector column.
        column: Name,
        /// The vector to which the results are close.
        vector: Term,
    },
    /// A scoring function.
    Call(FunctionCall<SelectExpr>),
}
