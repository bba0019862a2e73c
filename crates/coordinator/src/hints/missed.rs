//! Missed writes: which nodes missed writes that hint replay will not deliver. An operator must be
//! able to see this, also after a restart.
//!
//! There is one file for each shard. It lies beside the manifest and outside of the hint directory,
//! so that removing the hints does not remove it. An entry holds a node, a table, the cause, and
//! the time since when writes are missing. An entry is removed when the node was resynced
//! ([`crate::resync`]), when an operator requests it, or when the table is dropped. Each new entry
//! costs one write of a small file, independent of how many writes are missed.

use super::sealed;
use model::id::{HostId, TableId};
use rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The name that the file had inside of the hint directory, in earlier releases.
pub(super) const OLD_NAME: &str = "missed";
/// The format version: the sequence number and the entries.
const FORMAT: u8 = 2;
/// The version without the sequence number.
const WITHOUT_SEQUENCE: u8 = 1;

/// Why hint replay does not deliver a write. Append-only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// The node was down for longer than `max_hint_window_in_ms`.
    WindowOver,
    /// The hints reached the limit of their disk space.
    Full,
    /// The hint could not be written.
    NotWritten,
    /// Hints were damaged or missing, and could not be read.
    Damaged,
    /// The hint was older than `gc_grace_seconds` when the node was up again.
    Expired,
    /// The node was started without files that held its own writes, with the operator's consent.
    AcceptedLoss,
    /// The node refused the writes: its disk is full or fails, or the writes exceed its configured
    /// limits.
    Refused,
    /// The notes of this node's hints, or of its missed writes, were lost.
    NotesLost,
}

impl Cause {
    /// The cause, for operators.
    pub fn text(self) -> &'static str {
        match self {
            Cause::WindowOver => "it was down for longer than max_hint_window_in_ms",
            Cause::Full => "the hints reached the limit of their disk space",
            Cause::NotWritten => "hints could not be written",
            Cause::Damaged => "hints were damaged or are missing",
            Cause::Expired => "it was down for longer than gc_grace_seconds",
            Cause::AcceptedLoss => "it started without files that were missing or damaged (--accept-loss)",
            Cause::NotesLost => "hints for it, or notes of them, were lost on another node (hint-notes)",
            Cause::Refused => "it refused writes that other replicas have: its log names the reason",
        }
    }
}

/// A node that lacks writes of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissedWrites {
    /// The node.
    pub target: HostId,
    /// The table. None: the table is unknown, so it may be any.
    pub table: Option<TableId>,
    /// The cause.
    pub cause: Cause,
    /// When the entry was noted first: microseconds since the epoch.
    pub since: i64,
}

type Key = (HostId, Option<Uuid>);

struct Entry {
    cause: Cause,
    since: i64,
    /// When the entry was noted last.
    last: i64,
    /// The mark of the resync that began after the entry was noted last.
    mark: Option<Uuid>,
}

/// The missed writes that one shard has recorded.
pub(super) struct Missed {
    path: PathBuf,
    entries: RefCell<BTreeMap<Key, Entry>>,
    /// The number of changes, and the number of changes that are on disk (`written`).
    changes: Cell<u64>,
    written: Cell<u64>,
    write_permit: Semaphore,
    /// Whether the last write failed.
    failing: Cell<bool>,
    /// The sequence number to keep in the file, if changes must not increase it.
    kept_sequence: Cell<Option<u64>>,
}

impl Missed {
    pub fn new(path: PathBuf) -> Missed {
        let (changes, written) = (Cell::new(0), Cell::new(0));
        Missed {
            path,
            entries: RefCell::default(),
            changes,
            written,
            write_permit: Semaphore::new(1),
            failing: Cell::new(false),
            kept_sequence: Cell::new(None),
        }
    }

    /// The name of the file.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The sequence number: how often the file was changed on disk.
    pub fn sequence(&self) -> u64 {
        self.written.get()
    }

    /// Keeps the sequence number that the file has. A later check needs this number: whether the
    /// file was replaced since the node stopped.
    pub fn keep_sequence(&self) {
        self.kept_sequence.set(Some(self.written.get()));
    }

