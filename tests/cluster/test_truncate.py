"""TRUNCATE on three nodes: it applies everywhere or is refused. Truncated rows do not return after
crashes or hints."""

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.trio import NODES, eventually, quorum


def at(level, text):
    return SimpleStatement(text, consistency_level=level)


def keys(session, level=Level.QUORUM):
    return sorted(row.k for row in session.execute(at(level, "SELECT k FROM ks.t")))


def test_truncated_rows_stay_away(trio):
    session = trio.sessions[0]
    trio.keyspace()
    session.execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
    for k in range(50):
        session.execute(at(Level.ALL, f"INSERT INTO ks.t (k, v) VALUES ({k}, 1)"))
    trio.nodes[1].flush("ks")

    # One node is down. Its data would come back.
    trio.kill(2)
    trio.wait_down(2)
    session.execute(quorum("INSERT INTO ks.t (k, v) VALUES (50, 1)"))
    with pytest.raises(Exception, match="down"):
        session.execute("TRUNCATE ks.t")
    assert keys(session) == list(range(51)), "nothing was dropped"

    # The node is up again, perhaps with a hint on its way.
    trio.nodes[2].start()
    trio.wait_up(2)
    eventually(lambda: session.execute("TRUNCATE ks.t") is not None)
    for n in range(NODES):
        assert keys(trio.sessions[n], Level.ALL) == []
    session.execute(at(Level.ALL, "INSERT INTO ks.t (k, v) VALUES (100, 1)"))

    for n in range(NODES):
        trio.kill(n)
    trio.restart_all()
    for n in range(NODES):
        eventually(lambda: keys(trio.sessions[n], Level.ALL) == [100])  # noqa: B023
