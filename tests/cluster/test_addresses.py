"""Nodes whose addresses change: all at once, or two that swap theirs. A copied data directory is
not accepted."""

import shutil

import pytest
from cluster.trio import NODES, Sessions, Together, eventually, make, quorum, rest
from launch import Node, StartFailed, free_address


SHORT = {
    "address_change_delay_in_ms": 5000
}  # the silence after which a node is admitted at another address


@pytest.fixture
def three(tmp_path):
    """Three nodes with some rows, all of them stopped. A node that moves keeps its rows."""
    nodes = make(tmp_path, shards=(1, 1, 1), **SHORT)
    try:
        together = Together(nodes)
        with Sessions(nodes) as sessions:
            sessions[0].execute(
                "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
                " 'replication_factor': 3}"
            )
            sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
            for k in range(20):
                sessions[k % NODES].execute(quorum(f"INSERT INTO ks.t (k, v) VALUES ({k}, {k})"))
        for node in nodes:
            node.stop()
        together.end()
        yield nodes
    finally:
        for node in nodes:
            node.close()


def serve_again(nodes):
    """After the silence at the old addresses, all three nodes start, find each other, answer
    queries at every level, and agree on all addresses."""
    together = Together(nodes)
    addresses = {node.address for node in nodes}
    try:
        with Sessions(nodes) as sessions:
            for n, node in enumerate(nodes):
                eventually(lambda: set(rest(node, "/gossiper/endpoint/live")) == addresses)
                eventually(
                    lambda: {
                        row.peer for row in sessions[n].execute("SELECT peer FROM system.peers")
                    }
                    == addresses - {node.address}
                )
                eventually(
                    lambda: all(one["native_transport"] for one in rest(node, "/cluster/nodes"))
                )
                assert len(list(sessions[n].execute(quorum("SELECT k FROM ks.t")))) == 20
            sessions[0].execute("CREATE TABLE ks.later (k int PRIMARY KEY)")
            clients = {
                row.peer: row.native_address
                for row in sessions[0].execute("SELECT peer, native_address FROM system.peers_v2")
            }
            assert clients == {address: address for address in addresses - {nodes[0].address}}
    finally:
        together.end()


def seeds(node, *addresses):
    node.config["seeds"] = f"'{','.join(addresses)}'"


def test_all_nodes_have_new_addresses(three):
    for node in three:
        node.address = free_address()
    # One seed is enough: the other nodes learn about each other from it.
    for node in three:
        seeds(node, three[0].address)
    serve_again(three)


def test_two_nodes_swap_their_addresses(three):
    three[0].address, three[1].address = three[1].address, three[0].address
    serve_again(three)


def test_three_nodes_pass_their_addresses_on(three):
    addresses = [node.address for node in three]
    for n, node in enumerate(three):
        node.address = addresses[(n + 1) % NODES]
    serve_again(three)


def test_a_copy_is_refused_while_all_nodes_move(three, tmp_path):
    """The node is found at its new address. Its copy starts later, and is not admitted."""
    copy = Node(shards=1, memory="256M", data_dir=tmp_path / "copy", config=dict(three[1].config))
    shutil.copytree(three[1].data_dir, copy.data_dir, dirs_exist_ok=True)
    for node in three:
        node.address = free_address()
    for node in (*three, copy):
        seeds(node, *(one.address for one in three))
    together = Together(three)
    try:
        with pytest.raises(StartFailed, match="older copy of the node's directory"):
            copy.start()
        for node in three:
            assert set(rest(node, "/gossiper/endpoint/live")) == {one.address for one in three}
    finally:
        together.end()
        copy.close()


def test_a_member_without_its_metadata_is_told_so_at_once(three):
    """The directory `raft` is gone: the node stops, and reports a remedy."""
    together = Together(three[:2])
    shutil.rmtree(three[2].data_dir / "raft")
    try:
        with pytest.raises(StartFailed, match="(?s)ended with.*raft.*[Rr]estore"):
            three[2].start(timeout=10)
    finally:
        together.end()
