"""Frames and requests that no driver sends: the node returns the right protocol error, keeps the
connection open if the protocol allows it, and stays up."""

import os
import struct

import pytest
from raw import BAD, KEYSPACE, node_lives, schema, wire  # noqa: F401
from wire import (
    BATCH, ERROR, EVENT, EXECUTE, HEADER, INVALID, OPTIONS, OVERLOADED, PREPARE, PROTOCOL, QUERY,
    READY, REGISTER, RESULT, STARTUP, SUPPORTED, SYNTAX, UNPREPARED, Closed, Wire, integer,
    long_string, parameters, query, string, string_map,
)


@pytest.mark.parametrize("version", [66, 65, 7, 0, 127])
@pytest.mark.parametrize("opcode", [OPTIONS, STARTUP])
def test_unknown_version(host, version, opcode):
    with Wire(host, started=False) as wire:
        answer = wire.ask(
            opcode,
            string_map({"CQL_VERSION": "3.0.0"}) if opcode == STARTUP else b"",
            version=version,
            stream=5,
        )
        answer.is_error(PROTOCOL)
        assert "protocol version" in answer.message.lower() and answer.stream in (0, 5)
        assert answer.version & 0x80 and answer.version & 0x7F in (3, 4, 5)


@pytest.mark.scylla
@pytest.mark.parametrize("version", [1, 2])
def test_oldest_versions(host, version):
    """The header of these versions is a byte shorter. The connection is closed, with or without an
    error, and never hangs."""
    with Wire(host, started=False) as wire:
        wire.send_raw(bytes([version, 0, 0, OPTIONS, 0, 0, 0, 0]))
        wire.socket.settimeout(5)
        try:
            while wire.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass


@pytest.mark.scylla
@pytest.mark.parametrize("version", [66, 65, 6, 7])
def test_unknown_version_is_answered_on_its_stream(host, version):
    with Wire(host, started=False) as wire:
        answer = wire.ask(OPTIONS, version=version, stream=77)
        answer.is_error(PROTOCOL)
        assert answer.stream == 77 and answer.version == 0x84
        assert answer.message.startswith("Invalid or unsupported protocol version")


@pytest.mark.scylla
def test_response_bit_in_a_request(host):
    with Wire(host, started=False) as wire:
        wire.send(OPTIONS, version=0x84)
        wire.closes()


def test_options_before_and_after_startup(host):
    with Wire(host, started=False) as wire:
        assert wire.ask(OPTIONS).opcode == SUPPORTED
        assert (
            wire.ask(
                STARTUP,
                string_map({"CQL_VERSION": "4.0.0", "UNKNOWN": "kept", "DRIVER_NAME": "raw"}),
            ).opcode
            == READY
        )
        assert wire.ask(OPTIONS, stream=9).stream == 9
        wire.works()


@pytest.mark.parametrize("opcode, body", [(QUERY, query("SELECT key FROM system.local")),
    (PREPARE, long_string("SELECT key FROM system.local")),
                                          (REGISTER, b"\0\0"),
                                          (EXECUTE, string(b"\0" * 16) + parameters())])
def test_no_request_before_startup(host, opcode, body):
    with Wire(host, started=False) as wire:
        try:
            wire.ask(opcode, body).is_error(PROTOCOL)
        except Closed:
            pass


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\1", b"\0\1\0\5abc", b"\xff\xff",
    string_map({"COMPRESSION": "zip9", "CQL_VERSION": "3.0.0"})])
def test_wrong_startup(host, body):
    with Wire(host, started=False) as wire:
        try:
            wire.ask(STARTUP, body).is_error(*BAD)
        except Closed:
            pass


def test_startup_twice(wire):
    try:
        wire.ask(STARTUP, string_map({"CQL_VERSION": "3.0.0"}))
    except Closed:
        pass


@pytest.mark.scylla
@pytest.mark.parametrize("opcode", [0x20, 0x10, 0xFF, 0x04, READY, RESULT, ERROR, EVENT, SUPPORTED])
def test_unknown_opcode_leaves_the_connection(wire, opcode):
    assert wire.ask(opcode, b"", stream=3).is_error(PROTOCOL).stream == 3
    wire.works()


