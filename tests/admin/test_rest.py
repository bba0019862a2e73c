"""The admin REST interface under ScyllaDB's paths, as scripts use it, and `messina admin`, which
uses the same paths."""

import json
import pathlib
import re
import subprocess
import time
import uuid

import pytest
from database import Database
from launch import Node, binary

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def running():
    node = Node(shards=2)
    try:
        node.start()
        yield node
        assert node.alive(), node.log_tail()
    finally:
        node.close()


@pytest.fixture(scope="module")
def filled(running):
    """A database with a table `t` of 100 rows, half of them in sstables."""
    db = Database(running.address)
    db.table(
        "pk int PRIMARY KEY, v text",
        name="t",
        options=(
            "WITH compaction = {'class': 'LeveledCompactionStrategy'} AND compression ="
            " {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': 8}"
        ),
    )
    db.table("pk int PRIMARY KEY, v text", name="u")
    for pk in range(100):
        if pk == 50:
            running.flush(db.keyspace)
        db.execute(f"INSERT INTO t (pk, v) VALUES ({pk}, 'x')")
    yield db
    db.close()


class Rest:
    def __init__(self, node):
        self.node = node

    def ask(self, method, path, status=200):
        got, body = self.node.admin(method, path)
        assert got == status, f"{method} {path}: {got} {body}"
        return json.loads(body)

    def get(self, path):
        return self.ask("GET", path)

    def refused(self, method, path, status, message):
        answer = self.ask(method, path, status)
        assert (
            set(answer) == {"message", "code"}
            and answer["code"] == status
            and message in answer["message"]
        ), f"{path}: {answer}"


@pytest.fixture
def rest(running):
    return Rest(running)


def test_the_node(rest, running, filled):
    local = filled.execute("SELECT * FROM system.local").one()
    assert rest.get("/storage_service/hostid/local") == str(local.host_id)
    assert rest.get("/storage_service/host_id") == [
        {"key": running.address, "value": str(local.host_id)}
    ]
    assert rest.get("/storage_service/release_version") == local.release_version
    assert rest.get("/storage_service/cluster_name") == local.cluster_name == "messina test"
    assert rest.get("/storage_service/partitioner_name") == local.partitioner
    assert rest.get("/storage_service/schema_version") == str(local.schema_version)
    assert rest.get("/storage_proxy/schema_versions") == [
        {"key": str(local.schema_version), "value": [running.address]}
    ]
    assert rest.get("/storage_service/generation_number") == local.gossip_generation
    assert rest.get("/storage_service/operation_mode") == "NORMAL"
    for path, answer in {"native_transport": True, "join_ring": True, "is_initialized": True,
            "is_starting": False, "gossiping": False, "rpc_server": False,
                         "incremental_backups": False, "metrics/exceptions": 0,
                         "compaction_throughput": 0, "stream_throughput": 0,
                         "nodes/joining": [], "nodes/leaving": [], "nodes/moving": []}.items():
        assert rest.get(f"/storage_service/{path}") == answer, path
    assert rest.get("/storage_service/data_file_locations") == [str(running.data_dir / "data")]
    assert 0 < rest.get("/system/uptime_ms") < 600_000
    assert (
        rest.get("/system/chosen_sstable_version")
        == rest.get("/system/highest_supported_sstable_version")
        == "me"
    )
    assert (
        rest.get("/v2/config/cluster_name") == "messina test"
        and rest.get("/v2/config/api_port") == 10000
    )
    rest.refused("GET", "/v2/config/no_such_key", 404, "no_such_key")
    load = rest.get("/storage_service/load")
    assert load > 0 and rest.get("/storage_service/load_map")[0]["key"] == running.address
    for path, answer in {"datacenter": local.data_center, "rack": local.rack}.items():
        assert (
            rest.get(f"/snitch/{path}")
            == rest.get(f"/snitch/{path}?host={running.address}")
            == answer
        )
    rest.refused("GET", "/snitch/rack?host=1.2.3.4", 400, "1.2.3.4")
    assert (
        rest.get("/gossiper/endpoint/live") == [running.address]
        and rest.get("/gossiper/endpoint/down") == []
    )
    (gossip,) = rest.get("/failure_detector/endpoints")
    states = {one["application_state"]: one["value"] for one in gossip["application_state"]}
    assert (
        gossip["addrs"] == running.address
        and gossip["is_alive"]
        and states[12] == str(local.host_id)
        and states[3] == local.data_center
    )
    for kind in ("pending", "sent", "dropped", "respond_pending", "respond_completed"):
        assert rest.get(f"/messaging_service/messages/{kind}") == []
    assert rest.get("/stream_manager/") == rest.get("/cluster/moves") == []
    assert (
        rest.get("/stream_manager/metrics/incoming")
        == rest.get("/stream_manager/metrics/outgoing")
        == 0
    )
    assert rest.get("/storage_service/stream_throughput") == 0
    assert rest.ask("POST", "/storage_service/quiesce_topology") is None
    rest.refused("POST", "/storage_service/rebuild?source_dc=dc1", 400, "all replicas")


