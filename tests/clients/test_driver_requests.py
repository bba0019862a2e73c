"""Features of the Python drivers that applications use besides rows: callbacks, payloads, warnings,
policies, keyspaces, pages kept for later, the schema, large results.

Run with both drivers, like test_driver.py.
"""

import threading

import pytest
from cassandra import ConsistencyLevel, OperationTimedOut, WriteTimeout, ReadTimeout, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile
from cassandra.concurrent import execute_concurrent
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy, DCAwareRoundRobinPolicy, RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.query import BatchStatement, BatchType, SimpleStatement, ValueSequence, dict_factory
from database import connect

REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


def test_callbacks(db):
    """Concurrent requests, each answered to its own callback. An error goes to the error
    callback."""
    t = db.table("pk int PRIMARY KEY, v int")
    insert, select = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)"), db.prepare(
        f"SELECT v FROM {t} WHERE pk = ?"
    )
    for future in [db.session.execute_async(insert, (pk, pk * 2)) for pk in range(300)]:
        future.result()
    seen, failures, done = {}, [], threading.Semaphore(0)

    def answered(rows, pk):
        seen[pk] = rows[0].v
        done.release()

    def failed(error):
        failures.append(error)
        done.release()

    for pk in range(300):
        db.session.execute_async(select, (pk,)).add_callbacks(answered, failed, callback_args=(pk,))
    db.session.execute_async("SELECT nothing FROM system.local").add_callbacks(
        answered, failed, callback_args=(-1,)
    )
    for _ in range(301):
        assert done.acquire(timeout=30)
    assert (
        seen == {pk: pk * 2 for pk in range(300)}
        and len(failures) == 1
        and isinstance(failures[0], InvalidRequest)
    )


def test_pages_by_callback_and_from_a_state(db, host):
    t = db.table("pk int, ck int, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck) VALUES (1, ?)")
    execute_concurrent(db.session, [(insert, (ck,)) for ck in range(250)])
    seen, done = [], threading.Event()
    future = db.session.execute_async(
        SimpleStatement(f"SELECT ck FROM {t} WHERE pk = 1", fetch_size=60)
    )

    def page(rows):
        seen.extend(row.ck for row in rows)
        if future.has_more_pages:
            future.start_fetching_next_page()
        else:
            done.set()

    future.add_callbacks(page, lambda error: done.set())
    assert done.wait(30) and seen == list(range(250))
    # A paging state can be used in another session.
    select = db.prepare(f"SELECT ck FROM {t} WHERE pk = ?")
    select.fetch_size = 100
    first = db.session.execute(select, (1,))
    rows, state = [row.ck for row in first.current_rows], first.paging_state
    cluster, session = connect(host)
    try:
        session.set_keyspace(db.keyspace)
        again = session.prepare(f"SELECT ck FROM {t} WHERE pk = ?")
        again.fetch_size = 100
        rows += [row.ck for row in session.execute(again, (1,), paging_state=state)]
    finally:
        cluster.shutdown()
    assert rows == list(range(250))


def test_payloads_and_warnings(db):
    """A payload that the node does not know is accepted. A warning of the node reaches the
    application."""
    t = db.table("pk int PRIMARY KEY, v int")
    payload = {"application-key": b"\x01\x02"}
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)")
    db.session.execute(insert, (1, 1), custom_payload=payload)
    db.session.execute(f"INSERT INTO {t} (pk, v) VALUES (2, 2)", custom_payload=payload)
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.add(insert, (3, 3))
    db.session.execute(batch, custom_payload=payload)
    assert sorted(db.rows(f"SELECT * FROM {t}")) == [(1, 1), (2, 2), (3, 3)]
    db.execute("DROP KEYSPACE IF EXISTS python_warned")
    future = db.session.execute_async(
        f"CREATE KEYSPACE python_warned WITH replication = {REPLICATION}"
    )
    future.result()
    assert future.warnings, "no warning of the replication factor"
    db.execute("DROP KEYSPACE python_warned")


@pytest.mark.parametrize("policy", [RoundRobinPolicy(), DCAwareRoundRobinPolicy("datacenter1"),
    TokenAwarePolicy(DCAwareRoundRobinPolicy()),
    TokenAwarePolicy(RoundRobinPolicy(), shuffle_replicas=True)],
                         ids=["robin", "datacenter", "token", "token-shuffled"])
