//! Schemas, numbered mutations, and reading them back.

use super::super::*;
use bytes::Bytes;
use model::options::TableOptions;
use model::{Column, ColumnId, ColumnKind, CqlType, SchemaVersion, TableId, TableSchema};
use rt::ShardId;
use std::path::Path;
use std::rc::Rc;

pub const SEGMENT: u32 = 16 << 10;

pub fn config(root: &Path, mode: SyncMode) -> CommitlogConfig {
    let shard = ShardId(0);
    CommitlogConfig {
        mode,
        segment_size: SEGMENT,
        total_size_limit: 1 << 20,
        ..CommitlogConfig::new(root.join(shard.to_string()), shard)
    }
}

pub fn schema(table: u8, version: u8) -> Rc<TableSchema> {
    let column = |id, name: &str, kind, ty| Column {
        id: ColumnId(id),
        name: name.into(),
        kind,
        position: 0,
        ty,
        descending: kind == ColumnKind::Clustering,
    };
    Rc::new(TableSchema::new(
        TableId::from_bytes([table; 16]),
        SchemaVersion::from_bytes([version; 16]),
        "ks",
        format!("t{table}"),
        vec![column(0, "p", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column(0, "c", ColumnKind::Clustering, CqlType::Bigint)],
        vec![],
        vec![column(7, "v", ColumnKind::Regular, CqlType::Text)],
        vec![],
        TableOptions::default(),
    ))
}

/// Something that begins like a mutation and carries a number.
pub fn mutation(schema: &TableSchema, number: u64, len: usize) -> Bytes {
    let mut out = vec![1u8];
    out.extend_from_slice(schema.id.as_bytes());
    out.extend_from_slice(schema.version.as_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.resize(out.len() + len, number as u8);
    out.into()
}

pub fn number_of(mutation: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&mutation[33..41]);
    u64::from_le_bytes(number)
}

/// A new run of the log, with nothing of the runs before replayed.
pub async fn open(root: &Path, mode: SyncMode) -> Rc<Commitlog> {
    match Commitlog::open(config(root, mode)).await {
        Ok(log) => log,
        Err(error) => panic!("open: {error}"),
    }
}

/// Appends a mutation of `len` bytes and waits until it is acknowledged.
pub async fn append(log: &Rc<Commitlog>, slot: u32, number: u64, len: usize) -> Position {
    let schema = schema(1, 1);
    let mutation = mutation(&schema, number, len);
    let entry = Entry { schema: &schema, slot: SlotId(slot), mutation: &mutation };
    let position = log.append_wait(&[entry]).await.expect("appended").position;
    log.acknowledged(position).await.expect("acknowledged");
    position
}

/// The numbers in the logs below `root`, in order, and the report.
pub async fn read_all(root: &Path, ignore_corruption: bool) -> Result<(Vec<u64>, ReplayReport), LogError> {
    let old = find_old(root).await?;
    let mut numbers = Vec::new();
    let options = ReplayOptions { ignore_corruption, ..ReplayOptions::default() };
    let report = replay(&old, options, |record| numbers.push(number_of(&record.mutation))).await?;
    Ok((numbers, report))
}

/// Replays `logs`, giving each mutation to `visit`, in the order of each shard's log.
pub async fn replay(
    logs: &OldLogs,
    options: ReplayOptions,
    mut visit: impl FnMut(ReplayedRecord),
) -> Result<ReplayReport, LogError> {
    let mut replay = Replay::new(logs, options);
    while let Some(record) = replay.next().await? {
        visit(record);
    }
    Ok(replay.into_report())
}

pub async fn numbers(root: &Path) -> Vec<u64> {
    match read_all(root, false).await {
        Ok((numbers, _)) => numbers,
        Err(error) => panic!("replay: {error}"),
    }
}
