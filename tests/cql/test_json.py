"""SELECT JSON, INSERT JSON, toJson and fromJson over all types."""

import json
import pathlib
import resource
import struct

import cassandra
import pytest
from cassandra.cqltypes import BytesType
from cassandra.query import UNSET_VALUE
from database import Database, Invalid, Syntax
from launch import Node

pytestmark = pytest.mark.scylla

# A column's type, its value as JSON, and the value that SELECT JSON returns.
TYPES = [
    ("ascii", '"as\\"cii"', 'as"cii'), ("bigint", "-9223372036854775808", -9223372036854775808),
    ("bigint", '"12"', 12), ("blob", '"0xCAFE"', "0xcafe"),
    ("boolean", "true", True), ("boolean", '"false"', False),
    ("date", '"2024-02-29"', "2024-02-29"), ("decimal", "1.50", 1.5), ("decimal", '"3"', 3),
    ("double", "1e10", 1e10), ("float", "1.5", 1.5), ("duration", '"1h30m"', "1h30m"),
    ("inet", '"::1"', "::1"), ("int", "12.0", 12), ("smallint", "-300", -300),
    ("text", '"\\u00e9\\n\'"', "é\n'"), ("time", '"12:34:56.789"', "12:34:56.789000000"),
    ("timestamp", "1000", "1970-01-01 00:00:01.000Z"),
    ("timestamp", '"2024-02-29T12:00:00Z"', "2024-02-29 12:00:00.000Z"),
    ("timeuuid", '"50554d6e-29bb-11e5-b345-feff819cdc9f"', "50554d6e-29bb-11e5-b345-feff819cdc9f"),
    ("tinyint", "127", 127), ("uuid", '"12345678-1234-4234-8234-123456789abc"',
        "12345678-1234-4234-8234-123456789abc"),
    ("varint", "123456789012345678901234567890", 123456789012345678901234567890),
    ("list<int>", "[3, 1]", [3, 1]), ("set<text>", '["b", "a", "b"]', ["a", "b"]),
    ("map<text, int>", '{"b": 1, "a": 2}', {"a": 2, "b": 1}),
    ("map<int, frozen<list<text>>>", '{"2": ["x"], "1": []}', {"1": [], "2": ["x"]}),
    ("frozen<map<frozen<tuple<int, int>>, boolean>>", '{"[1, 2]": true}', {"[1, 2]": True}),
    ("tuple<int, text>", '[1, null]', [1, None]),
    ("vector<float, 2>", "[1, 2.5]", [1, 2.5]), ("int", "null", None),
]


@pytest.mark.parametrize("kind, given, back", TYPES)
def test_every_type(db, kind, given, back):
    t = db.table(f"pk int PRIMARY KEY, v {kind}")
    db.execute(f"INSERT INTO {t} JSON $${{\"pk\": 1, \"v\": {given}}}$$")
    assert json.loads(db.one(f"SELECT JSON * FROM {t}")) == {"pk": 1, "v": back}
    assert json.loads(db.one(f"SELECT toJson(v) FROM {t}")) == back
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, fromJson($${given}$$))")
    one, two = (db.one(f"SELECT v FROM {t} WHERE pk = {pk}") for pk in (1, 2))
    assert one == two
    bound = db.prepare(f"INSERT INTO {t} JSON ?")
    db.execute(bound, json.dumps({"pk": 3, "v": json.loads(given)}))
    assert db.one(f"SELECT v FROM {t} WHERE pk = 3") == one


def test_user_types(db):
    u = db.type('a int, "Big" text')
    t = db.table(f"pk int PRIMARY KEY, v {u}, f frozen<{u}>")
    value = '{"a": 1, "\\"Big\\"": "x"}'
    db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 1, \"v\": {value}, \"f\": {value}}}'")
    same = {"a": 1, '"Big"': "x"}
    assert json.loads(db.one(f"SELECT JSON v, f FROM {t}")) == {"v": same, "f": same}
    db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 1, \"v\": {{\"a\": 2}}}}' DEFAULT UNSET")
    assert json.loads(db.one(f"SELECT JSON v FROM {t}")) == {"v": {"a": 2, '"Big"': None}}
    db.refused(Invalid, f"INSERT INTO {t} JSON '{{\"pk\": 1, \"v\": {{\"nothere\": 2}}}}'")


