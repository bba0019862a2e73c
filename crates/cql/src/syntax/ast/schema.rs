//! Statements about the schema, and DESCRIBE.

use super::{Literal, Name, QualifiedName, Term, TypeName};

/// A `name = value` pair of a WITH clause. Order and repetitions are preserved.
#[derive(Clone, PartialEq, Debug)]
pub struct SchemaOption {
    /// The option.
    pub name: Name,
    /// Its value.
    pub value: OptionValue,
}

/// The value of an option.
#[derive(Clone, PartialEq, Debug)]
pub enum OptionValue {
    /// A constant. A bare word is a string.
    Literal(Literal),
    /// `{key: value, ...}` in written order, possibly empty. Values are constants, or lists or maps
    /// of constants.
    Map(Vec<(Literal, OptionValue)>),
    /// `[value, ...]`; only in a map.
    List(Vec<OptionValue>),
}

/// `CREATE KEYSPACE`.
#[derive(Clone, PartialEq, Debug)]
pub struct CreateKeyspace {
    /// The keyspace.
    pub name: Name,
    /// `IF NOT EXISTS`.
    pub if_not_exists: bool,
    /// The WITH clause.
    pub options: Vec<SchemaOption>,
}

/// `ALTER KEYSPACE`.
#[derive(Clone, PartialEq, Debug)]
pub struct AlterKeyspace {
    /// The keyspace.
    pub name: Name,
    /// `IF EXISTS`.
    pub if_exists: bool,
    /// The WITH clause.
    pub options: Vec<SchemaOption>,
}

/// `DROP KEYSPACE`.
#[derive(Clone, PartialEq, Debug)]
pub struct DropKeyspace {
    /// The keyspace.
    pub name: Name,
    /// `IF EXISTS`.
    pub if_exists: bool,
}

/// `CREATE TABLE`.
#[derive(Clone, PartialEq, Debug)]
pub struct CreateTable {
    /// The table.
    pub name: QualifiedName,
    /// `IF NOT EXISTS`.
    pub if_not_exists: bool,
    /// The columns in the order written.
    pub columns: Vec<ColumnDefinition>,
    /// All PRIMARY KEYs, inline or as a clause. A valid table has exactly one.
    pub primary_keys: Vec<PrimaryKey>,
    /// `CLUSTERING ORDER BY`: columns, with true for DESC.
    pub clustering_order: Vec<(Name, bool)>,
    /// `COMPACT STORAGE`.
    pub compact_storage: bool,
    /// The other options of the WITH clause, including `id`.
    pub options: Vec<SchemaOption>,
}

/// A column of CREATE TABLE or ALTER TABLE ADD.
#[derive(Clone, PartialEq, Debug)]
pub struct ColumnDefinition {
    /// The column.
    pub name: Name,
    /// Its type.
    pub type_name: TypeName,
    /// `STATIC`.
    pub is_static: bool,
    /// ScyllaDB's `TTL` mark: the column holds the row's time to live.
    pub is_ttl: bool,
}

/// `PRIMARY KEY ((a, b), c)`.
#[derive(Clone, PartialEq, Debug)]
pub struct PrimaryKey {
    /// The columns of the partition key; at least one.
    pub partition: Vec<Name>,
    /// The clustering columns.
    pub clustering: Vec<Name>,
}

/// `ALTER TABLE`.
#[derive(Clone, PartialEq, Debug)]
pub struct AlterTable {
    /// The table.
    pub name: QualifiedName,
    /// `IF EXISTS` for the table.
    pub if_exists: bool,
    /// The change.
    pub action: AlterTableAction,
}

/// The change of an ALTER TABLE.
#[derive(Clone, PartialEq, Debug)]
pub enum AlterTableAction {
    /// `ALTER column TYPE type`.
    ColumnType {
        /// The column.
        column: Name,
        /// Its new type.
        type_name: TypeName,
    },
    /// `ADD column type [STATIC], ...`.
    Add {
        /// `IF NOT EXISTS` for the columns.
        if_not_exists: bool,
        /// The columns; at least one.
        columns: Vec<ColumnDefinition>,
    },
    /// `DROP column, ... [USING TIMESTAMP t]`.
    Drop {
        /// `IF EXISTS` for the columns.
        if_exists: bool,
        /// The columns; at least one.
        columns: Vec<Name>,
        /// The drop time in microseconds: an integer or a marker.
        timestamp: Option<Term>,
    },
    /// `RENAME a TO b AND ...`.
    Rename {
        /// `IF EXISTS` for the columns.
        if_exists: bool,
        /// Old and new names; at least one pair.
        pairs: Vec<(Name, Name)>,
    },
    /// `WITH option = value AND ...`.
    Options(Vec<SchemaOption>),
    /// ScyllaDB's `TTL column`, or `TTL NULL` as `None`.
    RowTtl(Option<Name>),
}

