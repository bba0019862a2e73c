//! What the engine's tests share: a table, a naive model of it, and opening an engine as a node
//! does.

#![allow(dead_code, reason = "each program uses its part")]

pub mod table_files;
pub mod uploads;

use bytes::Bytes;
use engine::commitlog::{self, ReplayOptions};
use engine::datadir::DataDir;
use engine::replay_logs;
use engine::{Engine, EngineConfig, ReadOptions, TabletRange};
use model::compact::{Cover, live_cells, live_marker};
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey};
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::options::TableOptions;
use model::range::{PartitionRange, RowRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::{ColumnId, CqlType, HostId, SchemaVersion, TableId, Token};
use rt::ShardId;
use rt::shard::PerShard;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::LazyLock;
use uuid::Uuid;

#[cfg_attr(feature = "sim", allow(unused_imports, reason = "tests in simulation have simulated disks"))]
pub use test_support::Scratch;

pub const NOW: i32 = 2_000_000_000;
/// Long ago, so that every tombstone has outlived its grace period.
pub const DELETED_AT: i32 = 1_000;
pub const STATIC: ColumnId = ColumnId(0);
pub const VALUE: ColumnId = ColumnId(1);
pub const OTHER: ColumnId = ColumnId(2);

fn column(id: ColumnId, name: &str, kind: ColumnKind, ty: CqlType) -> Column {
    Column { id, name: name.into(), kind, position: 0, ty, descending: false }
}

/// The table of [`schema`] without automatic compaction, so that sstables can be counted.
pub fn still(gc_grace_seconds: i32) -> Rc<TableSchema> {
    schema(gc_grace_seconds, |options| {
        options.compaction.insert("enabled".into(), "false".into());
    })
}

/// `t (k int, c int, s text static, v text, w text, primary key (k, c))`.
pub fn schema(gc_grace_seconds: i32, options: impl FnOnce(&mut TableOptions)) -> Rc<TableSchema> {
    let mut table_options = TableOptions { gc_grace_seconds, ..TableOptions::default() };
    options(&mut table_options);
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(0x1234)),
        SchemaVersion(Uuid::from_u128(0x5678)),
        "ks",
        "t",
        vec![column(ColumnId(0), "k", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column(ColumnId(0), "c", ColumnKind::Clustering, CqlType::Int)],
        vec![column(STATIC, "s", ColumnKind::Static, CqlType::Text)],
        vec![
            column(VALUE, "v", ColumnKind::Regular, CqlType::Text),
            column(OTHER, "w", ColumnKind::Regular, CqlType::Text),
        ],
        Vec::new(),
        table_options,
    ))
}

/// `t (k int primary key, v counter)`.
pub fn counters() -> Rc<TableSchema> {
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(0xC0)),
        SchemaVersion(Uuid::from_u128(0x5678)),
        "ks",
        "n",
        vec![column(ColumnId(0), "k", ColumnKind::PartitionKey, CqlType::Int)],
        Vec::new(),
        Vec::new(),
        vec![column(VALUE, "v", ColumnKind::Regular, CqlType::Counter)],
        Vec::new(),
        TableOptions::default(),
    ))
}

pub fn tablets(count: u64) -> Vec<TabletRange> {
    let edge = |i: u64| Token((i128::from(i64::MIN) + (1 << 64) * i128::from(i) / i128::from(count) - 1) as i64);
    (0..count)
        .map(|i| {
            let first = if i == 0 { Token::MIN } else { edge(i) };
            TabletRange { id: i as u32, range: PartitionRange::tokens(first, edge(i + 1)) }
        })
        .collect()
}

pub fn key(k: i32) -> DecoratedKey {
    DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()))
}

pub fn clustering(c: i32) -> Clustering {
    Clustering::from_components([&c.to_be_bytes()[..]])
}

pub fn number(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes.try_into().unwrap())
}

/// One change to a table, with its timestamp beside it.
#[derive(Clone, Debug)]
pub enum Change {
    Insert { k: i32, c: i32, value: String },
    Update { k: i32, c: i32, value: String },
    Static { k: i32, value: String },
    DeleteRow { k: i32, c: i32 },
    DeleteRange { k: i32, from: i32, to: i32 },
    DeletePartition { k: i32 },
}

