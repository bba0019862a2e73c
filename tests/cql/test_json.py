"""SELECT JSON, INSERT JSON, toJson and fromJson over all types."""

import json

import cassandra
import pytest
from cassandra.query import UNSET_VALUE
from database import Invalid, Syntax

pytestmark = pytest.mark.scylla

# A column's type, its value as JSON, and the value that SELECT JSON returns.
TYPES = [
    ("ascii", '"as\\"cii"', 'as"cii'), ("bigint", "-9223372036854775808", -9223372036854775808), ("bigint", '"12"', 12), ("blob", '"0xCAFE"', "0xcafe"),
    ("boolean", "true", True), ("boolean", '"false"', False), ("date", '"2024-02-29"', "2024-02-29"), ("decimal", "1.50", 1.5), ("decimal", '"3"', 3),
    ("double", "1e10", 1e10), ("float", "1.5", 1.5), ("duration", '"1h30m"', "1h30m"), ("inet", '"::1"', "::1"), ("int", "12.0", 12), ("smallint", "-300", -300),
    ("text", '"\\u00e9\\n\'"', "é\n'"), ("time", '"12:34:56.789"', "12:34:56.789000000"), ("timestamp", "1000", "1970-01-01 00:00:01.000Z"),
    ("timestamp", '"2024-02-29T12:00:00Z"', "2024-02-29 12:00:00.000Z"), ("timeuuid", '"50554d6e-29bb-11e5-b345-feff819cdc9f"', "50554d6e-29bb-11e5-b345-feff819cdc9f"),
    ("tinyint", "127", 127), ("uuid", '"12345678-1234-4234-8234-123456789abc"', "12345678-1234-4234-8234-123456789abc"),
    ("varint", "123456789012345678901234567890", 123456789012345678901234567890), ("list<int>", "[3, 1]", [3, 1]), ("set<text>", '["b", "a", "b"]', ["a", "b"]),
    ("map<text, int>", '{"b": 1, "a": 2}', {"a": 2, "b": 1}), ("map<int, frozen<list<text>>>", '{"2": ["x"], "1": []}', {"1": [], "2": ["x"]}),
    ("frozen<map<frozen<tuple<int, int>>, boolean>>", '{"[1, 2]": true}', {"[1, 2]": True}), ("tuple<int, text>", '[1, null]', [1, None]),
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


def test_what_is_left_out(db):
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
    "", "{", "[]", "1", "null", '{"pk": null}', '{"a": 1}', '{"pk": 1, "nothere": 1}', '{"pk": 1, "a": "x"}', '{"pk": 1, "a": 1.5}', '{"pk": 1, "a": true}',
    '{"pk": 1, "a": 2147483648}', '{"pk": 1, "l": 1}', '{"pk": 1, "l": [null]}', '{"pk": 1, "m": {"a": null}}', '{"pk": 1, "m": [1]}', '{"pk": 1, "x": 5}',
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
    db.execute(f"UPDATE {t} SET v = v + fromJson('[3]'), te = fromJson('\"x\"') WHERE pk = fromJson('1')")
    assert db.rows(f"SELECT v, te FROM {t} WHERE pk = fromJson('1')") == [([1, 2, 3], "x")]
    assert db.execute(f"SELECT toJson(v) FROM {t}").column_names == ["system.tojson(v)"]
    with pytest.raises(Exception, match="fromJson"):
        db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, fromJson('['))")
    for wrong in ("1", "[1.5]", '["x"]', "[null]", '"[1"', "[2147483648]"):
        db.refused(cassandra.FunctionFailure, f"INSERT INTO {t} (pk, v) VALUES (1, fromJson('{wrong}'))", match="fromJson")
    db.refused(Invalid, f"SELECT fromJson(te) FROM {t}")
    db.refused(Invalid, f"SELECT toJson(pk, te) FROM {t}")
