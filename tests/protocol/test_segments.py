"""Version 5 byte by byte: negotiation, valid and damaged segments, and the fields that only its
frames have."""

import random
import struct
import time

import pytest
from segments import (
    METADATA_CHANGED, MAX_PAYLOAD, NO_METADATA, Segments, metadata, parameters, segment,
)
from wire import (
    ERROR, EVENT, INVALID, OPTIONS, PROTOCOL, QUERY, READY, REGISTER, RESULT, STARTUP, SUPPORTED,
    SYNTAX, UNPREPARED, Closed, Wire, integer,
    long_string, string, string_map,
)

KEYSPACE = "raw_segments"


@pytest.fixture(scope="module", autouse=True)
def schema(host):
    with Wire(host) as wire:
        wire.query(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        wire.query(f"DROP KEYSPACE IF EXISTS {KEYSPACE}_2")
        for keyspace in (KEYSPACE, f"{KEYSPACE}_2"):
            answer = wire.query(
                f"CREATE KEYSPACE {keyspace} WITH replication = {{'class':"
                " 'NetworkTopologyStrategy', 'replication_factor': 1}"
            )
            assert answer.opcode == RESULT, answer.message
            answer = wire.query(
                f"CREATE TABLE {keyspace}.t (pk int, ck int, v blob, PRIMARY KEY (pk, ck))"
            )
            assert answer.opcode == RESULT, answer.message
    yield


@pytest.fixture(autouse=True)
def node_lives(host, server):
    yield
    with Wire(host) as wire:
        wire.works()
    assert server is None or server.alive()


@pytest.fixture(params=[False, True], ids=["plain", "lz4"])
def wire(host, request):
    with Segments(host, compressed=request.param) as it:
        yield it


@pytest.fixture
def plain(host):
    with Segments(host) as it:
        yield it


# -- negotiation -----------------------------------------------------------------------------------

@pytest.mark.scylla
@pytest.mark.parametrize("version", [3, 4, 5])
def test_supported(host, version):
    with Wire(host, started=False) as wire:
        answer = wire.ask(OPTIONS, version=version, stream=3)
        assert (
            answer.opcode == SUPPORTED and answer.version == 0x80 | version and answer.stream == 3
        )
        for key in (
            b"5/v5",
            b"SCYLLA_USE_METADATA_ID",
            b"SCYLLA_LWT_ADD_METADATA_MARK",
            b"LWT_OPTIMIZATION_META_BIT_MASK=2147483648",
        ):
            assert key in answer.body
        assert (b"snappy" in answer.body) == (version < 5)


@pytest.mark.parametrize("algorithm", ["snappy", "zip9"])
def test_other_compressions_are_refused_before_segments_begin(host, algorithm):
    with Wire(host, started=False) as wire:
        answer = wire.ask(
            STARTUP, string_map({"CQL_VERSION": "3.0.0", "COMPRESSION": algorithm}), version=5
        )
        assert answer.is_error(PROTOCOL, INVALID).version == 0x85


@pytest.mark.scylla
@pytest.mark.parametrize("version", [6, 7, 65, 66])
def test_versions_above_are_told_what_there_is(host, version):
    with Wire(host, started=False) as wire:
        answer = wire.ask(OPTIONS, version=version, stream=9)
        assert answer.is_error(PROTOCOL).stream == 9
        assert (
            answer.message
            == f"Invalid or unsupported protocol version ({version}); supported versions are (3/v3,"
            " 4/v4, 5/v5)"
        )


def test_heartbeat(wire):
    assert wire.ask(OPTIONS, stream=7).opcode == SUPPORTED
    wire.works()


# -- segments --------------------------------------------------------------------------------------

def test_frames_share_segments(wire):
    """Many requests in one segment. Their answers come in few segments."""
    frames = b"".join(
        wire.frame(QUERY, long_string("SELECT key FROM system.local") + parameters(), stream=n)
        for n in range(200)
    )
    wire.send_raw(segment(frames, True, wire.compress))
    answers = [wire.receive() for _ in range(200)]
    assert {answer.stream for answer in answers} == set(range(200))
    assert all(
        answer.rows() == [[b"local"]] and answer.version == 0x85 and not answer.flags
        for answer in answers
    )


@pytest.mark.parametrize("size", [100, 8_000, 65_000, 131_000, 131_060, 131_080, 140_000, 500_000])
@pytest.mark.parametrize("noise", [True, False])
def test_long_values_come_back(wire, size, noise):
    data = random.Random(size).randbytes(size) if noise else b"a" * size
    answer = wire.query(
        f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (7, ?, ?)", values=[integer(size), data]
    )
    assert answer.opcode == RESULT, answer.message
    answer = wire.query(
        f"SELECT v FROM {KEYSPACE}.t WHERE pk = 7 AND ck = ?", values=[integer(size)]
    )
    assert answer.rows() == [[data]]


def test_one_frame_in_tiny_segments(wire):
    frame = wire.frame(QUERY, long_string("SELECT key FROM system.local") + parameters(), stream=5)
    for at in range(len(frame)):
        wire.send_raw(segment(frame[at : at + 1], False, wire.compress))
    assert wire.receive().rows() == [[b"local"]]
    wire.send_raw(segment(b"", True, wire.compress) + segment(b"", False, wire.compress))
    wire.works()


def test_segments_byte_by_byte(wire):
    data = segment(
        wire.frame(QUERY, long_string("SELECT key FROM system.local") + parameters()),
        True,
        wire.compress,
    )
    for at in range(len(data)):
        wire.send_raw(data[at : at + 1])
    assert wire.receive().rows() == [[b"local"]]


def test_large_pages(wire):
    for ck in range(64):
        assert (
            wire.query(
                f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (8, ?, ?)",
                values=[integer(ck), bytes([ck]) * 10_000],
            ).opcode
            == RESULT
        )
    rows = wire.query(f"SELECT ck, v FROM {KEYSPACE}.t WHERE pk = 8").rows()
    assert [(struct.unpack(">i", ck)[0], len(v)) for ck, v in rows] == [
        (ck, 10_000) for ck in range(64)
    ]


@pytest.mark.scylla
@pytest.mark.parametrize("damage", ["header", "header checksum", "payload", "payload checksum"])
def test_damage_is_told_and_ends_the_connection(wire, damage):
    data = bytearray(
        segment(
            wire.frame(QUERY, long_string("SELECT key FROM system.local") + parameters()),
            True,
            wire.compress,
        )
    )
    fields = 5 if wire.compress else 3
    data[
        {
            "header": 0,
            "header checksum": fields,
            "payload": fields + 10,
            "payload checksum": len(data) - 1,
        }[damage]
    ] ^= 0x04
    wire.send_raw(data)
    answer = wire.receive().is_error(PROTOCOL)
    assert (
        "Damaged segment" in answer.message
        and ("CRC24" if "header" in damage else "CRC32") in answer.message
    )
    wire.closes()


@pytest.mark.scylla
def test_a_wrong_block_is_damage(host):
    with Segments(host, compressed=True) as wire:
        for block in (b"\xff" * 40, b"", b"\x10a"):
            with Segments(host, compressed=True) as other:
                other.send_raw(segment(b"x" * 1000, True, lambda _: block))
                assert "LZ4" in other.receive().is_error(PROTOCOL).message
                other.closes()
        wire.works()


@pytest.mark.scylla
@pytest.mark.parametrize("kind", ["ends within", "in the middle", "too much", "unwrapped"])
def test_segments_that_make_no_frame(plain, kind):
    frame = plain.frame(QUERY, long_string("SELECT key FROM system.local") + parameters())
    plain.send_raw({
        "ends within": segment(frame[:-3]), "in the middle": segment(frame[:10], False)
        + segment(frame),
        "too much": segment(frame[:10], False) + segment(frame[10:] + b"x", False),
        "unwrapped": frame,
    }[kind])
    plain.receive().is_error(PROTOCOL)
    plain.closes()


@pytest.mark.scylla
def test_a_request_too_large_is_refused_and_the_connection_survives(plain):
    size = 120 << 20
    head = struct.pack(">BBhBi", 5, 0, 7, QUERY, size)
    sent = 0
    block = segment(b" " * MAX_PAYLOAD, False)
    plain.send_raw(segment(head + b" " * (MAX_PAYLOAD - len(head)), False))
    sent += MAX_PAYLOAD - len(head)
    while size - sent >= MAX_PAYLOAD:
        plain.send_raw(block)
        sent += MAX_PAYLOAD
    plain.send_raw(segment(b" " * (size - sent), False))
    answer = plain.receive()
    assert answer.is_error(INVALID).stream == 7 and "too big" in answer.message
    plain.works()


def test_random_bytes(host):
    source = random.Random(11)
    for _ in range(40):
        with Segments(host, compressed=source.random() < 0.5, timeout=5) as wire:
            whole = wire.frame(QUERY, long_string("SELECT key FROM system.local") + parameters())
            data = bytearray(
                b"".join(
                    segment(
                        source.choice([whole, whole[: source.randrange(60)], source.randbytes(20)]),
                        source.random() < 0.7,
                        wire.compress,
                    )
                    for _ in range(3)
                )
            )
            for _ in range(source.randrange(3)):
                data[source.randrange(len(data))] = source.randrange(256)
            wire.send_raw(data)
            wire.socket.settimeout(0.05)
            try:
                for _ in range(3):
                    wire.receive()
            except (Closed, TimeoutError, OSError):
                pass


def test_version_4_inside_of_segments(plain):
    frame = plain.frame(
        QUERY, long_string("SELECT key FROM system.local") + struct.pack(">HB", 1, 0), version=4
    )
    plain.send_raw(segment(frame))
    plain.receive().is_error(PROTOCOL)


# -- what only version 5 says ----------------------------------------------------------------------

def test_a_request_names_its_keyspace(wire):
    for number, keyspace in enumerate((KEYSPACE, f"{KEYSPACE}_2")):
        answer = wire.query(
            "INSERT INTO t (pk, ck, v) VALUES (1, 1, ?)",
            values=[bytes([number])],
            keyspace=keyspace,
        )
        assert answer.opcode == RESULT, answer.message
    wire.query("SELECT v FROM t WHERE pk = 1 AND ck = 1").is_error(INVALID)
    wire.query(f"USE {KEYSPACE}")
    read = "SELECT v FROM t WHERE pk = 1 AND ck = 1"
    assert wire.query(read).rows() == [[b"\0"]]
    assert wire.query(read, keyspace=f"{KEYSPACE}_2").rows() == [[b"\1"]]
    assert wire.query(read).rows() == [[b"\0"]], "the connection's keyspace is what it was"
    here, there = wire.prepare(read), wire.prepare(read, keyspace=f"{KEYSPACE}_2")
    assert here.id != there.id
    assert wire.execute(here).rows() == [[b"\0"]] and wire.execute(there).rows() == [[b"\1"]]
    answer = wire.batch(
        [("INSERT INTO t (pk, ck, v) VALUES (1, 2, ?)", [b"b"])], keyspace=f"{KEYSPACE}_2"
    )
    assert answer.opcode == RESULT, answer.message
    assert wire.query(
        "SELECT v FROM t WHERE pk = 1 AND ck = 2", keyspace=f"{KEYSPACE}_2"
    ).rows() == [[b"b"]]
    assert wire.query("SELECT v FROM t WHERE pk = 1 AND ck = 2").rows() == []
    for answer in (wire.query(read, keyspace="no_such_keyspace"), wire.query(read, keyspace="")):
        answer.is_error(INVALID)


@pytest.mark.scylla
def test_a_schema_change_in_a_request_keyspace(plain):
    answer = plain.query("CREATE TABLE made (pk int PRIMARY KEY)", keyspace=f"{KEYSPACE}_2")
    assert answer.body[4:] == string("CREATED") + string("TABLE") + string(
        f"{KEYSPACE}_2"
    ) + string("made")
    plain.query("DROP TABLE made", keyspace=f"{KEYSPACE}_2")


def test_a_request_names_its_time(wire):
    """Expiry uses the time in the request."""
    now = int(time.time())
    insert = f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (2, ?, 0x01) USING TTL 1000"
    read = f"SELECT ck, ttl(v) FROM {KEYSPACE}.t WHERE pk = 2"
    wire.query(f"DELETE FROM {KEYSPACE}.t USING TIMESTAMP 1 WHERE pk = 2")
    assert wire.query(insert, values=[integer(1)], now=now).opcode == RESULT
    assert wire.query(insert, values=[integer(2)], now=now + 500).opcode == RESULT
    assert wire.batch([(insert.replace("?", "3"), [])], now=now + 2000).opcode == RESULT
    prepared = wire.prepare(read)

    def at(moment):
        rows = wire.execute(prepared, now=moment).rows()
        return [(struct.unpack(">i", ck)[0], struct.unpack(">i", ttl)[0]) for ck, ttl in rows]

    assert at(now) == [(1, 1000), (2, 1500), (3, 3000)]
    assert at(now + 999) == [(1, 1), (2, 501), (3, 2001)]
    assert at(now + 1000) == [(2, 500), (3, 2000)]
    assert at(now + 2999) == [(3, 1)]
    assert at(now + 3000) == []


@pytest.mark.parametrize("kind", ["v5", "extension"])
def test_metadata_ids(host, kind):
    """Metadata that the client knows is not sent again. Changed metadata is, with its new id."""
    table = f"{KEYSPACE}.ids_{kind}"
    with Wire(host) as admin:
        admin.query(f"DROP TABLE IF EXISTS {table}")
        assert admin.query(f"CREATE TABLE {table} (pk int PRIMARY KEY, a int)").opcode == RESULT
        assert admin.query(f"INSERT INTO {table} (pk, a) VALUES (1, 1)").opcode == RESULT
        with talker(host, kind) as wire:
            prepared = wire.prepare(f"SELECT * FROM {table} WHERE pk = 1")
            again = wire.prepare(f"SELECT * FROM {table} WHERE pk = 1")
            assert prepared.metadata_id and (again.id, again.metadata_id) == (
                prepared.id,
                prepared.metadata_id,
            )
            flags, columns, new = metadata(wire.execute(prepared, skip=True))
            assert flags & NO_METADATA and not flags & METADATA_CHANGED and columns == 2
            flags, columns, new = metadata(wire.execute(prepared, skip=False))
            assert not flags & (NO_METADATA | METADATA_CHANGED) and columns == 2
            for known in (b"", b"x", b"y" * 16):
                flags, columns, new = metadata(wire.execute(prepared, skip=True, metadata_id=known))
                assert (
                    flags & METADATA_CHANGED
                    and not flags & NO_METADATA
                    and new == prepared.metadata_id
                )
            assert admin.query(f"ALTER TABLE {table} ADD b text").opcode == RESULT
            flags, columns, new = metadata(wire.execute(prepared, skip=True))
            assert (
                flags & METADATA_CHANGED
                and not flags & NO_METADATA
                and columns == 3
                and new != prepared.metadata_id
            )
            assert wire.prepare(f"SELECT * FROM {table} WHERE pk = 1").metadata_id == new
            flags, columns, _ = metadata(wire.execute(prepared, skip=True, metadata_id=new))
            assert flags & NO_METADATA and not flags & METADATA_CHANGED and columns == 3
            write = wire.prepare(f"INSERT INTO {table} (pk, a) VALUES (2, 2)")
            assert wire.execute(write, skip=True).opcode == RESULT


class talker:
    """Version 5, or version 4 with SCYLLA_USE_METADATA_ID: the same requests."""

    def __init__(self, host, kind):
        self.v5 = kind == "v5"
        self.wire = (
            Segments(host) if self.v5 else Wire(host, options={"SCYLLA_USE_METADATA_ID": ""})
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wire.socket.close()

    def prepare(self, text):
        from segments import Prepared

        return self.wire.prepare(text) if self.v5 else Prepared(self.wire.prepare(text))

    def execute(self, prepared, skip, metadata_id=None):
        from wire import EXECUTE, parameters as parameters_v4

        known = prepared.metadata_id if metadata_id is None else metadata_id
        options = (
            parameters(flags=2 if skip else 0) if self.v5 else parameters_v4(skip_metadata=skip)
        )
        return self.wire.ask(EXECUTE, string(prepared.id) + string(known) + options)


@pytest.mark.scylla
def test_without_negotiation_version_4_knows_no_ids(host):
    with Wire(host) as wire:
        prepared = wire.prepare(f"SELECT pk FROM {KEYSPACE}.t")
        assert prepared.body[22:26] == integer(0), "the flags follow the statement's id"


def test_the_mark_of_conditional_statements_is_not_on_others(host):
    options = {"SCYLLA_LWT_ADD_METADATA_MARK": "LWT_OPTIMIZATION_META_BIT_MASK=2147483648"}
    with Segments(host, options=options) as wire:
        prepared = wire.prepare(f"INSERT INTO {KEYSPACE}.t (pk, ck) VALUES (?, ?)")
        assert not prepared.flags & 0x80000000


@pytest.mark.parametrize("body", [
    long_string("SELECT key FROM system.local") + struct.pack(">HB", 1, 0),
    long_string("SELECT key FROM system.local") + struct.pack(">HI", 1, 0x200),
    long_string("SELECT key FROM system.local") + struct.pack(">HI", 1, 0x80),
    long_string("SELECT key FROM system.local") + struct.pack(">HIH", 1, 0x80, 9) + b"k",
    long_string("SELECT key FROM system.local") + struct.pack(">HI", 1, 0x100) + b"\0",
])
def test_wrong_parameters(wire, body):
    wire.ask(QUERY, body, stream=4).is_error(PROTOCOL)
    wire.works()


def test_unprepared(wire):
    prepared = wire.prepare(f"SELECT pk FROM {KEYSPACE}.t")
    prepared.id = b"\7" * 16
    answer = wire.execute(prepared).is_error(UNPREPARED)
    assert answer.body.endswith(string(prepared.id))


def test_errors(wire):
    wire.query("SELEKT").is_error(SYNTAX)
    wire.query("SELECT * FROM nowhere.nothing").is_error(INVALID)
    answer = wire.query(f"CREATE TABLE {KEYSPACE}.t (pk int PRIMARY KEY)")
    assert answer.opcode == ERROR and answer.body.endswith(string(KEYSPACE) + string("t"))


@pytest.mark.scylla
@pytest.mark.parametrize("version", [3, 4, 5])
def test_schema_changes_as_results_and_events(host, version):
    keyspace = f"events_{version}"
    cases = [
        (f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', "
            f"'replication_factor': 1}}", ["CREATED", "KEYSPACE", keyspace]),
        (f"ALTER KEYSPACE {keyspace} WITH durable_writes = false",
            ["UPDATED", "KEYSPACE", keyspace]),
        (f"CREATE TYPE {keyspace}.u (a int)", ["CREATED", "TYPE", keyspace, "u"]),
        (f"ALTER TYPE {keyspace}.u ADD b int", ["UPDATED", "TYPE", keyspace, "u"]),
        (f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY)", ["CREATED", "TABLE", keyspace, "t"]),
        (f"ALTER TABLE {keyspace}.t ADD a int", ["UPDATED", "TABLE", keyspace, "t"]),
        (f"DROP TABLE {keyspace}.t", ["DROPPED", "TABLE", keyspace, "t"]),
        (f"DROP TYPE {keyspace}.u", ["DROPPED", "TYPE", keyspace, "u"]),
        (f"DROP KEYSPACE {keyspace}", ["DROPPED", "KEYSPACE", keyspace]),
    ]
    connect = (lambda: Segments(host)) if version == 5 else (lambda: Older(host, version))
    with connect() as asking, connect() as listening:
        asking.query(f"DROP KEYSPACE IF EXISTS {keyspace}")
        body = (
            struct.pack(">H", 3)
            + string("SCHEMA_CHANGE")
            + string("STATUS_CHANGE")
            + string("TOPOLOGY_CHANGE")
        )
        assert listening.ask(REGISTER, body).opcode == READY
        for statement, words in cases:
            answer = asking.query(statement)
            assert answer.opcode == RESULT, answer.message
            expected = b"".join(string(word) for word in words)
            assert without_warnings(answer) == integer(5) + expected
            event = listening.receive()
            assert (event.opcode, event.stream, event.version) == (EVENT, -1, 0x80 | version)
            assert event.body == string("SCHEMA_CHANGE") + expected
        # A statement that changes nothing sends no event: the next event is that of the last
        # statement.
        nothing = asking.query(f"DROP KEYSPACE IF EXISTS {keyspace}")
        assert nothing.body == integer(1)


def without_warnings(answer):
    """The body of an answer without the warnings before it."""
    at = 0
    if answer.flags & 8:
        (count,) = struct.unpack_from(">H", answer.body)
        at = 2
        for _ in range(count):
            at += 2 + struct.unpack_from(">H", answer.body, at)[0]
    return answer.body[at:]


class Older(Wire):
    """Version 3 or 4."""

    def __init__(self, host, version):
        self.version = version
        super().__init__(host)

    def send(self, opcode, body=b"", stream=0, version=None, flags=0, length=None):
        super().send(opcode, body, stream, self.version, flags, length)


@pytest.mark.scylla
@pytest.mark.parametrize("version", [3, 4, 5])
def test_results_of_every_kind(host, version):
    with Segments(host) if version == 5 else Older(host, version) as wire:
        assert wire.query(f"USE {KEYSPACE}").body == integer(3) + string(KEYSPACE)
        assert wire.query(f"INSERT INTO {KEYSPACE}.t (pk, ck) VALUES (9, 9)").body == integer(1)
        assert wire.query("SELECT pk FROM t WHERE pk = 9").rows() == [[integer(9)]]
        paged = wire.query(f"SELECT key, data_center FROM system.local", page_size=1)
        assert len(paged.rows()) == 1


@pytest.mark.scylla
def test_payloads_and_warnings(plain):
    """A custom payload of the client is ignored, or answered if it requests something. Warnings
    come in its frame."""
    payload = (
        struct.pack(">H", 2)
        + string("unknown")
        + integer(3)
        + b"abc"
        + string("messina-page-info")
        + integer(1)
        + b"\1"
    )
    body = payload + long_string("SELECT key FROM system.local") + parameters(page_size=10)
    answer = plain.ask(QUERY, body, flags=4)
    assert answer.flags & 4 and b"messina-page-info" in answer.body
    statements = [
        (f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES ({n}, 0, ?)", [bytes(1000)])
        for n in range(1000, 1200)
    ]
    answer = plain.batch(statements, kind=1)
    assert (
        answer.opcode == RESULT and answer.flags & 8
    ), "a batch of more than 128 KiB brings a warning"


@pytest.mark.scylla
def test_tracing(plain):
    answer = plain.ask(QUERY, long_string("SELECT key FROM system.local") + parameters(), flags=2)
    assert answer.opcode == RESULT and answer.flags & 2
    assert answer.body[6] >> 4 == 1, "a time UUID"


@pytest.mark.scylla
def test_clients_show_the_version(plain):
    rows = plain.query("SELECT port, protocol_version FROM system.clients").rows()
    own = plain.socket.getsockname()[1]
    assert [integer(own), integer(5)] in rows
