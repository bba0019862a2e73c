//! Every file of a node's data directory is removed, cut in half and zeroed, one at a time, after a stop and after a kill: the next start
//! is refused and names it, or nothing that was acknowledged is gone.
#![recursion_limit = "256"]

use cluster::coordinator::PageLimits;
use cluster::metadata::NodeInfo;
use cql::Processor;
use cql::api::{AnswerKind, ClientState, QueryParams};
use engine::Engine;
use engine::commitlog::SyncMode;
use model::HostId;
use replica::ReplicaConfig;
use rt::{Machine, MachineConfig, ShardId};
use server::stack::{self, StackConfig};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

const ROWS: i32 = 20;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("messina-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(path: &Path, accept_loss: bool) -> StackConfig {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    StackConfig {
        data_dir: path.to_owned(),
        cluster: None,
        info: NodeInfo {
            host_id: HostId::from_bytes([0; 16]),
            cluster_name: "missing".into(),
            shards: 0,
            datacenter: "dc1".into(),
            rack: "r1".into(),
            rpc_address: address,
            listen_address: address,
            broadcast_address: address,
            native_port: 9042,
            shard_aware_port: 19042,
            storage_port: 7000,
            release_version: "4.1.0".into(),
            started_micros: rt::time::wall_micros(),
        },
        memory_per_shard: 16 << 20,
        sync: SyncMode::Batch,
        segment_size: 128 << 10,
        log_size_limit: 2 << 20,
        accept_loss,
        disk_reserve: 0,
        ignore_log_corruption: accept_loss,
        auto_snapshot: false,
        auto_compaction: false,
        page_limits: PageLimits::default(),
        tombstone_warn_threshold: u64::MAX,
        replica: ReplicaConfig::with_memory(16 << 20),
        compaction_throughput: 0,
        open_files: 0,
        language: cql::Config::default(),
    }
}

/// Starts a node alone, has it do `work`, and ends it; as a stop does if `stops`, else as it is.
fn live<T: Send + 'static, F: Future<Output = T> + 'static>(
    path: &Path,
    accept_loss: bool,
    stops: bool,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<T, String> {
    let machine = MachineConfig { shards: 1, overprovisioned: true, ..MachineConfig::default() };
    let machine = Machine::start(machine, |_| async { rt::shard::stopping().cancelled().await }).expect("it starts");
    let (remote, config) = (machine.remote(), config(path, accept_loss));
    let done = rt::block_on(async {
        let done = remote.call(ShardId(0), move || async move {
            let stack = stack::start(config).await.map_err(|error| error.to_string())?;
            let done = work().await;
            if stops {
                stack::stop().await.map_err(|error| error.to_string())?;
            }
            drop(stack);
            Ok(done)
        });
        done.await.expect("it runs")
    });
    machine.stop();
    machine.join().expect("no shard fails");
    done
}

async fn ask(text: &str) -> Result<AnswerKind, String> {
    let client = Rc::new(ClientState {
        keyspace: Default::default(),
        role: Default::default(),
        address: None,
        tablets_routing: Default::default(),
        cancel: rt::sync::Cancel::new(),
        identity: Default::default(),
    });
    let answer = rt::shard::service::<Processor>().query(&client, text, &QueryParams::default()).await;
    answer.map(|answer| answer.kind).map_err(|error| format!("{text}: {error}"))
}

/// How many rows both tables have.
async fn rows() -> Result<usize, String> {
    let mut all = 0;
    for table in ["t", "u"] {
        let AnswerKind::Rows(rows) = ask(&format!("SELECT k FROM ks.{table}")).await? else {
            return Err("no rows".into());
        };
        all += rows.count as usize;
    }
    Ok(all)
}

/// Rows in sstables, rows in the log, and a table of which there is only a log.
async fn fill() {
    let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 1}}")).await.expect("made");
    ask("CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await.expect("made");
    for k in 0..ROWS {
        ask(&format!("INSERT INTO ks.t (k, v) VALUES ({k}, {k})")).await.expect("written");
    }
    rt::shard::service::<Engine>().flush(None).await.expect("flushed");
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

/// The paths below `root`, relative to it: files (of segments those with records), and directories of logs and tables.
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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    Removed,
    Halved,
    Zeroed,
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
    }
}

