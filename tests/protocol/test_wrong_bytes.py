"""Bytes that no driver sends: the node returns the right protocol error, keeps the connection open
if the protocol allows it, and stays up."""

import os
import random
import socket
import struct
import time

import pytest
from wire import (
    BATCH, ERROR, EVENT, EXECUTE, HEADER, INVALID, OPTIONS, OVERLOADED, PREPARE, PROTOCOL, QUERY, READY, REGISTER, RESULT, SERVER_ERROR,
    STARTUP, SUPPORTED, SYNTAX, UNPREPARED, Closed, Wire, integer, long_string, parameters, query, string, string_map, value,
)

KEYSPACE = "raw_protocol"
BAD = (PROTOCOL, INVALID, SERVER_ERROR)


@pytest.fixture(scope="module", autouse=True)
def schema(host):
    with Wire(host) as wire:
        wire.query(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        answer = wire.query(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}}")
        assert answer.opcode == RESULT, answer.message
        for columns in ("t (pk int, ck int, v int, PRIMARY KEY (pk, ck))", "types (pk int PRIMARY KEY, t text, b bigint, l list<int>, "
                        "m map<text, int>, u uuid, tu tuple<int, text>, d decimal, f float, bo boolean, i inet, du duration, da date, "
                        "ti time, ts timestamp, tt timeuuid, a ascii, s smallint, y tinyint, blb blob, fl frozen<set<int>>)",
                        "big (pk int, ck int, v blob, PRIMARY KEY (pk, ck))"):
            answer = wire.query(f"CREATE TABLE {KEYSPACE}.{columns}")
            assert answer.opcode == RESULT, answer.message
        for ck in range(100):
            wire.query(f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (1, {ck}, {ck})")
    yield


@pytest.fixture(autouse=True)
def node_lives(host, server):
    yield
    with Wire(host) as wire:
        wire.works()
    assert server is None or server.alive()


@pytest.fixture
def wire(host):
    with Wire(host) as it:
        yield it


# -- versions and handshake -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("version", [66, 65, 7, 0, 127])
@pytest.mark.parametrize("opcode", [OPTIONS, STARTUP])
def test_unknown_version(host, version, opcode):
    with Wire(host, started=False) as wire:
        answer = wire.ask(opcode, string_map({"CQL_VERSION": "3.0.0"}) if opcode == STARTUP else b"", version=version, stream=5)
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
        assert wire.ask(STARTUP, string_map({"CQL_VERSION": "4.0.0", "UNKNOWN": "kept", "DRIVER_NAME": "raw"})).opcode == READY
        assert wire.ask(OPTIONS, stream=9).stream == 9
        wire.works()


@pytest.mark.parametrize("opcode, body", [(QUERY, query("SELECT key FROM system.local")), (PREPARE, long_string("SELECT key FROM system.local")),
                                          (REGISTER, b"\0\0"), (EXECUTE, string(b"\0" * 16) + parameters())])
def test_no_request_before_startup(host, opcode, body):
    with Wire(host, started=False) as wire:
        try:
            wire.ask(opcode, body).is_error(PROTOCOL)
        except Closed:
            pass


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\1", b"\0\1\0\5abc", b"\xff\xff", string_map({"COMPRESSION": "zip9", "CQL_VERSION": "3.0.0"})])
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


# -- frames -----------------------------------------------------------------------------------------------------------------

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
    (QUERY, b""), (QUERY, integer(-1)), (QUERY, integer(2**31 - 1) + b"abc"), (QUERY, integer(-5) + b"abc"), (PREPARE, b""), (PREPARE, integer(100)),
    (PREPARE, integer(-1)), (EXECUTE, b""), (EXECUTE, struct.pack(">H", 65535)), (EXECUTE, string(b"")), (BATCH, b""), (BATCH, b"\0\0\1"),
    (BATCH, b"\7\0\0" + struct.pack(">HB", 1, 0)), (BATCH, b"\0\xff\xff"), (BATCH, b"\0\0\1\7"), (BATCH, b"\0\0\1\0" + long_string("INSERT")),
    (REGISTER, b""), (REGISTER, struct.pack(">H", 5)), (REGISTER, struct.pack(">H", 1) + string("NO_SUCH_EVENT")),
    (QUERY, long_string("SELECT key FROM system.local")), (QUERY, long_string("SELECT key FROM system.local") + b"\0"),
    (QUERY, long_string(b"\xff\xfe\xfd") + parameters()), (PREPARE, long_string(b"\xc3\x28")),
    (QUERY, long_string("SELECT key FROM system.local WHERE key = ?") + struct.pack(">HBH", 1, 1, 65535)),
    (QUERY, long_string("SELECT key FROM system.local WHERE key = ?") + struct.pack(">HBH", 1, 1, 1) + integer(-3)),
    (QUERY, long_string("SELECT key FROM system.local WHERE key = ?") + struct.pack(">HBH", 1, 1, 1) + integer(2**31 - 1)),
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
@pytest.mark.parametrize("opcode, body", [(QUERY, b""), (QUERY, integer(2**31 - 1) + b"abc"), (EXECUTE, b""), (BATCH, b""), (PREPARE, integer(100)),
                                          (QUERY, long_string("SELECT key FROM system.local WHERE key = ?") + struct.pack(">HBH", 1, 1, 65535))])
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
    wire.query(f"INSERT INTO {KEYSPACE}.t (pk, ck) VALUES (5, 5)", consistency=consistency).is_error(INVALID)
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


# -- compression ------------------------------------------------------------------------------------------------------------

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
            return lz4.block.decompress(data[4:], uncompressed_size=struct.unpack_from(">i", data)[0])

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
        "bomb": struct.pack(">i", 2**31 - 1) + body[4:] if algorithm == "lz4" else b"\xff\xff\xff\xff\x07" + body[1:],
        "negative": struct.pack(">i", -5) + body[4:] if algorithm == "lz4" else b"\xff\xff\xff\xff\xff\xff" + body,
    }[kind]
    with Wire(host, options={"COMPRESSION": algorithm}, decompress=codec(algorithm)[1], timeout=5) as wire:
        try:
            wire.ask(QUERY, body, flags=1).is_error(*BAD, SYNTAX)
            wire.works()
        except (Closed, ConnectionResetError, BrokenPipeError):
            pass
        except TimeoutError:
            pytest.fail("no answer")


