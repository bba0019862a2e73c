"""Events of the schema, and ScyllaDB's extensions of the protocol, as bytes."""

import socket
import struct

import pytest
from raw import KEYSPACE, node_lives, schema  # noqa: F401
from wire import EVENT, HEADER, OPTIONS, READY, REGISTER, RESULT, Wire, integer, string


def test_schema_events(host):
    with Wire(host) as listener, Wire(host) as wire:
        body = (
            struct.pack(">H", 3)
            + string("TOPOLOGY_CHANGE")
            + string("STATUS_CHANGE")
            + string("SCHEMA_CHANGE")
        )
        assert listener.ask(REGISTER, body).opcode == READY
        changes = [
            (f"CREATE TABLE {KEYSPACE}.evented (pk int PRIMARY KEY)", "CREATED", "TABLE",
                "evented"),
            (f"ALTER TABLE {KEYSPACE}.evented ADD v int", "UPDATED", "TABLE", "evented"),
            (f"DROP TABLE {KEYSPACE}.evented", "DROPPED", "TABLE", "evented"),
            (f"CREATE TYPE {KEYSPACE}.evented_type (a int)", "CREATED", "TYPE", "evented_type"),
            (f"DROP TYPE {KEYSPACE}.evented_type", "DROPPED", "TYPE", "evented_type"),
        ]
        for text, change, target, name in changes:
            expected = string(change) + string(target) + string(KEYSPACE) + string(name)
            answer = wire.query(text)
            assert answer.opcode == RESULT and answer.body == integer(5) + expected, answer.body
            event = listener.receive()
            while event.body != string("SCHEMA_CHANGE") + expected:
                event = listener.receive()
            assert event.opcode == EVENT and event.stream == -1
        answer = wire.query(f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.t (pk int PRIMARY KEY)")
        assert answer.body == integer(1)
        answer = wire.query(f"USE {KEYSPACE}")
        assert answer.body == integer(3) + string(KEYSPACE)


def supported(host, port=9042):
    with Wire(host, port=port, started=False) as wire:
        body, at = wire.ask(OPTIONS).body, 2
        result = {}

        def take():
            nonlocal at
            length = struct.unpack_from(">H", body, at)[0]
            at += 2 + length
            return body[at - length : at].decode()

        for _ in range(struct.unpack_from(">H", body)[0]):
            key = take()
            (count,) = struct.unpack_from(">H", body, at)
            at += 2
            result[key] = [take() for _ in range(count)]
        return result


@pytest.mark.scylla
def test_supported(host):
    options = supported(host)
    assert {"lz4", "snappy"} <= set(options["COMPRESSION"]) and options["CQL_VERSION"][
        0
    ].startswith("3.")
    assert options["SCYLLA_SHARDING_ALGORITHM"] == ["biased-token-round-robin"]
    assert options["SCYLLA_PARTITIONER"][0].endswith("Murmur3Partitioner")
    assert (
        options["SCYLLA_SHARD_AWARE_PORT"] == ["19042"]
        and int(options["SCYLLA_SHARDING_IGNORE_MSB"][0]) >= 0
    )
    assert 0 <= int(options["SCYLLA_SHARD"][0]) < int(options["SCYLLA_NR_SHARDS"][0])
    assert options["TABLETS_ROUTING_V1"] == [""]
    assert options["SCYLLA_USE_METADATA_ID"] == [""]
    assert options["SCYLLA_LWT_ADD_METADATA_MARK"] == ["LWT_OPTIMIZATION_META_BIT_MASK=2147483648"]
    for absent in ("TABLETS_ROUTING_V2_EXPERIMENTAL", "SCYLLA_SHARD_AWARE_PORT_SSL"):
        assert absent not in options


@pytest.mark.scylla
def test_shard_aware_port(host):
    """The source port chooses the shard."""
    shards = int(supported(host)["SCYLLA_NR_SHARDS"][0])
    checked = 0
    for port in range(50000, 50400):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
                s.connect((host, 19042))
            except OSError:
                continue
            s.sendall(HEADER.pack(4, 0, 0, OPTIONS, 0))
            s.settimeout(10)
            data = b""
            while len(data) < 9 or len(data) < 9 + struct.unpack_from(">i", data, 5)[0]:
                data += s.recv(65536)
            key = string("SCYLLA_SHARD") + b"\0\1"
            at = data.index(key) + len(key)
            shard = int(data[at + 2 : at + 2 + struct.unpack_from(">H", data, at)[0]])
            assert shard == port % shards
            checked += 1
            if checked == 8:
                return
    raise AssertionError("no source port could be bound")


@pytest.mark.scylla
def test_connections_spread_over_shards(host):
    shards = int(supported(host)["SCYLLA_NR_SHARDS"][0])
    wires = []
    seen = set()
    for _ in range(shards * 4):
        wire = Wire(host, started=False)
        body = wire.ask(OPTIONS).body
        at = body.index(string("SCYLLA_SHARD") + b"\0\1") + 16
        seen.add(body[at + 2 : at + 2 + struct.unpack_from(">H", body, at)[0]])
        wires.append(wire)
    assert len(seen) == shards
    for wire in wires:
        wire.socket.close()


@pytest.mark.scylla
def test_tablet_payload(host):
    """The payload is sent if and only if it was negotiated and the request came to a wrong
    shard."""
    shards = int(supported(host)["SCYLLA_NR_SHARDS"][0])
    if shards < 2:
        raise AssertionError("needs a node with two shards or more")
    for negotiated in (True, False):
        with Wire(host, options={"TABLETS_ROUTING_V1": ""} if negotiated else {}) as wire:
            prepared = wire.prepare(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ?").prepared_id()
            flags = [wire.execute(prepared, values=[integer(pk)]).flags & 4 for pk in range(200)]
            assert any(flags) == negotiated and not all(flags)
            literal = [
                wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = {pk}").flags & 4
                for pk in range(50)
            ]
            assert not any(literal)
