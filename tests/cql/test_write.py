"""INSERT, UPDATE and DELETE: upserts, row markers, timestamps, TTL, every kind of tombstone, null
and unset."""

import itertools
import time

import pytest
from cassandra.query import UNSET_VALUE
from database import Invalid, Syntax


@pytest.fixture
def t(db):
    return db.table("pk int, ck int, v int, w text, s int STATIC, PRIMARY KEY (pk, ck)")


# -- what is refused -------------------------------------------------------------------------------

@pytest.mark.parametrize("text", [
    "INSERT INTO {} (pk) VALUES (1)", "INSERT INTO {} (ck, v) VALUES (1, 1)",
    "INSERT INTO {} (pk, ck, nothing) VALUES (1, 1, 1)",
    "INSERT INTO {} (pk, ck, v) VALUES (1, 1)", "INSERT INTO {} (pk, ck) VALUES (1, 1, 1)",
    "INSERT INTO {} (pk, ck, v) VALUES (null, 1, 1)",
    "INSERT INTO {} (pk, ck, v) VALUES (1, null, 1)",
    "INSERT INTO {} (pk, ck, v, v) VALUES (1, 1, 1, 2)", "INSERT INTO nothing (pk) VALUES (1)",
    "INSERT INTO {} (pk, ck, v) VALUES ('x', 1, 1)",
    "INSERT INTO {} (pk, ck, v) VALUES (1, 1, 1) USING TTL -1",
    "INSERT INTO {} (pk, ck, v) VALUES (1, 1, 1) USING TTL 630720001",
    "INSERT INTO {} (pk, ck, v) VALUES (1, 1, 1) USING TTL 'x'",
    "UPDATE {} SET v = 1 WHERE ck = 1", "UPDATE {} SET v = 1 WHERE pk > 1 AND ck = 1",
    "UPDATE {} SET v = 1 WHERE pk = 1 AND ck > 1",
    "UPDATE {} SET v = 1 WHERE pk = 1 AND ck = 1 AND v = 1",
    "UPDATE {} SET pk = 2 WHERE pk = 1 AND ck = 1",
    "UPDATE {} SET ck = 2 WHERE pk = 1 AND ck = 1",
    "UPDATE {} SET nothing = 1 WHERE pk = 1 AND ck = 1",
    "UPDATE {} SET v = 1, v = 2 WHERE pk = 1 AND ck = 1",
    "UPDATE {} SET v = 'x' WHERE pk = 1 AND ck = 1", "UPDATE {} SET v = 1 WHERE token(pk) = 1",
    "UPDATE {} SET v = v + 1 WHERE pk = 1 AND ck = 1",
    "UPDATE {} SET v = 1 WHERE pk = null AND ck = 1", "DELETE FROM {} WHERE ck = 1",
    "DELETE FROM {} WHERE pk > 1", "DELETE FROM {} WHERE v = 1",
    "DELETE FROM {} WHERE pk = 1 AND v = 1", "DELETE pk FROM {} WHERE pk = 1 AND ck = 1",
    "DELETE ck FROM {} WHERE pk = 1 AND ck = 1",
    "DELETE nothing FROM {} WHERE pk = 1 AND ck = 1", "DELETE v FROM {} WHERE pk = 1",
    "DELETE v FROM {} WHERE pk = 1 AND ck > 1",
    "DELETE v[0] FROM {} WHERE pk = 1 AND ck = 1", "DELETE FROM nothing WHERE pk = 1",
    "DELETE FROM {} WHERE token(pk) > 1",
])
def test_refused(db, t, text):
    db.refused((Invalid, Syntax), text.format(t))
    assert db.rows(f"SELECT * FROM {t}") == []


@pytest.mark.parametrize("text", [
    "INSERT INTO {} (pk, ck) VALUES (1, 1) USING NOTHING 5", "INSERT {} (pk, ck) VALUES (1, 1)",
    "UPDATE {} SET v == 1 WHERE pk = 1",
    "DELETE * FROM {} WHERE pk = 1", "DELETE FROM {} WHERE pk = 1 USING TIMESTAMP 5",
    "DELETE FROM {} USING TTL 5 WHERE pk = 1",
    "UPDATE {} SET v = 1 WHERE pk = 1 AND ck = 1 USING TTL 5",
    "INSERT INTO {} (pk, ck) VALUES (1, 1) USING TTL 1, TIMESTAMP 1",
])
def test_no_cql(db, t, text):
    db.refused(Syntax, text.format(t))


