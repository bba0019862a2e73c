//! The tree of a parsed statement.
//!
//! Says what was written and nothing about what it means: no name is resolved, no value is converted, no count is
//! checked. Every node owns its data. Names are already folded (unquoted words in lower case), literals keep their text
//! where a type is needed to read them. Nesting is bounded by `parser::MAX_NESTING`, so recursion over a tree is safe.

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

/// A name of a keyspace, table, column, type, field or function, with unquoted spellings already in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// A name exactly as given: the caller has folded it.
    pub fn new(text: impl Into<String>) -> Name {
        Name(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its text, by value.
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

/// A name that may say its keyspace.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct QualifiedName {
    /// The keyspace, where written.
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
    /// One entry per bind marker in order of appearance (`Marker` is an index here): its name for `:name`, none for
    /// `?`. A name used twice has two entries; whoever binds values decides that they are one variable.
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
    /// A statement recognised by its first words only; what follows them was read as words, not understood.
    Later(Later),
}

/// Statements whose first words are recognised, so that the answer is "not supported yet" and no syntax error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Later {
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

impl fmt::Display for Later {
    /// The words that start the statement, such as `CREATE INDEX`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Later::CreateIndex => "CREATE INDEX",
            Later::CreateView => "CREATE MATERIALIZED VIEW",
            Later::AlterView => "ALTER MATERIALIZED VIEW",
            Later::PruneView => "PRUNE MATERIALIZED VIEW",
            Later::CreateFunction => "CREATE FUNCTION",
            Later::CreateAggregate => "CREATE AGGREGATE",
            Later::CreateTrigger => "CREATE TRIGGER",
            Later::DropTrigger => "DROP TRIGGER",
            Later::CreateRole => "CREATE ROLE",
            Later::AlterRole => "ALTER ROLE",
            Later::CreateUser => "CREATE USER",
            Later::AlterUser => "ALTER USER",
            Later::Grant => "GRANT",
            Later::Revoke => "REVOKE",
            Later::List => "LIST",
            Later::CreateServiceLevel => "CREATE SERVICE LEVEL",
            Later::AlterServiceLevel => "ALTER SERVICE LEVEL",
            Later::AttachServiceLevel => "ATTACH SERVICE LEVEL",
            Later::DetachServiceLevel => "DETACH SERVICE LEVEL",
        })
    }
}
