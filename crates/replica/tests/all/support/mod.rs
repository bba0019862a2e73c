//! Shared by the replica's tests: a table with every kind of fragment, an engine of it, and paging
//! as a coordinator does it.

use bytes::Bytes;
use engine::{Engine, EngineConfig, TabletRange};
use model::key::{Clustering, ClusteringCut, DecoratedKey, RingCut};
use model::mutation::{MutationBuilder, RangeTombstone};
use model::options::TableOptions;
use model::range::{PartitionRange, Resume, RowRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::{ColumnId, CqlType, HostId, SchemaVersion, TableId};
use replica::{
    Class, Context, Digest, FragmentPage, Limits, Output, OutputColumn, Page, PageEnd, RateLimitMode, ReadCommand,
    Region, Replica, ReplicaError, ReplicaRequest, ReplicaResponse, Trace,
};
use rt::ShardId;
use rt::sync::{Cancel, Deadline};
use smallvec::smallvec;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

pub use test_support::Scratch;

pub const NOW: i32 = 1_000_000;
const STATIC: ColumnId = ColumnId(0);
const VALUE: ColumnId = ColumnId(1);

fn column(id: u16, name: &str, kind: ColumnKind, ty: CqlType, descending: bool) -> Column {
    Column { id: ColumnId(id), name: name.into(), kind, position: 0, ty, descending }
}

/// `t (k int, a int, b int, s text static, v text, primary key (k, a, b)) with clustering order by
/// (a asc, b desc)`, with this schema version.
pub fn schema(version: u128) -> Rc<TableSchema> {
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(0x77)),
        SchemaVersion(Uuid::from_u128(version)),
        "ks",
        "t",
        vec![column(0, "k", ColumnKind::PartitionKey, CqlType::Int, false)],
        vec![
            column(0, "a", ColumnKind::Clustering, CqlType::Int, false),
            column(1, "b", ColumnKind::Clustering, CqlType::Int, true),
        ],
        vec![column(STATIC.0, "s", ColumnKind::Static, CqlType::Text, false)],
        vec![column(VALUE.0, "v", ColumnKind::Regular, CqlType::Text, false)],
        Vec::new(),
        TableOptions::default(),
    ))
}

/// An engine with that table, which neither flushes nor compacts by itself.
pub async fn engine(scratch: &Scratch) -> Rc<Engine> {
    let mut config = EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(1)), 64 << 20);
    config.auto_compaction = false;
    config.auto_snapshot = false;
    let engine = Engine::open(config).await.unwrap();
    engine.add_table(schema(1), vec![TabletRange { id: 0, range: PartitionRange::FULL }]).await.unwrap();
    engine.start();
    engine
}

pub fn key(k: i32) -> DecoratedKey {
    DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()))
}

pub fn clustering(parts: &[i32]) -> Clustering {
    let parts: Vec<_> = parts.iter().map(|part| part.to_be_bytes()).collect();
    Clustering::from_components(parts.iter().map(|part| &part[..]))
}

/// One change to the table.
#[derive(Clone, Debug)]
pub enum Change {
    Row { k: i32, a: i32, b: i32, size: usize },
    Static { k: i32 },
    LargeStatic { k: i32, size: usize },
    DeleteStatic { k: i32 },
    DeleteRow { k: i32, a: i32, b: i32 },
    DeletePrefix { k: i32, a: i32 },
    DeleteRange { k: i32, from: (i32, i32), to: (i32, i32), open: bool },
    DeletePartition { k: i32 },
}

impl Change {
    pub fn apply(&self, engine: &Engine, timestamp: i64) {
        let schema = engine.schema(schema(1).id).unwrap();
        let k = match self {
            Change::Row { k, .. }
            | Change::Static { k }
            | Change::LargeStatic { k, .. }
            | Change::DeleteStatic { k }
            | Change::DeleteRow { k, .. }
            | Change::DeletePrefix { k, .. }
            | Change::DeleteRange { k, .. }
            | Change::DeletePartition { k } => *k,
        };
        let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
        let tombstone = Tombstone::new(timestamp, NOW - 1);
        match self {
            Change::Row { a, b, size, .. } => {
                let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
                let value: Vec<u8> = timestamp.to_string().bytes().cycle().take(*size).collect();
                row.push(&Cell::live(VALUE, timestamp, &value));
                builder.row(clustering(&[*a, *b]), row.finish());
            }
            Change::Static { .. } => {
                let mut row = RowBuilder::new(None, Tombstone::LIVE);
                row.push(&Cell::live(STATIC, timestamp, timestamp.to_string().as_bytes()));
                builder.static_row(row.finish());
            }
            Change::LargeStatic { size, .. } => {
                let mut row = RowBuilder::new(None, Tombstone::LIVE);
                row.push(&Cell::live(STATIC, timestamp, &vec![b's'; *size]));
                builder.static_row(row.finish());
            }
            Change::DeleteStatic { .. } => {
                let mut row = RowBuilder::new(None, Tombstone::LIVE);
                row.push(&Cell::dead(STATIC, timestamp, NOW - 1));
                builder.static_row(row.finish());
            }
            Change::DeleteRow { a, b, .. } => {
                builder.row(clustering(&[*a, *b]), RowBuilder::new(None, tombstone).finish())
            }
            Change::DeletePrefix { a, .. } => {
                let RowRange { start, end } = RowRange::prefix(clustering(&[*a]));
                builder.delete_range(RangeTombstone { start, end, tombstone });
            }
            Change::DeleteRange { from, to, open, .. } => {
                let (from, to) = (clustering(&[from.0, from.1]), clustering(&[to.0, to.1]));
                let start = ClusteringCut { prefix: from, after: *open };
                let end = ClusteringCut { prefix: to, after: !*open };
                builder.delete_range(RangeTombstone { start, end, tombstone });
            }
            Change::DeletePartition { .. } => builder.delete_partition(tombstone),
        }
        engine.apply(&builder.finish(&schema), &key(k)).unwrap();
    }
}

