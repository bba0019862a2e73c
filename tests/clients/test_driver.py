"""What applications do with the Python drivers; run once with cassandra-driver and once with
scylla-driver.

Both import as `cassandra`, so each has a virtual environment of its own.
"""

import contextlib
import datetime
import decimal
import time
import uuid

import cassandra.util as util
import pytest
from cassandra import ConsistencyLevel, OperationTimedOut, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import ConstantReconnectionPolicy, TokenAwarePolicy, DCAwareRoundRobinPolicy
from cassandra.query import (
    UNSET_VALUE, BatchStatement, SimpleStatement, dict_factory, tuple_factory,
)
from database import Database, connect, plain

try:  # only scylla-driver has it
    import cassandra.shard_info  # noqa: F401
    SCYLLA_DRIVER = True
except ImportError:
    SCYLLA_DRIVER = False

EVERYTHING = {
    "c_ascii": ("ascii", "plain"), "c_text": ("text", "häß 🦀"),
    "c_blob": ("blob", bytes(range(256))), "c_boolean": ("boolean", True),
    "c_tinyint": ("tinyint", -128), "c_smallint": ("smallint", 32767), "c_int": ("int", -2**31),
    "c_bigint": ("bigint", 2**63 - 1),
    "c_varint": ("varint", -2**100), "c_decimal": ("decimal", decimal.Decimal("-12345.678900")),
    "c_float": ("float", 1.5), "c_double": ("double", 2.25e-100),
    "c_timestamp": ("timestamp", datetime.datetime(2024, 2, 29, 12, 30, 1, 123000)),
    "c_date": ("date", util.Date("2024-02-29")),
    "c_time": ("time", util.Time("12:34:56.123456789")),
    "c_duration": ("duration", util.Duration(1, 2, 3)), "c_inet": ("inet", "2001:db8::1"),
    "c_uuid": ("uuid", uuid.UUID("123e4567-e89b-42d3-a456-426614174000")),
    "c_timeuuid": ("timeuuid", uuid.UUID("d2177dd0-eaa2-11de-a572-001b779c76e3")),
    "c_list": ("list<text>", ["b", "a", "b"]), "c_set": ("set<int>", {3, 1}),
    "c_map": ("map<text, bigint>", {"k": 1, "j": 2}),
    "c_flist": ("frozen<list<int>>", [1, 2]), "c_fset": ("frozen<set<text>>", {"x"}),
    "c_fmap": ("frozen<map<int, text>>", {1: "a"}),
    "c_nested": ("map<text, frozen<list<frozen<set<int>>>>>", {"k": [{1, 2}, {3}]}),
    "c_tuple": ("tuple<int, text, frozen<list<int>>>", (1, "a", [2])),
    "c_ltuple": ("list<frozen<tuple<int, text>>>", [(1, "a"), (2, None)]),
}


@pytest.fixture(scope="module")
def everything(db):
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in EVERYTHING.items())
    db.execute(f"CREATE TABLE everything (pk int PRIMARY KEY, {columns})")
    db.execute("CREATE TYPE address (street text, numbers frozen<set<int>>)")
    db.execute(
        "CREATE TABLE people (pk int PRIMARY KEY, home address, old frozen<address>, more"
        " list<frozen<address>>)"
    )
    return db


def test_every_type_prepared(everything):
    db = everything
    insert = db.prepare(
        f"INSERT INTO everything (pk, {', '.join(EVERYTHING)}) VALUES"
        f" ({', '.join('?' * (len(EVERYTHING) + 1))})"
    )
    db.execute(insert, 1, *(value for _, value in EVERYTHING.values()))
    row = db.execute("SELECT * FROM everything WHERE pk = 1").one()
    for name, (kind, value) in EVERYTHING.items():
        assert plain(getattr(row, name)) == plain(value), (name, kind)
    db.execute(insert, 2, *[None] * len(EVERYTHING))
    db.execute(insert, 1, *[UNSET_VALUE] * len(EVERYTHING))
    again = db.execute("SELECT * FROM everything WHERE pk = 1").one()
    assert plain(tuple(again)) == plain(tuple(row))
    empty = db.execute("SELECT * FROM everything WHERE pk = 2").one()
    assert not any(empty[1:])


def test_every_type_as_text(everything):
    """The driver writes the values into the text."""
    db = everything
    for name, (kind, value) in EVERYTHING.items():
        if "tuple" in kind:
            continue  # the driver writes tuples like lists
        db.session.execute(f"INSERT INTO everything (pk, {name}) VALUES (3, %s)", (value,))
        assert plain(
            getattr(db.execute(f"SELECT {name} FROM everything WHERE pk = 3").one(), name)
        ) == plain(value), (name, kind)