/// `DROP TABLE`.
#[derive(Clone, PartialEq, Debug)]
pub struct DropTable {
    /// The table.
    pub name: QualifiedName,
    /// `IF EXISTS`.
    pub if_exists: bool,
}

/// `CREATE TYPE`.
#[derive(Clone, PartialEq, Debug)]
pub struct CreateType {
    /// The type.
    pub name: QualifiedName,
    /// `IF NOT EXISTS`.
    pub if_not_exists: bool,
    /// The fields in order; at least one.
    pub fields: Vec<(Name, TypeName)>,
}

/// `ALTER TYPE`.
#[derive(Clone, PartialEq, Debug)]
pub struct AlterType {
    /// The type.
    pub name: QualifiedName,
    /// `IF EXISTS` for the type.
    pub if_exists: bool,
    /// The change.
    pub action: AlterTypeAction,
}

/// The change of an ALTER TYPE.
#[derive(Clone, PartialEq, Debug)]
pub enum AlterTypeAction {
    /// `ALTER field TYPE type`.
    FieldType {
        /// The field.
        field: Name,
        /// Its new type.
        type_name: TypeName,
    },
    /// `ADD field type`.
    Add {
        /// `IF NOT EXISTS` for the field.
        if_not_exists: bool,
        /// The field.
        field: Name,
        /// Its type.
        type_name: TypeName,
    },
    /// `RENAME a TO b AND ...`.
    Rename {
        /// `IF EXISTS` for the fields.
        if_exists: bool,
        /// Old and new names; at least one pair.
        pairs: Vec<(Name, Name)>,
    },
}

/// `DROP TYPE`.
#[derive(Clone, PartialEq, Debug)]
pub struct DropType {
    /// The type.
    pub name: QualifiedName,
    /// `IF EXISTS`.
    pub if_exists: bool,
}

/// DROP of a kind of schema object that cannot be created yet. No such object exists.
#[derive(Clone, PartialEq, Debug)]
pub struct DropUnsupported {
    /// The kind.
    pub kind: UnsupportedKind,
    /// The name. Roles, users and service levels have no keyspace.
    pub name: QualifiedName,
    /// The argument types of a function or an aggregate, if present.
    pub arguments: Option<Vec<TypeName>>,
    /// `IF EXISTS`.
    pub if_exists: bool,
}

/// Kinds of schema objects that cannot be created yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum UnsupportedKind {
    Index,
    View,
    Function,
    Aggregate,
    Role,
    User,
    ServiceLevel,
}

/// `CREATE CUSTOM INDEX`, which is refused. Only the class is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct CreateCustomIndex {
    /// The class after USING, if present.
    pub class: Option<String>,
}

/// `DESCRIBE`.
#[derive(Clone, PartialEq, Debug)]
pub struct Describe {
    /// What to describe.
    pub target: DescribeTarget,
    /// `WITH INTERNALS`.
    pub with_internals: bool,
    /// `AND PASSWORDS`.
    pub with_passwords: bool,
}

/// The target of a DESCRIBE.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum DescribeTarget {
    Cluster,
    Schema {
        full: bool,
    },
    Keyspaces,
    /// `[ONLY] KEYSPACE [name]`; without a name, the session's keyspace.
    Keyspace {
        only: bool,
        name: Option<Name>,
    },
    Tables,
    Table(QualifiedName),
    Types,
    Type(QualifiedName),
    Functions,
    Function(QualifiedName),
    Aggregates,
    Aggregate(QualifiedName),
    Index(QualifiedName),
    View(QualifiedName),
    /// A name alone: of a keyspace, table, view or index.
    Any(QualifiedName),
}
