"""Pages whose boundaries fall on each kind of fragment, pages with nothing but tombstones, and the
setting that allows them. The expected result is that of the unpaged query, which the tests also
compute themselves."""

import json
import uuid

import cassandra
import pytest
from cassandra.query import SimpleStatement
from database import connect

LIMIT = "query_tombstone_page_limit"


@pytest.fixture(scope="module")
def ruins(db):
    """Partition p of 0..17 by p % 6: 0 deleted, 1 dead rows then live ones, 2 ranges deleted, 3 a
    dead static row, 4 whole, 5 a static row alone."""
    db.table("p int, c int, v int, s int STATIC, PRIMARY KEY (p, c)", name="ruins")
    insert = db.prepare("INSERT INTO ruins (p, c, v) VALUES (?, ?, ?)")
    for p in range(18):
        if p % 6 == 5:
            db.execute(f"UPDATE ruins SET s = {p} WHERE p = {p}")
            continue
        for c in range(20):
            db.execute(insert, p, c, c % 5)
        if p % 6 == 0:
            db.execute(f"DELETE FROM ruins WHERE p = {p}")
        if p % 6 == 1:
            for c in range(17):
                db.execute(f"DELETE FROM ruins WHERE p = {p} AND c = {c}")
        if p % 6 == 2:
            db.execute(f"UPDATE ruins SET s = {p} WHERE p = {p}")
            for c in (0, 4, 8, 12):
                db.execute(f"DELETE FROM ruins WHERE p = {p} AND c > {c} AND c < {c + 3}")
        if p % 6 == 3:
            db.execute(f"UPDATE ruins SET s = 1 WHERE p = {p}")
            db.execute(f"DELETE s FROM ruins WHERE p = {p}")
            db.execute(f"DELETE FROM ruins WHERE p = {p} AND c <= 13")


def live(p):
    kind = p % 6
    if kind == 0:
        return []
    if kind == 1:
        return [17, 18, 19]
    if kind == 2:
        return [c for c in range(20) if c not in (1, 2, 5, 6, 9, 10, 13, 14)]
    if kind == 3:
        return list(range(14, 20))
    return list(range(20)) if kind == 4 else [None]


@pytest.fixture
def set_limit(db):
    """Sets the tombstone limit live, and restores it afterwards."""
    before = db.one(f"SELECT value FROM system.config WHERE name = '{LIMIT}'")

    def change(value):
        db.execute(f"UPDATE system.config SET value = '{value}' WHERE name = '{LIMIT}'")

    yield change
    change(before)


def pages(db, text, size, values=None):
    statement = db.prepare(text).bind(values) if values is not None else SimpleStatement(text)
    statement.fetch_size = size
    result, out = db.session.execute(statement), []
    while True:
        out.append([tuple(row) for row in result.current_rows])
        assert len(out[-1]) <= size and len(out) < 3000
        if not result.has_more_pages:
            assert result.paging_state is None
            return out
        result.fetch_next_page()


STATEMENTS = [
    "SELECT p, c, v, s FROM ruins",
    "SELECT p, c FROM ruins LIMIT 31",
    "SELECT p, c FROM ruins PER PARTITION LIMIT 3",
    "SELECT p, c FROM ruins PER PARTITION LIMIT 3 LIMIT 17",
    "SELECT DISTINCT p, s FROM ruins",
    "SELECT c FROM ruins WHERE p = 1",
    "SELECT c FROM ruins WHERE p = 2 ORDER BY c DESC",
    "SELECT c FROM ruins WHERE p = 3 ORDER BY c DESC LIMIT 4",
    "SELECT c, s FROM ruins WHERE p = 5",
    "SELECT c FROM ruins WHERE p = 0",
    "SELECT p, c, s FROM ruins WHERE p IN (5, 3, 0, 2, 1, 77)",
    "SELECT p, c FROM ruins WHERE p IN (1, 2, 3) AND c IN (3, 18, 14)",
    "SELECT p, c FROM ruins WHERE token(p) > -4000000000000000000 AND token(p) <= "
        "5000000000000000000",
    "SELECT p, c FROM ruins WHERE v = 2 ALLOW FILTERING",
    "SELECT p, c FROM ruins WHERE v = 2 PER PARTITION LIMIT 1 LIMIT 5 ALLOW FILTERING",
    "SELECT count(*), count(s), sum(v), min(c), max(c) FROM ruins",
    "SELECT count(*) FROM ruins WHERE p IN (1, 2, 3)",
]


def test_the_truth(db, ruins):
    for p in range(18):
        assert db.column(f"SELECT c FROM ruins WHERE p = {p}", fetch_size=None) == live(p)


@pytest.mark.parametrize("text", STATEMENTS)
def test_every_boundary(db, ruins, text):
    expected = [tuple(row) for row in db.session.execute(SimpleStatement(text, fetch_size=None))]
    for size in (1, 2, 3, 7, 50):
        got = pages(db, text, size)
        assert sum(got, []) == expected, f"in pages of {size}"
        assert all(got[:-1]), f"an empty page that is not the last, in pages of {size}"


