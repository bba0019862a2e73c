//! Flushing: a sealed memtable becomes an sstable, and its log records are no longer needed.
//!
//! A flush writes and seals the sstable; its statistics name the log interval that it covers. One
//! synchronous step then attaches the sstable and removes the memtable. The list of sstables in the
//! table's directory gets the sstable. Last, the log releases the records. A crash between two of
//! these steps repeats work and loses nothing.
//! - `dropped_columns`: memtables with cells of columns that are dropped.
//! - `output`: an sstable that is being written.
//! - `watch`: starts flushes when memtables or the log are full.
//! - `relog`: writes small memtables to the log again instead of flushing them.

mod dropped_columns;
mod output;
mod relog;
mod watch;

pub(crate) use output::Output;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::{Interval, Memtable, MemtableSource, Slices};
use crate::metrics::{Running, Writing, add};
use crate::table::{Attached, Table, Tablet, Unlisted};
use model::TableId;
use model::fragment::Fragment;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::task::Group;
use sstable::{LARGE, WriterOptions};
use std::collections::VecDeque;
use std::rc::Rc;

/// Fragments are handed to the writer in buffers of about this many bytes.
const BUFFER_BYTES: usize = 64 << 10;

impl Engine {
    /// Flushes the memtables of a table, or of all tables.
    pub async fn flush(&self, table: Option<TableId>) -> Result<(), EngineError> {
        let tables = match table {
            Some(id) => vec![self.table_or_error(id)?],
            None => self.all_tables(),
        };
        for table in &tables {
            for tablet in table.tablets().iter() {
                self.flush_tablet(table, tablet).await?;
            }
        }
        Ok(())
    }

    /// Flushes all memtables of the shard, and does not stop at errors. False if one failed.
    pub(crate) async fn flush_all_tablets(&self) -> bool {
        let mut all = true;
        for table in self.all_tables() {
            for tablet in table.tablets().iter() {
                all &= self.flush_tablet(&table, tablet).await.is_ok();
            }
        }
        all
    }

    /// Flushes the tablets whose last flush failed: its cause may have passed. Failures are counted
    /// and logged.
    pub(crate) async fn retry_failed_flushes(&self) {
        for table in self.all_tables() {
            for tablet in table.tablets().iter().filter(|tablet| tablet.failed_flushes.get() > 0) {
                let _ = self.flush_tablet(&table, tablet).await;
            }
        }
    }

    /// Flushes the memtables that a tablet has now. The flush continues if the caller is dropped:
    /// a restart would find a sealed sstable that was never attached.
    pub(crate) async fn flush_tablet(&self, table: &Rc<Table>, tablet: &Rc<Tablet>) -> Result<(), EngineError> {
        tablet.seal();
        if !tablet.needs_flush() {
            return Ok(());
        }
        let (table, tablet) = (table.clone(), tablet.clone());
        self.detached(|engine| async move { engine.flush_sealed(&table, &tablet).await }).await
    }

