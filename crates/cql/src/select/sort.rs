//! Sorts rows with pauses: one sort of many rows could hold the shard for long.
//!
//! Short runs are sorted at once, and then merged in steps. The sort is stable.

use crate::error::Error;
use crate::pace::Pace;
use std::cmp::Ordering;

/// The rows of a run, unless their keys are large.
const RUN: usize = 128;

/// Keys of more bytes than this on average make runs of a single row.
const LARGE_KEY: usize = 1 << 10;

/// The work of a comparison in addition to the work of the keys' bytes.
const COMPARE_WORK: usize = 64;

/// The rows' places in their order. `key_bytes` is the length of a row's compared key.
pub async fn sorted<T>(
    rows: &[T],
    compare: impl Fn(&T, &T) -> Ordering,
    key_bytes: impl Fn(&T) -> usize,
    pace: &Pace<'_>,
) -> Result<Vec<u32>, Error> {
    let count = u32::try_from(rows.len()).map_err(|_| Error::invalid("Too many rows to be sorted"))?;
    let mut order: Vec<u32> = (0..count).collect();
    let mut bytes = 0usize;
    for row in rows {
        bytes = bytes.saturating_add(key_bytes(row));
        pace.worked(COMPARE_WORK).await?;
    }
    let work = COMPARE_WORK + bytes / rows.len().max(1);
    let mut run = if work > LARGE_KEY { 1 } else { RUN };
    for places in order.chunks_mut(run).filter(|places| places.len() > 1) {
        places.sort_by(|a, b| compare(&rows[*a as usize], &rows[*b as usize]));
        pace.worked(work * places.len() * RUN.ilog2() as usize).await?;
    }
    let mut merged: Vec<u32> = Vec::with_capacity(order.len());
    while run < order.len() {
        merged.clear();
        for pair in order.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let (Some((a, after_a)), Some((b, after_b))) = (left.split_first(), right.split_first()) {
                let (one, other) = (&rows[*a as usize], &rows[*b as usize]);
                if compare(one, other) == Ordering::Greater {
                    merged.push(*b);
                    right = after_b;
                } else {
                    merged.push(*a);
                    left = after_a;
                }
                pace.worked(COMPARE_WORK + key_bytes(one).min(key_bytes(other))).await?;
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut order, &mut merged);
        run *= 2;
    }
    debug_assert_eq!(order.len(), rows.len(), "each row is sorted in once");
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordinator::{Consistency, RequestOptions};
    use model::options::TableOptions;
    use model::{Column, ColumnId, ColumnKind, CqlType, SchemaVersion, TableId, TableSchema};
    use replica::{Class, Context, RateLimitMode};
    use rt::sync::{Cancel, Deadline};
    use rt::time::Duration;

    fn options() -> RequestOptions {
        let context = Context {
            class: Class::User,
            deadline: Deadline::after(Duration::from_secs(600)),
            cancel: Cancel::new(),
            trace: None,
            metadata_number: 1,
            large_data: None,
            rate_limit: RateLimitMode::Off,
        };
        RequestOptions { context, consistency: Consistency::One }
    }

    fn schema() -> TableSchema {
        let key = Column {
            id: ColumnId(0),
            name: "p".into(),
            kind: ColumnKind::PartitionKey,
            position: 0,
            ty: CqlType::Int,
            descending: false,
        };
        let (id, version) = (TableId::from_bytes([1; 16]), SchemaVersion::from_bytes([2; 16]));
        let options = TableOptions::default();
        TableSchema::new(id, version, "ks", "t", vec![key], vec![], vec![], vec![], vec![], options)
    }

    #[test]
    fn rows_are_sorted_as_by_a_stable_sort() {
        rt::block_on(async {
            let (options, schema) = (options(), schema());
            let pace = Pace::new(&options, &schema);
            for count in [0usize, 1, 2, RUN, RUN + 1, 1000, 4 * RUN, 5 * RUN + 3] {
                for key_bytes in [4, 4 * LARGE_KEY] {
                    let rows: Vec<(u64, usize)> = (0..count).map(|n| (n as u64 * 7919 % 101, n)).collect();
                    let order = sorted(&rows, |a, b| a.0.cmp(&b.0), |_| key_bytes, &pace).await.expect("in time");
                    let mut expected = rows.clone();
                    expected.sort_by_key(|row| row.0);
                    assert_eq!(order.iter().map(|at| rows[*at as usize]).collect::<Vec<_>>(), expected, "{count}");
                }
            }
        });
    }

    #[test]
    fn a_long_sort_lets_others_run_and_ends_with_its_client() {
        rt::block_on(async {
            let (options, schema) = (options(), schema());
            let pace = Pace::new(&options, &schema);
            let rows: Vec<u64> = (0..200_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let cancel = options.context.cancel.clone();
            let other = rt::task::spawn(async move { cancel.cancel() });
            let ended = sorted(&rows, u64::cmp, |_| 8, &pace).await;
            assert!(matches!(ended, Err(Error::Server(_))), "the other task has not run meanwhile");
            other.await.expect("it ran");
        });
    }
}
