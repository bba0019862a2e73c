"""Writes that no hint brings: every node's status shows who misses what, until it has been brought."""

import subprocess

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from cluster.trio import Trio, eventually, quorum, rest
from launch import binary


def admin(node, *arguments):
    done = subprocess.run([binary(), "admin", "--api", f"http://{node.address}:10000", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def missed(node, of):
    return next(one["missed_writes"] for one in rest(node, "/cluster/nodes") if one["address"] == of.address)


def test_a_node_that_was_down_for_too_long_is_shown_until_it_has_everything(tmp_path):
    with Trio(tmp_path, max_hint_window_in_ms=300) as trio:
        trio.keyspace()
        first, second, third = trio.nodes
        trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
        trio.sessions[0].execute("CREATE TABLE ks.untouched (k int PRIMARY KEY)")
        assert missed(first, third) is None
        trio.kill(2)
        trio.wait_down(2)
        written = []

        def is_shown():
            written.append(len(written))
            trio.sessions[0].execute(quorum(f"INSERT INTO ks.t (k, v) VALUES ({written[-1]}, 1)"))
            return missed(first, third) is not None

        eventually(is_shown)
        # On every node, also after a restart of the one that knows, and when the node is back.
        trio.kill(0)
        first.start()
        third.start()
        trio.wait_up(0)
        trio.wait_up(2)
        eventually(lambda: all(one["native_transport"] for one in rest(first, "/cluster/nodes")))
        for node in (first, second):
            assert missed(node, third)["tables"] == ["ks.t"]
            assert "misses writes of 1 table" in admin(node, "status") and "messina admin resync" in admin(node, "status")
        assert "a node misses writes that no hint will bring" in first.log_path.read_text()

        assert admin(second, "resync", third.address).split() == ["ks.t"]
        for node in (first, second, third):
            assert missed(node, third) is None and "misses" not in admin(node, "status")
        one = SimpleStatement("SELECT k FROM ks.t", consistency_level=ConsistencyLevel.ONE)
        assert sorted(row.k for row in trio.sessions[2].execute(one)) == written