def test_tokens(rest, running, filled):
    shown = sorted(filled.one("SELECT tokens FROM system.local"), key=int)
    assert (
        sorted(rest.get("/storage_service/tokens"), key=int)
        == sorted(rest.get(f"/storage_service/tokens/{running.address}"), key=int)
        == shown
    )
    assert rest.get("/storage_service/tokens/1.2.3.4") == []
    assert {
        one["key"]: one["value"] for one in rest.get("/storage_service/tokens_endpoint")
    } == dict.fromkeys(shown, running.address)
    tablets = sorted(
        filled.column(
            "SELECT last_token FROM system.tablets WHERE table_name = 't' AND keyspace_name ="
            f" '{filled.keyspace}' ALLOW FILTERING"
        )
    )
    of_table = rest.get(f"/storage_service/tokens_endpoint?keyspace={filled.keyspace}&cf=t")
    assert [int(one["key"]) for one in of_table] == tablets
    for path, ends in (
        (f"{filled.keyspace}?table=t", tablets),
        (filled.keyspace, [int(token) for token in shown]),
    ):
        ring = rest.get(f"/storage_service/describe_ring/{path}")
        assert sorted(int(one["end_token"]) for one in ring) == ends
        assert len({one["start_token"] for one in ring}) == len(ring)
        assert all(
            one["endpoints"] == [running.address] and one["endpoint_details"][0]["rack"] == "rack1"
            for one in ring
        )
    for path in ("ownership", f"ownership/{filled.keyspace}"):
        assert [
            (one["key"], float(one["value"])) for one in rest.get(f"/storage_service/{path}")
        ] == [(running.address, 1.0)]
    assert rest.get(f"/storage_service/natural_endpoints/{filled.keyspace}?cf=t&key=42") == [
        running.address
    ]
    rest.refused("GET", f"/storage_service/natural_endpoints/{filled.keyspace}?cf=t", 400, "key")
    rest.refused("GET", "/storage_service/describe_ring/no_such_keyspace", 400, "no_such_keyspace")


def test_keyspaces_and_tables(rest, filled):
    keyspaces = rest.get("/storage_service/keyspaces")
    assert {"system", "system_schema", "system_traces", filled.keyspace} <= set(
        keyspaces
    ) and keyspaces == sorted(keyspaces)
    user = rest.get("/storage_service/keyspaces?type=user")
    assert filled.keyspace in user and not any(name.startswith("system") for name in user)
    assert "system" not in rest.get("/storage_service/keyspaces?type=non_local_strategy")
    assert {"ks": filled.keyspace, "cf": "t", "type": "ColumnFamilies"} in rest.get(
        "/column_family/"
    )
    assert f"{filled.keyspace}:t" in rest.get("/column_family/name")
    assert rest.get("/column_family/name/keyspace").count(filled.keyspace) == 1
    name = f"{filled.keyspace}:t"
    assert rest.get(f"/column_family/compaction_strategy/{name}") == "LeveledCompactionStrategy"
    assert (
        rest.get(f"/column_family/minimum_compaction/{name}") == 4
        and rest.get(f"/column_family/maximum_compaction/{name}") == 32
    )
    assert {"key": "chunk_length_in_kb", "value": "8"} in rest.get(
        f"/column_family/compression_parameters/{name}"
    )
    assert rest.get(f"/column_family/built_indexes/{name}") == []


def test_autocompaction(rest, filled):
    name = f"{filled.keyspace}:u"
    path = f"/column_family/autocompaction/{name}"
    for method, on in (("DELETE", False), ("POST", True)):
        rest.ask(method, path)
        assert rest.get(path) is on
        rest.ask(
            "POST" if method == "DELETE" else "DELETE",
            f"/storage_service/auto_compaction/{filled.keyspace}?cf=u",
        )
        assert rest.get(path) is not on
    rest.ask("POST", path)