    async fn flush_sealed(&self, table: &Rc<Table>, tablet: &Rc<Tablet>) -> Result<(), EngineError> {
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let Ok(_turn) = tablet.flush_turn.acquire().await else { return Err(EngineError::Cancelled) };
        let _running = Running::new(&self.counters().flushes_running);
        self.compactions().wake_share();
        while tablet.needs_flush() {
            let flushed = match tablet.oldest_sealed() {
                Some(memtable) if tablet.unlisted.get().is_none() => {
                    self.flush_memtable(table, tablet, &memtable).await
                }
                _ => Ok(()),
            };
            let released = match flushed {
                Ok(()) => rt::task::in_group(Group::Maintenance, self.release_flushed(table, tablet)).await,
                error => error,
            };
            match released {
                Ok(()) => {
                    tablet.failed_flushes.set(0);
                    self.flushes_succeed();
                }
                Err(error) if error.is_out_of_files() && self.cache().files().give_back() > 0 => {
                    let schema = table.schema();
                    tracing::warn!(
                        keyspace = schema.keyspace, table = schema.name, %error,
                        "retrying a flush with fewer open sstables"
                    );
                }
                Err(error) => {
                    add(&self.counters().flush_failures, 1);
                    tablet.failed_flushes.set(tablet.failed_flushes.get() + 1);
                    self.report_failed_flush(table, tablet, &error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Writes the oldest sealed memtable of a tablet to an sstable, which takes its place.
    async fn flush_memtable(
        &self,
        table: &Rc<Table>,
        tablet: &Rc<Tablet>,
        memtable: &Rc<Memtable>,
    ) -> Result<(), EngineError> {
        let sstable = rt::task::in_group(Group::Maintenance, self.write_memtable(table, memtable)).await?;
        add(&self.counters().flushes, 1);
        add(&table.done.flushes, 1);
        add(&self.counters().flushed_bytes, sstable.as_ref().map_or(0, |own| own.sstable.total_bytes()));
        tablet.unlisted.set(Some(Unlisted { last: memtable.logged().map(|interval| interval.last) }));
        tablet.attach_flushed(memtable, sstable);
        self.compactions().wake();
        Ok(())
    }

    /// Lists the sstable of the last flush of a tablet, then releases its records of the log.
    async fn release_flushed(&self, table: &Table, tablet: &Tablet) -> Result<(), EngineError> {
        let Some(Unlisted { last }) = tablet.unlisted.get() else { return Ok(()) };
        self.list_sstables(table).await?;
        tablet.unlisted.take();
        if let Some(last) = last {
            self.log().clean(tablet.slot, last);
        }
        Ok(())
    }

    /// Logs a failed flush. If it failed for lack of disk space or descriptors, writes are refused
    /// while memtables or the log are full, until a flush succeeds.
    fn report_failed_flush(&self, table: &Table, tablet: &Tablet, error: &EngineError) {
        let (schema, tablet) = (table.schema(), tablet.id);
        if !error.may_pass() {
            tracing::error!(keyspace = schema.keyspace, table = schema.name, tablet, %error, "a flush failed: the rows stay in memory and in the commitlog, and later flushes retry");
        } else if self.pool().flushes_blocked() {
            tracing::debug!(keyspace = schema.keyspace, table = schema.name, tablet, %error, "a flush failed again");
        } else {
            let shard = self.config().shard.0;
            tracing::error!(
                shard, keyspace = schema.keyspace, table = schema.name, tablet, %error,
                "a flush failed; when memtables or the commitlog are full, writes are refused until a flush succeeds"
            );
            self.pool().set_flushes_blocked(true);
            self.log().set_flushes_blocked(true);
        }
    }

    fn flushes_succeed(&self) {
        if self.pool().flushes_blocked() {
            tracing::info!(shard = self.config().shard.0, "flushes succeed again");
            self.pool().set_flushes_blocked(false);
            self.log().set_flushes_blocked(false);
        }
    }

    /// Writes one memtable to a sealed sstable.
    async fn write_memtable(
        &self,
        table: &Table,
        memtable: &Rc<Memtable>,
    ) -> Result<Option<Rc<Attached>>, EngineError> {
        let schema = memtable.flush_schema().cloned().unwrap_or_else(|| table.schema());
        let options = WriterOptions { expected_partitions: memtable.len() as u64, ..self.writer_options(&schema) };
        self.make_directory(table).await?;
        let _writing = Writing::new(self.counters());
        let mut out = Output::create(&table.dir, schema.clone(), options).await?;
        if let Err(error) = self.write_rows(memtable, &schema, &mut out).await {
            out.abandon().await;
            return Err(error);
        }
        let intervals: Vec<Interval> = memtable.logged().into_iter().collect();
        out.finish(&intervals, self, table).await
    }

    /// Writes the rows of a memtable to an sstable that is being written.
    pub(crate) async fn write_rows(
        &self,
        memtable: &Rc<Memtable>,
        schema: &Rc<TableSchema>,
        out: &mut Output,
    ) -> Result<(), EngineError> {
        let slices = Slices::new(schema, Rc::new(Slice::full()));
        let mut source = MemtableSource::new(memtable.clone(), schema.clone(), slices, PartitionRange::FULL);
        let mut buffer = VecDeque::new();
        let job = self.large_jobs().next_id(None);
        loop {
            let more = source.fill(&mut buffer, BUFFER_BYTES);
            // The writer holds a large row a second time, in the form of the file.
            let large: usize = buffer.iter().map(Fragment::weight).filter(|weight| *weight >= LARGE).sum();
            let _held = match large {
                0 => None,
                large => Some(self.large_jobs().enter(job, large).await),
            };
            out.write(&mut buffer).await?;
            if !more {
                return Ok(());
            }
            rt::task::maybe_yield().await;
        }
    }
}
