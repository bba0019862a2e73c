//! Each file of a node's data directory is removed, truncated, zeroed or replaced by a directory,
//! one at a time, after a stop and after a kill. Then the next start is refused and names the file
//! and a remedy, or no acknowledged write is lost.

use crate::support::LAYERS;
use crate::support::{Scratch, ask, live};
use cql::api::ResultKind;
use rt::sync::Deadline;
use rt::time::Duration;
use std::path::{Path, PathBuf};

const ROWS: i32 = 20;
/// How many rows there are in all tables.
const ALL: usize = 4 * ROWS as usize;

/// How many rows the tables have.
async fn rows() -> Result<usize, String> {
    let mut all = 0;
    for table in ["t", "u", "truncated", "given_id"] {
        let ResultKind::Rows(rows) = ask(&format!("SELECT k FROM ks.{table}")).await? else {
            return Err("no rows".into());
        };
        all += rows.count as usize;
    }
    Ok(all)
}

/// Creates rows in sstables and rows in the log. Creates three tables: one that only the log has, a
/// truncated one with rows in the log, and one with a given id.
async fn fill() {
    let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 1}}")).await.expect("made");
    ask("CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await.expect("made");
    for k in 0..ROWS {
        ask(&format!("INSERT INTO ks.t (k, v) VALUES ({k}, {k})")).await.expect("written");
    }
    let id = "5a1c395e-b41f-11e5-9f22-ba0be0483c18";
    ask(&format!("CREATE TABLE ks.given_id (k int PRIMARY KEY, v int) WITH id = {id}")).await.expect("made");
    ask("CREATE TABLE ks.truncated (k int PRIMARY KEY, v int)").await.expect("made");
    for k in 0..ROWS {
        ask(&format!("INSERT INTO ks.given_id (k, v) VALUES ({k}, {k})")).await.expect("written");
        ask(&format!("INSERT INTO ks.truncated (k, v) VALUES ({k}, {k})")).await.expect("written");
    }
    ask("TRUNCATE ks.truncated").await.expect("truncated");
    LAYERS.engine.get().flush(None).await.expect("flushed");
    ask("CREATE TABLE ks.u (k int PRIMARY KEY, v int)").await.expect("made");
    for k in 0..ROWS {
        ask(&format!("INSERT INTO ks.t (k, v) VALUES ({}, {k})", ROWS + k)).await.expect("written");
        ask(&format!("INSERT INTO ks.u (k, v) VALUES ({k}, {k})")).await.expect("written");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}

/// The paths below `root`, relative to it: files (segments only if they have records), and the
/// directories of logs and tables.
fn paths(root: &Path) -> Vec<PathBuf> {
    fn walk(root: &Path, at: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(at).expect("readable") {
            let path = entry.expect("readable").path();
            let relative = path.strip_prefix(root).expect("below").to_owned();
            if path.is_dir() {
                walk(root, &path, out);
                let is_table = relative.starts_with("data/ks") && relative.components().count() == 3;
                if relative.starts_with("raft") || relative.starts_with("commitlog") || is_table {
                    out.push(relative);
                }
            } else if relative.to_string_lossy().contains("/segment-") {
                if std::fs::read(&path).expect("readable")[64..].iter().any(|byte| *byte != 0) {
                    out.push(relative);
                }
            } else if relative != Path::new("lock")
                && (!relative.starts_with("data") || relative.starts_with("data/ks"))
            {
                out.push(relative);
            }
        }
    }
    let mut out = Vec::new();
    walk(root, root, &mut out);
    out.sort();
    out
}

/// Waits, for a minute at most.
async fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(60));
    while !is_so() {
        assert!(!deadline.is_past(), "it did not come to be within a minute");
        rt::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the inventory names three directories of tables, and epochs and marks of two tables.
fn is_noted(root: &Path) -> bool {
    let text = std::fs::read_to_string(root.join("messina.stamp")).expect("readable");
    let json = &text[text.find('\n').expect("two parts") + 1..];
    let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let inventory = &value["inventory"];
    let has = |field: &str, count: usize| {
        let noted = inventory[field].as_object().map(|map| map.len());
        noted.or(inventory[field].as_array().map(|list| list.len())) == Some(count)
    };
    has("tables", 3) && has("epochs", 2) && has("marks", 2)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    Removed,
    Halved,
    Zeroed,
    Directory,
}

fn damage(path: &Path, damage: Damage) {
    if path.is_dir() {
        return std::fs::remove_dir_all(path).expect("removed");
    }
    let len = std::fs::metadata(path).expect("there").len() as usize;
    match damage {
        Damage::Removed => std::fs::remove_file(path).expect("removed"),
        Damage::Halved => {
            let bytes = std::fs::read(path).expect("readable");
            std::fs::write(path, &bytes[..len / 2]).expect("written");
        }
        Damage::Zeroed => std::fs::write(path, vec![0; len]).expect("written"),
        Damage::Directory => {
            std::fs::remove_file(path).expect("removed");
            std::fs::create_dir(path).expect("made");
        }
    }
}

/// The result of a start with a damaged file: why it was refused, or the rows, or why these could
/// not be read.
fn outcome(path: &Path, accept_loss: bool) -> Result<Result<usize, String>, String> {
    live(path, accept_loss, false, rows)
}

#[test]
fn whatever_is_missing_is_named_or_nothing_is_lost() {
    let scratch = Scratch::new("missing");
    let (home, killed, case) = (scratch.join("stopped"), scratch.join("killed"), scratch.join("case"));
    let (from, to) = (home.clone(), killed.clone());
    live(&home, false, true, move || async move {
        fill().await;
        // What is in the tables' directories is noted soon after it was made.
        wait_until(|| is_noted(&from)).await;
        // The kernel has what a kill would leave.
        copy(&from, &to);
    })
    .expect("the node starts");
    for template in [&home, &killed] {
        copy(template, &case);
        assert_eq!(outcome(&case, false), Ok(Ok(ALL)), "{}: nothing is damaged", template.display());
        std::fs::remove_dir_all(&case).expect("removed");
    }
    let (mut starts, mut refused, mut given_up) = (0, 0, 0);
    for template in [&home, &killed] {
        for path in paths(template) {
            // The sstables are the same in both.
            if path.starts_with("data") && *template == killed {
                continue;
            }
            let is_dir = template.join(&path).is_dir();
            for how in [Damage::Removed, Damage::Halved, Damage::Zeroed, Damage::Directory] {
                // sstable/tests/all/corruption.rs tests other damage of sstables.
                let is_of_sstable = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("me-"));
                if how != Damage::Removed && (is_dir || is_of_sstable) {
                    continue;
                }
                starts += 1;
                let what = format!("{} of {}, {how:?}", path.display(), template.display());
                copy(template, &case);
                damage(&case.join(&path), how);
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                match outcome(&case, false) {
                    Ok(Ok(rows)) => assert_eq!(rows, ALL, "{what}: rows are gone without a word"),
                    Ok(Err(why)) => assert!(why.contains("me-"), "{what}: {why}"),
                    Err(why) => {
                        refused += 1;
                        let parent = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
                        let named = why.contains(&name) || (!parent.is_empty() && why.contains(&*parent));
                        assert!(named, "{what} is not named: {why}");
                        let ways =
                            ["restore", "Restore", "move it away", "--accept-loss", "commitlog_ignore_corruption"];
                        assert!(ways.iter().any(|way| why.contains(way)), "{what}: no way out: {why}");
                        if why.contains("start once with --accept-loss") {
                            assert!(outcome(&case, true).is_ok(), "{what}: there is a way out");
                            assert!(outcome(&case, false).is_ok(), "{what}: once is enough");
                            given_up += 1;
                        }
                    }
                }
                std::fs::remove_dir_all(&case).expect("removed");
            }
        }
    }
    println!("{refused} of {starts} starts were refused, {given_up} of them had --accept-loss as the way out");
    assert!(refused >= 20 && given_up >= 8, "{refused} refused, {given_up} given up");
}

