"""Every consistency level with none, one and two of three nodes dead: success, or Unavailable with
exact numbers."""

import time

import cassandra
import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.trio import NODES, eventually, rest

# How many of three replicas a level needs.
WRITES = {
    Level.ANY: 0,
    Level.ONE: 1,
    Level.LOCAL_ONE: 1,
    Level.TWO: 2,
    Level.QUORUM: 2,
    Level.LOCAL_QUORUM: 2,
    Level.EACH_QUORUM: 2,
    Level.THREE: 3,
    Level.ALL: 3,
}
READS = {level: needed for level, needed in WRITES.items() if level != Level.ANY}


def name(level):
    return Level.value_to_name[level]


def at(level, text):
    return SimpleStatement(text, consistency_level=level)


def check(session, statement, level, needed, alive):
    if needed <= alive:
        return session.execute(statement)
    with pytest.raises(cassandra.Unavailable) as refused:
        session.execute(statement)
    error = refused.value
    assert (error.consistency, error.required_replicas, error.alive_replicas) == (
        level,
        needed,
        alive,
    ), f"{name(level)} with {alive} alive: {error}"
    return None


def ask_all(session, alive):
    for level, needed in WRITES.items():
        check(
            session,
            at(level, f"INSERT INTO ks.t (k, v) VALUES ({level}, {alive})"),
            level,
            needed,
            alive,
        )
        batch = (
            f"BEGIN UNLOGGED BATCH INSERT INTO ks.t (k, v) VALUES ({level}, {alive}); INSERT INTO"
            f" ks.t (k, v) VALUES ({100 + level}, {alive}); APPLY BATCH"
        )
        check(session, at(level, batch), level, needed, alive)
        if level != Level.ANY:
            check(
                session,
                at(level, f"UPDATE ks.c SET n = n + 1 WHERE k = {level}"),
                level,
                needed,
                alive,
            )
    for level, needed in READS.items():
        rows = check(
            session, at(level, f"SELECT v FROM ks.t WHERE k = {level}"), level, needed, alive
        )
        assert (
            rows is None or rows.one().v == alive
        ), f"{name(level)}: a write that reached {alive} of {alive} live nodes is read"
        rows = check(session, at(level, "SELECT count(*) FROM ks.t"), level, needed, alive)
        assert rows is None or rows.one().count >= len(READS)
        check(
            session,
            at(level, f"SELECT v FROM ks.t WHERE k IN ({level}, {100 + level})"),
            level,
            needed,
            alive,
        )


def test_every_level_with_dead_nodes(trio):
    session = trio.sessions[0]
    trio.keyspace()
    session.execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
    session.execute("CREATE TABLE ks.c (k int PRIMARY KEY, n counter)")
    ask_all(session, alive=3)
    for dead in (2, 1):
        trio.kill(dead)
        trio.wait_down(dead)
        ask_all(session, alive=dead)
    with pytest.raises(cassandra.InvalidRequest, match="only supported for writes"):
        session.execute(at(Level.ANY, "SELECT v FROM ks.t WHERE k = 1"))

    # The nodes come back, and hints deliver the writes that they missed.
    for n in (1, 2):
        trio.nodes[n].start()
    for n in (1, 2):
        trio.wait_up(n)
    expected = {
        level: next(alive for alive in (1, 2, 3) if WRITES[level] <= alive) for level in WRITES
    }
    for n in range(NODES):
        for level in WRITES:
            # A read at ONE on each node uses its own replica, if it has one.
            eventually(
                lambda: trio.sessions[n]
                .execute(at(Level.ONE, f"SELECT v FROM ks.t WHERE k = {level}"))
                .one()
                .v
                == expected[level]
            )  # noqa: B023
    assert all(
        session.execute(at(Level.ALL, f"SELECT v FROM ks.t WHERE k = {level}")).one().v
        == expected[level]
        for level in WRITES
    )


def test_one_copy_on_a_dead_node(trio):
    """With replication factor 1, a write at ANY is kept as a hint when all other levels fail."""
    session = trio.sessions[0]
    trio.keyspace("single", factor=1)
    session.execute("CREATE TABLE single.t (k int PRIMARY KEY, v int)")
    third = trio.nodes[2]
    key = next(
        k
        for k in range(1000)
        if rest(trio.nodes[0], f"/storage_service/natural_endpoints/single?cf=t&key={k}")
        == [third.address]
    )
    trio.kill(2)
    trio.wait_down(2)
    for level in (
        Level.ONE,
        Level.LOCAL_ONE,
        Level.QUORUM,
        Level.LOCAL_QUORUM,
        Level.EACH_QUORUM,
        Level.ALL,
    ):
        check(session, at(level, f"INSERT INTO single.t (k, v) VALUES ({key}, 1)"), level, 1, 0)
    check(session, at(Level.TWO, f"INSERT INTO single.t (k, v) VALUES ({key}, 1)"), Level.TWO, 2, 0)
    check(session, at(Level.ONE, f"SELECT v FROM single.t WHERE k = {key}"), Level.ONE, 1, 0)
    session.execute(at(Level.ANY, f"INSERT INTO single.t (k, v) VALUES ({key}, 7)"))
    third.start()
    trio.wait_up(2)
    eventually(
        lambda: session.execute(at(Level.ONE, f"SELECT v FROM single.t WHERE k = {key}")).one().v
        == 7
    )


