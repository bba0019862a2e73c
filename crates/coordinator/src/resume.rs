//! Where a query goes on: from the position at which a page ended to the partitions and rows that are still wanted.

use super::read::Query;
use model::key::{Clustering, ClusteringCut, DecoratedKey};
use model::range::{Resume, RowRange, Slice};
use model::schema::ClusteringOrder;
use replica::{Position, Region};
use std::cmp::Ordering;

/// Where a page ended, as the next one needs it.
pub(super) struct Start {
    /// The last thing consumed.
    pub position: Position,
    /// Its partition.
    pub key: DecoratedKey,
    /// Rows returned of that partition.
    pub rows_in_last: u64,
    /// Whether there may be more in it.
    pub inside: bool,
}

impl Start {
    /// The start after a position of this query's table.
    pub fn after(query: &Query, position: Position, rows_in_last: u64) -> Start {
        let inside = position.region != Region::End && !query.table.schema.clustering.is_empty();
        Start { key: DecoratedKey::new(position.key.clone()), position, rows_in_last, inside }
    }
}

/// A position must be one that a page of this table can end at.
pub(super) fn is_well_formed(position: &Position, clustering_columns: usize) -> bool {
    let components = position.prefix.len();
    let encoded: usize = position.prefix.components().map(|component| component.len() + 2).sum();
    let whole = position.weight != 0 || position.region != Region::Clustered || components == clustering_columns;
    encoded == position.prefix.0.len() && components <= clustering_columns && whole
}

/// What is left of a query's slice in the partition where the last page ended.
pub(super) fn resumed(query: &Query, start: &Start) -> Slice {
    let position = &start.position;
    let order = &query.table.schema.order;
    let slice = &query.slice;
    let rows = match position.region {
        Region::Start | Region::Static => slice.rows.clone(),
        Region::End => Vec::new(),
        Region::Clustered => {
            let reader_cut =
                ClusteringCut { prefix: Clustering(position.prefix.0.clone()), after: position.weight >= 0 };
            if slice.reversed {
                before(&slice.rows, &reader_cut.reversed(), order)
            } else {
                after(&slice.rows, &reader_cut, order)
            }
        }
    };
    let resume = Resume { key: start.key.clone(), rows, static_row: slice.static_row };
    Slice { resume: Some(resume), ..(**slice).clone() }
}

fn after(rows: &[RowRange], cut: &ClusteringCut, order: &ClusteringOrder) -> Vec<RowRange> {
    rows.iter()
        .filter(|range| range.end.cmp(order, cut) == Ordering::Greater)
        .map(|range| {
            let start = if range.start.cmp(order, cut) == Ordering::Less { cut } else { &range.start };
            RowRange { start: start.clone(), end: range.end.clone() }
        })
        .collect()
}

fn before(rows: &[RowRange], cut: &ClusteringCut, order: &ClusteringOrder) -> Vec<RowRange> {
    rows.iter()
        .filter(|range| range.start.cmp(order, cut) == Ordering::Less)
        .map(|range| {
            let end = if range.end.cmp(order, cut) == Ordering::Greater { cut } else { &range.end };
            RowRange { start: range.start.clone(), end: end.clone() }
        })
        .collect()
}
