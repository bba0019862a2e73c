"""Memory that connections hold for their input stays bounded: read buffers of idle connections,
beginnings of requests."""

import re
import time

import pytest
import wire
from launch import Node

CONNECTIONS = 1200
MEMORY = "128M"
# A connection may keep a few KiB. Read buffers of all of them would take 75 MiB, beginnings of
# requests half as much.
MOST_GROWTH = 34 << 20
TEXT = "SELECT key FROM system.local"
LONG = f"{TEXT} /*{'x' * 60_000}*/"
BEGUN = wire.HEADER.pack(4, 0, 1, wire.QUERY, 5 << 20) + bytes(32_700)


def idle(client):
    for _ in range(3):
        assert client.query(LONG).rows() == [[b"local"]]


def begun(client):
    client.send_raw(BEGUN)


def resident(node):
    with open(f"/proc/{node.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10


@pytest.mark.parametrize("holds", [idle, begun])
def test_connections_hold_little_memory_for_input(holds):
    node = Node(shards=1, memory=MEMORY).start()
    clients = []
    try:
        with wire.Wire(node.address) as first:
            first.query(LONG)
        before = resident(node)
        for _ in range(CONNECTIONS):
            clients.append(wire.Wire(node.address))
            holds(clients[-1])
        # Freed memory returns to the system a little later.
        ends = time.monotonic() + 20
        while resident(node) - before > MOST_GROWTH and time.monotonic() < ends:
            time.sleep(0.2)
        assert resident(node) - before <= MOST_GROWTH
        with wire.Wire(node.address) as another:
            assert another.query(TEXT).rows() == [[b"local"]]
    finally:
        for client in clients:
            client.socket.close()
        assert node.stop() == 0
        node.close()
