//! The digest of a page: what replicas compare instead of sending the page itself.
//!
//! It covers what lives: of each partition that gives a row its key and static cells, of each row its clustering key, its marker and all its
//! live cells of columns that the schema has, with their timestamps and expiries, selected or not. So two replicas with the same digest
//! would both answer as their merge would, and a difference that a later read might see is found early.
//! Tombstones are left out: each replica purges them in its own time, and what they hide is missing from the digest anyhow.
//! The order of rows is part of it. It depends on the data and the command alone, never on where the data lies.
//!
//! Version 1: per row, `hash128` of the state before and the row's fields, each number little-endian, each byte string behind its u32
//! length. Digests of different versions are never equal, which costs a second round and nothing else.

use model::compact::LiveCells;
use model::key::Clustering;
use model::row::{Marker, State};
use model::schema::TableSchema;
use model::token::hash128;

/// The version of digests that this release makes.
const VERSION: u8 = 1;

/// What a page's live contents come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    /// How it was made.
    pub version: u8,
    /// The hash.
    pub hash: [u8; 16],
}

/// Makes a digest, row by row.
#[derive(Debug, Default)]
pub struct Digester {
    state: [u8; 16],
    buffer: Vec<u8>,
}

impl Digester {
    /// The digest of the rows so far.
    pub fn finish(&self) -> Digest {
        Digest { version: VERSION, hash: self.state }
    }

    /// Begins a row, or what a partition has beside its rows (`clustering` is none).
    pub(crate) fn begin(&mut self, partition: &[u8], clustering: Option<&Clustering>, marker: Option<Marker>) {
        let out = &mut self.buffer;
        out.clear();
        out.extend_from_slice(&self.state);
        push(out, partition);
        out.push(clustering.is_some() as u8);
        push(out, clustering.map_or(&[], |key| &key.0));
        out.push(marker.is_some() as u8);
        if let Some(marker) = marker {
            out.extend_from_slice(&marker.timestamp.to_le_bytes());
            out.extend_from_slice(&marker.ttl.to_le_bytes());
            // Without a TTL it has no meaning.
            let expiry = if marker.ttl == 0 { 0 } else { marker.expiry };
            out.extend_from_slice(&expiry.to_le_bytes());
        }
    }

    /// Adds the live cells of it.
    pub(crate) fn cells(&mut self, schema: &TableSchema, cells: LiveCells<'_>) {
        let out = &mut self.buffer;
        for cell in cells.filter(|cell| schema.column(cell.column).is_some()) {
            out.extend_from_slice(&cell.column.0.to_le_bytes());
            out.extend_from_slice(&cell.timestamp.to_le_bytes());
            let (ttl, expiry) = match cell.state {
                State::Expiring { ttl, expiry } => (ttl, expiry),
                _ => (0, 0),
            };
            out.extend_from_slice(&ttl.to_le_bytes());
            out.extend_from_slice(&expiry.to_le_bytes());
            out.push(cell.path.is_some() as u8);
            push(out, cell.path.unwrap_or_default());
            push(out, cell.value);
        }
    }

    /// Ends it.
    pub(crate) fn end(&mut self) {
        let (low, high) = hash128(&self.buffer);
        self.state[..8].copy_from_slice(&low.to_le_bytes());
        self.state[8..].copy_from_slice(&high.to_le_bytes());
    }
}

fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
