//! Missed writes: which nodes missed writes that hint replay will not deliver. An operator must be
//! able to see them, even after a restart.
//!
//! There is one file for each shard. It is next to the manifest and outside of the hint directory,
//! so that removing the hints does not remove it. An entry holds a node, a table, the cause, and
//! the time since when writes are missing. An entry is removed when the node was resynced
//! ([`crate::resync`]), when an operator requests it, or when the table is dropped. Each new entry
//! costs one write of a small file, independent of how many writes are missed.
//!
//! If that file cannot be written, the entries are written to reserved space
//! ([`super::reserved_notes`]). If this fails too, the write that was missed must not be
//! acknowledged ([`NotRecorded`]).

use super::reserved_notes::ReservedNotes;
use super::sealed;
use model::id::{HostId, TableId};
use rt::sync::Semaphore;
use rt::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The format version: the sequence number and the entries.
const FORMAT: u8 = 2;
/// After a failure, a write that a known entry covers does not retry the disk for this long.
const RETRY: Duration = Duration::from_secs(1);

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
            Cause::NotesLost => "hints for it, or files of hint-notes, were lost on another node",
            Cause::Refused => "it refused writes that other replicas have: its log names the reason",
        }
    }
}

/// A missed write could not be recorded on disk.
#[derive(Clone, Debug, thiserror::Error)]
#[error("node {target} misses this write, and the coordinator's disk failed to record that: {why}")]
pub struct NotRecorded {
    /// The node that misses the write.
    pub target: HostId,
    /// The error of the disk.
    pub why: String,
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
    /// The time since which writes are missing: microseconds since 1970.
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
    /// The number of the change that noted the entry.
    change: u64,
}

/// The missed writes that one shard has recorded.
pub(super) struct Missed {
    path: PathBuf,
    entries: RefCell<BTreeMap<Key, Entry>>,
    /// The number of changes, and the number of changes that are on disk (`written`).
    changes: Cell<u64>,
    written: Cell<u64>,
    write_permit: Semaphore,
    /// When and why the last write failed, if it failed.
    failure: RefCell<Option<(Instant, String)>>,
    reserve: ReservedNotes,
    /// Whether the newest entries are only in the reserved space.
    is_in_reserve: Cell<bool>,
    /// Whether the last attempt to reserve space failed.
    is_reserve_missing: Cell<bool>,
    /// The sequence number to keep in the file, if changes must not increase it.
    kept_sequence: Cell<Option<u64>>,
}