/// What became of a directory with a damaged file: why the start was refused, else the rows or why they could not be read.
fn outcome(path: &Path, accept_loss: bool) -> Result<Result<usize, String>, String> {
    live(path, accept_loss, false, rows)
}

#[test]
fn whatever_is_missing_is_named_or_nothing_is_lost() {
    let scratch = Scratch::new("missing");
    let (home, killed, case) = (scratch.0.join("stopped"), scratch.0.join("killed"), scratch.0.join("case"));
    let (from, to) = (home.clone(), killed.clone());
    live(&home, false, true, move || async move {
        fill().await;
        // That there is a directory is noted soon after it was made.
        let is_noted = |table: &Path| {
            let (name, stamp) = (table.to_string_lossy(), std::fs::read_to_string(from.join("messina.stamp")));
            let id = name.rsplit_once('-').expect("an id").1.to_owned();
            stamp.expect("readable").replace('-', "").contains(&id)
        };
        let table =
            std::fs::read_dir(from.join("data/ks")).expect("made").next().expect("one").expect("readable").path();
        while !is_noted(&table) {
            rt::time::sleep(rt::time::Duration::from_millis(5)).await;
        }
        // The kernel has what a kill would leave.
        copy(&from, &to);
    })
    .expect("the node starts");
    let all = 3 * ROWS as usize;
    for template in [&home, &killed] {
        copy(template, &case);
        assert_eq!(outcome(&case, false), Ok(Ok(all)), "{}: nothing is damaged", template.display());
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
            for how in [Damage::Removed, Damage::Halved, Damage::Zeroed] {
                // What else may befall sstables, sstable/tests/corruption.rs tries.
                if how != Damage::Removed && (is_dir || path.starts_with("data")) {
                    continue;
                }
                starts += 1;
                let what = format!("{} of {}, {how:?}", path.display(), template.display());
                copy(template, &case);
                damage(&case.join(&path), how);
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                match outcome(&case, false) {
                    Ok(Ok(rows)) => assert_eq!(rows, all, "{what}: rows are gone without a word"),
                    Ok(Err(why)) => assert!(why.contains("me-"), "{what}: {why}"),
                    Err(why) => {
                        refused += 1;
                        let parent = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
                        let named = why.contains(&name) || (!parent.is_empty() && why.contains(&*parent));
                        assert!(named, "{what} is not named: {why}");
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

/// A directory without an inventory starts, and has one afterwards.
#[test]
fn a_directory_of_an_earlier_release_gets_an_inventory() {
    let scratch = Scratch::new("missing-old");
    live(&scratch.0, false, true, fill).expect("the node starts");
    // As the release before wrote it: no inventory, and nothing that says where the log of the metadata ends.
    let stamp = scratch.0.join("messina.stamp");
    let text = std::fs::read_to_string(&stamp).expect("readable");
    let json = &text[text.find('\n').expect("two parts") + 1..];
    let mut value: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert!(value.as_object_mut().expect("fields").remove("inventory").is_some(), "{text}");
    let json = serde_json::to_string_pretty(&value).expect("JSON") + "\n";
    std::fs::write(&stamp, format!("messina stamp 2 {:08x}\n{json}", crc32fast::hash(json.as_bytes())))
        .expect("written");
    std::fs::remove_file(scratch.0.join("messina.raft-end")).expect("removed");

    // Even of such a directory it is known that there were metadata.
    let raft = scratch.0.join("raft");
    std::fs::rename(&raft, scratch.0.join("elsewhere")).expect("moved");
    let why = outcome(&scratch.0, false).expect_err("the metadata is gone");
    assert!(why.contains("raft is missing, although there is") && why.contains("--accept-loss"), "{why}");
    std::fs::remove_dir_all(&raft).expect("removed");
    std::fs::rename(scratch.0.join("elsewhere"), &raft).expect("moved back");

    assert_eq!(outcome(&scratch.0, false), Ok(Ok(3 * ROWS as usize)));
    assert!(std::fs::read_to_string(&stamp).expect("readable").contains("inventory"));
    assert!(scratch.0.join("messina.raft-end").exists());
}
