//! Statements that change data.

use super::{Name, QualifiedName, Relation, Term};

/// The USING clause. If an attribute is repeated, the last one counts.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Attributes {
    /// `TIMESTAMP t`, microseconds: an integer or a marker.
    pub timestamp: Option<Term>,
    /// `TTL t`, seconds: an integer or a marker.
    pub ttl: Option<Term>,
    /// `TIMEOUT d`: a duration, a marker, or any other term.
    pub timeout: Option<Term>,
    /// `SERVICE LEVEL name`, of SELECT.
    pub service_level: Option<Name>,
}

/// The IF clause of UPDATE and DELETE.
#[derive(Clone, PartialEq, Debug)]
pub enum Condition {
    /// `IF EXISTS`.
    Exists,
    /// `IF c = 1 AND ...`; at least one.
    All(Vec<Relation>),
}

/// `INSERT`.
#[derive(Clone, PartialEq, Debug)]
pub struct Insert {
    /// The table.
    pub table: QualifiedName,
    /// The source of the values.
    pub source: InsertSource,
    /// `IF NOT EXISTS`.
    pub if_not_exists: bool,
    /// USING TIMESTAMP, TTL, TIMEOUT.
    pub attributes: Attributes,
}

/// The source of an INSERT's values.
#[derive(Clone, PartialEq, Debug)]
pub enum InsertSource {
    /// `(columns) VALUES (values)`. Their numbers may differ; the planner refuses that.
    Values {
        /// The columns; at least one.
        columns: Vec<Name>,
        /// The values; at least one.
        values: Vec<Term>,
    },
    /// `JSON value [DEFAULT NULL | UNSET]`.
    Json {
        /// A string or a marker.
        value: Term,
        /// `DEFAULT UNSET`.
        default_unset: bool,
    },
}

/// `UPDATE`.
#[derive(Clone, PartialEq, Debug)]
pub struct Update {
    /// The table.
    pub table: QualifiedName,
    /// USING TIMESTAMP, TTL, TIMEOUT.
    pub attributes: Attributes,
    /// The SET clause; at least one.
    pub assignments: Vec<Assignment>,
    /// The WHERE clause; at least one.
    pub relations: Vec<Relation>,
    /// The IF clause.
    pub condition: Option<Condition>,
}

/// One assignment of a SET clause.
#[derive(Clone, PartialEq, Debug)]
pub struct Assignment {
    /// The column.
    pub column: Name,
    /// The change.
    pub op: AssignmentOp,
}

/// The change that an assignment makes.
#[derive(Clone, PartialEq, Debug)]
pub enum AssignmentOp {
    /// `c = v`.
    Set(Term),
    /// `c = c + v` or `c += v`. `c = c -1` adds the negative number, because the sign belongs to
    /// it.
    Add(Term),
    /// `c = c - v` or `c -= v`.
    Subtract(Term),
    /// `c = v + c`.
    Prepend(Term),
    /// `c[key] = v`.
    SetElement {
        /// List index or map key.
        key: Term,
        /// The value.
        value: Term,
    },
    /// `c.field = v`.
    SetField {
        /// The field of the user type.
        field: Name,
        /// The value.
        value: Term,
    },
}

/// `DELETE`.
#[derive(Clone, PartialEq, Debug)]
pub struct Delete {
    /// The table.
    pub table: QualifiedName,
    /// The parts of rows to delete. Empty means entire rows.
    pub targets: Vec<DeleteTarget>,
    /// USING TIMESTAMP, TIMEOUT.
    pub attributes: Attributes,
    /// The WHERE clause; at least one.
    pub relations: Vec<Relation>,
    /// The IF clause.
    pub condition: Option<Condition>,
    /// ScyllaDB's `BYPASS LARGE_DATA_GUARDRAILS`.
    pub bypass_large_data_guardrails: bool,
}

/// A part of rows that a DELETE removes.
#[derive(Clone, PartialEq, Debug)]
pub enum DeleteTarget {
    /// `c`.
    Column(Name),
    /// `c[key]`.
    Element {
        /// The collection.
        column: Name,
        /// List index, set element or map key.
        key: Term,
    },
    /// `c.field`.
    Field {
        /// The column of a user type.
        column: Name,
        /// Its field.
        field: Name,
    },
}

/// `BEGIN BATCH ... APPLY BATCH`.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// The kind.
    pub kind: BatchKind,
    /// USING TIMESTAMP, TTL, TIMEOUT of the batch itself.
    pub attributes: Attributes,
    /// The statements. May be empty.
    pub statements: Vec<Modification>,
}

/// The kind of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BatchKind {
    Logged,
    Unlogged,
    Counter,
}

/// A statement in a batch.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Modification {
    Insert(Insert),
    Update(Update),
    Delete(Delete),
}

/// `TRUNCATE`.
#[derive(Clone, PartialEq, Debug)]
pub struct Truncate {
    /// The table.
    pub table: QualifiedName,
    /// USING TIMEOUT.
    pub attributes: Attributes,
}
