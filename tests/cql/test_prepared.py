"""Prepared statements: both kinds of markers, ids, metadata, schema changes, wrong values."""

import hashlib
import uuid

import pytest
from cassandra import DriverException
from cassandra.query import UNSET_VALUE, BatchStatement, SimpleStatement
from database import Database, Invalid, Syntax, connect


@pytest.fixture(scope="module")
def t(db):
    name = db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
    for ck in range(10):
        db.execute(f"INSERT INTO {name} (pk, ck, v) VALUES (1, {ck}, '{ck}')")
    return name


def test_positional_and_named(db, t):
    for text in (
        f"SELECT ck, v FROM {t} WHERE pk = ? AND ck = ?",
        f"SELECT ck, v FROM {t} WHERE pk = :p AND ck = :c",
        f'SELECT ck, v FROM {t} WHERE pk = :"P q" AND ck = :"c"',
    ):
        assert db.rows(db.prepare(text), 1, 3) == [(3, "3")]
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk = :p AND ck = :c")
    assert [m.name for m in prepared.column_metadata] == ["p", "c"]
    assert db.session.execute(prepared, {"c": 4, "p": 1}).one().ck == 4
    db.refused((Invalid, Syntax), f"SELECT ck FROM {t} WHERE pk = ? AND ck = 1")


@pytest.mark.scylla
def test_same_name_twice_is_one_variable(db, t):
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk = :x AND ck = :x")
    assert len(prepared.column_metadata) == 1
    assert db.session.execute(prepared, {"x": 1}).one().ck == 1


def test_metadata(db, t):
    prepared = db.prepare(
        f"INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?) USING TTL ? AND TIMESTAMP ?"
    )
    assert [(m.keyspace_name, m.table_name, m.name, m.type.cql_parameterized_type())
        for m in prepared.column_metadata] == [
        (db.keyspace, t, "pk", "int"), (db.keyspace, t, "ck", "int"),
        (db.keyspace, t, "v", "varchar"),
        (db.keyspace, t, "[ttl]", "int"), (db.keyspace, t, "[timestamp]", "bigint")]
    assert prepared.routing_key_indexes == [0]
    limit = db.prepare(f"SELECT v FROM {t} WHERE pk = ? LIMIT ?")
    assert [m.name for m in limit.column_metadata] == ["pk", "[limit]"]
    many = db.prepare(f"SELECT v FROM {t} WHERE pk IN ? AND ck IN ?")
    assert [(m.name.lower(), m.type.cql_parameterized_type()) for m in many.column_metadata] == [
        ("in(pk)", "list<int>"),
        ("in(ck)", "list<int>"),
    ]
    token = db.prepare(f"SELECT v FROM {t} WHERE token(pk) > ?")
    assert [(m.name, m.type.cql_parameterized_type()) for m in token.column_metadata] == [
        ("partition key token", "bigint")
    ]


def test_id_is_md5_of_keyspace_text_and_types(db, t):
    text = f"SELECT v FROM {t} WHERE pk = 1"
    assert db.prepare(text).query_id == hashlib.md5((db.keyspace + text).encode()).digest()
    text = f"SELECT v FROM {t} WHERE pk = ? AND ck = ?"
    assert (
        db.prepare(text).query_id
        == hashlib.md5((db.keyspace + text + "\0int\0int").encode()).digest()
    )
    assert db.prepare(text).query_id == db.prepare(text).query_id
    assert db.prepare(text + " ").query_id != db.prepare(text).query_id


def test_in(db, t):
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk = ? AND ck IN ?")
    assert db.column(prepared, 1, [5, 3, 99, 3]) == [3, 5]
    assert db.column(prepared, 1, []) == []
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk IN (?, ?) AND ck IN (?, 2)")
    assert db.column(prepared, 1, 2, 7) == [2, 7]
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk = 1 AND (ck) IN ?")
    assert db.column(prepared, [(1,), (4,)]) == [1, 4]
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk = 1 AND (ck) > ?")
    assert db.column(prepared, (7,)) == [8, 9]
    prepared = db.prepare(f"DELETE FROM {t} WHERE pk = ? AND ck IN ?")
    db.execute(prepared, 55, [1, 2])


def test_limit(db, t):
    prepared = db.prepare(f"SELECT ck FROM {t} WHERE pk = 1 LIMIT ?")
    assert db.column(prepared, 3) == [0, 1, 2]
    assert db.column(prepared, UNSET_VALUE) == list(range(10))
    for bad in (0, -1):
        db.refused(Invalid, prepared, bad)