# -- rows, markers, cells --------------------------------------------------------------------------

def test_upsert(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck, v, w) VALUES (1, 1, 1, 'a')")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 2)")
    assert db.rows(f"SELECT v, w FROM {t}") == [(2, "a")]
    db.execute(f"UPDATE {t} SET w = 'b' WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT v, w FROM {t}") == [(2, "b")]
    db.execute(f"UPDATE {t} SET v = 7, w = 'new' WHERE pk = 5 AND ck = 5")
    assert db.rows(f"SELECT v, w FROM {t} WHERE pk = 5") == [(7, "new")]


def test_insert_makes_a_row_update_only_cells(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, 1)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 2)")
    db.execute(f"UPDATE {t} SET v = 3 WHERE pk = 1 AND ck = 3")
    assert db.rows(f"SELECT ck, v FROM {t}") == [(1, None), (2, 2), (3, 3)]
    for ck in (1, 2, 3):
        db.execute(f"DELETE v FROM {t} WHERE pk = 1 AND ck = {ck}")
    assert db.rows(f"SELECT ck, v FROM {t}") == [(1, None), (2, None)]
    db.execute(f"UPDATE {t} SET v = null WHERE pk = 1 AND ck = 9")
    db.execute(f"UPDATE {t} SET v = null WHERE pk = 1 AND ck = 2")
    assert db.rows(f"SELECT ck FROM {t}") == [(1,), (2,)]


def test_row_of_an_update_lives_while_one_cell_does(db, t):
    db.execute(f"UPDATE {t} SET v = 1, w = 'a' WHERE pk = 1 AND ck = 1")
    db.execute(f"UPDATE {t} SET v = null WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT ck, v, w FROM {t}") == [(1, None, "a")]
    assert db.rows(f"SELECT v FROM {t}") == [(None,)]
    db.execute(f"UPDATE {t} SET w = null WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT * FROM {t}") == []


def test_update_with_in(db, t):
    db.execute(f"UPDATE {t} SET v = 5 WHERE pk IN (1, 2) AND ck IN (1, 3, 1)")
    assert sorted(db.rows(f"SELECT pk, ck, v FROM {t}")) == [(1, 1, 5), (1, 3, 5), (2, 1, 5),
        (2, 3, 5)]
    db.execute(f"UPDATE {t} SET v = 6 WHERE pk = 1 AND (ck) IN ((1), (4))")
    assert db.rows(f"SELECT ck, v FROM {t} WHERE pk = 1") == [(1, 6), (3, 5), (4, 6)]


def test_null_deletes_unset_leaves(db, t):
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v, w) VALUES (?, ?, ?, ?)")
    db.execute(insert, 1, 1, 5, "a")
    db.execute(insert, 1, 1, UNSET_VALUE, "b")
    assert db.rows(f"SELECT v, w FROM {t}") == [(5, "b")]
    db.execute(insert, 1, 1, None, UNSET_VALUE)
    assert db.rows(f"SELECT v, w FROM {t}") == [(None, "b")]
    db.execute(insert, 1, 1, UNSET_VALUE, UNSET_VALUE)
    assert db.rows(f"SELECT v, w FROM {t}") == [(None, "b")]
    update = db.prepare(f"UPDATE {t} SET v = ?, w = ? WHERE pk = ? AND ck = ?")
    db.execute(update, 7, UNSET_VALUE, 1, 1)
    assert db.rows(f"SELECT v, w FROM {t}") == [(7, "b")]
    db.refused(Invalid, insert, 1, UNSET_VALUE, 1, "x")
    db.refused(Invalid, insert, None, 1, 1, "x")
    db.refused((Invalid, ValueError), db.prepare(f"SELECT * FROM {t} WHERE pk = ?"), UNSET_VALUE)
    ttl = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (2, 2, 2) USING TTL ? AND TIMESTAMP ?")
    db.execute(ttl, UNSET_VALUE, UNSET_VALUE)
    assert db.rows(f"SELECT v, ttl(v) FROM {t} WHERE pk = 2") == [(2, None)]


