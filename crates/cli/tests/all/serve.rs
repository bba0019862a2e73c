//! The binary in use: start, administration, refusals, stop.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A node on its own loopback address. Killed when dropped.
struct Node {
    process: Child,
    address: String,
    data: PathBuf,
}

fn messina() -> Command {
    Command::new(env!("CARGO_BIN_EXE_messina"))
}

/// A loopback address (127.0.0.0/8) for this test of this process.
fn address(test: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 100 + test, (pid >> 8) & 0xFF, (pid & 0xFF).max(1))
}

fn serve(address: &str, data: &Path) -> Command {
    let mut command = messina();
    command.arg("serve").arg("--data-dir").arg(data);
    for key in ["--rpc-address", "--listen-address", "--api-address", "--prometheus-address"] {
        command.args([key, address]);
    }
    command.args(["--shards", "2", "--memory", "256M", "--overprovisioned", "--log-format", "json"]);
    command
}

impl Node {
    fn start(test: u8) -> Node {
        let address = address(test);
        let data = std::env::temp_dir().join(format!("messina-cli-{}-{test}", std::process::id()));
        let mut process =
            serve(&address, &data).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let out = process.stdout.take().expect("piped");
        let first = BufReader::new(out).lines().next().expect("a line").expect("readable");
        assert!(first.contains("is ready after"), "{first}");
        Node { process, address, data }
    }