# -- values -----------------------------------------------------------------------------------------------------------------

WRONG_VALUES = [
    ("pk", b""), ("pk", b"\0\0\0"), ("pk", b"\0" * 5), ("b", b"\0" * 7), ("t", b"\xff\xfe"), pytest.param("t", b"\xc0\x80", marks=pytest.mark.scylla), ("a", b"\x80"), ("u", b"\0" * 15),
    ("bo", b"\0\0"), ("f", b"\0" * 3), ("i", b"\0" * 5), ("da", b"\0" * 3), pytest.param("ti", integer(-1) + integer(-1), marks=pytest.mark.scylla), pytest.param("ti", b"\x7f" + b"\xff" * 7, marks=pytest.mark.scylla),
    ("ts", b"\0" * 9), ("tt", bytes.fromhex("d2177dd0eaa241dea572001b779c76e3")), ("s", b"\0"), ("y", b"\0\0"), ("d", b"\0\0\0"), ("du", b"\x01"),
    ("du", b"\x01\x02\x01"), ("l", b"\0\0"), ("l", integer(-1)), ("l", integer(2**31 - 1)), ("l", integer(1) + integer(3) + b"abc"),
    ("l", integer(2) + integer(4) + b"abcd"), ("l", integer(1) + integer(-1)), ("l", integer(1) + integer(4) + b"abcd" + b"trailing"),
    ("m", integer(1) + integer(1) + b"k"), ("m", integer(1) + integer(1) + b"\xff" + integer(4) + b"abcd"), ("fl", integer(1) + integer(5) + b"abcde"),
    ("tu", b"\0\0\0"), ("tu", integer(3) + b"abc"), ("tu", integer(4) + b"abcd" + integer(1) + b"\xff"),
    ("tu", integer(4) + b"abcd" + integer(1) + b"x" + integer(1) + b"y"),
]


@pytest.mark.parametrize("column, data", WRONG_VALUES)
def test_wrong_values(wire, column, data):
    wire.query(f"DELETE FROM {KEYSPACE}.types WHERE pk = 77")
    names = "pk" if column == "pk" else f"pk, {column}"
    prepared = wire.prepare(f"INSERT INTO {KEYSPACE}.types ({names}) VALUES ({'?' if column == 'pk' else '77, ?'})").prepared_id()
    answer = wire.execute(prepared, values=[data])
    answer.is_error(INVALID, *((PROTOCOL, SERVER_ERROR) if column in ("l", "m", "fl") else ()))
    wire.works()
    assert wire.query(f"SELECT pk FROM {KEYSPACE}.types WHERE pk = 77").rows() == []


@pytest.mark.scylla
@pytest.mark.parametrize("column, data", [w for w in WRONG_VALUES if w[0] in ("l", "m", "fl")])
def test_wrong_collections_are_invalid(wire, column, data):
    prepared = wire.prepare(f"INSERT INTO {KEYSPACE}.types (pk, {column}) VALUES (77, ?)").prepared_id()
    wire.execute(prepared, values=[data]).is_error(INVALID)
    wire.works()