/// The commitlog is removed while the node runs: the stop reports it and flushes all writes, and
/// the next start misses nothing.
#[test]
fn a_commitlog_that_is_removed_while_the_node_runs_loses_nothing() {
    let scratch = Scratch::new("missing-running");
    let log = scratch.join("commitlog");
    let why = live(&scratch, false, true, move || async move {
        fill().await;
        std::fs::remove_dir_all(log).expect("removed");
    });
    let why = why.expect_err("the stop says so");
    assert!(why.contains("while the node ran") && why.contains("all writes are on disk"), "{why}");
    assert!(!why.contains("replay"), "{why}");
    for _ in 0..2 {
        assert_eq!(outcome(&scratch, false), Ok(Ok(ALL)));
    }
}

/// A table's directory is replaced by an older copy, without the record of a later truncation. The
/// truncated rows must not return.
#[test]
fn an_older_copy_of_a_tables_directory_is_refused() {
    let scratch = Scratch::new("missing-older");
    let (home, older) = (scratch.join("home"), scratch.join("older"));
    let dir = |home: &Path| {
        let tables = std::fs::read_dir(home.join("data/ks")).expect("readable");
        let mut tables = tables.map(|entry| entry.expect("readable").path());
        tables.find(|dir| dir.to_string_lossy().contains("/truncated-")).expect("it is there")
    };
    let (from, to) = (home.clone(), older.clone());
    live(&home, false, true, move || async move {
        fill().await;
        copy(&dir(&from), &to);
        ask("INSERT INTO ks.truncated (k, v) VALUES (1, 1)").await.expect("written");
        ask("TRUNCATE ks.truncated").await.expect("truncated");
        let stamp = from.join("messina.stamp");
        // Twice truncated, and that is noted soon.
        let is_noted = || {
            let text = std::fs::read_to_string(&stamp).expect("readable");
            let json = &text[text.find('\n').expect("two parts") + 1..];
            let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
            let written = value["inventory"]["marks_written"].as_object().cloned().unwrap_or_default();
            written.values().any(|shards| shards["0"].as_u64().is_some_and(|times| times >= 2))
        };
        wait_until(is_noted).await;
    })
    .expect("the node starts");
    let marks = dir(&home).join("replay-marks-0");
    let newest = std::fs::read(&marks).expect("readable");
    assert_eq!(outcome(&home, false), Ok(Ok(ALL)));

    std::fs::copy(older.join("replay-marks-0"), &marks).expect("copied");
    let why = outcome(&home, false).expect_err("truncated rows would return");
    assert!(why.contains("replay-marks-0 is older than it was") && why.contains("--accept-loss"), "{why}");
    std::fs::remove_file(&marks).expect("removed");
    std::fs::create_dir(&marks).expect("made");
    let why = outcome(&home, false).expect_err("truncated rows would return");
    assert!(why.contains("replay-marks-0 is a directory") && why.contains("--accept-loss"), "{why}");
    assert!(outcome(&home, true).is_ok() && outcome(&home, false).is_ok(), "once is enough");

    std::fs::write(&marks, newest).expect("written");
    assert!(outcome(&home, false).is_ok());
}

