"""system.hot_partitions lists the partitions that are read and written most, and
hot_partition_protection is a live setting."""

import pytest
from cassandra.concurrent import execute_concurrent_with_args

pytestmark = pytest.mark.node

COLUMNS = ("table_name, partition_key, key, shard_id, reads_per_second, writes_per_second, "
    "bytes_per_second, cpu_share, "
           "accepted_per_second, refused_per_second, would_be_refused_per_second, error_per_second")


def hottest(db, table):
    """The rows of a table, the hottest first, as dictionaries."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM system.hot_partitions WHERE keyspace_name = '{db.keyspace}'"
    )
    return [row._asdict() for row in rows if row.table_name == table]


def test_the_hot_key_is_listed_as_a_literal_with_its_rates(db):
    table = db.table("a text, b int, v int, PRIMARY KEY ((a, b))")
    write = db.prepare(f"INSERT INTO {table} (a, b, v) VALUES (?, ?, 1)")
    read = db.prepare(f"SELECT v FROM {table} WHERE a = ? AND b = ?")
    keys = [(f"other {n}", n) for n in range(200)]
    execute_concurrent_with_args(db.session, write, keys + [("it's hot", 7)])
    for _ in range(10):
        execute_concurrent_with_args(
            db.session, read, [("it's hot", 7)] * 300 + keys[:100], concurrency=50
        )
        execute_concurrent_with_args(db.session, write, [("written", 8)] * 100, concurrency=50)
    rows = hottest(db, table)
    hot = max(rows, key=lambda row: row["reads_per_second"])
    assert (hot["partition_key"], hot["key"]) == (
        "('it''s hot', 7)",
        b"\x00\x08it's hot\x00\x00\x04\x00\x00\x00\x07\x00",
    ), rows[:3]
    # Rates depend on the speed of the machine. Unit tests of the sketch check that they are right.
    others = [row["reads_per_second"] for row in rows if row is not hot]
    assert hot["reads_per_second"] > 5 * max(others, default=0.0), rows[:3]
    assert (
        hot["writes_per_second"] < 0.1 * hot["reads_per_second"]
        and hot["bytes_per_second"] > 0
        and 0 < hot["cpu_share"] <= 1
    )
    assert (
        abs(hot["accepted_per_second"] - hot["reads_per_second"] - hot["writes_per_second"]) < 1e-6
        and hot["refused_per_second"] == 0
    )
    assert hot["error_per_second"] > 0
    written = next(row for row in rows if row["partition_key"] == "('written', 8)")
    assert written["writes_per_second"] > 5 * written["reads_per_second"]


def test_refused_operations_are_shown(db):
    table = db.table("pk int PRIMARY KEY, v int")
    read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
    execute_concurrent_with_args(db.session, read, [(5,)] * 500, concurrency=50)
    db.execute(f"ALTER TABLE {table} WITH per_partition_rate_limit = {{'max_reads_per_second': 0}}")
    results = execute_concurrent_with_args(
        db.session, read, [(5,)] * 1500, concurrency=50, raise_on_first_error=False
    )
    assert sum(not result.success for result in results) > 1400
    hot = hottest(db, table)[0]
    assert hot["partition_key"] == "5"
    assert 0 < hot["accepted_per_second"] < hot["refused_per_second"] < hot["reads_per_second"]


def test_operations_that_would_be_refused_are_shown(db):
    table = db.table("pk int PRIMARY KEY, v int")
    read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
    db.execute(
        f"ALTER TABLE {table} WITH per_partition_rate_limit = {{'max_reads_per_second': 0, 'mode':"
        " 'observe'}"
    )
    results = execute_concurrent_with_args(
        db.session, read, [(5,)] * 2000, concurrency=50, raise_on_first_error=False
    )
    assert all(result.success for result in results)
    hot = hottest(db, table)[0]
    assert hot["partition_key"] == "5" and hot["refused_per_second"] == 0
    assert (
        0 < hot["would_be_refused_per_second"]
        and hot["accepted_per_second"] == hot["reads_per_second"]
    )


def test_operations_are_summed_by_tablet(db):
    table = db.table("pk int PRIMARY KEY, v int")
    read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
    write = db.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, 1)")
    # The partition is there when it is read: otherwise the reads have no bytes.
    execute_concurrent_with_args(db.session, write, [(n,) for n in range(1500)], concurrency=50)
    execute_concurrent_with_args(db.session, read, [(5,)] * 1500, concurrency=50)
    token = db.one(f"SELECT token(pk) FROM {table} WHERE pk = 5")
    loads = [
        row
        for row in db.execute(
            f"SELECT * FROM system.tablet_loads WHERE keyspace_name = '{db.keyspace}'"
        )
        if row.table_name == table
    ]
    table_id = db.one(
        f"SELECT id FROM system_schema.tables WHERE keyspace_name = '{db.keyspace}' AND table_name"
        f" = '{table}'"
    )
    last_tokens = [
        row.last_token
        for row in db.execute(f"SELECT last_token FROM system.tablets WHERE table_id = {table_id}")
    ]
    assert loads and {row.last_token for row in loads} <= set(last_tokens)
    hot = max(loads, key=lambda row: row.reads_per_second)
    assert hot.last_token == min(last for last in last_tokens if last >= token)
    assert hot.reads_per_second > 0.9 * sum(row.reads_per_second for row in loads)
    assert hot.bytes_per_second > 0 and 0 < hot.cpu_share <= 1
    if len(last_tokens) > 1:
        assert sum(row.writes_per_second > 0 for row in loads) > 1, "writes are spread"


def test_a_dropped_table_is_not_listed(db):
    table = db.table("pk int PRIMARY KEY, v int")
    read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
    execute_concurrent_with_args(db.session, read, [(5,)] * 500, concurrency=50)
    assert hottest(db, table)
    db.execute(f"DROP TABLE {table}")
    assert not hottest(db, table)


def test_the_protection_is_a_live_setting(db):
    value = "SELECT value FROM system.config WHERE name = 'hot_partition_protection'"
    assert db.one(value) == '"observe"'
    try:
        for mode in ["on", "off", "observe"]:
            db.execute(
                f"UPDATE system.config SET value = '{mode}' WHERE name = 'hot_partition_protection'"
            )
            assert db.one(value) == f'"{mode}"'
        db.refused(
            Exception,
            "UPDATE system.config SET value = 'maybe' WHERE name = 'hot_partition_protection'",
            match="off, observe or on",
        )
        for wrong in ["0ms", "11s"]:
            db.refused(
                Exception,
                f"UPDATE system.config SET value = '{wrong}' WHERE name ="
                " 'hot_partition_wait_threshold_in_ms'",
                match="from 1ms to 10s",
            )
        db.refused(
            Exception,
            "UPDATE system.config SET value = '65' WHERE name = 'hot_partitions_in_metrics'",
            match="from 0 to 64",
        )
    finally:
        db.execute(
            "UPDATE system.config SET value = 'observe' WHERE name = 'hot_partition_protection'"
        )
