//! Hints and notes that a node takes over from a node that leaves the cluster.

use super::{Hint, Hints, MissedWrites, NotRecorded, Refused, format};
use model::id::HostId;

impl Hints {
    /// Stores a hint that another node has kept for `target`. Its age stays. The hint is stored
    /// when this returns `Ok`; otherwise the other node keeps it.
    pub async fn take_over(&self, target: HostId, hint: &Hint) -> Result<(), Refused> {
        let stored = self.append(target, hint).await;
        self.count(|metrics| match &stored {
            Ok(()) => metrics.written += 1,
            Err(_) => metrics.refused += 1,
        });
        stored
    }

    /// Takes over a note of missed writes. The note is durable when this returns `Ok`.
    pub async fn take_over_note(&self, note: MissedWrites) -> Result<(), NotRecorded> {
        let MissedWrites { target, table, cause, since } = note;
        self.missed.note_since(target, table, cause, since).await?;
        self.witness.record_missed().await;
        Ok(())
    }

    /// Appends a hint within the limit of disk space.
    pub(super) async fn append(&self, target: HostId, hint: &Hint) -> Result<(), Refused> {
        let record = format::encode(hint);
        let waiting: u64 = self.logs.borrow().values().map(|log| log.queued_bytes()).sum();
        if self.bytes.get() + waiting + record.len() as u64 > self.config.max_bytes {
            return Err(Refused::Full);
        }
        self.log(target).append(&record, self.config.file_bytes).await?;
        Ok(())
    }
}
