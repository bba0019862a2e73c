"""A shard that stays overloaded refuses requests: those that have waited too long, and those of hot
partitions. It serves again when the load ends."""

import threading
import time

import pytest
import wire
from launch import Node

CONNECTIONS = 8
PIPELINED = 200  # requests that each connection sends together
# Rows that a request counts: it takes the shard much longer than the client, so that few clients on
# a busy machine are enough load.
ROWS = 400
LATE = (wire.OVERLOADED, b"configured via native_transport_max_queue_wait_in_ms")
HOT = (wire.CONFIG, b"Hot partition protection")
LONGEST = 60  # seconds until a request must have been refused


def fill(client, p, rows):
    """Adds rows to a partition."""
    for first in range(0, rows, 100):
        inserts = (
            f"INSERT INTO k.t (p, c) VALUES ({p}, {c});"
            for c in range(first, min(first + 100, rows))
        )
        written = client.query(f"BEGIN UNLOGGED BATCH {' '.join(inserts)} APPLY BATCH")
        assert written.opcode == wire.RESULT


class Load:
    """Connections that send requests again and again, whatever the answers are. Only refusals are
    expected, beside results."""

    def __init__(self, address, statement, refusal):
        self.refusal = refusal
        self.ends, self.refused, self.served, self.failures = False, 0, 0, []
        frames = [
            wire.HEADER.pack(4, 0, stream, wire.QUERY, len(statement)) + statement
            for stream in range(PIPELINED)
        ]
        self.threads = [
            threading.Thread(target=self.work, args=(address, b"".join(frames)))
            for _ in range(CONNECTIONS)
        ]
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
                            code, text = self.refusal
                            assert answer.code == code, answer.message
                            self.refused += text in answer.body
                        else:
                            self.served += 1
        except Exception as failure:
            self.failures.append(failure)

    def end(self):
        self.ends = True
        for thread in self.threads:
            thread.join()


@pytest.fixture
def one(request):
    """A node of one shard with these settings."""
    node = Node(shards=1, config=request.param)
    try:
        node.start()
        yield node
    finally:
        node.close()


@pytest.mark.parametrize("one", [{"native_transport_max_queue_wait_in_ms": "2ms"}], indirect=True)
def test_requests_that_waited_too_long_are_refused_until_the_load_ends(one):
    with wire.Wire(one.address) as client:
        client.query(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        client.query("CREATE TABLE k.t (p int, c int, PRIMARY KEY (p, c))")
        fill(client, 1, ROWS)
        statement = wire.query("SELECT count(*) FROM k.t WHERE p = 1")
        load = Load(one.address, statement, LATE)
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


@pytest.mark.parametrize("one", [{"hot_partition_wait_threshold_in_ms": "1ms"}], indirect=True)
def test_a_hot_partition_is_refused_while_its_shard_is_overloaded(one):
    with wire.Wire(one.address, timeout=LONGEST) as client:
        client.query(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        client.query("CREATE TABLE k.t (p int, c int, PRIMARY KEY (p, c))")
        fill(client, 1, ROWS)
        fill(client, 2, 20)
        load = Load(one.address, wire.query("SELECT count(*) FROM k.t WHERE p = 1"), HOT)
        try:
            waits(client, lambda: one.metric("scylla_database_hot_partition_would_refuse") > 0)
            assert load.refused == 0, "only counted in mode observe"
            assert (
                client.query(
                    "UPDATE system.config SET value = 'on' WHERE name = 'hot_partition_protection'"
                ).opcode
                == wire.RESULT
            )
            waits(client, lambda: load.refused > 1000)
            rows = client.query(
                "SELECT partition_key, refused_per_second FROM system.hot_partitions LIMIT 1"
            ).rows()
            assert rows[0][0] == b"1", rows
            assert (
                client.query(
                    "UPDATE system.config SET value = 'off' WHERE name = 'hot_partition_protection'"
                ).opcode
                == wire.RESULT
            )
            waits(client, lambda: still(load))
        finally:
            load.end()
        assert not load.failures, load.failures
        assert load.served


def still(load):
    """Whether nothing is refused while 1,000 requests are served."""
    refused, served = load.refused, load.served
    while load.served < served + 1000 and not load.failures:
        time.sleep(0.01)
    return load.refused == refused


def waits(client, condition):
    """Waits for a condition. Meanwhile a partition that is read rarely is always served."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < LONGEST
        answer = client.query("SELECT count(*) FROM k.t WHERE p = 2")
        assert answer.opcode == wire.RESULT, answer.message
        time.sleep(
            0.02
        )  # so that it is read rarely: its fair share is about a quarter of the shard's time