    /// Adds the entries of a file, if the file exists. Its sequence number must be at least
    /// `least`. Returns why the file differs from the file at the last stop, if it does.
    pub async fn adopt(&self, path: &Path, least: u64) -> io::Result<Option<&'static str>> {
        let (found, mut lost) = match rt::fs::read(path).await {
            Ok(bytes) => {
                let found = decode(&bytes);
                let lost = found.is_none().then_some("is damaged");
                if found.is_none() && least == 0 {
                    // A node must start even if its own notes are damaged.
                    tracing::error!(file = %path.display(), "the notes of missed writes cannot be read: this node does not know any more which nodes missed writes");
                }
                (found, lost)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, (least > 0).then_some("is missing")),
            Err(error) => return Err(error),
        };
        let is_there = found.is_some();
        let (sequence, found) = found.unwrap_or_default();
        if lost.is_none() && sequence < least {
            lost = Some("is older than when the node stopped");
        }
        if path == self.path {
            let before = sequence.max(least);
            self.written.set(before);
            // A file without a sequence number gets one.
            self.changes.set(before + u64::from(lost.is_some() || (is_there && sequence == 0)));
        }
        let now = rt::time::wall_micros();
        let mut entries = self.entries.borrow_mut();
        for one in found {
            let fresh = Entry { cause: one.cause, since: one.since, last: now, mark: None };
            entries.entry((one.target, one.table.map(|table| table.0))).or_insert(fresh);
        }
        Ok(lost)
    }

    /// Notes that a node misses a write. Returns once the note is on disk. If the disk fails, only
    /// the first note waits for it.
    pub async fn note(&self, target: HostId, table: Option<TableId>, cause: Cause) {
        self.note_since(target, table, cause, rt::time::wall_micros()).await;
    }

    /// Notes that a node has missed writes since a time.
    pub async fn note_since(&self, target: HostId, table: Option<TableId>, cause: Cause, since: i64) {
        let now = rt::time::wall_micros();
        let key = (target, table.map(|table| table.0));
        let is_new = match self.entries.borrow_mut().entry(key) {
            std::collections::btree_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                (known.last, known.mark) = (now, None);
                // `Expired` replaces other causes: a resync must not spread data of such a node.
                let is_worse = cause == Cause::Expired && known.cause != cause;
                if is_worse {
                    known.cause = cause;
                }
                let is_earlier = since < known.since;
                known.since = since.min(known.since);
                is_worse || is_earlier
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Entry { cause, since, last: now, mark: None });
                true
            }
        };
        if !is_new {
            // Another task may be writing the note.
            if !self.failing.get() {
                self.write().await;
            }
            return;
        }
        let tables = self.list().iter().filter(|one| one.target == target).count();
        tracing::warn!(
            target_node = %target, tables, why = cause.text(),
            "a node misses writes that hint replay will not deliver: when it is up, run `messina admin resync {target}`"
        );
        self.changed().await;
    }

    /// Removes the entries of a node that were noted last at `by` or before. None for `tables`
    /// means all.
    pub async fn forget(&self, target: HostId, tables: Option<&[Option<TableId>]>, by: i64) {
        let before = self.entries.borrow().len();
        self.entries.borrow_mut().retain(|(host, table), entry| {
            let is_meant = tables.is_none_or(|tables| tables.contains(&table.map(TableId)));
            *host != target || !is_meant || entry.last > by
        });
        if self.entries.borrow().len() < before {
            self.changed().await;
        }
    }

    /// Marks the entries of a node.
    pub fn mark(&self, target: HostId, mark: Uuid) {
        let mut entries = self.entries.borrow_mut();
        entries.iter_mut().filter(|((host, _), _)| *host == target).for_each(|(_, entry)| entry.mark = Some(mark));
    }

    /// Removes the entries of a node for these tables that have this mark.
    pub async fn forget_marked(&self, target: HostId, tables: &[Option<TableId>], mark: Uuid) {
        let before = self.entries.borrow().len();
        self.entries.borrow_mut().retain(|(host, table), entry| {
            *host != target || entry.mark != Some(mark) || !tables.contains(&table.map(TableId))
        });
        if self.entries.borrow().len() < before {
            self.changed().await;
        }
    }

    /// All entries.
    pub fn list(&self) -> Vec<MissedWrites> {
        let entries = self.entries.borrow();
        let of = |((target, table), entry): (&Key, &Entry)| MissedWrites {
            target: *target,
            table: table.map(TableId),
            cause: entry.cause,
            since: entry.since,
        };
        entries.iter().map(of).collect()
    }

    /// Writes a change to disk. After an error the next [`Missed::write`] retries.
    pub async fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
        self.write().await;
    }

    /// Whether all entries are on disk.
    pub fn is_written(&self) -> bool {
        self.written.get() >= self.changes.get()
    }

    /// Writes the entries to disk if they have changed.
    pub async fn write(&self) {
        if self.is_written() {
            return;
        }
        let Ok(_permit) = self.write_permit.acquire().await else { return };
        let upto = self.changes.get();
        if self.written.get() >= upto {
            return;
        }
        let sequence = self.kept_sequence.get().unwrap_or(upto);
        match rt::fs::write_durably(&self.path, &sealed::encode(FORMAT, &(sequence, self.list()))).await {
            Ok(()) => {
                self.written.set(upto);
                if self.failing.replace(false) {
                    tracing::info!(file = %self.path.display(), "missed writes can be recorded on disk again");
                }
            }
            Err(error) if !self.failing.replace(true) => {
                tracing::error!(file = %self.path.display(), %error,
                    "missed writes cannot be recorded on disk, and a restart would lose them; retrying");
            }
            Err(error) => {
                tracing::debug!(file = %self.path.display(), %error, "missed writes still cannot be recorded on disk")
            }
        }
    }
}

