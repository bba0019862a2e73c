//! The known large data of a tablet: as listed by its sstables when they were written, and in its
//! memtables. The large-data guardrails of writes ask for it, so it is collected on demand.

use super::Tablet;
use bytes::Bytes;
use model::TableSchema;
use model::key::{Clustering, DecoratedKey};
use model::row::Row;
use rt::hash::HashMap;
use sstable::LargeKind;
use std::rc::Rc;

/// The sizes of a partition in the sstable that has the largest part of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LargePartition {
    /// Bytes before compression.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
}

/// The sizes of a row's collections, by column.
type Collections = Vec<(String, u64)>;

/// The large data in the sstables of one version of a tablet's set.
#[derive(Default, Debug)]
pub(crate) struct LargeIndex {
    partitions: HashMap<Bytes, LargePartition>,
    /// By partition key, then clustering key: bytes of the row, and its collections.
    rows: HashMap<Bytes, HashMap<Bytes, (u64, Collections)>>,
}

impl LargeIndex {
    /// Collects the large data of a tablet's sstables.
    pub(crate) fn of(tablet: &Tablet) -> LargeIndex {
        let mut index = LargeIndex::default();
        let sstables = tablet.sstables();
        let all = sstables.iter().filter_map(|own| own.sstable.large()).flat_map(|data| &data.list);
        for large in all.filter(|large| !large.key.is_empty()) {
            let key = large.key.clone();
            match &large.what {
                LargeKind::Partition { rows, .. } => {
                    let known = index.partitions.entry(key).or_default();
                    *known = LargePartition { bytes: known.bytes.max(large.size), rows: known.rows.max(*rows) };
                }
                LargeKind::Row { .. } => {
                    let known = index.rows.entry(key).or_default().entry(large.clustering.clone()).or_default();
                    known.0 = known.0.max(large.size);
                }
                LargeKind::Cell { column, elements, .. } if *elements > 0 => {
                    let row = index.rows.entry(key).or_default().entry(large.clustering.clone()).or_default();
                    match row.1.iter_mut().find(|(known, _)| known == column) {
                        Some((_, most)) => *most = (*most).max(*elements),
                        None => row.1.push((column.clone(), *elements)),
                    }
                }
                LargeKind::Cell { .. } => {}
            }
        }
        index
    }
}

/// The known large data of one partition.
pub struct LargeView {
    tablet: Rc<Tablet>,
    index: Rc<LargeIndex>,
    schema: Rc<TableSchema>,
    key: DecoratedKey,
}

impl LargeView {
    /// The known large data of a partition of a tablet.
    pub(crate) fn new(tablet: Rc<Tablet>, schema: Rc<TableSchema>, key: &DecoratedKey) -> LargeView {
        LargeView { index: tablet.large_index(), tablet, schema, key: key.clone() }
    }

    /// The partition itself; none if no sstable lists it.
    pub fn partition(&self) -> Option<LargePartition> {
        self.index.partitions.get(&self.key.key).copied()
    }

    /// The bytes of a row if it is known to be large: more than `least` bytes in a memtable, or
    /// listed by an sstable. `clustering` is `None` for the static row.
    pub fn row(&self, clustering: Option<&Clustering>, least: u64) -> u64 {
        let listed = self.listed(clustering).map_or(0, |(bytes, _)| *bytes);
        let mut most = listed;
        self.for_each_in_memory(clustering, &mut |row| {
            let bytes = row.len() as u64;
            most = most.max(if bytes > least { bytes } else { 0 });
        });
        most
    }

    /// The elements of a collection of a row. In memtables only rows of about `least` elements
    /// and more are counted.
    pub fn collection(&self, clustering: Option<&Clustering>, column: model::ColumnId, least: u64) -> u64 {
        let name = self.schema.column(column).map_or("", |column| column.name.as_str());
        let listed = self.listed(clustering).and_then(|(_, all)| all.iter().find(|(known, _)| known == name));
        let mut most = listed.map_or(0, |(_, elements)| *elements);
        self.for_each_in_memory(clustering, &mut |row| {
            // An element takes more than two bytes.
            if row.len() as u64 / 2 > least {
                let is_element = |cell: &model::row::Cell<'_>| cell.column == column && cell.path.is_some();
                most = most.max(row.cells().filter(is_element).count() as u64);
            }
        });
        most
    }

    fn listed(&self, clustering: Option<&Clustering>) -> Option<&(u64, Collections)> {
        let rows = self.index.rows.get(&self.key.key)?;
        rows.get(clustering.map_or(&[][..], |clustering| &clustering.0[..]))
    }

    fn for_each_in_memory(&self, clustering: Option<&Clustering>, f: &mut dyn FnMut(&Row)) {
        self.tablet.for_each_memtable(|memtable| {
            if let Some(row) = memtable.row(&self.schema, &self.key, clustering) {
                f(&row);
            }
        });
    }
}
