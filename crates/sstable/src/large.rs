//! What is large in an sstable: partitions, rows and cells beyond limits, found while it is written.
//!
//! They stand in a component of their own, LargeData.db, which other tools ignore; an sstable without any has none. So they are known after
//! a restart, come along where the sstable goes, and go with it. Of each kind the largest [`KEPT`] are kept. Layout:
//!
//! ```text
//! be32 version 1
//! be64 when it was written, in milliseconds since 1970
//! be32 count
//!   u8 kind (0 partition, 1 row, 2 cell), vint size in bytes, vint length and text of the partition key
//!   of a partition: vint rows, vint range tombstones
//!   of a row: vint length and text of the clustering key; empty for the static row
//!   of a cell: the same, vint length and name of the column, vint elements of the collection (0 for what is none)
//! ```
//!
//! A row costs one comparison; only rows that are large enough to hold something large are looked at.

use crate::dump::{clustering_key_texts, key_texts};
use crate::input::{Fault, Input, Parsed, write_vbytes};
use model::key::{Clustering, DecoratedKey};
use model::row::Row;
use model::types::vint::write_unsigned;
use model::{ColumnId, TableSchema};
use std::rc::Rc;

/// How many of a kind are kept for an sstable.
const KEPT: usize = 100;
/// Keys are cut to so many characters.
const LONGEST_KEY: usize = 1000;
const VERSION: u32 = 1;
/// An element of a collection takes more bytes than this in a row.
const LEAST_ELEMENT: u64 = 2;

/// What counts as large: more than this.
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
}

impl Default for LargeLimits {
    /// ScyllaDB's.
    fn default() -> Self {
        LargeLimits {
            partition_bytes: 1000 << 20,
            partition_rows: 100_000,
            row_bytes: 10 << 20,
            cell_bytes: 1 << 20,
            collection_elements: 10_000,
        }
    }
}

/// Something large.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Large {
    /// Bytes before compression.
    pub size: u64,
    /// The partition key as text, components divided by colons.
    pub partition_key: String,
    /// What it is.
    pub what: LargeKind,
}

/// What is large.
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
        /// How many elements the collection has; 0 for what is none.
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

/// Everything large in an sstable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LargeData {
    /// When it was written, in milliseconds since 1970.
    pub written_at: i64,
    /// By kind, each from the largest to the smallest.
    pub list: Vec<Large>,
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
            let text = std::str::from_utf8(input.vbytes()?).map_err(|_| Fault::Bad("text that is not UTF-8"))?;
            Ok(text.to_owned())
        }
        let mut input = Input(bytes);
        if input.be32()? != VERSION {
            return Err(Fault::Bad("version of the large data"));
        }
        let written_at = input.be64()?.cast_signed();
        let mut list = Vec::new();
        for _ in 0..input.be32()? {
            let (kind, size, partition_key) = (input.u8()?, input.uvint()?, text(&mut input)?);
            let what = match kind {
                0 => LargeKind::Partition { rows: input.uvint()?, range_tombstones: input.uvint()? },
                1 => LargeKind::Row { clustering_key: text(&mut input)? },
                2 => LargeKind::Cell {
                    clustering_key: text(&mut input)?,
                    column: text(&mut input)?,
                    elements: input.uvint()?,
                },
                _ => return Err(Fault::Bad("kind of large data")),
            };
            list.push(Large { size, partition_key, what });
        }
        if !input.0.is_empty() {
            return Err(Fault::Bad("bytes after the large data"));
        }
        Ok(LargeData { written_at, list })
    }
}

/// Finds what is large while an sstable is written.
pub(crate) struct Finder {
    limits: LargeLimits,
    /// Rows of more bytes are looked at.
    least_row: u64,
    schema: Rc<TableSchema>,
    /// By kind.
    found: [Vec<Large>; 3],
}

impl Finder {
    pub fn new(limits: LargeLimits, schema: Rc<TableSchema>) -> Self {
        let collections = schema.all_columns().any(|column| column.ty.is_multi_cell());
        let elements = if collections { limits.collection_elements.saturating_mul(LEAST_ELEMENT) } else { u64::MAX };
        let least_row = limits.row_bytes.min(limits.cell_bytes).min(elements);
        Finder { limits, least_row, schema, found: Default::default() }
    }

    /// A row of so many bytes was written; without a clustering key, the static row.
    #[inline]
    pub fn row(&mut self, key: &DecoratedKey, clustering: Option<&Clustering>, row: &Row, size: u64) {
        if size > self.least_row {
            self.look_at(key, clustering, row, size);
        }
    }

    /// A partition of so many bytes was written.
    #[inline]
    pub fn partition(&mut self, key: &DecoratedKey, size: u64, rows: u64, range_tombstones: u64) {
        if size > self.limits.partition_bytes || rows > self.limits.partition_rows {
            self.keep(key, size, |_| LargeKind::Partition { rows, range_tombstones });
        }
    }

    #[cold]
    fn look_at(&mut self, key: &DecoratedKey, clustering: Option<&Clustering>, row: &Row, size: u64) {
        let clustering_key = |schema: &TableSchema| {
            cut(clustering.map_or(String::new(), |clustering| clustering_key_texts(schema, clustering).join(":")))
        };
        if size > self.limits.row_bytes {
            self.keep(key, size, |schema| LargeKind::Row { clustering_key: clustering_key(schema) });
        }
        // The cells of a column stand beside each other.
        let mut columns: Vec<(ColumnId, u64, u64)> = Vec::new();
        for cell in row.cells().filter(|cell| cell.as_complex_deletion().is_none()) {
            let bytes = (cell.value.len() + cell.path.map_or(0, <[u8]>::len)) as u64;
            let element = u64::from(cell.path.is_some());
            match columns.last_mut() {
                Some((column, size, elements)) if *column == cell.column => {
                    *size += bytes;
                    *elements += element;
                }
                _ => columns.push((cell.column, bytes, element)),
            }
        }
        for (id, size, elements) in columns {
            if size > self.limits.cell_bytes || elements > self.limits.collection_elements {
                self.keep(key, size, |schema| LargeKind::Cell {
                    clustering_key: clustering_key(schema),
                    column: schema.column(id).map_or(String::new(), |column| column.name.clone()),
                    elements,
                });
            }
        }
    }

    /// Keeps something if it is among the largest of its kind.
    #[cold]
    fn keep(&mut self, key: &DecoratedKey, size: u64, what: impl FnOnce(&TableSchema) -> LargeKind) {
        let partition_key = cut(key_texts(&self.schema, &key.key).join(":"));
        let large = Large { size, partition_key, what: what(&self.schema) };
        let kept = &mut self.found[large.what.number()];
        let place = kept.partition_point(|other| other.size >= size);
        kept.insert(place, large);
        kept.truncate(KEPT);
    }

    /// What was found, if anything.
    pub fn finish(self) -> Option<LargeData> {
        let list = self.found.concat();
        (!list.is_empty()).then(|| LargeData { written_at: rt::time::wall_micros() / 1000, list })
    }
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_KEY) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LargeData {
        let large = |size, key: &str, what| Large { size, partition_key: key.to_owned(), what };
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
    fn it_reads_back() {
        for data in [sample(), LargeData::default()] {
            assert_eq!(LargeData::read(&data.write()), Ok(data));
        }
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
                // Checksums.db tells all of them; here it must only never panic.
                let _ = LargeData::read(&damaged);
            }
        }
        assert!(LargeData::read(&[&bytes[..], &[0]].concat()).is_err());
    }
}
