//! Which nodes missed writes that no hint will bring them: an operator has to know, also after a
//! restart.
//!
//! One file for each shard, beside the manifest of its hints and not among the hints: who removes the
//! hints must not remove this. An entry is a node, a table, why, and since when. It goes when the node
//! was brought what it lacks ([`crate::resync`]), when an operator says so, and with its table. Writing
//! it down costs one small file for each new entry, however many writes are missed.

use super::sealed;
use model::id::{HostId, TableId};
use rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The name that the file had among the hints.
pub(super) const OLD_NAME: &str = "missed";
/// The version of the file: how often it was changed, and the notes.
const FORMAT: u8 = 2;
/// The version without the first of these.
const UNCOUNTED: u8 = 1;

/// Why no hint brings a write. Append-only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// The node was down for longer than `max_hint_window_in_ms`.
    WindowOver,
    /// The hints took all the space that they may.
    Full,
    /// The hint could not be written.
    NotWritten,
    /// Hints were damaged or are missing: they could not be read back.
    Damaged,
    /// The hint was older than `gc_grace_seconds` when the node was back.
    Expired,
    /// The node started without files that held its own writes, as its operator said.
    AcceptedLoss,
    /// The node answered that it cannot take the writes: its disk is full or fails, or they are larger than its configuration allows.
    Refused,
    /// The notes of the hints for it, or of writes that it missed, were lost.
    NotesLost,
}

impl Cause {
    /// For operators.
    pub fn text(self) -> &'static str {
        match self {
            Cause::WindowOver => "it was down for longer than max_hint_window_in_ms",
            Cause::Full => "the hints took all the space that they may",
            Cause::NotWritten => "hints could not be written",
            Cause::Damaged => "hints were damaged or are missing",
            Cause::Expired => "it was down for longer than gc_grace_seconds",
            Cause::AcceptedLoss => "it started without files that were missing or damaged (--accept-loss)",
            Cause::NotesLost => "hints for it, or notes of them, were lost on another node (hint-notes)",
            Cause::Refused => "it refused writes that other replicas have: its log names the reason",
        }
    }
}

/// A node lacks writes of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissedWrites {
    /// The node.
    pub target: HostId,
    /// The table; none: it is not known which, so any.
    pub table: Option<TableId>,
    /// Why.
    pub cause: Cause,
    /// When it was noted first: microseconds since the epoch.
    pub since: i64,
}

type Key = (HostId, Option<Uuid>);

struct Entry {
    cause: Cause,
    since: i64,
    /// When it was noted last.
    last: i64,
    /// A resync began after it was noted last.
    mark: Option<Uuid>,
}

/// What one shard knows of missed writes.
pub(super) struct Missed {
    path: PathBuf,
    entries: RefCell<BTreeMap<Key, Entry>>,
    /// Counts changes, and those that are on disk.
    changes: Cell<u64>,
    written: Cell<u64>,
    turn: Semaphore,
    /// The last write failed.
    failing: Cell<bool>,
    /// The number that the file keeps, where changes do not count.
    uncounted: Cell<Option<u64>>,
}

impl Missed {
    pub fn new(path: PathBuf) -> Missed {
        let (changes, written) = (Cell::new(0), Cell::new(0));
        Missed {
            path,
            entries: RefCell::default(),
            changes,
            written,
            turn: Semaphore::new(1),
            failing: Cell::new(false),
            uncounted: Cell::new(None),
        }
    }

    /// The name of the file.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// How often it was changed on disk.
    pub fn sequence(&self) -> u64 {
        self.written.get()
    }

    /// Leaves the file with the count of changes that it has: whether it is the file that was there
    /// when the node stopped is still to be found out.
    pub fn count_no_changes(&self) {
        self.uncounted.set(Some(self.written.get()));
    }

