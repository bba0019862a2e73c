//! What the language takes and gives: the border between the protocol server above and the language.
//!
//! Bytes of values stay slices of the frame they came in; rows of an answer are already in the protocol's form.

use bytes::Bytes;
use md5::{Digest, Md5};
use model::CqlType;
use model::types::wire;
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use uuid::Uuid;

pub use coordinator::Consistency;

/// A bound value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BoundValue {
    /// `null`.
    Null,
    /// Not set: leaves a column untouched.
    Unset,
    /// The serialised value.
    Value(Bytes),
}

/// The values of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "the large variant is the common one, and spares an allocation per request"
)]
pub enum BoundValues {
    /// By place.
    Positional(SmallVec<[BoundValue; 8]>),
    /// By marker name.
    Named(Vec<(String, BoundValue)>),
}

impl Default for BoundValues {
    fn default() -> Self {
        BoundValues::Positional(SmallVec::new())
    }
}

/// How a request wants to be executed.
#[derive(Clone, Debug)]
pub struct QueryParams {
    /// The wanted level.
    pub consistency: Consistency,
    /// For conditional statements.
    pub serial_consistency: Option<Consistency>,
    /// Bound values.
    pub values: BoundValues,
    /// Rows a page; `None` or not positive: all at once.
    pub page_size: Option<i32>,
    /// Where the previous page ended, as given to the client; not yet trusted.
    pub paging_state: Option<Bytes>,
    /// The client needs no column descriptions: it relies on those that it got with the prepared statement.
    pub skip_metadata: bool,
    /// The client's timestamp, microseconds.
    pub timestamp: Option<i64>,
    /// What the client takes the time to be, in seconds since 1970: for expiry, of what is read and written. For tests of clients.
    pub now_in_seconds: Option<i32>,
    /// The request is traced under this id.
    pub trace: Option<Uuid>,
    /// The client wants to know why the page ended (custom payload `messina-page-info`).
    pub page_info: bool,
}

impl Default for QueryParams {
    fn default() -> Self {
        QueryParams {
            consistency: Consistency::One,
            serial_consistency: None,
            values: BoundValues::default(),
            page_size: None,
            paging_state: None,
            skip_metadata: false,
            timestamp: None,
            now_in_seconds: None,
            trace: None,
            page_info: false,
        }
    }
}

/// How a batch is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchKind {
    /// All or nothing, in the end.
    Logged,
    /// Each partition for itself.
    Unlogged,
    /// Counters.
    Counter,
}

/// A statement of a protocol batch.
#[derive(Clone, Debug)]
pub enum BatchStatement {
    /// Text.
    Query(String, BoundValues),
    /// Prepared.
    Prepared([u8; 16], BoundValues),
}

/// A protocol batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its kind.
    pub kind: BatchKind,
    /// Its statements.
    pub statements: Vec<BatchStatement>,
    /// How to execute it; `values` is unused.
    pub params: QueryParams,
}

/// What one connection's statements share. Lives on the connection's shard.
#[derive(Debug)]
pub struct ClientState {
    /// The current keyspace, after USE.
    pub keyspace: RefCell<Option<String>>,
    /// The role; none without authentication.
    pub role: RefCell<Option<String>>,
    /// Where the client is; `None` for requests from inside.
    pub address: Option<SocketAddr>,
    /// The client negotiated `TABLETS_ROUTING_V1`.
    pub tablets_routing: Cell<bool>,
    /// Set when the connection is gone: work for it stops at its next yield.
    pub cancel: rt::sync::Cancel,
    /// The connection, whatever keyspace a request of it names.
    pub identity: Rc<()>,
}

/// A column of a result or a bind marker.
#[derive(Clone, PartialEq, Debug)]
pub struct ColumnSpec {
    /// Keyspace.
    pub keyspace: Rc<str>,
    /// Table.
    pub table: Rc<str>,
    /// Name.
    pub name: String,
    /// Type.
    pub ty: CqlType,
}

/// What tells one description of a result from another.
pub type MetadataId = [u8; 16];

/// The description of a result's columns.
#[derive(Debug, Default)]
pub struct ResultMetadata {
    /// The columns in order.
    pub columns: Box<[ColumnSpec]>,
    /// The protocol's form of them, filled by the server at first use.
    pub encoded: OnceCell<Bytes>,
    /// [`ResultMetadata::id`], once somebody asked for it.
    pub digest: OnceCell<MetadataId>,
    /// Clients may know other columns of the statement, from before its tables changed: they are told these whether they want to be or not,
    /// unless they say by its id what they know.
    pub altered: Cell<bool>,
}

impl ResultMetadata {
    /// MD5 of the columns: the same on every shard and node, another one when a name or a type has changed. Computed at its
    /// first use.
    pub fn id(&self) -> MetadataId {
        *self.digest.get_or_init(|| {
            let mut hash = Md5::new();
            let mut option = Vec::new();
            for column in &self.columns {
                for name in [&*column.keyspace, &*column.table, &column.name] {
                    hash.update((name.len() as u32).to_be_bytes());
                    hash.update(name);
                }
                option.clear();
                wire::write_option(&column.ty, &mut option);
                hash.update(&option);
            }
            hash.finalize().into()
        })
    }
}

/// Rows.
#[derive(Debug)]
pub struct Rows {
    /// Their columns.
    pub metadata: Rc<ResultMetadata>,
    /// Where the next page begins; `None`: this was the last one.
    pub paging_state: Option<Bytes>,
    /// How many rows.
    pub count: u32,
    /// The rows, each value as i32 length (-1: null) and bytes, as the protocol wants them.
    pub body: Bytes,
}

/// What kind of thing a schema change is about.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SchemaTarget {
    Keyspace,
    Table(String),
    Type(String),
}

/// What was done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SchemaAction {
    Created,
    Updated,
    Dropped,
}

/// A schema change, as a result and as an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemaChange {
    /// What was done.
    pub action: SchemaAction,
    /// To what.
    pub target: SchemaTarget,
    /// In which keyspace.
    pub keyspace: String,
}

/// The kind and content of an answer.
#[derive(Debug)]
pub enum AnswerKind {
    /// Done, nothing to tell.
    Void,
    /// Rows.
    Rows(Rows),
    /// USE.
    SetKeyspace(String),
    /// DDL.
    SchemaChange(SchemaChange),
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Kind and content.
    pub kind: AnswerKind,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// The value of the custom payload `tablets-routing-v1`, if the client went to the wrong place.
    pub tablet: Option<Bytes>,
    /// The value of the custom payload `messina-page-info`, if the client wanted it.
    pub page_info: Option<Bytes>,
}

impl Answer {
    /// An answer without warnings.
    pub fn new(kind: AnswerKind) -> Self {
        Answer { kind, warnings: Vec::new(), tablet: None, page_info: None }
    }
}

/// What PREPARE answers.
#[derive(Debug)]
pub struct Prepared {
    /// The statement's id (see `prepared_id`).
    pub id: [u8; 16],
    /// The bind markers.
    pub markers: Rc<ResultMetadata>,
    /// For each partition key column in order, the marker that is bound to it; empty unless all are.
    pub partition_key_markers: Vec<u16>,
    /// The columns of the result; empty for statements without rows.
    pub result: Rc<ResultMetadata>,
    /// It has a condition (IF): clients that negotiated the mark send it to the first replica.
    pub conditional: bool,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}