/// Copies the first sstable in the directory of `ks.t` under another generation, without the
/// components `left_out`.
fn copy_sstable(data_dir: &Path, generation: &str, left_out: &[&str]) -> PathBuf {
    let tables = std::fs::read_dir(data_dir.join("data/ks")).expect("readable");
    let mut tables = tables.map(|entry| entry.expect("readable").path());
    let dir = tables.find(|dir| dir.to_string_lossy().contains("/t-")).expect("ks.t is there");
    let names: Vec<String> = std::fs::read_dir(&dir)
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into())
        .collect();
    let toc = names.iter().find(|name| name.ends_with("-big-TOC.txt")).expect("an sstable");
    let own = toc.trim_end_matches("TOC.txt");
    for component in names.iter().filter_map(|name| name.strip_prefix(own)).filter(|name| !left_out.contains(name)) {
        std::fs::copy(dir.join(format!("{own}{component}")), dir.join(format!("me-{generation}-big-{component}")))
            .expect("copied");
    }
    dir
}

/// A directory whose stamp has no inventory starts, and has one afterwards.
#[test]
fn a_directory_without_an_inventory_gets_one() {
    let scratch = Scratch::new("missing-old");
    live(&scratch, false, true, fill).expect("the node starts");
    // No inventory, and nothing that says where the metadata log ends.
    let stamp = scratch.join("messina.stamp");
    let text = std::fs::read_to_string(&stamp).expect("readable");
    let json = &text[text.find('\n').expect("two parts") + 1..];
    let mut value: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert!(value.as_object_mut().expect("fields").remove("inventory").is_some(), "{text}");
    let json = serde_json::to_string_pretty(&value).expect("JSON") + "\n";
    std::fs::write(&stamp, format!("messina stamp 2 {:08x}\n{json}", crc32fast::hash(json.as_bytes())))
        .expect("written");
    std::fs::remove_file(scratch.join("messina.raft-end")).expect("removed");

    // Even of such a directory it is known that there were metadata.
    let raft = scratch.join("raft");
    std::fs::rename(&raft, scratch.join("elsewhere")).expect("moved");
    let why = outcome(&scratch, false).expect_err("the metadata is gone");
    assert!(why.contains("raft is missing, although there is") && why.contains("--accept-loss"), "{why}");
    assert!(!raft.exists(), "a start that is refused makes nothing that is in the way of the missing files");
    std::fs::rename(scratch.join("elsewhere"), &raft).expect("moved back");

    assert_eq!(outcome(&scratch, false), Ok(Ok(ALL)));
    assert!(std::fs::read_to_string(&stamp).expect("readable").contains("inventory"));
    assert!(scratch.join("messina.raft-end").exists());
    assert!(std::fs::read_to_string(&stamp).expect("readable").contains(r#""alone": true"#));

    // An sstable that cannot be opened stays where it is, and its table is not read without it.
    let table = copy_sstable(&scratch, "77", &["TOC.txt", "Checksums.db", "Statistics.db"]);
    for _ in 0..2 {
        let why = outcome(&scratch, false).expect("it starts").expect_err("it may have had rows");
        assert!(why.contains("me-77-big-TOC.txt") && why.contains("Checksums.db is missing"), "{why}");
        assert!(table.join("me-77-big-Data.db").exists());
    }
}

/// All files of an sstable are removed. Its table cannot be read until the loss is accepted, once.
#[test]
fn an_sstable_without_any_file_is_missed_until_its_loss_is_accepted() {
    let scratch = Scratch::new("missing-sstable");
    live(&scratch, false, true, fill).expect("the node starts");
    // A copy of an sstable that is lost at the next start.
    let table = copy_sstable(&scratch, "77", &[]);
    assert_eq!(outcome(&scratch, false), Ok(Ok(ALL)));
    let own = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("me-"));
    let files = std::fs::read_dir(&table).expect("readable").map(|entry| entry.expect("readable").path()).filter(own);
    files.for_each(|path| std::fs::remove_file(path).expect("removed"));
    for _ in 0..2 {
        let why = outcome(&scratch, false).expect("it starts").expect_err("rows are missing");
        assert!(why.contains("all files of the sstable") && why.contains("--accept-loss"), "{why}");
    }
    let left = outcome(&scratch, true).expect("it starts").expect("the loss is accepted");
    assert!(left < ALL, "{left} rows");
    assert_eq!(outcome(&scratch, false), Ok(Ok(left)), "once is enough");
}

/// Operators move tables to other volumes and leave links. A table is missing only if its link is
/// broken.
#[test]
fn a_table_behind_a_link_is_not_missing() {
    let (scratch, other) = (Scratch::new("missing-link"), Scratch::new("missing-volume"));
    live(&scratch, false, true, fill).expect("the node starts");
    let tables = std::fs::read_dir(scratch.join("data/ks")).expect("readable");
    let tables = tables.map(|entry| entry.expect("readable").path());
    let is_t = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("t-"));
    let dir = tables.into_iter().find(is_t).expect("it has sstables");
    let moved = other.join("moved");
    copy(&dir, &moved);
    std::fs::remove_dir_all(&dir).expect("removed");
    std::os::unix::fs::symlink(&moved, &dir).expect("linked");
    for _ in 0..2 {
        assert_eq!(outcome(&scratch, false), Ok(Ok(ALL)));
    }
    std::fs::rename(&moved, other.join("unmounted")).expect("moved");
    let why = outcome(&scratch, false).expect_err("its rows would be gone");
    assert!(why.contains(&*dir.to_string_lossy()), "{why}");
    std::fs::rename(other.join("unmounted"), &moved).expect("moved back");
    assert_eq!(outcome(&scratch, false), Ok(Ok(ALL)));
}

