//! The checker `metadata_is_a_prefix`. Disk operations fail while a committed change of the
//! metadata is applied. All shards of the node must have the same metadata, which must be the log
//! up to some change. What was acknowledged must exist after a restart.
//!
//! Every kind of change is made repeatedly. Each time another file operation fails: once, a few
//! times, or until the test repairs the disk.

mod accepted;
mod changes;
mod refreshing;

use changes::{STEPS, id, ops};
use cluster::metadata::{Change, ChangeError, Op, change};
use rt::ShardId;
use rt::sim::{Disk, Refusal, Unsynced, World};
use rt::time::Duration;
use server::stack::{self, StackConfig};
use sim::cluster::Simulation;
use sim::cluster::nemesis::PEACE;
use sim::cluster::shared::Plan;
use sim::layers::LAYERS;
use sim::reads::execute;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::rc::Rc;
use uuid::Uuid;

const DATA: &str = "/node/data";
const REFUSALS: [Refusal; 4] = [Refusal::NoDescriptors, Refusal::NoSpace, Refusal::NoAccess, Refusal::Broken];
/// An incarnation that takes longer, in simulated time, is stuck.
const LONGEST_INCARNATION: Duration = Duration::from_secs(3600);
/// The number of failures that lasts until the test ends it.
const ENDLESS: u32 = u32::MAX;

/// The metadata of a node after a step, equal on every shard.
type Known = (u64, Uuid, BTreeSet<String>);

#[derive(Default)]
struct Shared {
    over: Cell<bool>,
    incarnations: Cell<u32>,
    broken: RefCell<Option<String>>,
    /// The metadata after the last acknowledged change.
    acknowledged: RefCell<Option<Known>>,
    /// The number of acknowledged rows in `p.kept`.
    rows: Cell<i32>,
    /// The number of failed operations.
    refused: Cell<u64>,
}

fn config(auto_snapshot: bool) -> StackConfig {
    StackConfig {
        segment_size: 64 << 10,
        log_size_limit: 1 << 20,
        disk_reserve: 64 << 10,
        auto_snapshot,
        ..StackConfig::new("/node", "sim", Ipv4Addr::LOCALHOST.into(), 4 << 20)
    }
}

/// Runs a node with two shards until `main`, which runs on shard 0, ends. Then kills the node.
fn run_node<F>(
    world: &mut World,
    disk: &Disk,
    auto_snapshot: bool,
    main: impl Fn(Rc<Shared>) -> F + Clone + 'static,
    shared: &Rc<Shared>,
) where
    F: Future<Output = Result<(), String>> + 'static,
{
    if let Err(why) = try_node(world, disk, move || config(auto_snapshot), main, shared) {
        panic!("{why}");
    }
}

