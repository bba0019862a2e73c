"""Guardrails with ScyllaDB's defaults, and settings that are changed while the node runs."""

import json

import pytest
from cassandra import ConsistencyLevel, WriteFailure
from cassandra.query import SimpleStatement
from database import Config, Invalid

pytestmark = [pytest.mark.scylla, pytest.mark.node]


def warnings(db, text, **options):
    future = db.session.execute_async(SimpleStatement(text, **options))
    future.result()
    return future.warnings or []


@pytest.fixture
def setting(db):
    """Changes settings during a test."""
    before = {}

    def change(name, value):
        if name not in before:
            before[name] = json.loads(
                db.one(f"SELECT value FROM system.config WHERE name = '{name}'")
            )
        db.execute(f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'")

    yield change
    for name, value in before.items():
        value = ",".join(value) if isinstance(value, list) else value
        db.execute("UPDATE system.config SET value = %s WHERE name = %s", str(value), name)


@pytest.fixture
def keyspace(db):
    """A name for a keyspace, which is dropped after the test."""
    yield "guarded"
    db.execute("DROP KEYSPACE IF EXISTS guarded")


def create(name, replication):
    return f"CREATE KEYSPACE {name} WITH replication = {{{replication}}}"


NETWORK = "'class': 'NetworkTopologyStrategy', 'replication_factor': "
SIMPLE = "'class': 'SimpleStrategy', 'replication_factor': "


def test_defaults(db, keyspace):
    warned = warnings(db, create(keyspace, NETWORK + "1"))
    assert len(warned) == 1 and "minimum_replication_factor_warn_threshold=3" in warned[0]
    warned = " ".join(warnings(db, f"ALTER KEYSPACE {keyspace} WITH replication = {{{SIMPLE}1}}"))
    assert (
        "SimpleStrategy replication class is not recommended" in warned
        and "warn_threshold" in warned
    )
    assert warnings(db, f"ALTER KEYSPACE {keyspace} WITH durable_writes = true") == []


def test_replication_factor(db, setting, keyspace):
    setting("minimum_replication_factor_warn_threshold", -1)
    assert warnings(db, create(keyspace, NETWORK + "1")) == []
    db.execute(f"DROP KEYSPACE {keyspace}")
    setting("minimum_replication_factor_fail_threshold", 2)
    db.refused(
        Config, create(keyspace, NETWORK + "1"), match="minimum_replication_factor_fail_threshold=2"
    )
    setting("minimum_replication_factor_fail_threshold", -1)
    setting("maximum_replication_factor_fail_threshold", 3)
    db.refused(
        Config, create(keyspace, NETWORK + "4"), match="maximum_replication_factor_fail_threshold=3"
    )
    setting("maximum_replication_factor_warn_threshold", 0)
    assert any(
        "maximum_replication_factor_warn_threshold=0" in text
        for text in warnings(db, create(keyspace, NETWORK + "1"))
    )


def test_strategy(db, setting, keyspace):
    setting("replication_strategy_fail_list", "SimpleStrategy")
    db.refused(Config, create(keyspace, SIMPLE + "3"), match="forbidden")
    setting("replication_strategy_fail_list", "")
    setting("replication_strategy_warn_list", "")
    setting("minimum_replication_factor_warn_threshold", -1)
    assert warnings(db, create(keyspace, SIMPLE + "1")) == []


def test_write_levels(db, setting):
    t = db.table("pk int PRIMARY KEY, v int")
    write = f"INSERT INTO {t} (pk, v) VALUES (1, 1)"
    setting("write_consistency_levels_warned", "ONE,ALL")
    setting("write_consistency_levels_disallowed", "ANY")
    assert (
        "write_consistency_levels_warned"
        in warnings(db, write, consistency_level=ConsistencyLevel.ONE)[0]
    )
    assert warnings(db, write, consistency_level=ConsistencyLevel.LOCAL_QUORUM) == []
    db.refused(
        Invalid,
        write,
        match="write_consistency_levels_disallowed",
        consistency_level=ConsistencyLevel.ANY,
    )
    batch = f"BEGIN BATCH {write}; APPLY BATCH"
    db.refused(Invalid, batch, match="ANY", consistency_level=ConsistencyLevel.ANY)
    assert "ALL" in warnings(db, batch, consistency_level=ConsistencyLevel.ALL)[0]
    assert db.rows(f"SELECT * FROM {t}", consistency_level=ConsistencyLevel.ONE) == [
        (1, 1)
    ], "reads are not concerned"


def test_time_windows(db, setting):
    windows = (
        "compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit':"
        " 'MINUTES', 'compaction_window_size': 1}"
    )
    assert (
        "default_time_to_live"
        in warnings(db, f"CREATE TABLE tw1 (pk int PRIMARY KEY) WITH {windows}")[0]
    )
    assert (
        warnings(
            db,
            f"CREATE TABLE tw2 (pk int PRIMARY KEY) WITH {windows} AND default_time_to_live = 3000",
        )
        == []
    )
    db.refused(
        Config,
        f"CREATE TABLE tw3 (pk int PRIMARY KEY) WITH {windows} AND default_time_to_live = 3060",
        match="51 windows",
    )
    db.refused(
        Config, "ALTER TABLE tw2 WITH default_time_to_live = 86400", match="twcs_max_window_count"
    )
    setting("twcs_max_window_count", 0)
    db.execute("ALTER TABLE tw2 WITH default_time_to_live = 86400")
    setting("restrict_twcs_without_default_ttl", "true")
    db.refused(Config, f"CREATE TABLE tw4 (pk int PRIMARY KEY) WITH {windows}", match="forbidden")
    setting("restrict_twcs_without_default_ttl", "false")
    assert warnings(db, f"CREATE TABLE tw4 (pk int PRIMARY KEY) WITH {windows}") == []


def test_batch_size(db, setting):
    t = db.table("pk int PRIMARY KEY, v text")
    batch = (
        "BEGIN UNLOGGED BATCH "
        + "".join(f"INSERT INTO {t} (pk, v) VALUES ({pk}, '{'x' * 500}'); " for pk in range(10))
        + "APPLY BATCH"
    )
    assert warnings(db, batch) == []
    setting("batch_size_warn_threshold_in_kb", 1)
    assert "WARN threshold of 1024" in warnings(db, batch)[0]
    setting("batch_size_fail_threshold_in_kb", 2)
    db.refused(Invalid, batch, match="Batch too large")
    one = f"BEGIN BATCH INSERT INTO {t} (pk, v) VALUES (1, '{'x' * 5000}'); APPLY BATCH"
    assert warnings(db, one) == [], "one partition may be of any size"


def test_future_timestamps(db, setting):
    t = db.table("pk int PRIMARY KEY")
    write = f"INSERT INTO {t} (pk) VALUES (1) USING TIMESTAMP 8000000000000000"
    db.refused(Invalid, write, match="3 days")
    setting("restrict_future_timestamp", "false")
    db.execute(write)


def test_violations_are_counted(db, server, setting, keyspace):
    def count(name):
        return server.metric(f"scylla_cql_{name}")

    t = db.table("pk int PRIMARY KEY")
    setting("replication_strategy_fail_list", "SimpleStrategy")
    setting("write_consistency_levels_disallowed", "ANY")
    setting("write_consistency_levels_warned", "ALL")
    names = [
        "minimum_replication_factor_warn_violations",
        "replication_strategy_fail_list_violations",
        "write_consistency_levels_disallowed_violations",
        "write_consistency_levels_warned_violations",
    ]
    before = [count(name) for name in names]
    db.execute(create(keyspace, NETWORK + "1"))
    db.refused(Config, create("other", SIMPLE + "3"))
    db.refused(Invalid, f"INSERT INTO {t} (pk) VALUES (1)", consistency_level=ConsistencyLevel.ANY)
    db.execute(f"INSERT INTO {t} (pk) VALUES (1)", consistency_level=ConsistencyLevel.ALL)
    assert [count(name) - was for name, was in zip(names, before, strict=True)] == [1, 1, 1, 1]
    assert count("writes_per_consistency_level") > 0


def test_config_table(db):
    rows = {
        name: (kind, source, value)
        for name, source, kind, value in db.rows(
            "SELECT name, source, type, value FROM system.config"
        )
    }
    kind, _, value = rows[
        "replication_strategy_warn_list"
    ]  # tests before this one have set it, to the same
    assert (kind, value) == ("string list", '["SimpleStrategy"]')
    assert rows["commitlog_ignore_corruption"] == ("bool", "default", "false")
    assert rows["counter_write_request_timeout_in_ms"] == ("integer", "default", "5000")
    for _, _, value in rows.values():
        json.loads(value)


@pytest.mark.parametrize("name, value, why", [
    ("no_such_setting", "1", "no such option"), ("cluster_name", "x", "not live"),
    ("replication_strategy_warn_list", "NoStrategy", "cannot parse"),
    ("write_consistency_levels_warned", "MOST", "cannot parse"),
    ("twcs_max_window_count", "-1", "cannot parse"),
    # Values that would stop all work.
    ("read_request_timeout_in_ms", "0", "from 10ms to 365d"),
    ("write_request_timeout_in_ms", "0", "from 10ms to 365d"),
    ("range_request_timeout_in_ms", "9", "from 10ms to 365d"),
    ("truncate_request_timeout_in_ms", "0", "from 10ms to 365d"),
    ("counter_write_request_timeout_in_ms", "0", "from 10ms to 365d"),
    ("query_tombstone_page_limit", "0", "at least 1"),
    ("max_memory_for_unlimited_query_hard_limit", "0", "at least 64KiB"),
    ("batch_size_fail_threshold_in_kb", "0", "at least 1KiB"),
    ("group0_raft_op_timeout_in_ms", "0", "from 100ms to 365d"),
    ("query_page_size_in_bytes", "0", "at least 1B"),
])
def test_wrong_settings(db, name, value, why):
    before = db.rows(f"SELECT value FROM system.config WHERE name = '{name}'")
    db.refused(
        WriteFailure, f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'", match=why
    )
    assert db.rows(f"SELECT value FROM system.config WHERE name = '{name}'") == before


@pytest.mark.scylla
def test_large_data(db, server, setting):
    """Cells, rows and collections of one write, in tables with the guardrails enabled. The
    thresholds can be changed live."""
    t = db.table(
        "pk int PRIMARY KEY, v blob, s set<int>", "WITH large_data_guardrails_enabled = true"
    )
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (1, ?)")
    before = server.metric("scylla_cql_large_cell_fail_violations")
    assert warnings(db, f"INSERT INTO {t} (pk, s) VALUES (1, {{1, 2, 3}})") == []
    setting("large_collection_elements_fail_threshold", "2")
    db.refused(
        Invalid,
        f"INSERT INTO {t} (pk, s) VALUES (1, {{1, 2, 3}})",
        match="collection element count 3 exceeds hard limit 2",
    )
    db.execute(insert, bytes(1_000_000))
    with pytest.raises(Invalid, match="cell value size 3000000 exceeds hard limit"):
        db.execute(insert, bytes(3_000_000))
    assert server.metric("scylla_cql_large_cell_fail_violations") == before + 1
    future = db.session.execute_async(insert, (bytes(1_500_000),))
    future.result()
    assert any("Soft limit violation for cell" in text for text in future.warnings)
    db.execute(f"ALTER TABLE {t} WITH large_data_guardrails_enabled = false")
    db.execute(insert, bytes(3_000_000))