/// A copy of what a kill leaves of a node with [`fill`]'s rows.
fn killed(home: &Path, to: &Path) {
    let (from, to) = (home.to_owned(), to.to_owned());
    live(home, false, true, move || async move {
        fill().await;
        wait_until(|| is_noted(&from)).await;
        copy(&from, &to);
    })
    .expect("the node starts");
}

/// The only run of the commitlog of shard 0.
fn run_of(home: &Path) -> PathBuf {
    let mut runs = std::fs::read_dir(home.join("commitlog/0")).expect("readable");
    let run = runs.next().expect("one run").expect("readable").path();
    run.strip_prefix(home).expect("below").to_owned()
}

/// What an operator moves to another disk and links is found, replayed and written there.
#[test]
fn logs_behind_links_are_not_missing() {
    let scratch = Scratch::new("missing-linked-log");
    let (template, case, disk) = (scratch.join("killed"), scratch.join("case"), scratch.join("disk"));
    killed(&scratch.join("home"), &template);
    let run = run_of(&template);
    let parts = ["commitlog", "commitlog/0", "raft", "data", "data/ks"].map(PathBuf::from);
    for part in parts.into_iter().chain([run]) {
        copy(&template, &case);
        std::fs::rename(case.join(&part), &disk).expect("moved");
        std::os::unix::fs::symlink(&disk, case.join(&part)).expect("linked");
        for _ in 0..2 {
            assert_eq!(outcome(&case, false), Ok(Ok(ALL)), "{}", part.display());
        }
        std::fs::remove_dir_all(&case).expect("removed");
        assert!(disk.exists(), "{}", part.display());
        std::fs::remove_dir_all(&disk).expect("removed");
    }
    // The disk is not mounted, and nothing else shows that there was a log.
    copy(&template, &case);
    std::os::unix::fs::symlink(&disk, case.join("commitlog/7")).expect("linked");
    let why = outcome(&case, false).expect_err("there may be a log");
    assert!(why.contains("commitlog/7") && why.contains("move it away"), "{why}");
}

