"""Members that start with an older copy of their data directory."""

import shutil
import struct

import pytest
from cassandra import ConsistencyLevel
from cassandra.metadata import Murmur3Token
from cassandra.query import SimpleStatement
from cluster.trio import eventually, write_mark
from launch import StartFailed

pytestmark = pytest.mark.node


def keep_copy(node, name):
    node.stop()
    copy = node.data_dir.parent / name
    shutil.copytree(node.data_dir, copy)
    return copy


def put_back(node, copy):
    shutil.rmtree(node.data_dir)
    shutil.copytree(copy, node.data_dir)


def ends_and_says(node, *texts):
    """Starts the node. It may serve for a moment before it receives messages from the others."""
    before = len(node.log_path.read_text())
    try:
        node.start()
    except StartFailed:
        pass
    eventually(lambda: not node.alive(), seconds=60)
    said = node.log_path.read_text()[before:]
    assert all(text in said for text in texts), said[-3000:]
    assert "panicked" not in said, said[-3000:]


def test_a_member_with_a_backup_of_its_own_ends_and_the_others_go_on(trio):
    trio.keyspace()
    node = trio.nodes[2]
    copy = keep_copy(node, "backup")
    node.start()
    trio.wait_up(2)
    for n in range(3):
        trio.sessions[0].execute(f"CREATE TABLE ks.t{n} (k int PRIMARY KEY)")
    trio.kill(2)
    put_back(node, copy)
    ends_and_says(node, "empty data directory")
    trio.wait_down(2)
    eventually(
        lambda: trio.sessions[0].execute("CREATE TABLE ks.later (k int PRIMARY KEY)") is not None
    )
    assert trio.nodes[0].alive() and trio.nodes[1].alive()


def test_a_member_whose_changes_others_have_decided_differently_ends(trio):
    """The only node that has a table's creation is down, while the two others, one of them from a
    backup, commit another change."""
    trio.keyspace()
    first, second, third = trio.nodes
    trio.kill(2)
    trio.wait_down(2)
    # The copy must have the vote for the new leader: a member that forgets a vote can lead the same
    # term again, with other changes at the same positions (docs/faults.md).
    eventually(
        lambda: trio.sessions[0].execute("CREATE TABLE IF NOT EXISTS ks.before (k int PRIMARY KEY)")
        is not None
    )
    # A copy of the present run, because one of an earlier run is refused.
    copy = second.data_dir.parent / "backup"
    with second.standing_still():
        # All files as of one moment.
        shutil.copytree(second.data_dir, copy)
    eventually(
        lambda: trio.sessions[0].execute("CREATE TABLE IF NOT EXISTS ks.lost (k int PRIMARY KEY)")
        is not None
    )
    for n in range(2):
        trio.kill(n)
    put_back(second, copy)
    second.start()
    third.start()
    trio.sessions.forget(1)
    eventually(
        lambda: trio.sessions[1].execute("CREATE TABLE IF NOT EXISTS ks.other (k int PRIMARY KEY)")
        is not None,
        seconds=60,
    )
    ends_and_says(first, "different committed changes", "empty data directory")
    assert second.alive() and third.alive()


def test_a_member_that_only_has_hints_is_marked(trio):
    """A copy of its data directory would lack them."""
    trio.keyspace("one", factor=1)
    trio.sessions[0].execute("CREATE TABLE one.t (k int PRIMARY KEY)")
    hosts = [
        trio.sessions[n].execute("SELECT host_id FROM system.local").one().host_id for n in range(3)
    ]
    rows = trio.sessions[0].execute(
        "SELECT last_token, replicas FROM system.tablets WHERE table_name = 't' AND keyspace_name ="
        " 'one' ALLOW FILTERING"
    )
    tablets = sorted((row.last_token, hosts.index(row.replicas[0][0])) for row in rows)

    def owner_of(k):
        token = Murmur3Token.hash_fn(struct.pack(">i", k))
        return next(node for last, node in tablets if token <= last)

    owner, other = owner_of(0), (owner_of(0) + 1) % 3
    keys = [k for k in range(1000) if owner_of(k) == owner][:4]
    trio.kill(owner)
    trio.wait_down(owner)
    # The first rises may be those of the table's creation.
    for k in keys:
        before = write_mark(trio.nodes[other].data_dir)
        trio.sessions[other].execute(
            SimpleStatement(
                f"INSERT INTO one.t (k) VALUES ({k})", consistency_level=ConsistencyLevel.ANY
            )
        )
        eventually(lambda: write_mark(trio.nodes[other].data_dir) > before, seconds=30)