def test_names(db):
    t = db.table('"Pk" int PRIMARY KEY, small int, "Big" int')
    db.execute(f"INSERT INTO {t} JSON '{{\"\\\"Pk\\\"\": 1, \"SMALL\": 2, \"\\\"Big\\\"\": 3}}'")
    result = db.execute(f'SELECT JSON "Pk", small AS "Renamed", "Big", count(*) FROM {t}')
    assert result.column_names == ["[json]"]
    assert json.loads(result.one()[0]) == {'"Pk"': 1, '"Renamed"': 2, '"Big"': 3, "count": 1}
    db.refused(Invalid, f"INSERT INTO {t} JSON '{{\"Pk\": 1}}'")


def test_columns_left_out_of_the_json(db):
    t = db.table("pk int PRIMARY KEY, a int, b int")
    db.execute(f"INSERT INTO {t} (pk, a, b) VALUES (1, 1, 1)")
    db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 1, \"a\": 2}}' DEFAULT UNSET")
    assert db.rows(f"SELECT a, b FROM {t}") == [(2, 1)]
    db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 1, \"b\": null}}' DEFAULT UNSET")
    assert db.rows(f"SELECT a, b FROM {t}") == [(2, None)]
    db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 1, \"b\": 3}}' DEFAULT NULL")
    assert db.rows(f"SELECT a, b FROM {t}") == [(None, 3)]
    db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 2, \"a\": 4}}' USING TTL 1000 AND TIMESTAMP 5")
    a, b, stamp, left = db.one(f"SELECT a, b, writetime(a), ttl(a) FROM {t} WHERE pk = 2")
    assert (a, b, stamp) == (4, None, 5) and 900 < left <= 1000


@pytest.mark.parametrize("text", [
    "", "{", "[]", "1", "null", '{"pk": null}', '{"a": 1}', '{"pk": 1, "nothere": 1}',
    '{"pk": 1, "a": "x"}', '{"pk": 1, "a": 1.5}', '{"pk": 1, "a": true}',
    '{"pk": 1, "a": 2147483648}', '{"pk": 1, "l": 1}', '{"pk": 1, "l": [null]}',
    '{"pk": 1, "m": {"a": null}}', '{"pk": 1, "m": [1]}', '{"pk": 1, "x": 5}',
])
def test_refused(db, refusing, text):
    db.refused((Invalid, Syntax), f"INSERT INTO {refusing} JSON $${text}$$")


@pytest.fixture(scope="module")
def refusing(db):
    return db.table("pk int PRIMARY KEY, a int, l list<int>, m map<text, int>, x text")


def test_null_and_unset(db, refusing):
    statement = db.prepare(f"INSERT INTO {refusing} JSON ?")
    db.refused(Invalid, statement, None)
    db.refused(Invalid, statement, UNSET_VALUE)


def test_functions(db):
    t = db.table("pk int PRIMARY KEY, v list<int>, te text")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (fromJson('1'), fromJson('[1, 2]'))")
    db.execute(
        f"UPDATE {t} SET v = v + fromJson('[3]'), te = fromJson('\"x\"') WHERE pk = fromJson('1')"
    )
    assert db.rows(f"SELECT v, te FROM {t} WHERE pk = fromJson('1')") == [([1, 2, 3], "x")]
    assert db.execute(f"SELECT toJson(v) FROM {t}").column_names == ["system.tojson(v)"]
    with pytest.raises(Exception, match="fromJson"):
        db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, fromJson('['))")
    for wrong in ("1", "[1.5]", '["x"]', "[null]", '"[1"', "[2147483648]"):
        db.refused(
            cassandra.FunctionFailure,
            f"INSERT INTO {t} (pk, v) VALUES (1, fromJson('{wrong}'))",
            match="fromJson",
        )
    db.refused(Invalid, f"SELECT fromJson(te) FROM {t}")
    db.refused(Invalid, f"SELECT toJson(pk, te) FROM {t}")


FIELDS = 4000
# The most data of the node's process, so that a fault ends the node, not the machine. And what the
# node may take.
MOST_DATA, MOST_MIB = 8 << 30, 1500


