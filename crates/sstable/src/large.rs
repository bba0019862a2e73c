//! Large partitions, rows and cells of an sstable: those beyond limits, found by [`finder`] while
//! the sstable is written.
//!
//! They are listed in a component of their own, LargeData.db, which other tools ignore. An sstable
//! without any has none. So the list survives restarts, and is moved and removed with the sstable.
//! For each measure, the largest [`LargeLimits::records`] are kept. Layout:
//!
//! ```text
//! be32 version 2
//! be64 when it was written, in milliseconds since 1970
//! be32 count
//!   u8 kind (0 partition, 1 row, 2 cell), vint size in bytes,
//!   vint length and text of the partition key,
//!   vint length and bytes of the partition key (not in version 1),
//!   vint length and bytes of the clustering key (not in version 1)
//!   of a partition: vint rows, vint range tombstones
//!   of a row: vint length and text of the clustering key; empty for the static row
//!   of a cell: the same, vint length and name of the column,
//!     vint elements of the collection (0 if it is none)
//! ```

mod finder;

use crate::generation::{Component, SstablePath};
use crate::input::{Fault, Input, Parsed, write_vbytes};
use bytes::Bytes;
use model::TableSchema;
use model::types::vint::write_unsigned;
use std::cell::Cell;

pub(crate) use finder::Finder;

const VERSION: u32 = 2;
/// The first version, without the bytes of keys.
const VERSION_WITHOUT_KEYS: u32 = 1;

/// The limits beyond which partitions, rows, cells and collections are large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeLimits {
    /// Bytes of a partition.
    pub partition_bytes: u64,
    /// Rows of a partition.
    pub partition_rows: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Bytes of a cell, or of all cells of a collection.
    pub cell_bytes: u64,
    /// Elements of a collection.
    pub collection_elements: u64,
    /// How many records are kept for each measure of an sstable, the largest first.
    pub records: usize,
}

impl Default for LargeLimits {
    /// ScyllaDB's defaults.
    fn default() -> Self {
        LargeLimits {
            partition_bytes: 1000 << 20,
            partition_rows: 100_000,
            row_bytes: 10 << 20,
            cell_bytes: 1 << 20,
            collection_elements: 10_000,
            records: 10,
        }
    }
}

/// The number of large partitions, rows, cells and collections in all sstables written, whether
/// their records are kept or not.
#[derive(Default, Debug)]
pub struct LargeCounts {
    /// Partitions of too many bytes.
    pub partitions: Cell<u64>,
    /// Rows of too many bytes.
    pub rows: Cell<u64>,
    /// Cells, and collections of too many bytes.
    pub cells: Cell<u64>,
    /// Collections of too many elements.
    pub collections: Cell<u64>,
}

/// The record of a large partition, row, cell or collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Large {
    /// Bytes before compression.
    pub size: u64,
    /// The partition key as text, its components separated by colons.
    pub partition_key: String,
    /// The partition key; empty in files of version 1.
    pub key: Bytes,
    /// The clustering key of the row; empty for partitions and the static row.
    pub clustering: Bytes,
    /// The kind of data.
    pub what: LargeKind,
}

/// Kinds of large data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LargeKind {
    /// A partition.
    Partition {
        /// Its rows.
        rows: u64,
        /// Its range tombstones.
        range_tombstones: u64,
    },
    /// A row.
    Row {
        /// The clustering key as text; empty for the static row.
        clustering_key: String,
    },
    /// A cell, or a collection.
    Cell {
        /// The clustering key as text; empty for the static row.
        clustering_key: String,
        /// The column.
        column: String,
        /// The number of elements of a collection; 0 for other cells.
        elements: u64,
    },
}

impl LargeKind {
    fn number(&self) -> usize {
        match self {
            LargeKind::Partition { .. } => 0,
            LargeKind::Row { .. } => 1,
            LargeKind::Cell { .. } => 2,
        }
    }
}

/// All records of an sstable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LargeData {
    /// When it was written, in milliseconds since 1970.
    pub written_at: i64,
    /// Sorted by kind, then from the largest to the smallest.
    pub list: Vec<Large>,
}

/// Logs a warning for each large partition, row, cell or collection.
pub(crate) fn log_large_data(data: &LargeData, schema: &TableSchema, place: &SstablePath) {
    let (keyspace, table, path) = (&schema.keyspace, &schema.name, place.path(Component::Data));
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let within = |clustering_key: &String| match clustering_key.is_empty() {
        true => String::new(),
        false => format!("/{clustering_key}"),
    };
    for Large { size, partition_key, what, .. } in &data.list {
        let (kind, path, size) = match what {
            LargeKind::Partition { rows, .. } => ("partition", String::new(), format!("{size} bytes/{rows} rows")),
            LargeKind::Row { clustering_key } if clustering_key.is_empty() && !schema.clustering.is_empty() => {
                ("static row", String::new(), format!("{size} bytes"))
            }
            LargeKind::Row { clustering_key } => ("row", within(clustering_key), format!("{size} bytes")),
            LargeKind::Cell { clustering_key, column, elements: 0 } => {
                ("cell", format!("{}/{column}", within(clustering_key)), format!("{size} bytes"))
            }
            LargeKind::Cell { clustering_key, column, elements } => {
                let path = format!("{}/{column}", within(clustering_key));
                ("collection", path, format!("{size} bytes/{elements} elements"))
            }
        };
        tracing::warn!(
            target: "large_data",
            "Writing large {kind} {keyspace}/{table}: {partition_key}{path} ({size}) to {file}"
        );
    }
}