impl Change {
    pub fn k(&self) -> i32 {
        match self {
            Change::Insert { k, .. }
            | Change::Update { k, .. }
            | Change::Static { k, .. }
            | Change::DeleteRow { k, .. }
            | Change::DeleteRange { k, .. }
            | Change::DeletePartition { k } => *k,
        }
    }

    pub fn mutation(&self, schema: &TableSchema, timestamp: i64) -> Mutation {
        let key = self.k().to_be_bytes();
        let mut builder = MutationBuilder::new(schema.id, schema.version, &key);
        let tombstone = Tombstone::new(timestamp, DELETED_AT);
        match self {
            Change::Insert { c, value, .. } | Change::Update { c, value, .. } => {
                let marker = matches!(self, Change::Insert { .. }).then(|| Marker::new(timestamp));
                let mut row = RowBuilder::new(marker, Tombstone::LIVE);
                row.push(&Cell::live(VALUE, timestamp, value.as_bytes()));
                builder.row(clustering(*c), row.finish());
            }
            Change::Static { value, .. } => {
                let mut row = RowBuilder::new(None, Tombstone::LIVE);
                row.push(&Cell::live(STATIC, timestamp, value.as_bytes()));
                builder.static_row(row.finish());
            }
            Change::DeleteRow { c, .. } => builder.row(clustering(*c), RowBuilder::new(None, tombstone).finish()),
            Change::DeleteRange { from, to, .. } => builder.delete_range(RangeTombstone {
                start: ClusteringCut::before(clustering(*from)),
                end: ClusteringCut::after(clustering(*to)),
                tombstone,
            }),
            Change::DeletePartition { .. } => builder.delete_partition(tombstone),
        }
        builder.finish(schema)
    }
}

/// What a reader sees: by key, the static value and the rows; a row is whether its marker lives,
/// and its value.
pub type Seen = BTreeMap<i32, (Option<String>, BTreeMap<i32, (bool, Option<String>)>)>;

/// The table as a list of changes, read in the most naive way.
#[derive(Clone, Default, Debug)]
pub struct Naive {
    pub changes: Vec<(i64, Change)>,
}

impl Naive {
    fn deleted(&self, k: i32, c: Option<i32>) -> i64 {
        self.changes
            .iter()
            .filter(|(_, change)| change.k() == k)
            .filter(|(_, change)| match (change, c) {
                (Change::DeletePartition { .. }, _) => true,
                (Change::DeleteRow { c, .. }, Some(own)) => *c == own,
                (Change::DeleteRange { from, to, .. }, Some(own)) => *from <= own && own <= *to,
                _ => false,
            })
            .map(|(timestamp, _)| *timestamp)
            .max()
            .unwrap_or(i64::MIN)
    }

    pub fn seen(&self) -> Seen {
        let mut seen = Seen::new();
        let mut best: BTreeMap<(i32, Option<i32>), (i64, String)> = BTreeMap::new();
        for (timestamp, change) in &self.changes {
            let (k, c, value) = match change {
                Change::Insert { k, c, value } | Change::Update { k, c, value } => (*k, Some(*c), value),
                Change::Static { k, value } => (*k, None, value),
                _ => continue,
            };
            if *timestamp <= self.deleted(k, c) {
                continue;
            }
            let candidate = (*timestamp, value.clone());
            let kept = best.entry((k, c)).or_insert_with(|| candidate.clone());
            if *kept < candidate {
                *kept = candidate;
            }
            if let (Some(c), Change::Insert { .. }) = (c, change) {
                seen.entry(k).or_default().1.entry(c).or_default().0 = true;
            }
        }
        for ((k, c), (_, value)) in best {
            let partition = seen.entry(k).or_default();
            match c {
                None => partition.0 = Some(value),
                Some(c) => partition.1.entry(c).or_default().1 = Some(value),
            }
        }
        seen
    }
}

/// Reads with an engine, and drops what is dead.
pub async fn read(engine: &Engine, table: TableId, range: PartitionRange, slice: Slice) -> Seen {
    let fragments = read_fragments(engine, table, range, slice, ReadOptions::default()).await;
    seen_of(&fragments)
}

