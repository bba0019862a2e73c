//! Starting compaction once replay is over, and stopping the store of a shard.

use super::Engine;
use crate::commitlog::{CloseError, LogError, OldRun};
use crate::error::EngineError;
use std::rc::Rc;

/// Data that a shard could not write before it stopped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unwritten {
    /// Tables whose last flush failed. The data is in the commitlog.
    pub tables: Vec<String>,
    /// The state of the commitlog, if it could not be closed.
    pub log: Option<LogLeft>,
}

/// A commitlog that could not be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogLeft {
    /// Acknowledged writes may be neither in the log nor in an sstable. The reason.
    MayLackWrites(String),
    /// Nothing is lost, but the next start replays records unnecessarily. The reason.
    NotEnded(String),
    /// Files of the log were removed, replaced or cut off while the node ran. All its writes are
    /// in sstables.
    Removed {
        /// The files.
        what: String,
        /// The run of the log. The next start must neither report it as missing nor replay its
        /// remaining files.
        run: OldRun,
    },
}

impl Engine {
    /// Starts compaction. Call it once, after replay is over and the old logs are retired.
    pub fn start(self: &Rc<Self>) {
        if self.started.replace(true) {
            return;
        }
        self.prepared.take();
        let inside = self.loops.enter();
        let engine = self.clone();
        rt::task::spawn(async move {
            let _inside = inside;
            engine.compaction_loop().await;
        })
        .detach();
        self.compactions.wake();
    }

    /// Stops flushes and compactions, waits for running ones, and syncs the log. Memtables stay in
    /// the log only; they are flushed if the log or their last flush has failed. Returns what could
    /// not be written.
    pub async fn stop(&self) -> Unwritten {
        let removed = self.log.check_there().await;
        self.retry_failed_flushes().await;
        let without_log = self.log.has_failed() && self.flush_all_tablets().await;
        self.stop.cancel();
        self.compactions.wake_all();
        let tables = self.registry.all();
        for table in &tables {
            table.stop_compactions().await;
        }
        self.loops.close().await;
        for table in &tables {
            table.work.close().await;
        }
        let mut unwritten = Unwritten::default();
        for table in &tables {
            let schema = table.schema();
            if table.tablets().iter().any(|tablet| tablet.failed_flushes.get() > 0 && tablet.memtable_bytes() > 0) {
                unwritten.tables.push(format!("{}.{}", schema.keyspace, schema.name));
            }
        }
        unwritten.log = match (self.log.close().await, removed.filter(|_| without_log)) {
            (Ok(()), _) => None,
            (Err(_), Some(what)) => {
                tracing::error!(
                    what,
                    "the commitlog was lost, but its writes were flushed to sstables: all writes are on disk"
                );
                Some(LogLeft::Removed { what, run: self.log.own_run() })
            }
            (Err(CloseError::Unsynced(error)), None) if !without_log => {
                tracing::error!(%error, "the commitlog could not be closed: the last writes may not be on disk");
                Some(LogLeft::MayLackWrites(error.to_string()))
            }
            (Err(error), None) => {
                tracing::error!(%error, "the commitlog could not be closed: all writes are on disk, the next start replays it");
                Some(LogLeft::NotEnded(error.to_string()))
            }
        };
        unwritten
    }

    /// Makes all mutations applied so far durable, whatever the log's sync mode. For tests of
    /// recovery.
    pub async fn sync_log(&self) -> Result<(), EngineError> {
        Ok(self.log.sync_now().await?)
    }

    /// Stops at once and leaves the disk as a crash of the process would. For tests of recovery.
    pub async fn abandon(&self) {
        self.stop.cancel();
        self.compactions.wake_all();
        self.log.abandon().await;
        let tables = self.registry.all();
        for table in &tables {
            table.stop_compactions().await;
            table.work.close().await;
        }
        self.loops.close().await;
    }

    /// Waits until the log fails. The node must stop then.
    pub async fn failure(&self) -> LogError {
        self.log.failure().await
    }
}