/// Notes that this node itself lacks writes of these tables (None: of any table), because it was
/// started without files that held them. Must be called before [`Hints::open`], on one shard.
/// Durable when it returns.
pub async fn note_accepted_loss(notes: &Path, own: HostId, tables: &[Option<TableId>]) -> io::Result<()> {
    rt::fs::create_dir_all(notes).await?;
    if let Some(parent) = notes.parent() {
        rt::fs::sync_dir(parent).await?;
    }
    let path = missed_path(notes, 0);
    let missed = Missed::new(path.clone());
    missed.adopt(&path, 0).await?;
    missed.keep_sequence();
    for table in tables {
        missed.note(own, *table, Cause::AcceptedLoss).await;
    }
    missed.write().await;
    match missed.is_written() {
        true => Ok(()),
        false => Err(io::Error::other("the file could not be written")),
    }
}

/// The path of the missed writes of a shard.
pub(super) fn missed_path(notes: &Path, shard: u16) -> PathBuf {
    notes.join(missed_name(shard))
}

/// The name of that file.
pub(super) fn missed_name(shard: u16) -> String {
    format!("{shard}.missed")
}

fn decode(bytes: &[u8]) -> Option<(u64, Vec<MissedWrites>)> {
    sealed::decode(FORMAT, bytes).or_else(|| Some((0, sealed::decode(WITHOUT_SEQUENCE, bytes)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_file_stays() {
        let one = MissedWrites {
            target: HostId(Uuid::from_u128(5)),
            table: Some(TableId(Uuid::from_u128(6))),
            cause: Cause::Damaged,
            since: 1,
        };
        let both = vec![one, MissedWrites { table: None, ..one }];
        assert_eq!(decode(&sealed::encode(WITHOUT_SEQUENCE, &both)), Some((0, both.clone())));
        let bytes = sealed::encode(FORMAT, &(9_u64, &both));
        let id = |n: u8| [&[16][..], &[0; 15], &[n]].concat();
        let body = [&[9, 2][..], &id(5), &[1], &id(6), &[3, 2], &id(5), &[0, 3, 2]].concat();
        assert_eq!(bytes[..5], [FORMAT, body.len() as u8, 0, 0, 0]);
        assert_eq!(bytes[5..bytes.len() - 4], body);
        assert_eq!(decode(&bytes), Some((9, both)));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(decode(&bad), None, "byte {at}");
        }
    }
}
