"""A new node takes the place of a dead one, at another address or at the same."""

import pytest
from cassandra import ConsistencyLevel as Level
from cluster.elasticity.moving import (
    ROWS, Writer, all_owners, contents, fill_table, kill, members, owners, tablets,
)
from cluster.trio import Sessions, eventually, rest
from launch import Node, failed_start, free_address

TABLETS = 16


def newcomer(trio, tmp_path, dead, address=None, rack=None, **config):
    return Node(shards=trio.nodes[dead].shards, memory="256M", data_dir=tmp_path / "new",
                address=address or free_address(),
                config={"seeds": f"'{trio.nodes[0].address},{trio.nodes[2].address}'",
                    "rack": rack or f"r{dead}", **config})


@pytest.mark.parametrize("place", ["another address", "the same address"])
def test_a_new_node_replaces_a_dead_one_while_clients_write(trio, tmp_path, place):
    session = fill_table(trio, factor=3, tablets=TABLETS)
    dead = kill(trio, 1)
    address = trio.nodes[1].address if place == "the same address" else None
    new = newcomer(trio, tmp_path, 1, address, replace_node_first_boot=dead)
    try:
        with Writer(session, Level.QUORUM) as writer:
            new.start()
            stay = {trio.nodes[0].address, trio.nodes[2].address, new.address}
            eventually(lambda: all_owners(new) == stay, 60)
            eventually(
                lambda: sum(len(owners(tablet)) for tablet in tablets(new)) == 3 * TABLETS, 60
            )
        assert not writer.failures, writer.failures[:3]
        assert set(members(new)) == stay
        with Sessions([new]) as sessions:
            assert len(contents(sessions[0])) == len(contents(session)) == ROWS + writer.rows
        # The setting is ignored later.
        new.restart()
        eventually(lambda: new.address in rest(trio.nodes[0], "/gossiper/endpoint/live"))
        assert len(contents(session)) == ROWS + writer.rows
    finally:
        new.close()


def test_replacements_that_are_refused(trio, tmp_path):
    fill_table(trio, factor=3, tablets=TABLETS)
    dead = kill(trio, 1)
    for config, why in [
        ({"replace_node_first_boot": "00000000-0000-0000-0000-000000000001"}, "is not known"),
        ({"replace_node_first_boot": dead, "rack": "r7"}, "The new node must be there, too"),
        ({"replace_node_first_boot": "nobody"}, "a host id"),
    ]:
        assert why in str(failed_start(newcomer(trio, tmp_path, 1, **config))), config
    assert len(members(trio.nodes[0])) == 3
