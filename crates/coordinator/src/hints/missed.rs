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
use std::path::PathBuf;
use uuid::Uuid;

/// The name that the file had among the hints.
pub(super) const OLD_NAME: &str = "missed";
/// The version of the file and of what nodes tell each other of it.
const FORMAT: u8 = 1;

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
        }
    }

    /// Adds what a file has; none: there is no such file.
    pub async fn adopt(&self, path: &std::path::Path) -> io::Result<()> {
        let bytes = match rt::fs::read(path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(found) = sealed::decode::<Vec<MissedWrites>>(FORMAT, &bytes) else {
            // A node must not fail to start over its own notes.
            tracing::error!(file = %path.display(), "the notes of missed writes cannot be read: the nodes that missed writes are not known any more");
            return Ok(());
        };
        let now = rt::time::wall_micros();
        let mut entries = self.entries.borrow_mut();
        for one in found {
            let fresh = Entry { cause: one.cause, since: one.since, last: now, mark: None };
            entries.entry((one.target, one.table.map(|table| table.0))).or_insert(fresh);
        }
        Ok(())
    }

    /// Notes that a node misses a write. Returns once it is on disk, if it is news.
    pub async fn note(&self, target: HostId, table: Option<TableId>, cause: Cause) {
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
                is_worse
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Entry { cause, since: now, last: now, mark: None });
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
        match rt::fs::write_durably(&self.path, &sealed::encode(FORMAT, &self.list())).await {
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
        let bytes = sealed::encode(FORMAT, &both);
        let id = |n: u8| [&[16][..], &[0; 15], &[n]].concat();
        let body = [&[2][..], &id(5), &[1], &id(6), &[3, 2], &id(5), &[0, 3, 2]].concat();
        assert_eq!(bytes[..5], [FORMAT, body.len() as u8, 0, 0, 0]);
        assert_eq!(bytes[5..bytes.len() - 4], body);
        assert_eq!(sealed::decode(FORMAT, &bytes), Some(both));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(sealed::decode::<Vec<MissedWrites>>(FORMAT, &bad), None, "byte {at}");
        }
    }
}
