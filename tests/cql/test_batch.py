"""BATCH as text and as a message of the protocol."""

import pytest
from cassandra.query import BatchStatement, BatchType, SimpleStatement
from database import Invalid, Syntax


@pytest.fixture
def t(db):
    return db.table("pk int, ck int, v int, s int STATIC, PRIMARY KEY (pk, ck)")


@pytest.mark.parametrize("head", ["BEGIN BATCH", "BEGIN UNLOGGED BATCH", "begin batch"])
def test_text(db, t, head):
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 9, 9)")
    db.execute(f"""{head}
        INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1);
        UPDATE {t} SET v = 2 WHERE pk = 1 AND ck = 2
        UPDATE {t} SET s = 5 WHERE pk = 2;
        DELETE FROM {t} WHERE pk = 1 AND ck = 9;
    APPLY BATCH;""")
    assert db.rows(f"SELECT pk, ck, v, s FROM {t} WHERE pk = 1") == [(1, 1, 1, None),
        (1, 2, 2, None)]
    assert db.rows(f"SELECT pk, ck, s FROM {t} WHERE pk = 2") == [(2, None, 5)]


def test_empty(db):
    db.execute("BEGIN BATCH APPLY BATCH")
    db.execute("BEGIN UNLOGGED BATCH APPLY BATCH;")
    db.session.execute(BatchStatement())


def test_several_tables(db, t):
    other = db.table("pk text PRIMARY KEY, v int")
    db.execute(
        f"BEGIN BATCH INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1); INSERT INTO"
        f" {db.keyspace}.{other} (pk, v) VALUES ('a', 1); APPLY BATCH"
    )
    assert db.column(f"SELECT v FROM {t}") == [1] and db.column(f"SELECT v FROM {other}") == [1]


def test_timestamps(db, t):
    db.execute(
        f"BEGIN BATCH USING TIMESTAMP 50 INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1); UPDATE {t}"
        " SET v = 2 WHERE pk = 1 AND ck = 2; APPLY BATCH"
    )
    assert db.column(f"SELECT writetime(v) FROM {t}") == [50, 50]
    db.execute(
        f"BEGIN BATCH INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 7) USING TIMESTAMP 60; UPDATE {t}"
        " USING TIMESTAMP 40 SET v = 7 WHERE pk = 1 AND ck = 2; APPLY BATCH"
    )
    assert db.rows(f"SELECT v, writetime(v) FROM {t}") == [(7, 60), (2, 50)]
    db.refused(
        (Invalid, Syntax),
        f"BEGIN BATCH USING TIMESTAMP 5 INSERT INTO {t} (pk, ck) VALUES (1, 1) USING TIMESTAMP 6;"
        " APPLY BATCH",
    )


def test_statements_of_a_batch_share_their_timestamp(db, t):
    """So within a batch a deletion wins over an insert, and the larger of two values wins, whatever
    the order."""
    db.execute(
        f"BEGIN BATCH DELETE FROM {t} WHERE pk = 1 AND ck = 1; INSERT INTO {t} (pk, ck, v) VALUES"
        " (1, 1, 1); APPLY BATCH"
    )
    assert db.rows(f"SELECT * FROM {t}") == []
    db.execute(
        f"BEGIN BATCH INSERT INTO {t} (pk, ck, v) VALUES (2, 1, 5); INSERT INTO {t} (pk, ck, v)"
        " VALUES (2, 1, 3); APPLY BATCH"
    )
    assert db.column(f"SELECT v FROM {t} WHERE pk = 2") == [5]


def test_ttl_inside(db, t):
    db.execute(
        f"BEGIN BATCH INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1) USING TTL 100; APPLY BATCH"
    )
    assert 90 <= db.column(f"SELECT ttl(v) FROM {t}")[0] <= 100
    db.refused(
        (Invalid, Syntax),
        f"BEGIN BATCH USING TTL 5 INSERT INTO {t} (pk, ck) VALUES (1, 1); APPLY BATCH",
    )


@pytest.mark.parametrize("body", [
    "SELECT * FROM {t}", "CREATE TABLE x (pk int PRIMARY KEY)", "TRUNCATE {t}", "USE system",
    "BEGIN BATCH APPLY BATCH",
])
def test_only_modifications(db, t, body):
    db.refused((Syntax, Invalid), f"BEGIN BATCH {body.format(t=t)}; APPLY BATCH")


def test_one_wrong_statement_stops_all(db, t):
    for wrong in (
        "INSERT INTO {t} (pk) VALUES (1)",
        "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'x')",
        "UPDATE nothing SET v = 1 WHERE pk = 1",
        "INSERT INTO {t} (pk, ck) VALUES (null, 1)",
    ):
        db.refused(
            Invalid,
            f"BEGIN BATCH INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1); {wrong.format(t=t)}; APPLY"
            " BATCH",
        )
    assert db.rows(f"SELECT * FROM {t}") == []


@pytest.mark.parametrize("kind", [BatchType.LOGGED, BatchType.UNLOGGED])
def test_message(db, t, kind):
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?)")
    batch = BatchStatement(batch_type=kind)
    for ck in range(50):
        batch.add(insert, (1, ck, ck * 2))
    batch.add(SimpleStatement(f"INSERT INTO {t} (pk, ck, v) VALUES (%s, %s, %s)"), (1, 50, 100))
    batch.add(SimpleStatement(f"DELETE FROM {t} WHERE pk = 5"))
    db.session.execute(batch)
    assert db.rows(f"SELECT ck, v FROM {t} WHERE pk = 1") == [(ck, ck * 2) for ck in range(51)]


def test_message_with_a_select(db, t):
    batch = BatchStatement()
    batch.add(SimpleStatement(f"SELECT * FROM {t}"))
    with pytest.raises((Invalid, Syntax)):
        db.session.execute(batch)
    assert db.one(f"SELECT count(*) FROM {t}") == 0


def test_many_partitions(db, t):
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (?, 0, ?)")
    batch = BatchStatement()
    for pk in range(200):
        batch.add(insert, (pk, pk))
    db.session.execute(batch)
    assert sorted(db.rows(f"SELECT pk, v FROM {t}")) == [(pk, pk) for pk in range(200)]


def test_too_large(db):
    t = db.table("pk int, ck int, v blob, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?)")
    batch = BatchStatement(batch_type=BatchType.LOGGED)
    for ck in range(30):
        batch.add(insert, (ck, ck, bytes(100_000)))
    with pytest.raises(Invalid, match="(?i)batch"):
        db.session.execute(batch)
    assert db.rows(f"SELECT pk FROM {t}") == []


def test_prepared_batch_text(db, t):
    prepared = db.prepare(
        f"BEGIN BATCH INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?); UPDATE {t} SET v = ? WHERE pk ="
        " ? AND ck = ?; APPLY BATCH"
    )
    db.execute(prepared, 1, 1, 10, 20, 1, 2)
    assert db.rows(f"SELECT ck, v FROM {t}") == [(1, 10), (2, 20)]
