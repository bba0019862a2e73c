"""A raw client of protocol version 5: valid segments, and segments that no driver sends."""

import struct
import zlib

from wire import (
    BATCH, ERROR, EXECUTE, HEADER, ONE, PREPARE, QUERY, READY, STARTUP, Answer, Wire, integer,
    long_string, string, string_map, value,
)

MAX_PAYLOAD = (1 << 17) - 1
CRC32_START = zlib.crc32(b"\xfa\x2d\x55\xca")
KEYSPACE, NOW_IN_SECONDS = 0x80, 0x100
METADATA_CHANGED, NO_METADATA = 0x08, 0x04


def crc24(data):
    crc = 0x875060
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1974F0B
    return crc


def segment(payload, self_contained=True, compress=None):
    """One segment. `compress` turns a payload into an LZ4 block. On a connection with compression,
    a payload that does not get shorter is sent uncompressed."""
    opened = 0
    bits, at, fields = len(payload), 17, 3
    if compress:
        closed = compress(payload)
        if len(closed) < len(payload):
            payload, opened = closed, len(payload)
        bits, at, fields = len(payload) | opened << 17, 34, 5
    header = (bits | bool(self_contained) << at).to_bytes(fields, "little")
    return (
        header
        + crc24(header).to_bytes(3, "little")
        + payload
        + zlib.crc32(payload, CRC32_START).to_bytes(4, "little")
    )


def lz4():
    """(compress, decompress) of raw LZ4 blocks."""
    import lz4.block

    return (
        lambda data: lz4.block.compress(data, store_size=False),
        lambda data, size: lz4.block.decompress(data, uncompressed_size=size),
    )


def parameters(
    values=None,
    consistency=ONE,
    page_size=None,
    paging_state=None,
    keyspace=None,
    now=None,
    timestamp=None,
    flags=0,
):
    """The <query_parameters> of version 5."""
    body = b""
    if values is not None:
        flags |= 0x01
        body += struct.pack(">H", len(values)) + b"".join(value(data) for data in values)
    if page_size is not None:
        flags |= 0x04
        body += integer(page_size)
    if paging_state is not None:
        flags |= 0x08
        body += value(paging_state)
    if timestamp is not None:
        flags |= 0x20
        body += struct.pack(">q", timestamp)
    if keyspace is not None:
        flags |= KEYSPACE
        body += string(keyspace)
    if now is not None:
        flags |= NOW_IN_SECONDS
        body += integer(now)
    return struct.pack(">HI", consistency, flags) + body


class Segments(Wire):
    """A connection in version 5; segments from READY on."""

    def __init__(self, host, port=9042, compressed=False, options=None, timeout=20.0):
        super().__init__(host, port, started=False, timeout=timeout)
        self.compress, self.open = lz4() if compressed else (None, None)
        self.segmented = False
        self.buffer = b""
        chosen = {
            "CQL_VERSION": "3.0.0",
            **({"COMPRESSION": "lz4"} if compressed else {}),
            **(options or {}),
        }
        answer = self.ask(STARTUP, string_map(chosen))
        assert (
            answer.opcode == READY and answer.version == 0x85
        ), f"opcode {answer.opcode} of version {answer.version} after STARTUP"
        self.segmented = True
        self.segments = 0

    def frame(self, opcode, body=b"", stream=0, version=5, flags=0):
        return HEADER.pack(version, flags, stream, opcode, len(body)) + body

    def send(self, opcode, body=b"", stream=0, version=5, flags=0):
        frame = self.frame(opcode, body, stream, version, flags)
        if not self.segmented:
            return self.send_raw(frame)
        if len(frame) <= MAX_PAYLOAD:
            return self.send_raw(segment(frame, True, self.compress))
        for at in range(0, len(frame), MAX_PAYLOAD):
            self.send_raw(segment(frame[at : at + MAX_PAYLOAD], False, self.compress))

    def receive_segment(self):
        """(payload, self-contained) of the next segment, whose checksums are right."""
        fields = 5 if self.compress else 3
        header = self.exactly(fields + 3)
        assert crc24(header[:fields]) == int.from_bytes(
            header[fields:], "little"
        ), "a header's CRC24"
        bits = int.from_bytes(header[:fields], "little")
        length, bits = bits & MAX_PAYLOAD, bits >> 17
        opened = 0
        if self.compress:
            opened, bits = bits & MAX_PAYLOAD, bits >> 17
        payload = self.exactly(length)
        assert zlib.crc32(payload, CRC32_START) == int.from_bytes(
            self.exactly(4), "little"
        ), "a payload's CRC32"
        self.segments += 1
        return self.open(payload, opened) if opened else payload, bool(bits & 1)

    def receive(self):
        if not self.segmented:
            return super().receive()
        while True:
            if len(self.buffer) >= 9:
                version, flags, stream, opcode, length = HEADER.unpack_from(self.buffer)
                if len(self.buffer) >= 9 + length:
                    body, self.buffer = self.buffer[9 : 9 + length], self.buffer[9 + length :]
                    return Answer(version, flags, stream, opcode, body)
            payload, whole = self.receive_segment()
            assert not (whole and self.buffer), "a self-contained segment within a frame"
            self.buffer += payload

    def query(self, text, **options):
        return self.ask(QUERY, long_string(text) + parameters(**options))

    def prepare(self, text, keyspace=None):
        return Prepared(
            self.ask(
                PREPARE,
                long_string(text)
                + (integer(0) if keyspace is None else integer(1) + string(keyspace)),
            )
        )

    def execute(self, prepared, metadata_id=None, **options):
        known = prepared.metadata_id if metadata_id is None else metadata_id
        return self.ask(EXECUTE, string(prepared.id) + string(known) + parameters(**options))

    def batch(self, statements, keyspace=None, now=None, kind=0):
        """A batch of texts with their values."""
        body = struct.pack(">BH", kind, len(statements))
        for text, values in statements:
            body += (
                b"\0"
                + long_string(text)
                + struct.pack(">H", len(values))
                + b"".join(value(data) for data in values)
            )
        return self.ask(BATCH, body + parameters(keyspace=keyspace, now=now))


class Prepared:
    """The parts of an answer to PREPARE that tests look at."""

    def __init__(self, answer):
        assert answer.opcode != ERROR, answer.message
        kind, length = struct.unpack_from(">iH", answer.body)
        assert kind == 4
        self.id = answer.body[6 : 6 + length]
        at = 6 + length
        (length,) = struct.unpack_from(">H", answer.body, at)
        self.metadata_id = answer.body[at + 2 : at + 2 + length]
        (self.flags,) = struct.unpack_from(">I", answer.body, at + 2 + length)


def metadata(answer):
    """(flags, columns, the new metadata id or None) of a RESULT with rows; without a paging
    state."""
    kind, flags, columns = struct.unpack_from(">iii", answer.body)
    assert kind == 2 and not flags & 2
    if not flags & METADATA_CHANGED:
        return flags, columns, None
    (length,) = struct.unpack_from(">H", answer.body, 12)
    return flags, columns, answer.body[14 : 14 + length]