def test_ttl_and_timestamp(db):
    t = db.table("pk int PRIMARY KEY, v int")
    prepared = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?")
    db.execute(prepared, 1, 1, 12345, 500)
    stamp, ttl = db.one(f"SELECT writetime(v), ttl(v) FROM {t}")
    assert stamp == 12345 and 490 <= ttl <= 500
    db.refused(Invalid, prepared, 1, 1, 12345, -1)
    db.refused(Invalid, prepared, 1, 1, 12345, 630720001)
    update = db.prepare(f"UPDATE {t} USING TTL ? SET v = ? WHERE pk = ?")
    db.execute(update, 0, 5, 2)
    assert db.rows(f"SELECT v, ttl(v) FROM {t} WHERE pk = 2") == [(5, None)]


def test_without_markers(db, t):
    assert db.column(db.prepare(f"SELECT ck FROM {t} WHERE pk = 1 AND ck < 3")) == [0, 1, 2]
    db.execute(db.prepare(f"INSERT INTO {t} (pk, ck) VALUES (9, 9)"))
    assert db.rows(db.prepare("SELECT cluster_name FROM system.local")) != []


@pytest.mark.parametrize("text, errors", [
    ("SELECT", Syntax), ("SELECT nothing FROM {t} WHERE pk = ?", Invalid),
    ("SELECT * FROM no_table WHERE pk = ?", Invalid),
    ("SELECT * FROM {t} WHERE ck = ?", Invalid), ("INSERT INTO {t} (pk) VALUES (?, ?)", Invalid),
    ("SELECT ? FROM {t}", (Syntax, Invalid)),
    ("SELECT * FROM ? WHERE pk = 1", Syntax),
    ("INSERT INTO {t} (pk, ck, v) VALUES (?, ?, 5)", Invalid), ("", Syntax),
])
def test_wrong_text(db, t, text, errors):
    with pytest.raises(errors):
        db.prepare(text.format(t=t))
    assert db.one("SELECT key FROM system.local") == "local"


def test_own_keyspace(db, host, t):
    """A prepared statement keeps the keyspace in which it was prepared."""
    cluster, session = connect(host)
    try:
        session.set_keyspace(db.keyspace)
        prepared = session.prepare(f"SELECT ck FROM {t} WHERE pk = ?")
        session.set_keyspace("system")
        assert len(session.execute(prepared, (1,)).all()) == 10
    finally:
        cluster.shutdown()


def test_own_keyspace_of_other_statements(db, host):
    """So do TRUNCATE, schema changes and DESCRIBE."""
    here, there = Database(host), db.keyspace
    try:
        for name in (here.keyspace, there):
            here.execute(f"CREATE TYPE {name}.own (x int)")
            here.execute(f"CREATE TABLE {name}.own (pk int PRIMARY KEY, v int)")
            here.execute(f"INSERT INTO {name}.own (pk, v) VALUES (1, 1)")
        texts = [
            "TRUNCATE own",
            "ALTER TABLE own ADD w int",
            "ALTER TYPE own ADD y int",
            "CREATE TABLE own_too (pk int PRIMARY KEY)",
            "DESCRIBE TABLES",
            "DROP TABLE own_too",
            "DROP TABLE own",
            "DROP TYPE own",
        ]
        prepared = [here.prepare(text) for text in texts]
        here.session.set_keyspace(there)
        for text, statement in zip(texts, prepared):
            found = here.rows(statement)
            if text.startswith("DESCRIBE"):
                assert found == [
                    (here.keyspace, "table", "own"),
                    (here.keyspace, "table", "own_too"),
                ]
        assert here.rows(f"SELECT * FROM {there}.own") == [(1, 1)]
        assert (
            here.column(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s",
                here.keyspace,
            )
            == []
        )
        assert here.rows(
            "SELECT field_names FROM system_schema.types WHERE keyspace_name = %s AND type_name ="
            " 'own'",
            there,
        ) == [(["x"],)]
        here.session.set_keyspace("system")
        here.refused(Invalid, f"DROP TYPE {here.keyspace}.own")
    finally:
        here.close()
        db.execute("DROP TABLE own")
        db.execute("DROP TYPE own")


def test_most_markers(db, t):
    """A request counts its values in 16 bits."""
    def text(markers):
        return (
            f"SELECT ck FROM {t} WHERE pk = 1 AND v IN ({','.join('?' * markers)}) ALLOW FILTERING"
        )

    most = db.prepare(text(65535))
    assert db.column(most, *["3", "5"] * 32767, "7") == [3, 5, 7]
    for markers in (65536, 65537, 200000):
        with pytest.raises((Invalid, Syntax), match="65535"):
            db.prepare(text(markers))
        db.refused((Invalid, Syntax), SimpleStatement(text(markers)), match="65535")


