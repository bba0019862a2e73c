//! The parts of a shard's store: the interface for the server, and the interface for the modules of
//! this crate.

use super::{Engine, ShardMoves, TableRegistry};
use crate::commitlog::{Commitlog, LoggedRun, Position};
use crate::compaction::Compactions;
use crate::config::EngineConfig;
use crate::datadir::{CounterSstables, table_dir_name};
use crate::error::{EngineError, NoSuchTable};
use crate::files::DiskReserve;
use crate::memtable::Pool;
use crate::metrics::Counters;
use crate::table::{RowCache, Table};
use crate::table_dir::Prepared;
use model::schema::TableSchema;
use model::{HostId, TableId};
use rt::hash::HashMap;
use rt::sync::{Cancel, Semaphore};
use sstable::{Component, LargeCounts, LargeLimits, LargeReads, Loan, PageCache};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

impl Engine {
    /// Whether a table is on this shard.
    pub fn has_table(&self, id: TableId) -> bool {
        self.registry.contains(id)
    }

    /// Ids of the tables on this shard.
    pub fn tables(&self) -> Vec<TableId> {
        self.registry.ids()
    }

    /// The newest schema of a table on this shard.
    pub fn schema(&self, id: TableId) -> Option<Rc<TableSchema>> {
        self.table(id).map(|table| table.schema())
    }

    /// Whether a table that was on this shard was dropped, or is being dropped. False while the
    /// engine stops, because it closes all tables then.
    pub fn is_dropped(&self, id: TableId) -> bool {
        !self.stopping().is_cancelled() && self.table(id).is_none_or(|table| table.work.is_closed())
    }

    /// The longest mutation that the log takes, in bytes.
    pub fn longest_mutation(&self) -> usize {
        self.config.log.max_body()
    }

    /// The node whose store this is.
    pub fn host_id(&self) -> HostId {
        self.config.host_id
    }

    /// The greatest timestamp (below the year 2200) in the sstables that were opened and in the
    /// replayed mutations; `i64::MIN` for none.
    pub fn max_timestamp_seen(&self) -> i64 {
        self.max_timestamp.get()
    }

    /// The run of this shard's log.
    pub fn logged_run(&self) -> LoggedRun {
        self.log.logged_run()
    }

    /// The sealed sstables of this shard's tables with counters. `None` if one of these tables
    /// cannot be read.
    pub fn counter_sstables(&self) -> Option<CounterSstables> {
        let mut sstables = CounterSstables::new();
        for table in self.all_tables().into_iter().filter(|table| table.schema().is_counter()) {
            if table.may_hold_other_data() {
                return None;
            }
            let dir = table.dir.strip_prefix(&self.config.data_dir).unwrap_or(&table.dir).to_owned();
            let names = sstables.entry(dir).or_default();
            for tablet in table.tablets().iter() {
                let set = tablet.sstables();
                let tocs = set.iter().map(|own| own.sstable.place().path(Component::Toc));
                names.extend(tocs.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
            }
        }
        Some(sstables)
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.config.data_dir
    }

    /// The disk space that the node reserves.
    pub fn disk_reserve(&self) -> DiskReserve {
        DiskReserve::of(&self.config.data_dir, self.config.disk_reserve)
    }

    /// The memory of reads that hold large rows or long results.
    pub fn large_reads(&self) -> &Rc<LargeReads> {
        self.cache.large_reads()
    }

    /// Reduces the budget of the caches by `bytes` until the loan is dropped.
    pub fn lend_cache(&self, bytes: usize) -> Loan {
        self.cache.lend(bytes)
    }

    /// Empties the caches of this shard: the next reads come from disk.
    pub fn drop_caches(&self) {
        for table in self.all_tables() {
            table.tablets().iter().for_each(|tablet| tablet.forget_rows());
        }
        self.cache().clear();
    }

    /// Closes half of the open sstable files of this shard, for an operation that needs
    /// descriptors.
    pub fn give_back_files(&self) {
        self.cache.files().give_back();
    }

    /// Sets the limits above which data counts as large in sstables written from now on.
    pub fn set_large_limits(&self, limits: LargeLimits) {
        self.large.set(limits);
    }
}

/// For the other modules of this crate.
impl Engine {
    /// The memory of flushes and compactions with large rows.
    pub(crate) fn large_jobs(&self) -> &Rc<LargeReads> {
        self.cache.large_jobs()
    }

    /// The limits above which data counts as large.
    pub(crate) fn large_limits(&self) -> LargeLimits {
        self.large.get()
    }

    /// Counters of large data in the sstables that are written.
    pub(crate) fn large_counts(&self) -> &Rc<LargeCounts> {
        &self.large_counts
    }

    pub(crate) fn table(&self, id: TableId) -> Option<Rc<Table>> {
        self.registry.get(id)
    }

    pub(crate) fn table_or_error(&self, id: TableId) -> Result<Rc<Table>, EngineError> {
        Ok(self.table(id).ok_or(NoSuchTable(id))?)
    }

    pub(crate) fn all_tables(&self) -> Vec<Rc<Table>> {
        self.registry.all()
    }

    pub(crate) fn shard_moves(&self) -> &ShardMoves {
        &self.shard_moves
    }

    pub(crate) fn registry(&self) -> &TableRegistry {
        &self.registry
    }

    /// The directory that has a directory for each keyspace.
    pub fn tables_root(&self) -> PathBuf {
        self.config.data_dir.join("data")
    }

    /// The table's directory: `data/<keyspace>/<table>-<id>`.
    pub(crate) fn table_dir(&self, schema: &TableSchema) -> PathBuf {
        self.tables_root().join(&schema.keyspace).join(table_dir_name(&schema.name, schema.id))
    }

    /// Whether this shard begins to list the sstables of its tables. Releases that do not know the
    /// lists would leave them as they are, so no list is made while such a release may start on
    /// this directory. Lists that exist are kept up to date.
    pub fn set_lists_sstables(&self, on: bool) {
        self.lists_sstables.set(on);
    }

    /// See [`Engine::set_lists_sstables`].
    pub(crate) fn lists_sstables(&self) -> bool {
        self.lists_sstables.get()
    }

    /// Whether the logs of earlier runs are replayed and retired, and compaction runs.
    pub(crate) fn is_started(&self) -> bool {
        self.started.get()
    }

    pub(crate) fn epochs_up_to(&self) -> &Cell<u64> {
        &self.newest_epoch
    }

    pub(crate) fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub(crate) fn log(&self) -> &Rc<Commitlog> {
        &self.log
    }

    pub(crate) fn prepared(&self) -> &RefCell<HashMap<TableId, Prepared>> {
        &self.prepared
    }

    /// The position at which the log of this run begins: records of earlier runs lie below it.
    pub(crate) fn log_reading(&self) -> &Semaphore {
        &self.log_reading
    }

    pub(crate) fn log_begun(&self) -> Position {
        self.log_begun
    }

    pub(crate) fn rows(&self) -> &Rc<RowCache> {
        &self.rows
    }

    pub(crate) fn cache(&self) -> &Rc<PageCache> {
        &self.cache
    }

    pub(crate) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn compactions(&self) -> &Compactions {
        &self.compactions
    }

    pub(crate) fn stopping(&self) -> &Cancel {
        &self.stop
    }
}