# -- timestamps ------------------------------------------------------------------------------------

def test_newest_timestamp_wins(db, t):
    for order in itertools.permutations([(10, 1), (20, 2), (30, 3)]):
        db.execute(f"TRUNCATE {t}")
        for stamp, v in order:
            db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, {v}) USING TIMESTAMP {stamp}")
        assert db.rows(f"SELECT v, writetime(v) FROM {t}") == [(3, 30)]


def test_ties(db, t):
    """At the same timestamp a deletion wins over a value, and the larger value over the smaller, in
    either order."""
    for first, second in ((1, 2), (2, 1)):
        db.execute(f"TRUNCATE {t}")
        db.execute(
            f"INSERT INTO {t} (pk, ck, v, w) VALUES (1, 1, {first}, '{first}') USING TIMESTAMP 10"
        )
        db.execute(
            f"INSERT INTO {t} (pk, ck, v, w) VALUES (1, 1, {second}, '{second}') USING TIMESTAMP 10"
        )
        assert db.rows(f"SELECT v, w FROM {t}") == [(2, "2")]
    db.execute(f"DELETE v FROM {t} USING TIMESTAMP 10 WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT v, w FROM {t}") == [(None, "2")]
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 9) USING TIMESTAMP 10")
    assert db.rows(f"SELECT v, w FROM {t}") == [(None, "2")]
    db.execute(f"DELETE FROM {t} USING TIMESTAMP 10 WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT * FROM {t}") == []
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 9) USING TIMESTAMP 10")
    assert db.rows(f"SELECT * FROM {t}") == []
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 9) USING TIMESTAMP 11")
    assert db.rows(f"SELECT v FROM {t}") == [(9,)]


def test_cells_have_their_own_timestamps(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck, v, w) VALUES (1, 1, 1, 'a') USING TIMESTAMP 10")
    db.execute(f"UPDATE {t} USING TIMESTAMP 20 SET w = 'b' WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT writetime(v), writetime(w) FROM {t}") == [(10, 20)]
    db.execute(f"DELETE FROM {t} USING TIMESTAMP 15 WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT ck, v, w FROM {t}") == [(1, None, "b")]