    /// Adds what a file has, if there is one. It must have been changed `least` times; says why it
    /// is not the file that it was.
    pub async fn adopt(&self, path: &Path, least: u64) -> io::Result<Option<&'static str>> {
        let (found, mut lost) = match rt::fs::read(path).await {
            Ok(bytes) => {
                let found = decode(&bytes);
                let lost = found.is_none().then_some("is damaged");
                if found.is_none() && least == 0 {
                    // A node must not fail to start over its own notes.
                    tracing::error!(file = %path.display(), "the notes of missed writes cannot be read: the nodes that missed writes are not known any more");
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
            // A file without a count gets one.
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

    /// Notes that a node misses a write. Returns once it is on disk, if it is news.
    pub async fn note(&self, target: HostId, table: Option<TableId>, cause: Cause) {
        self.note_since(target, table, cause, rt::time::wall_micros()).await;
    }

    /// Notes that a node has missed writes since then.
    pub async fn note_since(&self, target: HostId, table: Option<TableId>, cause: Cause, since: i64) {
        let now = rt::time::wall_micros();
        let key = (target, table.map(|table| table.0));
        let is_news = match self.entries.borrow_mut().entry(key) {
            std::collections::btree_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                (known.last, known.mark) = (now, None);
                // What a resync must not spread is to be known whatever was missed before.
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
        if !is_news {
            return;
        }
        let tables = self.list().iter().filter(|one| one.target == target).count();
        tracing::warn!(
            target_node = %target, tables, why = cause.text(),
            "a node misses writes that no hint will bring: when it is up, run `messina admin resync {target}`"
        );
        self.changed().await;
    }

    /// Forgets what was noted of a node by a time; of these tables, or everything if none are
    /// given.
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

    /// Marks what is noted of a node.
    pub fn mark(&self, target: HostId, mark: Uuid) {
        let mut entries = self.entries.borrow_mut();
        entries.iter_mut().filter(|((host, _), _)| *host == target).for_each(|(_, entry)| entry.mark = Some(mark));
    }

    /// Forgets what was noted of a node in these tables, as far as it has this mark.
    pub async fn forget_marked(&self, target: HostId, tables: &[Option<TableId>], mark: Uuid) {
        let before = self.entries.borrow().len();
        self.entries.borrow_mut().retain(|(host, table), entry| {
            *host != target || entry.mark != Some(mark) || !tables.contains(&table.map(TableId))
        });
        if self.entries.borrow().len() < before {
            self.changed().await;
        }
    }

    /// All that is known.
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

    /// Writes down what has changed. What cannot be written is tried again by the next [`Missed::write`].
    pub async fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
        self.write().await;
    }

    /// Whether all that is known is on disk.
    pub fn is_written(&self) -> bool {
        self.written.get() >= self.changes.get()
    }

    /// Writes down what is known, unless that is on disk.
    pub async fn write(&self) {
        if self.is_written() {
            return;
        }
        let Ok(_turn) = self.turn.acquire().await else { return };
        let upto = self.changes.get();
        if self.written.get() >= upto {
            return;
        }
        let sequence = self.uncounted.get().unwrap_or(upto);
        match rt::fs::write_durably(&self.path, &sealed::encode(FORMAT, &(sequence, self.list()))).await {
            Ok(()) => {
                self.written.set(upto);
                if self.failing.replace(false) {
                    tracing::info!(file = %self.path.display(), "missed writes are noted on disk again");
                }
            }
            Err(error) if !self.failing.replace(true) => {
                tracing::error!(file = %self.path.display(), %error,
                    "missed writes cannot be noted on disk: a restart would forget them; it is tried again");
            }
            Err(error) => tracing::debug!(file = %self.path.display(), %error, "missed writes still cannot be noted"),
        }
    }
}

/// Notes that this node itself lacks writes of these tables (none: of any) which other nodes have:
/// it was started without what held them. To be called before [`Hints::open`], on one shard.
/// Durable when it returns.
pub async fn note_accepted_loss(notes: &Path, own: HostId, tables: &[Option<TableId>]) -> io::Result<()> {
    rt::fs::create_dir_all(notes).await?;
    if let Some(parent) = notes.parent() {
        rt::fs::sync_dir(parent).await?;
    }
    let path = missed_path(notes, 0);
    let missed = Missed::new(path.clone());
    missed.adopt(&path, 0).await?;
    missed.count_no_changes();
    for table in tables {
        missed.note(own, *table, Cause::AcceptedLoss).await;
    }
    missed.write().await;
    match missed.is_written() {
        true => Ok(()),
        false => Err(io::Error::other("the file could not be written")),
    }
}

/// The file with the notes of a shard of missed writes.
pub(super) fn missed_path(notes: &Path, shard: u16) -> PathBuf {
    notes.join(missed_name(shard))
}

/// The name of that file.
pub(super) fn missed_name(shard: u16) -> String {
    format!("{shard}.missed")
}

fn decode(bytes: &[u8]) -> Option<(u64, Vec<MissedWrites>)> {
    sealed::decode(FORMAT, bytes).or_else(|| Some((0, sealed::decode(UNCOUNTED, bytes)?)))
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
        assert_eq!(decode(&sealed::encode(UNCOUNTED, &both)), Some((0, both.clone())));
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