def test_ddl(db):
    for _ in range(2):
        db.execute(db.prepare("CREATE TABLE prepared_ddl (pk int PRIMARY KEY)"))
        db.execute(db.prepare("DROP TABLE prepared_ddl"))
    db.execute(db.prepare("CREATE TABLE IF NOT EXISTS prepared_ddl (pk int PRIMARY KEY)"))
    db.execute(db.prepare("TRUNCATE prepared_ddl"))


def test_column_added(db):
    t = db.table("pk int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 1)")
    star, insert = db.prepare(f"SELECT * FROM {t} WHERE pk = ?"), db.prepare(
        f"INSERT INTO {t} (pk, v) VALUES (?, ?)"
    )
    assert db.rows(star, 1) == [(1, 1)]
    db.execute(f"ALTER TABLE {t} ADD a text")
    db.execute(insert, 2, 2)
    db.execute(f"UPDATE {t} SET a = 'new' WHERE pk = 2")
    again = db.prepare(f"SELECT * FROM {t} WHERE pk = ? ")
    assert db.rows(again, 2) == [(2, "new", 2)]


def test_column_dropped_and_type_changed(db):
    t = db.table("pk int PRIMARY KEY, v int, w int")
    named = db.prepare(f"SELECT v FROM {t} WHERE pk = ?")
    insert = db.prepare(f"INSERT INTO {t} (pk, w) VALUES (?, ?)")
    db.execute(f"ALTER TABLE {t} DROP v")
    db.refused(Invalid, named, 1)
    db.execute(insert, 1, 1)
    assert db.rows(f"SELECT * FROM {t}") == [(1, 1)]


def test_table_created_again(db):
    t = db.table("pk int PRIMARY KEY, v int")
    insert, select = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)"), db.prepare(
        f"SELECT v FROM {t} WHERE pk = ?"
    )
    db.execute(insert, 1, 1)
    db.execute(f"DROP TABLE {t}")
    db.refused(Invalid, select, 1)
    db.refused(Invalid, insert, 1, 1)
    db.table("pk int PRIMARY KEY, v int", name=t)
    db.execute(insert, 1, 2)
    assert db.rows(select, 1) == [(2,)]


def test_many(db):
    t = db.table("pk int PRIMARY KEY, v int")
    prepared = [db.prepare(f"SELECT v FROM {t} WHERE pk = ? LIMIT {n}") for n in range(1, 400)]
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 1)")
    assert all(db.one(p, 1) == 1 for p in prepared)


@pytest.mark.node
def test_ids_survive_a_restart(node):
    node.start()
    db = Database(node.address)
    try:
        t = db.table("pk int PRIMARY KEY, v int")
        insert, select = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)"), db.prepare(
            f"SELECT v FROM {t} WHERE pk = ?"
        )
        db.execute(insert, 1, 1)
        before = select.query_id
        node.restart(kill=True)
        for _ in range(200):
            try:
                assert db.one(select, 1) == 1
                break
            except Exception as error:  # the driver needs a moment to connect again
                import time

                last = error
                time.sleep(0.1)
        else:
            raise last
        assert db.prepare(f"SELECT v FROM {t} WHERE pk = ?").query_id == before
    finally:
        db.cluster.shutdown()


def test_a_table_made_again_with_other_types(db):
    """Values bound for a dropped table are never written to a new table with its name: drivers
    prepare again, and detect the other table."""
    name = db.table("pk int PRIMARY KEY, v bigint")
    prepared = db.prepare(f"INSERT INTO {name} (pk, v) VALUES (?, ?)")
    db.execute(prepared, 1, 7)
    db.execute(f"DROP TABLE {name}")
    db.execute(f"CREATE TABLE {name} (pk int PRIMARY KEY, v double)")
    for _ in range(3):
        with pytest.raises(DriverException, match="ID mismatch"):
            db.execute(prepared, 1, 7)
    batch = BatchStatement()
    batch.add(prepared, (2, 7))
    db.refused(Invalid, batch, match="was prepared for")
    assert db.rows(f"SELECT * FROM {name}") == []
    db.execute(db.prepare(f"INSERT INTO {name} (pk, v) VALUES (?, ?)"), 1, 7.5)
    assert db.rows(f"SELECT * FROM {name}") == [(1, 7.5)]


