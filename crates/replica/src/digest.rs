//! The digest of a page: replicas compare digests instead of sending the pages themselves.
//!
//! A digest covers all data that the page has read, selected or not, in its compacted form. That is
//! live data with timestamps and expiries, and deletions within their grace period. So two replicas
//! with the same digest have the same such data.
//!
//! Deletions that hide nothing on this replica are included, because they may hide data on a
//! replica that is not asked. Otherwise a read could rely on a deletion and leave it on one
//! replica. A later read of other replicas would then return the deleted row again.
//!
//! Deletions past their grace period are left out, and so is data that other deletions cover: each
//! replica drops them at its own time. The order of rows is part of the digest. It depends only on
//! the data and the command, never on where the data is stored.
//!
//! Version 2: for each item, `hash128` of the state so far and the item's fields, each number
//! little-endian, each byte string after its u32 length. Digests of different versions are never
//! equal, which only costs a reconciliation.

use bytes::Bytes;
use model::compact::{Compactor, Rules};
use model::fragment::Fragment;
use model::row::{Cell, Marker, Row, State};
use model::schema::TableSchema;
use model::time::{Seconds, Timestamp, Tombstone};
use model::token::hash128;

/// The version of digests that this release makes.
const VERSION: u8 = 2;

/// The digest of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    /// The version of the algorithm.
    pub version: u8,
    /// The hash.
    pub hash: [u8; 16],
}

/// Makes a digest, fragment by fragment.
#[derive(Debug)]
pub struct Digester {
    compactor: Compactor,
    hasher: Hasher,
}

impl Digester {
    /// The digester of a read of this table at `now`, before the first fragment.
    pub fn new(schema: &TableSchema, now: Seconds) -> Self {
        Digester { compactor: Compactor::new(Rules::of(schema, now.into())), hasher: Hasher::default() }
    }

    /// The digest of the fragments so far.
    pub fn finish(&self) -> Digest {
        Digest { version: VERSION, hash: self.hasher.state }
    }

    /// Takes the next fragment of a stream.
    pub(crate) fn take(&mut self, schema: &TableSchema, fragment: &Fragment) {
        let hasher = &mut self.hasher;
        // Data older than a deletion can only be on other replicas. If it is, the digests differ.
        self.compactor.push(fragment.clone(), |_| Timestamp::MAX, |left| hasher.take(schema, left));
    }
}

/// The kind of a digest's item.
#[derive(Clone, Copy)]
enum Item {
    PartitionDeletion = 0,
    StaticRow = 1,
    Row = 2,
    RangeChange = 3,
}

/// Hashes the compacted fragments of a stream.
#[derive(Debug, Default)]
struct Hasher {
    state: [u8; 16],
    partition: Bytes,
    buffer: Vec<u8>,
}

impl Hasher {
    fn take(&mut self, schema: &TableSchema, fragment: Fragment) {
        match fragment {
            Fragment::PartitionStart { key, tombstone } => {
                self.partition = key.key;
                if !tombstone.is_live() {
                    self.begin(Item::PartitionDeletion, &[]);
                    self.tombstone(tombstone);
                    self.end();
                }
            }
            Fragment::Static(row) => self.row(schema, Item::StaticRow, &[], &row),
            Fragment::Row { key, row } => self.row(schema, Item::Row, &key.0, &row),
            Fragment::Change { at, tombstone } => {
                self.begin(Item::RangeChange, &at.prefix.0);
                self.buffer.push(u8::from(at.after));
                self.tombstone(tombstone);
                self.end();
            }
            Fragment::PartitionEnd => {}
        }
    }

    /// Adds a row, unless all it has is cells of dropped columns.
    fn row(&mut self, schema: &TableSchema, item: Item, clustering: &[u8], row: &Row) {
        let (marker, deletion, cells) = row.parts();
        let mut known = cells.filter(|cell| schema.column(cell.column).is_some()).peekable();
        if marker.is_none() && deletion.is_live() && known.peek().is_none() {
            return;
        }
        self.begin(item, clustering);
        self.marker(marker);
        self.tombstone(deletion);
        known.for_each(|cell| self.cell(&cell));
        self.end();
    }

    fn begin(&mut self, item: Item, clustering: &[u8]) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.state);
        push(&mut self.buffer, &self.partition);
        self.buffer.push(item as u8);
        push(&mut self.buffer, clustering);
    }

    fn tombstone(&mut self, tombstone: Tombstone) {
        self.buffer.extend_from_slice(&tombstone.timestamp.to_le_bytes());
        self.buffer.extend_from_slice(&tombstone.deletion_time.to_le_bytes());
    }

    fn marker(&mut self, marker: Option<Marker>) {
        let out = &mut self.buffer;
        out.push(u8::from(marker.is_some()));
        let Some(marker) = marker else { return };
        out.extend_from_slice(&marker.timestamp.to_le_bytes());
        out.extend_from_slice(&marker.ttl.to_le_bytes());
        // Without a TTL, the expiry has no meaning.
        let expiry = if marker.ttl == 0 { 0 } else { marker.expiry };
        out.extend_from_slice(&expiry.to_le_bytes());
    }

    fn cell(&mut self, cell: &Cell<'_>) {
        let out = &mut self.buffer;
        out.extend_from_slice(&cell.column.0.to_le_bytes());
        out.extend_from_slice(&cell.timestamp.to_le_bytes());
        let (kind, ttl, time) = match cell.state {
            State::Live => (0, 0, 0),
            State::Expiring { ttl, expiry } => (1, ttl, expiry),
            State::Dead { deletion_time } => (2, 0, deletion_time),
            State::ComplexDeletion { deletion_time } => (3, 0, deletion_time),
        };
        out.push(kind);
        out.extend_from_slice(&ttl.to_le_bytes());
        out.extend_from_slice(&time.to_le_bytes());
        out.push(u8::from(cell.path.is_some()));
        push(out, cell.path.unwrap_or_default());
        push(out, cell.value);
    }

    fn end(&mut self) {
        let (low, high) = hash128(&self.buffer);
        self.state[..8].copy_from_slice(&low.to_le_bytes());
        self.state[8..].copy_from_slice(&high.to_le_bytes());
    }
}

fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
