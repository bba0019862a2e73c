//! Properties of the simulated machine: runs are repeatable, and power losses leave exactly what is
//! allowed.

use super::*;
use crate::fs::{self, IoClass, OpenOptions, SequentialWriter};
use crate::net::{AsyncReadExt, AsyncWriteExt};
use crate::shard::{self, ShardId};
use crate::{random, task, time};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 7000;

fn rewrite() -> OpenOptions {
    OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() }
}

/// Echoes every connection; the bytes pass through another shard.
async fn echo_node(shard: ShardId) {
    if shard.0 != 0 {
        return std::future::pending().await;
    }
    let log = fs::open(Path::new("/log"), &rewrite()).await.expect("open");
    let mut end = log.len().await.expect("len");
    trace(&format!("starts with {end} bytes"));
    let address: SocketAddr = ([0, 0, 0, 0], PORT).into();
    let listener = crate::net::listen(address, Default::default()).await.expect("listen");
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let log = log.clone();
        let at = end;
        end += 8;
        task::spawn(async move {
            let mut bytes = [0u8; 8];
            while stream.read_exact(&mut bytes).await.is_ok() {
                let target = ShardId(random::below(shard::count() as u64) as u16);
                let back = shard::call(target, move || async move {
                    task::yield_now().await;
                    (bytes, shard::this())
                })
                .await;
                assert_eq!(back, (bytes, target));
                log.write_at(at, bytes.to_vec(), IoClass::Log).await.expect("write");
                log.sync_data().await.expect("sync");
                if stream.write_all(&back.0).await.is_err() {
                    return;
                }
            }
        })
        .detach();
    }
}

fn cluster_run(seed: u64) -> (u64, u64) {
    let mut world = World::new(seed);
    let disk = Disk::new(seed);
    world.node("server", 3, &disk, echo_node);
    let echoed = Rc::new(Cell::new(0u64));
    for client in 0..2 {
        let echoed = echoed.clone();
        world.client(&format!("client{client}"), move || {
            let echoed = echoed.clone();
            async move {
                for round in 0..30u64 {
                    let one = async {
                        let server = SocketAddr::new(turmoil::lookup("server"), PORT);
                        let mut stream = crate::net::connect(server).await?;
                        let sent = random::u64().to_le_bytes();
                        stream.write_all(&sent).await?;
                        let mut got = [0u8; 8];
                        stream.read_exact(&mut got).await?;
                        assert_eq!(got, sent);
                        io::Result::Ok(())
                    };
                    if let Ok(Ok(())) = time::timeout(Duration::from_millis(500), one).await {
                        echoed.set(echoed.get() + 1);
                    }
                    trace(&format!("round {round}, {} echoed", echoed.get()));
                }
            }
        });
    }
    world.run_for(Duration::from_millis(100));
    world.crash("server");
    assert!(!world.is_running("server"));
    world.run_for(Duration::from_millis(700));
    world.bounce("server");
    world.run_for(Duration::from_millis(50));
    world.partition("server", "client0");
    world.run_for(Duration::from_millis(600));
    world.repair("server", "client0");
    world.run(Duration::from_secs(120));
    (world.trace_hash(), echoed.get())
}

#[test]
fn a_world_repeats_itself_by_seed() {
    let mut hashes = Vec::new();
    for seed in 0..4 {
        let first = cluster_run(seed);
        let second = std::thread::spawn(move || cluster_run(seed)).join().expect("ran");
        assert_eq!(first, second, "seed {seed}");
        assert!(first.1 >= 30, "only {} rounds were echoed, seed {seed}", first.1);
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 4, "different seeds give different runs");
}

fn order_run(seed: u64) -> (u64, Vec<u32>, i64) {
    let disk = Disk::new(seed);
    block_on(seed, &disk, async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..10u32)
            .map(|i| {
                let order = order.clone();
                task::spawn(async move {
                    task::yield_now().await;
                    time::sleep(Duration::from_millis(random::below(20))).await;
                    order.borrow_mut().push(i);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ran");
        }
        let order = order.borrow().clone();
        (trace_hash(), order, time::wall_micros())
    })
}

#[test]
fn one_shard_repeats_itself_by_seed() {
    let runs: Vec<_> = (0..8).map(order_run).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, order_run(seed as u64));
    }
    assert!(runs.iter().any(|run| run.1 != runs[0].1), "every seed gave the same order");
}

