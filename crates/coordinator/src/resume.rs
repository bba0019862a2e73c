//! Where a query resumes: computes the partitions and rows that remain after the position at which
//! a page ended.

use super::read::Query;
use model::key::{Clustering, ClusteringCut, DecoratedKey};
use model::range::{Resume, RowRange, Slice};
use model::schema::ClusteringOrder;
use replica::{Position, Region};
use std::cmp::Ordering;

/// The position after which the next page starts.
pub(super) struct Start {
    /// The last position that the page consumed.
    pub position: Position,
    /// The partition of the position.
    pub key: DecoratedKey,
    /// Rows already returned of that partition.
    pub rows_in_last: u64,
    /// Whether the partition may have more rows.
    pub inside: bool,
}

impl Start {
    /// The start after a position of this query's table.
    pub fn after(query: &Query, position: Position, rows_in_last: u64) -> Start {
        let inside = position.region != Region::End && !query.table.schema.clustering.is_empty();
        Start { key: DecoratedKey::new(position.key.clone()), position, rows_in_last, inside }
    }
}

/// Whether a page of this table can end at this position. Checked because the position comes from a
/// paging state.
pub(super) fn is_well_formed(position: &Position, clustering_columns: usize) -> bool {
    let components = position.prefix.len();
    let encoded: usize = position.prefix.components().map(|component| component.len() + 2).sum();
    let whole = position.weight != 0 || position.region != Region::Clustered || components == clustering_columns;
    encoded == position.prefix.0.len() && components <= clustering_columns && whole
}

/// The rest of a query's slice in the partition where the last page ended.
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
    let rest = Slice { resume: Some(resume), ..(**slice).clone() };
    debug_assert!(rest.is_in_order(order), "the rest of a partition is read in order");
    rest
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
