"""Rows of many megabytes and many clients: the node stays within its memory, and each client gets
its rows or an error that it can retry."""

import contextlib
import pathlib
import sys
import time

import pytest
from launch import Node

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "protocol"))

import large  # noqa: E402
from wire import HEADER, QUERY, Wire, query  # noqa: E402

pytestmark = pytest.mark.node

MEMORY_MIB, ROW = 256, 6 << 20
# A build for tests uses 16 MiB more for its code than a release build.
MOST = 1.1 * MEMORY_MIB + 16
UNREAD_SECONDS = 2


@pytest.fixture(scope="module")
def node():
    with Node(
        shards=2,
        memory=f"{MEMORY_MIB}M",
        config={"native_transport_unread_timeout_in_ms": f"{UNREAD_SECONDS}s"},
    ) as node:
        large.make_table(node.address)
        yield node


def fine(report):
    assert (
        report["rows"] == report["expected"] and not report["lost"] and not report["wrong"]
    ), report


def test_writers_wait_for_memory(node):
    """Without a reservation for each body before it is read, each connection would keep a buffer of
    its longest body."""
    fine(large.run(large.Writer, node.address, clients=40, rows_each=1, size=ROW))
    assert large.peak_mib(node.pid) <= MOST


def test_readers_get_their_rows(node):
    """A regression: connections were dropped without an error when three such answers waited to be
    sent."""
    fine(large.run(large.Writer, node.address, clients=2, rows_each=4, size=ROW))
    for flushed in (False, True):
        if flushed:
            node.flush(large.KEYSPACE)
        fine(
            large.run(
                large.Reader, node.address, clients=16, rows_each=8, size=ROW, keys=list(range(4))
            )
        )
        assert large.peak_mib(node.pid) <= MOST, f"flushed: {flushed}"


def test_clients_that_do_not_read_hold_up_others_for_a_while_only(node):
    """A regression: their answers held a shard's memory for large rows as long as the connections
    were open."""
    fine(large.run(large.Writer, node.address, clients=2, rows_each=4, size=ROW))
    with contextlib.ExitStack() as silent:
        for key in range(4):
            wire = silent.enter_context(Wire(node.address))
            for stream in range(4):
                body = query(f"SELECT v FROM {large.KEYSPACE}.t WHERE pk = {key}")
                wire.send_raw(HEADER.pack(4, 0, stream, QUERY, len(body)) + body)
        began = time.monotonic()
        fine(
            large.run(
                large.Reader, node.address, clients=4, rows_each=2, size=ROW, keys=list(range(4))
            )
        )
        assert time.monotonic() - began < 30 * UNREAD_SECONDS
        assert node.metric("scylla_transport_connections_dropped_unread") >= 1