#[test]
fn simulated_time_costs_nothing_and_passes_while_busy() {
    let disk = Disk::new(1);
    block_on(1, &disk, async {
        let before = time::wall_seconds();
        time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(time::wall_seconds() - before, 86_400);
        let timer = task::spawn(time::sleep(Duration::from_millis(5)));
        while !timer.is_finished() {
            task::yield_now().await;
        }
    });
}

#[test]
fn a_power_loss_takes_what_was_not_synced() {
    for (unsynced, want_data, want_name) in [(Unsynced::Lost, false, false), (Unsynced::Kept, true, true)] {
        let disk = Disk::new(7);
        disk.set_unsynced(unsynced);
        block_on(7, &disk, async {
            fs::create_dir_all(Path::new("/d")).await.expect("made");
            fs::sync_dir(Path::new("/")).await.expect("synced");
            let file = fs::open(Path::new("/d/a"), &rewrite()).await.expect("open");
            file.write_at(0, vec![1u8; 5000], IoClass::Log).await.expect("write");
            file.sync_data().await.expect("sync");
            fs::sync_dir(Path::new("/d")).await.expect("sync");
            file.write_at(4000, vec![2u8; 5000], IoClass::Log).await.expect("write");
            fs::write_durably(Path::new("/d/c"), b"whole").await.expect("written");
            fs::rename(Path::new("/d/a"), Path::new("/d/b")).await.expect("renamed");
        });
        disk.lose_power();
        assert!(!disk.is_on());
        block_on(8, &disk, async {
            assert_eq!(fs::is_there(Path::new("/d/b")).await.expect("looked"), want_name);
            assert_eq!(fs::is_there(Path::new("/d/a")).await.expect("looked"), !want_name);
            let path = if want_name { "/d/b" } else { "/d/a" };
            let data = fs::read(Path::new(path)).await.expect("read");
            assert_eq!(data.len(), if want_data { 9000 } else { 5000 });
            assert!(data[..4000].iter().all(|&b| b == 1));
            assert!(data[4000..].iter().all(|&b| b == if want_data { 2 } else { 1 }));
            assert_eq!(fs::read(Path::new("/d/c")).await.expect("read"), b"whole");
        });
    }
}

#[test]
fn torn_writes_keep_some_sectors() {
    let mut partial = 0;
    for seed in 0..20 {
        let disk = Disk::new(seed);
        disk.set_unsynced(Unsynced::Torn);
        block_on(seed, &disk, async {
            let file = fs::open(Path::new("/a"), &rewrite()).await.expect("open");
            file.write_at(0, vec![1u8; 16 * 512], IoClass::Log).await.expect("write");
            file.sync_all().await.expect("sync");
            fs::sync_dir(Path::new("/")).await.expect("sync");
            file.write_at(0, vec![2u8; 16 * 512], IoClass::Log).await.expect("write");
        });
        disk.lose_power();
        let data = disk.contents("/a").expect("there");
        for sector in data.chunks(512) {
            assert!(sector.iter().all(|&b| b == sector[0]), "a sector is written whole or not at all");
        }
        let new = data.chunks(512).filter(|sector| sector[0] == 2).count();
        partial += usize::from(new > 0 && new < 16);
    }
    assert!(partial > 10, "{partial} of 20 power losses tore the write");
}

/// The pattern of crash tests: one run per write of the workload, the power cut during it.
#[test]
fn durable_replacement_survives_a_power_loss_at_every_write() {
    async fn workload(done: &Cell<u32>) {
        fs::create_dir_all(Path::new("/d")).await.expect("made");
        fs::sync_dir(Path::new("/")).await.expect("synced");
        for version in 1..=5u32 {
            let contents = vec![version as u8; 3000];
            fs::write_durably(Path::new("/d/state"), &contents).await.expect("written");
            done.set(version);
        }
    }
    let whole = Disk::new(0);
    block_on(0, &whole, workload(&Cell::new(0)));
    let writes = whole.writes();
    assert!(writes > 20);
    for n in 1..=writes {
        for seed in 0..4 {
            let disk = Disk::new(seed);
            disk.power_loss_at_write(n);
            let done = Cell::new(0);
            assert_eq!(run(seed, &disk, workload(&done)), Err(PowerLost));
            let found = match disk.contents("/d/state") {
                None => 0,
                Some(data) => {
                    assert!(data.len() == 3000 && data.iter().all(|&b| b == data[0]), "torn at write {n} seed {seed}");
                    u32::from(data[0])
                }
            };
            let acknowledged = done.get();
            assert!(found == acknowledged || found == acknowledged + 1, "{found} after {acknowledged}, write {n}");
        }
    }
}

