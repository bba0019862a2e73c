"""Missed writes: every node's status shows which nodes miss writes and why, until they are
repaired."""

import shutil
import subprocess

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from cluster.trio import Trio, eventually, quorum, rest
from launch import binary


def admin(node, *arguments):
    done = subprocess.run(
        [binary(), "admin", "--api", f"http://{node.address}:10000", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def missed(node, of):
    return next(
        one["missed_writes"] for one in rest(node, "/cluster/nodes") if one["address"] == of.address
    )


def values(trio, n):
    """The keys that a node has itself."""
    one = SimpleStatement("SELECT k FROM ks.t", consistency_level=ConsistencyLevel.ONE)
    return sorted(row.k for row in trio.sessions[n].execute(one))


def write(trio, keys, level=ConsistencyLevel.QUORUM):
    for k in keys:
        trio.sessions[0].execute(
            SimpleStatement(f"INSERT INTO ks.t (k, v) VALUES ({k}, 1)", consistency_level=level)
        )


def kept_hints(node):
    """Bytes of hints, without the headers of their files."""
    return sum(path.stat().st_size - 29 for path in (node.data_dir / "hints").glob("*/*/*.hints"))


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
        # On every node, also after a restart of the node with the record, and when the node is up
        # again.
        trio.kill(0)
        first.start()
        third.start()
        trio.wait_up(0)
        trio.wait_up(2)
        eventually(lambda: all(one["native_transport"] for one in rest(first, "/cluster/nodes")))
        for node in (first, second):
            assert missed(node, third)["tables"] == ["ks.t"]
            assert "misses writes of 1 table" in admin(
                node, "status"
            ) and "messina admin resync" in admin(node, "status")
        assert (
            "a node misses writes that hint replay will not deliver" in first.log_path.read_text()
        )

        assert admin(second, "resync", third.address).split() == ["ks.t"]
        for node in (first, second, third):
            assert missed(node, third) is None and "misses" not in admin(node, "status")
        assert values(trio, 2) == written
        for node in ([third.address], ["--all"]):
            assert "no missed writes are recorded for" in admin(second, "resync", *node)


def test_a_node_misses_the_hints_that_were_removed(tmp_path):
    with Trio(tmp_path) as trio:
        trio.keyspace()
        first, _, third = trio.nodes
        trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
        trio.kill(2)
        trio.wait_down(2)
        write(trio, range(20))
        eventually(lambda: kept_hints(first) > 0)
        trio.kill(0)
        shutil.rmtree(first.data_dir / "hints")
        before = len(first.log_path.read_text())
        first.start()
        third.start()
        trio.wait_up(2)
        eventually(lambda: missed(first, third) is not None)
        assert missed(first, third)["any_table"]
        log = first.log_path.read_text()[before:]
        assert "files of hints are missing" in log and "messina admin resync" in log
        assert "all hints for a node were delivered" not in log
        eventually(lambda: admin(first, "resync", "--all").startswith(f"{third.address}: "))
        assert missed(first, third) is None
        assert values(trio, 2) == list(range(20))


@pytest.mark.parametrize("removed", [["hint-notes"], ["hints", "hint-notes"]])
def test_a_node_misses_what_the_removed_notes_of_hints_named(tmp_path, removed):
    with Trio(tmp_path, max_hint_window_in_ms=300) as trio:
        trio.keyspace()
        first, second, third = trio.nodes
        trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
        trio.kill(2)
        trio.wait_down(2)
        written = []

        def is_shown():
            write(trio, [len(written)])
            written.append(len(written))
            return missed(first, third) is not None

        eventually(is_shown)
        for n in (0, 1):
            trio.kill(n)
            for name in removed:
                shutil.rmtree(trio.nodes[n].data_dir / name)
        trio.restart_all()
        for node in (first, second):
            eventually(lambda node=node: missed(node, third) is not None)
            assert missed(node, third)["any_table"]
            assert "misses writes" in admin(node, "status") and "messina admin resync" in admin(
                node, "status"
            )
        log = first.log_path.read_text()
        assert "a file of hint-notes is missing" in log and "messina admin resync" in log
        eventually(lambda: admin(first, "resync", "--all").startswith(f"{third.address}: "))
        assert missed(first, third) is None and missed(second, third) is None
        assert values(trio, 2) == written


def test_a_node_that_gave_up_its_commitlog_is_shown_until_it_has_everything(tmp_path):
    with Trio(tmp_path) as trio:
        trio.keyspace()
        first, _, third = trio.nodes
        trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
        write(trio, range(20), ConsistencyLevel.ALL)
        trio.kill(2)
        shutil.rmtree(third.data_dir / "commitlog")
        third.extra = ["--accept-loss"]
        third.start()
        third.extra = []
        trio.wait_up(2)
        for _ in range(2):
            for node in (first, third):
                eventually(lambda: missed(node, third) is not None)
                assert missed(node, third)["any_table"] and missed(node, third)["why"].endswith(
                    "(--accept-loss)"
                )
            # Also after a start without --accept-loss.
            trio.kill(2)
            third.start()
            trio.wait_up(2)
        host = next(
            one["host_id"]
            for one in rest(first, "/cluster/nodes")
            if one["address"] == third.address
        )
        assert f"messina admin resync {host}" in third.log_path.read_text()
        assert values(trio, 2) == []
        eventually(lambda: admin(third, "resync", host).split() == ["ks.t"])
        assert missed(first, third) is None and missed(third, third) is None
        assert values(trio, 2) == list(range(20))
