//! Several shards on real threads.

use super::*;
use crate::mailbox::MAILBOX_LIMIT;
use crate::shard::PerShard;
use crate::{shard, task, time};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Runs `main` on shard 0 of a machine of `shards`; the others wait for calls.
fn on_machine<Fut: Future<Output = ()> + 'static>(
    shards: usize,
    config: MachineConfig,
    main: impl FnOnce() -> Fut + Send + 'static,
) {
    let main = Mutex::new(Some(main));
    let machine = Machine::start(MachineConfig { shards, ..config }, move |shard| {
        let main = (shard.0 == 0).then(|| main.lock().expect("not poisoned").take()).flatten();
        async move {
            match main {
                Some(main) => main().await,
                None => time::sleep(Duration::ZERO).await,
            }
        }
    })
    .expect("starts");
    machine.join();
}

#[test]
fn calls_run_on_their_shard_and_return_results() {
    on_machine(2, MachineConfig::default(), || async {
        assert_eq!((shard::this(), shard::count()), (ShardId(0), 2));
        let thread = std::thread::current().id();
        for i in 0..200u64 {
            let to = ShardId((i % 2) as u16);
            let (there, on, same) = shard::call(to, move || async move {
                if i % 3 == 0 {
                    task::yield_now().await;
                }
                (i + 1, shard::this(), std::thread::current().id() == thread)
            })
            .await;
            assert_eq!((there, on, same), (i + 1, to, to.0 == 0));
        }
        assert_eq!(shard::call_all(|| async { shard::this().0 }).await, [0, 1]);
        // Fewer calls than a mailbox holds. Beyond that, calls are sent as the other shard takes
        // them, possibly one by one.
        let calls = (0..4000u64).map(|i| shard::call(ShardId(1), move || async move { i * 2 }));
        let before = crate::metrics::snapshot();
        let doubled = futures_util::future::join_all(calls).await;
        assert!(doubled.iter().enumerate().all(|(i, &d)| d == i as u64 * 2));
        let after = crate::metrics::snapshot();
        assert_eq!(after.hops_sent - before.hops_sent, 4000);
        let batches = after.mail_batches_sent - before.mail_batches_sent;
        assert!(batches < 100, "4000 calls went in {batches} batches");
    });
}

#[test]
fn a_call_to_the_own_shard_makes_no_task() {
    on_machine(1, MachineConfig::default(), || async {
        let before = crate::metrics::snapshot();
        for _ in 0..100 {
            assert_eq!(shard::call(ShardId(0), || async { 3 }).await, 3);
        }
        let after = crate::metrics::snapshot();
        assert_eq!((after.spawned - before.spawned, after.polls - before.polls), (0, 0));
    });
}

#[test]
fn a_handle_reaches_the_instance_of_each_shard() {
    struct Named(u16);
    let (named, other) = (PerShard::<Named>::new(), PerShard::<Named>::new());
    on_machine(2, MachineConfig::default(), move || async move {
        shard::call_all(move || async move {
            assert!(named.try_get().is_none());
            named.set(Rc::new(Named(shard::this().0 * 10)));
        })
        .await;
        assert_eq!(named.call_all(|named| async move { named.0 }).await, [0, 10]);
        assert_eq!(named.call(ShardId(1), |named| async move { named.0 }).await, 10);
        other.set(Rc::new(Named(7)));
        assert_eq!((named.get().0, other.get().0), (0, 7), "two services of one type");
        named.clear();
        assert!(named.try_get().is_none());
        assert_eq!((named.call(ShardId(1), |named| async move { named.0 }).await, other.get().0), (10, 7));
    });
}