@pytest.mark.scylla
@pytest.mark.parametrize("tombstones", [1, 2, 3, 7])
def test_every_boundary_of_tombstones(db, ruins, set_limit, tombstones):
    set_limit(tombstones)
    empty = 0
    for text in STATEMENTS:
        expected = [
            tuple(row) for row in db.session.execute(SimpleStatement(text, fetch_size=None))
        ]
        for size in (1, 3, 50):
            got = pages(db, text, size)
            assert sum(got, []) == expected, f"{text} in pages of {size}"
            empty += sum(not page for page in got[:-1])
    assert empty > 10, "the limit cuts pages"


@pytest.mark.scylla
def test_a_set_limit_cuts_as_scylladb_does(db, set_limit):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    for ck in range(30):
        db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck = {ck}")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 31, 0)")
    for ck in range(0, 48, 4):
        db.execute(f"DELETE FROM {t} WHERE pk = 2 AND ck > {ck} AND ck < {ck + 3}")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (2, 2000, 0)")
    for ck in range(30):
        db.execute(f"UPDATE {t} SET v = 0 WHERE pk = 3 AND ck = {ck}")
    for ck in range(5, 28):
        db.execute(f"DELETE v FROM {t} WHERE pk = 3 AND ck = {ck}")
    expected = {
        1: [[], [], [], [31]],
        2: [[], [], [2000]],
        3: [[0, 1, 2, 3, 4], [], [28, 29]],
    }
    set_limit(10)
    for pk, want in expected.items():
        for tail in ("", " AND v = 0 ALLOW FILTERING"):
            got = pages(db, f"SELECT ck FROM {t} WHERE pk = {pk}{tail}", 10)
            assert [[row[0] for row in page] for page in got] == want
            assert len(
                db.rows(f"SELECT ck FROM {t} WHERE pk = {pk}{tail}", fetch_size=None)
            ) == sum(map(len, want))


@pytest.mark.scylla
def test_deleted_partitions_make_empty_pages(db, set_limit):
    t = db.table("pk int, ck int, v int, s int STATIC, PRIMARY KEY (pk, ck)")
    for pk in range(200):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES ({pk}, 0, 0)")
    all_pks = db.column(f"SELECT DISTINCT pk FROM {t}")
    for pk in all_pks[1:-1]:
        db.execute(f"DELETE FROM {t} WHERE pk = {pk}")
    set_limit(10)
    for tail in ("", " WHERE v = 0 ALLOW FILTERING"):
        got = pages(db, f"SELECT pk FROM {t}{tail}", 10)
        assert got[0] == [(all_pks[0],)] and got[-1] == [(all_pks[-1],)]
        assert len(got) > 10 and not any(got[1:-1])


@pytest.mark.scylla
@pytest.mark.node
def test_a_limit_in_the_file_cuts_and_the_default_does_not(node):
    for config in ({}, {LIMIT: 10}):
        node.config = config
        node.start()
        cluster, session = connect(node.address)
        try:
            value, source = session.execute(
                f"SELECT value, source FROM system.config WHERE name = '{LIMIT}'"
            ).one()
            assert (value, source) == (("10", "yaml") if config else ("10000", "default"))
            if not config:
                session.execute(
                    "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
                    " 'replication_factor': 1}"
                )
                session.execute("CREATE TABLE ks.t (p int, c int, PRIMARY KEY (p, c))")
                for c in range(30):
                    session.execute(f"DELETE FROM ks.t WHERE p = 1 AND c = {c}")
            first = session.execute(
                SimpleStatement("SELECT * FROM ks.t WHERE p = 1", fetch_size=10)
            )
            assert first.has_more_pages == bool(config)
        finally:
            cluster.shutdown()
        node.stop()


@pytest.mark.scylla
def test_system_config(db, set_limit):
    rows = {
        row[0]: row[1:] for row in db.rows("SELECT name, source, type, value FROM system.config")
    }
    assert rows["native_transport_port"] == ("default", "integer", "9042")
    assert rows["cluster_name"][:2] == ("yaml", "string") and json.loads(rows["cluster_name"][2])
    assert rows["auto_snapshot"] == ("default", "bool", "true")
    assert all(source in ("default", "yaml", "cli", "cql") for source, _, _ in rows.values())
    set_limit(123)
    where = f"FROM system.config WHERE name = '{LIMIT}'"
    for _ in range(4):  # whichever shard answers
        assert db.rows(f"SELECT source, type, value {where}") == [("cql", "integer", "123")]
    for change, why in {
        "SET value = 'many' WHERE name = 'query_tombstone_page_limit'": "cannot parse option value",
        "SET value = '1' WHERE name = 'api_port'": "option is not live-updateable",
        "SET value = '1' WHERE name = 'no_such_name'": "no such option",
        "SET source = 'default' WHERE name = 'api_port'": "option value is required",
        "SET source = 'default', value = '1' WHERE name = 'api_port'": "option source is not "
            "updateable",
        "SET type = 'bool', value = '1' WHERE name = 'api_port'": "option type is immutable",
    }.items():
        db.refused(cassandra.WriteFailure, f"UPDATE system.config {change}")
        with pytest.raises(cassandra.WriteFailure, match=why):
            db.execute(f"UPDATE system.config {change}")
    assert db.one(f"SELECT value {where}") == "123"
    db.refused(cassandra.WriteFailure, "UPDATE system.local SET rack = 'x' WHERE key = 'local'")