def test_policies(host, db, policy):
    """Every load balancing policy, with speculative executions and a consistency level of its
    own."""
    profile = ExecutionProfile(
        load_balancing_policy=policy,
        speculative_execution_policy=ConstantSpeculativeExecutionPolicy(0.002, 3),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        row_factory=dict_factory,
        request_timeout=30,
    )
    cluster, session = connect(host, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    try:
        session.set_keyspace(db.keyspace)
        session.execute("CREATE TABLE IF NOT EXISTS chosen (pk int PRIMARY KEY, v int)")
        insert, select = session.prepare(
            "INSERT INTO chosen (pk, v) VALUES (?, ?)"
        ), session.prepare("SELECT v FROM chosen WHERE pk = ?")
        select.is_idempotent = insert.is_idempotent = True
        for pk in range(50):
            session.execute(insert, (pk, pk))
            assert session.execute(select, (pk,)).one() == {"v": pk}
        # The policies know the replicas of a key.
        assert [
            h.address for h in cluster.metadata.get_replicas(db.keyspace, b"\x00\x00\x00\x01")
        ] == [host]
    finally:
        cluster.shutdown()


def test_keyspaces(db, host):
    """USE and set_keyspace apply to later statements. Prepared statements keep their keyspace."""
    other = f"{db.keyspace}_other"
    db.execute(f"CREATE KEYSPACE {other} WITH replication = {REPLICATION}")
    for keyspace, value in ((db.keyspace, "first"), (other, "other")):
        db.execute(f"CREATE TABLE {keyspace}.placed (pk int PRIMARY KEY, v text)")
        db.execute(f"INSERT INTO {keyspace}.placed (pk, v) VALUES (1, '{value}')")
    cluster, session = connect(host)
    try:
        read = "SELECT v FROM placed WHERE pk = 1"
        with pytest.raises(InvalidRequest, match="(?i)keyspace"):
            session.execute(read)
        session.set_keyspace(db.keyspace)
        prepared = session.prepare(read)
        assert session.execute(read).one().v == session.execute(prepared).one().v == "first"
        session.execute(f"USE {other}")
        assert session.keyspace == other and session.execute(read).one().v == "other"
        assert session.execute(prepared).one().v == "first"
        session.execute(f'USE "{db.keyspace}"')
        assert session.execute(read).one().v == "first"
    finally:
        cluster.shutdown()
        db.execute(f"DROP KEYSPACE {other}")


def test_binding_styles(db):
    t = db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (:pk, :ck, :v)")
    db.session.execute(insert, {"pk": 1, "ck": 1, "v": "named"})
    db.session.execute(insert.bind({"pk": 1, "ck": 2}))  # v is left unset
    db.session.execute(insert.bind([1, 3, "ordered"]))
    db.session.execute(
        f"INSERT INTO {t} (pk, ck, v) VALUES (%(pk)s, %(ck)s, %(v)s)",
        {"pk": 1, "ck": 4, "v": 'it\'s "text"'},
    )
    assert db.rows(f"SELECT ck, v FROM {t} WHERE pk = 1") == [
        (1, "named"),
        (2, None),
        (3, "ordered"),
        (4, 'it\'s "text"'),
    ]
    several = db.session.execute(
        f"SELECT ck FROM {t} WHERE pk = %s AND ck IN %s", (1, ValueSequence([1, 4]))
    )
    assert [row.ck for row in several] == [1, 4]
    listed = db.prepare(f"SELECT ck FROM {t} WHERE pk = ? AND ck IN ?")
    assert [row.ck for row in db.session.execute(listed, (1, [2, 3]))] == [2, 3]
    db.refused(InvalidRequest, insert.bind({"pk": 1}), match="unset")


def test_refreshing_what_is_known_of_the_schema(db):
    """Each part of the schema separately, as drivers refresh it."""
    cluster, k = db.cluster, db.keyspace
    db.execute("CREATE TYPE refreshed_type (a int, b frozen<list<text>>)")
    db.execute("CREATE TABLE refreshed (pk int PRIMARY KEY, v frozen<refreshed_type>)")
    cluster.refresh_keyspace_metadata(k)
    cluster.refresh_table_metadata(k, "refreshed")
    cluster.refresh_user_type_metadata(k, "refreshed_type")
    cluster.refresh_schema_metadata()
    cluster.refresh_nodes()
    known = cluster.metadata.keyspaces[k]
    assert (
        known.user_types["refreshed_type"].field_names == ["a", "b"]
        and known.tables["refreshed"].columns["v"].cql_type == "frozen<refreshed_type>"
    )
    db.execute("DROP TABLE refreshed")
    db.execute("DROP TYPE refreshed_type")
    cluster.refresh_keyspace_metadata(k)
    assert (
        "refreshed" not in cluster.metadata.keyspaces[k].tables
        and "refreshed_type" not in cluster.metadata.keyspaces[k].user_types
    )
    assert (
        cluster.metadata.token_map.ring and cluster.control_connection.wait_for_schema_agreement()
    )


@pytest.mark.parametrize("algorithm", [False, "lz4"])
def test_large_results(host, db, algorithm):
    """Many megabytes in one answer, and many rows over pages."""
    cluster, session = connect(host, compression=algorithm)
    try:
        session.set_keyspace(db.keyspace)
        session.execute(
            "CREATE TABLE IF NOT EXISTS large (pk int, ck int, v blob, PRIMARY KEY (pk, ck))"
        )
        insert = session.prepare("INSERT INTO large (pk, ck, v) VALUES (?, ?, ?)")
        value = bytes(n * 7919 >> 8 & 255 for n in range(1 << 20))
        for ck in range(12):
            session.execute(insert, (1, ck, value))
        assert [row.v == value for row in session.execute("SELECT v FROM large WHERE pk = 1")] == [
            True
        ] * 12
        execute_concurrent(session, [(insert, (2, ck, b"")) for ck in range(6000)], concurrency=100)
        assert [row.ck for row in session.execute("SELECT ck FROM large WHERE pk = 2")] == list(
            range(6000)
        )
    finally:
        cluster.shutdown()


def test_vectors(db):
    t = db.table("pk int PRIMARY KEY, v vector<float, 3>, l list<frozen<vector<int, 2>>>")
    insert = db.prepare(f"INSERT INTO {t} (pk, v, l) VALUES (?, ?, ?)")
    db.session.execute(insert, (1, [1.0, -2.5, 0.0], [[1, 2], [3, 4]]))
    row = db.session.execute(f"SELECT v, l FROM {t}").one()
    assert list(row.v) == [1.0, -2.5, 0.0] and [list(one) for one in row.l] == [[1, 2], [3, 4]]


def test_a_timeout_of_the_client_costs_only_its_request(db):
    t = db.table("pk int PRIMARY KEY, v int")
    select = db.prepare(f"SELECT v FROM {t} WHERE pk = ?")
    for _ in range(20):
        try:
            db.session.execute(select, (1,), timeout=0.00001)
        except (OperationTimedOut, WriteTimeout, ReadTimeout):
            pass
    db.session.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 5)")
    assert db.session.execute(select, (1,)).one().v == 5
