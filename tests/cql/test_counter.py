"""Counters: their value is the sum of the acknowledged updates, whatever happens to the node."""

import threading
import time
from collections import Counter
from decimal import Decimal

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, SimpleStatement
from database import Config, Database, Invalid


@pytest.fixture
def t(db):
    return db.table("pk int, ck int, n counter, m counter, s counter STATIC, PRIMARY KEY (pk, ck)")


def test_prepared_and_unset(db, t):
    up = db.prepare(f"UPDATE {t} SET n = n + ?, m = m - ? WHERE pk = ? AND ck = ?")
    assert [str(spec.type.typename) for spec in up.column_metadata] == [
        "counter",
        "counter",
        "int",
        "int",
    ]
    db.execute(up, 5, 3, 1, 1)
    db.execute(up, UNSET_VALUE, 4, 1, 1)
    db.execute(up, UNSET_VALUE, UNSET_VALUE, 1, 2)
    assert db.rows(f"SELECT pk, ck, n, m FROM {t}") == [(1, 1, 5, -7)]
    db.refused(Invalid, up, None, 1, 1, 1, match="null")
    assert db.rows(f"SELECT n, m FROM {t} WHERE pk = 1 AND ck = 1") == [(5, -7)]


def test_equal_values_of_in_count_once(db):
    t = db.table("pk int, ck decimal, n counter, PRIMARY KEY (pk, ck)")
    for tuples in ("(1.0), (1.00)", "(1.00), (2), (1.0), (1)"):
        db.execute(f"UPDATE {t} SET n = n + 1 WHERE pk = 0 AND (ck) IN ({tuples})")
    bound = db.prepare(f"UPDATE {t} SET n = n + 1 WHERE pk = 0 AND (ck) IN ?")
    db.execute(bound, [(Decimal("1"),), (Decimal("2.0"),), (Decimal("1.000"),)])
    assert db.rows(f"SELECT ck, n FROM {t}") == [(Decimal(1), 3), (Decimal(2), 2)]


def test_wraps_around(db, t):
    up = db.prepare(f"UPDATE {t} SET n += ? WHERE pk = 1 AND ck = 1")
    db.execute(up, 2**63 - 1)
    db.execute(up, 1)
    assert db.one(f"SELECT n FROM {t} WHERE pk = 1 AND ck = 1") == -(2**63)


def test_static(db, t):
    db.execute(f"UPDATE {t} SET s = s + 3 WHERE pk = 1")
    assert db.rows(f"SELECT pk, ck, s, n FROM {t}") == [(1, None, 3, None)]
    db.execute(f"UPDATE {t} SET s = s + 1, n = n + 2 WHERE pk = 1 AND ck = 7")
    assert db.rows(f"SELECT pk, ck, s, n FROM {t}") == [(1, 7, 4, 2)]
    assert db.rows(f"SELECT DISTINCT pk, s FROM {t}") == [(1, 4)]


@pytest.mark.parametrize("statement, match", [
    ("INSERT INTO {t} (pk, ck, n) VALUES (1, 1, 1)", "INSERT"),
    ("UPDATE {t} SET n = 1 WHERE pk = 1 AND ck = 1", "cannot set the value of counter column n"),
    ("UPDATE {t} USING TTL 5 SET n = n + 1 WHERE pk = 1 AND ck = 1", "TTL"),
    ("UPDATE {t} USING TIMESTAMP 5 SET n = n + 1 WHERE pk = 1 AND ck = 1", "timestamp"),
    ("UPDATE {t} SET n = n + null WHERE pk = 1 AND ck = 1", "null"),
    ("UPDATE {t} SET n = n + 1 WHERE pk = 1 AND ck = 1 IF n = 1", "counter"),
    ("UPDATE {t} SET n = n + 1 WHERE pk = 1", "ck"),
    ("BEGIN BATCH UPDATE {t} SET n = n + 1 WHERE pk = 1 AND ck = 1; APPLY BATCH", "logged batch"),
    ("BEGIN COUNTER BATCH USING TIMESTAMP 1 UPDATE {t} SET n = n + 1 WHERE pk = 1 AND ck = 1; "
        "APPLY BATCH", "timestamp"),
    ("BEGIN COUNTER BATCH INSERT INTO {plain} (pk) VALUES (1); APPLY BATCH", "non-counter"),
    ("BEGIN UNLOGGED BATCH INSERT INTO {plain} (pk) VALUES (1); UPDATE {t} SET n = n + 1 WHERE pk "
        "= 1 AND ck = 1; APPLY BATCH", "same batch"),
    ("UPDATE {plain} SET v = v + 1 WHERE pk = 1", "non counter column"),
])
def test_refused(db, t, statement, match):
    plain = db.table("pk int PRIMARY KEY, v bigint")
    db.refused(Invalid, statement.format(t=t, plain=plain), match=match)
    assert db.rows(f"SELECT * FROM {t}") == []


