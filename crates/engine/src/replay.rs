//! Replay: mutations that earlier runs logged, and that are in no sstable, return to memtables.
//!
//! [`replay_logs`] reads logs on the calling shard and sends each mutation to the shard that owns
//! its key now. That shard skips mutations that a sealed sstable covers, truncated mutations, and
//! mutations of dropped tables. These memtables are not in the running log.
//! [`Engine::replay_finished`] relogs small ones and flushes the others; only then may the old logs
//! be retired.
//!
//! No compaction runs before that, so replaying the same log again after a crash changes nothing.

use crate::commitlog::{LogError, OldLogs, Position, Replay, ReplayOptions, ReplayReport};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::max_of_row;
use crate::metrics::add;
use bytes::Bytes;
use model::TableId;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use rt::ShardId;
use rt::hash::HashMap;
use rt::shard::PerShard;
use rt::task::Task;
use std::collections::{BTreeMap, VecDeque};

/// Mutations are sent to other shards in batches of about this many bytes.
const BATCH_BYTES: usize = 256 << 10;

/// How many tablets are flushed at the same time when replay is over: small flushes mostly wait
/// for the device.
const FLUSHES_AT_ONCE: usize = 16;

/// Replays `logs` into the engines of all shards. `route` gives the shard that owns a key of a
/// table now; `None` skips the mutation.
pub async fn replay_logs(
    logs: &OldLogs,
    engines: PerShard<Engine>,
    options: ReplayOptions,
    route: impl Fn(TableId, &DecoratedKey) -> Option<ShardId>,
) -> Result<ReplayReport, EngineError> {
    let mut replay = Replay::new(logs, options);
    let mut batches: HashMap<ShardId, (Vec<(Bytes, Position)>, usize)> = HashMap::default();
    let (mut seen, mut unknown) = (0u32, BTreeMap::new());
    while let Some(record) = replay.next().await? {
        seen += 1;
        if seen.is_multiple_of(32) {
            rt::task::maybe_yield().await;
        }
        let bad = |why: &str| LogError::Refused(format!("the mutation at {}: {why}", record.position).into());
        let mutation = Mutation::parse(record.mutation.clone()).map_err(|error| bad(&error.to_string()))?;
        let Some(shard) = route(record.table, &mutation.decorated_key()) else {
            *unknown.entry(record.table).or_default() += 1;
            continue;
        };
        let (batch, bytes) = batches.entry(shard).or_default();
        *bytes += record.mutation.len();
        batch.push((record.mutation, record.position));
        if *bytes >= BATCH_BYTES {
            *bytes = 0;
            send(engines, shard, std::mem::take(batch)).await?;
        }
    }
    for (shard, (batch, _)) in batches {
        send(engines, shard, batch).await?;
    }
    Ok(ReplayReport { unknown, ..replay.into_report() })
}

async fn send(engines: PerShard<Engine>, shard: ShardId, batch: Vec<(Bytes, Position)>) -> Result<(), EngineError> {
    let done = engines
        .call(shard, move |engine| async move { engine.replay_batch(batch).await.map_err(|error| error.to_string()) });
    done.await.map_err(|why| EngineError::Log(LogError::Refused(why.into())))
}

impl Engine {
    /// Applies mutations from earlier logs, with their positions. Waits for room in memtables.
    pub(crate) async fn replay_batch(&self, batch: Vec<(Bytes, Position)>) -> Result<(), EngineError> {
        for (i, (bytes, position)) in batch.into_iter().enumerate() {
            // A batch of one large mutation waits, too.
            if i % 32 == 0 {
                rt::task::maybe_yield().await;
                // Full memtables are flushed by the watch over memory. Replay continues when
                // there is room.
                if !self.pool().is_free() && self.pool().admit().await.is_err() {
                    let why = match self.pool().flushes_blocked() {
                        true => "memtables are full, and flushes fail for lack of disk space or descriptors",
                        false => "memtables stay full",
                    };
                    return Err(EngineError::Log(LogError::Refused(why.into())));
                }
            }
            let mutation = Mutation::parse(bytes)
                .map_err(|error| LogError::Refused(format!("the mutation at {position}: {error}").into()))?;
            self.replayed(&mutation, &mutation.decorated_key(), position);
        }
        Ok(())
    }