#[test]
fn dropping_a_call_stops_its_work() {
    on_machine(2, MachineConfig::default(), || async {
        let (begun, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        struct Ends(Arc<AtomicBool>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (begun_there, ends) = (begun.clone(), Ends(ended.clone()));
        let call = task::spawn(shard::call(ShardId(1), move || async move {
            let _ends = ends;
            begun_there.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }));
        while !begun.load(Ordering::SeqCst) {
            task::yield_now().await;
        }
        assert!(!ended.load(Ordering::SeqCst));
        call.abort();
        time::timeout(Duration::from_secs(10), async {
            while !ended.load(Ordering::SeqCst) {
                task::yield_now().await;
            }
        })
        .await
        .expect("the work was dropped");
    });
}

#[test]
fn a_full_mailbox_holds_its_callers_back() {
    on_machine(2, MachineConfig::default(), || async {
        let (held, release) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let ran = Arc::new(AtomicU64::new(0));
        let (held_there, release_there) = (held.clone(), release.clone());
        // Holds the other shard's thread within one poll, so that it takes nothing from its
        // mailbox.
        let holder = task::spawn(shard::call(ShardId(1), move || async move {
            held_there.store(true, Ordering::SeqCst);
            while !release_there.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        }));
        while !held.load(Ordering::SeqCst) {
            task::yield_now().await;
        }
        let total = MAILBOX_LIMIT + 1000;
        let sent_before = crate::metrics::snapshot().hops_sent;
        let calls: Vec<_> = (0..total)
            .map(|_| {
                let ran = ran.clone();
                task::spawn(shard::call(ShardId(1), move || async move {
                    ran.fetch_add(1, Ordering::SeqCst);
                }))
            })
            .collect();
        for _ in 0..10 {
            task::yield_now().await;
        }
        let sent = crate::metrics::snapshot().hops_sent - sent_before;
        assert!(sent <= MAILBOX_LIMIT, "{sent} calls were posted to a shard that takes none");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        release.store(true, Ordering::SeqCst);
        for call in calls {
            call.await.expect("ran");
        }
        holder.await.expect("ran");
        assert_eq!(ran.load(Ordering::SeqCst), total);
    });
}

#[test]
fn foreign_threads_call_and_stop() {
    let machine = Machine::start(MachineConfig { shards: 2, overprovisioned: true, ..Default::default() }, |_| async {
        shard::stopping().cancelled().await;
    })
    .expect("starts");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let remote = machine.remote();
    assert_eq!(runtime.block_on(remote.call(ShardId(1), || async { shard::this() })), Ok(ShardId(1)));
    assert_eq!(runtime.block_on(remote.call_all(|| async { shard::this().0 })), Ok(vec![0, 1]));
    assert_eq!(runtime.block_on(machine.remote().call(ShardId(9), || async {})), Err(ShardStopped));
    machine.stop();
    machine.join();
    assert_eq!(runtime.block_on(remote.call(ShardId(0), || async { 1 })), Err(ShardStopped));
}

#[test]
fn an_idle_machine_sleeps() {
    on_machine(2, MachineConfig { overprovisioned: true, ..Default::default() }, || async {
        time::sleep(Duration::from_millis(50)).await;
        let turns = || shard::call_all(|| async { crate::metrics::snapshot().turns });
        let before = turns().await;
        time::sleep(Duration::from_millis(300)).await;
        let after = turns().await;
        for (before, after) in before.iter().zip(&after) {
            assert!(after - before < 12, "{} turns while idle", after - before);
        }
    });
}

#[test]
fn time_uuids_increase() {
    on_machine(1, MachineConfig::default(), || async {
        let began = time::wall_seconds();
        let mut last = crate::random::time_uuid();
        for _ in 0..1000 {
            let next = crate::random::time_uuid();
            assert_eq!((next.get_version_num(), next.get_variant()), (1, uuid::Variant::RFC4122));
            let ticks = |id: &uuid::Uuid| id.get_timestamp().expect("version 1").to_gregorian().0;
            assert!(ticks(&next) > ticks(&last));
            last = next;
        }
        let (seconds, _) = last.get_timestamp().expect("version 1").to_unix();
        assert!((began - 1..=time::wall_seconds() + 1).contains(&(seconds as i64)), "{seconds}, from {began} on");
        assert_eq!(crate::random::uuid_v4().get_version_num(), 4);
        assert!((0..1000).all(|_| crate::random::below(7) < 7));
    });
}
