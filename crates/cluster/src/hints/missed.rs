//! Which nodes missed writes that no hint will bring them: an operator has to know, also after a
//! restart.
//!
//! One file for each shard, `missed`: (version, length, body) and a CRC32 of all before. An entry
//! is a node, a table, why, and since when. It goes when the node was brought what it lacks
//! ([`crate::resync`]), when an operator says so, and with its table. Writing it down costs one
//! small file for each new entry, however many writes are missed.

use model::id::{HostId, TableId};
use rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use uuid::Uuid;

/// The name of the file.
pub(super) const NAME: &str = "missed";
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
    /// Hints were damaged: they could not be read back.
    Damaged,
    /// The hint was older than `gc_grace_seconds` when the node was back.
    Expired,
}

impl Cause {
    /// For operators.
    pub fn text(self) -> &'static str {
        match self {
            Cause::WindowOver => "it was down for longer than max_hint_window_in_ms",
            Cause::Full => "the hints took all the space that they may",
            Cause::NotWritten => "hints could not be written",
            Cause::Damaged => "hints were damaged",
            Cause::Expired => "it was down for longer than gc_grace_seconds",
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
}

/// What one shard knows of missed writes.
pub(super) struct Missed {
    path: PathBuf,
    entries: RefCell<BTreeMap<Key, Entry>>,
    /// Counts changes, and those that are on disk.
    changes: Cell<u64>,
    written: Cell<u64>,
    turn: Semaphore,
}

impl Missed {
    pub fn new(path: PathBuf) -> Missed {
        let (changes, written) = (Cell::new(0), Cell::new(0));
        Missed { path, entries: RefCell::default(), changes, written, turn: Semaphore::new(1) }
    }

    /// Adds what a file has; none: there is no such file.
    pub async fn adopt(&self, path: &std::path::Path) -> io::Result<()> {
        let bytes = match rt::fs::read(path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(found) = decode(&bytes) else {
            // A node must not fail to start over its own notes.
            tracing::error!(file = %path.display(), "the notes of missed writes cannot be read: the nodes that missed writes are not known any more");
            return Ok(());
        };
        let now = rt::time::wall_micros();
        let mut entries = self.entries.borrow_mut();
        for one in found {
            let fresh = Entry { cause: one.cause, since: one.since, last: now };
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
                known.get_mut().last = now;
                false
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Entry { cause, since: now, last: now });
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

    /// Writes down what is known.
    pub async fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
        let Ok(_turn) = self.turn.acquire().await else { return };
        let upto = self.changes.get();
        if self.written.get() >= upto {
            return;
        }
        match rt::fs::write_durably(&self.path, &encode(&self.list())).await {
            Ok(()) => self.written.set(upto),
            Err(error) => tracing::error!(file = %self.path.display(), %error, "missed writes cannot be noted"),
        }
    }
}

fn encode(all: &[MissedWrites]) -> Vec<u8> {
    let body = postcard::to_stdvec(all).expect("plain values can be encoded");
    let mut out = vec![FORMAT];
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<Vec<MissedWrites>> {
    let (all, crc) = bytes.split_last_chunk::<4>()?;
    let (head, body) = all.split_first_chunk::<5>()?;
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != FORMAT || len != body.len() || crc32fast::hash(all) != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::from_bytes(body).ok()
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
        let bytes = encode(&[one, MissedWrites { table: None, ..one }]);
        let id = |n: u8| [&[16][..], &[0; 15], &[n]].concat();
        let body = [&[2][..], &id(5), &[1], &id(6), &[3, 2], &id(5), &[0, 3, 2]].concat();
        assert_eq!(bytes[..5], [FORMAT, body.len() as u8, 0, 0, 0]);
        assert_eq!(bytes[5..bytes.len() - 4], body);
        assert_eq!(decode(&bytes), Some(vec![one, MissedWrites { table: None, ..one }]));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(decode(&bad), None, "byte {at}");
        }
    }
}
