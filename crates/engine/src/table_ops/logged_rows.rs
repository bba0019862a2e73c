//! The rows of a table that are only in the logs of earlier processes, when the data of the table
//! is discarded before these logs are replayed. With `auto_snapshot`, the snapshot of the discarded
//! data needs these rows, too.
//!
//! - At start, shard 0 writes them to sstables in the table's directory, takes the snapshot, and
//!   only then begins the epoch ([`Engine::catch_up_with_epoch`]). These sstables are ordinary
//!   sstables of the table. After a crash the next start writes the rows once more, which does not
//!   change the contents. The start discards all of these sstables together.
//! - A TRUNCATE or DROP that is applied after the table was opened, and before the logs are
//!   replayed, returns the rows to memtables. The snapshot flushes them.

use crate::commitlog::{self, LogError, OldLogs, Position, Replay, ReplayOptions};
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::flush::Output;
use crate::memtable::Memtable;
use crate::table::{Attached, Table};
use crate::table_dir::{CleanDirectory, remove_all};
use model::TableId;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use model::range::PartitionRange;
use model::schema::TableSchema;
use sstable::{Sstable, SstablePath};
use std::path::Path;
use std::rc::Rc;

/// The rows of a table are collected in memory up to about this many bytes, then written.
const SSTABLE_BYTES: usize = 4 << 20;

/// How many bytes of mutations are applied at once to the memtables of a shard.
const BATCH_BYTES: usize = 256 << 10;

/// The files of a table that no shard has open.
struct OnDisk<'a> {
    tablets: &'a [TabletRange],
    found: &'a CleanDirectory,
    /// The sstables that can be opened.
    sstables: Vec<Rc<Attached>>,
}

impl OnDisk<'_> {
    /// Whether replay would skip a record: it is truncated, in an sstable, or of no tablet.
    fn skips(&self, key: &DecoratedKey, position: Position) -> bool {
        let Some(tablet) = self.tablets.iter().find(|tablet| tablet.range.contains(key)) else { return true };
        self.found.filters.iter().any(|(_, filters)| filters.skip(tablet.id, key.token, position))
            || self.sstables.iter().any(|own| {
                let (first, last) = (own.sstable.first_key(), own.sstable.last_key());
                let is_of_tablet = tablet.range.contains(first) || tablet.range.contains(last);
                is_of_tablet
                    && own.intervals.iter().any(|interval| interval.first <= position && position <= interval.last)
            })
    }
}

impl Engine {
    /// Writes the rows of a table that are only in the logs of earlier processes to sstables in its
    /// directory. No shard may have the table open, and no shard but this one may have opened its
    /// log. After an error, none of these sstables is left.
    pub(crate) async fn write_logged_rows(
        &self,
        schema: &Rc<TableSchema>,
        dir: &Path,
        tablets: &[TabletRange],
        found: &CleanDirectory,
    ) -> Result<Vec<SstablePath>, EngineError> {
        // The logs are large, and many tables may need them.
        let _turn = self.log_reading().acquire().await.map_err(|_| EngineError::Cancelled)?;
        let mut written = Vec::new();
        let result = self.write_logged(schema, dir, tablets, found, &mut written).await;
        if let Err(error) = result {
            // The next start would discard them: this only frees the space.
            let _ = remove_all(dir, &written).await;
            return Err(EngineError::SnapshotOfLog { table: schema.full_name().clone(), source: Box::new(error) });
        }
        Ok(written)
    }