@pytest.mark.scylla
@pytest.mark.parametrize("length", [-1, -2**31])
def test_negative_length(wire, length):
    wire.send(QUERY, b"", length=length)
    try:
        wire.receive().is_error(*BAD)
        wire.closes()
    except Closed:
        pass


def test_length_and_then_nothing(host):
    """Many connections that announce large frames and send little use no memory."""
    wires = [Wire(host) for _ in range(50)]
    for it in wires:
        it.send(QUERY, b"x" * 100, length=200 * 1024 * 1024)
    with Wire(host) as wire:
        for _ in range(50):
            wire.works()
    for it in wires:
        it.socket.close()


@pytest.mark.node
def test_announced_lengths_take_no_memory(node):
    node.start()
    before = node.rss_mib()
    wires = [Wire(node.address) for _ in range(100)]
    for it in wires:
        it.send(QUERY, b"x" * 100, length=200 * 1024 * 1024)
    with Wire(node.address) as wire:
        wire.works()
    assert node.rss_mib() - before < 100
    for it in wires:
        it.socket.close()


@pytest.mark.scylla
def test_a_request_too_large_is_refused_and_the_connection_survives(wire):
    """Frames above the limit are read to their end and discarded."""
    size = 40 * 1024 * 1024 * 10
    wire.send_raw(HEADER.pack(4, 0, 7, QUERY, size))
    block = b" " * (1 << 20)
    try:
        for _ in range(size // len(block)):
            wire.send_raw(block)
        answer = wire.receive()
        answer.is_error(*BAD, OVERLOADED)
        wire.works()
    except (Closed, ConnectionResetError, BrokenPipeError):
        pass


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_truncated_query_body(wire, cut):
    body = query("SELECT * FROM system.local WHERE key = ?", values=[b"local"], page_size=5)[:-cut]
    wire.ask(QUERY, body, stream=2).is_error(*BAD, SYNTAX)
    wire.works()


@pytest.mark.parametrize("opcode, body", [
    (QUERY, b""), (QUERY, integer(-1)), (QUERY, integer(2**31 - 1) + b"abc"),
    (QUERY, integer(-5) + b"abc"), (PREPARE, b""), (PREPARE, integer(100)),
    (PREPARE, integer(-1)), (EXECUTE, b""), (EXECUTE, struct.pack(">H", 65535)),
    (EXECUTE, string(b"")), (BATCH, b""), (BATCH, b"\0\0\1"),
    (BATCH, b"\7\0\0" + struct.pack(">HB", 1, 0)), (BATCH, b"\0\xff\xff"), (BATCH, b"\0\0\1\7"),
    (BATCH, b"\0\0\1\0" + long_string("INSERT")),
    (REGISTER, b""), (REGISTER, struct.pack(">H", 5)),
    (REGISTER, struct.pack(">H", 1) + string("NO_SUCH_EVENT")),
    (QUERY, long_string("SELECT key FROM system.local")),
    (QUERY, long_string("SELECT key FROM system.local") + b"\0"),
    (QUERY, long_string(b"\xff\xfe\xfd") + parameters()), (PREPARE, long_string(b"\xc3\x28")),
    (QUERY, long_string("SELECT key FROM system.local WHERE key = ?")
        + struct.pack(">HBH", 1, 1, 65535)),
    (QUERY, long_string("SELECT key FROM system.local WHERE key = ?")
        + struct.pack(">HBH", 1, 1, 1) + integer(-3)),
    (QUERY, long_string("SELECT key FROM system.local WHERE key = ?")
        + struct.pack(">HBH", 1, 1, 1) + integer(2**31 - 1)),
    (0x0F, b""), (0x0F, integer(5) + b"abc"),
])
def test_wrong_bodies(wire, opcode, body):
    try:
        wire.ask(opcode, body, stream=11).is_error(*BAD, SYNTAX, UNPREPARED)
    except Closed:
        return
    try:
        wire.works()
    except (Closed, ConnectionResetError, BrokenPipeError):
        pass  # Cassandra gives up such a connection; with ScyllaDB's manners it lives, see below


@pytest.mark.scylla
@pytest.mark.parametrize("opcode, body", [(QUERY, b""), (QUERY, integer(2**31 - 1) + b"abc"),
    (EXECUTE, b""), (BATCH, b""), (PREPARE, integer(100)),
                                          (QUERY, long_string(
                                              "SELECT key FROM system.local WHERE key = ?")
                                              + struct.pack(">HBH", 1, 1, 65535))])
def test_connection_survives_wrong_bodies(wire, opcode, body):
    wire.ask(opcode, body, stream=11).is_error(*BAD)
    wire.works()


@pytest.mark.scylla
def test_trailing_bytes_do_no_harm(wire):
    wire.ask(QUERY, query("SELECT key FROM system.local") + b"garbage")
    wire.works()


@pytest.mark.parametrize("consistency", [0x0B, 0x10, 0x7FFF, 0xFFFF])
def test_unknown_consistency(wire, consistency):
    wire.query("SELECT key FROM system.local", consistency=consistency).is_error(PROTOCOL, INVALID)
    try:
        wire.works()
    except (Closed, ConnectionResetError, BrokenPipeError):
        pass


@pytest.mark.parametrize("consistency", [8, 9])
def test_serial_is_no_level_for_writes(wire, consistency):
    wire.query(
        f"INSERT INTO {KEYSPACE}.t (pk, ck) VALUES (5, 5)", consistency=consistency
    ).is_error(INVALID)
    wire.works()


def test_level_any(wire):
    wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = 1", consistency=0).is_error(INVALID)
    wire.works()


def test_negative_stream(host):
    """Negative stream ids belong to the server."""
    with Wire(host) as wire:
        try:
            wire.send(QUERY, query("SELECT key FROM system.local"), stream=-5)
            wire.receive()
        except Closed:
            pass


def test_unknown_frame_flags(wire):
    try:
        answer = wire.ask(QUERY, query("SELECT key FROM system.local"), flags=0x40)
        assert answer.opcode in (RESULT, ERROR)
    except Closed:
        pass


def test_unknown_query_flags(wire):
    try:
        wire.ask(QUERY, long_string("SELECT key FROM system.local") + struct.pack(">HB", 1, 0x80))
        wire.works()
    except Closed:
        pass


@pytest.mark.scylla
def test_compressed_flag_without_negotiation(wire):
    try:
        wire.ask(QUERY, query("SELECT key FROM system.local"), flags=1).is_error(PROTOCOL)
    except Closed:
        pass


@pytest.mark.parametrize("algorithm", ["lz4", "snappy"])
def test_compression(host, algorithm):
    compress, decompress = codec(algorithm)
    with Wire(host, options={"COMPRESSION": algorithm}, decompress=decompress) as wire:
        wire.send(QUERY, compress(query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = 1")), flags=1)
        answer = wire.receive()
        assert len(answer.rows()) == 100 and answer.flags & 1
        # A request may be uncompressed all the same.
        assert len(wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = 1").rows()) == 100
        wire.works()


def codec(algorithm):
    if algorithm == "lz4":
        import lz4.block

        def compress(data):
            return struct.pack(">i", len(data)) + lz4.block.compress(data, store_size=False)

        def decompress(data):
            return lz4.block.decompress(
                data[4:], uncompressed_size=struct.unpack_from(">i", data)[0]
            )

        return compress, decompress
    import snappy

    return snappy.compress, snappy.decompress


@pytest.mark.parametrize("algorithm", ["lz4", "snappy"])
@pytest.mark.parametrize("kind", ["garbage", "empty", "short", "bomb", "negative", "cut"])
def test_wrong_compressed_bodies(host, algorithm, kind):
    compress, _ = codec(algorithm)
    body = compress(query("SELECT key FROM system.local"))
    body = {
        "garbage": os.urandom(200), "empty": b"", "short": body[:3], "cut": body[:-2],
        "bomb": struct.pack(">i", 2**31 - 1) + body[4:] if algorithm == "lz4"
        else b"\xff\xff\xff\xff\x07" + body[1:],
        "negative": struct.pack(">i", -5) + body[4:] if algorithm == "lz4"
        else b"\xff\xff\xff\xff\xff\xff" + body,
    }[kind]
    with Wire(
        host, options={"COMPRESSION": algorithm}, decompress=codec(algorithm)[1], timeout=5
    ) as wire:
        try:
            wire.ask(QUERY, body, flags=1).is_error(*BAD, SYNTAX)
            wire.works()
        except (Closed, ConnectionResetError, BrokenPipeError):
            pass
        except TimeoutError:
            pytest.fail("no answer")