    fn admin(&self, arguments: &[&str]) -> Output {
        let api = format!("http://{}:10000", self.address);
        messina().args(["admin", "--api", &api]).args(arguments).output().expect("the binary runs")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_node_is_started_administered_and_stopped() {
    let mut node = Node::start(1);
    let status = node.admin(&["--json", "status"]);
    assert!(status.status.success());
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let own = &status[0];
    assert_eq!(
        (status.as_array().map(Vec::len), own["up"].as_bool(), own["state"].as_str()),
        (Some(1), Some(true), Some("normal"))
    );
    assert_eq!(own["host_id"].as_str().map(str::len), Some(36));
    let shown = text(&node.admin(&["status"]).stdout);
    assert!(shown.lines().any(|line| line.starts_with("UN") && line.contains(&node.address)), "{shown}");
    let cluster = text(&node.admin(&["describecluster"]).stdout);
    assert!(cluster.lines().any(|line| line.starts_with("Name") && line.ends_with(": Messina")), "{cluster}");

    let tables = text(&node.admin(&["tables"]).stdout);
    assert!(tables.lines().any(|line| line == "system_traces:sessions"), "{tables}");
    for arguments in [
        &["flush"][..],
        &["flush", "system_traces", "events", "sessions"],
        &["compact", "system_traces"],
        &["cleanup"],
        &["cleanup", "system_traces", "events"],
        &["stop", "compaction"],
        &["stop", "CLEANUP", "system_traces", "events"],
        &["autocompaction", "disable", "system_traces"],
        &["autocompaction", "enable", "system_traces", "events"],
        &["snapshot", "--tag", "one", "system_traces"],
        &["loglevel", "root", "debug"],
    ] {
        let done = node.admin(arguments);
        assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    }
    assert_eq!(text(&node.admin(&["loglevel", "root"]).stdout).trim(), "debug");
    assert!(text(&node.admin(&["listsnapshots"]).stdout).starts_with("one: system_traces."));
    assert_eq!(text(&node.admin(&["compactions"]).stdout), "pending: 0\n");
    let compactions: serde_json::Value =
        serde_json::from_slice(&node.admin(&["--json", "compactions"]).stdout).expect("JSON");
    assert_eq!((compactions["pending"].as_u64(), compactions["running"].as_array().map(Vec::len)), (Some(0), Some(0)));
    let history = node.admin(&["--json", "compactionhistory"]);
    let history: serde_json::Value = serde_json::from_slice(&history.stdout).expect("JSON");
    assert!(history.is_array(), "{history}");
    for (arguments, why) in [
        (&["stop", "COMPACTION", "nowhere"][..], "Can't find a keyspace nowhere"),
        (&["flush", "nowhere"], "Can't find a keyspace nowhere"),
        (&["flush", "system_traces", "nothing"], "Can't find a column family nothing in keyspace system_traces"),
        (&["snapshot", "--tag", "one", "system_traces"], "snapshot one already exists"),
        (&["clearsnapshot"], "(--tag NAME), or give --all"),
    ] {
        let refused = node.admin(arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        assert!(text(&refused.stderr).contains(why), "{arguments:?}: {}", text(&refused.stderr));
    }
    assert!(node.admin(&["clearsnapshot", "--tag", "one"]).status.success());
    assert_eq!(text(&node.admin(&["listsnapshots"]).stdout), "");

    let metrics = ureq::get(format!("http://{}:9180/metrics", node.address)).call().expect("served");
    let metrics = metrics.into_body().read_to_string().expect("text");
    assert!(metrics.contains("scylla_node_operation_mode{shard=\"1\"} 3\n"), "{metrics}");

    let same_ports = serve(&node.address, &node.data.join("other")).output().expect("the binary runs");
    assert!(!same_ports.status.success());
    assert!(text(&same_ports.stderr).contains("is a node already running?"), "{}", text(&same_ports.stderr));
    let same_data = serve(&address(2), &node.data).output().expect("the binary runs");
    assert!(text(&same_data.stderr).contains("is in use by another process"), "{}", text(&same_data.stderr));

    let killed = Command::new("kill").args(["-TERM", &node.process.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert!(node.process.wait().expect("ended").success());
}

#[test]
fn invalid_configurations_are_refused_with_a_reason() {
    for (arguments, why) in [
        (&["--memory", "little"][..], "--memory: 'little' is not a size"),
        (&["--config", "/nowhere/messina.yaml"], "cannot read /nowhere/messina.yaml"),
        (&["--rpc-address", "0.0.0.0"], "broadcast_rpc_address"),
        (&["--no-such-thing"], "unexpected argument"),
        (&["--client-encryption-options", "enabeld=true"], "unknown option enabeld; did you mean enabled?"),
        (
            &["--client-encryption-options", "enabled=true,certificate=/nowhere/c,keyfile=/nowhere/k"],
            "client_encryption_options: keyfile: /nowhere/k: No such file",
        ),
        (&["--cpuset", "4095"], "cpuset: this process cannot run on CPU 4095. It can run on "),
        (
            &["--memory", "64M", "--shards", "100"],
            "64MiB of memory is not enough for 100 shards: each needs at least 16MiB",
        ),
        (&["--cpuset", "4095", "--overprovisioned"], "cpuset: this process cannot run on CPU 4095"),
    ] {
        let refused = messina().arg("serve").args(arguments).output().expect("the binary runs");
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
    }
}

#[test]
fn settings_that_do_not_work_are_warned_of() {
    let address = address(3);
    let data = std::env::temp_dir().join(format!("messina-cli-{}-warned", std::process::id()));
    let log = data.with_extension("log");
    let process = serve(&address, &data)
        .args(["--hinted-handoff-enabled", "perhaps", "--hints-directory", "/proc/nope"])
        .args(["--commitlog-total-space-in-mb", "1"])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).expect("created"))
        .spawn()
        .expect("the binary runs");
    let mut node = Node { process, address, data };
    let out = node.process.stdout.take().expect("piped");
    let first = BufReader::new(out).lines().next().expect("a line").expect("readable");
    assert!(first.contains("is ready after"), "{first}");
    let logged = std::fs::read_to_string(&log).expect("read");
    for warning in [
        "hinted_handoff_enabled lists datacenters without nodes",
        "hints cannot be stored in hints_directory",
        "1MiB is not enough for 2 shards",
    ] {
        assert!(logged.lines().any(|line| line.contains("WARN") && line.contains(warning)), "{warning}: {logged}");
    }
    let _ = std::fs::remove_file(log);
}

#[test]
fn an_unreachable_node_is_reported() {
    let output = messina().args(["admin", "--api", "http://127.0.0.1:1", "status"]).output().expect("the binary runs");
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("cannot reach a node at http://127.0.0.1:1"), "{}", text(&output.stderr));
}
