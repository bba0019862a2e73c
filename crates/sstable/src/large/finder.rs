//! Finds large partitions, rows and cells while an sstable is written. A row costs one comparison;
//! only rows that are long enough to have something large are examined.

use super::{Large, LargeCounts, LargeData, LargeKind, LargeLimits};
use crate::dump::{clustering_key_texts, key_texts};
use bytes::Bytes;
use model::key::{Clustering, DecoratedKey};
use model::row::Row;
use model::{ColumnId, TableSchema};
use std::cell::Cell;
use std::rc::Rc;

/// Keys are cut to this number of characters.
const LONGEST_KEY: usize = 1000;
/// An element of a collection takes more bytes than this in a row.
const LEAST_ELEMENT: u64 = 2;

/// The measures by which data is large. The largest by each measure are kept.
#[derive(Clone, Copy)]
enum Measure {
    PartitionBytes,
    PartitionRows,
    RowBytes,
    CellBytes,
    Elements,
}

/// The finder of one sstable.
pub(crate) struct Finder {
    limits: LargeLimits,
    /// Rows of more bytes are examined.
    least_row: u64,
    schema: Rc<TableSchema>,
    counts: Rc<LargeCounts>,
    /// For each measure the records found with their values, from the largest to the smallest.
    found: [Vec<(u64, Large)>; 5],
}

impl Finder {
    pub fn new(limits: LargeLimits, schema: Rc<TableSchema>, counts: Rc<LargeCounts>) -> Self {
        let collections = schema.all_columns().any(|column| column.ty.is_multi_cell());
        let elements = if collections { limits.collection_elements.saturating_mul(LEAST_ELEMENT) } else { u64::MAX };
        let least_row = limits.row_bytes.min(limits.cell_bytes).min(elements);
        Finder { limits, least_row, schema, counts, found: Default::default() }
    }

    /// A row of `size` bytes was written. Without a clustering key, it is the static row.
    #[inline]
    pub fn row(&mut self, key: &DecoratedKey, clustering: Option<&Clustering>, row: &Row, size: u64) {
        if size > self.least_row {
            self.look_at(key, clustering, row, size);
        }
    }

    /// A partition of `size` bytes was written.
    #[inline]
    pub fn partition(&mut self, key: &DecoratedKey, size: u64, rows: u64, range_tombstones: u64) {
        let (is_large, has_many_rows) = (size > self.limits.partition_bytes, rows > self.limits.partition_rows);
        if is_large {
            count(&self.counts.partitions);
            self.keep(Measure::PartitionBytes, size, key, None, size, |_| LargeKind::Partition {
                rows,
                range_tombstones,
            });
        }
        if has_many_rows {
            self.keep(Measure::PartitionRows, rows, key, None, size, |_| LargeKind::Partition {
                rows,
                range_tombstones,
            });
        }
    }

    #[cold]
    fn look_at(&mut self, key: &DecoratedKey, clustering: Option<&Clustering>, row: &Row, size: u64) {
        let clustering_key = |schema: &TableSchema| {
            cut(clustering.map_or(String::new(), |clustering| clustering_key_texts(schema, clustering).join(":")))
        };
        if size > self.limits.row_bytes {
            count(&self.counts.rows);
            let what = |schema: &TableSchema| LargeKind::Row { clustering_key: clustering_key(schema) };
            self.keep(Measure::RowBytes, size, key, clustering, size, what);
        }
        // The cells of a column are adjacent.
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
            let what = |schema: &TableSchema| LargeKind::Cell {
                clustering_key: clustering_key(schema),
                column: schema.column(id).map_or(String::new(), |column| column.name.clone()),
                elements,
            };
            if size > self.limits.cell_bytes {
                count(&self.counts.cells);
                self.keep(Measure::CellBytes, size, key, clustering, size, what);
            }
            if elements > self.limits.collection_elements {
                count(&self.counts.collections);
                self.keep(Measure::Elements, elements, key, clustering, size, what);
            }
        }
    }

    /// Keeps a record if it is among the largest by this measure.
    #[cold]
    fn keep(
        &mut self,
        measure: Measure,
        measured: u64,
        key: &DecoratedKey,
        clustering: Option<&Clustering>,
        size: u64,
        what: impl FnOnce(&TableSchema) -> LargeKind,
    ) {
        let kept = &mut self.found[measure as usize];
        let place = kept.partition_point(|(other, _)| *other >= measured);
        if place >= self.limits.records {
            return;
        }
        let partition_key = cut(key_texts(&self.schema, &key.key).join(":"));
        let clustering = clustering.map_or(Bytes::new(), |clustering| Bytes::copy_from_slice(&clustering.0));
        let key = Bytes::copy_from_slice(&key.key);
        kept.insert(place, (measured, Large { size, partition_key, key, clustering, what: what(&self.schema) }));
        kept.truncate(self.limits.records);
    }

    /// The records, if there are any.
    pub fn finish(self) -> Option<LargeData> {
        let mut list: Vec<Large> = Vec::new();
        for (_, large) in self.found.into_iter().flatten() {
            // A record that is large by two measures is in two lists.
            if !list.contains(&large) {
                list.push(large);
            }
        }
        list.sort_by_key(|large| (large.what.number(), std::cmp::Reverse(large.size)));
        (!list.is_empty()).then(|| LargeData { written_at: rt::time::wall_micros() / 1000, list })
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_KEY) {
        text.truncate(end);
    }
    text
}