impl LargeData {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.written_at.to_be_bytes());
        out.extend_from_slice(&(self.list.len() as u32).to_be_bytes());
        for large in &self.list {
            out.push(large.what.number() as u8);
            write_unsigned(large.size, &mut out);
            write_vbytes(large.partition_key.as_bytes(), &mut out);
            write_vbytes(&large.key, &mut out);
            write_vbytes(&large.clustering, &mut out);
            match &large.what {
                LargeKind::Partition { rows, range_tombstones } => {
                    write_unsigned(*rows, &mut out);
                    write_unsigned(*range_tombstones, &mut out);
                }
                LargeKind::Row { clustering_key } => write_vbytes(clustering_key.as_bytes(), &mut out),
                LargeKind::Cell { clustering_key, column, elements } => {
                    write_vbytes(clustering_key.as_bytes(), &mut out);
                    write_vbytes(column.as_bytes(), &mut out);
                    write_unsigned(*elements, &mut out);
                }
            }
        }
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Parsed<Self> {
        fn text(input: &mut Input<'_>) -> Parsed<String> {
            let text = std::str::from_utf8(input.vbytes()?).map_err(|_| Fault::Bad("a text is not UTF-8"))?;
            Ok(text.to_owned())
        }
        let mut input = Input(bytes);
        let has_keys = match input.be32()? {
            VERSION => true,
            VERSION_WITHOUT_KEYS => false,
            _ => return Err(Fault::Bad("the version of the large data is not known")),
        };
        let written_at = input.be64()?.cast_signed();
        let mut list = Vec::new();
        for _ in 0..input.be32()? {
            let (kind, size, partition_key) = (input.u8()?, input.uvint()?, text(&mut input)?);
            let (mut key, mut clustering) = (Bytes::new(), Bytes::new());
            if has_keys {
                key = Bytes::copy_from_slice(input.vbytes()?);
                clustering = Bytes::copy_from_slice(input.vbytes()?);
            }
            let what = match kind {
                0 => LargeKind::Partition { rows: input.uvint()?, range_tombstones: input.uvint()? },
                1 => LargeKind::Row { clustering_key: text(&mut input)? },
                2 => LargeKind::Cell {
                    clustering_key: text(&mut input)?,
                    column: text(&mut input)?,
                    elements: input.uvint()?,
                },
                _ => return Err(Fault::Bad("a kind of large data is not known")),
            };
            list.push(Large { size, partition_key, key, clustering, what });
        }
        if !input.0.is_empty() {
            return Err(Fault::Bad("bytes follow the large data"));
        }
        Ok(LargeData { written_at, list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LargeData {
        let large = |size, text: &str, what| {
            let (key, clustering) = (Bytes::copy_from_slice(text.as_bytes()), Bytes::from_static(b"row"));
            Large { size, partition_key: text.to_owned(), key, clustering, what }
        };
        LargeData {
            written_at: 1_700_000_000_000,
            list: vec![
                large(1 << 40, "1:a", LargeKind::Partition { rows: 7, range_tombstones: 300 }),
                large(300, "k", LargeKind::Row { clustering_key: String::new() }),
                large(0, "", LargeKind::Cell { clustering_key: "c".into(), column: "v".into(), elements: 20_000 }),
            ],
        }
    }

    #[test]
    fn large_data_records_round_trip() {
        for data in [sample(), LargeData::default()] {
            assert_eq!(LargeData::read(&data.write()), Ok(data));
        }
    }

    #[test]
    fn the_first_version_is_read_without_keys() {
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let row = [&[1, 100][..], &text("k"), &text("c")].concat();
        let bytes = [&1u32.to_be_bytes()[..], &7u64.to_be_bytes(), &1u32.to_be_bytes(), &row].concat();
        let data = LargeData::read(&bytes).expect("readable");
        let [large] = &data.list[..] else { panic!("{data:?}") };
        assert_eq!((large.partition_key.as_str(), large.key.len()), ("k", 0));
        assert_eq!(large.what, LargeKind::Row { clustering_key: "c".into() });
    }

    #[test]
    fn damage_is_an_error() {
        let bytes = sample().write();
        for len in 0..bytes.len() {
            assert!(LargeData::read(&bytes[..len]).is_err(), "{len} bytes");
        }
        for at in 0..bytes.len() {
            for flip in [1u8, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                // Checksums.db detects all damage. This parser must only never panic.
                let _ = LargeData::read(&damaged);
            }
        }
        assert!(LargeData::read(&[&bytes[..], &[0]].concat()).is_err());
    }
}