def test_user_types(everything):
    db = everything

    class Address:
        def __init__(self, street, numbers):
            self.street, self.numbers = street, numbers

        def __eq__(self, other):
            return (self.street, plain(self.numbers)) == (other.street, plain(other.numbers))

    db.cluster.register_user_type(db.keyspace, "address", Address)
    insert = db.prepare("INSERT INTO people (pk, home, old, more) VALUES (?, ?, ?, ?)")
    a, b = Address("Main", {1, 2}), Address(None, {3})
    db.execute(insert, 1, a, b, [a, b])
    row = db.execute("SELECT home, old, more FROM people WHERE pk = 1").one()
    assert row.home == a and row.old == b and row.more == [a, b]
    db.session.execute("UPDATE people SET old = %s WHERE pk = %s", (a, 1))
    assert db.execute("SELECT old FROM people WHERE pk = 1").one().old == a


def test_metadata(db, everything):
    keyspace = db.cluster.metadata.keyspaces[db.keyspace]
    assert (
        keyspace.durable_writes and "people" in keyspace.tables and "address" in keyspace.user_types
    )
    db.execute("CREATE TABLE shaped (a int, b text, c timeuuid, d int, s set<int> STATIC, v "
        "frozen<address>, PRIMARY KEY ((a, b), c, d)) "
               "WITH CLUSTERING ORDER BY (c DESC, d ASC) AND comment = 'shaped' AND "
                   "gc_grace_seconds = 77")
    table = db.cluster.metadata.keyspaces[db.keyspace].tables["shaped"]
    assert [c.name for c in table.partition_key] == ["a", "b"] and [
        c.name for c in table.clustering_key
    ] == ["c", "d"]
    assert (
        table.columns["s"].is_static
        and table.columns["c"].is_reversed
        and table.columns["v"].cql_type == "frozen<address>"
    )
    assert table.options["comment"] == "shaped" and table.options["gc_grace_seconds"] == 77
    text = table.export_as_string()
    assert "PRIMARY KEY ((a, b), c, d)" in text and "CLUSTERING ORDER BY (c DESC, d ASC)" in text
    export = keyspace.export_as_string()
    assert f"CREATE KEYSPACE {db.keyspace}" in export and "CREATE TYPE" in export
    # The statements that the driver exports create the same table again.
    db.execute("DROP TABLE shaped")
    db.execute(table.as_cql_query() + ";")
    again = db.cluster.metadata.keyspaces[db.keyspace].tables["shaped"]
    assert again.export_as_string() == text
    db.execute("ALTER TABLE shaped ADD w int")
    assert "w" in db.cluster.metadata.keyspaces[db.keyspace].tables["shaped"].columns
    db.execute("DROP TABLE shaped")
    assert "shaped" not in db.cluster.metadata.keyspaces[db.keyspace].tables
    assert db.cluster.metadata.token_map is not None and db.cluster.metadata.partitioner.endswith(
        "Murmur3Partitioner"
    )
    hosts = db.cluster.metadata.all_hosts()
    assert (
        len(hosts) == 1
        and hosts[0].datacenter == "datacenter1"
        and hosts[0].rack == "rack1"
        and hosts[0].release_version
    )
    for name in ("system", "system_schema"):
        assert db.cluster.metadata.keyspaces[name].export_as_string()


def test_other_session_sees_the_schema(db, host):
    """Pushed events update a session about changes of another session."""
    cluster, session = connect(host)
    try:
        assert "pushed" not in cluster.metadata.keyspaces[db.keyspace].tables
        db.execute("CREATE TABLE pushed (pk int PRIMARY KEY)")
        end = time.monotonic() + 20
        while "pushed" not in cluster.metadata.keyspaces[db.keyspace].tables:
            assert time.monotonic() < end, "no event"
            time.sleep(0.05)
        db.execute("DROP TABLE pushed")
        while "pushed" in cluster.metadata.keyspaces[db.keyspace].tables:
            assert time.monotonic() < end, "no event"
            time.sleep(0.05)
    finally:
        cluster.shutdown()


def test_reprepared_after_a_schema_change(db):
    t = db.table("pk int PRIMARY KEY, v int")
    select, insert = db.prepare(f"SELECT * FROM {t} WHERE pk = ?"), db.prepare(
        f"INSERT INTO {t} (pk, v) VALUES (?, ?)"
    )
    db.execute(insert, 1, 1)
    for n in range(5):
        db.execute(f"ALTER TABLE {t} ADD c{n} int")
        db.execute(insert, n, n)
        select = db.prepare(f"SELECT * FROM {t} WHERE pk = ?")
        row = db.execute(select, n).one()
        assert row.v == n and getattr(row, f"c{n}") is None
    assert db.rows(f"SELECT pk FROM {t} WHERE pk = 4") == [(4,)]


