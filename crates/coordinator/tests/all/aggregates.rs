//! Aggregates that the owners of tablets compute, and limits of pages of several partitions.

use crate::support::{Change, Cluster, Shape, key, rows, with_cluster};
use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, PageRequest, Query, QueryPartitions};
use model::CqlType;
use model::aggregate::{Accumulator, AggregateKind};
use model::range::PartitionRange;
use replica::{Output, OutputColumn, Reduction};
use smallvec::smallvec;
use std::rc::Rc;

#[test]
fn rows_are_counted_by_their_owners_in_one_request_for_each_tablet() {
    with_cluster("counted", Shape::DEFAULT, |cluster| async move {
        for k in 0..200 {
            cluster.put(k as usize % 3, Change::of(&cluster, k, 5).row(1, k).row(2, k).done()).await;
            cluster.put((k as usize + 1) % 3, Change::of(&cluster, k, 5).row(1, k).row(2, k).done()).await;
        }
        let mut query = cluster.query(QueryPartitions::Range(PartitionRange::FULL));
        query.output = Rc::new(Output::new(Vec::new(), false, false));
        // Different data is reconciled first.
        assert_eq!(cluster.reduce(0, &query, All).await.map(|read| (read.rows, read.next)), Ok((400, None)));
        let before: u64 = cluster.wire.sent.borrow().values().sum();
        let read = cluster.reduce(0, &query, Quorum).await.expect("all live");
        assert_eq!((read.rows, read.body.len(), read.next), (400, 0, None));
        let sent = cluster.wire.sent.borrow().values().sum::<u64>() - before;
        assert_eq!(sent, 4, "one other replica for each of four tablets");
    });
}

/// The aggregates of `v` of a query: count, min, max, sum.
async fn aggregates(cluster: &Cluster, query: &Query, level: Consistency) -> Result<Vec<i64>, CoordinatorError> {
    let reduced = cluster.reduce(0, query, level).await?;
    let mut parts = replica::reduce::values(&reduced.body).peekable();
    let mut whole = AGGREGATES.map(|kind| Accumulator::new(kind, &CqlType::Int));
    while parts.peek().is_some() {
        for aggregate in &mut whole {
            aggregate.add_part(parts.next().expect("rows of parts are whole")).expect("a part");
        }
    }
    let number = |bytes: Vec<u8>| match &bytes[..] {
        [_, _, _, _] => i64::from(i32::from_be_bytes(bytes.try_into().expect("four bytes"))),
        _ => i64::from_be_bytes(bytes.try_into().expect("eight bytes")),
    };
    let finished = whole.map(|aggregate| aggregate.finish().expect("it fits").map_or(0, number));
    Ok(finished.to_vec())
}

const AGGREGATES: [AggregateKind; 4] =
    [AggregateKind::Count, AggregateKind::Min, AggregateKind::Max, AggregateKind::Sum];

/// Owners send partial results instead of rows. If replicas differ, the results are those of the
/// reconciled rows.
#[test]
fn owners_compute_aggregates_of_their_rows() {
    with_cluster("reduced", Shape::DEFAULT, |cluster| async move {
        for k in 0..200 {
            cluster.put(k as usize % 3, Change::of(&cluster, k, 5).row(1, k).row(2, -k).done()).await;
            cluster.put((k as usize + 1) % 3, Change::of(&cluster, k, 5).row(1, k).row(2, -k).done()).await;
        }
        // Only one replica has these.
        cluster.put(0, Change::of(&cluster, 7, 6).row(1, 5000).done()).await;
        cluster.put(1, Change::of(&cluster, 199, 6).delete(2).done()).await;
        cluster.put(2, Change::of(&cluster, 8, 6).delete_partition().done()).await;
        let mut query = cluster.query(QueryPartitions::Range(PartitionRange::FULL));
        let column = cluster.schema().regulars[0].id;
        let reductions = AGGREGATES.map(|kind| Reduction { kind, column: Some(0) }).to_vec();
        query.output = Rc::new(Output::new(vec![OutputColumn::Value(column)], false, false).reduced(reductions));
        let expected = Ok(vec![397, -198, 5000, 5000 - 7 + 199]);
        assert_eq!(aggregates(&cluster, &query, All).await, expected);
        for level in [One, Two, Quorum, All, EachQuorum, LocalOne] {
            let before: u64 = cluster.wire.sent.borrow().values().sum();
            assert_eq!(aggregates(&cluster, &query, level).await, expected, "{level:?}");
            let sent = cluster.wire.sent.borrow().values().sum::<u64>() - before;
            assert_eq!(
                sent,
                4 * (match level {
                    One | LocalOne => 0,
                    All => 2,
                    _ => 1,
                }),
                "{level:?}: none for its rows"
            );
        }
        let bytes = cluster.reduce(0, &query, Quorum).await.expect("all live").body.len();
        assert!(bytes < 4 * 64, "{bytes} bytes of four tablets");
        query.partitions = QueryPartitions::Keys(smallvec![key(7), key(3)]);
        assert_eq!(aggregates(&cluster, &query, Quorum).await, Ok(vec![4, -7, 5000, 5000 - 7]));
        query.partitions = QueryPartitions::Keys(smallvec![key(8)]);
        assert_eq!(aggregates(&cluster, &query, Quorum).await, Ok(vec![0; 4]));
        cluster.set_alive(1, false);
        cluster.set_alive(2, false);
        let unavailable = CoordinatorError::Unavailable { consistency: Quorum, required: 2, alive: 1 };
        assert_eq!(aggregates(&cluster, &query, Quorum).await, Err(unavailable));
    });
}

#[test]
fn pages_of_single_partitions_and_limits_per_partition() {
    with_cluster("limits", Shape::DEFAULT, |cluster| async move {
        for c in 0..10 {
            cluster.put(c as usize % 3, Change::of(&cluster, 1, 5).row(c, c).done()).await;
            cluster.put((c as usize + 1) % 3, Change::of(&cluster, 2, 5).row(c, c).done()).await;
        }
        cluster.put(0, Change::of(&cluster, 1, 6).delete_range(0, 2).done()).await;
        let mut query = cluster.query(QueryPartitions::Keys(smallvec![key(1), key(2)]));
        query.per_partition_limit = Some(3);
        let mut page = PageRequest { size: Some(2), ..PageRequest::default() };
        let mut found = Vec::new();
        loop {
            let read = cluster.page(1, &query, &page, All).await.expect("all live");
            found.extend(rows(&read).into_iter().map(|(k, c, _)| (k, c)));
            let Some(next) = read.next else { break };
            page.state = Some(next);
        }
        assert_eq!(found, [(1, 3), (1, 4), (1, 5), (2, 0), (2, 1), (2, 2)]);
    });
}
