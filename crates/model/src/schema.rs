//! The schema of a table: an immutable version, shared by pointer, and replaced entirely by a
//! change.
//!
//! Invariant that other code relies on: a [`ColumnId`] means the same column in every version of a
//! table's schema.

use crate::id::{ColumnId, SchemaVersion, TableId};
use crate::key::PositionRef;
use crate::options::{RateLimits, TableOptions};
use crate::time::Timestamp;
use crate::types::{self, CqlType};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of a column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum ColumnKind {
    /// Part of the partition key.
    PartitionKey,
    /// Part of the clustering key.
    Clustering,
    /// One value for the entire partition.
    Static,
    /// A value in each row.
    Regular,
}

/// A column.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// The id of a static or regular column in rows. The id of a key column is only its position.
    pub id: ColumnId,
    /// The name as stored (not quoted).
    pub name: String,
    /// Its kind.
    pub kind: ColumnKind,
    /// The index among the columns of its kind.
    pub position: u16,
    /// The type. Descending order is not part of it.
    pub ty: CqlType,
    /// For clustering columns: whether rows are in descending order by it.
    pub descending: bool,
}

/// A dropped column. Its cells up to the drop are dead in all files and logs.
#[derive(Clone, PartialEq, Debug)]
pub struct DroppedColumn {
    /// Its id, never used again.
    pub id: ColumnId,
    /// Its name, which a later column may have again.
    pub name: String,
    /// Static or regular.
    pub kind: ColumnKind,
    /// Its type.
    pub ty: CqlType,
    /// Cells of this name with this timestamp (microseconds) or a lower one are dead.
    pub drop_time: Timestamp,
}

/// One version of a table's schema.
#[derive(Clone, PartialEq, Debug)]
pub struct TableSchema {
    /// The table.
    pub id: TableId,
    /// This version.
    pub version: SchemaVersion,
    /// The keyspace's name.
    pub keyspace: String,
    /// The table's name.
    pub name: String,
    /// Partition key columns, in order.
    pub partition_key: Vec<Column>,
    /// Clustering columns, in order.
    pub clustering: Vec<Column>,
    /// Static columns, by name.
    pub statics: Vec<Column>,
    /// Regular columns, by name.
    pub regulars: Vec<Column>,
    /// Columns dropped earlier.
    pub dropped: Vec<DroppedColumn>,
    /// The `WITH` options.
    pub options: TableOptions,
    /// The order of rows, derived from `clustering`.
    pub order: ClusteringOrder,
    /// Static and regular columns by id, derived from them.
    by_id: Vec<Option<(ColumnKind, u16)>>,
    /// Columns with the name and kind of a dropped one, by id, and when that was dropped last.
    /// Derived; few tables have any.
    added_again: Vec<(ColumnId, Timestamp)>,
    /// The ids of dropped columns, with their places in `dropped`. Derived.
    dropped_by_id: BTreeMap<ColumnId, u16>,
    /// Whether the columns are counters. Derived.
    counters: bool,
    /// The option `per_partition_rate_limit`, parsed. Derived.
    rate_limits: RateLimits,
    /// Keyspace and name. Derived, for errors that must not allocate.
    full_name: Arc<str>,
}

/// When a column of each name and kind was dropped last.
pub fn last_drops(dropped: &[DroppedColumn]) -> BTreeMap<(&str, ColumnKind), Timestamp> {
    let mut drops = BTreeMap::new();
    for column in dropped {
        let last = drops.entry((column.name.as_str(), column.kind)).or_insert(column.drop_time);
        *last = (*last).max(column.drop_time);
    }
    drops
}