def test_work_on_tables(rest, filled, running):
    name = f"{filled.keyspace}:t"
    rest.ask("POST", f"/storage_service/keyspace_flush/{filled.keyspace}?cf=t")
    assert rest.get(f"/column_family/metrics/memtable_live_data_size/{name}") == 0
    rest.ask("POST", f"/column_family/major_compaction/{name}")
    for operation in ("keyspace_compaction", "keyspace_flush", "keyspace_cleanup"):
        rest.ask("POST", f"/storage_service/{operation}/{filled.keyspace}?cf=t,u")
        rest.ask("POST", f"/storage_service/{operation}/system")
        rest.refused(
            "POST",
            f"/storage_service/{operation}/no_such_keyspace",
            400,
            "Can't find a keyspace no_such_keyspace",
        )
        rest.refused(
            "POST",
            f"/storage_service/{operation}/{filled.keyspace}?cf=t,nothing",
            400,
            "Can't find a column family nothing",
        )
    assert rest.get(f"/column_family/metrics/live_ss_table_count/{name}") > 0
    rest.ask("POST", f"/storage_service/snapshots?tag=rest&kn={filled.keyspace}&cf=t")
    (snapshot,) = [one for one in rest.get("/storage_service/snapshots") if one["key"] == "rest"]
    assert [(one["ks"], one["cf"]) for one in snapshot["value"]] == [
        (filled.keyspace, "t")
    ] and snapshot["value"][0]["total"] > 0
    filled.execute("TRUNCATE t")
    assert rest.get("/storage_service/snapshots/size/true") > 0
    rest.ask("DELETE", f"/storage_service/snapshots?tag=rest&kn={filled.keyspace}")
    assert not [one for one in rest.get("/storage_service/snapshots") if one["key"] == "rest"]


def test_wrong_names(rest, filled):
    for path in ("autocompaction", "major_compaction"):
        rest.refused(
            "POST",
            f"/column_family/{path}/{filled.keyspace}",
            400,
            "Column family name should be in keyspace:column_family format",
        )
        rest.refused(
            "POST",
            f"/column_family/{path}/{filled.keyspace}.t",
            400,
            "Column family name should be in keyspace:column_family format",
        )
        rest.refused(
            "POST",
            f"/column_family/{path}/{filled.keyspace}XXX:t",
            400,
            "Can't find a column family",
        )
        rest.refused(
            "POST",
            f"/column_family/{path}/{filled.keyspace}:tXXX",
            400,
            "Can't find a column family",
        )
    rest.refused("GET", "/storage_service/no_such_path", 404, "/storage_service/no_such_path")
    rest.refused("GET", "/cache_service/metrics/row/nonsense", 404, "nonsense")
    rest.refused("DELETE", "/storage_service/keyspaces", 400, "DELETE")
    rest.refused("POST", "/system/logger/server?level=info&level=debug", 400, "duplicate field")
    rest.refused("GET", "/column_family/metrics/live_sstable_count/%ff", 400, "UTF-8")


def test_caches_and_log(rest, filled):
    before = rest.get("/cache_service/metrics/row/requests")
    filled.execute("INSERT INTO u (pk, v) VALUES (1, 'x')")
    rest.ask("POST", f"/storage_service/keyspace_flush/{filled.keyspace}")
    for _ in range(5):
        filled.execute("SELECT v FROM u WHERE pk = 1")
    assert rest.get("/cache_service/metrics/row/requests") >= before + 5
    assert rest.get("/cache_service/metrics/row/hits_moving_avrage")["count"] == rest.get(
        "/cache_service/metrics/row/hits"
    )
    assert (
        0
        < rest.get("/cache_service/metrics/row/size")
        <= rest.get("/cache_service/metrics/row/capacity")
    )
    assert 0 <= rest.get("/cache_service/metrics/row/hit_rate") <= 1
    for cache in ("key", "counter"):
        assert (
            rest.get(f"/cache_service/metrics/{cache}/entries") == 0
            and rest.get(f"/cache_service/{cache}_cache_save_period") == 0
        )
    assert rest.get("/commitlog/metrics/total_commit_log_size") > 0
    done = rest.get("/commitlog/metrics/completed_tasks")
    filled.execute("INSERT INTO u (pk, v) VALUES (2, 'x')")
    end = time.monotonic() + 10
    while rest.get("/commitlog/metrics/completed_tasks") <= done:
        assert time.monotonic() < end, "the write is not in the log"

