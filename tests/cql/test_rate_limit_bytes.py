"""per_partition_rate_limit, what ScyllaDB does not have: limits in KiB, the mode observe, and the
numbers of a refusal. No test depends on the speed of the machine: one operation uses up the budget
of minutes."""

import json
import re

import cassandra
import pytest
from cassandra.query import SimpleStatement
from database import Config
from wire import Wire

pytestmark = pytest.mark.scylla

Limited = getattr(cassandra, "RateLimitReached", Config)
LARGE = "x" * 300_000


def option(db, table, **values):
    written = ", ".join(f"'{key}': '{value}'" for key, value in values.items())
    db.execute(f"ALTER TABLE {table} WITH per_partition_rate_limit = {{{written}}}")


def refused(db, statement):
    with pytest.raises(Limited) as caught:
        db.execute(statement)
    return caught.value


@pytest.fixture
def table(db):
    name = db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
    for pk in (1, 2, 3):
        db.execute(f"INSERT INTO {name} (pk, ck, v) VALUES ({pk}, 1, '{LARGE}')")
    return name


def test_reads_beyond_the_budget_of_a_partition_are_refused(db, table):
    option(db, table, max_read_kb_per_second=1)
    for pk in (1, 2):
        read = f"SELECT * FROM {table} WHERE pk = {pk}"
        assert len(db.rows(read)) == 1
        refused(db, read)
        refused(db, f"SELECT ck FROM {table} WHERE pk IN ({pk}, 9)")
        db.execute(f"INSERT INTO {table} (pk, ck) VALUES ({pk}, 2)")
    assert len(db.rows(f"SELECT * FROM {table} WHERE pk = 9")) == 0
    assert len(db.rows(f"SELECT pk FROM {table}")) == 5, "a scan is not limited"
    # A higher limit pays the debt off faster.
    option(db, table, max_read_kb_per_second=4_000_000_000)
    assert len(db.rows(f"SELECT * FROM {table} WHERE pk = 1")) == 2


def test_a_filter_and_an_aggregate_pay_for_what_they_read(db, table):
    option(db, table, max_read_kb_per_second=1)
    assert db.one(f"SELECT count(*) FROM {table} WHERE pk = 1") == 1
    refused(db, f"SELECT ck FROM {table} WHERE pk = 1")
    assert not db.rows(f"SELECT ck FROM {table} WHERE pk = 2 AND v = 'y' ALLOW FILTERING")
    refused(db, f"SELECT ck FROM {table} WHERE pk = 2")


def test_writes_beyond_the_budget_of_a_partition_are_refused(db, table):
    option(db, table, max_write_kb_per_second=1)
    db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (1, 2, '{LARGE}')")
    refused(db, f"INSERT INTO {table} (pk, ck) VALUES (1, 3)")
    refused(db, f"DELETE FROM {table} WHERE pk = 1")
    assert len(db.rows(f"SELECT ck FROM {table} WHERE pk = 1")) == 2
    db.execute(f"INSERT INTO {table} (pk, ck) VALUES (2, 3)")


def test_observe_refuses_nothing_and_shows_what_would_be(db, table, server):
    option(db, table, max_reads_per_second=0, max_write_kb_per_second=0, mode="observe")
    future = db.session.execute_async(
        SimpleStatement(f"SELECT ck FROM {table} WHERE pk = 1"), trace=True
    )
    assert len(future.result().current_rows) == 1
    events = [event.description for event in future.get_query_trace().events]
    assert "Rate limit: would be refused, but the mode is observe" in events
    for pk in range(10):
        db.execute(f"INSERT INTO {table} (pk, ck) VALUES ({pk}, 5)")
        assert db.rows(f"SELECT ck FROM {table} WHERE pk = {pk}")
    if server is not None:
        for kind in ("reads", "writes"):
            found = re.findall(
                rf"^scylla_database_total_{kind}_rate_limit_observed{{.*}} (\S+)$",
                server.metrics(),
                re.M,
            )
            assert sum(map(float, found)) >= 10
    option(db, table, max_reads_per_second=0, mode="enforce")
    refused(db, f"SELECT ck FROM {table} WHERE pk = 1")


