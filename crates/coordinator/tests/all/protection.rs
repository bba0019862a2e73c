//! Hot partition protection of an overloaded shard: which requests are refused, and which are not.

use crate::support::requests::without_excess;
use crate::support::{Change, Cluster, Fault, Shape, key, query_on, table_id, with_cluster, within};
use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, Counting, PageRequest, QueryPartitions, WriteKind};
use futures_util::FutureExt;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use model::token::Token;
use replica::{Excess, HotSettings, LimitKind, LimitedBy, Mutations, ProtectionMode, RateLimitMode, RateLimited};
use rt::time::Duration;
use smallvec::smallvec;
use std::cell::Cell;
use std::rc::Rc;

const LONG: Duration = Duration::from_secs(60);

fn refused(kind: LimitKind) -> CoordinatorError {
    let refused =
        RateLimited { kind, table: table_id(), by: LimitedBy::Protection, partition: 0, excess: Excess::default() };
    CoordinatorError::RateLimited { refused, by_coordinator: true }
}

fn set(cluster: &Cluster, mode: ProtectionMode) {
    let settings = HotSettings { mode, wait_threshold: Duration::from_millis(5), in_metrics: 3 };
    cluster.nodes.iter().for_each(|node| node.replica.set_hot_partitions(settings));
}

/// Makes the tasks of the shard wait for each other until `stop`.
fn keep_busy(stop: &Rc<Cell<bool>>) {
    for _ in 0..30 {
        let stop = stop.clone();
        let busy = async move {
            while !stop.get() {
                let began = rt::time::now();
                while began.elapsed() < Duration::from_millis(1) {
                    std::hint::spin_loop();
                }
                rt::task::yield_now().await;
            }
        };
        rt::task::spawn(busy).detach();
    }
}

/// Reads key 1 most of the time, and others. Returns how many reads of key 1 were refused. The
/// others must not be.
async fn attack(cluster: &Cluster, done: impl Fn() -> bool) -> u64 {
    let stop = Rc::new(Cell::new(false));
    keep_busy(&stop);
    let mut refusals = 0;
    let mut other = 1;
    while !done() {
        for _ in 0..18 {
            match cluster.read(0, 1, One).await {
                Ok(_) => {}
                error => {
                    assert_eq!(error, Err(refused(LimitKind::Read)));
                    refusals += 1;
                }
            }
        }
        other = other % 50 + 2;
        cluster.read(0, other, One).await.expect("it takes little time");
        rt::task::yield_now().await;
    }
    stop.set(true);
    refusals
}

