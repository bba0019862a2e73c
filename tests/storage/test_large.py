"""Rows of many megabytes and many clients: the node keeps to its memory, and each client gets its rows or an error it can try again."""

import pathlib
import sys

import pytest
from launch import Node

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "protocol"))

import large  # noqa: E402

pytestmark = pytest.mark.node

MEMORY_MIB, ROW = 256, 6 << 20
# Of a build for tests, whose code alone takes more.
MOST = 1.1 * MEMORY_MIB + 16
# Readers beside memtables and compaction take more than they should: `bench/storage --only memory` has the target of 1.1 and misses it. This
# bound only tells that their answers are not kept without any.
MOST_WITH_READERS = 1.5 * MEMORY_MIB


@pytest.fixture(scope="module")
def node():
    with Node(shards=2, memory=f"{MEMORY_MIB}M") as node:
        large.make_table(node.address)
        yield node


def fine(report):
    assert report["rows"] == report["expected"] and not report["lost"] and not report["wrong"], report


def test_writers_wait_for_memory(node):
    """Without a reservation for each body before it is read, each connection kept a buffer of the longest body it had sent."""
    fine(large.run(large.Writer, node.address, clients=40, rows_each=1, size=ROW))
    assert large.peak_mib(node.pid) <= MOST


def test_readers_get_their_rows(node):
    """Connections used to be dropped, without an error, as soon as three such answers waited to be sent."""
    fine(large.run(large.Writer, node.address, clients=2, rows_each=4, size=ROW))
    for flushed in (False, True):
        if flushed:
            node.flush(large.KEYSPACE)
        fine(large.run(large.Reader, node.address, clients=16, rows_each=8, size=ROW, keys=list(range(4))))
        assert large.peak_mib(node.pid) <= MOST_WITH_READERS, f"flushed: {flushed}"