def test_concurrent_writes_and_reads(db):
    t = db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?)")
    arguments = [(n % 97, n, f"value {n}") for n in range(5000)]
    assert all(
        ok for ok, _ in execute_concurrent_with_args(db.session, insert, arguments, concurrency=200)
    )
    select = db.prepare(f"SELECT v FROM {t} WHERE pk = ? AND ck = ?")
    results = execute_concurrent_with_args(
        db.session, select, [a[:2] for a in arguments], concurrency=200
    )
    assert [r.one().v for _, r in results] == [a[2] for a in arguments]
    assert db.one(f"SELECT count(*) FROM {t}") == 5000


@pytest.mark.parametrize("algorithm", ["lz4", "snappy", False])
def test_compression(host, db, algorithm):
    cluster, session = connect(host, compression=algorithm)
    try:
        session.set_keyspace(db.keyspace)
        session.execute("CREATE TABLE IF NOT EXISTS compressed (pk int PRIMARY KEY, v text)")
        insert = session.prepare("INSERT INTO compressed (pk, v) VALUES (?, ?)")
        for pk, value in enumerate(
            ("", "a", "abc" * 100_000, "".join(chr(33 + n * 7919 % 90) for n in range(50_000)))
        ):
            session.execute(insert, (pk, value))
            assert session.execute("SELECT v FROM compressed WHERE pk = %s", (pk,)).one().v == value
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("version", [3, 4])
def test_protocol_versions(host, version):
    cluster, session = connect(host, protocol_version=version)
    try:
        assert session.execute("SELECT key FROM system.local").one().key == "local"
    finally:
        cluster.shutdown()


def test_negotiates_by_itself(host):
    """Without a version the driver begins with the newest that it supports, and steps down."""
    cluster = Cluster([host], connect_timeout=30)
    try:
        session = cluster.connect()
        assert cluster.protocol_version in (4, 5)
        assert session.execute("SELECT release_version FROM system.local").one().release_version
    finally:
        cluster.shutdown()


def test_row_factories(host):
    for factory in (dict_factory, tuple_factory):
        profile = ExecutionProfile(row_factory=factory)
        cluster, session = connect(host, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        try:
            row = session.execute("SELECT key, cluster_name FROM system.local").one()
            assert (row["key"] if factory is dict_factory else row[0]) == "local"
        finally:
            cluster.shutdown()


@pytest.mark.parametrize("level", ["ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "ALL",
    "EACH_QUORUM", "ANY"])
def test_consistency_levels(db, level):
    t = db.table("pk int PRIMARY KEY, v int")
    number = getattr(ConsistencyLevel, level)
    db.session.execute(
        SimpleStatement(f"INSERT INTO {t} (pk, v) VALUES (1, 1)", consistency_level=number)
    )
    if level not in ("ANY", "EACH_QUORUM"):
        assert (
            db.session.execute(SimpleStatement(f"SELECT v FROM {t}", consistency_level=number))
            .one()
            .v
            == 1
        )


@pytest.mark.parametrize("level", ["TWO", "THREE"])
def test_unavailable(db, level):
    t = db.table("pk int PRIMARY KEY, v int")
    for text in (
        f"INSERT INTO {t} (pk, v) VALUES (1, 1)",
        f"SELECT * FROM {t} WHERE pk = 1",
        f"SELECT * FROM {t}",
    ):
        with pytest.raises((Unavailable, NoHostAvailable)) as caught:
            db.session.execute(
                SimpleStatement(text, consistency_level=getattr(ConsistencyLevel, level))
            )
        if isinstance(caught.value, Unavailable):
            assert caught.value.alive_replicas == 1 and caught.value.required_replicas in (2, 3)


def test_client_timestamps(db):
    t = db.table("pk int PRIMARY KEY, v int")
    before = time.time_ns() // 1000
    db.session.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 1)")
    stamp = db.one(f"SELECT writetime(v) FROM {t}")
    assert before - 10_000_000 <= stamp <= time.time_ns() // 1000 + 10_000_000


