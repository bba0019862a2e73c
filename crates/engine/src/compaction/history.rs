//! The newest finished compactions of a shard, kept across restarts.
//!
//! Each shard has one small file, `compaction-history-<shard>` in the data directory. It is
//! replaced durably a few seconds after a change, so a crash may lose the last few seconds. Nothing
//! depends on it. If the file cannot be read, the history starts empty.

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
/// The number of compactions that a shard keeps.
const MAX_RECORDS: usize = 500;
/// How long changes are collected before they are written.
const WRITE_DELAY: Duration = Duration::from_secs(5);

/// A finished compaction.
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
    /// The shard that ran it.
    pub shard: u16,
    /// When it began, in milliseconds since 1970.
    pub started_at_millis: i64,
    /// When it ended, in milliseconds since 1970.
    pub compacted_at_millis: i64,
    /// Bytes on disk of the inputs.
    pub bytes_in: u64,
    /// Bytes on disk of the outputs.
    pub bytes_out: u64,
    /// The number of inputs.
    pub sstables_in: u64,
    /// The number of outputs.
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
        if records.len() >= MAX_RECORDS {
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

    /// Records a compaction: the number of sstables and bytes of its inputs and outputs.
    pub(super) fn record_compaction(&self, what: &CompactionProgress, inputs: (usize, u64), outputs: (usize, u64)) {
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

    /// Reads the history of earlier runs.
    pub(crate) async fn load_compaction_history(&self) {
        let path = self.history_path();
        let text = match rt::fs::read(&path).await {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the compaction history cannot be read: it starts empty");
                return;
            }
        };
        match sealed::unseal::<VecDeque<CompactionRecord>>(KIND, FORMAT, &text) {
            Ok(records) => *self.compactions().history.records.borrow_mut() = records,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the compaction history starts empty, because its file cannot be read")
            }
        }
    }

    /// Writes the history after changes, until the engine stops.
    pub(crate) async fn keep_compaction_history(&self) {
        let history = &self.compactions().history;
        while !self.stopping().is_cancelled() {
            history.notify.notified().await;
            let _ = self.stopping().unless(rt::time::sleep(WRITE_DELAY)).await;
            if !history.changed.replace(false) {
                continue;
            }
            let records = history.records.borrow().clone();
            let path = self.history_path();
            if let Err(error) = sealed::write(&path, KIND, FORMAT, &records).await {
                history.changed.set(true);
                tracing::warn!(file = %path.display(), %error, "the compaction history cannot be written; retrying after the next compaction");
            }
        }
    }
}

impl CompactionRecord {
    /// The kind. None if a later release wrote the record and this release does not know its kind.
    pub fn kind(&self) -> Option<CompactionKind> {
        CompactionKind::named(&self.kind)
    }
}
