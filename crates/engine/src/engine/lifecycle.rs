//! The end of a shard's store, and its beginning once replay is over.

use super::Engine;
use crate::commitlog::{CloseError, LogError, OldRun};
use crate::error::EngineError;
use std::rc::Rc;

/// What a shard could not write until it stopped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unwritten {
    /// Tables whose last flush failed. What it would have written is in the commitlog.
    pub tables: Vec<String>,
    /// What became of the commitlog, if it could not be closed.
    pub log: Option<LogLeft>,
}

/// A commitlog that a stop could not close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogLeft {
    /// Acknowledged writes may be neither in the log nor in an sstable. Why.
    MayLackWrites(String),
    /// Nothing is lost, but the next start replays records that it would not need. Why.
    NotEnded(String),
    /// Files of it were removed, replaced or cut off while the node ran. All its writes are in sstables.
    Removed {
        /// Which files.
        what: String,
        /// The run that nobody needs: the next start must neither miss it nor replay what is left of it.
        run: OldRun,
    },
}

impl Engine {
    /// Lets compaction run. To be called once, when replay is over and its logs are retired.
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

    /// Stops flushing and compacting, waits for what runs, and syncs the log. What is in memtables
    /// stays in the log. Only where the log has failed are they flushed. Says what could not be
    /// written.
    pub async fn stop(&self) -> Unwritten {
        let removed = self.log.check_there().await;
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
                    "the commitlog is lost, and its writes were flushed to sstables: all writes are on disk"
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

    /// Makes everything that was applied so far durable, whatever the log's sync mode.
    pub async fn sync_log(&self) -> Result<(), EngineError> {
        Ok(self.log.sync_now().await?)
    }

    /// Stops at once and leaves the disk as it is, as a crash of the process would. For tests of what comes after.
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

    /// Waits until the log has failed: the node must stop then.
    pub async fn failure(&self) -> LogError {
        self.log.failure().await
    }
}
