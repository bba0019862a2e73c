//! When operations are sampled, and when a shard protects itself.

use super::*;
use model::token::Token;
use std::rc::Rc;

fn id(token: i64) -> PartitionId {
    PartitionId { table: TableId::from_bytes([7; 16]), token: Token(token) }
}

const READ: Operation = Operation { kind: LimitKind::Read, last_token: None, bytes: 100, cpu_nanos: 1_000_000 };

#[test]
fn the_same_part_of_operations_is_sampled_whatever_their_pattern() {
    rt::block_on(async {
        let hot = HotPartitions::new(|_| None);
        // 625 samples of each of 48 kinds that take turns.
        let mut of_each = [0u32; 48];
        for at in 0..30_000 * GAP as usize {
            of_each[at % 48] += u32::from(hot.is_sampled());
        }
        let all: u32 = of_each.iter().sum();
        assert!((all as f64 / 30_000.0 - 1.0).abs() < 0.02, "{all}");
        assert!(of_each.iter().all(|count| (500..750).contains(count)), "{of_each:?}");
    });
}

#[test]
fn a_recording_counts_every_operation() {
    rt::block_on(async {
        let hot = HotPartitions::new(|_| None);
        let operation = |token: i64| {
            if hot.is_sampled() {
                hot.performed(id(token), &token.to_be_bytes(), READ);
            }
        };
        (0..1_000).for_each(|_| operation(1));
        let number = hot.record(vec![id(1).table], 10);
        (0..300).for_each(|at| operation(at % 3));
        let top = hot.finish(number).expect("it was begun");
        let counts: Vec<_> = top.reads.iter().map(|one| (one.count, one.error)).collect();
        assert_eq!((counts, top.writes.len()), (vec![(100, 0); 3], 0));
        assert_eq!(hot.finish(number), None);
        let sampled = (0..1_600).filter(|_| hot.is_sampled()).count();
        assert!(sampled < 200, "sampling is back: {sampled}");
    });
}

/// Keeps the shard busy with tasks that each wait for the others, while partition 1 wants most of
/// the time, until `done`. Returns how many operations of partitions 1 and 2 were accepted, and of
/// how many.
async fn attack(hot: &HotPartitions, tasks: usize, done: impl Fn() -> bool) -> [(u64, u64); 2] {
    let stop = Rc::new(Cell::new(false));
    let busy = |_| {
        let stop = stop.clone();
        rt::task::spawn(async move {
            while !stop.get() {
                let began = rt::time::now();
                while began.elapsed() < Duration::from_millis(1) {
                    std::hint::spin_loop();
                }
                rt::task::yield_now().await;
            }
        })
    };
    let busy: Vec<_> = (0..tasks).map(busy).collect();
    let mut counts = [(0, 0); 2];
    while !done() {
        for token in [1, 1, 1, 1, 1, 1, 1, 1, 1, 2].repeat(20) {
            let (accepted, all) = &mut counts[token as usize - 1];
            *all += 1;
            if !hot.decides() || hot.performs(id(token), LimitKind::Read) {
                *accepted += 1;
                if hot.is_sampled() {
                    hot.performed(id(token), b"key", READ);
                    hot.update_if_due();
                }
            }
        }
        rt::task::yield_now().await;
    }
    stop.set(true);
    for task in busy {
        let _ = task.await;
    }
    counts
}

/// After some time.
fn after(time: Duration) -> impl Fn() -> bool {
    let end = rt::time::now() + time;
    move || rt::time::now() >= end
}

const LONG: Duration = Duration::from_secs(60);

fn settings(mode: ProtectionMode, wait_threshold: Duration) -> HotSettings {
    HotSettings { mode, wait_threshold, in_metrics: 3 }
}

const SHORT: Duration = Duration::from_millis(5);

