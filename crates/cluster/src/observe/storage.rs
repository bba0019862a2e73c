//! The data of all shards of this node: sizes, compactions, large data, snapshots.

use crate::metadata::ClusterShards;
use engine::Engine;
use engine::datadir::find_snapshots;
use model::id::TableId;
use rt::ShardId;
use rt::shard::PerShard;
use std::collections::BTreeMap;

pub use engine::datadir::FoundSnapshot;
pub use engine::{CompactionProgress, CompactionRecord, EngineError, EngineMetrics, Large, LargeKind};
pub use engine::{TableDetails, TableStats};

/// The storage of one shard in numbers.
#[derive(Clone, Debug, Default)]
pub struct ShardStorage {
    /// The metrics of its engine.
    pub engine: EngineMetrics,
    /// The sums over its tables.
    pub tables: TableDetails,
}

impl ShardStorage {
    /// The current numbers of this shard.
    pub fn of_this_shard(engines: PerShard<Engine>) -> ShardStorage {
        engines.try_get().map(|engine| ShardStorage::of(&engine)).unwrap_or_default()
    }

    fn of(engine: &Engine) -> ShardStorage {
        ShardStorage { engine: engine.metrics(), tables: engine.details() }
    }
}

/// A large partition, row or cell, with the sstable that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargeFound {
    /// The table.
    pub table: TableId,
    /// The file name of the sstable's Data.db.
    pub sstable: String,
    /// When the sstable was written, in milliseconds since 1970.
    pub written_at: i64,
    /// The data.
    pub large: Large,
}

/// Asks the engine of every shard. The answers are in the order of the shards.
async fn ask<T: Default + Send + 'static>(
    engines: PerShard<Engine>,
    question: impl Fn(&Engine) -> T + Clone + Send + 'static,
) -> Vec<T> {
    rt::shard::call_all(move || {
        let question = question.clone();
        async move { engines.try_get().map(|engine| question(&engine)).unwrap_or_default() }
    })
    .await
}

/// The numbers of every shard.
pub async fn shards(engines: PerShard<Engine>) -> Vec<ShardStorage> {
    ask(engines, ShardStorage::of).await
}

/// The metrics of the engine of every shard.
pub async fn engines(engines: PerShard<Engine>) -> Vec<EngineMetrics> {
    ask(engines, Engine::metrics).await
}

/// The state of this node's disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskState {
    /// The bytes of its sstables.
    pub load_bytes: u64,
    /// Whether the node refuses writes because a commitlog has no space.
    pub no_space: bool,
    /// Whether some sstables cannot be read.
    pub unreadable: bool,
}

/// The state of this node's disks.
pub async fn disk_state(engines: PerShard<Engine>) -> DiskState {
    let shards = ask(engines, |engine| {
        let metrics = engine.metrics();
        (metrics.disk_bytes, metrics.log.out_of_space, metrics.sstables_unreadable > 0)
    });
    shards.await.into_iter().fold(DiskState::default(), |all, (bytes, no_space, unreadable)| DiskState {
        load_bytes: all.load_bytes + bytes,
        no_space: all.no_space || no_space,
        unreadable: all.unreadable || unreadable,
    })
}

/// The bytes on disk of each tablet on this node, by table and tablet.
pub async fn tablet_bytes(engines: PerShard<Engine>) -> BTreeMap<(TableId, u32), u64> {
    sum_by_key(
        ask(engines, |engine| engine.tablet_sizes())
            .await
            .into_iter()
            .flatten()
            .map(|(table, tablet, bytes)| ((table, tablet), bytes)),
    )
}

fn sum_by_key<K: Ord>(counts: impl Iterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for (key, count) in counts {
        *sums.entry(key).or_insert(0) += count;
    }
    sums
}

/// The statistics of the tables in the metadata on each shard, in the order of the shards.
pub async fn table_stats(shards: ClusterShards) -> Vec<Vec<(TableId, TableStats)>> {
    ask(shards.engine, move |engine| {
        let Some(metadata) = shards.metadata.try_get() else { return Vec::new() };
        let stats = |id| Some((id, engine.table_stats(id).ok()?));
        metadata.current().tables().filter_map(|table| stats(table.schema.id)).collect()
    })
    .await
}

/// The details of `tables` over all shards, in their order. A dropped table counts nothing.
pub async fn table_details(engines: PerShard<Engine>, tables: Vec<TableId>) -> Vec<TableDetails> {
    let mut sums = vec![TableDetails::default(); tables.len()];
    let parts = ask(engines, move |engine| {
        tables.iter().map(|id| engine.table_details(*id).unwrap_or_default()).collect::<Vec<_>>()
    });
    for part in parts.await {
        sums.iter_mut().zip(&part).for_each(|(sum, part)| sum.add(part));
    }
    sums
}

/// Whether every shard compacts a table by itself. An error if a shard does not have the table.
pub async fn auto_compaction(engines: PerShard<Engine>, table: TableId) -> Result<bool, EngineError> {
    for is_on in ask(engines, move |engine| Some(engine.auto_compaction(table))).await.into_iter().flatten() {
        if !is_on? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The running compactions, with their shards.
pub async fn compactions_running(engines: PerShard<Engine>) -> Vec<(ShardId, CompactionProgress)> {
    let lists = ask(engines, |engine| {
        let shard = rt::shard::this();
        engine.compactions_running().into_iter().map(|running| (shard, running)).collect::<Vec<_>>()
    });
    lists.await.into_iter().flatten().collect()
}

/// The number of pending compactions by keyspace and table.
pub async fn compactions_pending(engines: PerShard<Engine>) -> BTreeMap<(String, String), u64> {
    let lists = ask(engines, |engine| engine.compactions_pending()).await;
    sum_by_key(lists.into_iter().flatten().map(|(keyspace, table, count)| ((keyspace, table), count)))
}

/// The most recent compactions, ordered by shard, then from oldest to newest.
pub async fn compactions_finished(engines: PerShard<Engine>) -> Vec<CompactionRecord> {
    ask(engines, |engine| engine.compaction_history()).await.into_iter().flatten().collect()
}

/// The large data in sstables.
pub async fn large_data(engines: PerShard<Engine>) -> Vec<LargeFound> {
    let lists = ask(engines, |engine| {
        let mut found = Vec::new();
        for (table, sstable, data) in engine.large_data() {
            let written_at = data.written_at;
            let large = |large| LargeFound { table, sstable: sstable.clone(), written_at, large };
            found.extend(data.list.into_iter().map(large));
        }
        found
    });
    lists.await.into_iter().flatten().collect()
}

/// The snapshots on disk. `is_wanted` is asked as by [`find_snapshots`].
pub async fn snapshots(
    engines: PerShard<Engine>,
    is_wanted: impl Fn(&str, Option<&str>) -> bool,
) -> Result<Vec<FoundSnapshot>, EngineError> {
    match engines.try_get() {
        Some(engine) => find_snapshots(&engine.tables_root(), is_wanted).await,
        None => Ok(Vec::new()),
    }
}