impl Missed {
    /// `reserve` is the path of the reserved space.
    pub fn new(path: PathBuf, reserve: PathBuf) -> Missed {
        let (changes, written) = (Cell::new(0), Cell::new(0));
        Missed {
            path,
            entries: RefCell::default(),
            changes,
            written,
            write_permit: Semaphore::new(1),
            failure: RefCell::default(),
            reserve: ReservedNotes::new(reserve),
            is_in_reserve: Cell::new(false),
            is_reserve_missing: Cell::new(false),
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

    /// Adds the entries of a file, if the file exists, or of its reserved space if this is newer.
    /// The sequence number must be at least `least`. Returns why the file differs from the file at
    /// the last stop, if it does.
    pub async fn adopt(&self, path: &Path, reserve: &Path, least: u64) -> io::Result<Option<&'static str>> {
        let (found, mut lost) = match rt::fs::read(path).await {
            Ok(bytes) => {
                let found = decode(&bytes);
                let lost = found.is_none().then_some("is damaged");
                if found.is_none() && least == 0 {
                    // A node must start even if its own notes are damaged.
                    tracing::error!(file = %path.display(),
                        "the missed-write records are damaged, and the nodes that missed writes are unknown: run `messina \
                         admin resync` for every node that was down recently");
                }
                (found, lost)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, (least > 0).then_some("is missing")),
            Err(error) => return Err(error),
        };
        let is_there = found.is_some();
        let (mut sequence, mut found) = found.unwrap_or_default();
        let newer = ReservedNotes::read(reserve).await?.filter(|(reserved, _)| *reserved > sequence);
        let is_in_reserve = newer.is_some();
        if let Some((reserved, entries)) = newer {
            (sequence, found) = (reserved, entries);
            lost = lost.filter(|_| sequence < least);
        }
        if lost.is_none() && sequence < least {
            lost = Some("is older than when the node stopped");
        }
        if path == self.path {
            let before = sequence.max(least);
            self.written.set(before);
            self.is_in_reserve.set(is_in_reserve);
            // A file with the number 0, which [`note_accepted_loss`] may leave, gets another one.
            self.changes.set(before + u64::from(lost.is_some() || (is_there && sequence == 0)));
        }
        let now = rt::time::wall_micros();
        let mut entries = self.entries.borrow_mut();
        for one in found {
            // `change: 0`: the entry counts as written. If the file must be written again, that is
            // done before the shard serves.
            let fresh = Entry { cause: one.cause, since: one.since, last: now, mark: None, change: 0 };
            entries.entry((one.target, one.table.map(|table| table.0))).or_insert(fresh);
        }
        Ok(lost)
    }

    /// Reserves space for the entries. An error is logged once, and the next call retries.
    pub async fn reserve(&self) {
        match self.reserve.reserve().await {
            Ok(()) => self.is_reserve_missing.set(false),
            Err(error) if !self.is_reserve_missing.replace(true) => tracing::warn!(%error,
                "no space can be reserved for missed-write records: if the disk becomes full, writes that a replica misses fail"),
            Err(_) => {}
        }
    }

    /// Notes that a node misses a write. The note is durable when this returns `Ok`.
    pub async fn note(&self, target: HostId, table: Option<TableId>, cause: Cause) -> Result<(), NotRecorded> {
        self.note_since(target, table, cause, rt::time::wall_micros()).await
    }

    /// Notes that a node has missed writes since a time.
    pub async fn note_since(
        &self,
        target: HostId,
        table: Option<TableId>,
        cause: Cause,
        since: i64,
    ) -> Result<(), NotRecorded> {
        let now = rt::time::wall_micros();
        let (key, change) = ((target, table.map(|table| table.0)), self.changes.get() + 1);
        let (is_new, own) = match self.entries.borrow_mut().entry(key) {
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
                if is_worse || is_earlier {
                    known.change = change;
                }
                (is_worse || is_earlier, known.change)
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Entry { cause, since, last: now, mark: None, change });
                (true, change)
            }
        };
        if is_new {
            let noted = self.list();
            let noted = noted.iter().filter(|one| one.target == target);
            let tables = match noted.clone().any(|one| one.table.is_none()) {
                true => "an unknown number".to_owned(),
                false => noted.count().to_string(),
            };
            tracing::warn!(
                node = %target, tables, why = cause.text(),
                "a node misses writes that hint replay will not deliver: when it is up, run `messina admin resync {target}`"
            );
            self.changes.set(change);
            self.write().await;
        } else if self.written.get() < own && !self.failed_just_now() {
            // Another task may be writing the note.
            self.write().await;
        }
        if self.written.get() >= own {
            return Ok(());
        }
        let why = self.failure.borrow().as_ref().map_or_else(String::new, |(_, why)| why.clone());
        Err(NotRecorded { target, why })
    }

    fn failed_just_now(&self) -> bool {
        self.failure.borrow().as_ref().is_some_and(|(at, _)| rt::time::now() - *at < RETRY)
    }

    /// The nodes with entries that are not on disk.
    pub fn unwritten(&self) -> BTreeSet<HostId> {
        let entries = self.entries.borrow();
        entries.iter().filter(|(_, entry)| entry.change > self.written.get()).map(|((host, _), _)| *host).collect()
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

    /// Removes the entries for tables that were dropped.
    pub async fn forget_dropped(&self, is_there: impl Fn(TableId) -> bool) {
        let before = self.entries.borrow().len();
        self.entries.borrow_mut().retain(|(_, table), _| table.is_none_or(|table| is_there(TableId(table))));
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

    /// Writes the entries to disk if they have changed: to the file, or else to the reserved space.
    pub async fn write(&self) {
        if self.is_written() && !self.is_in_reserve.get() {
            return;
        }
        let began = rt::time::now();
        let Ok(_permit) = self.write_permit.acquire().await else { return };
        if self.failure.borrow().as_ref().is_some_and(|(at, _)| *at > began) {
            // Another task has just failed: of many waiting tasks, one tries.
            return;
        }
        let upto = self.changes.get();
        let is_written = self.written.get() >= upto;
        if is_written && !self.is_in_reserve.get() {
            return;
        }
        let (sequence, entries) = (self.kept_sequence.get().unwrap_or(upto), self.list());
        let error = match rt::fs::write_durably(&self.path, &sealed::encode(FORMAT, &(sequence, &entries))).await {
            Ok(()) => {
                self.written.set(upto);
                if self.is_in_reserve.replace(false) | self.failure.take().is_some() {
                    tracing::info!(file = %self.path.display(), "missed writes can be recorded in their file again");
                }
                return;
            }
            Err(error) => error,
        };
        if is_written {
            // The reserved space has the same entries.
            return;
        }
        match self.reserve.write(sequence, &entries).await {
            Ok(()) => {
                self.written.set(upto);
                self.failure.replace(None);
                if !self.is_in_reserve.replace(true) {
                    tracing::warn!(file = %self.path.display(), %error,
                        "the file of missed writes cannot be written: they are recorded in reserved space; retrying");
                }
            }
            Err(why) => {
                let why = format!("{}: {error}; {why}", self.path.display());
                if self.failure.replace(Some((rt::time::now(), why))).is_none() {
                    tracing::error!(file = %self.path.display(), %error,
                        "missed writes cannot be recorded on disk: writes that a replica misses fail; retrying");
                }
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
    let (path, reserve) = (missed_path(notes, 0), reserve_path(notes, 0));
    let missed = Missed::new(path.clone(), reserve.clone());
    missed.adopt(&path, &reserve, 0).await?;
    missed.keep_sequence();
    for table in tables {
        missed.note(own, *table, Cause::AcceptedLoss).await.map_err(io::Error::other)?;
    }
    missed.write().await;
    match missed.is_written() && !missed.is_in_reserve.get() {
        true => Ok(()),
        false => Err(io::Error::other("the file could not be written")),
    }
}

/// The path of the missed writes of a shard.
pub(super) fn missed_path(notes: &Path, shard: u16) -> PathBuf {
    notes.join(missed_name(shard))
}

/// The path of the reserved space for the missed writes of a shard.
pub(super) fn reserve_path(notes: &Path, shard: u16) -> PathBuf {
    notes.join(format!("{shard}.reserve"))
}

/// The name of that file.
pub(super) fn missed_name(shard: u16) -> String {
    format!("{shard}.missed")
}

fn decode(bytes: &[u8]) -> Option<(u64, Vec<MissedWrites>)> {
    sealed::decode(FORMAT, bytes)
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