    /// Applies a mutation that was at `position` in an earlier log. Skips it if a sealed sstable
    /// covers it, if it was truncated, or if its table or tablet is not on this shard. Reports and
    /// skips it if no sstable can hold it. Whether it was applied.
    pub fn replayed(&self, mutation: &Mutation, key: &DecoratedKey, position: Position) -> bool {
        let taken = self.table(mutation.table()).and_then(|table| {
            let tablet = table.tablet_of(key)?;
            let done = table.skips_replay_of(tablet.id, key.token, position) || tablet.covers(key, position);
            (!done).then_some((table, tablet))
        });
        let Some((table, tablet)) = taken else {
            add(&self.counters().replay_skipped, 1);
            return false;
        };
        if let Err(why) = mutation.check(&table.schema()) {
            // A release without this check accepted it from a faulty node.
            tracing::error!(dir = %table.dir.display(), %position, key_bytes = key.key.len(), %why,
                "skipped an invalid mutation in the commitlog: it cannot be stored in an sstable");
            add(&self.counters().replay_skipped, 1);
            return false;
        }
        self.saw_timestamp(max_timestamp(mutation));
        let memtable = tablet.active();
        memtable.apply(&table.schema(), key, mutation);
        memtable.set_needs_old_logs(true);
        add(&self.counters().replayed, 1);
        true
    }

    /// Makes the replayed mutations durable. Many small memtables are relogged and stay
    /// memtables, the others are flushed. Call it after the logs of all shards have been
    /// replayed. It may be called again after an error: durable data is not written again, so
    /// that retries do not fill the disk. Missing sstables whose loss was accepted are forgotten,
    /// so the caller records the loss before.
    pub async fn replay_finished(&self) -> Result<(), EngineError> {
        self.detached(|engine| async move {
            engine.relog_replayed().await;
            let (mut running, mut result) = (VecDeque::new(), Ok(()));
            for table in engine.all_tables() {
                for tablet in table.tablets().iter().filter(|tablet| tablet.needs_old_logs()) {
                    if running.len() == FLUSHES_AT_ONCE
                        && let Some(oldest) = running.pop_front()
                    {
                        result = result.and(ended(oldest).await);
                    }
                    let (engine, table, tablet) = (engine.clone(), table.clone(), tablet.clone());
                    running.push_back(rt::task::spawn(async move { engine.flush_tablet(&table, &tablet).await }));
                }
            }
            for flush in running {
                result = result.and(ended(flush).await);
            }
            debug_assert!(
                result.is_err()
                    || !engine
                        .all_tables()
                        .iter()
                        .any(|table| table.tablets().iter().any(|tablet| tablet.needs_old_logs())),
                "after a replay, nothing needs the old logs"
            );
            result?;
            // Flushes of an earlier attempt may have failed to list their sstables.
            for table in engine.all_tables() {
                table.given_up.take();
                engine.list_sstables(&table).await?;
            }
            Ok(())
        })
        .await
    }
}

async fn ended(flush: Task<Result<(), EngineError>>) -> Result<(), EngineError> {
    flush.await.unwrap_or(Err(EngineError::Cancelled))
}

fn max_timestamp(mutation: &Mutation) -> i64 {
    let parts = mutation.parts();
    let mut greatest = parts.tombstone.timestamp;
    greatest = parts.range_tombstones.iter().fold(greatest, |t, range| t.max(range.tombstone.timestamp));
    greatest = parts.static_row.as_ref().map_or(greatest, |row| greatest.max(max_of_row(row)));
    parts.rows.fold(greatest, |t, (_, row)| t.max(max_of_row(&row)))
}
