"""A raw client of protocol version 4, which can send what no driver sends. Standard library
only."""

import socket
import struct

(
    ERROR, STARTUP, READY, AUTHENTICATE, OPTIONS, SUPPORTED, QUERY, RESULT, PREPARE, EXECUTE,
    REGISTER, EVENT, BATCH,
) = (0x00, 0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D)
SERVER_ERROR, PROTOCOL, OVERLOADED, SYNTAX, INVALID, CONFIG, EXISTS, UNPREPARED = (
    0x0000, 0x000A, 0x1001, 0x2000, 0x2200, 0x2300, 0x2400, 0x2500)
HEADER = struct.Struct(">BBhBi")
ONE, LOCAL_QUORUM = 1, 6


class Closed(Exception):
    """The server closed the connection."""


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">H", len(data)) + data


def long_string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">i", len(data)) + data


def value(data):
    """A bound value: bytes, None for null, or an int for a raw length without content (-2 is
    unset)."""
    if data is None:
        return struct.pack(">i", -1)
    if isinstance(data, int):
        return struct.pack(">i", data)
    return struct.pack(">i", len(data)) + data


def integer(n):
    return struct.pack(">i", n)


def string_map(pairs):
    return struct.pack(">H", len(pairs)) + b"".join(string(k) + string(v) for k, v in pairs.items())


def parameters(
    values=None,
    consistency=ONE,
    page_size=None,
    paging_state=None,
    flags=0,
    names=None,
    skip_metadata=False,
):
    """The <query_parameters> of QUERY and EXECUTE."""
    body = b""
    if values is not None:
        flags |= 0x01
        body += struct.pack(">H", len(values))
        for n, data in enumerate(values):
            if names:
                body += string(names[n])
            body += value(data)
        if names:
            flags |= 0x40
    if skip_metadata:
        flags |= 0x02
    if page_size is not None:
        flags |= 0x04
        body += integer(page_size)
    if paging_state is not None:
        flags |= 0x08
        body += value(paging_state)
    return struct.pack(">HB", consistency, flags) + body


def query(text, **options):
    return long_string(text) + parameters(**options)


class Answer:
    """One frame of the server."""

    def __init__(self, version, flags, stream, opcode, body):
        self.version, self.flags, self.stream, self.opcode, self.body = (
            version,
            flags,
            stream,
            opcode,
            body,
        )

    @property
    def code(self):
        assert self.opcode == ERROR, f"opcode {self.opcode} instead of an error"
        return struct.unpack_from(">i", self.body)[0]

    @property
    def message(self):
        length = struct.unpack_from(">H", self.body, 4)[0]
        return self.body[6 : 6 + length].decode()

    def is_error(self, *codes):
        assert (
            self.opcode == ERROR
        ), f"opcode {self.opcode} instead of an error; body {self.body[:80]!r}"
        assert (
            self.code in codes
        ), f"error {self.code:#06x} ({self.message}), expected {[hex(c) for c in codes]}"
        assert self.message
        return self

    def rows(self):
        """The rows of a RESULT with metadata, as lists of bytes or None."""
        assert (
            self.opcode == RESULT
        ), f"opcode {self.opcode}: {self.message if self.opcode == ERROR else ''}"
        kind, flags, columns = struct.unpack_from(">iii", self.body)
        assert kind == 2
        at = 12
        self.paging_state = None
        if flags & 2:
            length = struct.unpack_from(">i", self.body, at)[0]
            self.paging_state = self.body[at + 4 : at + 4 + length]
            at += 4 + length

        def skip_string(at):
            return at + 2 + struct.unpack_from(">H", self.body, at)[0]

        def skip_type(at):
            kind = struct.unpack_from(">H", self.body, at)[0]
            at += 2
            if kind == 0:
                return skip_string(at)
            if kind in (0x20, 0x22):
                return skip_type(at)
            if kind == 0x21:
                return skip_type(skip_type(at))
            if kind == 0x31:
                (fields,) = struct.unpack_from(">H", self.body, at)
                at += 2
                for _ in range(fields):
                    at = skip_type(at)
            return at

        if not flags & 4:
            if flags & 1:
                at = skip_string(skip_string(at))
            for _ in range(columns):
                if not flags & 1:
                    at = skip_string(skip_string(at))
                at = skip_type(skip_string(at))
        (count,) = struct.unpack_from(">i", self.body, at)
        at += 4
        rows = []
        for _ in range(count):
            row = []
            for _ in range(columns):
                (length,) = struct.unpack_from(">i", self.body, at)
                at += 4
                row.append(None if length < 0 else self.body[at : at + length])
                at += max(length, 0)
            rows.append(row)
        assert at == len(self.body), f"{len(self.body) - at} bytes left in the body"
        return rows

    def prepared_id(self):
        assert (
            self.opcode == RESULT
        ), f"opcode {self.opcode}: {self.message if self.opcode == ERROR else ''}"
        kind, length = struct.unpack_from(">iH", self.body)
        assert kind == 4
        return self.body[6 : 6 + length]


class Wire:
    """One connection. `started` sends STARTUP at once."""

    def __init__(self, host, port=9042, started=True, timeout=20.0, options=None, decompress=None):
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decompress = decompress
        if started:
            answer = self.ask(STARTUP, string_map({"CQL_VERSION": "3.0.0", **(options or {})}))
            assert answer.opcode == READY, f"opcode {answer.opcode} after STARTUP"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, opcode, body=b"", stream=0, version=4, flags=0, length=None):
        self.socket.sendall(
            HEADER.pack(version, flags, stream, opcode, len(body) if length is None else length)
            + body
        )

    def send_raw(self, data):
        self.socket.sendall(data)

    def exactly(self, count):
        parts = []
        while count:
            try:
                data = self.socket.recv(min(count, 1 << 20))
            except (ConnectionResetError, BrokenPipeError):
                raise Closed from None
            if not data:
                raise Closed
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def receive(self):
        version, flags, stream, opcode, length = HEADER.unpack(self.exactly(9))
        body = self.exactly(length)
        if flags & 1:
            body = self.decompress(body)
        return Answer(version, flags, stream, opcode, body)

    def ask(self, opcode, body=b"", **options):
        self.send(opcode, body, **options)
        return self.receive()

    def query(self, text, **options):
        return self.ask(QUERY, query(text, **options))

    def prepare(self, text):
        return self.ask(PREPARE, long_string(text))

    def execute(self, prepared_id, **options):
        return self.ask(EXECUTE, string(prepared_id) + parameters(**options))

    def works(self):
        """Asserts that the connection still answers."""
        assert self.query("SELECT key FROM system.local").rows() == [[b"local"]]

    def closes(self):
        """Asserts that the server closes the connection, perhaps after an error."""
        try:
            while True:
                answer = self.receive()
                assert (
                    answer.opcode == ERROR
                ), f"opcode {answer.opcode} where the connection should be closed"
        except Closed:
            pass