#[test]
fn an_overloaded_shard_refuses_its_hot_partition_until_it_keeps_up() {
    with_cluster("protection", Shape::DEFAULT, |cluster| async move {
        set(&cluster, ProtectionMode::On);
        let own = cluster.nodes[0].replica.clone();
        let late = rt::time::now() + LONG;
        let done = || own.protects_itself() && own.metrics().protection.refused[0] > 50 || rt::time::now() > late;
        let refusals = attack(&cluster, done).await;
        assert!(refusals > 50);
        assert_eq!(cluster.nodes[0].coordinator.metrics().limited_reads, [refusals, 0]);
        assert_eq!(cluster.nodes[0].replica.metrics().protection.refused, [refusals, 0]);
        assert!(cluster.nodes[0].replica.protects_itself());
        // Writes are refused before anything waits, or not at all.
        let writes = |keys: &[DecoratedKey]| -> Mutations {
            keys.iter().map(|key| (Change::of(&cluster, 1, 5).row(1, 1).done(), key.clone())).collect()
        };
        let write = |keys: &[DecoratedKey], kind| {
            let (coordinator, keys) = (cluster.nodes[0].coordinator.clone(), writes(keys));
            async move { coordinator.write(keys, kind, &within(Quorum)).await.map_err(without_excess) }.now_or_never()
        };
        let results: Vec<_> = (0..200).filter_map(|_| write(&[key(1)], WriteKind::Simple)).collect();
        assert!(!results.is_empty() && results.iter().all(|result| *result == Err(refused(LimitKind::Write))));
        for _ in 0..200 {
            let logged = write(&[key(1), key(1)], WriteKind::LoggedBatch);
            assert!(logged.is_none_or(|written| written.is_ok()), "it must be applied entirely");
        }
        // Parts of operations that were accepted.
        let node = &cluster.nodes[0].coordinator;
        let query = query_on(node, QueryPartitions::Keys(smallvec![key(1)]));
        for rate_limit in [RateLimitMode::Exempt, RateLimitMode::ChargeOnly].repeat(100) {
            let mut options = within(One);
            options.context.rate_limit = rate_limit;
            let read = node.read(&query, &PageRequest::default(), &options).await;
            assert!(read.is_ok(), "{rate_limit:?}: {read:?}");
        }
        // Later parts of an operation, and the read of a write that was accepted before.
        for counting in [Counting::PartOfFirst { asked: 1 }, Counting::Accepted].repeat(100) {
            let part = PageRequest { counting, ..PageRequest::default() };
            let read = node.read(&query, &part, &within(One)).await;
            assert!(read.is_ok(), "{counting:?}: {read:?}");
        }
        let metadata = node.metadata();
        let table = metadata.table_by_id(table_id()).expect("it is there");
        let early = || {
            let mut options = within(One);
            let decided = node.protect_early(table, &[key(1)], &mut options).map_err(without_excess);
            decided.map(|()| options.context.rate_limit)
        };
        let decided: Vec<_> = (0..200).map(|_| early()).collect();
        let is_known = |one: &_| *one == Ok(RateLimitMode::Exempt) || *one == Err(refused(LimitKind::Write));
        assert!(decided.iter().all(is_known) && decided.iter().any(Result::is_err), "{decided:?}");
        // A partition that is read by its token.
        let token = key(1).token;
        let range = PartitionRange::tokens(Token(token.0 - 1), token);
        let by_token = query_on(node, QueryPartitions::Range(range));
        let mut refusals = 0;
        for _ in 0..200 {
            let read = node.read(&by_token, &PageRequest::default(), &within(One)).await.map_err(without_excess);
            refusals += u32::from(read.is_err_and(|error| error == refused(LimitKind::Read)));
        }
        assert!(refusals > 0);
        // The shard keeps up again.
        let calm = rt::time::now() + LONG;
        while cluster.nodes[0].replica.protects_itself() {
            assert!(rt::time::now() < calm, "still refused");
            let _ = cluster.read(0, 1, One).await;
            rt::time::sleep(Duration::from_millis(1)).await;
        }
        for level in [One, Quorum, All] as [Consistency; 3] {
            cluster.read(0, 1, level).await.expect("accepted");
        }
    });
}

#[test]
fn by_default_a_shard_only_counts_what_it_would_refuse() {
    with_cluster("protection_observe", Shape::DEFAULT, |cluster| async move {
        set(&cluster, ProtectionMode::Observe);
        let own = cluster.nodes[0].replica.clone();
        let late = rt::time::now() + LONG;
        let done = || own.metrics().protection.would_refuse[0] > 50 || rt::time::now() > late;
        assert_eq!(attack(&cluster, done).await, 0);
        let metrics = cluster.nodes[0].replica.metrics().protection;
        assert!(metrics.would_refuse[0] > 0 && metrics.refused == [0, 0], "{metrics:?}");
    });
}

/// The replica does not respond, but the coordinator's own shard is overloaded.
#[test]
fn an_overloaded_shard_does_not_retry_speculatively() {
    let shape = Shape {
        copies: &[1, 2],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "2")],
        speculative_retry: "5ms",
        ..Shape::DEFAULT
    };
    with_cluster("busy", shape, |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), All).await.expect("all live");
        set(&cluster, ProtectionMode::Off);
        let stop = Rc::new(Cell::new(false));
        keep_busy(&stop);
        let is_overloaded = async {
            while !cluster.nodes[0].replica.is_overloaded() {
                rt::time::sleep(Duration::from_millis(10)).await;
            }
        };
        rt::time::timeout(LONG, is_overloaded).await.expect("the shard is busy");
        let metrics = || cluster.nodes[0].coordinator.metrics();
        let before = metrics().speculative_reads;
        // The replica that answers faster is asked first. The machine decides which one that is.
        for broken in [1, 2].into_iter().cycle().take(20) {
            cluster.break_node(broken, Fault::LosesRequests);
            let _ = rt::time::timeout(Duration::from_millis(300), cluster.read(0, 1, One)).await;
            cluster.heal(broken);
            if metrics().speculation_skipped > 0 {
                break;
            }
        }
        stop.set(true);
        assert!(metrics().speculation_skipped > 0, "every read began at the replica that answers");
        assert_eq!(metrics().speculative_reads, before);
    });
}