pub async fn read_fragments(
    engine: &Engine,
    table: TableId,
    range: PartitionRange,
    slice: Slice,
    options: ReadOptions,
) -> Vec<Fragment> {
    let mut reader = engine.reader(table, range, Rc::new(slice), options).unwrap();
    let mut out = VecDeque::new();
    while reader.fill(&mut out).await.unwrap() {}
    out.into()
}

pub fn seen_of(fragments: &[Fragment]) -> Seen {
    let mut seen = Seen::new();
    let mut cover = Cover::default();
    let mut k = 0;
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    for fragment in fragments {
        match fragment {
            Fragment::PartitionStart { key, tombstone } => {
                cover.start(*tombstone);
                k = number(&key.key);
            }
            Fragment::Static(row) => {
                if let Some(cell) = live_cells(row, cover.static_row(), NOW).next() {
                    seen.entry(k).or_default().0 = Some(text(cell.value));
                }
            }
            Fragment::Row { key, row } => {
                let marker = live_marker(row, cover.row(), NOW).is_some();
                let value = live_cells(row, cover.row(), NOW).next().map(|cell| text(cell.value));
                if marker || value.is_some() {
                    let c = number(key.components().next().unwrap());
                    seen.entry(k).or_default().1.insert(c, (marker, value));
                }
            }
            Fragment::Change { tombstone, .. } => cover.change(*tombstone),
            Fragment::PartitionEnd => assert!(cover.range().is_live(), "a range deletion is open at the end"),
        }
    }
    seen
}

pub fn full() -> (PartitionRange, Slice) {
    (PartitionRange::FULL, Slice::full())
}

/// The part of `seen` inside the slice.
pub fn sliced(seen: &Seen, ranges: &[(i32, i32)], statics: bool) -> Seen {
    let mut out = Seen::new();
    for (k, (value, rows)) in seen {
        let rows: BTreeMap<_, _> = rows
            .iter()
            .filter(|(c, _)| ranges.iter().any(|(a, b)| a <= c && *c <= b))
            .map(|(c, row)| (*c, row.clone()))
            .collect();
        let value = if statics { value.clone() } else { None };
        if value.is_some() || !rows.is_empty() {
            out.insert(*k, (value, rows));
        }
    }
    out
}

pub fn row_range(from: i32, to: i32) -> RowRange {
    RowRange { start: ClusteringCut::before(clustering(from)), end: ClusteringCut::after(clustering(to)) }
}

pub fn config(dir: &Path, memory: usize) -> EngineConfig {
    let mut config = EngineConfig::new(dir.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(0xABCD)), memory);
    config.log.segment_size = 1 << 20;
    config.log.total_size_limit = 8 << 20;
    config.auto_snapshot = false;
    config
}

/// The engine of every shard.
pub static ENGINES: LazyLock<PerShard<Engine>> = LazyLock::new(PerShard::new);

/// Opens an engine as a node's only shard does, replaying what earlier runs left.
pub async fn open(config: EngineConfig, schema: &Rc<TableSchema>, tablets: &[TabletRange]) -> Rc<Engine> {
    let _lock = DataDir::open(&config.data_dir, "test", 1).await.unwrap();
    let old = commitlog::find_old(&config.data_dir.join("commitlog")).await.unwrap();
    let engine = Engine::open(config).await.unwrap();
    ENGINES.set(engine.clone());
    let own = tablets.iter().map(|tablet| tablet.id).collect();
    engine.reshard(schema.clone(), tablets, &own).await.unwrap();
    engine.add_table(schema.clone(), tablets.to_vec()).await.unwrap();
    replay_logs(&old, *ENGINES, ReplayOptions::default(), |_, _| Some(ShardId(0))).await.unwrap();
    engine.replay_finished().await.unwrap();
    commitlog::retire(&old).await.unwrap();
    engine.start();
    engine
}

/// A whole snapshot, as a node of one shard takes it.
pub async fn snapshot(engine: &Engine, table: TableId, name: &str) {
    engine.snapshot(table, name).await.unwrap();
    engine.complete_snapshot(table, name).await.unwrap();
    engine.publish_snapshot(table, name).await.unwrap();
}