@pytest.fixture(scope="module")
def small():
    """A node of small memory, and a session with a type of many fields."""
    with Node(shards=1, memory="512M") as node:
        resource.prlimit(node.pid, resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
        db = Database(node.address)
        db.execute(f"CREATE TYPE wide ({', '.join(f'f{n} int' for n in range(FIELDS))})")
        yield node, db
        db.close()


def check_memory(node):
    assert node.alive(), node.log_tail()
    status = pathlib.Path(f"/proc/{node.pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
    assert peak < MOST_MIB, f"{peak} MiB"


def bound_bytes(db, text):
    """A prepared statement whose last value is bound as it is."""
    statement = db.prepare(text)
    statement.column_metadata[-1] = statement.column_metadata[-1]._replace(type=BytesType)
    return statement


@pytest.mark.node
def test_fields_that_json_leaves_out(small):
    """Each is a null of the value: the text of 1.5 MB would become one of 8 GB."""
    node, db = small
    t = db.table("p int PRIMARY KEY, l list<frozen<wide>>, m map<text, frozen<wide>>")
    limit = "longer than the limit of 33554432 bytes"
    bound, call = db.prepare(f"INSERT INTO {t} JSON ?"), db.prepare(
        f"INSERT INTO {t} (p, l) VALUES (1, fromJson(?))"
    )
    for count in (2200, 20_000, 520_000):
        objects = f"[{','.join(['{}'] * count)}]"
        db.refused(Invalid, f"INSERT INTO {t} JSON '{{\"p\": 1, \"l\": {objects}}}'", match=limit)
        db.refused(Invalid, bound, f'{{"p": 1, "l": {objects}}}', match=limit)
        db.refused((Invalid, cassandra.FunctionFailure), call, objects, match=limit)
        db.refused(
            (Invalid, cassandra.FunctionFailure),
            f"INSERT INTO {t} (p, l) VALUES (1, fromJson('{objects}'))",
            match=limit,
        )
    members = ", ".join(f'"{n}": {{}}' for n in range(100_000))
    db.refused(Invalid, bound, f'{{"p": 1, "m": {{{members}}}}}', match=limit)
    check_memory(node)
    some = [{f"f{n * 7}": n, f"F{FIELDS - 1}": -n} for n in range(500)]
    db.execute(bound, json.dumps({"p": 1, "l": some}))
    for n in (1, 499):
        row = f"l[{n}].f{n * 7} AS a, l[{n}].f{FIELDS - 1} AS b, l[{n}].f1 AS c"
        assert db.one(f"SELECT {row} FROM {t}") == (n, -n, None)
    check_memory(node)


@pytest.mark.node
def test_json_of_short_values(small):
    """A value that ends before its fields is short, and its JSON has a null for each field."""
    node, db = small
    short = struct.pack(">ii", 4, -1)
    t = db.table(
        "p int PRIMARY KEY, v frozen<tuple<frozen<tuple<frozen<list<frozen<wide>>>>>>>, k"
        " frozen<wide>"
    )
    insert = bound_bytes(db, f"INSERT INTO {t} (p, v) VALUES (?, ?)")
    for count in (1000, 131_000):
        value = struct.pack(">i", count) + short * count
        for _ in range(2):
            value = struct.pack(">i", len(value)) + value
        db.execute(insert, count, value)
        for select in ("JSON v", "toJson(v)", "max(toJson(v))", "JSON p, v"):
            db.refused(
                Invalid,
                f"SELECT {select} FROM {t} WHERE p = {count}",
                match="JSON text would be longer than 33554432 bytes",
            )
        call = bound_bytes(
            db,
            f"SELECT toJson((tuple<frozen<tuple<frozen<list<frozen<wide>>>>>>) ?) FROM {t} WHERE p"
            f" = {count}",
        )
        db.refused(Invalid, call, value, match="JSON text would be longer than 33554432 bytes")
        shown = db.column(f"SELECT value FROM MUTATION_FRAGMENTS({t}) WHERE p = {count}")
        assert json.loads(next(value for value in shown if value)) == {"v": f"0x{value.hex()}"}
    db.execute(bound_bytes(db, f"INSERT INTO {t} (p, k) VALUES (1, ?)"), struct.pack(">i", -1))
    nulls = {f"f{n}": None for n in range(FIELDS)}
    assert json.loads(db.one(f"SELECT JSON k FROM {t} WHERE p = 1")) == {"k": nulls}
    check_memory(node)


@pytest.mark.node
def test_long_json_of_a_short_value(small):
    """It is within the limit, and is the JSON of the value with all its fields."""
    node, db = small
    t = db.table("p int PRIMARY KEY, l frozen<list<frozen<wide>>>")
    db.execute(
        bound_bytes(db, f"INSERT INTO {t} (p, l) VALUES (1, ?)"),
        struct.pack(">i", 400) + struct.pack(">iii", 8, 4, 7) * 400,
    )
    value = [{f"f{n}": None if n else 7 for n in range(FIELDS)}] * 400
    assert json.loads(db.one(f"SELECT toJson(l) FROM {t}")) == value
    assert json.loads(db.one(f"SELECT JSON l FROM {t}")) == {"l": value}
    check_memory(node)