def test_tables(db, t):
    db.refused(
        (Config, Invalid),
        "CREATE TABLE mixed (pk int PRIMARY KEY, n counter, v int)",
        match="non counter",
    )
    db.refused(Invalid, "CREATE TABLE keyed (n counter PRIMARY KEY)", match="PRIMARY KEY")
    db.refused((Config, Invalid), f"ALTER TABLE {t} ADD v int", match="non counter")
    db.execute(f"ALTER TABLE {t} ADD extra counter")
    db.execute(f"UPDATE {t} SET extra = extra + 1 WHERE pk = 1 AND ck = 1")
    assert db.one(f"SELECT extra FROM {t}") == 1
    db.execute(f"ALTER TABLE {t} DROP extra")
    db.refused(Invalid, f"ALTER TABLE {t} ADD extra counter", match="re-add")
    description = db.create_statement(f"TABLE {t}")
    db.execute(f"DROP TABLE {t}")
    db.execute(description)
    assert db.create_statement(f"TABLE {t}") == description


def test_consistency(db, t):
    for level in (
        ConsistencyLevel.ONE,
        ConsistencyLevel.QUORUM,
        ConsistencyLevel.ALL,
        ConsistencyLevel.LOCAL_QUORUM,
    ):
        db.execute(f"UPDATE {t} SET n = n + 1 WHERE pk = 1 AND ck = 1", consistency_level=level)
    assert db.one(f"SELECT n FROM {t}") == 4
    db.refused(
        Invalid,
        f"UPDATE {t} SET n = n + 1 WHERE pk = 1 AND ck = 1",
        match="ANY",
        consistency_level=ConsistencyLevel.ANY,
    )


@pytest.mark.parametrize("kind", [BatchType.COUNTER, BatchType.UNLOGGED])
def test_batch_message(db, t, kind):
    up = db.prepare(f"UPDATE {t} SET n = n + ? WHERE pk = ? AND ck = ?")
    batch = BatchStatement(batch_type=kind)
    for pk in range(4):
        for _ in range(5):
            batch.add(up, (pk + 1, pk, 0))
        batch.add(SimpleStatement(f"UPDATE {t} SET m = m + 1 WHERE pk = {pk} AND ck = 0"))
    db.session.execute(batch)
    assert sorted(db.rows(f"SELECT pk, n, m FROM {t}")) == [
        (pk, 5 * (pk + 1), 1) for pk in range(4)
    ]


def test_logged_batch_message_is_refused(db, t):
    batch = BatchStatement(batch_type=BatchType.LOGGED)
    batch.add(SimpleStatement(f"UPDATE {t} SET n = n + 1 WHERE pk = 1 AND ck = 1"))
    with pytest.raises(Invalid, match="logged batch"):
        db.session.execute(batch)


def test_pages_and_filters(db, t):
    up = db.prepare(f"UPDATE {t} SET n = n + ? WHERE pk = 1 AND ck = ?")
    for ck in range(50):
        db.execute(up, ck, ck)
    assert db.rows(f"SELECT ck, n FROM {t} WHERE pk = 1", fetch_size=7) == [
        (ck, ck) for ck in range(50)
    ]
    assert db.rows(
        f"SELECT ck, n FROM {t} WHERE pk = 1 AND n >= 40 ALLOW FILTERING", fetch_size=3
    ) == [(ck, ck) for ck in range(40, 50)]
    assert db.one(f"SELECT sum(n), max(n), min(n), count(n) FROM {t}") == (
        sum(range(50)),
        49,
        0,
        50,
    )


