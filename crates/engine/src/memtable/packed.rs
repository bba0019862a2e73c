//! A partition that is a single row, in one piece of memory: its key, its clustering key, its
//! row.
//!
//! Most partitions of most tables have one row. One piece makes a lookup one cache miss instead
//! of three, and keeps the tree small. First versions are cut from blocks that are freed entirely
//! with the memtable ([`Arena`]). A row that replaces another has its own buffer, so that
//! overwriting a row repeatedly does not fill the memtable.
//!
//! ```text
//! u8 1: cut from a block, u16 key length, u32 clustering length (native order),
//! key, clustering key, row
//! ```

use super::ALLOCATION;
use super::arena::{Arena, OwnRow};
use bytes::Bytes;
use model::key::Clustering;
use model::row::{self, Row};
use model::schema::TableSchema;

const HEADER: usize = 7;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Packed(Bytes);

impl Packed {
    /// One row, and its memory in bytes.
    pub fn new(arena: &mut Arena, key: &[u8], clustering: &Clustering, row: &Row) -> (Packed, isize) {
        let header = header(key.len(), clustering.0.len());
        let parts = [&header[..], key, &clustering.0[..], &row.0[..]];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let Some(block) = arena.block(len) else {
            return (Packed(parts.concat().into()), (len + ALLOCATION) as isize);
        };
        parts.iter().for_each(|part| block.extend_from_slice(part));
        block[0] = 1;
        (Packed(block.split().freeze()), len as isize)
    }

    /// One row with a buffer of its own.
    pub fn alone(key: &[u8], clustering: &Clustering, row: &Row) -> Packed {
        let header = header(key.len(), clustering.0.len());
        Packed([&header[..], key, &clustering.0[..], &row.0[..]].concat().into())
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Merges in a row of the same keys; returns by how many bytes it grew.
    pub fn merge(&mut self, arena: &mut Arena, schema: &TableSchema, row: &Row) -> isize {
        let start = self.row_start();
        debug_assert!(start < self.0.len(), "a row follows its keys");
        let mut merged = std::mem::take(&mut arena.scratch);
        merged.clear();
        merged.extend_from_slice(&self.0[..start]);
        merged[0] = 0;
        let merged = row::merge_to(schema, &Row(self.0.slice(start..)), row, merged);
        let freed = if self.0[0] == 0 { self.0.len() + ALLOCATION } else { 0 };
        self.0 = Bytes::copy_from_slice(&merged);
        arena.scratch = merged;
        (self.0.len() + ALLOCATION) as isize - freed as isize
    }

    fn lengths(&self) -> (usize, usize) {
        let bytes = &self.0[..HEADER];
        (
            u16::from_ne_bytes([bytes[1], bytes[2]]) as usize,
            u32::from_ne_bytes([bytes[3], bytes[4], bytes[5], bytes[6]]) as usize,
        )
    }

    fn row_start(&self) -> usize {
        let (key, clustering) = self.lengths();
        HEADER + key + clustering
    }

    /// The partition key's bytes.
    #[inline]
    pub fn key(&self) -> &[u8] {
        let (key, _) = self.lengths();
        &self.0[HEADER..HEADER + key]
    }

    /// The partition key, sharing this memory.
    pub fn key_bytes(&self) -> Bytes {
        self.0.slice_ref(self.key())
    }

    /// The clustering key, sharing this memory.
    pub fn clustering(&self) -> Clustering {
        let (key, clustering) = self.lengths();
        match clustering {
            0 => Clustering::EMPTY,
            _ => Clustering(self.0.slice(HEADER + key..HEADER + key + clustering)),
        }
    }

    /// The row and its clustering key, sharing this memory. The partition keeps the memory for its
    /// key.
    pub fn own_row(&self) -> OwnRow {
        OwnRow { key: self.clustering(), row: self.row(), is_cut: true }
    }

    /// The row, sharing this memory.
    pub fn row(&self) -> Row {
        Row(self.0.slice(self.row_start()..))
    }

    /// Prefetches the memory.
    #[inline]
    pub fn prefetch(&self) {
        rt::hint::prefetch(&self.0);
    }
}

fn header(key: usize, clustering: usize) -> [u8; HEADER] {
    debug_assert!(
        u16::try_from(key).is_ok() && u32::try_from(clustering).is_ok(),
        "the lengths of keys fit the header"
    );
    let (key, clustering) = ((key as u16).to_ne_bytes(), (clustering as u32).to_ne_bytes());
    [0, key[0], key[1], clustering[0], clustering[1], clustering[2], clustering[3]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{ColumnId, SchemaVersion, TableId};
    use model::options::TableOptions;
    use model::row::{Cell, Marker, RowBuilder};
    use model::schema::{Column, ColumnKind};
    use model::time::Tombstone;
    use model::types::CqlType;

    fn row(value: &[u8], timestamp: i64) -> Row {
        let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(0), timestamp, value));
        row.finish()
    }

    fn schema() -> TableSchema {
        let column = |name: &str, kind| Column {
            id: ColumnId(0),
            name: name.into(),
            kind,
            position: 0,
            ty: CqlType::Blob,
            descending: false,
        };
        TableSchema::new(
            TableId::from_bytes([1; 16]),
            SchemaVersion::from_bytes([2; 16]),
            "ks",
            "t",
            vec![column("pk", ColumnKind::PartitionKey)],
            vec![column("ck", ColumnKind::Clustering)],
            Vec::new(),
            vec![column("v", ColumnKind::Regular)],
            Vec::new(),
            TableOptions::default(),
        )
    }

    #[test]
    fn packed_rows_round_trip_and_overwrites_are_charged_once() {
        let (schema, mut arena) = (schema(), Arena::default());
        let clustering = Clustering::from_components([&b"c"[..]]);
        let long = vec![7; 300];
        for value in [&b""[..], b"value", &long] {
            let (mut packed, cost) = Packed::new(&mut arena, b"key", &clustering, &row(value, 1));
            assert_eq!(
                (packed.key(), packed.clustering(), packed.row()),
                (&b"key"[..], clustering.clone(), row(value, 1))
            );
            let first = cost;
            let snapshot = packed.row();
            let mut total = cost + packed.merge(&mut arena, &schema, &row(b"other", 2));
            assert_eq!((packed.key(), packed.row()), (&b"key"[..], row(b"other", 2)));
            assert_eq!(snapshot, row(value, 1), "a reader's row stays");
            let once = total;
            for timestamp in 3..100 {
                total += packed.merge(&mut arena, &schema, &row(b"other", timestamp));
            }
            assert_eq!(total, once, "only the first version stays");
            assert!(total <= first + once);
        }
    }
}
