"""SELECT ... FROM MUTATION_FRAGMENTS(table): the contents of memtables, the row cache and sstables,
source by source."""

import json
import urllib.request

import pytest
from cassandra.query import SimpleStatement
from database import Invalid

pytestmark = pytest.mark.scylla

WIDE = "a int, b int, c int, d int, v text, s text static, PRIMARY KEY ((a, b), c, d)"
PLACE = "a, b, partition_region, c, d, position_weight, mutation_fragment_kind"
SOURCES = {"memtable": "mutation_source < 'n'", "sstable": "mutation_source > 'sstable:'"}


@pytest.fixture
def flush(db, server):
    """Flushes all tables of the keyspace."""
    if server is None:
        pytest.skip("the address of its administration is not known")

    def call():
        path = f"http://{server.address}:10000/storage_service/keyspace_flush/{db.keyspace}"
        urllib.request.urlopen(urllib.request.Request(path, method="POST"), timeout=30).read()

    return call


def fill(db):
    """A table with one partition that has a fragment of each kind, and the fragments."""
    t = db.table(WIDE)
    db.execute(f"DELETE FROM {t} WHERE a = 1 AND b = 2")
    db.execute(f"UPDATE {t} SET s = 'static' WHERE a = 1 AND b = 2")
    db.execute(f"DELETE FROM {t} WHERE a = 1 AND b = 2 AND c = 0 AND d > 0 AND d < 3")
    for d in (1, 2):
        db.execute(f"INSERT INTO {t} (a, b, c, d, v) VALUES (1, 2, 0, {d}, 'value')")
    places = [
        (1, 2, 0, None, None, None, "partition start"),
        (1, 2, 1, None, None, None, "static row"),
        (1, 2, 2, 0, 0, 1, "range tombstone change"),
        (1, 2, 2, 0, 1, 0, "clustering row"),
        (1, 2, 2, 0, 2, 0, "clustering row"),
        (1, 2, 2, 0, 3, -1, "range tombstone change"),
        (1, 2, 3, None, None, None, "partition end"),
    ]
    return t, places


@pytest.mark.parametrize("source", SOURCES)
def test_places(db, flush, source):
    t, places = fill(db)
    if source == "sstable":
        flush()
    which = SOURCES[source]
    assert (
        db.rows(f"SELECT {PLACE} FROM MUTATION_FRAGMENTS({t}) WHERE a = 1 AND b = 2 AND {which}")
        == places
    )
    assert (
        db.rows(
            f"SELECT {PLACE} FROM mutation_fragments({db.keyspace}.{t}) WHERE {which} ALLOW"
            " FILTERING"
        )
        == places
    )
    other = next(text for name, text in SOURCES.items() if name != source)
    assert (
        db.rows(f"SELECT {PLACE} FROM MUTATION_FRAGMENTS({t}) WHERE a = 1 AND b = 2 AND {other}")
        == []
    )


def test_slices_counts_and_lists(db):
    t, places = fill(db)
    key = "a = 1 AND b = 2"
    source = db.column(f"SELECT mutation_source FROM MUTATION_FRAGMENTS({t}) WHERE {key}")[0]
    assert source == "memtable:0"
    place = f"{key} AND mutation_source = '{source}' AND partition_region = 2 AND c = 0"
    assert db.rows(
        f"SELECT d, position_weight FROM MUTATION_FRAGMENTS({t}) WHERE {place} AND d >= 1 AND d < 3"
    ) == [(1, 0), (2, 0)]
    tuples = f"(('{source}', 2, 0, 1, 0), ('{source}', 2, 0, 2, 0), ('sstable', 2, 0, 2, 0))"
    columns = "mutation_source, partition_region, c, d, position_weight"
    assert db.rows(
        f"SELECT d FROM MUTATION_FRAGMENTS({t}) WHERE {key} AND ({columns}) IN {tuples}"
    ) == [(1,), (2,)]
    for kind, count in (("clustering row", 2), ("range tombstone change", 2), ("partition end", 1)):
        assert (
            db.one(
                f"SELECT count(*) FROM MUTATION_FRAGMENTS({t}) WHERE {key} AND"
                f" mutation_fragment_kind = '{kind}' ALLOW FILTERING"
            )
            == count
        )


def test_metadata_and_values(db):
    u = db.type("x int")
    t = db.table(f"p int, c text, v text, m map<int, text>, s set<int>, l list<int>, u {u}, f "
        f"frozen<list<int>>, tu tuple<int, text>, PRIMARY KEY (p, c)")
    db.execute(f"INSERT INTO {t} (p, c, v, m, s, l, u, f, tu) VALUES (1, 'k', 'text', {{1: "
        f"'one'}}, {{5}}, [7], {{x: 9}}, [1, 2], (3, 'y')) "
               "USING TIMESTAMP 1000 AND TTL 500")
    start, row, end = db.rows(f"SELECT metadata, value FROM MUTATION_FRAGMENTS({t}) WHERE p = 1")
    assert (json.loads(start[0]), start[1], end) == ({"tombstone": {}}, None, (None, None))
    metadata, values = json.loads(row[0]), json.loads(row[1])
    assert metadata["marker"]["timestamp"] == 1000 and metadata["marker"]["ttl"] == "500s"
    columns = metadata["columns"]
    assert columns["v"] == {
        "is_live": True,
        "type": "regular",
        "timestamp": 1000,
        "ttl": "500s",
        "expiry": columns["v"]["expiry"],
    }
    assert columns["f"]["type"] == "frozen-collection" and columns["m"]["type"] == "collection"
    assert columns["m"]["tombstone"]["timestamp"] == 999, "an INSERT replaces the whole map"
    assert [cell["key"] for cell in columns["m"]["cells"]] == ["1"]
    assert (
        values["v"] == "text"
        and values["f"] == "[1, 2]"
        and values["m"] == [{"key": "1", "value": "one"}]
    )
    assert values["s"] == [{"key": "5", "value": ""}] and [
        cell["value"] for cell in values["l"]
    ] == ["7"]


