"""Tablets that move between the shards of a node: to new shards, by request, beside clients, over
kill -9."""

import collections
from concurrent.futures import ThreadPoolExecutor

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.elasticity.moving import ROWS, Writer, admin, contents, fill_table, owners, tablets
from cluster.trio import eventually, rest


def shards_of(trio, node):
    """The number of tablets on each shard of a node."""
    found = collections.Counter()
    for tablet in tablets(node):
        for replica in tablet["replicas"]:
            if replica["address"] == node.address:
                found[replica["shard"]] += 1
    return found


def is_even(trio, n, shards):
    """Whether each shard of a node has as many tablets as the others, and nothing moves."""
    counts = shards_of(trio, trio.nodes[n])
    spread = max(counts.values()) - min(counts.values())
    return len(counts) == shards and spread <= 1 and rest(trio.nodes[n], "/cluster/moves") == []


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_new_shards_of_a_node_get_tablets(trio, killed):
    fill_table(trio, factor=3, tablets=8)
    assert shards_of(trio, trio.nodes[0]) == {0: 8}
    with Writer(trio.sessions[1], level=Level.QUORUM) as writer:
        trio.sessions.forget(0)
        trio.nodes[0].stop()
        trio.nodes[0].shards = 3
        trio.nodes[0].start()
        if killed:
            # In the middle of the moves, whichever stage they have reached.
            eventually(lambda: len(shards_of(trio, trio.nodes[0])) > 1)
            trio.kill(0)
            trio.nodes[0].start()
        eventually(lambda: is_even(trio, 0, 3))
    assert not writer.failures, writer.failures[:3]
    found = contents(trio.sessions[0])
    assert len(found) == ROWS + writer.rows
    trio.kill(0)
    trio.nodes[0].start()
    assert contents(trio.sessions[1]) == found
    assert is_even(trio, 0, 3)


@pytest.fixture
def one_tablet(trio):
    """The session to node 1, which has two shards, and its only tablet: it moves by request."""
    off = admin(trio.nodes[1], "balancing", "off")
    assert off.returncode == 0, off.stderr
    fill_table(trio, factor=3, tablets=1)
    return trio.sessions[1], tablets(trio.nodes[1])[0]


def shard_of(trio):
    (tablet,) = tablets(trio.nodes[1])
    place = owners(tablet).index(trio.nodes[1].address)
    return tablet["replicas"][place]["shard"]


def move(trio, tablet, shard):
    own = trio.nodes[1].address
    words = ("move-tablet", "ks", "t", tablet["last_token"], own, own, "--shard", shard)
    return admin(trio.nodes[1], *words)


def test_a_tablet_moves_between_shards_by_request(trio, one_tablet):
    session, tablet = one_tablet
    pages = SimpleStatement("SELECT k, c FROM ks.t", fetch_size=100, consistency_level=Level.ALL)
    with Writer(session, level=Level.ALL) as writer:
        for _ in range(10):
            target = 1 - shard_of(trio)
            reading = session.execute(pages)
            moved = move(trio, tablet, target)
            assert moved.returncode == 0, moved.stderr
            assert shard_of(trio) == target
            assert len({(row.k, row.c) for row in reading}) >= ROWS
    assert not writer.failures, writer.failures[:3]
    assert len(contents(session)) == ROWS + writer.rows
    again = move(trio, tablet, shard_of(trio))
    assert again.returncode != 0 and "on this shard already" in again.stderr
    third = move(trio, tablet, 2)
    assert third.returncode != 0 and "has 2 shards" in third.stderr
    session.execute("TRUNCATE ks.t")
    trio.kill(1)
    trio.nodes[1].start()
    assert contents(trio.sessions[1]) == {}


def test_a_move_waits_while_an_sstable_cannot_be_opened(trio, one_tablet):
    _, tablet = one_tablet
    trio.nodes[1].flush("ks")
    trio.kill(1)
    for path in trio.nodes[1].data_dir.glob("data/ks/t-*/me-*-Statistics.db"):
        path.write_bytes(b"damaged")
    trio.nodes[1].start()
    before, token = shard_of(trio), tablet["last_token"]
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move, trio, tablet, 1 - before)
        for node in trio.nodes:
            eventually(lambda: "could not be opened" in str(rest(node, "/cluster/moves")))
        cancelled = admin(trio.nodes[0], "cancel-move", "ks", "t", token)
        assert cancelled.returncode == 0, cancelled.stderr
        moved = moving.result()
    assert moved.returncode != 0 and "was rolled back" in moved.stderr
    assert shard_of(trio) == before