def test_negative_timestamps(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TIMESTAMP -5")
    assert db.rows(f"SELECT v, writetime(v) FROM {t}") == [(1, -5)]
    db.refused(Invalid, f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TIMESTAMP {-2**63}")
    db.refused(
        (Invalid, Syntax),
        f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TIMESTAMP 9223372036854775808",
    )


@pytest.mark.scylla
def test_far_future_timestamps_are_refused(db, t):
    now = time.time_ns() // 1000
    day = 86_400_000_000
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TIMESTAMP {now + 2 * day}")
    for text in (f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TIMESTAMP {now + 4 * day}",
                 f"UPDATE {t} USING TIMESTAMP {now + 4 * day} SET v = 1 WHERE pk = 1 AND ck = 1",
                 f"DELETE FROM {t} USING TIMESTAMP {now + 4 * day} WHERE pk = 1"):
        db.refused(Invalid, text, match="future|timestamp")


def test_default_timestamps_of_the_protocol_are_not_restricted(db, t):
    """`restrict_future_timestamp` applies to USING TIMESTAMP. The default timestamps of a client
    whose clock is ahead are accepted."""
    future = time.time_ns() // 1000 + 30 * 86_400_000_000
    cluster = db.session.cluster
    generator, cluster.timestamp_generator = cluster.timestamp_generator, lambda: future
    try:
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (77, 1, 1)")
    finally:
        cluster.timestamp_generator = generator
    assert db.one(f"SELECT writetime(v) FROM {t} WHERE pk = 77") == future


def test_writes_of_one_session_are_in_order(db, t):
    """With server timestamps, an earlier write of a session never wins over a later one."""
    for n in range(300):
        db.session.execute(f"UPDATE {t} SET v = {n} WHERE pk = 1 AND ck = 1")
    assert db.one(f"SELECT v FROM {t}") == 299
    for _ in range(100):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (2, 2, 1)")
        db.execute(f"DELETE FROM {t} WHERE pk = 2 AND ck = 2")
        assert db.rows(f"SELECT * FROM {t} WHERE pk = 2") == []


# -- deletions -------------------------------------------------------------------------------------

def fill(db, t, rows=6):
    for pk, ck in itertools.product((1, 2), range(rows)):
        db.execute(f"INSERT INTO {t} (pk, ck, v, w, s) VALUES ({pk}, {ck}, {ck}, 'w', {pk})")


@pytest.mark.parametrize("where, gone", [
    ("pk = 1", set(range(6))), ("pk = 1 AND ck = 3", {3}), ("pk = 1 AND ck IN (0, 5, 9)", {0, 5}),
    ("pk = 1 AND ck > 3", {4, 5}),
    ("pk = 1 AND ck >= 3", {3, 4, 5}), ("pk = 1 AND ck < 2", {0, 1}),
    ("pk = 1 AND ck <= 2", {0, 1, 2}), ("pk = 1 AND ck > 1 AND ck < 4", {2, 3}),
    ("pk = 1 AND ck >= 1 AND ck <= 4", {1, 2, 3, 4}), ("pk = 1 AND ck > 4 AND ck < 2", set()),
    ("pk = 1 AND ck = 77", set()),
    ("pk = 1 AND (ck) IN ((1), (2))", {1, 2}), ("pk = 1 AND (ck) > (3)", {4, 5}),
    ("pk = 77", set()), ("pk IN (1, 77)", set(range(6))),
    ("pk = 1 AND ck IN ()", set()), ("pk IN ()", set()),
])
def test_delete(db, t, where, gone):
    fill(db, t)
    db.execute(f"DELETE FROM {t} WHERE {where}")
    rows = [(1, ck, ck) for ck in range(6) if ck not in gone]
    assert db.rows(f"SELECT pk, ck, v FROM {t} WHERE pk = 1") == rows
    assert db.rows(f"SELECT ck FROM {t} WHERE pk = 1 ORDER BY ck DESC") == [
        (ck,) for _, ck, _ in rows[::-1]
    ]
    assert len(db.rows(f"SELECT * FROM {t} WHERE pk = 2")) == 6
    for ck in range(6):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {ck}, 100)")
    assert db.column(f"SELECT v FROM {t} WHERE pk = 1") == [100] * 6


def test_range_deletes_of_prefixes(db):
    t = db.table("pk int, a int, b int, c int, PRIMARY KEY (pk, a, b, c)",
        "WITH CLUSTERING ORDER BY (a ASC, b DESC, c ASC)")
    rows = list(itertools.product(range(4), repeat=3))
    cases = [
        ("a = 1", lambda a, b, c: a == 1), ("a = 1 AND b = 2", lambda a, b, c: (a, b) == (1, 2)),
        ("a > 1", lambda a, b, c: a > 1),
        ("a = 2 AND b >= 1 AND b < 3", lambda a, b, c: a == 2 and 1 <= b < 3),
        ("a = 0 AND b = 0 AND c > 1", lambda a, b, c: (a, b) == (0, 0) and c > 1),
        ("(a, b) > (1, 1) AND (a, b) <= (2, 2)", lambda a, b, c: (1, 1) < (a, b) <= (2, 2)),
        ("a IN (0, 3)", lambda a, b, c: a in (0, 3)),
        ("a IN (0, 3) AND b = 1", lambda a, b, c: a in (0, 3) and b == 1),
        ("(a, b, c) < (1, 2, 3)", lambda a, b, c: (a, b, c) < (1, 2, 3)),
        ("(a, b) IN ((0, 1), (3, 3))", lambda a, b, c: (a, b) in ((0, 1), (3, 3))),
    ]
    insert = db.prepare(f"INSERT INTO {t} (pk, a, b, c) VALUES (?, ?, ?, ?)")
    for pk, (where, gone) in enumerate(cases):
        for row in rows:
            db.execute(insert, pk, *row)
        db.execute(f"DELETE FROM {t} WHERE pk = {pk} AND {where}")
        left = sorted((r for r in rows if not gone(*r)), key=lambda r: (r[0], -r[1], r[2]))
        assert db.rows(f"SELECT a, b, c FROM {t} WHERE pk = {pk}") == left, where
        assert (
            db.rows(f"SELECT a, b, c FROM {t} WHERE pk = {pk} ORDER BY a DESC", fetch_size=5)
            == left[::-1]
        ), where


def test_delete_columns(db, t):
    fill(db, t)
    db.execute(f"DELETE v FROM {t} WHERE pk = 1 AND ck = 1")
    db.execute(f"DELETE v, w FROM {t} WHERE pk = 1 AND ck IN (2, 3)")
    db.execute(f"DELETE s FROM {t} WHERE pk = 1")
    db.execute(f"DELETE v FROM {t} WHERE pk = 1 AND ck = 99")
    assert db.rows(f"SELECT ck, v, w, s FROM {t} WHERE pk = 1") == [
        (0, 0, "w", None), (1, None, "w", None), (2, None, None, None), (3, None, None, None),
        (4, 4, "w", None), (5, 5, "w", None)]


def test_delete_below_a_timestamp(db, t):
    for ck in range(6):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {ck}, 1) USING TIMESTAMP {ck * 10}")
    db.execute(f"DELETE FROM {t} USING TIMESTAMP 25 WHERE pk = 1")
    assert db.column(f"SELECT ck FROM {t}") == [3, 4, 5]
    db.execute(f"DELETE FROM {t} USING TIMESTAMP 35 WHERE pk = 1 AND ck >= 3 AND ck < 5")
    assert db.column(f"SELECT ck FROM {t}") == [4, 5]
    db.execute(f"DELETE FROM {t} USING TIMESTAMP 45 WHERE pk = 1 AND ck = 4")
    assert db.column(f"SELECT ck FROM {t}") == [5]
    for ck in range(6):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {ck}, 2) USING TIMESTAMP 30")
    assert db.rows(f"SELECT ck, v FROM {t}") == [(0, 2), (1, 2), (2, 2), (5, 1)]


