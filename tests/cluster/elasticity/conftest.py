"""Fixtures of the tests of clusters whose nodes and tablets move."""

import pytest
from launch import Node, free_address


@pytest.fixture
def fourth(tmp_path, trio):
    """A node that is not started, in the rack of the first."""
    node = Node(
        shards=1,
        memory="256M",
        data_dir=tmp_path / "fourth",
        address=free_address(),
        config={"seeds": f"'{trio.nodes[0].address},{trio.nodes[2].address}'", "rack": "r0"},
    )
    yield node
    node.close()
