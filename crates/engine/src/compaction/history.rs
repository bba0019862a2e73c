//! The compactions that were done: the newest of a shard, kept over restarts.
//!
//! One small file per shard, `compaction-history-<shard>` in the data directory, replaced durably a few seconds after a change.
//! So a crash may forget the last few seconds of it; nothing depends on it. A file that cannot be read begins anew.

use super::progress::{CompactionKind, CompactionProgress};
use crate::engine::Engine;
use crate::files::sealed;
use rt::sync::Notify;
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use uuid::Uuid;

const KIND: &str = "compaction-history";
const FORMAT: u32 = 1;
/// How many compactions a shard remembers.
const KEPT: usize = 500;
/// How long changes are gathered before they are written.
const GATHER: Duration = Duration::from_secs(5);

/// A compaction that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionRecord {
    /// Its id.
    pub id: Uuid,
    /// `COMPACTION` or `CLEANUP`.
    pub kind: String,
    /// The table's keyspace.
    pub keyspace: String,
    /// The table's name.
    pub table: String,
    /// The shard that did it.
    pub shard: u16,
    /// When it began, in milliseconds since 1970.
    pub started_at_millis: i64,
    /// When it ended, in milliseconds since 1970.
    pub compacted_at_millis: i64,
    /// Bytes on disk of what was merged.
    pub bytes_in: u64,
    /// Bytes on disk of what came out.
    pub bytes_out: u64,
    /// How many sstables were merged.
    pub sstables_in: u64,
    /// How many came out.
    pub sstables_out: u64,
}

/// A shard's history.
#[derive(Default)]
pub(super) struct History {
    /// Oldest first.
    records: RefCell<VecDeque<CompactionRecord>>,
    changed: Cell<bool>,
    notify: Notify,
}

impl History {
    fn add(&self, record: CompactionRecord) {
        let mut records = self.records.borrow_mut();
        if records.len() >= KEPT {
            records.pop_front();
        }
        records.push_back(record);
        self.changed.set(true);
        self.notify.notify_one();
    }

    pub fn wake(&self) {
        self.notify.notify_one();
    }
}

impl Engine {
    /// The newest compactions of this shard, oldest first.
    pub fn compaction_history(&self) -> Vec<CompactionRecord> {
        self.compactions().history.records.borrow().iter().cloned().collect()
    }

    /// Notes a compaction of these many sstables and bytes into these many.
    pub(super) fn remember_compaction(&self, what: &CompactionProgress, inputs: (usize, u64), outputs: (usize, u64)) {
        self.compactions().history.add(CompactionRecord {
            id: what.id,
            kind: what.kind.name().to_owned(),
            keyspace: what.keyspace.clone(),
            table: what.name.clone(),
            shard: self.config().shard.0,
            started_at_millis: what.started_at_millis,
            compacted_at_millis: rt::time::wall_micros() / 1000,
            bytes_in: inputs.1,
            bytes_out: outputs.1,
            sstables_in: inputs.0 as u64,
            sstables_out: outputs.0 as u64,
        });
    }

    fn history_path(&self) -> PathBuf {
        self.config().data_dir.join(format!("{KIND}-{}", self.config().shard))
    }

    /// Reads what earlier runs left.
    pub(crate) async fn load_compaction_history(&self) {
        let path = self.history_path();
        let text = match rt::fs::read(&path).await {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the compaction history cannot be read");
                return;
            }
        };
        match sealed::unseal::<VecDeque<CompactionRecord>>(KIND, FORMAT, &text) {
            Ok(records) => *self.compactions().history.records.borrow_mut() = records,
            Err(error) => tracing::warn!(file = %path.display(), %error, "the compaction history begins anew"),
        }
    }

    /// Writes the history after changes. Runs for the engine's life.
    pub(crate) async fn keep_compaction_history(&self) {
        let history = &self.compactions().history;
        while !self.stopping().is_cancelled() {
            history.notify.notified().await;
            let _ = self.stopping().unless(rt::time::sleep(GATHER)).await;
            if !history.changed.replace(false) {
                continue;
            }
            let records = history.records.borrow().clone();
            let path = self.history_path();
            if let Err(error) = sealed::write(&path, KIND, FORMAT, &records).await {
                history.changed.set(true);
                tracing::warn!(file = %path.display(), %error, "the compaction history cannot be written");
            }
        }
    }
}

impl CompactionRecord {
    /// The kind; of records of later releases perhaps none.
    pub fn kind(&self) -> Option<CompactionKind> {
        CompactionKind::named(&self.kind)
    }
}
