"""CREATE, ALTER, DROP and USE of keyspaces."""

import itertools

import pytest
from cassandra import ConsistencyLevel, Unavailable
from database import Config, Exists, Invalid, Syntax, connect

RF1 = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
numbers = itertools.count()


@pytest.fixture
def name(db):
    name = f"test_keyspace_{next(numbers)}"
    db.execute(f"DROP KEYSPACE IF EXISTS {name}")
    yield name
    db.execute(f"DROP KEYSPACE IF EXISTS {name}")


def properties(db, name):
    return db.rows(
        "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s",
        name,
    )


@pytest.mark.parametrize("replication", [
    RF1, "{'class': 'SimpleStrategy', 'replication_factor': 1}",
    "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}",
    "{'class': 'SimpleStrategy', 'replication_factor': '1'}",
    "{'class': 'org.apache.cassandra.locator.NetworkTopologyStrategy', 'datacenter1': '1'}",
])
def test_create(db, name, replication):
    db.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
    ((options, durable),) = properties(db, name)
    expected = "SimpleStrategy" if "Simple" in replication else "NetworkTopologyStrategy"
    assert options["class"].endswith(expected)
    assert options["replication_factor" if expected == "SimpleStrategy" else "datacenter1"] == "1"
    assert durable is True
    db.execute(f"CREATE TABLE {name}.t (pk int PRIMARY KEY)")
    db.execute(f"INSERT INTO {name}.t (pk) VALUES (1)")
    assert db.column(f"SELECT pk FROM {name}.t") == [1]


def test_create_twice(db, name):
    db.execute(f"CREATE KEYSPACE {name} WITH replication = {RF1}")
    db.refused(Exists, f"CREATE KEYSPACE {name} WITH replication = {RF1}")
    db.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = {RF1} AND durable_writes = false"
    )
    assert properties(db, name)[0][1] is True


@pytest.mark.parametrize("rest", [
    "WITH replication = {'class': 'NoSuchStrategy', 'replication_factor': 1}",
    pytest.param("WITH replication = {'class': 'SimpleStrategy'}", marks=pytest.mark.scylla),
    "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 'one'}",
    "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': -1}",
    "WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 'x'}",
    "WITH replication = {'class': 'NetworkTopologyStrategy', 'no_such_dc': 1}",
])
def test_wrong_replication(db, name, rest):
    db.refused(Config, f"CREATE KEYSPACE {name} {rest}")
    assert properties(db, name) == []


@pytest.mark.parametrize("rest", [
    f"WITH replication = {RF1} AND no_such_option = 1",
    f"WITH replication = {RF1} AND durable_writes = 'maybe'",
    "WITH replication = 'SimpleStrategy'", f"WITH replication = {RF1} AND replication = {RF1}",
    f"WITH replication = {RF1} durable_writes = true",
])
def test_wrong_options(db, name, rest):
    db.refused((Syntax, Config, Invalid), f"CREATE KEYSPACE {name} {rest}")
    assert properties(db, name) == []


@pytest.mark.scylla
def test_default_replication(db, name):
    db.execute(f"CREATE KEYSPACE {name}")
    assert properties(db, name)[0][0]["class"].endswith("NetworkTopologyStrategy")


@pytest.mark.scylla
@pytest.mark.parametrize("level", ["QUORUM", "LOCAL_QUORUM", "EACH_QUORUM"])
def test_a_quorum_of_more_replicas_than_nodes(db, name, level):
    """The levels of a datacenter count its replication factor, as QUORUM does."""
    db.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': 3}"
    )
    db.execute(f"CREATE TABLE {name}.t (pk int PRIMARY KEY)")
    level = ConsistencyLevel.name_to_value[level]
    with pytest.raises(Unavailable) as refused:
        db.execute(f"INSERT INTO {name}.t (pk) VALUES (1)", consistency_level=level)
    assert (refused.value.required_replicas, refused.value.alive_replicas) == (2, 1)
    db.execute(f"INSERT INTO {name}.t (pk) VALUES (1)", consistency_level=ConsistencyLevel.ONE)


@pytest.mark.scylla
def test_a_replication_factor_of_zero(db, name):
    """A single node has no replica either, until ALTER KEYSPACE gives tables their first."""
    db.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': 0}"
    )
    db.execute(f"CREATE TABLE {name}.t (pk int PRIMARY KEY)")
    for text in (f"INSERT INTO {name}.t (pk) VALUES (1)", f"SELECT pk FROM {name}.t"):
        with pytest.raises(Unavailable):
            db.execute(text)
    db.execute(
        f"ALTER KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': 1}"
    )
    db.execute(f"INSERT INTO {name}.t (pk) VALUES (1)")
    assert db.rows(f"SELECT pk FROM {name}.t")[0][0] == 1


def test_rack_list(db, name):
    """One replica in each of the listed racks. DESCRIBE shows the list, drivers see a number."""
    db.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': ['rack1']}"
    )
    assert properties(db, name)[0][0]["datacenter1"] == "1"
    described = db.execute(f"DESCRIBE KEYSPACE {name}").one().create_statement
    assert "'datacenter1': ['rack1']" in described
    db.execute(f"CREATE TABLE {name}.t (pk int PRIMARY KEY)")
    db.execute(f"INSERT INTO {name}.t (pk) VALUES (1)")
    assert db.rows(f"SELECT pk FROM {name}.t")[0][0] == 1
    db.refused(
        (Config, Invalid),
        f"ALTER KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': ['rack9']}",
    )
    db.execute(f"DROP KEYSPACE {name}")
    db.execute(described)
    assert db.execute(f"DESCRIBE KEYSPACE {name}").one().create_statement == described