#[test]
fn an_overloaded_shard_refuses_only_its_hot_partitions() {
    rt::block_on(async {
        let hot = HotPartitions::new(|_| None);
        hot.set(settings(ProtectionMode::On, SHORT));
        let late = after(LONG);
        let done = || hot.metrics().refused[0] > 100 || late();
        let [(hot_accepted, hot_all), (other_accepted, other_all)] = attack(&hot, 30, done).await;
        assert_eq!(other_accepted, other_all);
        assert!(hot_accepted + 100 < hot_all, "{hot_accepted} of {hot_all}");
        let metrics = hot.metrics();
        assert_eq!((metrics.refused, metrics.would_refuse), ([hot_all - hot_accepted, 0], [0, 0]));
        hot.set_understood(false);
        let late = after(LONG);
        let counts = attack(&hot, 30, || hot.metrics().would_refuse[0] > 100 || late()).await;
        assert!(counts.iter().all(|(accepted, all)| accepted == all) && !hot.refuses(), "{counts:?}");
        assert!(hot.metrics().would_refuse[0] > 100, "until all coordinators understand, it only counts");
        hot.set(settings(ProtectionMode::Off, SHORT));
        assert!(!hot.decides() && !hot.refuses() && hot.admits(id(1), LimitKind::Read));
    });
}

#[test]
fn a_shard_that_observes_only_counts() {
    rt::block_on(async {
        let hot = HotPartitions::new(|_| None);
        hot.set(settings(ProtectionMode::Observe, SHORT));
        let late = after(LONG);
        let counts = attack(&hot, 30, || hot.metrics().would_refuse[0] > 100 || late()).await;
        assert!(counts.iter().all(|(accepted, all)| accepted == all), "{counts:?}");
        let metrics = hot.metrics();
        assert!(metrics.would_refuse[0] > 100 && metrics.refused == [0, 0], "{metrics:?}");
        assert!(!hot.refuses());
    });
}

#[test]
fn a_shard_without_waiting_requests_or_without_protection_decides_nothing() {
    rt::block_on(async {
        for (mode, wait_threshold, tasks) in [(ProtectionMode::On, LONG, 1), (ProtectionMode::Off, SHORT, 30)] {
            let hot = HotPartitions::new(|_| None);
            hot.set(settings(mode, wait_threshold));
            let counts = attack(&hot, tasks, after(Duration::from_millis(500))).await;
            assert!(!hot.decides() && counts.iter().all(|(accepted, all)| accepted == all), "{mode:?} {counts:?}");
        }
    });
}

#[test]
fn a_shard_is_overloaded_by_what_waits_in_sockets() {
    rt::block_on(async {
        let hot = HotPartitions::new(|_| None);
        hot.set(settings(ProtectionMode::On, SHORT));
        let (stream, _other) = rt::net::duplex(1);
        let backlog = rt::net::StreamBacklog::default();
        backlog.received(100_000);
        // Tasks wait for 1 ms, but the input waits as long as it takes to receive 1 MB.
        backlog.some_left(1 << 20, &stream);
        let late = after(LONG);
        attack(&hot, 1, || hot.metrics().refused[0] > 100 || late()).await;
        assert!(hot.metrics().refused[0] > 100);
        backlog.none_left();
        let late = after(LONG);
        attack(&hot, 1, || !hot.decides() || late()).await;
        assert!(!hot.decides(), "the shard keeps up again");
    });
}

/// Few operations are samples. Those on an idle shard must not be refused until one is.
#[test]
fn an_idle_shard_soon_refuses_nothing() {
    rt::block_on(async {
        let hot = HotPartitions::new(|_| None);
        hot.set(settings(ProtectionMode::On, SHORT));
        let late = after(LONG);
        attack(&hot, 30, || hot.metrics().refused[0] > 100 || late()).await;
        assert!(hot.decides());
        hot.countdown.set(u32::MAX);
        let late = after(LONG);
        while hot.decides() && !late() {
            rt::time::sleep(PERIOD).await;
            hot.performs(id(1), LimitKind::Read);
        }
        assert!(!hot.decides() && !hot.refuses());
    });
}