/// Verifies the test itself: without the sync, the same test must fail.
#[test]
fn a_missing_sync_is_found() {
    let mut lost = 0;
    for seed in 0..20 {
        let disk = Disk::new(seed);
        block_on(seed, &disk, async {
            let file = fs::open(Path::new("/a"), &rewrite()).await.expect("open");
            file.write_at(0, vec![1u8; 3000], IoClass::Log).await.expect("write");
            fs::rename(Path::new("/a"), Path::new("/b")).await.expect("rename");
            fs::sync_dir(Path::new("/")).await.expect("sync");
        });
        disk.lose_power();
        lost += usize::from(disk.contents("/b") != Some(vec![1u8; 3000]));
    }
    assert!(lost > 5);
}

#[test]
fn reserved_space_can_be_written_when_the_disk_is_full() {
    let disk = Disk::new(4);
    let other = disk.clone();
    block_on(4, &disk, async move {
        let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
        let file = fs::open(Path::new("/r"), &options).await.expect("open");
        file.allocate(8000).await.expect("there is room");
        assert_eq!(file.len().await.expect("len"), 0, "the length stays");
        other.set_free(0);
        file.write_at(0, vec![1u8; 5000], IoClass::Log).await.expect("reserved");
        assert!(file.allocate(8001).await.is_err() && file.write_at(8000, vec![1u8; 1], IoClass::Log).await.is_err());
        assert_eq!(fs::disk_space(Path::new("/")).await.expect("space").1, 0);
        file.set_len(5000).await.expect("cut");
        assert_eq!(fs::disk_space(Path::new("/")).await.expect("space").1, 3000, "the reserved space is released");
    });
}

#[test]
fn faults_reach_the_program() {
    let disk = Disk::new(3);
    let other = disk.clone();
    block_on(3, &disk, async move {
        let mut writer = SequentialWriter::create(Path::new("/s"), IoClass::Background).await.expect("create");
        for i in 0..100u32 {
            writer.append(&[i as u8; 10_007]).await.expect("append");
        }
        let (len, file) = writer.finish().await.expect("finish");
        assert_eq!((len, file.len().await.expect("len")), (1_000_700, 1_000_700));
        assert_eq!(file.read_at(10_006, 2, IoClass::Foreground).await.expect("read")[..], [0, 1]);
        assert!(other.flip_bit("/s", 10_006, 3));
        assert_eq!(file.read_at(10_006, 2, IoClass::Foreground).await.expect("read")[..], [8, 1]);

        other.set_free(5000);
        let full = file.write_at(1_000_700, vec![1u8; 9000], IoClass::Log).await.expect_err("full");
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(file.len().await.expect("len"), 1_005_700);
        file.write_at(0, vec![1u8; 9000], IoClass::Log).await.expect("overwriting needs no room");
        let (_, free) = fs::disk_space(Path::new("/")).await.expect("space");
        assert_eq!(free, 0);

        other.fail_next(Fault::Sync, 1);
        assert!(file.sync_data().await.is_err());
        file.sync_data().await.expect("the fault is over");
        let saved = other.fork();
        saved.set_unsynced(Unsynced::Kept);
        saved.lose_power();
        let data = saved.contents("/s").expect("the name is kept");
        assert!(data[..9000].iter().any(|&byte| byte != 1), "a failed sync is not made good by the next");
        other.fail_next(Fault::Read, 1);
        assert!(file.read_at(0, 1, IoClass::Foreground).await.is_err());
        other.fail_next_below("/elsewhere", Fault::Read, 1);
        file.read_at(0, 1, IoClass::Foreground).await.expect("the fault is aimed at others");
        other.fail_next_below("/s", Fault::Read, 1);
        assert!(file.read_at(0, 1, IoClass::Foreground).await.is_err());
        file.read_at(0, 1, IoClass::Foreground).await.expect("the fault is over");

        let lock = fs::lock_file(Path::new("/lock")).await.expect("free");
        assert!(fs::lock_file(Path::new("/lock")).await.is_err());
        drop(lock);
        fs::lock_file(Path::new("/lock")).await.expect("free again");

        other.fail_next(Fault::Open, 1);
        let refused = fs::read(Path::new("/s")).await.expect_err("no descriptors");
        assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
        fs::read(Path::new("/s")).await.expect("there are some again");
    });
}