def test_memory_of_sstables(rest, filled):
    """The values that `nodetool info` adds up: by table and in total, zero without sstables, and at
    most the off-heap total."""
    name = f"{filled.keyspace}:remembered"
    filled.table("pk int PRIMARY KEY, v text", name="remembered")
    for pk in range(50):
        filled.execute(f"INSERT INTO remembered (pk, v) VALUES ({pk}, 'x')")
    rest.ask("POST", f"/storage_service/keyspace_flush/{filled.keyspace}?cf=remembered")
    (own,) = rest.get(f"/column_family/tablestats?ks={filled.keyspace}&cf=remembered")
    parts = [
        "bloom_filter_off_heap_memory_used",
        "index_summary_off_heap_memory_used",
        "compression_metadata_off_heap_memory_used",
        "memtable_off_heap_size",
    ]
    for part in parts:
        of_table = rest.get(f"/column_family/metrics/{part}/{name}")
        assert 0 <= of_table <= rest.get(f"/column_family/metrics/{part}"), part
    assert all(rest.get(f"/column_family/metrics/{part}/{name}") > 0 for part in parts[:3])
    assert (
        sum(rest.get(f"/column_family/metrics/{part}/{name}") for part in parts)
        <= own["off_heap_memory_used_total"]
    )
    filled.table("pk int PRIMARY KEY", name="without_sstables")
    assert [
        rest.get(f"/column_family/metrics/{part}/{filled.keyspace}:without_sstables")
        for part in parts[:3]
    ] == [0, 0, 0]


def test_slow_requests(rest, filled):
    path = "/storage_service/slow_query"
    usual = {"enable": False, "fast": False, "ttl": 86400, "threshold": 500000}
    assert rest.get(path) == usual
    for query, why in {
        "enable=perhaps": "enable",
        "fast=1": "fast",
        "ttl=-1": "ttl",
        "ttl=700000000": "ttl",
        "threshold=x": "threshold",
        "threshold=4294967296": "threshold",
    }.items():
        rest.refused("POST", f"{path}?{query}", 400, why)
    assert rest.get(path) == usual
    rest.ask("POST", f"{path}?threshold=0&ttl=1000")
    assert rest.get(path) == usual | {"ttl": 1000, "threshold": 0}
    rest.ask("POST", f"{path}?enable=True")
    assert rest.get(path)["enable"] is True
    prepared = filled.prepare("INSERT INTO u (pk, v) VALUES (?, 'slow')")
    for pk in range(5):
        filled.session.execute(prepared, (pk,))
    rest.ask("POST", f"{path}?enable=false&threshold=500000&ttl=86400")
    assert rest.get(path) == usual
    select = (
        "SELECT command, duration, source_ip, table_names, parameters, session_id, start_time FROM"
        " system_traces.node_slow_log"
    )
    end = time.monotonic() + 20
    while len(found := [row for row in filled.rows(select) if "'slow'" in row[0]]) < 5:
        assert time.monotonic() < end, found
        time.sleep(0.1)
    assert len(found) == 5 and all(
        row[1] > 0 and row[2].startswith("127.") and set(row[3]) == {f"{filled.keyspace}.u"}
        for row in found
    ), found
    assert all(row[4]["query"] == row[0] and row[4]["consistency_level"] for row in found)
    assert {str(row[5]) for row in found} <= {
        str(session) for session in filled.column("SELECT session_id FROM system_traces.sessions")
    }
    by_minute = {
        str(start)
        for start in filled.column("SELECT start_time FROM system_traces.node_slow_log_time_idx")
    }
    assert {str(row[6]) for row in found} <= by_minute


def test_log_levels(rest):
    names = rest.get("/system/logger")
    assert {"root", "server", "engine"} <= set(names)
    before = {name: rest.get(f"/system/logger/{name}") for name in names}
    try:
        rest.ask("POST", "/system/logger/engine?level=debug")
        rest.ask("POST", "/system/logger?level=warn")
        assert (
            rest.get("/system/logger/engine") == "debug"
            and rest.get("/system/logger/root") == rest.get("/system/logger/server") == "warn"
        )
        rest.refused("POST", "/system/logger?level=loud", 400, "loud")
        rest.refused("POST", "/system/logger", 400, "level")
        rest.refused("POST", "/system/logger/nope?level=debug", 400, "nope")
        rest.refused("GET", "/system/logger/nope", 400, "nope")
    finally:
        for name in ("root", "engine"):
            rest.ask("POST", f"/system/logger/{name}?level={before[name]}")