impl TableSchema {
    /// Assembles a schema. `statics` and `regulars` are sorted by name here; positions are set here
    /// for every kind.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: TableId,
        version: SchemaVersion,
        keyspace: impl Into<String>,
        name: impl Into<String>,
        mut partition_key: Vec<Column>,
        mut clustering: Vec<Column>,
        mut statics: Vec<Column>,
        mut regulars: Vec<Column>,
        dropped: Vec<DroppedColumn>,
        options: TableOptions,
    ) -> Self {
        statics.sort_by(|a, b| a.name.cmp(&b.name));
        regulars.sort_by(|a, b| a.name.cmp(&b.name));
        let mut by_id = Vec::new();
        for columns in [&mut partition_key, &mut clustering, &mut statics, &mut regulars] {
            for (position, column) in columns.iter_mut().enumerate() {
                column.position = position as u16;
                if matches!(column.kind, ColumnKind::Static | ColumnKind::Regular) {
                    let at = column.id.0 as usize;
                    if by_id.len() <= at {
                        by_id.resize(at + 1, None);
                    }
                    assert!(by_id[at].is_none(), "column ids are unique within a table");
                    by_id[at] = Some((column.kind, column.position));
                }
            }
        }
        let mut others = statics.iter().chain(&regulars).map(|column| &column.ty).peekable();
        // A counter table remains one when its last column is dropped, because its files still hold
        // counters.
        let counters = match others.peek() {
            Some(_) => others.any(CqlType::is_counter),
            None => dropped.iter().any(|column| column.ty.is_counter()),
        };
        let drops = last_drops(&dropped);
        let again = |column: &Column| drops.get(&(&column.name, column.kind)).map(|drop_time| (column.id, *drop_time));
        let mut added_again: Vec<(ColumnId, Timestamp)> = statics.iter().chain(&regulars).filter_map(again).collect();
        added_again.sort_unstable();
        let dropped_by_id = dropped.iter().zip(0..).map(|(column, at)| (column.id, at)).collect();
        let order = ClusteringOrder::new(clustering.iter().map(|c| (c.ty.clone(), c.descending)));
        let (keyspace, name) = (keyspace.into(), name.into());
        let lives = |id: ColumnId| by_id.get(id.0 as usize).is_some_and(Option::is_some);
        debug_assert!(dropped.iter().all(|column| !lives(column.id)), "the id of a dropped column is not used again");
        let kinds = [
            (&partition_key, ColumnKind::PartitionKey),
            (&clustering, ColumnKind::Clustering),
            (&statics, ColumnKind::Static),
            (&regulars, ColumnKind::Regular),
        ];
        let is_of = |(columns, kind): &(&Vec<Column>, ColumnKind)| columns.iter().all(|column| column.kind == *kind);
        debug_assert!(kinds.iter().all(is_of), "a column is in the list of its kind");
        let full_name = format!("{keyspace}.{name}").into();
        TableSchema {
            id,
            version,
            keyspace,
            name,
            partition_key,
            clustering,
            statics,
            regulars,
            dropped,
            rate_limits: RateLimits::of(&options.per_partition_rate_limit),
            options,
            order,
            by_id,
            added_again,
            dropped_by_id,
            counters,
            full_name,
        }
    }

    /// For a column that was dropped and added again: cells with this timestamp or a lower one are
    /// dead in every file and memtable. The reason: sstables identify columns by name.
    #[inline]
    pub fn dead_until(&self, id: ColumnId) -> Option<Timestamp> {
        if self.added_again.is_empty() {
            return None;
        }
        let at = self.added_again.binary_search_by_key(&id, |(again, _)| *again).ok()?;
        Some(self.added_again[at].1)
    }

    /// The static or regular column with this id. `None` if it was dropped or never existed.
    pub fn column(&self, id: ColumnId) -> Option<&Column> {
        let (kind, position) = (*self.by_id.get(id.0 as usize)?)?;
        let columns = if kind == ColumnKind::Static { &self.statics } else { &self.regulars };
        Some(&columns[position as usize])
    }

    /// The column with this name, of any kind.
    pub fn column_named(&self, name: &str) -> Option<&Column> {
        let sorted = |columns: &'_ [Column]| columns.binary_search_by(|column| column.name.as_str().cmp(name));
        let key = self.partition_key.iter().chain(&self.clustering).find(|column| column.name == name);
        key.or_else(|| sorted(&self.regulars).ok().map(|at| &self.regulars[at]))
            .or_else(|| sorted(&self.statics).ok().map(|at| &self.statics[at]))
    }

    /// All columns as `SELECT *` lists them: partition key, clustering, static, regular.
    pub fn all_columns(&self) -> impl Iterator<Item = &Column> {
        self.partition_key.iter().chain(&self.clustering).chain(&self.statics).chain(&self.regulars)
    }

    /// Whether stored rows mean the same by both versions of the schema, because only options
    /// differ.
    pub fn has_same_columns(&self, other: &TableSchema) -> bool {
        self.all_columns().eq(other.all_columns()) && self.dropped == other.dropped
    }

    /// The lowest column id that was never used.
    pub fn next_column_id(&self) -> ColumnId {
        let dropped = self.dropped.iter().map(|column| column.id.0 + 1).max().unwrap_or(0);
        let next = ColumnId(dropped.max(self.by_id.len() as u16));
        debug_assert!(self.column(next).is_none(), "a new column gets an id that no column has");
        next
    }

    /// Whether this is a counter table: all its static and regular columns are counters.
    #[inline]
    pub fn is_counter(&self) -> bool {
        self.counters
    }

    /// The table's rate limits of each partition.
    #[inline]
    pub fn rate_limits(&self) -> RateLimits {
        self.rate_limits
    }

    /// Keyspace and name, separated by a dot. Shared, so that an error can have it at no cost.
    pub fn full_name(&self) -> &Arc<str> {
        &self.full_name
    }

    /// The order of the cell paths of a collection or user type column, dropped or not.
    pub fn path_order(&self, id: ColumnId) -> PathOrder<'_> {
        let dropped = || self.dropped_by_id.get(&id).map(|at| &self.dropped[usize::from(*at)].ty);
        let ty = self.column(id).map(|c| &c.ty).or_else(dropped);
        PathOrder::of(ty)
    }
}

