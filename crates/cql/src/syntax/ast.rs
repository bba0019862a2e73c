//! The syntax tree of a statement.
//!
//! The tree represents the text without interpretation: no name is resolved, no value is converted,
//! no count is checked. Every node owns its data. Names are already folded: unquoted words are in
//! lower case. Literals keep their text if a type is needed to parse them. Nesting is limited by
//! `parser::MAX_NESTING`, so recursion over a tree is safe.

mod data;
mod schema;
mod select;
mod term;

use std::fmt;
use std::ops::Deref;

pub use data::{
    Assignment, AssignmentOp, Attributes, Batch, BatchKind, Condition, Delete, DeleteTarget, Insert, InsertSource,
    Modification, Truncate, Update,
};
pub use schema::{
    AlterKeyspace, AlterTable, AlterTableAction, AlterType, AlterTypeAction, ColumnDefinition, CreateCustomIndex,
    CreateKeyspace, CreateTable, CreateType, Describe, DescribeTarget, DropKeyspace, DropTable, DropType,
    DropUnsupported, OptionValue, PrimaryKey, SchemaOption, UnsupportedKind,
};
pub use select::{
    CompareOp, InValues, OrderBy, Relation, Select, SelectExpr, SelectFrom, SelectItem, Selection, Target,
};
pub use term::{FunctionCall, Literal, Marker, NativeType, Term, TypeName};

/// The name of a keyspace, table, column, type, field or function. Unquoted names are in lower
/// case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// A name exactly as given. The caller has folded it.
    pub fn new(text: impl Into<String>) -> Name {
        Name(text.into())
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text of the name, by value.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&super::quote_identifier(&self.0), f)
    }
}

/// A name with an optional keyspace.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct QualifiedName {
    /// The keyspace, if present.
    pub keyspace: Option<Name>,
    /// The name within the keyspace.
    pub name: Name,
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(keyspace) = &self.keyspace {
            write!(f, "{keyspace}.")?;
        }
        fmt::Display::fmt(&self.name, f)
    }
}

impl fmt::Debug for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(keyspace) = &self.keyspace {
            write!(f, "{keyspace:?}.")?;
        }
        fmt::Debug::fmt(&self.name, f)
    }
}

/// A statement and its bind markers.
#[derive(Clone, PartialEq, Debug)]
pub struct ParsedStatement {
    /// The statement.
    pub statement: Statement,
    /// One entry for each bind marker in order of appearance (`Marker` is an index here): the name
    /// of `:name`, `None` for `?`. A name that is used twice has two entries. `term::variables`
    /// decides whether they are one variable.
    pub markers: Vec<Option<Name>>,
}

/// A statement of CQL.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Statement {
    /// `USE keyspace`.
    Use(Name),
    CreateKeyspace(CreateKeyspace),
    AlterKeyspace(AlterKeyspace),
    DropKeyspace(DropKeyspace),
    CreateTable(CreateTable),
    AlterTable(AlterTable),
    DropTable(DropTable),
    CreateType(CreateType),
    AlterType(AlterType),
    DropType(DropType),
    DropUnsupported(DropUnsupported),
    CreateCustomIndex(CreateCustomIndex),
    Truncate(Truncate),
    Insert(Insert),
    Update(Update),
    Delete(Delete),
    Batch(Batch),
    Select(Box<Select>),
    Describe(Describe),
    /// A statement recognized by its first words only. The rest was read as tokens, but not parsed.
    Unsupported(Unsupported),
}

/// Statements that are recognized by their first words, so that the error is "not supported yet"
/// instead of a syntax error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Unsupported {
    CreateIndex,
    CreateView,
    AlterView,
    PruneView,
    CreateFunction,
    CreateAggregate,
    CreateTrigger,
    DropTrigger,
    CreateRole,
    AlterRole,
    CreateUser,
    AlterUser,
    Grant,
    Revoke,
    List,
    CreateServiceLevel,
    AlterServiceLevel,
    AttachServiceLevel,
    DetachServiceLevel,
}

impl fmt::Display for Unsupported {
    /// The words that start the statement, such as `CREATE INDEX`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsupported::CreateIndex => "CREATE INDEX",
            Unsupported::CreateView => "CREATE MATERIALIZED VIEW",
            Unsupported::AlterView => "ALTER MATERIALIZED VIEW",
            Unsupported::PruneView => "PRUNE MATERIALIZED VIEW",
            Unsupported::CreateFunction => "CREATE FUNCTION",
            Unsupported::CreateAggregate => "CREATE AGGREGATE",
            Unsupported::CreateTrigger => "CREATE TRIGGER",
            Unsupported::DropTrigger => "DROP TRIGGER",
            Unsupported::CreateRole => "CREATE ROLE",
            Unsupported::AlterRole => "ALTER ROLE",
            Unsupported::CreateUser => "CREATE USER",
            Unsupported::AlterUser => "ALTER USER",
            Unsupported::Grant => "GRANT",
            Unsupported::Revoke => "REVOKE",
            Unsupported::List => "LIST",
            Unsupported::CreateServiceLevel => "CREATE SERVICE LEVEL",
            Unsupported::AlterServiceLevel => "ALTER SERVICE LEVEL",
            Unsupported::AttachServiceLevel => "ATTACH SERVICE LEVEL",
            Unsupported::DetachServiceLevel => "DETACH SERVICE LEVEL",
        })
    }
}