def test_many_clients_at_once(db, t):
    """Every update counts once, even if many connections to all shards update the same row."""
    up = db.prepare(f"UPDATE {t} SET n = n + ? WHERE pk = ? AND ck = 0")

    def client(number):
        for n in range(100):
            db.session.execute(up, (1 if number % 2 else 2, n % 3))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    each = Counter(n % 3 for n in range(100))
    assert sorted(db.rows(f"SELECT pk, n FROM {t}")) == [
        (pk, each[pk] * 4 * (1 + 2)) for pk in range(3)
    ]


def test_deletions(db, t):
    up = db.prepare(f"UPDATE {t} SET n = n + 5 WHERE pk = 1 AND ck = ?")
    for ck in range(3):
        db.execute(up, ck)
    db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck = 0")
    db.execute(up, 0)
    assert db.rows(f"SELECT ck, n FROM {t}") == [(0, 5), (1, 5), (2, 5)]
    db.execute(f"DELETE n FROM {t} WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT ck, n FROM {t}") == [(0, 5), (2, 5)]
    db.execute(f"DELETE FROM {t} WHERE pk = 1")
    assert db.rows(f"SELECT ck, n FROM {t}") == []
    db.execute(up, 2)
    assert db.rows(f"SELECT ck, n FROM {t}") == [(2, 5)]


@pytest.mark.node
def test_survives_flushes_and_compactions(db, server, t):
    up = db.prepare(f"UPDATE {t} SET n = n + ? WHERE pk = ? AND ck = 0")
    for round_number in range(5):
        for pk in range(20):
            db.execute(up, pk + round_number, pk)
        server.flush(db.keyspace)
    wanted = [(pk, 5 * pk + 10) for pk in range(20)]
    assert sorted(db.rows(f"SELECT pk, n FROM {t}")) == wanted
    status, body = server.admin("POST", f"/storage_service/keyspace_compaction/{db.keyspace}")
    assert status == 200, body
    assert sorted(db.rows(f"SELECT pk, n FROM {t}")) == wanted


@pytest.mark.node
def test_survives_kill(node):
    """After kill -9 each counter has all acknowledged updates, and possibly some of those that were
    pending. Another replay of the log changes nothing."""
    node.start()
    db = Database(node.address)
    keyspace = db.keyspace
    db.table("pk int PRIMARY KEY, n counter", name="t")
    up = db.prepare("UPDATE t SET n = n + 1 WHERE pk = ?")
    acknowledged, open_ended = Counter(), Counter()
    stop = threading.Event()

    def client(number):
        n = number
        while not stop.is_set():
            n += 1
            try:
                db.session.execute(up, (n % 5,), timeout=5)
                mine[number][0][n % 5] += 1
            except Exception:
                mine[number][1][n % 5] += 1
                return

    mine = [(Counter(), Counter()) for _ in range(8)]
    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while sum(sum(done.values()) for done, _ in mine) < 1000 and time.monotonic() < end:
        time.sleep(0.01)
    node.flush(keyspace)
    node.kill()
    stop.set()
    for thread in threads:
        thread.join()
    db.cluster.shutdown()
    for done, unknown in mine:
        acknowledged += done
        open_ended += unknown
    assert sum(acknowledged.values()) >= 1000
    seen = []
    for _ in range(2):
        node.start()
        again = Database(node.address)
        seen.append(dict(again.rows(f"SELECT pk, n FROM {keyspace}.t")))
        again.close()
        node.kill()
    assert seen[0] == seen[1]
    for pk in range(5):
        assert acknowledged[pk] <= seen[0].get(pk, 0) <= acknowledged[pk] + open_ended[pk], (
            pk,
            acknowledged,
            open_ended,
            seen,
        )