def test_dead_cells_and_rows(db):
    t = db.table("p int, c int, v int, PRIMARY KEY (p, c)")
    db.execute(f"DELETE v FROM {t} USING TIMESTAMP 5 WHERE p = 1 AND c = 1")
    db.execute(f"DELETE FROM {t} USING TIMESTAMP 6 WHERE p = 1 AND c = 2")
    rows = db.rows(
        f"SELECT c, metadata, value FROM MUTATION_FRAGMENTS({t}) WHERE p = 1 AND mutation_source ="
        " 'memtable:0' AND partition_region = 2"
    )
    cell, row = (json.loads(metadata) for _, metadata, _ in rows)
    assert (
        cell["columns"]["v"]["is_live"] is False
        and cell["columns"]["v"]["timestamp"] == 5
        and "marker" not in cell
    )
    assert row["tombstone"]["timestamp"] == 6 and row["columns"] == {}
    assert [json.loads(value) for _, _, value in rows] == [{"v": None}, {}]


def test_deleted_partitions_are_there(db, flush):
    t = db.table("p int PRIMARY KEY, v int")
    for p in range(10):
        db.execute(f"INSERT INTO {t} (p, v) VALUES ({p}, 1)")
    for p in range(0, 10, 3):
        db.execute(f"DELETE FROM {t} WHERE p = {p}")
    flush()
    rows = db.rows(
        f"SELECT p, metadata FROM MUTATION_FRAGMENTS({t}) WHERE mutation_fragment_kind = 'partition"
        " start' ALLOW FILTERING"
    )
    dead = [p for p, metadata in rows if json.loads(metadata)["tombstone"]]
    assert sorted(p for p, _ in rows) == list(range(10)) and sorted(dead) == [0, 3, 6, 9]


def test_the_cache_of_rows_is_a_source(db, flush):
    t = db.table("p int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {t} (p, v) VALUES (1, 1)")
    flush()
    sources = lambda: {
        row[0].split(":")[0]
        for row in db.rows(f"SELECT mutation_source FROM MUTATION_FRAGMENTS({t}) WHERE p = 1")
    }
    assert sources() == {"sstable"}
    assert db.one(f"SELECT v FROM {t} WHERE p = 1") == 1
    assert sources() == {"row-cache", "sstable"}
    db.execute(f"INSERT INTO {t} (p, v) VALUES (1, 2)")
    assert sources() == {"memtable", "row-cache", "sstable"}


def test_pages(db):
    t = db.table("p int, c int, PRIMARY KEY (p, c)")
    for c in range(43):
        db.execute(f"INSERT INTO {t} (p, c) VALUES (1, {c})")
    result = db.session.execute(
        SimpleStatement(f"SELECT c FROM MUTATION_FRAGMENTS({t}) WHERE p = 1", fetch_size=10)
    )
    pages = [len(result.current_rows)]
    while result.has_more_pages:
        result.fetch_next_page()
        pages.append(len(result.current_rows))
    assert pages == [10, 10, 10, 10, 5]


def test_counters_and_virtual_tables(db):
    t = db.table("p int PRIMARY KEY, n counter")
    db.execute(f"UPDATE {t} SET n = n + 5 WHERE p = 1")
    metadata, value = db.rows(f"SELECT metadata, value FROM MUTATION_FRAGMENTS({t})")[1]
    assert json.loads(metadata)["columns"]["n"]["type"] == "counter-shards"
    assert [shard["value"] for shard in json.loads(value)["n"]] == [5]
    rows = db.rows(
        "SELECT mutation_source, mutation_fragment_kind, value FROM"
        " MUTATION_FRAGMENTS(system.local)"
    )
    assert [kind for _, kind, _ in rows] == ["partition start", "clustering row", "partition end"]
    assert {source for source, _, _ in rows} == {"virtual-table"}
    assert json.loads(rows[1][2])["cluster_name"] == db.one("SELECT cluster_name FROM system.local")


def test_an_altered_table_is_shown_as_it_is(db):
    t = db.table("p int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {t} (p, v) VALUES (1, 1)")
    shown = db.prepare(f"SELECT value FROM MUTATION_FRAGMENTS({t}) WHERE p = 1")
    assert json.loads(db.rows(shown)[1][0]) == {"v": "1"}
    db.execute(f"ALTER TABLE {t} ADD w text")
    db.execute(f"UPDATE {t} SET w = 'x' WHERE p = 1")
    assert json.loads(db.rows(shown)[1][0]) == {"v": "1", "w": "x"}


def test_refused(db):
    t = db.table("p int PRIMARY KEY, v int")
    db.refused(
        Invalid,
        f"SELECT * FROM MUTATION_FRAGMENTS({t}) WHERE p = 1 ORDER BY mutation_source DESC",
        match="ORDER BY is not supported in SELECT FROM MUTATION_FRAGMENTS",
    )
    db.refused(Invalid, f"SELECT v FROM MUTATION_FRAGMENTS({t})", match="Unrecognized name v")
    db.refused(
        Invalid, f"SELECT * FROM MUTATION_FRAGMENTS({t}) WHERE value = 'x'", match="ALLOW FILTERING"
    )
    db.refused(Invalid, "SELECT * FROM MUTATION_FRAGMENTS(nothing)", match="unconfigured table")