def test_overlapping_range_tombstones(db):
    """Random slices are deleted at random timestamps, and compared with a model of each row."""
    import random

    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?) USING TIMESTAMP ?")
    delete = db.prepare(f"DELETE FROM {t} USING TIMESTAMP ? WHERE pk = ? AND ck >= ? AND ck < ?")
    rng = random.Random(3)
    for pk in range(8):
        written, deleted = {}, dict.fromkeys(range(30), -1)
        for _ in range(60):
            stamp = rng.randrange(1, 100)
            if rng.random() < 0.6:
                ck, v = rng.randrange(30), rng.randrange(1000)
                db.execute(insert, pk, ck, v, stamp)
                written[ck] = max(written.get(ck, (0, 0)), (stamp, v))
            else:
                low = rng.randrange(30)
                high = rng.randrange(low, 31)
                db.execute(delete, stamp, pk, low, high)
                for ck in range(low, high):
                    deleted[ck] = max(deleted[ck], stamp)
        expected = [(ck, v) for ck, (stamp, v) in sorted(written.items()) if stamp > deleted[ck]]
        assert db.rows(f"SELECT ck, v FROM {t} WHERE pk = {pk}") == expected
        assert (
            db.rows(f"SELECT ck, v FROM {t} WHERE pk = {pk} ORDER BY ck DESC", fetch_size=3)
            == expected[::-1]
        )
        assert db.rows(f"SELECT ck, v FROM {t} WHERE pk = {pk} AND ck >= 10 AND ck < 20") == [
            r for r in expected if 10 <= r[0] < 20
        ]


# -- TTL -------------------------------------------------------------------------------------------

