"""Pages: sizes, states passed between sessions, and that no row is lost, repeated or reordered.
Wrong paging states are tested with the raw protocol, because the Python drivers close a connection
after a protocol error."""

import pytest
from cassandra.query import SimpleStatement
from database import Database, connect

SHAPES = {
    "one partition": ("SELECT ck FROM wide WHERE pk = 1", 997),
    "reversed": ("SELECT ck FROM wide WHERE pk = 1 ORDER BY ck DESC", 997),
    "slice": ("SELECT ck FROM wide WHERE pk = 1 AND ck >= 100 AND ck < 612", 512),
    "limited": ("SELECT ck FROM wide WHERE pk = 1 LIMIT 333", 333),
    "all": ("SELECT pk, ck FROM wide", 997 + 300),
    "several": ("SELECT pk, ck FROM wide WHERE pk IN (1, 5, 7, 1000)", 997 + 2),
    "several rows": ("SELECT pk, ck FROM wide WHERE pk = 1 AND ck IN (1, 5, 7, 996, 2000)", 4),
    "distinct": ("SELECT DISTINCT pk FROM wide", 301),
    "per partition": ("SELECT pk, ck FROM wide PER PARTITION LIMIT 10", 310),
    "token range": ("SELECT pk, ck FROM wide WHERE token(pk) > -9223372036854775808", 997 + 300),
    "point": ("SELECT ck FROM wide WHERE pk = 1 AND ck = 5", 1),
    "nothing": ("SELECT ck FROM wide WHERE pk = 1 AND ck = 5000", 0),
}


@pytest.fixture(scope="module")
def wide(db):
    """Partition 1 with 997 rows; 300 more partitions with one row each."""
    db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)", name="wide")
    insert = db.prepare("INSERT INTO wide (pk, ck, v) VALUES (?, ?, ?)")
    futures = [db.session.execute_async(insert, (1, ck, f"v{ck}")) for ck in range(997)]
    futures += [db.session.execute_async(insert, (pk, 0, "single")) for pk in range(2, 302)]
    for future in futures:
        future.result()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_sizes(db, wide, shape, size):
    text, count = SHAPES[shape]
    if size == 1 and count > 500:
        text, count, size = text, count, 3
    expected = [tuple(r) for r in db.session.execute(SimpleStatement(text, fetch_size=None)).all()]
    assert len(expected) == count
    result = db.execute(text, fetch_size=size)
    rows, pages = [], 0
    while True:
        page = [tuple(r) for r in result.current_rows]
        assert len(page) <= size
        rows += page
        pages += 1
        if not result.has_more_pages:
            break
        result.fetch_next_page()
    assert rows == expected
    assert pages <= count // size + 2


def test_no_state_after_the_last_page(db, wide):
    for shape, size in (("one partition", 997), ("point", 1), ("nothing", 10), ("limited", 333),
            ("all", 5000)):
        text, _ = SHAPES[shape]
        result = db.execute(text, fetch_size=size)
        while result.has_more_pages:
            result.fetch_next_page()
        assert result.paging_state is None
    assert db.execute("SELECT ck FROM wide WHERE pk = 1 LIMIT 5", fetch_size=5).paging_state is None


@pytest.mark.parametrize("prepared", [False, True])
def test_state_in_another_session(db, host, wide, prepared):
    cluster, other = connect(host)
    try:
        other.set_keyspace(db.keyspace)
        text = "SELECT pk, ck, v FROM wide"

        def statement(session):
            it = session.prepare(text).bind(()) if prepared else SimpleStatement(text)
            it.fetch_size = 50
            return it

        rows, state, turn = [], None, 0
        while True:
            session = (db.session, other)[turn % 2]
            result = session.execute(statement(session), paging_state=state)
            rows += [tuple(r) for r in result.current_rows]
            state, turn = result.paging_state, turn + 1
            if state is None:
                break
        assert rows == db.rows(text) and len(rows) == 1297
    finally:
        cluster.shutdown()


def test_page_size_may_change(db, wide):
    text, rows, state = "SELECT ck FROM wide WHERE pk = 1", [], None
    for size in (1, 10, 100, 3, 5000):
        result = db.session.execute(SimpleStatement(text, fetch_size=size), paging_state=state)
        rows += [r.ck for r in result.current_rows]
        state = result.paging_state
    assert rows == list(range(997)) and state is None


