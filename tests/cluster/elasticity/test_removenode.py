"""Nodes that are removed while they are down: others build their replicas, and they cannot come
back."""

from cassandra import ConsistencyLevel as Level
from cluster.elasticity.moving import (
    ROWS, Writer, admin, all_owners, contents, fill_table, host_id, kill, members,
)
from cluster.trio import eventually, rest
from launch import failed_start

TABLETS = 16


def test_a_dead_node_is_removed_while_clients_write(trio, fourth):
    fourth.start()
    session = fill_table(trio, factor=3, tablets=TABLETS)
    dead, name = trio.nodes[1], kill(trio, 1)
    with Writer(session, Level.QUORUM) as writer:
        done = admin(trio.nodes[2], "removenode", name)
    assert done.returncode == 0, done.stderr
    assert not writer.failures, writer.failures[:3]
    stay = {trio.nodes[0].address, trio.nodes[2].address, fourth.address}
    assert all_owners(fourth) == stay
    assert set(members(fourth)) == stay
    for source in (session, trio.sessions[2]):
        assert len(contents(source)) == ROWS + writer.rows
    again = admin(fourth, "removenode", name)
    assert again.returncode == 0, "it is removed already"
    assert "cannot come back" in str(failed_start(dead))


def test_removals_that_are_refused(trio):
    session = fill_table(trio, factor=1, tablets=TABLETS)
    session.execute(
        "CREATE KEYSPACE three WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'replication_factor': 3}"
    )
    session.execute("CREATE TABLE three.t (k int PRIMARY KEY)")
    name = kill(trio, 1)
    for words, why in [
        (("removenode", trio.nodes[2].address), "is up"),
        (("removenode", trio.nodes[0].address), "is up"),
        (("removenode", "00000000-0000-0000-0000-000000000001"), "is not known"),
        (("removenode", "10.9.9.9"), "is not known"),
        (("removenode", ""), "name the node"),
        (("excludenode", name, " "), "name the nodes"),
        (("excludenode", name, "10.9.9.9"), "is not known"),
        (("removenode", name), "has the only replica of a tablet of table ks.t"),
        (("excludenode", name), "has the only replica of a tablet of table ks.t"),
    ]:
        refused = admin(trio.nodes[0], *words)
        assert refused.returncode != 0 and why in refused.stderr, (words, refused.stderr)
    session.execute("DROP TABLE ks.t")
    refused = admin(trio.nodes[0], "removenode", name)
    assert (
        "no other node can take a replica of table three.t" in refused.stderr
        and "excludenode" in refused.stderr
    )
    assert len(members(trio.nodes[0])) == 3


def test_replicas_of_an_excluded_node_are_built_once_a_node_can_take_them(trio, fourth):
    session = fill_table(trio, factor=3, tablets=TABLETS)
    name = kill(trio, 1)
    done = admin(trio.nodes[0], "excludenode", name)
    assert done.returncode == 0, done.stderr
    status = admin(trio.nodes[2], "status").stdout
    assert f"XL {trio.nodes[1].address}" in status and "add a node" in status, status
    with Writer(session, Level.QUORUM) as writer:
        fourth.start()
        eventually(
            lambda: all_owners(fourth)
            == {trio.nodes[0].address, trio.nodes[2].address, fourth.address},
            60,
        )
    eventually(lambda: "XL" not in admin(trio.nodes[2], "status").stdout)
    assert not writer.failures, writer.failures[:3]
    for source in (session, trio.sessions[2]):
        assert len(contents(source)) == ROWS + writer.rows


def test_a_removed_node_that_comes_back_ends(trio, fourth):
    fourth.start()
    session = fill_table(trio, factor=2, tablets=TABLETS)
    name = host_id(trio.nodes[1])
    with trio.nodes[1].standing_still():
        trio.wait_down(1)
        done = admin(trio.nodes[0], "removenode", name)
        assert done.returncode == 0, done.stderr
    eventually(lambda: not trio.nodes[1].alive(), 30)
    assert "cannot come back" in trio.nodes[1].log_tail(10)
    assert len(contents(session)) == ROWS


def test_a_removal_goes_on_without_the_node_that_was_asked(trio, fourth):
    fourth.start()
    session = fill_table(trio, factor=3, tablets=TABLETS)
    name = kill(trio, 1)
    done = admin(trio.nodes[2], "excludenode", name)
    assert done.returncode == 0, done.stderr
    trio.kill(2)
    trio.nodes[2].start()
    eventually(
        lambda: all_owners(fourth)
        == {trio.nodes[0].address, trio.nodes[2].address, fourth.address},
        60,
    )
    assert len(contents(session)) == ROWS
