//! A node that may have lost counter updates uses a new counter id. Its later updates then add to
//! the sums on other replicas, whatever the node has lost. Here restored files play the part of the
//! other replicas.

use crate::support::{LAYERS, Scratch, ask, config, live_with};
use cql::api::ResultKind;
use std::path::{Path, PathBuf};

/// How a node ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Stop,
    Kill,
}

async fn create() {
    let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 2}}")).await.expect("made");
    ask("CREATE TABLE ks.n (k int PRIMARY KEY, c counter)").await.expect("made");
}

async fn add(delta: i64) -> Result<(), String> {
    ask(&format!("UPDATE ks.n SET c = c + {delta} WHERE k = 0")).await.map(drop)
}

async fn flush() {
    LAYERS.engine.call_all(|engine| async move { engine.flush(None).await.expect("flushed") }).await;
}

async fn total() -> Result<i64, String> {
    let ResultKind::Rows(rows) = ask("SELECT c FROM ks.n WHERE k = 0").await? else { return Err("no rows".into()) };
    let value = rows.body.get(4..).and_then(|value| value.try_into().ok());
    value.map(i64::from_be_bytes).ok_or_else(|| "no value".into())
}

/// Starts the node, does `work`, and ends it. Returns the id under which it has counted.
fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
    home: &Path,
    accept_loss: bool,
    end: End,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<(T, String), String> {
    live_with(config(home, accept_loss), 2, end == End::Stop, move || async move {
        let done = work().await;
        (done, LAYERS.replica.get().counter_id().to_string())
    })
}

/// Adds `delta`, flushes, and returns the total and the id.
fn count(home: &Path, accept_loss: bool, end: End, delta: i64) -> (i64, String) {
    let work = move || async move {
        add(delta).await.expect("counted");
        flush().await;
        total().await.expect("it can be read")
    };
    run(home, accept_loss, end, work).expect("it starts")
}

fn table_dir(home: &Path) -> PathBuf {
    let tables = std::fs::read_dir(home.join("data/ks")).expect("readable");
    tables.map(|entry| entry.expect("readable").path()).find(|path| path.is_dir()).expect("the table is there")
}

/// Moves the files of sstables from one directory to another.
fn move_sstables(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable") {
        let name = entry.expect("readable").file_name();
        if name.to_string_lossy().starts_with("me-") && is_wanted(&name.to_string_lossy()) {
            std::fs::rename(from.join(&name), to.join(&name)).expect("moved");
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        match entry.file_type().expect("known").is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied")),
        }
    }
}

/// A node that has counted to 60 and was stopped in order, and its id.
fn counted(home: &Path) -> String {
    let work = || async {
        create().await;
        add(60).await.expect("counted");
        flush().await;
    };
    run(home, false, End::Stop, work).expect("it starts").1
}

#[test]
fn the_id_stays_over_stops_in_order() {
    let scratch = Scratch::new("counters-stop");
    let first = counted(&scratch);
    for round in 1..4 {
        assert_eq!(count(&scratch, false, End::Stop, 1), (60 + round, first.clone()));
    }
    // A table without sstables, a log without records.
    assert_eq!(run(&scratch, false, End::Stop, || async {}).expect("it starts").1, first);
    assert_eq!(run(&scratch, false, End::Stop, || async { add(1).await }).expect("it starts").1, first);
    assert_eq!(count(&scratch, false, End::Stop, 1), (65, first));
}

#[test]
fn a_kill_renews_the_id_and_keeps_the_sum() {
    let scratch = Scratch::new("counters-kill");
    let mut ids = vec![counted(&scratch)];
    // The run that is killed has the id of the one before.
    let (sum, id) = count(&scratch, false, End::Kill, 1);
    assert_eq!((sum, &id), (61, &ids[0]));
    for round in 2..5 {
        let (sum, id) = count(&scratch, false, End::Kill, 1);
        assert_eq!(sum, 60 + round);
        assert!(!ids.contains(&id), "{id} again, after a kill");
        ids.push(id);
    }
}

