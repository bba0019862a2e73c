"""Clients that are many, slow, random or gone, or read no answers: the node serves the others,
within its memory."""

import random
import socket
import struct
import time

import pytest
from raw import KEYSPACE, batch, node_lives, schema, wire  # noqa: F401
from wire import (
    BATCH, EXECUTE, HEADER, PREPARE, QUERY, REGISTER, RESULT, STARTUP, Closed, Wire, integer,
    long_string, parameters, query, string, value,
)


def test_pipelining(wire):
    """Streams 0..4095 at once: each gets exactly one answer, its own."""
    prepared = wire.prepare(f"SELECT ck FROM {KEYSPACE}.t WHERE pk = 1 AND ck = ?").prepared_id()
    head = string(prepared)
    wire.send_raw(b"".join(
        HEADER.pack(4, 0, stream, EXECUTE, len(body)) + body
        for stream in range(4096)
        for body in [head + parameters(values=[integer(stream % 100)])]
    ))
    seen = {}
    for _ in range(4096):
        answer = wire.receive()
        assert answer.stream not in seen
        seen[answer.stream] = answer.rows()
    assert all(seen[s] == [[integer(s % 100)]] for s in range(4096))
    wire.works()


def test_byte_by_byte(host):
    with Wire(host) as wire:
        body = query("SELECT key FROM system.local")
        for byte in HEADER.pack(4, 0, 1, QUERY, len(body)) + body:
            wire.send_raw(bytes([byte]))
        assert wire.receive().rows() == [[b"local"]]


def test_half_a_frame_and_gone(host):
    for n in range(30):
        wire = Wire(host)
        wire.send_raw(HEADER.pack(4, 0, 1, QUERY, 1000) + b"x" * n * 10)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.socket.close()


def test_requests_of_a_client_that_has_gone(host):
    for _ in range(10):
        wire = Wire(host)
        body = query(f"SELECT * FROM {KEYSPACE}.t")
        wire.send_raw((HEADER.pack(4, 0, 1, QUERY, len(body)) + body) * 200)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.socket.close()


def test_random_bytes(host):
    rng = random.Random(1)
    for started in (False, True):
        for _ in range(60):
            with Wire(host, started=started, timeout=1) as wire:
                try:
                    data = rng.randbytes(rng.randrange(1, 300))
                    if rng.random() < 0.7:  # a good header before bad bytes
                        data = (
                            HEADER.pack(
                                4,
                                0,
                                1,
                                rng.choice([QUERY, PREPARE, EXECUTE, BATCH, REGISTER, STARTUP]),
                                len(data),
                            )
                            + data
                        )
                    wire.send_raw(data)
                    wire.receive()
                except (Closed, TimeoutError, ConnectionResetError, BrokenPipeError):
                    pass


def test_mutated_requests(host):
    """Valid requests with a few changed bytes."""
    rng = random.Random(2)
    with Wire(host) as first:
        prepared = first.prepare(
            f"INSERT INTO {KEYSPACE}.types (pk, t, l, m) VALUES (?, ?, ?, ?)"
        ).prepared_id()
    good = [
        (QUERY, query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ? AND ck > ?",
            values=[integer(1), integer(5)], page_size=3)),
        (PREPARE, long_string(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ?")),
        (EXECUTE, string(prepared) + parameters(values=[integer(500), b"text",
            integer(1) + integer(4) + integer(7),
            integer(1) + integer(1) + b"k" + integer(4) + integer(9)])),
        (BATCH, batch([b"\0" + long_string(f"INSERT INTO {KEYSPACE}.t (pk, ck) VALUES (500, ?)")
            + struct.pack(">H", 1) + value(integer(1))])),
    ]
    wire, requests = None, 0
    while requests < 3000:
        wire = wire or Wire(host, timeout=2)
        opcode, body = rng.choice(good)
        body = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.choice(
                [0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        try:
            wire.ask(opcode, bytes(body))
        except (Closed, TimeoutError, ConnectionResetError, BrokenPipeError):
            wire.socket.close()
            wire = None
        requests += 1


def never_read(host, requests):
    """A client that requests much and reads nothing."""
    wire = Wire(host, timeout=3)
    body = query(f"SELECT * FROM {KEYSPACE}.big WHERE pk = 1", page_size=5000)
    frame = HEADER.pack(4, 0, 1, QUERY, len(body)) + body
    try:
        for _ in range(requests // 100):
            wire.send_raw(frame * 100)
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        pass  # the server stopped reading, as it should
    return wire


def node_with_a_page_of_a_mebibyte(node):
    node.start()
    with Wire(node.address) as wire:
        wire.query(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        wire.query(f"CREATE TABLE {KEYSPACE}.big (pk int, ck int, v blob, PRIMARY KEY (pk, ck))")
        prepared = wire.prepare(
            f"INSERT INTO {KEYSPACE}.big (pk, ck, v) VALUES (1, ?, ?)"
        ).prepared_id()
        for ck in range(100):
            assert wire.execute(prepared, values=[integer(ck), bytes(10_000)]).opcode == RESULT


@pytest.mark.node
def test_clients_that_never_read(node):
    """Such clients use at most the node's memory for unread answers (a tenth) and some for their
    connections. Other clients are served meanwhile."""
    node_with_a_page_of_a_mebibyte(node)
    rude = [never_read(node.address, 10_000) for _ in range(5)]
    with Wire(node.address) as wire:
        for _ in range(200):
            wire.works()
        assert node.rss_mib() < 256
        for it in rude:
            it.socket.close()
        wire.works()


@pytest.mark.node
@pytest.mark.long
def test_many_clients_that_never_read_shut_no_other_client_out(node):
    node_with_a_page_of_a_mebibyte(node)
    with Wire(node.address) as old:
        rude = []
        for _ in range(40):
            rude.append(never_read(node.address, 2000))
        time.sleep(1)
        old.works()
        with Wire(node.address) as new:
            new.works()
        # A tenth for unread answers, and a page for each client.
        assert node.rss_mib() < 256 + len(rude)
        for it in rude:
            it.socket.close()


@pytest.mark.node
def test_many_connections(node):
    node.start()
    wires = [Wire(node.address) for _ in range(500)]
    for it in wires[::50]:
        it.works()
    for it in wires:
        it.socket.close()
    with Wire(node.address) as wire:
        wire.works()