def test_a_replication_factor_of_zero_is_unavailable(trio):
    """No level can be reached without a replica, not even ANY."""
    session = trio.sessions[1]
    trio.keyspace()
    session.execute("CREATE TABLE ks.c (k int PRIMARY KEY, n counter)")
    trio.keyspace("none", factor=0)
    session.execute("CREATE TABLE none.t (k int PRIMARY KEY, v int)")
    session.execute("CREATE TABLE none.c (k int PRIMARY KEY, n counter)")
    for level in WRITES:
        needed = {Level.TWO: 2, Level.THREE: 3}.get(level, 1)
        for text in (
            "INSERT INTO none.t (k, v) VALUES (1, 1)",
            "BEGIN BATCH INSERT INTO none.t (k, v) VALUES (1, 1);"
            " INSERT INTO none.t (k, v) VALUES (2, 1); APPLY BATCH",
            "UPDATE none.c SET n = n + 1 WHERE k = 1",
            "BEGIN COUNTER BATCH UPDATE none.c SET n = n + 1 WHERE k = 1;"
            " UPDATE none.c SET n = n + 1 WHERE k = 2; UPDATE ks.c SET n = n + 1 WHERE k = 1;"
            " APPLY BATCH",
            "SELECT v FROM none.t WHERE k = 1",
            "SELECT count(*) FROM none.t",
        ):
            if level != Level.ANY or text.startswith(("INSERT", "BEGIN BATCH")):
                check(session, at(level, text), level, needed, 0)
    assert not session.execute("SELECT n FROM ks.c").all(), "no part of a batch is applied"
    endpoints = rest(trio.nodes[0], "/storage_service/natural_endpoints/none?cf=t&key=1")
    assert endpoints == []
    # Its tables get their first replica.
    session.execute(
        "ALTER KEYSPACE none WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1':"
        " 1}"
    )
    session.execute(at(Level.ALL, "INSERT INTO none.t (k, v) VALUES (1, 5)"))
    assert session.execute(at(Level.ALL, "SELECT v FROM none.t WHERE k = 1")).one().v == 5


def test_hints_are_set_while_the_node_runs(trio):
    """`hinted_handoff_enabled` is changed by CQL: it applies to the next write."""
    session, first = trio.sessions[0], trio.nodes[0]
    trio.keyspace("hinted")
    session.execute("CREATE TABLE hinted.t (k int PRIMARY KEY, v int)")
    trio.kill(2)
    trio.wait_down(2)

    def write(value):
        before = first.metric("scylla_hints_manager_written")
        for k in range(10):
            session.execute(at(Level.QUORUM, f"INSERT INTO hinted.t (k, v) VALUES ({k}, {value})"))
        return before

    def enable(value):
        session.execute(
            f"UPDATE system.config SET value = '{value}' WHERE name = 'hinted_handoff_enabled'"
        )

    try:
        before = write(1)
        eventually(lambda: first.metric("scylla_hints_manager_written") == before + 10)
        enable("false")
        before = write(2)
        enable("datacenter1")
        after = write(3)
        eventually(lambda: first.metric("scylla_hints_manager_written") == after + 10)
        assert after == before, "nothing was kept while it was off"
    finally:
        enable("true")
        trio.nodes[2].start()
        trio.wait_up(2)
    for k in range(10):
        eventually(
            lambda: session.execute(at(Level.ALL, f"SELECT v FROM hinted.t WHERE k = {k}")).one().v
            == 3
        )  # noqa: B023


def test_a_stalled_node_does_not_mark_others_down(trio):
    """A machine that is paused, or gets no CPU, receives no pings itself. It must not mark other
    nodes down because of that."""
    trio.keyspace()
    trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
    session = trio.sessions[2]
    session.execute(at(Level.ALL, "INSERT INTO ks.t (k, v) VALUES (1, 0)"))
    with trio.nodes[2].standing_still():
        trio.wait_down(2)
        time.sleep(
            1
        )  # That is what is tested: longer than it would take this one to think so of the others.
    for n in range(100):
        for level in (Level.QUORUM, Level.ALL):
            session.execute(at(level, f"INSERT INTO ks.t (k, v) VALUES (1, {n})"))
            assert session.execute(at(level, "SELECT v FROM ks.t WHERE k = 1")).one().v == n
    assert "this node was stalled" in trio.nodes[2].log_path.read_text()
    # It still detects nodes that are down.
    trio.wait_up(2)
    trio.kill(0)
    trio.wait_down(0)