@pytest.mark.scylla
def test_page_info(db, ruins):
    def info(text, size, payload={"messina-page-info": b""}):
        future = db.session.execute_async(
            SimpleStatement(text, fetch_size=size), custom_payload=payload
        )
        rows = future.result().current_rows
        told = (future.custom_payload or {}).get("messina-page-info")
        return len(rows), told and json.loads(told)

    count, told = info("SELECT c FROM ruins WHERE p = 1", 10)
    assert (count, told["end"], told["rows_examined"], told["tombstones_examined"]) == (
        3,
        "exhausted",
        20,
        17,
    )
    assert told["bytes_examined"] > 0 and told["replica_pages"] == 1
    assert info("SELECT c FROM ruins WHERE p = 4", 10)[1]["end"] == "rows"
    assert info("SELECT c FROM ruins WHERE p = 4 LIMIT 7", 10)[1]["end"] == "limit"
    assert info("SELECT count(*) FROM ruins WHERE p = 4", 10)[1]["rows_examined"] == 20
    assert (
        info("SELECT c FROM ruins WHERE p = 4 AND v = 1 ALLOW FILTERING", 10)[1]["rows_examined"]
        >= 10
    )
    assert info("SELECT c FROM ruins WHERE p = 4", 10, {"other": b""})[1] is None
    assert info("SELECT c FROM ruins WHERE p = 4", 10, None)[1] is None


@pytest.mark.scylla
def test_the_trace_says_why_a_page_ended(db, ruins):
    result = db.session.execute(
        SimpleStatement("SELECT c FROM ruins WHERE p = 2", fetch_size=5), trace=True
    )
    events = [event.description for event in result.get_query_trace().events]
    assert any("The page ended: rows; examined" in event for event in events), events


def test_prepared_and_simple_pages_mix(db, ruins):
    """A paging state of a prepared statement continues a query with the same text and literals, and
    the other way round."""
    text, rows, state = "SELECT c FROM ruins WHERE p = {} AND c > {}", [], None
    prepared = db.prepare(text.format("?", "?"))
    for turn in range(50):
        statement = prepared.bind((4, 3)) if turn % 2 else SimpleStatement(text.format(4, 3))
        statement.fetch_size = 3
        result = db.session.execute(statement, paging_state=state)
        rows += [row[0] for row in result.current_rows]
        state = result.paging_state
        if state is None:
            break
    assert rows == list(range(4, 20))


def test_a_select_star_goes_on_after_alter(db):
    t = db.table("p int, c int, PRIMARY KEY (p, c)")
    for c in range(20):
        db.execute(f"INSERT INTO {t} (p, c) VALUES (1, {c})")
    for prepared in (False, True):
        statement = (
            db.prepare(f"SELECT * FROM {t} WHERE p = 1").bind(())
            if prepared
            else SimpleStatement(f"SELECT * FROM {t} WHERE p = 1")
        )
        statement.fetch_size = 6
        result = db.session.execute(statement)
        rows = [row.c for row in result.current_rows]
        db.execute(f"ALTER TABLE {t} ADD x{uuid.uuid4().hex[:8]} text")
        while result.has_more_pages:
            result.fetch_next_page()
            rows += [row.c for row in result.current_rows]
        assert rows == list(range(20))


@pytest.mark.scylla
@pytest.mark.node
def test_states_survive_rotated_keys_and_a_crash(node):
    """Keys rotate every second: a state with the first key continues with every later one, and
    after kill -9."""
    node.config = {"paging_key_rotation_period_in_s": 1}
    node.start()
    cluster, session = connect(node.address)

    def rotations(count):
        seen = set()
        while len(seen) <= count:  # each new key is a new version of the metadata
            seen.add(session.execute("SELECT schema_version FROM system.local").one()[0])

    try:
        session.execute(
            "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE ks.t (p int, c int, PRIMARY KEY (p, c))")
        for c in range(40):
            session.execute(f"INSERT INTO ks.t (p, c) VALUES ({c % 3}, {c})")
        statement = SimpleStatement("SELECT c FROM ks.t", fetch_size=10)
        result = session.execute(statement)
        rows = [row.c for row in result.current_rows]
        for step in range(3):
            rotations(2)
            if step == 1:
                cluster.shutdown()
                node.restart(kill=True)
                cluster, session = connect(node.address)
            result = session.execute(statement, paging_state=result.paging_state)
            rows += [row.c for row in result.current_rows]
        assert sorted(rows) == list(range(40))
    finally:
        cluster.shutdown()
