"""Nodes that join a cluster with data: they serve at once, and tablets come to them beside
clients."""

from cassandra import ConsistencyLevel as Level
from cluster.elasticity.moving import (
    ROWS, Writer, admin, contents, fill_table, members, owners, tablets,
)
from cluster.trio import Sessions, eventually, rest

TABLETS = 32


def counts(trio, *others):
    """How many tablets each node has, in the order of the nodes."""
    found = {node.address: 0 for node in [*trio.nodes, *others]}
    for tablet in tablets(trio.nodes[0]):
        for owner in owners(tablet):
            found[owner] += 1
    return list(found.values())


def settle(trio, *others):
    """Waits until no tablet moves, and returns the tablets of each node."""
    seen = []

    def is_settled():
        seen.append(counts(trio, *others))
        return len(seen) > 20 and len({tuple(one) for one in seen[-20:]}) == 1

    eventually(is_settled, 60)
    return seen[-1]


def test_tablets_follow_a_node_that_joins(trio, fourth):
    session = fill_table(trio, factor=2, tablets=TABLETS)
    before = counts(trio)
    with Writer(session, Level.QUORUM) as writer:
        fourth.start()
        after = settle(trio, fourth)
    assert not writer.failures, writer.failures[:3]
    of_shards = [tablets / shards for tablets, shards in zip(after, (1, 2, 1, 1))]
    assert max(of_shards) - min(of_shards) <= 1, (before, after)
    with Sessions([fourth]) as sessions:
        for source in (session, sessions[0]):
            assert len(contents(source)) == ROWS + writer.rows
    assert members(fourth) == {node.address: "normal" for node in [*trio.nodes, fourth]}
    # And back.
    done = admin(fourth, "decommission")
    assert done.returncode == 0, done.stderr
    assert sum(counts(trio)) == sum(before)
    assert len(contents(session)) == ROWS + writer.rows


def test_balancing_can_be_turned_off(trio, fourth):
    fill_table(trio, factor=2, tablets=TABLETS)
    before = settle(trio)
    off = admin(trio.nodes[1], "balancing", "off")
    assert off.returncode == 0, off.stderr
    fourth.start()
    assert settle(trio, fourth) == [*before, 0]
    assert rest(fourth, "/storage_service/tablets/balancing") is False
    on = admin(fourth, "balancing", "on")
    assert on.returncode == 0, on.stderr
    eventually(lambda: counts(trio, fourth)[3] > 0)