/// The directory of a table of `ks`, relative to the data directory.
fn table_dir(home: &Path, table: &str) -> PathBuf {
    let tables = std::fs::read_dir(home.join("data/ks")).expect("readable");
    let mut tables = tables.map(|entry| entry.expect("readable").path());
    let is_it = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(table));
    tables.find(is_it).expect("it is there").strip_prefix(home).expect("below").to_owned()
}

/// Files of one node replace those of another. No start accepts them.
#[test]
fn files_of_another_node_are_refused() {
    let scratch = Scratch::new("missing-foreign");
    let (mine, other, case) = (scratch.join("mine"), scratch.join("other"), scratch.join("case"));
    killed(&scratch.join("home"), &mine);
    // The second node is younger, so its truncations come after all log records of the first.
    killed(&scratch.join("home2"), &other);
    let log = |home: &Path| {
        let names = std::fs::read_dir(home.join("raft")).expect("readable");
        let names = names.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned());
        PathBuf::from("raft").join(names.filter(|name| name.starts_with("log-")).max().expect("a log"))
    };
    let (theirs, own) = (table_dir(&other, "truncated-"), table_dir(&mine, "truncated-"));
    let without_marks = table_dir(&mine, "t-");
    let run = run_of(&other);
    let same = |path: &str| (PathBuf::from(path), PathBuf::from(path));
    let of_table = |name: &str, dir: &Path| (theirs.join(name), dir.join(name));
    // The source, the destination, the name in the error, and the rows after a start that accepts
    // the loss, if none can be lost.
    let cases = [
        (same("raft"), "raft/", None),
        ((log(&other), log(&mine)), "raft/log-", None),
        (same("raft/snapshot"), "raft/snapshot", None),
        (same("messina.raft-end"), "messina.raft-end", Some(ALL)),
        ((run.clone(), run), "manifest", Some(ALL)),
        (of_table("replay-marks-0", &own), "replay-marks-0", None),
        (of_table("replay-marks-0", &without_marks), "replay-marks-0", Some(ALL)),
        ((own.join("replay-marks-0"), without_marks.join("replay-marks-0")), "replay-marks-0", Some(ALL)),
        ((theirs.clone(), own.clone()), "replay-marks-0", None),
    ];
    for ((from, to), named, rows) in cases {
        copy(&mine, &case);
        let (source, target) = (if from.starts_with(&own) { &mine } else { &other }, case.join(&to));
        if target.is_dir() {
            std::fs::remove_dir_all(&target).expect("removed");
        }
        match source.join(&from).is_dir() {
            true => copy(&source.join(&from), &target),
            false => drop(std::fs::copy(source.join(&from), &target).expect("copied")),
        }
        let what = format!("{} as {}", from.display(), to.display());
        let why = outcome(&case, false).expect_err(&what);
        assert!(why.contains(named), "{what}: {why}");
        assert!(why.contains("of another node") || why.contains("of another table"), "{what}: {why}");
        assert!(why.contains("--accept-loss") || why.contains("commitlog_ignore_corruption"), "{what}: {why}");
        let found = outcome(&case, true).unwrap_or_else(|why| panic!("{what}: {why}"));
        if let Some(rows) = rows {
            assert_eq!(found, Ok(rows), "{what}");
        }
        assert!(outcome(&case, false).is_ok(), "{what}: once is enough");
        std::fs::remove_dir_all(&case).expect("removed");
    }
}

