"""A member of a cluster keeps its datacenter and its rack, because replicas are placed by them."""

import pytest
from cluster.trio import Trio
from launch import Node, StartFailed


def refused(node):
    with pytest.raises(StartFailed) as failed:
        node.start(timeout=60)
    assert not node.alive()
    return str(failed.value)


def test_a_member_that_is_configured_elsewhere_is_refused(tmp_path):
    with Trio(tmp_path) as trio:
        node = trio.nodes[2]
        node.stop()
        datacenter, rack = node.config.get("datacenter"), node.config["rack"]
        node.config["datacenter"] = "elsewhere"
        said = refused(node)
        assert 'Saved DC name "datacenter1" is not equal to the DC name "elsewhere"' in said, said
        assert "empty data directory" in said, said
        node.config["datacenter"] = datacenter or "datacenter1"
        node.config["rack"] = "elsewhere"
        said = refused(node)
        assert f'Saved rack name "{rack}" is not equal to the rack name "elsewhere"' in said, said
        node.config["rack"] = rack
        node.start()
        assert node.alive()


def test_a_node_alone_may_move(tmp_path):
    node = Node(shards=1, memory="256M", data_dir=tmp_path / "alone", config={"datacenter": "here"})
    try:
        node.start()
        node.stop()
        node.config["datacenter"] = "there"
        node.start()
        assert node.alive()
    finally:
        node.close()
