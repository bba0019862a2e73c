"""A shard that stays overloaded refuses requests that have waited too long, and serves again when the load ends."""

import threading
import time

import pytest
import wire
from launch import Node

CONNECTIONS = 8
PIPELINED = 200  # requests that each connection sends together
REFUSED = b"configured via native_transport_max_queue_wait_in_ms"
LONGEST = 60  # seconds until a request must have been refused


class Load:
    """Connections that send requests again and again, whatever the answers are."""

    def __init__(self, address, statement):
        self.ends, self.refused, self.served, self.failures = False, 0, 0, []
        frames = [wire.HEADER.pack(4, 0, stream, wire.QUERY, len(statement)) + statement for stream in range(PIPELINED)]
        self.threads = [threading.Thread(target=self.work, args=(address, b"".join(frames))) for _ in range(CONNECTIONS)]
        for thread in self.threads:
            thread.start()

    def work(self, address, requests):
        try:
            with wire.Wire(address, timeout=LONGEST) as client:
                while not self.ends:
                    client.send_raw(requests)
                    for _ in range(PIPELINED):
                        answer = client.receive()
                        if answer.opcode == wire.ERROR:
                            assert answer.code == wire.OVERLOADED, answer.message
                            self.refused += REFUSED in answer.body
                        else:
                            self.served += 1
        except Exception as failure:
            self.failures.append(failure)

    def end(self):
        self.ends = True
        for thread in self.threads:
            thread.join()


@pytest.fixture
def one():
    """A node of one shard that tolerates short waits only."""
    node = Node(shards=1, config={"native_transport_max_queue_wait_in_ms": "2ms"})
    try:
        node.start()
        yield node
    finally:
        node.close()


def test_requests_that_waited_too_long_are_refused_until_the_load_ends(one):
    with wire.Wire(one.address) as client:
        client.query("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
        client.query("CREATE TABLE k.t (p int, c int, PRIMARY KEY (p, c))")
        for c in range(50):
            assert client.query(f"INSERT INTO k.t (p, c) VALUES (1, {c})").opcode == wire.RESULT
        statement = wire.query("SELECT count(*) FROM k.t WHERE p = 1")
        load = Load(one.address, statement)
        began = time.monotonic()
        while not load.refused and not load.failures and time.monotonic() - began < LONGEST:
            # Requests of an obedient client are refused or served.
            answer = client.ask(wire.QUERY, statement)
            assert answer.opcode == wire.RESULT or answer.is_error(wire.OVERLOADED)
        load.end()
        assert not load.failures, load.failures
        assert load.refused and load.served, (load.refused, load.served)
        assert one.metric("scylla_transport_requests_shed") >= load.refused
        # The overload ends with its cause.
        served, began = 0, time.monotonic()
        while served < 100 and time.monotonic() - began < LONGEST:
            served = served + 1 if client.ask(wire.QUERY, statement).opcode == wire.RESULT else 0
        assert served == 100