def test_token_aware_scan_by_ranges(db):
    """A full scan as Spark and others do it: one query per token range, with named markers."""
    t = db.table("pk int PRIMARY KEY, v int")
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(db.session, insert, [(pk, pk) for pk in range(1000)])
    scan = db.prepare(
        f"SELECT pk, token(pk) FROM {t} WHERE token(pk) > :low AND token(pk) <= :high"
    )
    splits = 17
    edges = [-2**63 + (2**64 - 1) * n // splits for n in range(splits + 1)]
    seen = []
    for low, high in zip(edges, edges[1:]):
        rows = db.session.execute(scan, {"low": low, "high": high}).all()
        assert all(low < row[1] <= high for row in rows)
        seen += [row[0] for row in rows]
    assert sorted(seen) == list(range(1000))


def test_scan_by_the_ranges_of_the_ring(db):
    """As DSBulk and the Java driver split the ring: between the nodes' tokens. The last range ends
    at the minimum token, which means the end of the ring."""
    t = db.table("pk int PRIMARY KEY, v int")
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(db.session, insert, [(pk, pk) for pk in range(1000)])
    tokens, least = sorted(token.value for token in db.cluster.metadata.token_map.ring), -2**63
    scan = db.prepare(f"SELECT pk FROM {t} WHERE token(pk) > ? AND token(pk) <= ?")
    seen = [
        row.pk
        for low, high in zip([least, *tokens], [*tokens, least])
        for row in db.session.execute(scan, (low, high))
    ]
    assert sorted(seen) == list(range(1000))
    assert (
        len(db.rows(f"SELECT pk FROM {t} WHERE token(pk) <= {least}"))
        == len(db.rows(f"SELECT pk FROM {t} WHERE token(pk) >= {least}"))
        == 1000
    )
    assert (
        db.rows(f"SELECT pk FROM {t} WHERE token(pk) > 5 AND token(pk) <= 5")
        == db.rows(f"SELECT pk FROM {t} WHERE token(pk) > 5 AND token(pk) < 0")
        == []
    )


def test_tracing(db):
    t = db.table("pk int PRIMARY KEY, v int")
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)")
    for statement, values in ((insert, (1, 1)), (SimpleStatement(f"SELECT * FROM {t}"), None)):
        trace = db.session.execute(statement, values, trace=True).get_query_trace(max_wait_sec=20)
        assert trace.events and trace.duration is not None and trace.parameters is not None
    batch = BatchStatement()
    batch.add(insert, (2, 2))
    assert db.session.execute(batch, trace=True).get_query_trace(max_wait_sec=20).events


@pytest.mark.node
def test_restart_in_the_middle(node):
    """A session survives kill -9 and a clean restart of its server. No acknowledged write is
    lost."""
    node.start()
    db = Database(
        node.address, reconnection_policy=ConstantReconnectionPolicy(0.2, max_attempts=None)
    )
    try:
        t = db.table("pk int PRIMARY KEY, v int")
        insert, select = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)"), db.prepare(
            f"SELECT v FROM {t} WHERE pk = ?"
        )
        acknowledged = []
        for kill in (True, False, True):
            for _ in range(300):
                pk = len(acknowledged)
                db.session.execute(insert, (pk, pk * 3), timeout=10)
                acknowledged.append(pk)
            node.restart(kill=kill)
            end = time.monotonic() + 60
            while True:
                try:
                    db.session.execute(select, (0,), timeout=5)
                    break
                except (NoHostAvailable, OperationTimedOut):
                    assert time.monotonic() < end, "the session did not come back"
                    time.sleep(0.1)
            for pk in acknowledged:
                row = db.session.execute(select, (pk,), timeout=10).one()
                assert row is not None and row.v == pk * 3, pk
        assert db.cluster.metadata.keyspaces[db.keyspace].tables[t]
    finally:
        db.cluster.shutdown()


@pytest.mark.scylla
@pytest.mark.skipif(not SCYLLA_DRIVER, reason="cassandra-driver knows no shards")
def test_shard_awareness(host, db):
    """scylla-driver opens a connection to every shard."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("datacenter1"))
    )
    cluster, session = connect(host, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    try:
        assert cluster.is_shard_aware()
        end = time.monotonic() + 20
        while True:
            (stats,) = cluster.shard_aware_stats().values()
            if stats["connected"] == stats["shards_count"]:
                break
            assert time.monotonic() < end, stats
            time.sleep(0.1)
        assert stats["shards_count"] >= 1
        session.set_keyspace(db.keyspace)
        session.execute("CREATE TABLE IF NOT EXISTS sharded (pk int PRIMARY KEY, v int)")
        insert, select = session.prepare(
            "INSERT INTO sharded (pk, v) VALUES (?, ?)"
        ), session.prepare("SELECT v FROM sharded WHERE pk = ?")
        for _ in range(2):
            for pk in range(300):
                session.execute(insert, (pk, pk))
                assert session.execute(select, (pk,)).one().v == pk
        # The payloads have given the driver the tablets: each of them has a replica on this node.
        with contextlib.suppress(AttributeError):
            tablets = cluster.metadata._tablets._tablets.get((db.keyspace, "sharded"), [])
            assert tablets
    finally:
        cluster.shutdown()