@pytest.mark.scylla
def test_pages_are_cut_at_a_mebibyte(db):
    t = db.table("pk int, ck int, v blob, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (1, ?, ?)")
    for ck in range(15):
        db.execute(insert, ck, bytes(100_000))
    first = db.execute(f"SELECT ck, v FROM {t} WHERE pk = 1", fetch_size=1000)
    assert 10 <= len(first.current_rows) < 15
    assert db.column(f"SELECT ck, v FROM {t} WHERE pk = 1", fetch_size=1000) == list(range(15))
    assert (
        db.column(f"SELECT ck, v FROM {t} WHERE pk = 1 ORDER BY ck DESC", fetch_size=1000)
        == list(range(15))[::-1]
    )
    unpaged = db.session.execute(
        SimpleStatement(f"SELECT ck, v FROM {t} WHERE pk = 1", fetch_size=None)
    )
    assert len(unpaged.current_rows) == 15


def test_writes_between_pages(db):
    """Rows written before the position of a page do not appear, those written after it do. Rows
    deleted after it are gone."""
    t = db.table("pk int, ck int, PRIMARY KEY (pk, ck)")
    for ck in range(0, 100, 2):
        db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, {ck})")
    result = db.execute(f"SELECT ck FROM {t} WHERE pk = 1", fetch_size=10)
    rows = [r.ck for r in result.current_rows]
    assert rows == list(range(0, 20, 2))
    db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, 5)")
    db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, 95)")
    db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck > 50 AND ck < 60")
    while result.has_more_pages:
        result.fetch_next_page()
        rows += [r.ck for r in result.current_rows]
    assert rows == sorted([ck for ck in range(0, 100, 2) if not 50 < ck < 60] + [95])


def test_static_rows_across_pages(db):
    t = db.table("pk int, ck int, s int STATIC, PRIMARY KEY (pk, ck)")
    for pk in range(10):
        db.execute(f"INSERT INTO {t} (pk, s) VALUES ({pk}, {pk * 10})")
        for ck in range(pk):
            db.execute(f"INSERT INTO {t} (pk, ck) VALUES ({pk}, {ck})")
    for size in (1, 2, 3, 7):
        rows = db.rows(f"SELECT pk, ck, s FROM {t}", fetch_size=size)
        assert sorted(rows, key=str) == sorted(
            [(0, None, 0)] + [(pk, ck, pk * 10) for pk in range(10) for ck in range(pk)], key=str)


def test_tombstones_across_pages(db):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (1, ?, 1)")
    for ck in range(400):
        db.execute(insert, ck)
    for low in range(0, 400, 20):
        db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck >= {low} AND ck < {low + 13}")
    for ck in range(15, 400, 20):
        db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck = {ck}")
    expected = [ck for ck in range(400) if ck % 20 >= 13 and ck % 20 != 15]
    for size in (1, 3, 5, 64):
        assert db.column(f"SELECT ck FROM {t} WHERE pk = 1", fetch_size=size) == expected
        assert (
            db.column(f"SELECT ck FROM {t} WHERE pk = 1 ORDER BY ck DESC", fetch_size=size)
            == expected[::-1]
        )


@pytest.mark.node
@pytest.mark.long
def test_state_survives_flush_compaction_and_restart(node):
    node.start()
    db = Database(node.address)
    try:
        db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)", name="wide")
        insert = db.prepare("INSERT INTO wide (pk, ck, v) VALUES (?, ?, ?)")
        for n in range(1000):
            db.execute(insert, n % 10, n, n)
            if n % 250 == 249:
                node.flush(db.keyspace)
        text = f"SELECT pk, ck FROM {db.keyspace}.wide"
        expected = db.rows(text)
        rows, state, keyspace = [], None, db.keyspace
        for step in range(1000):
            result = db.session.execute(SimpleStatement(text, fetch_size=100), paging_state=state)
            rows += [tuple(r) for r in result.current_rows]
            state = result.paging_state
            if state is None:
                break
            if step == 2:
                node.compact(keyspace)
            if step == 5:
                db.cluster.shutdown()
                node.restart(kill=True)
                db.cluster, db.session = connect(node.address)
        assert rows == expected and len(rows) == 1000
    finally:
        db.cluster.shutdown()