def test_names(db):
    for bad in ("a" * 300, '"with space"', '"dash-ed"', '"dot.ted"', '"sla/sh"'):
        db.refused(Invalid, f"CREATE KEYSPACE {bad} WITH replication = {RF1}")
    db.refused(Syntax, f"CREATE KEYSPACE 1abc WITH replication = {RF1}")
    db.execute('DROP KEYSPACE IF EXISTS "MixedCase"')
    db.execute(f'CREATE KEYSPACE "MixedCase" WITH replication = {RF1}')
    assert len(properties(db, "MixedCase")) == 1
    db.refused((Invalid, Config), "DROP KEYSPACE MixedCase")
    db.execute('DROP KEYSPACE "MixedCase"')


def test_alter(db, name):
    db.execute(f"CREATE KEYSPACE {name} WITH replication = {RF1}")
    db.execute(f"ALTER KEYSPACE {name} WITH durable_writes = false")
    ((options, durable),) = properties(db, name)
    assert durable is False and options["datacenter1"] == "1"
    db.execute(f"ALTER KEYSPACE {name} WITH replication = {RF1} AND durable_writes = true")
    assert properties(db, name)[0][1] is True
    db.refused(Config, f"ALTER KEYSPACE {name} WITH replication = {{'class': 'Nothing'}}")
    db.refused((Invalid, Config), f"ALTER KEYSPACE no_such_keyspace WITH replication = {RF1}")
    db.refused(Syntax, f"ALTER KEYSPACE {name}")


def test_drop(db, name):
    db.execute(f"CREATE KEYSPACE {name} WITH replication = {RF1}")
    db.execute(f"CREATE TYPE {name}.u (a int)")
    db.execute(f"CREATE TABLE {name}.t (pk int PRIMARY KEY, v frozen<u>)")
    db.execute(f"INSERT INTO {name}.t (pk, v) VALUES (1, {{a: 1}})")
    db.execute(f"DROP KEYSPACE {name}")
    db.refused((Invalid, Config), f"SELECT * FROM {name}.t")
    db.refused((Invalid, Config), f"DROP KEYSPACE {name}")
    db.execute(f"DROP KEYSPACE IF EXISTS {name}")
    assert db.rows("SELECT * FROM system_schema.tables WHERE keyspace_name = %s", name) == []
    assert db.rows("SELECT * FROM system_schema.types WHERE keyspace_name = %s", name) == []


def test_created_again_it_is_empty(db, name):
    for _ in range(2):
        db.execute(f"CREATE KEYSPACE {name} WITH replication = {RF1}")
        db.execute(f"CREATE TABLE {name}.t (pk int PRIMARY KEY)")
        assert db.rows(f"SELECT * FROM {name}.t") == []
        db.execute(f"INSERT INTO {name}.t (pk) VALUES (1)")
        db.execute(f"DROP KEYSPACE {name}")


def test_use_is_per_connection(db, host, name):
    db.execute(f"CREATE KEYSPACE {name} WITH replication = {RF1}")
    db.execute(f"CREATE TABLE {name}.only_here (pk int PRIMARY KEY)")
    db.refused(Invalid, "SELECT * FROM only_here")
    cluster, session = connect(host)
    try:
        with pytest.raises(Invalid):
            session.execute("SELECT * FROM only_here")
        session.execute(f'USE "{name}"')
        assert session.execute("SELECT * FROM only_here").all() == []
        with pytest.raises(Invalid):
            session.execute("USE no_such_keyspace")
        assert session.execute("SELECT * FROM only_here").all() == []
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("text", [
    "DROP KEYSPACE system", "DROP KEYSPACE system_schema",
    "CREATE TABLE system.mine (pk int PRIMARY KEY)",
    "DROP TABLE system.local", "ALTER TABLE system_schema.tables ADD x int",
    "CREATE TYPE system.mine (a int)",
    # Without an authorizer, Cassandra allows writes to its own schema tables.
    pytest.param("TRUNCATE system_schema.tables", marks=pytest.mark.scylla),
    pytest.param("INSERT INTO system_schema.tables (keyspace_name, table_name) VALUES ('a', 'b')",
        marks=pytest.mark.scylla),
])
def test_system_keyspaces_are_closed(db, text):
    import cassandra

    db.refused((cassandra.Unauthorized, cassandra.WriteFailure, Invalid), text)


def test_drop_while_it_is_written(db, name):
    """Tables are dropped during writes of a session that does not know it yet. The drop itself
    never fails."""
    for _ in range(5):
        db.execute(f"CREATE KEYSPACE {name} WITH replication = {RF1}")
        inserts = []
        for n in range(12):
            db.execute(f"CREATE TABLE {name}.t{n} (pk int PRIMARY KEY, v blob)")
            inserts.append(db.prepare(f"INSERT INTO {name}.t{n} (pk, v) VALUES (?, ?)"))
        futures = [db.session.execute_async(inserts[k % 12], (k, bytes(1000))) for k in range(600)]
        db.execute(f"DROP TABLE {name}.t3")
        db.execute(f"TRUNCATE {name}.t4")
        db.execute(f"DROP KEYSPACE {name}")
        for future in futures:
            try:
                future.result()
            except Invalid:
                pass  # the table is gone
        db.refused((Invalid, Config), f"SELECT * FROM {name}.t0")