def test_caches_and_log_lines(rest, filled):
    rest.ask("POST", "/system/drop_sstable_caches")
    rest.ask("POST", "/system/log?message=a%20test%20begins&level=info")
    rest.refused("POST", "/system/log?message=x&level=loud", 400, "loud")
    rest.refused("POST", "/system/log", 400, "message")


def test_counts_of_operations_on_a_table(rest, filled):
    name, other = f"{filled.keyspace}:counted", f"{filled.keyspace}:uncounted"
    filled.table("pk int PRIMARY KEY, v text", name="counted")
    filled.table("pk int PRIMARY KEY, v text", name="uncounted")

    def counts(of):
        return [
            rest.get(f"/column_family/metrics/{metric}/{of}")
            for metric in ("read", "write", "memtable_switch_count")
        ]

    assert counts(name) == [0, 0, 0]
    for pk in range(20):
        filled.execute(f"INSERT INTO counted (pk, v) VALUES ({pk}, 'x')")
    for pk in range(10):
        filled.execute(f"SELECT v FROM counted WHERE pk = {pk}")
    reads, writes, flushes = counts(name)
    assert (reads, writes, flushes) == (10, 20, 0)
    rest.ask("POST", f"/storage_service/keyspace_flush/{filled.keyspace}?cf=counted")
    assert counts(name)[2] >= 1 and counts(other) == [0, 0, 0]
    assert all(
        rest.get(f"/column_family/metrics/{metric}")
        >= rest.get(f"/column_family/metrics/{metric}/{name}")
        for metric in ("read", "write")
    )


def test_commands(running, filled):
    def admin(*arguments):
        done = subprocess.run(
            [binary(), "admin", "--api", f"http://{running.address}:10000", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    host_id = str(filled.one("SELECT host_id FROM system.local"))
    assert (
        host_id in admin("status") and host_id in admin("info") and host_id in admin("gossipinfo")
    )
    assert admin("version").strip() == filled.one("SELECT release_version FROM system.local")
    assert "messina test" in admin("describecluster") and "Murmur3Partitioner" in admin(
        "describecluster"
    )
    assert len(admin("ring").splitlines()) == 64
    tablets = filled.one(
        "SELECT count(*) FROM system.tablets WHERE table_name = 't' AND keyspace_name ="
        f" '{filled.keyspace}' ALLOW FILTERING"
    )
    assert (
        len(admin("ring", filled.keyspace, "t").splitlines())
        == len(admin("describering", filled.keyspace, "t").splitlines())
        == tablets
    )
    assert admin("getendpoints", filled.keyspace, "t", "7") == running.address + "\n"
    assert json.loads(admin("--json", "describering", filled.keyspace))[0]["endpoints"] == [
        running.address
    ]


def test_every_path_of_the_documentation(rest, running, filled):
    """docs/rest.md lists paths that exist."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/rest.md").read_text()
    names = {
        "{keyspace}": filled.keyspace,
        "{keyspace:table}": f"{filled.keyspace}:t",
        "{endpoint}": running.address,
        "{module}": "root",
        "list_module_tasks/{module}": "list_module_tasks/node_ops",
        "{name}": "cluster_name",
        "{cache}": "row",
        "{metric}/{keyspace:table}": f"live_ss_table_count/{filled.keyspace}:t",
        "{metric}": "entries",
        "=ks&": f"={filled.keyspace}&",
    }
    asked = 0
    for paragraph in re.split(r"\n(?=- |\| |#)", text):
        if not re.match(r"(- |\| )GET", paragraph):
            continue
        for path in re.findall(r"`(/[^`]+)`", paragraph):
            for name in sorted(names, key=len, reverse=True):
                path = path.replace(name, names[name])
            if "{id}" in path:
                # A node alone has no task.
                path = path.replace("{id}", str(uuid.uuid4()))
                rest.refused("GET", path, 404, "task with id")
                asked += 1
                continue
            if path.startswith("/storage_service/snapshots?"):
                path = "/storage_service/snapshots"
            rest.get(path.replace("?level=debug", ""))
            asked += 1
    assert asked > 70
