"""`messina admin hot` on three nodes: the hot partitions of all, also while a node does not
answer."""

import json
import subprocess

from cassandra.concurrent import execute_concurrent_with_args
from cluster.trio import NODES
from launch import binary


def hot(node):
    """What `messina admin hot` shows of each node, by its address."""
    command = [str(binary()), "admin", "--api", node.address, "hot", "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
    return {one["address"]: one for one in shown}


def test_the_hot_partitions_of_all_nodes_are_shown(trio):
    trio.keyspace()
    trio.sessions[0].execute("CREATE TABLE ks.t (k text PRIMARY KEY, v int)")
    for n in range(NODES):
        write = trio.sessions[n].prepare("INSERT INTO ks.t (k, v) VALUES (?, 1)")
        execute_concurrent_with_args(trio.sessions[n], write, [("hot",)] * 1000, concurrency=50)
    addresses = [node.address for node in trio.nodes]
    shown = hot(trio.nodes[0])
    assert sorted(shown) == sorted(addresses)
    for address in addresses:
        first = max(shown[address]["partitions"], key=lambda one: one["writes_per_second"])
        assert shown[address]["error"] is None
        assert (first["keyspace"], first["table"], first["key"]) == ("ks", "t", "'hot'")
    trio.kill(2)
    trio.wait_down(2)
    shown = hot(trio.nodes[0])
    assert sorted(shown) == sorted(addresses)
    assert [shown[address]["error"] is None for address in addresses] == [True, True, False], shown