/// A link to nothing and a link to itself have the place of each file and directory that a start
/// opens.
#[test]
fn broken_links_are_named_with_a_remedy() {
    let scratch = Scratch::new("missing-broken-link");
    let (template, case) = (scratch.join("killed"), scratch.join("case"));
    killed(&scratch.join("home"), &template);
    let mut paths = paths(&template);
    paths.push("lock".into());
    paths.retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("me-")));
    for path in paths {
        let name = path.file_name().expect("a name").to_owned();
        for target in [Path::new("/nothing/here"), Path::new(&name)] {
            copy(&template, &case);
            let link = case.join(&path);
            if link.is_dir() {
                std::fs::remove_dir_all(&link).expect("removed");
            } else {
                let _ = std::fs::remove_file(&link);
            }
            std::os::unix::fs::symlink(target, &link).expect("linked");
            let what = format!("{} -> {}", path.display(), target.display());
            match outcome(&case, false) {
                Ok(rows) => assert_eq!(rows, Ok(ALL), "{what}"),
                Err(why) => {
                    assert!(why.contains(&*name.to_string_lossy()), "{what} is not named: {why}");
                    let ways = ["estore", "move it away", "--accept-loss", "commitlog_ignore_corruption"];
                    assert!(ways.iter().any(|way| why.contains(way)), "{what}: no way out: {why}");
                }
            }
            std::fs::remove_dir_all(&case).expect("removed");
        }
    }
}