@pytest.mark.parametrize("values", [[], [integer(1)], [integer(1)] * 3, [integer(1)] * 300])
def test_wrong_number_of_values(wire, values):
    prepared = wire.prepare(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ? AND ck = ?").prepared_id()
    wire.execute(prepared, values=values).is_error(INVALID, PROTOCOL)
    wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ? AND ck = ?", values=values).is_error(INVALID, PROTOCOL)
    wire.works()
    assert len(wire.execute(prepared, values=[integer(1)] * 2).rows()) == 1


def test_no_values_at_all(wire):
    prepared = wire.prepare(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ?").prepared_id()
    wire.execute(prepared).is_error(INVALID, PROTOCOL)
    wire.works()


def test_named_values(wire):
    assert len(wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = :p AND ck = :c", values=[integer(4), integer(1)], names=["c", "p"]).rows()) == 1
    wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = :p", values=[integer(4)], names=["wrong"]).is_error(INVALID, PROTOCOL)
    wire.works()


def test_unset_and_null_keys(wire):
    prepared = wire.prepare(f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (?, ?, ?)").prepared_id()
    for values in ([None, integer(1), integer(1)], [integer(1), None, integer(1)], [-2, integer(1), integer(1)], [integer(1), -2, integer(1)]):
        wire.execute(prepared, values=values).is_error(INVALID)
    wire.works()


def test_unknown_prepared_id(wire):
    answer = wire.execute(b"\x42" * 16, values=[])
    answer.is_error(UNPREPARED)
    assert answer.body.endswith(string(b"\x42" * 16))
    wire.works()
    for wrong in (b"", b"short", b"\x42" * 64):
        wire.execute(wrong, values=[]).is_error(UNPREPARED, *BAD)
    wire.works()


def batch(statements, kind=0, consistency=1, flags=0):
    return struct.pack(">BH", kind, len(statements)) + b"".join(statements) + struct.pack(">HB", consistency, flags)


def test_batches(wire):
    text = f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (9, ?, ?)"
    prepared = wire.prepare(text).prepared_id()
    by_text = b"\0" + long_string(text) + struct.pack(">H", 2) + value(integer(1)) + value(integer(1))
    by_id = b"\1" + string(prepared) + struct.pack(">H", 2) + value(integer(2)) + value(integer(2))
    assert wire.ask(BATCH, batch([by_text, by_id])).opcode == RESULT
    assert len(wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = 9").rows()) == 2
    unknown = b"\1" + string(b"\x42" * 16) + struct.pack(">H", 0)
    wire.ask(BATCH, batch([by_text, unknown])).is_error(UNPREPARED)
    few = b"\1" + string(prepared) + struct.pack(">H", 1) + value(integer(3))
    wire.ask(BATCH, batch([few])).is_error(INVALID, PROTOCOL)
    select = b"\0" + long_string("SELECT key FROM system.local") + struct.pack(">H", 0)
    wire.ask(BATCH, batch([select])).is_error(INVALID, SYNTAX)
    wire.works()


# -- paging states ------------------------------------------------------------------------------------------------------------

STATEMENTS = ["SELECT ck FROM {} WHERE pk = 1", "SELECT * FROM {}", "SELECT pk FROM {} WHERE pk IN (1, 2)", "SELECT DISTINCT pk FROM {}",
              "SELECT ck FROM {} WHERE pk = 1 ORDER BY ck DESC"]


@pytest.mark.parametrize("text", STATEMENTS)
@pytest.mark.parametrize("state", [b"\0", b"garbage", b"\xff" * 40, bytes(range(256)), b"\1" * 70000, struct.pack(">i", 2**31 - 1) * 10], ids=range(6))
def test_absurd_paging_states(host, text, state):
    with Wire(host) as wire:
        wire.query(text.format(f"{KEYSPACE}.t"), page_size=10, paging_state=state).is_error(PROTOCOL, INVALID, SERVER_ERROR)
        try:
            wire.works()
        except (Closed, ConnectionResetError, BrokenPipeError):
            pass


@pytest.mark.scylla
@pytest.mark.parametrize("text", STATEMENTS)
def test_every_damaged_paging_state_is_refused(wire, text):
    text = text.format(f"{KEYSPACE}.t")
    answer = wire.query(text, page_size=10)
    answer.rows()
    true = answer.paging_state
    if true is None:  # the statement has only one page
        return
    expected = wire.query(text, page_size=10, paging_state=true).rows()
    rng = random.Random(5)
    damaged = [true[:n] + bytes([true[n] ^ 1 << rng.randrange(8)]) + true[n + 1 :] for n in range(len(true))]
    damaged += [true[:n] for n in range(1, len(true))] + [true + b"\0", true * 2]
    for state in damaged:
        wire.query(text, page_size=10, paging_state=state).is_error(PROTOCOL)
    assert wire.query(text, page_size=10, paging_state=true).rows() == expected


@pytest.mark.scylla
def test_paging_state_of_another_statement(wire):
    """A protocol error, as for a forged state; the connection stays open."""
    wire.query(f"INSERT INTO {KEYSPACE}.types (pk) VALUES (1)")
    texts = [text.format(f"{KEYSPACE}.t") for text in STATEMENTS]
    states = {}
    for text in texts:
        answer = wire.query(text, page_size=1)
        answer.rows()
        if answer.paging_state:
            states[text] = answer.paging_state
    assert len(states) > 3
    others = [f"SELECT * FROM {KEYSPACE}.types", "SELECT * FROM system.local", f"SELECT count(*) FROM {KEYSPACE}.t"]
    for own, state in states.items():
        for text in texts + others:
            answer = wire.query(text, page_size=1, paging_state=state)
            if text == own:
                answer.rows()
            else:
                answer.is_error(PROTOCOL)
    wire.works()


@pytest.mark.parametrize("size", [pytest.param(0, marks=pytest.mark.scylla), -1, -2**31, 2**31 - 1, 1])
def test_page_sizes(wire, size):
    answer = wire.query(f"SELECT ck FROM {KEYSPACE}.t WHERE pk = 1", page_size=size)
    rows = answer.rows()
    assert len(rows) == (1 if size == 1 else 100)


def test_empty_paging_state(wire):
    answer = wire.query(f"SELECT ck FROM {KEYSPACE}.t WHERE pk = 1", page_size=10, paging_state=b"")
    if answer.opcode == ERROR:
        answer.is_error(PROTOCOL)
    else:
        assert len(answer.rows()) == 10


# -- many, slow and rude clients ----------------------------------------------------------------------------------------------

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
                        data = HEADER.pack(4, 0, 1, rng.choice([QUERY, PREPARE, EXECUTE, BATCH, REGISTER, STARTUP]), len(data)) + data
                    wire.send_raw(data)
                    wire.receive()
                except (Closed, TimeoutError, ConnectionResetError, BrokenPipeError):
                    pass


def test_mutated_requests(host):
    """Valid requests with a few changed bytes."""
    rng = random.Random(2)
    with Wire(host) as first:
        prepared = first.prepare(f"INSERT INTO {KEYSPACE}.types (pk, t, l, m) VALUES (?, ?, ?, ?)").prepared_id()
    good = [
        (QUERY, query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ? AND ck > ?", values=[integer(1), integer(5)], page_size=3)),
        (PREPARE, long_string(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ?")),
        (EXECUTE, string(prepared) + parameters(values=[integer(500), b"text", integer(1) + integer(4) + integer(7), integer(1) + integer(1) + b"k" + integer(4) + integer(9)])),
        (BATCH, batch([b"\0" + long_string(f"INSERT INTO {KEYSPACE}.t (pk, ck) VALUES (500, ?)") + struct.pack(">H", 1) + value(integer(1))])),
    ]
    wire, requests = None, 0
    while requests < 3000:
        wire = wire or Wire(host, timeout=2)
        opcode, body = rng.choice(good)
        body = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
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
        wire.query(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}}")
        wire.query(f"CREATE TABLE {KEYSPACE}.big (pk int, ck int, v blob, PRIMARY KEY (pk, ck))")
        prepared = wire.prepare(f"INSERT INTO {KEYSPACE}.big (pk, ck, v) VALUES (1, ?, ?)").prepared_id()
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
def test_many_clients_that_never_read_shut_nobody_out(node):
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


# -- events -------------------------------------------------------------------------------------------------------------------

def test_schema_events(host):
    with Wire(host) as listener, Wire(host) as wire:
        body = struct.pack(">H", 3) + string("TOPOLOGY_CHANGE") + string("STATUS_CHANGE") + string("SCHEMA_CHANGE")
        assert listener.ask(REGISTER, body).opcode == READY
        changes = [
            (f"CREATE TABLE {KEYSPACE}.evented (pk int PRIMARY KEY)", "CREATED", "TABLE", "evented"),
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


# -- ScyllaDB's extensions ----------------------------------------------------------------------------------------------------

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
    assert {"lz4", "snappy"} <= set(options["COMPRESSION"]) and options["CQL_VERSION"][0].startswith("3.")
    assert options["SCYLLA_SHARDING_ALGORITHM"] == ["biased-token-round-robin"]
    assert options["SCYLLA_PARTITIONER"][0].endswith("Murmur3Partitioner")
    assert options["SCYLLA_SHARD_AWARE_PORT"] == ["19042"] and int(options["SCYLLA_SHARDING_IGNORE_MSB"][0]) >= 0
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
            literal = [wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = {pk}").flags & 4 for pk in range(50)]
            assert not any(literal)
