"""Hot partitions for operators: ScyllaDB's toppartitions paths, `messina admin hot`, and
metrics."""

import concurrent.futures
import json
import re
import subprocess
import time

import pytest
from cassandra.concurrent import execute_concurrent_with_args
from database import Database
from launch import Node, binary

pytestmark = pytest.mark.node

SECONDS = 6  # of a recording


@pytest.fixture(scope="module")
def node():
    with Node(shards=2) as node:
        yield node
        assert node.alive(), node.log_tail()


@pytest.fixture(scope="module")
def db(node):
    db = Database(node.address)
    for name in ["t", "u"]:
        db.table("pk text PRIMARY KEY, v int", name=name)
    yield db
    db.close()


def get(node, path, status=200):
    got, body = node.admin("GET", path)
    assert got == status, f"{path}: {got} {body}"
    return json.loads(body)


def load(db, reads, writes):
    """Reads and writes keys so many times."""
    for table, keys in reads.items():
        read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
        execute_concurrent_with_args(
            db.session, read, [(key,) for key, count in keys.items() for _ in range(count)]
        )
    for table, keys in writes.items():
        write = db.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, 1)")
        execute_concurrent_with_args(
            db.session, write, [(key,) for key, count in keys.items() for _ in range(count)]
        )


def recorded(node, paths, load):
    """The answers of recordings that run beside each other, and the seconds of each. There is a
    load in the middle of them, with seconds to spare for a slow machine."""
    began = time.monotonic()

    def ask(path):
        return get(node, f"{path}duration={SECONDS * 1000}"), time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, path) for path in paths]
        time.sleep(1)
        load()
        assert time.monotonic() - began < SECONDS, "the machine is too slow for this test"
        return [one.result() for one in asked]


def test_toppartitions_counts_what_happens_within_its_duration(node, db):
    load(db, {"t": {"before": 50}}, {})
    table, tables = "/column_family/toppartitions", "/storage_service/toppartitions/"
    paths = [
        f"{table}/{db.keyspace}:t?list_size=2&",
        f"{tables}?keyspace_filters={db.keyspace}&",
        f"{tables}?table_filters={db.keyspace}:u&",
    ]
    some = lambda: load(db, {"t": {"a": 30, "b": 20, "c": 10}, "u": {"x": 40}}, {"t": {"w": 15}})
    (of_table, seconds), (of_all, _), (of_u, _) = recorded(node, paths, some)
    assert SECONDS <= seconds < 5 * SECONDS
    assert of_table == {
        "read_cardinality": 3, "write_cardinality": 1,
        "read": [{"partition": "'a'", "count": 30, "error": 0},
            {"partition": "'b'", "count": 20, "error": 0}],
        "write": [{"partition": "'w'", "count": 15, "error": 0}],
    }
    named = lambda table, key: f"({db.keyspace}:{table}) '{key}'"
    assert [(one["partition"], one["count"]) for one in of_all["read"]] == [
        (named("u", "x"), 40), (named("t", "a"), 30), (named("t", "b"), 20), (named("t", "c"), 10)]
    assert [one["partition"] for one in of_u["read"]] == [named("u", "x")] and of_u["write"] == []


@pytest.mark.parametrize("query, why", [
    ("duration=0", "duration must be a number from 1 to 600000, not 0"),
    ("list_size=x", "list_size must be a number from 1 to 2048, not x"),
    ("capacity=-1", "capacity must be a number from 1 to 2048, not -1"),
    ("capacity=2049", "capacity must be a number from 1 to 2048, not 2049"),
    ("table_filters=none", "keyspace:column_family format"),
    ("table_filters=a:b", "Can't find a column family b in keyspace a"),
    ("keyspace_filters=none", "Can't find a keyspace none"),
])
def test_wrong_queries_are_refused(node, db, query, why):
    assert why in get(node, f"/storage_service/toppartitions/?{query}", 400)["message"]


def test_a_long_key_is_shown_by_its_token(node, db):
    path = f"/column_family/toppartitions/{db.keyspace}:t?"
    [(answer, _)] = recorded(
        node, [path], lambda: load(db, {}, {"t": {"k" * 1024: 3, "l" * 1025: 2}})
    )
    [kept, long] = answer["write"]
    assert (kept["partition"], kept["count"]) == ("'" + "k" * 1024 + "'", 3)
    token = db.execute(f"SELECT token(pk) FROM t WHERE pk = '{'l' * 1025}'").one()[0]
    assert (long["partition"], long["count"]) == (f"token {token}", 2)


def test_only_four_recordings_run_at_the_same_time(node, db):
    path = f"/column_family/toppartitions/{db.keyspace}:t?duration=10000"
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: node.admin("GET", path), range(6)))
    assert sorted(status for status, _ in answers) == [200] * 4 + [429] * 2
    refused = next(body for status, body in answers if status == 429)
    assert "already runs 4 toppartitions requests" in json.loads(refused)["message"]
    assert node.admin("GET", path.replace("10000", "10"))[0] == 200, "they have ended"


def test_the_command_shows_the_hot_partition(node, db):
    load(db, {"t": {"the 'hot' one": 3000, "cold": 100}}, {})

    def run(*options):
        command = [str(binary()), "admin", "--api", node.address, "hot", *options]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    plain = run()
    first = plain.splitlines()[1]
    assert (
        "'the ''hot'' one'" in first and f"{db.keyspace}.t" in first and node.address in first
    ), plain
    assert "\x1b" not in plain
    assert len(run("--once", "--top", "1").splitlines()) == 2
    [shown] = json.loads(run("--json"))
    hot = max(shown["partitions"], key=lambda one: one["reads_per_second"])
    assert (shown["address"], shown["error"], hot["key"], hot["table"]) == (
        node.address,
        None,
        "'the ''hot'' one'",
        "t",
    )


def test_metrics_show_so_many_partitions_of_each_shard_as_are_set(node, db):
    load(db, {"t": {f"key \\ \"{n}\"": 300 for n in range(10)}}, {})
    pattern = (
        r'^scylla_database_hot_partition_operations\{shard="(\d+)",keyspace="\w+",table="\w+",'
        r'key="((?:[^"\\]|\\.)*)",token="-?\d+"\}'
        r" [\d.]+$"
    )

    def shown():
        return re.findall(pattern, node.metrics(), re.M)

    for count in [3, 1, 0]:
        db.execute(
            f"UPDATE system.config SET value = '{count}' WHERE name = 'hot_partitions_in_metrics'"
        )
        shards = [shard for shard, _ in shown()]
        assert all(shards.count(shard) == count for shard in "01"), shown()