/// Like [`run_node`], but returns the error of the start or of `main`.
fn try_node<F>(
    world: &mut World,
    disk: &Disk,
    config: impl Fn() -> StackConfig + Clone + 'static,
    main: impl Fn(Rc<Shared>) -> F + Clone + 'static,
    shared: &Rc<Shared>,
) -> Result<(), String>
where
    F: Future<Output = Result<(), String>> + 'static,
{
    shared.over.set(false);
    shared.incarnations.set(shared.incarnations.get() + 1);
    let (state, name) = (shared.clone(), format!("life{}", shared.incarnations.get()));
    world.node(&name, 2, disk, move |shard| {
        let (shared, main, config) = (state.clone(), main.clone(), config.clone());
        async move {
            if shard == ShardId(0) {
                let done = match stack::start(*LAYERS, config()).await {
                    Err(error) => Err(format!("the node does not start: {error}")),
                    Ok(_stack) => main(shared.clone()).await,
                };
                if let Err(why) = done {
                    shared.broken.replace(Some(why));
                }
                shared.over.set(true);
            }
            std::future::pending::<()>().await;
        }
    });
    let begun = world.elapsed();
    while !shared.over.get() {
        world.step();
        assert!(world.elapsed() - begun < LONGEST_INCARNATION, "an incarnation does not end");
    }
    world.kill(&name);
    match shared.broken.take() {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// The metadata of all shards, which must be equal. The engine's tables and tablets must match
/// them.
async fn known() -> Result<Known, String> {
    let all = rt::shard::call_all(|| async {
        let service = LAYERS.metadata.get();
        let (metadata, engine, own) = (service.current(), LAYERS.engine.get(), rt::shard::this());
        let mut tables = BTreeSet::new();
        for table in metadata.tables().filter(|table| !table.schema.keyspace.starts_with("system")) {
            let wanted: BTreeSet<u32> = table.tablets.on_shard(service.info().host_id, own).collect();
            let here = engine.tablets_of(table.schema.id);
            if !wanted.is_subset(&here) || !engine.has_table(table.schema.id) {
                return Err(format!("shard {own} has tablets {here:?} of {}, not {wanted:?}", table.schema.name));
            }
            if engine.schema(table.schema.id).map(|schema| schema.version) != Some(table.schema.version) {
                return Err(format!("shard {own} has another schema of {}", table.schema.name));
            }
            tables.insert(format!("{}.{}", table.schema.keyspace, table.schema.name));
        }
        Ok((metadata.number, metadata.version, tables))
    });
    let all: Vec<Known> = all.await.into_iter().collect::<Result<_, String>>()?;
    if all.iter().any(|known| *known != all[0]) {
        return Err(format!("metadata_is_a_prefix is broken: shards have {all:?}"));
    }
    Ok(all[0].clone())
}

async fn make(step: &'static str, round: u128) -> Result<(), String> {
    let made: Result<(), ChangeError<String>> =
        change(LAYERS.metadata, move |metadata, info| Ok((ops(step, round, metadata, info), ()))).await;
    made.map_err(|error| error.to_string())
}

/// Writes rows to `q.t` and flushes some of them, so that there are files to remove.
async fn fill() -> Result<(), String> {
    for k in 0..12 {
        execute(&format!("INSERT INTO q.t (k, v) VALUES ({k}, 1)")).await?;
        if k == 5 {
            flush().await;
        }
    }
    Ok(())
}

async fn flush() {
    // A flush that fails is retried by the engine.
    rt::shard::call_all(|| async { drop(LAYERS.engine.get().flush(None).await) }).await;
}

/// Makes every change while the operation `skip` below the data directory fails `times` in a row.
async fn rounds(
    disk: Disk,
    refusal: Refusal,
    rounds: std::ops::Range<u128>,
    times: u32,
    shared: Rc<Shared>,
) -> Result<(), String> {
    for round in rounds {
        let skip = round as u32 % 24;
        for step in STEPS {
            let what = || format!("{refusal:?}, {times} times after {skip}, {step}");
            if step == "rows" {
                fill().await.map_err(|why| format!("{}: {why}", what()))?;
                continue;
            }
            disk.refuse_below(DATA, refusal, skip, times);
            make(step, round).await.map_err(|why| format!("{}: {why}", what()))?;
            let left = disk.refuse_nothing();
            shared.refused.set(shared.refused.get() + u64::from(times - left));
            let now = known().await.map_err(|why| format!("{}: {why}", what()))?;
            shared.acknowledged.replace(Some(now));
        }
        let key = shared.rows.get();
        execute(&format!("INSERT INTO p.kept (k, v) VALUES ({key}, {key})")).await?;
        shared.rows.set(key + 1);
    }
    Ok(())
}

/// Checks that acknowledged changes and rows exist after a start.
async fn restarted(shared: Rc<Shared>) -> Result<(), String> {
    let now = known().await?;
    let acknowledged = shared.acknowledged.borrow().clone();
    if acknowledged.as_ref() != Some(&now) {
        return Err(format!("acknowledged: {acknowledged:?}; after the restart there is {now:?}"));
    }
    let rows = sim::reads::count("SELECT k FROM p.kept").await?;
    if rows != shared.rows.get() as usize {
        return Err(format!("{rows} rows of {}", shared.rows.get()));
    }
    Ok(())
}

async fn set_up(shared: Rc<Shared>) -> Result<(), String> {
    execute("CREATE KEYSPACE p WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
        .await?;
    execute("CREATE TABLE p.kept (k int PRIMARY KEY, v int)").await?;
    shared.acknowledged.replace(Some(known().await?));
    Ok(())
}

fn new_node(seed: u64, auto_snapshot: bool) -> (World, Disk, Rc<Shared>) {
    let (mut world, disk, shared) = (World::new(seed), Disk::new(seed), Rc::new(Shared::default()));
    run_node(&mut world, &disk, auto_snapshot, set_up, &shared);
    (world, disk, shared)
}

#[test]
fn every_change_is_carried_out_whatever_operation_is_refused() {
    for (seed, refusal) in REFUSALS.into_iter().enumerate() {
        for (times, auto_snapshot) in [(1, false), (5, true)] {
            let (mut world, disk, shared) = new_node(seed as u64, auto_snapshot);
            for part in 0..3u128 {
                let (own, of) = (disk.clone(), part * 8..part * 8 + 8);
                let main = move |shared| rounds(own.clone(), refusal, of.clone(), times, shared);
                run_node(&mut world, &disk, auto_snapshot, main, &shared);
                if part == 1 {
                    disk.set_unsynced(Unsynced::Lost);
                    disk.lose_power();
                }
                run_node(&mut world, &disk, auto_snapshot, restarted, &shared);
            }
            let refused = shared.refused.get();
            println!("{refusal:?}, {times} at a time: {refused} operations refused");
            assert!(refused > 20, "{refusal:?}: {refused} operations were refused");
        }
    }
}

/// The disk fails until it is repaired. The change is not acknowledged and not visible, later
/// changes are refused with the reason, and reads and writes succeed. After the repair the change
/// is visible.
#[test]
fn a_change_that_cannot_be_carried_out_is_not_shown_and_comes_later() {
    for (step, refusal) in
        [("create table", Refusal::NoAccess), ("create table", Refusal::Broken), ("truncate", Refusal::NoSpace)]
    {
        let (mut world, disk, shared) = new_node(9, false);
        let own = disk.clone();
        let main = move |shared: Rc<Shared>| {
            let disk = own.clone();
            async move {
                for before in STEPS.iter().take_while(|before| **before != step) {
                    match *before {
                        "rows" => fill().await?,
                        before => make(before, 1).await?,
                    }
                }
                flush().await;
                let before = known().await?;
                disk.refuse_below(DATA, refusal, 0, ENDLESS);
                let why = make(step, 1).await.expect_err("it cannot be carried out");
                let said = why.contains("cannot apply") && why.contains("/node/data");
                assert!(said, "{step}, {refusal:?}: what is the matter with {why}");
                assert_eq!(known().await?, before, "{step}, {refusal:?}: nothing of it is shown");
                let why = make("fence", 1).await.expect_err("the log waits");
                assert!(why.contains("cannot apply"), "{why}");
                execute("INSERT INTO p.kept (k, v) VALUES (100, 1)").await?;
                shared.rows.set(shared.rows.get() + 1);
                let metrics = LAYERS.metadata.get().apply_failure();
                assert!(metrics.0.is_some() && metrics.1 > 0, "{metrics:?}");
                disk.refuse_nothing();
                rt::time::sleep(Duration::from_secs(3)).await;
                let after = known().await?;
                assert_eq!(after.0, before.0 + 1, "{step}, {refusal:?}: it is carried out at last");
                assert_eq!(LAYERS.metadata.get().apply_failure().0, None);
                make("fence", 1).await?;
                shared.acknowledged.replace(Some(known().await?));
                Ok(())
            }
        };
        run_node(&mut world, &disk, false, main, &shared);
        run_node(&mut world, &disk, false, restarted, &shared);
    }
}

/// A tablet comes and goes while no file can be opened or removed. Its files are removed later.
#[test]
fn a_move_does_not_wait_for_the_disk() {
    for refusal in [Refusal::NoDescriptors, Refusal::Broken] {
        let (mut world, disk, shared) = new_node(11, false);
        let own = disk.clone();
        let main = move |shared: Rc<Shared>| {
            let disk = own.clone();
            async move {
                for step in ["create keyspace", "create table"] {
                    make(step, 1).await?;
                }
                fill().await?;
                flush().await;
                let files =
                    |disk: &Disk| disk.files().iter().filter(|(path, _)| path.starts_with("/node/data/q")).count();
                let before = files(&disk);
                disk.refuse_below("/node/data/q", refusal, 0, ENDLESS);
                for step in ["move begins", "move ends"] {
                    make(step, 1).await?;
                }
                disk.refuse_nothing();
                rt::time::sleep(Duration::from_secs(12)).await;
                assert!(files(&disk) < before, "{refusal:?}: the files of the tablet are removed at last");
                shared.acknowledged.replace(Some(known().await?));
                Ok(())
            }
        };
        run_node(&mut world, &disk, false, main, &shared);
        run_node(&mut world, &disk, false, restarted, &shared);
    }
}

/// A table that is dropped while its files cannot be removed is gone for all clients. Its files are
/// removed later.
#[test]
fn a_drop_does_not_wait_for_the_disk() {
    for refusal in [Refusal::NoAccess, Refusal::Broken, Refusal::NoDescriptors] {
        let (mut world, disk, shared) = new_node(10, false);
        let own = disk.clone();
        let main = move |shared: Rc<Shared>| {
            let disk = own.clone();
            async move {
                for step in ["create keyspace", "create table"] {
                    make(step, 1).await?;
                }
                fill().await?;
                flush().await;
                let files =
                    |disk: &Disk| disk.files().iter().filter(|(path, _)| path.starts_with("/node/data/q")).count();
                assert!(files(&disk) > 0);
                disk.refuse_below("/node/data/q", refusal, 0, ENDLESS);
                make("drop keyspace", 1).await?;
                make("create keyspace", 2).await?;
                assert!(files(&disk) > 0);
                disk.refuse_nothing();
                rt::time::sleep(Duration::from_secs(12)).await;
                assert_eq!(files(&disk), 0, "{refusal:?}: {:?}", disk.files());
                shared.acknowledged.replace(Some(known().await?));
                Ok(())
            }
        };
        run_node(&mut world, &disk, false, main, &shared);
        run_node(&mut world, &disk, false, restarted, &shared);
    }
}

/// A table that is dropped while another removal is retried is removed as well.
#[test]
fn a_drop_while_another_removal_is_repeated_leaves_nothing_behind() {
    let (mut world, disk, shared) = new_node(15, false);
    let own = disk.clone();
    let main = move |shared: Rc<Shared>| {
        let disk = own.clone();
        async move {
            for step in ["create keyspace", "create table", "create another"] {
                make(step, 1).await?;
            }
            fill().await?;
            for k in 0..12 {
                execute(&format!("INSERT INTO q.o (k, v) VALUES ({k}, 1)")).await?;
            }
            flush().await;
            let files = |disk: &Disk| disk.files().iter().filter(|(path, _)| path.starts_with("/node/data/q")).count();
            disk.refuse_below("/node/data/q", Refusal::NoAccess, 0, ENDLESS);
            execute("DROP TABLE q.t").await?;
            rt::time::sleep(Duration::from_secs(7)).await;
            execute("DROP TABLE q.o").await?;
            assert!(files(&disk) > 0);
            disk.refuse_nothing();
            rt::time::sleep(Duration::from_secs(15)).await;
            assert_eq!(files(&disk), 0, "{:?}", disk.files());
            shared.acknowledged.replace(Some(known().await?));
            Ok(())
        }
    };
    run_node(&mut world, &disk, false, main, &shared);
    run_node(&mut world, &disk, false, restarted, &shared);
}

/// A table is dropped, its files cannot be removed, and a new table gets its id and any name. The
/// late removal keeps the data of the new table, and data of the old one is never visible.
#[test]
fn a_late_removal_leaves_a_new_table_with_the_same_id_alone() {
    let table = |name: &str| format!("CREATE TABLE q.{name} (k int PRIMARY KEY, v int) WITH id = {}", id(11).0);
    for (n, refusal) in [Refusal::NoAccess, Refusal::Broken, Refusal::NoDescriptors].into_iter().enumerate() {
        for name in ["t", "other"] {
            let (mut world, disk, shared) = new_node(20 + n as u64, false);
            let own = disk.clone();
            let main = move |shared: Rc<Shared>| {
                let disk = own.clone();
                async move {
                    make("create keyspace", 1).await?;
                    execute(&table("t")).await?;
                    fill().await?;
                    flush().await;
                    fill().await?;
                    disk.refuse_below("/node/data/q", refusal, 0, ENDLESS);
                    execute("DROP TABLE q.t").await?;
                    let relieved = rt::task::spawn({
                        let disk = disk.clone();
                        async move {
                            rt::time::sleep(Duration::from_millis(500)).await;
                            disk.refuse_nothing();
                        }
                    });
                    execute(&table(name)).await?;
                    relieved.await.map_err(|_| "stopping")?;
                    let count = format!("SELECT k FROM q.{name}");
                    assert_eq!(sim::reads::count(&count).await?, 0, "{refusal:?}, {name}: it begins empty");
                    for k in 100..110 {
                        execute(&format!("INSERT INTO q.{name} (k, v) VALUES ({k}, 1)")).await?;
                        if k == 105 {
                            flush().await;
                        }
                    }
                    rt::time::sleep(Duration::from_secs(30)).await;
                    assert_eq!(sim::reads::count(&count).await?, 10, "{refusal:?}, {name}: after the removal");
                    shared.acknowledged.replace(Some(known().await?));
                    Ok(())
                }
            };
            run_node(&mut world, &disk, false, main, &shared);
            let again = move |shared: Rc<Shared>| async move {
                restarted(shared).await?;
                let rows = sim::reads::count(&format!("SELECT k FROM q.{name}")).await?;
                if rows == 10 { Ok(()) } else { Err(format!("{refusal:?}, {name}: {rows} rows after a restart")) }
            };
            run_node(&mut world, &disk, false, again, &shared);
            disk.set_unsynced(Unsynced::Lost);
            disk.lose_power();
            run_node(&mut world, &disk, false, again, &shared);
        }
    }
}

/// A node that cannot apply changes for minutes stops, and reports why.
#[test]
fn a_node_that_cannot_follow_ends() {
    let (mut world, disk, shared) = new_node(12, false);
    let own = disk.clone();
    let main = move |_| {
        let disk = own.clone();
        async move {
            make("create keyspace", 1).await?;
            let group = LAYERS.metadata.get().group().expect("shard 0").clone();
            let before = known().await?;
            disk.refuse_below("/node/data/q", Refusal::NoAccess, 0, ENDLESS);
            make("create table", 1).await.expect_err("it cannot be carried out");
            let why = rt::time::timeout(Duration::from_secs(400), group.failure()).await;
            let why = why.map_err(|_| "it does not end".to_owned())?;
            assert!(why.contains("could not be applied for 300s") && why.contains("/node/data/q"), "{why}");
            assert_eq!(known().await?, before);
            disk.refuse_nothing();
            Ok(())
        }
    };
    run_node(&mut world, &disk, false, main, &shared);
    let now_there = |_| async {
        let tables = known().await?.2;
        if tables.contains("q.t") { Ok(()) } else { Err(format!("there are {tables:?}")) }
    };
    run_node(&mut world, &disk, false, now_there, &shared);
}

/// The log is truncated, and snapshots of it are made, while each file operation in its directory
/// in turn fails for lack of descriptors.
#[test]
fn the_log_is_cut_without_descriptors() {
    let (mut world, disk, shared) = new_node(13, false);
    let own = disk.clone();
    let main = move |shared: Rc<Shared>| {
        let disk = own.clone();
        async move {
            let mut refused = 0;
            for n in 0..1200u32 {
                // Snapshots and truncations of the log run in their own task, so the fault lasts
                // over several changes.
                if n % 8 == 0 {
                    refused += 1 - disk.refuse_nothing().min(1);
                    disk.refuse_below("/node/raft", Refusal::NoDescriptors, (n / 256) % 6, 1);
                }
                make("fence", 1).await?;
            }
            disk.refuse_nothing();
            if refused < 3 {
                return Err(format!("{refused} operations were refused"));
            }
            shared.acknowledged.replace(Some(known().await?));
            Ok(())
        }
    };
    run_node(&mut world, &disk, false, main, &shared);
    run_node(&mut world, &disk, false, restarted, &shared);
}

/// A change that exceeds a limit is refused by every node, and by a start.
#[test]
fn a_change_that_does_not_fit_is_refused_now_and_after_a_restart() {
    let (mut world, disk, shared) = new_node(11, false);
    let main = |shared: Rc<Shared>| async move {
        let service = LAYERS.metadata.get();
        let before = known().await?;
        let ops = vec![Op::Fence(0), Op::DropKeyspace("nowhere".into())];
        let wrong = Change { previous: before.1, new: Uuid::from_u128(5), ops };
        let until = rt::sync::Deadline::after(Duration::from_secs(60));
        let proposed = service.group().expect("shard 0").propose(wrong.encoded(), until).await;
        let outcome = proposed.map_err(|error| error.to_string())?.outcome;
        assert!(matches!(&outcome, cluster::raft::Outcome::Failed(why) if why.contains("nowhere")), "{outcome:?}");
        assert_eq!(known().await?, before);
        make("create keyspace", 1).await?;
        make("create table", 1).await?;
        shared.acknowledged.replace(Some(known().await?));
        Ok(())
    };
    run_node(&mut world, &disk, false, main, &shared);
    run_node(&mut world, &disk, false, restarted, &shared);
}

/// Three nodes whose disks fail in turn, while tables are created, dropped and truncated and
/// tablets move. All nodes get the same metadata, and nothing acknowledged is lost.
#[test]
fn nodes_of_a_cluster_agree_whatever_their_disks_refuse() {
    let plan = Plan { truncating: true, moving: true, ..Plan::default() };
    let mut simulation = Simulation::new(1, plan, PEACE);
    let done = (|| {
        simulation.form()?;
        for n in 0..9u32 {
            let disk = simulation.nemesis.disks()[n as usize % 3].clone();
            let refusal = [Refusal::NoDescriptors, Refusal::NoSpace, Refusal::NoAccess][n as usize / 3];
            disk.refuse_below(DATA, refusal, n % 5, if n % 2 == 1 { ENDLESS } else { 1 + n });
            simulation.run_for(Duration::from_millis(1000))?;
            disk.refuse_nothing();
        }
        simulation.verify(false)
    })();
    let outcome = done.unwrap_or_else(|why: String| panic!("{why}"));
    println!("{outcome:?}");
    assert!(outcome.schema_changes > 0, "{outcome:?}");
}