@pytest.mark.parametrize("first, second, value", [
    ("varint", "blob", b"hello"),
    ("inet", "blob", bytes([127, 0, 0, 1])),
    ("frozen<set<int>>", "blob", b"abcdefgh"),
    ("timeuuid", "uuid", uuid.UUID(int=7)),
])
@pytest.mark.parametrize("change", ["alter", "add again"])
def test_a_table_made_again_with_the_types_before_an_alter(db, first, second, value, change):
    """A statement that was prepared after ALTER has values of the altered type. They never reach a
    later table with the first type."""
    name = db.table(f"pk int PRIMARY KEY, v {first}")
    if change == "alter":
        db.execute(f"ALTER TABLE {name} ALTER v TYPE {second}")
    else:
        db.execute(f"ALTER TABLE {name} DROP v")
        db.execute(f"ALTER TABLE {name} ADD v {second}")
    prepared = db.prepare(f"INSERT INTO {name} (pk, v) VALUES (?, ?)")
    db.execute(prepared, 1, value)
    db.execute(f"DROP TABLE {name}")
    db.execute(f"CREATE TABLE {name} (pk int PRIMARY KEY, v {first})")
    with pytest.raises(DriverException, match="ID mismatch"):
        db.execute(prepared, 1, value)
    assert db.rows(f"SELECT * FROM {name}") == []


def test_a_table_made_again_with_the_same_types(db):
    name = db.table("pk int PRIMARY KEY, v bigint")
    insert, select = db.prepare(f"INSERT INTO {name} (pk, v) VALUES (?, ?)"), db.prepare(
        f"SELECT * FROM {name} WHERE pk = ?"
    )
    for again in range(3):
        db.execute(insert, 1, again)
        assert db.rows(select, 1) == [(1, again)]
        db.execute(f"DROP TABLE {name}")
        db.execute(f"CREATE TABLE {name} (pk int PRIMARY KEY, v bigint)")
        assert db.rows(select, 1) == []


def test_a_type_altered_after_preparing(db):
    """After ALTER old values stay valid: the driver prepares again, and the application sees no
    error."""
    udt = db.type("a int")
    name = db.table(f"pk int PRIMARY KEY, u frozen<{udt}>, v timestamp")
    insert = db.prepare(f"INSERT INTO {name} (pk, u) VALUES (?, ?)")
    when = db.prepare(f"INSERT INTO {name} (pk, v) VALUES (?, ?)")
    db.execute(f"ALTER TYPE {udt} ADD b text")
    db.execute(f"ALTER TABLE {name} ALTER v TYPE bigint")
    for pk in range(3):
        db.execute(insert, pk, (5,))
        db.execute(when, pk, 1000)
        u, v = db.rows(f"SELECT u, v FROM {name} WHERE pk = {pk}")[0]
        assert (tuple(u), v) == ((5, None), 1000)


def test_a_paging_state_of_a_dropped_table(db):
    """The error is not a protocol error, upon which the driver would close the connection."""
    name = db.table("pk int PRIMARY KEY, v bigint")
    for pk in range(20):
        db.execute(f"INSERT INTO {name} (pk, v) VALUES ({pk}, 1)")
    statement = SimpleStatement(f"SELECT * FROM {name}", fetch_size=5)
    state = db.session.execute(statement).paging_state
    assert state
    db.execute(f"DROP TABLE {name}")
    db.execute(f"CREATE TABLE {name} (pk int PRIMARY KEY, v double)")
    with pytest.raises(Invalid, match="paging state does not exist: it was dropped"):
        db.session.execute(statement, paging_state=state)


@pytest.mark.node
def test_ids_survive_alter_and_restart(node):
    """A driver prepares again when a node has lost the statement, and fails if it has another id
    then."""
    node.start()
    db = Database(node.address)
    t = db.table("p int PRIMARY KEY, v timestamp")
    insert = db.prepare(f"INSERT INTO {t} (p, v) VALUES (?, ?)")
    db.execute(insert, 1, 1000)
    db.execute(f"ALTER TABLE {t} ALTER v TYPE bigint")
    db.execute(insert, 2, 2000)
    node.restart()
    db.cluster.shutdown()
    cluster, session = connect(node.address)
    again = session.execute
    session.set_keyspace(db.keyspace)
    assert session.prepare(f"INSERT INTO {t} (p, v) VALUES (?, ?)").query_id == insert.query_id
    assert sorted(tuple(row) for row in again(f"SELECT * FROM {t}")) == [(1, 1000), (2, 2000)]
    cluster.shutdown()


def test_columns_that_swap_their_names(db):
    """Values for former columns must not be written to new columns with the same names."""
    t = db.table("a int, b text, v int, PRIMARY KEY (a, b)")
    insert = db.prepare(f"INSERT INTO {t} (a, b, v) VALUES (?, ?, ?)")
    for names in ("a TO x", "b TO a", "x TO b"):
        db.execute(f"ALTER TABLE {t} RENAME {names}")
    for _ in range(2):
        with pytest.raises(DriverException, match="ID mismatch"):
            db.execute(insert, 1, "bbbb", 7)
    assert db.rows(f"SELECT * FROM {t}") == []
