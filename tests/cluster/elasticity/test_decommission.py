"""Nodes that leave their cluster: their tablets move to others beside clients, over kill -9."""

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.elasticity.moving import (
    ROWS,
    Decommission,
    Writer,
    admin,
    contents,
    fill_table,
    host_id,
    members,
)
from cluster.trio import eventually, rest
from launch import failed_start

TABLETS = 32
# So many that a request can be cut while they move, also on a fast machine.
MANY = 128


@pytest.fixture
def filled(trio):
    """The session to the first of three nodes, with two replicas of each tablet of a table."""
    return fill_table(trio, factor=2, tablets=MANY)


def tablets_left(node):
    return rest(node, "/storage_service/decommission")["tablets"]


def mode(node):
    return rest(node, "/storage_service/operation_mode")


def test_a_node_leaves_while_clients_write(trio, filled):
    stays, leaves = trio.nodes[:2], trio.nodes[2]
    with Writer(filled, Level.QUORUM) as writer:
        done = admin(leaves, "decommission")
    assert done.returncode == 0, done.stderr
    assert not writer.failures, writer.failures[:3]
    assert len(contents(filled)) == ROWS + writer.rows
    assert mode(leaves) == "DECOMMISSIONED"
    assert leaves.metric("scylla_node_operation_mode") == 5
    eventually(
        lambda: all(members(node) == {one.address: "normal" for one in stays} for node in stays)
    )
    assert [row.rpc_address for row in filled.execute("SELECT rpc_address FROM system.peers")] == [
        stays[1].address
    ]
    eventually(lambda: not list(leaves.data_dir.glob("data/ks/t-*/me-*")))

    again = admin(leaves, "decommission")
    assert again.returncode != 0 and "has left the cluster already" in again.stderr
    serves = admin(leaves, "enablebinary")
    assert serves.returncode != 0 and "has left the cluster" in serves.stderr
    for words in (
        ("decommission", "--cancel"),
        ("removenode", stays[0].address),
        ("balancing", "off"),
    ):
        late = admin(leaves, *words)
        assert late.returncode != 0 and "has left the cluster already" in late.stderr, words
    leaves.stop()
    assert "cannot come back" in str(failed_start(leaves))
    assert len(contents(trio.sessions[1])) == ROWS + writer.rows


def test_a_node_leaves_only_if_others_can_take_its_tablets(trio):
    trio.keyspace(factor=3)
    trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY)")
    refused = admin(trio.nodes[0], "decommission")
    assert (
        refused.returncode != 0
        and "no other node can take a replica of table ks.t" in refused.stderr
    )
    assert mode(trio.nodes[0]) == "NORMAL"
    cancelled = admin(trio.nodes[0], "decommission", "--cancel")
    assert cancelled.returncode != 0 and "is not leaving" in cancelled.stderr


def test_nodes_leave_until_one_is_left(trio):
    fill_table(trio, factor=1, tablets=TABLETS)
    for leaves in (0, 1):
        trio.sessions.forget(leaves)
        done = admin(trio.nodes[leaves], "decommission")
        assert done.returncode == 0, done.stderr
        last = trio.sessions[2]
        last.execute(f"CREATE TABLE ks.after{leaves} (k int PRIMARY KEY)")
        assert len(contents(last)) == ROWS
    assert members(trio.nodes[2]) == {trio.nodes[2].address: "normal"}


@pytest.mark.parametrize("victim", ["leaving", "another"])
def test_leaving_goes_on_after_kill9(trio, filled, victim):
    leaves = trio.nodes[2]
    leaving = Decommission(leaves)
    killed = 2 if victim == "leaving" else 0
    eventually(lambda: tablets_left(leaves) < MANY // 2)
    left = tablets_left(leaves)
    trio.kill(killed)
    trio.nodes[killed].start()
    assert left > 0, "the node was killed while tablets moved"
    leaving.result()
    eventually(
        lambda: members(trio.nodes[1]) == {node.address: "normal" for node in trio.nodes[:2]}, 60
    )
    eventually(lambda: mode(leaves) == "DECOMMISSIONED")
    for n in (0, 1):
        assert len(contents(trio.sessions[n])) == ROWS


def test_a_node_stops_in_order_while_it_leaves(trio, filled):
    leaves = trio.nodes[2]
    leaving = Decommission(leaves)
    eventually(lambda: mode(leaves) == "LEAVING")
    assert leaves.stop() == 0
    leaving.result()
    leaves.start()
    eventually(lambda: mode(leaves) == "DECOMMISSIONED", 60)
    assert len(contents(filled)) == ROWS


def test_leaving_can_be_cancelled(trio, filled):
    leaves = trio.nodes[2]
    leaving = Decommission(leaves)
    eventually(lambda: mode(leaves) == "LEAVING")
    drained = admin(leaves, "drain")
    assert drained.returncode != 0 and "is leaving the cluster" in drained.stderr
    cancelled = admin(leaves, "decommission", "--cancel")
    done = leaving.result()
    assert cancelled.returncode == 0, cancelled.stderr
    assert done.returncode != 0 and "cancelled" in done.stderr
    eventually(lambda: members(trio.nodes[0])[leaves.address] == "normal")
    assert mode(leaves) == "NORMAL"
    assert len(contents(trio.sessions[2])) == ROWS
    done = admin(leaves, "decommission")
    assert done.returncode == 0, done.stderr
    assert len(contents(filled)) == ROWS


def test_hints_for_a_down_node_outlive_the_node_that_kept_them(trio):
    """At ANY, the hint is the only copy of the write."""
    fill_table(trio, factor=1, tablets=TABLETS)
    keeper = trio.sessions[2]
    trio.kill(1)
    trio.wait_down(1)
    for k in range(100):
        keeper.execute(
            SimpleStatement(
                f"INSERT INTO ks.t (k, c, v) VALUES ({k}, -1, 'any')", consistency_level=Level.ANY
            )
        )
    assert trio.nodes[2].metric("scylla_hints_manager_written") > 0
    done = admin(trio.nodes[2], "decommission")
    assert done.returncode == 0, done.stderr
    trio.nodes[1].start()
    eventually(lambda: len(contents(trio.sessions[0])) == ROWS + 100)


def test_the_nodes_that_a_leaving_node_waits_for_are_shown(trio):
    """Every tablet that moves has a replica on each of the other nodes, before or after. One of
    them stops."""
    session = fill_table(trio, factor=2, tablets=MANY)
    leaves, paused = trio.nodes[2], trio.nodes[1]
    name = host_id(paused)
    leaving = Decommission(leaves)
    eventually(lambda: mode(leaves) == "LEAVING")
    with paused.standing_still():
        eventually(
            lambda: name in (rest(leaves, "/storage_service/decommission")["waits_for"] or "")
        )
    done = leaving.result()
    assert done.returncode == 0, done.stderr
    assert len(contents(session)) == ROWS


def test_a_drained_node_has_nothing_to_replay(trio, filled):
    drained = trio.nodes[1]
    trio.sessions.forget(1)
    done = admin(drained, "drain")
    assert done.returncode == 0, done.stderr
    assert mode(drained) == "DRAINED"
    serves = admin(drained, "enablebinary")
    assert serves.returncode != 0 and "restart it" in serves.stderr
    eventually(lambda: drained.address in rest(trio.nodes[0], "/gossiper/endpoint/down"))
    trio.kill(1)
    drained.start()
    assert drained.metric("scylla_database_engine_writes") == 0, "all writes were flushed"
    trio.wait_up(1)
    assert len(contents(trio.sessions[1])) == ROWS
