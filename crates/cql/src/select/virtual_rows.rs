//! Reads of virtual tables: generates the rows, then restricts, sorts, limits and pages them.

use super::Select;
use super::pager::VirtualState;
use super::rows::{Emitter, Slots};
use super::sort::sorted;
use crate::api::Rows;
use crate::error::Error;
use crate::pace::{Pace, ROW_WORK};
use crate::restrictions::Partitions;
use crate::source::{VirtualRow, VirtualTable};
use crate::term::Env;
use bytes::Bytes;
use model::key::{self, DecoratedKey, MAX_KEY_BYTES, encode_partition_key};
use model::range::RowRange;
use replica::OutputColumn;
use std::cmp::Ordering;

/// The rows to read.
pub struct RowSelection {
    /// Their partitions.
    pub partitions: Partitions,
    /// The clustering ranges in each partition.
    pub ranges: Vec<RowRange>,
}

/// A row with its position in the order of the result.
struct Placed {
    /// The position of its partition in the list of keys; 0 for a range of partitions.
    rank: usize,
    key: DecoratedKey,
    clustering: key::Clustering,
    slots: Slots,
}

/// One page after `skip` rows, and the state of the next. The limits apply to all rows, to the rows
/// of a partition, and to the rows of a page.
pub async fn read(
    select: &Select,
    table: &dyn VirtualTable,
    place: RowSelection,
    mut emitter: Emitter<'_>,
    pace: &Pace<'_>,
    [limit, per_partition, page_size]: [Option<u64>; 3],
    skip: u64,
) -> Result<(Rows, Option<VirtualState>), Error> {
    let schema = &select.schema;
    let order = |a: &Placed, b: &Placed| {
        let rows =
            if table.is_in_order() { Ordering::Equal } else { schema.order.compare_rows(&a.clustering, &b.clustering) };
        let rows = if select.reversed { rows.reverse() } else { rows };
        a.rank.cmp(&b.rank).then_with(|| a.key.cmp(&b.key)).then(rows)
    };
    let mut unsorted: Vec<Option<Placed>> = Vec::new();
    for row in table.rows(&place.partitions).await? {
        unsorted.extend(placed(select, &place, row).map(Some));
        pace.worked(ROW_WORK).await?;
    }
    let key_bytes = |row: &Option<Placed>| row.as_ref().map_or(0, |row| row.key.key.len() + row.clustering.0.len());
    let by_order = |a: &Option<Placed>, b: &Option<Placed>| match (a, b) {
        (Some(a), Some(b)) => order(a, b),
        _ => Ordering::Equal,
    };
    let places = sorted(&unsorted, by_order, key_bytes, pace).await?;
    let mut rows: Vec<Placed> = places.into_iter().filter_map(|at| unsorted[at as usize].take()).collect();
    if select.output.distinct {
        rows.dedup_by(|later, kept| later.key == kept.key);
    }
    rows = filtered(select, rows, emitter.env(), pace).await?;
    if let Some(most) = per_partition.filter(|_| select.grouping.is_none()) {
        let mut last: Option<DecoratedKey> = None;
        let mut count = 0;
        rows.retain(|row| {
            if last.as_ref() != Some(&row.key) {
                (last, count) = (Some(row.key.clone()), 0);
            }
            count += 1;
            count <= most
        });
    }
    let one_row = matches!(select.shape, super::Shape::Aggregate(..));
    let page_size = page_size.filter(|_| !one_row && select.sort.is_empty());
    if !one_row && select.sort.is_empty() {
        rows.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
    } else {
        emitter.remaining = limit.unwrap_or(u64::MAX);
    }
    let total = rows.len() as u64;
    let wanted = page_size.unwrap_or(u64::MAX);
    for row in rows.iter().skip(skip as usize).take(wanted.min(total) as usize) {
        let bytes = row.slots.iter().flatten().map(Bytes::len).sum();
        emitter.take(&row.slots, bytes, pace).await?;
    }
    let next = skip.saturating_add(wanted);
    emitter.finish(pace).await?;
    let body = std::mem::take(&mut emitter.body);
    let rows =
        Rows { metadata: select.metadata.clone(), paging_state: None, count: emitter.rows as u32, body: body.into() };
    Ok((rows, (next < total).then_some(VirtualState(next))))
}

/// The rows that pass the filters.
async fn filtered(select: &Select, rows: Vec<Placed>, env: Env<'_>, pace: &Pace<'_>) -> Result<Vec<Placed>, Error> {
    if select.restrictions.filters.is_empty() {
        return Ok(rows);
    }
    let mut filters = Vec::with_capacity(select.restrictions.filters.len());
    for filter in &select.restrictions.filters {
        filters.push(filter.bind(env)?);
        pace.worked(ROW_WORK).await?;
    }
    let mut passed = Vec::new();
    'rows: for row in rows {
        let bytes: usize = row.slots.iter().flatten().map(Bytes::len).sum();
        pace.worked(ROW_WORK).await?;
        for (filter, at) in filters.iter().zip(&select.filter_slots) {
            if !filter.accepts(&row.slots, at) {
                continue 'rows;
            }
            pace.worked(bytes + filter.work()).await?;
        }
        passed.push(row);
    }
    Ok(passed)
}

fn placed(select: &Select, place: &RowSelection, row: VirtualRow) -> Option<Placed> {
    let schema = &select.schema;
    let (keys, after) = row.split_at_checked(schema.partition_key.len())?;
    let (clustering, _) = after.split_at_checked(schema.clustering.len())?;
    let components: Vec<&[u8]> = keys.iter().map(|value| value.as_deref().unwrap_or_default()).collect();
    if components.iter().any(|component| component.len() > MAX_KEY_BYTES) {
        return None;
    }
    let mut key = Vec::new();
    encode_partition_key(&components, &mut key);
    let key = DecoratedKey::new(key.into());
    let rank = match &place.partitions {
        Partitions::Keys(keys) => keys.iter().position(|other| *other == key)?,
        Partitions::Range(range) => range.contains(&key).then_some(0)?,
    };
    let components: Vec<&[u8]> = clustering.iter().map(|value| value.as_deref().unwrap_or_default()).collect();
    if components.iter().any(|component| component.len() > MAX_KEY_BYTES) {
        return None;
    }
    let clustering = key::Clustering::from_components(components);
    if !place.ranges.iter().any(|range| range.contains(&schema.order, &clustering)) {
        return None;
    }
    let index_of = |id| schema.all_columns().position(|c| c.id == id && !is_key(c.kind));
    let slots = select
        .output
        .columns
        .iter()
        .map(|column| match column {
            OutputColumn::PartitionKey(i) => row[*i as usize].clone(),
            OutputColumn::Clustering(i) => row[schema.partition_key.len() + *i as usize].clone(),
            OutputColumn::Value(id) => index_of(*id).and_then(|index| row.get(index).cloned()).flatten(),
            OutputColumn::WriteTime(_)
            | OutputColumn::Ttl(_)
            | OutputColumn::Elements(_)
            | OutputColumn::CellTimes(_) => None,
        })
        .collect();
    Some(Placed { rank, key, clustering, slots })
}

fn is_key(kind: model::ColumnKind) -> bool {
    matches!(kind, model::ColumnKind::PartitionKey | model::ColumnKind::Clustering)
}
