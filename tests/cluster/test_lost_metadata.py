"""A member of a cluster whose metadata log is gone: its start is refused, also with
--accept-loss."""

import shutil

import pytest
from launch import StartFailed

pytestmark = pytest.mark.node


def test_a_member_without_its_metadata_log_does_not_start(trio):
    trio.kill(2)
    node = trio.nodes[2]
    raft = node.data_dir / "raft"
    aside = node.data_dir.parent / "raft-aside"
    shutil.move(raft, aside)
    for extra in ([], ["--accept-loss"]):
        node.extra = extra
        with pytest.raises(StartFailed, match="cannot start without its metadata log"):
            node.start()
    shutil.rmtree(raft, ignore_errors=True)
    shutil.move(aside, raft)
    node.extra = []
    node.start()
    trio.wait_up(2)