def test_ttl(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck, v, w) VALUES (1, 1, 1, 'a') USING TTL 3")
    db.execute(f"UPDATE {t} USING TTL 3 SET v = 1 WHERE pk = 1 AND ck = 2")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 3, 1)")
    db.execute(f"UPDATE {t} USING TTL 3 SET w = 'gone' WHERE pk = 1 AND ck = 3")
    db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, 4) USING TTL 3")
    db.execute(f"UPDATE {t} SET v = 9 WHERE pk = 1 AND ck = 4")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 5, 1) USING TTL 3")
    db.execute(f"UPDATE {t} USING TTL 0 SET v = 2 WHERE pk = 1 AND ck = 5")
    db.execute(f"INSERT INTO {t} (pk, s) VALUES (1, 77) USING TTL 3")
    left = db.column(f"SELECT ttl(v) FROM {t} WHERE pk = 1 AND ck = 1")[0]
    assert 0 < left <= 3
    assert db.rows(f"SELECT ck, v, w, s FROM {t}") == [
        (1, 1, "a", 77), (2, 1, None, 77), (3, 1, "gone", 77), (4, 9, None, 77), (5, 2, None, 77)]
    end = time.monotonic() + 10
    expected = [(3, 1, None, None), (4, 9, None, None), (5, 2, None, None)]
    while time.monotonic() < end and db.rows(f"SELECT ck, v, w, s FROM {t}") != expected:
        time.sleep(0.1)
    assert db.rows(f"SELECT ck, v, w, s FROM {t}") == expected
    assert db.one(f"SELECT count(*) FROM {t}") == 3


def test_default_time_to_live(db):
    t = db.table("pk int PRIMARY KEY, v int", "WITH default_time_to_live = 500")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 1)")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, 1) USING TTL 100")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (3, 1) USING TTL 0")
    db.execute(f"UPDATE {t} SET v = 4 WHERE pk = 4")
    ttls = dict(db.rows(f"SELECT pk, ttl(v) FROM {t}"))
    assert (
        490 <= ttls[1] <= 500 and 90 <= ttls[2] <= 100 and ttls[3] is None and 490 <= ttls[4] <= 500
    )
    db.execute(f"ALTER TABLE {t} WITH default_time_to_live = 0")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (5, 1)")
    assert db.one(f"SELECT ttl(v) FROM {t} WHERE pk = 5") is None


def test_longest_ttl(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TTL 630720000")
    assert db.column(f"SELECT v FROM {t}") == [1]
    assert db.column(f"SELECT ttl(v) FROM {t}")[0] > 0


def test_expired_value_does_not_uncover_an_older_one(db, t):
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1)")
    db.execute(f"UPDATE {t} USING TTL 1 SET v = 2 WHERE pk = 1 AND ck = 1")
    end = time.monotonic() + 10
    while time.monotonic() < end and db.column(f"SELECT v FROM {t}") == [2]:
        time.sleep(0.1)
    assert db.rows(f"SELECT ck, v FROM {t}") == [(1, None)]


@pytest.mark.scylla
def test_using_timeout(db, t):
    db.execute(
        f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TIMEOUT 5s AND TTL 100 AND TIMESTAMP 5"
    )
    db.execute(f"UPDATE {t} USING TIMEOUT 500ms SET v = 2 WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT v FROM {t} USING TIMEOUT 1m") == [(2,)]
    db.execute(f"DELETE FROM {t} USING TIMEOUT 5s WHERE pk = 1")
    assert db.rows(f"SELECT * FROM {t}") == []
    db.execute(f"TRUNCATE {t} USING TIMEOUT 5s")


def test_large_values(db):
    t = db.table("pk int PRIMARY KEY, v blob")
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)")
    for pk, size in enumerate((0, 1, 4095, 4096, 65535, 65536, 1_000_000, 5_000_000)):
        value = bytes(range(256)) * (size // 256) + bytes(size % 256)
        db.execute(insert, pk, value)
        assert db.one(f"SELECT v FROM {t} WHERE pk = {pk}") == value


def test_wide_partition(db):
    t = db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (1, ?, ?)")
    futures = [db.session.execute_async(insert, (ck * 7919 % 5000, "x" * 50)) for ck in range(5000)]
    for future in futures:
        future.result()
    assert db.column(f"SELECT ck FROM {t} WHERE pk = 1") == list(range(5000))
    assert db.column(
        f"SELECT ck FROM {t} WHERE pk = 1 AND ck > 4000 AND ck < 4010 ORDER BY ck DESC"
    ) == list(range(4009, 4000, -1))