    async fn write_logged(
        &self,
        schema: &Rc<TableSchema>,
        dir: &Path,
        tablets: &[TabletRange],
        found: &CleanDirectory,
        written: &mut Vec<SstablePath>,
    ) -> Result<(), EngineError> {
        let logs = self.logs_before(self.config().shard.0 + 1).await?;
        if logs.is_empty() {
            return Ok(());
        }
        let mut on_disk = OnDisk { tablets, found, sstables: Vec::new() };
        for place in &found.places {
            match Sstable::open_at(place, self.cache()).await {
                Ok(sstable) => on_disk.sstables.push(Attached::open(sstable, self.config().host_id)),
                Err(error) if error.is_of_process() => return Err(error.into()),
                // The snapshot has it, and its rows may be in the log as well.
                Err(_) => {}
            }
        }
        let ignore_corruption = self.config().ignore_log_corruption;
        let mut rows = LoggedRows::of(schema.id, &logs, ignore_corruption, self);
        let memtable = || Memtable::new(self.pool().clone(), &PartitionRange::FULL);
        let mut collected = memtable();
        while let Some((mutation, key, position)) = rows.next().await? {
            if on_disk.skips(&key, position) {
                continue;
            }
            if let Err(why) = mutation.check(schema) {
                tracing::error!(dir = %dir.display(), %position, key_bytes = key.key.len(), %why,
                    "skipped an invalid mutation in the commitlog: it cannot be stored in an sstable");
                continue;
            }
            collected.apply(schema, &key, &mutation);
            if collected.bytes() >= SSTABLE_BYTES {
                let full = std::mem::replace(&mut collected, memtable());
                self.write_collected(schema, dir, full, written).await?;
            }
        }
        self.write_collected(schema, dir, collected, written).await
    }

    /// Writes an sstable that covers no part of the log, like all replayed rows.
    async fn write_collected(
        &self,
        schema: &Rc<TableSchema>,
        dir: &Path,
        memtable: Rc<Memtable>,
        written: &mut Vec<SstablePath>,
    ) -> Result<(), EngineError> {
        if memtable.is_empty() {
            return Ok(());
        }
        self.make_directories(dir).await?;
        let mut out = Output::create(dir, schema.clone(), self.writer_options(schema)).await?;
        if let Err(error) = self.write_rows(&memtable, schema, &mut out).await {
            out.abandon().await;
            return Err(error);
        }
        written.push(out.place());
        out.seal(&[], self).await?;
        Ok(())
    }

    /// Returns the rows of a table that are only in the logs of earlier processes to its memtables
    /// on this shard, if these logs are not replayed yet.
    pub(crate) async fn replay_before_snapshot(&self, table: &Rc<Table>) -> Result<(), EngineError> {
        if self.is_started() || table.old_logs_truncated.get() {
            return Ok(());
        }
        let logs = self.logs_before(rt::shard::count() as u16).await?;
        // Replay reports damage. It must not keep the node from following the metadata.
        let mut rows = LoggedRows::of(table.schema().id, &logs, true, self);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((mutation, key, position)) = rows.next().await? {
            if table.tablet_of(&key).is_none() {
                continue;
            }
            bytes += mutation.as_bytes().len();
            batch.push((mutation.as_bytes().clone(), position));
            if bytes >= BATCH_BYTES {
                bytes = 0;
                self.replay_batch(std::mem::take(&mut batch)).await?;
            }
        }
        self.replay_batch(batch).await
    }

    /// The logs of earlier processes. Shards below `running` have begun a log of this process.
    async fn logs_before(&self, running: u16) -> Result<OldLogs, EngineError> {
        match self.config().log.dir.parent() {
            Some(root) => Ok(commitlog::old_runs(root, running).await?),
            None => Ok(OldLogs::default()),
        }
    }
}

/// The mutations of one table in logs.
struct LoggedRows {
    table: TableId,
    replay: Replay,
    seen: u32,
}

impl LoggedRows {
    fn of(table: TableId, logs: &OldLogs, ignore_corruption: bool, engine: &Engine) -> LoggedRows {
        let options = ReplayOptions { ignore_corruption, host: Some(engine.config().host_id) };
        LoggedRows { table, replay: Replay::new(logs, options), seen: 0 }
    }

    async fn next(&mut self) -> Result<Option<(Mutation, DecoratedKey, Position)>, EngineError> {
        while let Some(record) = self.replay.next().await? {
            self.seen += 1;
            if self.seen.is_multiple_of(32) {
                rt::task::maybe_yield().await;
            }
            if record.table != self.table {
                continue;
            }
            let position = record.position;
            let mutation = Mutation::parse(record.mutation)
                .map_err(|error| LogError::Refused(format!("the mutation at {position}: {error}").into()))?;
            let key = mutation.decorated_key();
            return Ok(Some((mutation, key, position)));
        }
        Ok(None)
    }
}
