//! Snapshots: TRUNCATE and DROP TABLE take one for the operation and the table, with the rows of
//! all shards. An administrator's snapshot is complete, or does not appear.

use crate::support::LAYERS;
use crate::support::{Scratch, ask, config, live_with};
use cluster::metadata::Change;
use engine::UNFINISHED_SNAPSHOT;
use engine::datadir::{find_snapshots, table_dir_name};
use rt::ShardId;
use rt::sync::Semaphore;
use rt::time::Duration;
use server::admin::operations::TableName;
use server::admin::snapshots::{is_of, remove_unfinished, take_here};
use server::stack::StackConfig;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

const SHARDS: usize = 3;
/// Longer than a millisecond, the unit of the names, and longer than a shard waits on a busy
/// machine.
const STALL: Duration = Duration::from_millis(60);

async fn insert() {
    for k in 0..60 {
        ask(&format!("INSERT INTO ks.t (k, v) VALUES ({k}, {k})")).await.expect("written");
    }
}

/// The table `ks.NAME`.
fn named(name: &str) -> TableName {
    let metadata = LAYERS.metadata.get().current();
    let schema = metadata.tables().map(|table| &table.schema).find(|schema| schema.name == name);
    TableName { keyspace: "ks".into(), name: name.into(), id: schema.expect("a table").id }
}

/// Keeps the other shards busy for different times, so that they begin an operation one after the
/// other.
fn stall_the_others() {
    for shard in 1..SHARDS {
        #[allow(clippy::disallowed_methods, reason = "the whole shard has to stall")]
        let busy = move || async move { std::thread::sleep(STALL * shard as u32) };
        rt::task::spawn(rt::shard::call(ShardId(shard as u16), busy)).detach();
    }
}

/// The snapshots of all tables, and the number of Data files in each.
fn snapshots(root: &Path) -> BTreeMap<String, usize> {
    let list = |dir: &Path| -> Vec<_> {
        std::fs::read_dir(dir).map_or_else(|_| Vec::new(), |dir| dir.map(|entry| entry.expect("read").path()).collect())
    };
    let mut found = BTreeMap::new();
    for snapshot in list(&root.join("data/ks")).iter().flat_map(|table| list(&table.join("snapshots"))) {
        let data = list(&snapshot).iter().filter(|path| path.to_string_lossy().ends_with("-Data.db")).count();
        found.insert(snapshot.file_name().expect("named").to_string_lossy().into_owned(), data);
    }
    found
}

#[test]
fn all_shards_of_a_node_take_one_snapshot() {
    let scratch = Scratch::new("one-snapshot");
    let config = StackConfig { auto_snapshot: true, ..config(&scratch, false) };
    live_with(config, SHARDS, true, || async {
        let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
        ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 8}}")).await.expect("made");
        ask("CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await.expect("made");
        insert().await;
        stall_the_others();
        ask("TRUNCATE ks.t").await.expect("truncated");
        insert().await;
        stall_the_others();
        ask("DROP TABLE ks.t").await.expect("dropped");
    })
    .expect("it starts");
    let found = snapshots(&scratch);
    let of = |kind: &str| found.iter().filter(|(name, _)| name.starts_with(kind)).collect::<Vec<_>>();
    assert_eq!((of("truncated-").len(), of("dropped-").len()), (1, 1), "{found:?}");
    let all = found.values().max().expect("two");
    assert!(found.values().all(|data| data == all), "each has all tablets: {found:?}");
}

/// A snapshot of two tables fails at the second one, on one shard: nothing of the first one is
/// left. Then the snapshot is taken again under the same name.
#[test]
fn an_administrators_snapshot_is_complete_or_absent() {
    let scratch = Scratch::new("whole-snapshot");
    let root = scratch.to_path_buf();
    live_with(config(&scratch, false), SHARDS, true, || async move {
        let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
        ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 8}}")).await.expect("made");
        ask("CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await.expect("made");
        ask("CREATE TABLE ks.u (k int PRIMARY KEY, v int)").await.expect("made");
        insert().await;
        let tables = vec![named("t"), named("u")];
        let keyspaces = root.join("data");
        let other = keyspaces.join("ks").join(table_dir_name("u", tables[1].id)).join("snapshots");
        // No directory can be made where a file is.
        std::fs::create_dir_all(&other).expect("made");
        let file = other.join(format!("{UNFINISHED_SNAPSHOT}s"));
        std::fs::write(&file, b"").expect("written");
        let turn = Rc::new(Semaphore::new(1));
        take_here(LAYERS.engine, &turn, &keyspaces, &tables, "s").await.expect_err("a table fails");
        assert_eq!(snapshots(&root).keys().collect::<Vec<_>>(), [&format!("{UNFINISHED_SNAPSHOT}s")], "the file");
        std::fs::remove_file(file).expect("removed");

        let mut all = Vec::new();
        for _ in 0..2 {
            let (keyspaces, tables, turn) = (keyspaces.clone(), tables.clone(), turn.clone());
            all.push(rt::task::spawn(async move { take_here(LAYERS.engine, &turn, &keyspaces, &tables, "s").await }));
        }
        let mut taken = Vec::new();
        for task in all {
            taken.push(task.await.expect("it runs"));
        }
        taken.sort_by_key(Result::is_err);
        assert_eq!(taken[0], Ok(()));
        let refused = taken[1].clone().expect_err("the name is taken");
        assert!(format!("{refused:?}").contains("already exists"), "{refused:?}");
        // The directory that a crash leaves does not count as a snapshot, and the next start
        // removes it.
        std::fs::create_dir_all(other.join(format!("{UNFINISHED_SNAPSHOT}d"))).expect("made");
        remove_unfinished(&root).await;
    })
    .expect("it starts");
    let list = |name: &str| {
        let table = std::fs::read_dir(scratch.join("data/ks")).expect("read").map(|entry| entry.expect("read").path());
        let found = table.filter(|dir| dir.file_name().is_some_and(|dir| dir.to_string_lossy().starts_with(name)));
        found.map(|dir| dir.join("snapshots/s")).find(|dir| dir.exists()).expect("a snapshot")
    };
    assert_eq!(snapshots(&scratch).keys().collect::<Vec<_>>(), ["s"]);
    let data = std::fs::read_dir(list("t-"))
        .expect("read")
        .filter(|entry| entry.as_ref().expect("read").file_name().to_string_lossy().ends_with("-Data.db"));
    let manifest = std::fs::read_to_string(list("t-").join("manifest.json")).expect("read");
    let data = data.count();
    assert!(data >= 8 && manifest.matches("-Data.db").count() == data, "{data} files, {manifest}");
    assert!(list("u-").join("manifest.json").exists());
}