/// The trace includes what tasks do while a crash drops them.
#[test]
fn drops_at_a_crash_see_simulated_time() {
    struct Stamps;
    impl Drop for Stamps {
        fn drop(&mut self) {
            trace(&format!("dropped at {} after {:?}", time::wall_micros(), time::now()));
        }
    }
    let run = |seed| {
        let mut world = World::new(seed);
        world.keep_trace();
        world.node("n", 1, &Disk::new(seed), |_| async {
            task::spawn(async {
                let _stamps = Stamps;
                std::future::pending::<()>().await;
            })
            .detach();
            loop {
                time::sleep(Duration::from_millis(3)).await;
            }
        });
        world.run_for(Duration::from_millis(20));
        world.crash("n");
        let line = world.trace_lines().into_iter().find(|line| line.contains("dropped")).expect("traced");
        line.split(" after").next().map(str::to_string)
    };
    assert_eq!(run(5), run(5));
    assert!(run(5).expect("traced").contains("dropped at 17672256000"), "in the first second of the world");
}

#[test]
fn a_paused_node_does_nothing_while_time_passes() {
    let mut world = World::new(3);
    let ticks: Rc<RefCell<Vec<u128>>> = Rc::default();
    let (inside, began) = (ticks.clone(), Rc::new(Cell::new(None)));
    world.node("server", 2, &Disk::new(1), move |shard| {
        let (ticks, began) = (inside.clone(), began.clone());
        async move {
            if shard.0 == 0 {
                return echo_node(shard).await;
            }
            loop {
                let since = began.get().unwrap_or_else(time::now);
                began.set(Some(since));
                ticks.borrow_mut().push(time::now().duration_since(since).as_millis());
                time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    world.run_for(Duration::from_millis(100));
    let before = ticks.borrow().len();
    assert!(before >= 9);
    world.pause_node("server", Duration::from_secs(3));
    let answered = Rc::new(Cell::new(false));
    let inside = answered.clone();
    world.client("client", move || {
        let answered = inside.clone();
        async move {
            let mut stream =
                crate::net::connect(SocketAddr::new(turmoil::lookup("server"), PORT)).await.expect("a kernel accepts");
            stream.write_all(&[7; 8]).await.expect("and takes");
            stream.read_exact(&mut [0u8; 8]).await.expect("what is answered later");
            answered.set(true);
        }
    });
    world.run_for(Duration::from_millis(2990));
    assert!(ticks.borrow().len() == before && !answered.get());
    assert!(world.run_for(Duration::from_millis(200)) && answered.get());
    let late = ticks.borrow()[before..].to_vec();
    assert!(late[0] >= ticks.borrow()[before - 1] + 3000, "its clock continued: {late:?}");
    assert!(late.windows(2).all(|two| two[1] >= two[0] + 10), "a late tick happens once: {late:?}");
    world.pause_node("server", Duration::from_secs(3));
    let before = ticks.borrow().len();
    (0..50).for_each(|_| _ = world.step());
    assert_eq!(ticks.borrow().len(), before);
    world.resume_all();
    (0..50).for_each(|_| _ = world.step());
    assert!(ticks.borrow().len() > before, "it may be resumed earlier");
}

/// Sends a hundred bytes to node "server". Returns what arrived there, and whether the client saw
/// the end of the connection.
fn cut_run(from: &str, to: &str, after: u64) -> (Vec<usize>, usize, bool) {
    const SENT: usize = 100;
    let mut world = World::new(after);
    let arrived: Rc<RefCell<Vec<usize>>> = Rc::default();
    let inside = arrived.clone();
    world.node("server", 1, &Disk::new(1), move |_| {
        let arrived = inside.clone();
        async move {
            let listener = crate::net::listen(([0, 0, 0, 0], PORT).into(), Default::default()).await.expect("listen");
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                let (mut bytes, mut n) = ([0; SENT], 0);
                while let Ok(more @ 1..) = stream.read(&mut bytes[n..]).await {
                    n += more;
                }
                arrived.borrow_mut().push(n);
                if n == SENT {
                    stream.write_all(&bytes).await.expect("written");
                }
            }
        }
    });
    let address = SocketAddr::new(world.lookup("server"), PORT);
    let came: Rc<Cell<(usize, bool)>> = Rc::default();
    let seen = came.clone();
    world.client("client", move || {
        let seen = seen.clone();
        async move {
            time::sleep(Duration::from_millis(5)).await;
            let mut stream = crate::net::connect(address).await.expect("connected");
            stream.write_all(&[7; SENT]).await.expect("taken");
            let (mut bytes, mut n) = ([0; SENT], 0);
            let failed = loop {
                match stream.read(&mut bytes[n..]).await {
                    Ok(0) => break false,
                    Ok(more) => n += more,
                    Err(_) => break true,
                }
            };
            seen.set((n, failed));
        }
    });
    world.cut_connection_after(from, to, after);
    world.run(Duration::from_secs(5));
    // The end of the connection takes time to reach the server.
    for _ in 0..50 {
        world.step();
    }
    let (n, failed) = came.get();
    (arrived.take(), n, failed)
}

#[test]
fn a_connection_ends_at_any_byte_in_either_direction() {
    for after in [0, 1, 37, 99] {
        assert_eq!(cut_run("client", "server", after), (vec![after as usize], 0, true), "the request after {after}");
        assert_eq!(cut_run("server", "client", after), (vec![100], after as usize, false), "the answer after {after}");
    }
    assert_eq!(cut_run("client", "server", 101), (vec![100], 100, false), "never");
}

/// Counts up in a file, durably, and traces each number once it is durable.
async fn counter_node(shard: ShardId, safe: Rc<Cell<u64>>) {
    if shard.0 != 0 {
        // The work of shard 0 passes through here and back.
        return shard::stopping().cancelled().await;
    }
    let path = Path::new("/count");
    let found = match fs::read(path).await {
        Ok(bytes) => u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            0
        }
    };
    assert!(found == safe.get() || found == safe.get() + 1, "found {found} after {}", safe.get());
    // After a kill, the data may be only in the page cache.
    fs::write_durably(path, &found.to_le_bytes()).await.expect("written");
    safe.set(found);
    let stopping = shard::stopping();
    while !stopping.is_cancelled() {
        let next = shard::call(ShardId(1), {
            let now = safe.get();
            move || async move { now + 1 }
        })
        .await;
        fs::write_durably(path, &next.to_le_bytes()).await.expect("written");
        safe.set(next);
        trace(&format!("safe {next}"));
    }
}

fn counter_run(seed: u64) -> (u64, u64) {
    use rand::Rng;
    let mut world = World::new(seed);
    let disk = Disk::new(seed);
    let safe = Rc::new(Cell::new(0));
    let safe_there = safe.clone();
    world.node("counter", 2, &disk, move |shard| counter_node(shard, safe_there.clone()));
    for round in 0..12 {
        let writes = world.rng().gen_range(1..40);
        if round % 3 == 0 {
            world.run_for(Duration::from_millis(writes));
            world.kill("counter");
        } else {
            disk.power_loss_at_write(writes);
            while world.is_running("counter") {
                world.step();
            }
            assert!(!disk.is_on());
        }
        world.bounce("counter");
    }
    world.run_for(Duration::from_millis(100));
    world.stop("counter");
    world.run_for(Duration::from_secs(1));
    assert!(world.has_ended("counter"), "it stops when asked");
    (world.trace_hash(), safe.get())
}

#[test]
fn a_node_recovers_from_power_losses_and_kills() {
    for seed in 0..10 {
        let run = counter_run(seed);
        assert!(run.1 > 12, "counted to {}", run.1);
        assert_eq!(run, counter_run(seed), "seed {seed}");
    }
}
