//! The interface between the query processor and the protocol server above it: requests and
//! answers.
//!
//! Bytes of bound values stay slices of the received frame. Rows of an answer are already encoded
//! for the protocol.

use bytes::Bytes;
use md5::{Digest, Md5};
use model::CqlType;
use model::types::wire;
use rt::time::Instant;
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use uuid::Uuid;

pub use crate::checked::CheckedValue;
pub use coordinator::Consistency;

/// A bound value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BoundValue {
    /// `null`.
    Null,
    /// Not set: leaves the column unchanged.
    Unset,
    /// The serialized value.
    Value(Bytes),
    /// A large value that was validated off the shard.
    Checked(Box<CheckedValue>),
}

impl BoundValue {
    /// The length of the value; 0 if there is none.
    pub fn len(&self) -> usize {
        match self {
            BoundValue::Null | BoundValue::Unset => 0,
            BoundValue::Value(bytes) => bytes.len(),
            BoundValue::Checked(value) => value.bytes.len(),
        }
    }

    /// Whether there is no value, or one without bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The values of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "the large variant is the common one, and spares an allocation per request"
)]
pub enum BoundValues {
    /// In the order of the bind markers.
    Positional(SmallVec<[BoundValue; 8]>),
    /// By marker name.
    Named(Vec<(String, BoundValue)>),
}

impl Default for BoundValues {
    #[inline]
    fn default() -> Self {
        BoundValues::Positional(SmallVec::new())
    }
}

/// The parameters of a request.
#[derive(Clone, Debug)]
pub struct QueryParams {
    /// The consistency level.
    pub consistency: Consistency,
    /// The level for conditional statements.
    pub serial_consistency: Option<Consistency>,
    /// Bound values.
    pub values: BoundValues,
    /// Rows per page. Without it, or if it is not positive, the result is not paged.
    pub page_size: Option<i32>,
    /// Where the previous page ended, as the client sent it. Not verified yet.
    pub paging_state: Option<Bytes>,
    /// The client needs no column descriptions. It uses the columns that it got with the prepared
    /// statement.
    pub skip_metadata: bool,
    /// The client's timestamp, in microseconds.
    pub timestamp: Option<i64>,
    /// The client's time, in seconds since 1970. It decides which data has expired, for reads and
    /// writes. Meant for tests of clients.
    pub now_in_seconds: Option<i32>,
    /// The id under which the request is traced.
    pub trace: Option<Uuid>,
    /// The client requests the reason why the page ended (custom payload `messina-page-info`).
    pub page_info: bool,
    /// The client requests the numbers of a refusal by a rate limit (custom payload
    /// `messina-rate-limit`).
    pub rate_limit_info: bool,
    /// When the request was received: its timeouts begin then. `None`: when its execution begins.
    pub received: Option<Instant>,
}

impl Default for QueryParams {
    #[inline]
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
            rate_limit_info: false,
            received: None,
        }
    }
}

/// How a batch is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchKind {
    /// Atomic: eventually all statements are applied, or none.
    Logged,
    /// Each partition is applied separately.
    Unlogged,
    /// Counter updates.
    Counter,
}

/// A statement of a protocol batch.
#[derive(Clone, Debug)]
pub enum BatchStatement {
    /// A statement given as text.
    Query(String, BoundValues),
    /// The id of a prepared statement.
    Prepared([u8; 16], BoundValues),
}

/// A protocol batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its kind.
    pub kind: BatchKind,
    /// Its statements.
    pub statements: Vec<BatchStatement>,
    /// Its parameters. `values` is unused.
    pub params: QueryParams,
}

/// The state that the statements of one connection share. It lives on the connection's shard.
#[derive(Debug)]
pub struct ClientState {
    /// The current keyspace, set by USE.
    pub keyspace: RefCell<Option<String>>,
    /// The authenticated role. `None` without authentication.
    pub role: RefCell<Option<String>>,
    /// The client's address. `None` for internal requests.
    pub address: Option<SocketAddr>,
    /// The client negotiated `TABLETS_ROUTING_V1`.
    pub tablets_routing: Cell<bool>,
    /// Set when the connection is closed. Work for the client then stops at its next yield.
    pub cancel: rt::sync::Cancel,
    /// Identifies the connection. A request that names its own keyspace has another state with the
    /// same identity.
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

/// Identifies one description of a result's columns.
pub type MetadataId = [u8; 16];

/// The description of a result's columns.
#[derive(Debug, Default)]
pub struct ResultMetadata {
    /// The columns in order.
    pub columns: Box<[ColumnSpec]>,
    /// Its encoding in the protocol, filled by the server at first use.
    pub encoded: OnceCell<Bytes>,
    /// [`ResultMetadata::id`], computed at first use.
    pub digest: OnceCell<MetadataId>,
    /// Clients may know other columns of this statement, from before its tables changed. They then
    /// get the columns even if they did not ask for them, unless they sent the id of this
    /// description.
    pub altered: Cell<bool>,
}

impl ResultMetadata {
    /// The MD5 of the columns. It is the same on every shard and node, and changes with each name
    /// or type. Computed at first use.
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

/// A page of rows.
#[derive(Debug)]
pub struct Rows {
    /// Their columns.
    pub metadata: Rc<ResultMetadata>,
    /// Where the next page begins. `None` on the last page.
    pub paging_state: Option<Bytes>,
    /// The number of rows.
    pub count: u32,
    /// The rows in the protocol's encoding: for each value, its length as i32 (-1 for null) and its
    /// bytes.
    pub body: Bytes,
}

/// The object of a schema change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SchemaTarget {
    Keyspace,
    Table(String),
    Type(String),
}

/// The kind of a schema change.
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
    /// The kind of change.
    pub action: SchemaAction,
    /// The changed object.
    pub target: SchemaTarget,
    /// The keyspace.
    pub keyspace: String,
}

/// The kind and content of an answer.
#[derive(Debug)]
pub enum ResultKind {
    /// No result.
    Void,
    /// Rows.
    Rows(Rows),
    /// The result of USE.
    SetKeyspace(String),
    /// The result of a DDL statement.
    SchemaChange(SchemaChange),
}

/// An answer.
#[derive(Debug)]
pub struct StatementResult {
    /// The kind and content.
    pub kind: ResultKind,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// The value of the custom payload `tablets-routing-v1`. Present if the client chose the wrong
    /// node or shard.
    pub tablet: Option<Bytes>,
    /// The value of the custom payload `messina-page-info`, if the client requested it.
    pub page_info: Option<Bytes>,
}

impl StatementResult {
    /// An answer without warnings.
    pub fn new(kind: ResultKind) -> Self {
        StatementResult { kind, warnings: Vec::new(), tablet: None, page_info: None }
    }
}

/// The answer to PREPARE.
#[derive(Debug)]
pub struct Prepared {
    /// The statement's id (see `prepared_id`).
    pub id: [u8; 16],
    /// The bind markers.
    pub markers: Rc<ResultMetadata>,
    /// For each partition key column in order, the marker that is bound to it. Empty unless every
    /// one has a marker.
    pub partition_key_markers: Vec<u16>,
    /// The columns of the result; empty for statements without rows.
    pub result: Rc<ResultMetadata>,
    /// The statement has a condition (IF). Clients that negotiated LWT marking send it to the first
    /// replica.
    pub conditional: bool,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}