def numbers(db, text, payload):
    future = db.session.execute_async(SimpleStatement(text), custom_payload=payload)
    with pytest.raises(Limited):
        future.result()
    told = (future.custom_payload or {}).get("messina-rate-limit")
    return told and json.loads(told)


def test_a_refusal_has_its_numbers(db, table):
    option(db, table, max_reads_per_second=0, max_write_kb_per_second=0)
    read, write = f"SELECT ck FROM {table} WHERE pk = 1", f"DELETE FROM {table} WHERE pk = 1"
    asked = {"messina-rate-limit": b""}
    told = numbers(db, read, asked)
    by = told["rejected_by"]
    assert (
        by in ("coordinator", "replicas")
        and told["retry_after_ms"] > 50_000
        and told["observed"] >= 1
    )
    assert (told["kind"], told["table"], told["unit"], told["limit_per_second"]) == (
        "read",
        f"{db.keyspace}.{table}",
        "operations",
        0,
    )
    told = numbers(db, write, asked)
    assert (told["kind"], told["unit"], told["limit_per_second"]) == ("write", "KiB", 0)
    assert numbers(db, f"BEGIN UNLOGGED BATCH {write}; APPLY BATCH", asked)["unit"] == "KiB"
    assert numbers(db, read, {"other": b""}) is None
    assert numbers(db, read, None) is None


def test_the_message_has_the_numbers_behind_scyllas(db, table, host):
    option(db, table, max_reads_per_second=0, max_write_kb_per_second=0)
    name = f"{db.keyspace}.{table}"
    with Wire(host) as wire:
        for statement, expected in (
            (
                f"SELECT ck FROM {name} WHERE pk = 1",
                (
                    r"read in table NAME, rejected by (coordinator|replicas) \(about \d+ reads per"
                    r" second, limit 0; "
                ),
            ),
            (
                f"DELETE FROM {name} WHERE pk = 1",
                (
                    r"write in table NAME, rejected by (coordinator|replicas) \(\d+ KiB not covered"
                    r" yet, limit 0 KiB per second; "
                ),
            ),
        ):
            expected = (
                "Per-partition rate limit reached for "
                + expected.replace("NAME", re.escape(name))
                + r"retry after \d+ ms\)"
            )
            assert re.fullmatch(expected, wire.query(statement).message)


def test_all_keys_in_scyllas_order(db):
    keys = (
        "'mode': 'observe', 'max_write_kb_per_second': 4, 'max_reads_per_second': 1,"
        " 'max_writes_per_second': 3, 'max_read_kb_per_second': 2"
    )
    table = db.table("pk int PRIMARY KEY", f"WITH per_partition_rate_limit = {{{keys}}}")
    text = db.create_statement(f"TABLE {table}")
    assert (
        "AND per_partition_rate_limit = {'max_read_kb_per_second': '2', 'max_reads_per_second': "
            "'1', 'max_write_kb_per_second': '4', "
        "'max_writes_per_second': '3', 'mode': 'observe'}"
    ) in text
    db.execute(f"DROP TABLE {table}")
    db.execute(text)
    assert db.create_statement(f"TABLE {table}") == text
    option(db, table, mode="enforce", max_reads_per_second=1)
    assert "per_partition_rate_limit = {'max_reads_per_second': '1'}" in db.create_statement(
        f"TABLE {table}"
    )


@pytest.mark.parametrize("value, words", [
    ("{'max_read_kb_per_second': -1}", "max_read_kb_per_second option: expected a non-negative "
        "number"),
    ("{'max_write_kb_per_second': '1KiB'}", "max_write_kb_per_second option: expected a "
        "non-negative number"),
    ("{'max_write_kb_per_second': 4294967296}",
        "max_write_kb_per_second option: out of range accepted by 32-bit numbers"),
    ("{'mode': 'off'}", "mode option: expected 'enforce' or 'observe'"),
    ("{'max_kb_per_second': 1}", "Unknown keys in map for per_partition_rate_limit extension: "
        "max_kb_per_second"),
])
def test_wrong_values_are_refused(db, table, value, words):
    db.refused(Config, f"ALTER TABLE {table} WITH per_partition_rate_limit = {value}", match=words)