/// What is read, and how much of it at once.
#[derive(Clone, Debug)]
pub struct Query {
    pub id: u8,
    /// One partition, or all between two keys' tokens.
    pub range: PartitionRange,
    /// Not overlapping, in the table's order.
    pub rows: Vec<RowRange>,
    pub reversed: bool,
    pub distinct: bool,
    pub limits: Limits,
}

pub fn limits(rows: u64) -> Limits {
    Limits { rows, per_partition: u64::MAX, bytes: 1 << 20, tombstones: 10_000, unpaged_bytes: 1 << 30, paged: true }
}

impl Query {
    /// All rows of a partition, some at a time.
    pub fn of_key(id: u8, k: i32, rows: u64) -> Query {
        let range = PartitionRange::singular(&key(k));
        Query { id, range, rows: vec![RowRange::FULL], reversed: false, distinct: false, limits: limits(rows) }
    }

    fn slice(&self, resume: Option<Resume>) -> Slice {
        Slice { rows: self.rows.clone(), static_row: true, reversed: self.reversed, resume }
    }

    /// The read of the first page, or of the one behind another; none if there is none.
    pub fn command(&self, version: u128, before: Option<&Page>) -> Option<ReadCommand> {
        let output = Output::new(
            vec![
                OutputColumn::PartitionKey(0),
                OutputColumn::Clustering(0),
                OutputColumn::Clustering(1),
                OutputColumn::Value(STATIC),
                OutputColumn::Value(VALUE),
            ],
            true,
            self.distinct,
        );
        let mut range = self.range.clone();
        let mut slice = self.slice(None);
        let mut resumed_rows = 0;
        if let Some(before) = before {
            if before.end == PageEnd::Exhausted {
                return None;
            }
            let last = before.last.as_ref().unwrap();
            let key = DecoratedKey::new(last.key.clone());
            if last.region == Region::End {
                range.start = RingCut::after_key(&key);
                if self.range.singular_key().is_some() {
                    return None;
                }
            } else {
                range.start = RingCut::before_key(&key);
                let cut = ClusteringCut { prefix: last.prefix.clone(), after: last.weight >= 0 };
                slice = self.slice(Some(Resume { key, rows: self.rows_behind(&cut), static_row: true }));
            }
            resumed_rows = before.rows_in_last;
        }
        Some(ReadCommand {
            table: schema(1).id,
            schema_version: schema(version).version,
            ranges: smallvec![range],
            slice: Rc::new(slice),
            output: Rc::new(output),
            limits: self.limits,
            now: NOW,
            resumed_rows,
            bypass_cache: false,
            query: Some(model::id::QueryId::from_bytes([self.id; 16])),
            first_page: before.is_none(),
            ends_with_rows: false,
        })
    }

    /// The rest of the rows behind a cut of the reader, range by range.
    fn rows_behind(&self, cut: &ClusteringCut) -> Vec<RowRange> {
        let order = &schema(1).order;
        let mut left = Vec::new();
        for range in self.rows.clone() {
            let mut range = range;
            if self.reversed {
                let end = cut.clone().reversed();
                if range.end.cmp(order, &end).is_gt() {
                    range.end = end;
                }
            } else if range.start.cmp(order, cut).is_lt() {
                range.start = cut.clone();
            }
            if !range.is_empty(order) {
                left.push(range);
            }
        }
        left
    }
}

pub fn context() -> Context {
    Context {
        class: Class::User,
        deadline: Deadline::after(Duration::from_secs(60)),
        cancel: Cancel::new(),
        trace: None,
        metadata_number: 1,
        large_data: None,
        rate_limit: RateLimitMode::Off,
    }
}

/// A page.
pub async fn read(replica: &Replica, command: &ReadCommand, context: &Context) -> Result<Page, ReplicaError> {
    match replica.perform(&ReplicaRequest::Read(command.clone().into()), context).await? {
        ReplicaResponse::Page(page) => Ok(*page),
        other => panic!("{other:?}"),
    }
}

/// A page and its digest.
pub async fn read_digested(replica: &Replica, command: &ReadCommand) -> (Page, Digest) {
    match replica.perform(&ReplicaRequest::ReadAndDigest(command.clone().into()), &context()).await {
        Ok(ReplicaResponse::Digested(page, digest)) => (*page, digest),
        other => panic!("{other:?}"),
    }
}

/// The data behind a page.
pub async fn fragments(
    replica: &Replica,
    command: &ReadCommand,
    context: &Context,
) -> Result<FragmentPage, ReplicaError> {
    match replica.perform(&ReplicaRequest::ReadFragments(command.clone().into()), context).await? {
        ReplicaResponse::Fragments(part) => Ok(*part),
        other => panic!("{other:?}"),
    }
}

/// A page, and what the trace said of the querier cache.
pub async fn traced(replica: &Replica, command: &ReadCommand) -> (Page, Vec<String>) {
    let trace = Rc::new(Trace::new(Uuid::from_u128(9)));
    let context = Context { trace: Some(trace.clone()), ..context() };
    let page = read(replica, command, &context).await.unwrap();
    let words = trace
        .take_events()
        .into_iter()
        .filter_map(|event| Some(event.activity.strip_prefix("Querier cache: ")?.to_owned()));
    (page, words.collect())
}