/// The node loses a part of what it counted and counts on. Then the lost part is merged, as a read
/// of other replicas does.
fn loses(home: &Path, what: &str, lose: impl FnOnce(&Path, &Path), accept_loss: bool) {
    let aside = home.with_extension("aside");
    let first = counted(home);
    lose(home, &aside);
    let (sum, id) = count(home, accept_loss, End::Stop, 1);
    assert_ne!(id, first, "{what}");
    assert!(sum == 1 || sum == 61, "{what}: {sum}");
    move_sstables(&aside, &table_dir(home), |_| true);
    assert_eq!(count(home, false, End::Stop, 0).0, 61, "{what}");
    std::fs::remove_dir_all(home).expect("removed");
    std::fs::remove_dir_all(&aside).expect("removed");
}

#[test]
fn a_node_does_not_count_from_a_lost_counter_shard() {
    let scratch = Scratch::new("counters-lost");
    let home = scratch.join("home");
    loses(&home, "an sstable", |home, aside| move_sstables(&table_dir(home), aside, |_| true), true);
    let remove_table = |home: &Path, aside: &Path| {
        move_sstables(&table_dir(home), aside, |_| true);
        std::fs::remove_dir_all(table_dir(home)).expect("removed");
    };
    loses(&home, "the table's directory", remove_table, true);
    let remove_log = |home: &Path, aside: &Path| {
        std::fs::create_dir_all(aside).expect("made");
        std::fs::remove_dir_all(home.join("commitlog")).expect("removed");
    };
    loses(&home, "the commitlog", remove_log, true);
    for how in ["removed", "zeroed", "of another node"] {
        let spoil = |home: &Path, aside: &Path| {
            move_sstables(&table_dir(home), aside, |_| true);
            let file = home.join("messina.counter-id");
            match how {
                "removed" => std::fs::remove_file(&file).expect("removed"),
                "zeroed" => std::fs::write(&file, [0; 100]).expect("written"),
                _ => {
                    let other = home.with_extension("other");
                    counted(&other);
                    std::fs::copy(other.join("messina.counter-id"), &file).map(drop).expect("copied");
                }
            }
        };
        loses(&home, how, spoil, true);
    }
}

/// An older state of the whole directory, as a power loss leaves it: the last updates were not
/// synced.
#[test]
fn an_older_state_is_not_counted_from() {
    let scratch = Scratch::new("counters-older");
    let (home, older) = (scratch.join("home"), scratch.join("older"));
    let (from, to) = (home.clone(), older.clone());
    let work = move || async move {
        create().await;
        add(20).await.expect("counted");
        flush().await;
        copy(&from, &to);
        add(40).await.expect("counted");
        flush().await;
    };
    let first = run(&home, false, End::Stop, work).expect("it starts").1;
    let (sum, id) = count(&older, false, End::Stop, 1);
    assert_eq!(sum, 21);
    assert_ne!(id, first);
    move_sstables(&table_dir(&home), &table_dir(&older), |_| true);
    assert_eq!(count(&older, false, End::Stop, 0).0, 61);
}

/// A table that cannot be read takes no updates. When it can be read again, what it held may be
/// gone.
#[test]
fn a_table_that_could_not_be_read_is_not_counted_from() {
    let scratch = Scratch::new("counters-unreadable");
    let (home, aside) = (scratch.join("home"), scratch.join("aside"));
    let first = counted(&home);
    move_sstables(&table_dir(&home), &aside, |name| name.ends_with("-Data.db"));
    let (refused, _) = run(&home, false, End::Stop, || async { add(1).await }).expect("it starts");
    assert!(refused.is_err_and(|why| why.contains("me-")));
    move_sstables(&table_dir(&home), &aside, |_| true);
    let (sum, id) = count(&home, true, End::Stop, 1);
    assert_eq!(sum, 1);
    assert_ne!(id, first);
    move_sstables(&aside, &table_dir(&home), |_| true);
    assert_eq!(count(&home, false, End::Stop, 0).0, 61);
}
