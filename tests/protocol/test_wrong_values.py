"""Values, batches and paging states that no driver sends: the node returns the right error, and
stays up."""

import random
import struct

import pytest
from raw import BAD, KEYSPACE, batch, node_lives, schema, wire  # noqa: F401
from wire import (
    BATCH, ERROR, INVALID, PROTOCOL, RESULT, SERVER_ERROR, SYNTAX, UNPREPARED, Closed, Wire,
    integer, long_string, string, value,
)

WRONG_VALUES = [
    ("pk", b""), ("pk", b"\0\0\0"), ("pk", b"\0" * 5), ("b", b"\0" * 7), ("t", b"\xff\xfe"),
    pytest.param("t", b"\xc0\x80", marks=pytest.mark.scylla), ("a", b"\x80"), ("u", b"\0" * 15),
    ("bo", b"\0\0"), ("f", b"\0" * 3), ("i", b"\0" * 5), ("da", b"\0" * 3),
    pytest.param("ti", integer(-1) + integer(-1), marks=pytest.mark.scylla),
    pytest.param("ti", b"\x7f" + b"\xff" * 7, marks=pytest.mark.scylla),
    ("ts", b"\0" * 9), ("tt", bytes.fromhex("d2177dd0eaa241dea572001b779c76e3")), ("s", b"\0"),
    ("y", b"\0\0"), ("d", b"\0\0\0"), ("du", b"\x01"),
    ("du", b"\x01\x02\x01"), ("l", b"\0\0"), ("l", integer(-1)), ("l", integer(2**31 - 1)),
    ("l", integer(1) + integer(3) + b"abc"),
    ("l", integer(2) + integer(4) + b"abcd"), ("l", integer(1) + integer(-1)),
    ("l", integer(1) + integer(4) + b"abcd" + b"trailing"),
    ("m", integer(1) + integer(1) + b"k"), ("m",
        integer(1) + integer(1) + b"\xff" + integer(4) + b"abcd"),
        ("fl", integer(1) + integer(5) + b"abcde"),
    ("tu", b"\0\0\0"), ("tu", integer(3) + b"abc"),
    ("tu", integer(4) + b"abcd" + integer(1) + b"\xff"),
    ("tu", integer(4) + b"abcd" + integer(1) + b"x" + integer(1) + b"y"),
]


@pytest.mark.parametrize("column, data", WRONG_VALUES)
def test_wrong_values(wire, column, data):
    wire.query(f"DELETE FROM {KEYSPACE}.types WHERE pk = 77")
    names = "pk" if column == "pk" else f"pk, {column}"
    prepared = wire.prepare(
        f"INSERT INTO {KEYSPACE}.types ({names}) VALUES ({'?' if column == 'pk' else '77, ?'})"
    ).prepared_id()
    answer = wire.execute(prepared, values=[data])
    answer.is_error(INVALID, *((PROTOCOL, SERVER_ERROR) if column in ("l", "m", "fl") else ()))
    wire.works()
    assert wire.query(f"SELECT pk FROM {KEYSPACE}.types WHERE pk = 77").rows() == []


@pytest.mark.scylla
@pytest.mark.parametrize("column, data", [w for w in WRONG_VALUES if w[0] in ("l", "m", "fl")])
def test_wrong_collections_are_invalid(wire, column, data):
    prepared = wire.prepare(
        f"INSERT INTO {KEYSPACE}.types (pk, {column}) VALUES (77, ?)"
    ).prepared_id()
    wire.execute(prepared, values=[data]).is_error(INVALID)
    wire.works()


@pytest.mark.parametrize("values", [[], [integer(1)], [integer(1)] * 3, [integer(1)] * 300])
def test_wrong_number_of_values(wire, values):
    prepared = wire.prepare(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ? AND ck = ?").prepared_id()
    wire.execute(prepared, values=values).is_error(INVALID, PROTOCOL)
    wire.query(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ? AND ck = ?", values=values).is_error(
        INVALID, PROTOCOL
    )
    wire.works()
    assert len(wire.execute(prepared, values=[integer(1)] * 2).rows()) == 1


def test_no_values_at_all(wire):
    prepared = wire.prepare(f"SELECT * FROM {KEYSPACE}.t WHERE pk = ?").prepared_id()
    wire.execute(prepared).is_error(INVALID, PROTOCOL)
    wire.works()


def test_named_values(wire):
    assert (
        len(
            wire.query(
                f"SELECT * FROM {KEYSPACE}.t WHERE pk = :p AND ck = :c",
                values=[integer(4), integer(1)],
                names=["c", "p"],
            ).rows()
        )
        == 1
    )
    wire.query(
        f"SELECT * FROM {KEYSPACE}.t WHERE pk = :p", values=[integer(4)], names=["wrong"]
    ).is_error(INVALID, PROTOCOL)
    wire.works()


def test_unset_and_null_keys(wire):
    prepared = wire.prepare(f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (?, ?, ?)").prepared_id()
    for values in ([None, integer(1), integer(1)], [integer(1), None, integer(1)],
            [-2, integer(1), integer(1)], [integer(1), -2, integer(1)]):
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


def test_batches(wire):
    text = f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (9, ?, ?)"
    prepared = wire.prepare(text).prepared_id()
    by_text = (
        b"\0" + long_string(text) + struct.pack(">H", 2) + value(integer(1)) + value(integer(1))
    )
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


STATEMENTS = [
    "SELECT ck FROM {} WHERE pk = 1",
    "SELECT * FROM {}",
    "SELECT pk FROM {} WHERE pk IN (1, 2)",
    "SELECT DISTINCT pk FROM {}",
    "SELECT ck FROM {} WHERE pk = 1 ORDER BY ck DESC",
]


@pytest.mark.parametrize("text", STATEMENTS)
@pytest.mark.parametrize("state", [b"\0", b"garbage", b"\xff" * 40, bytes(range(256)),
    b"\1" * 70000, struct.pack(">i", 2**31 - 1) * 10], ids=range(6))
def test_absurd_paging_states(host, text, state):
    with Wire(host) as wire:
        wire.query(text.format(f"{KEYSPACE}.t"), page_size=10, paging_state=state).is_error(
            PROTOCOL, INVALID, SERVER_ERROR
        )
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
    damaged = [
        true[:n] + bytes([true[n] ^ 1 << rng.randrange(8)]) + true[n + 1 :]
        for n in range(len(true))
    ]
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
    others = [
        f"SELECT * FROM {KEYSPACE}.types",
        "SELECT * FROM system.local",
        f"SELECT count(*) FROM {KEYSPACE}.t",
    ]
    for own, state in states.items():
        for text in texts + others:
            answer = wire.query(text, page_size=1, paging_state=state)
            if text == own:
                answer.rows()
            else:
                answer.is_error(PROTOCOL)
    wire.works()


@pytest.mark.parametrize("size", [pytest.param(0, marks=pytest.mark.scylla), -1, -2**31, 2**31 - 1,
    1])
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