/// A directory that cannot be read does not fail snapshots of other tables. The error names it.
#[test]
fn a_directory_that_cannot_be_read_is_named_and_fails_its_table_only() {
    let scratch = Scratch::new("unreadable-snapshots");
    let root = scratch.to_path_buf();
    live_with(config(&scratch, false), SHARDS, true, || async move {
        let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
        ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 8}}")).await.expect("made");
        for table in ["t", "u"] {
            ask(&format!("CREATE TABLE ks.{table} (k int PRIMARY KEY, v int)")).await.expect("made");
        }
        insert().await;
        let (t, u) = (named("t"), named("u"));
        let keyspaces = root.join("data");
        // It cannot be listed, not even by root: it is a file.
        let dir = keyspaces.join("ks").join(table_dir_name("u", u.id));
        std::fs::create_dir_all(&dir).expect("made");
        let unreadable = dir.join("snapshots");
        std::fs::write(&unreadable, b"").expect("written");
        let turn = Semaphore::new(1);
        let taken = take_here(LAYERS.engine, &turn, &keyspaces, std::slice::from_ref(&t), "s").await;
        taken.expect("the other table has no part in it");
        let path = unreadable.display().to_string();
        let refused = take_here(LAYERS.engine, &turn, &keyspaces, &[t.clone(), u.clone()], "s2").await;
        let error = format!("{:?}", refused.expect_err("it fails"));
        assert!(error.contains(&path) && error.contains("move it away"), "{error}");
        for tables in [None, Some([u].as_slice())] {
            let error = find_snapshots(&keyspaces, is_of(tables)).await.expect_err("it fails").to_string();
            assert!(error.contains(&path) && error.contains("move it away"), "{error}");
        }
        let found = find_snapshots(&keyspaces, is_of(Some(&[t]))).await.expect("it is readable");
        assert_eq!(found.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["s"]);
    })
    .expect("it starts");
}

/// A snapshot of all tables passes over a table that one shard has dropped: it would lack the rows
/// of that shard.
#[test]
fn a_table_that_a_shard_has_dropped_gets_no_snapshot() {
    let scratch = Scratch::new("dropped-snapshot");
    let root = scratch.to_path_buf();
    live_with(config(&scratch, false), SHARDS, false, || async move {
        let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
        ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 8}}")).await.expect("made");
        for table in ["t", "u"] {
            ask(&format!("CREATE TABLE ks.{table} (k int PRIMARY KEY, v int)")).await.expect("made");
        }
        insert().await;
        let tables = [named("t"), named("u")];
        let id = tables[0].id;
        let drop = move || async move { LAYERS.engine.get().drop_table(id, 1).await };
        rt::shard::call(ShardId(1), drop).await.expect("dropped there");
        take_here(LAYERS.engine, &Semaphore::new(1), &root.join("data"), &tables, "s")
            .await
            .expect("of the other table");
        let found = find_snapshots(&root.join("data"), is_of(Some(&tables))).await.expect("readable");
        assert_eq!(found.iter().map(|one| one.table.as_str()).collect::<Vec<_>>(), ["u"]);
        assert_eq!(snapshots(&root).keys().collect::<Vec<_>>(), ["s"], "nothing unfinished is left");
    })
    .expect("it starts");
}

/// The time of a change is the same on all nodes; a change of an earlier release has none.
#[test]
fn changes_say_when_they_were_made() {
    rt::block_on(async {
        let before = rt::time::wall_micros();
        let previous = uuid::Uuid::from_u128(1);
        let made = Change { previous, new: rt::random::time_uuid(), ops: Vec::new() }.made_at();
        assert!(made.is_some_and(|made| (before..=rt::time::wall_micros()).contains(&made)), "{made:?} after {before}");
        assert_eq!(Change { previous, new: rt::random::uuid_v4(), ops: Vec::new() }.made_at(), None);
    });
}