/// The order of the cells of a collection.
#[derive(Clone, Copy, Debug)]
pub enum PathOrder<'a> {
    /// By the bytes: user types (field index) and unknown columns.
    Bytes,
    /// By the type of the value: set elements, map keys, and time UUIDs of lists.
    Value(&'a CqlType),
}

impl<'a> PathOrder<'a> {
    /// The order of paths within a column of this type.
    pub fn of(ty: Option<&'a CqlType>) -> Self {
        match ty {
            Some(CqlType::List { .. }) => PathOrder::Value(&CqlType::Timeuuid),
            Some(CqlType::Set { elem, .. }) => PathOrder::Value(elem),
            Some(CqlType::Map { key, .. }) => PathOrder::Value(key),
            _ => PathOrder::Bytes,
        }
    }

    /// Compares two paths.
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            PathOrder::Bytes => a.cmp(b),
            PathOrder::Value(ty) => types::compare(ty, a, b),
        }
    }
}

/// The order of rows within a partition, possibly reversed.
#[derive(Clone, PartialEq, Debug)]
pub struct ClusteringOrder {
    columns: Vec<(CqlType, bool)>,
}

impl ClusteringOrder {
    /// The order by each column's type, and whether it is descending.
    pub fn new(columns: impl IntoIterator<Item = (CqlType, bool)>) -> Self {
        ClusteringOrder { columns: columns.into_iter().collect() }
    }

    /// The opposite order. Cuts must be reversed with it.
    pub fn reversed(&self) -> Self {
        ClusteringOrder { columns: self.columns.iter().map(|(ty, descending)| (ty.clone(), !descending)).collect() }
    }

    /// How many clustering columns there are.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Compares two positions, component by component. Where one prefix ends, its weight decides.
    pub fn compare(&self, a: PositionRef<'_>, b: PositionRef<'_>) -> Ordering {
        let (mut x, mut y) = (a.prefix, b.prefix);
        for (ty, descending) in &self.columns {
            match (x.is_empty(), y.is_empty()) {
                (true, true) => break,
                (true, false) => return if a.weight > 0 { Ordering::Greater } else { Ordering::Less },
                (false, true) => return if b.weight > 0 { Ordering::Less } else { Ordering::Greater },
                (false, false) => {}
            }
            let (p, p_rest) = split_component(x);
            let (q, q_rest) = split_component(y);
            let by_value = types::compare(ty, p, q);
            if by_value != Ordering::Equal {
                return if *descending { by_value.reverse() } else { by_value };
            }
            (x, y) = (p_rest, q_rest);
        }
        a.weight.cmp(&b.weight)
    }

    /// Compares two rows.
    pub fn compare_rows(&self, a: &crate::key::Clustering, b: &crate::key::Clustering) -> Ordering {
        self.compare(PositionRef::row(a), PositionRef::row(b))
    }
}

/// The first component and the rest. Malformed bytes are treated as one last component, so that a
/// comparison never panics.
fn split_component(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.split_at_checked(2) {
        Some((len, tail)) => {
            tail.split_at_checked(u16::from_be_bytes([len[0], len[1]]) as usize).unwrap_or((tail, &[]))
        }
        None => (bytes, &[]),
    }
}
