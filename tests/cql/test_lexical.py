"""Text of statements: case, quoting, comments, literals of every form, keywords as names, and
broken text."""

import datetime
import math
import uuid

import pytest
from database import Invalid, Syntax


@pytest.fixture(scope="module")
def t(db):
    return db.table("pk int PRIMARY KEY, v text, i int, b blob, d double, u uuid")


def test_keywords_ignore_case(db, t):
    db.execute(f"InSeRt iNtO {t.upper()} (PK, V) vAlUeS (1, 'Case') ;")
    assert db.one(f"select V from {t} where Pk=1;") == "Case"


def test_names_are_lowercase_unless_quoted(db):
    db.table('"Pk" int PRIMARY KEY, "select" int, "a ""b""" int, MiXed int', name='"QuotedName"')
    name = '"QuotedName"'
    db.execute(f'INSERT INTO {name} ("Pk", "select", "a ""b""", mixed) VALUES (1, 2, 3, 4)')
    assert db.rows(f'SELECT "Pk", "select", "a ""b""", MIXED FROM {name}') == [(1, 2, 3, 4)]
    db.refused(Invalid, f"SELECT pk FROM {name}")
    db.refused(Invalid, 'SELECT * FROM "quotedname"')
    columns = db.column(
        "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name"
        " = %s",
        db.keyspace,
        "QuotedName",
    )
    assert set(columns) == {"Pk", "select", 'a "b"', "mixed"}


@pytest.mark.parametrize("comment", ["-- to the end\n", "// to the end\n", "/* in\n between */"])
def test_comments(db, t, comment):
    db.execute(
        f"INSERT INTO {t} {comment} (pk, v) VALUES (2, 'not -- a // comment /* here */') {comment}"
    )
    assert db.one(f"SELECT v FROM {t} {comment} WHERE pk = 2") == "not -- a // comment /* here */"


@pytest.mark.parametrize("literal, value", [
    ("''", ""), ("'it''s'", "it's"), ("''''", "'"), ("$$it's $ raw$$", "it's $ raw"),
    ("'häß 漢 🦀'", "häß 漢 🦀"),
    ("'line\nbreak'", "line\nbreak"), ("'back\\slash'", "back\\slash"),
])
def test_string_literals(db, t, literal, value):
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (3, {literal})")
    assert db.one(f"SELECT v FROM {t} WHERE pk = 3") == value


@pytest.mark.parametrize("literal, value", [
    ("0", 0), ("-0", 0), ("007", 7), ("-2147483648", -2147483648), ("2147483647", 2147483647),
])
def test_integer_literals(db, t, literal, value):
    db.execute(f"INSERT INTO {t} (pk, i) VALUES (4, {literal})")
    assert db.one(f"SELECT i FROM {t} WHERE pk = 4") == value


@pytest.mark.parametrize("literal, value", [
    ("1", 1.0), ("-1.5", -1.5), ("1e10", 1e10), ("1.5E-7", 1.5e-7), ("1.", 1.0), ("-2e+3", -2000.0),
    ("Infinity", math.inf), ("-infinity", -math.inf), ("-0.0", -0.0),
])
def test_float_literals(db, t, literal, value):
    db.execute(f"INSERT INTO {t} (pk, d) VALUES (5, {literal})")
    seen = db.one(f"SELECT d FROM {t} WHERE pk = 5")
    assert seen == value and math.copysign(1, seen) == math.copysign(1, value)


def test_nan(db, t):
    for literal in ("NaN", "nan"):
        db.execute(f"INSERT INTO {t} (pk, d) VALUES (5, {literal})")
        assert math.isnan(db.one(f"SELECT d FROM {t} WHERE pk = 5"))


@pytest.mark.parametrize("literal, value", [("0x", b""), ("0xCAfe", b"\xca\xfe"),
    ("0X00ff", b"\x00\xff")])
def test_blob_literals(db, t, literal, value):
    db.execute(f"INSERT INTO {t} (pk, b) VALUES (6, {literal})")
    assert db.one(f"SELECT b FROM {t} WHERE pk = 6") == value


def test_uuid_literals(db, t):
    text = "D2177DD0-eaa2-11de-a572-001b779c76e3"
    db.execute(f"INSERT INTO {t} (pk, u) VALUES (7, {text})")
    assert db.one(f"SELECT u FROM {t} WHERE pk = 7") == uuid.UUID(text)
    # Starts like a number in exponent form, and like a bare hex word.
    for text in ("1e5b0e54-0000-4000-8000-000000000000", "abcdef01-0000-4000-8000-000000000000",
                 "00000000-0000-0000-0000-000000000000"):
        db.execute(f"INSERT INTO {t} (pk, u) VALUES (7, {text})")
        assert db.one(f"SELECT u FROM {t} WHERE pk = 7") == uuid.UUID(text)


@pytest.mark.parametrize("name", ["key", "type", "ttl", "timestamp", "count", "writetime", "values",
    "filtering", "static",
                                  "user", "role", "json", "distinct", "exists", "language", "date",
                                  "list", "map", "text",
                                  "keyspaces", "partition", "per", "tuple", "custom", "contains",
                                  "cast", "like"])
def test_unreserved_words_are_names(db, name):
    table = db.table(f"{name} int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {table} ({name}, v) VALUES (1, 2)")
    assert db.rows(f"SELECT {name}, v FROM {table} WHERE {name} = 1") == [(1, 2)]
    assert f"{name} int" in db.create_statement(f"TABLE {table}")


@pytest.mark.parametrize("name", ["select", "from", "where", "table", "primary", "create", "and",
    "in", "order", "limit",
                                  "token", "null", "set", "update", "batch", "use", "with", "into",
                                  "if", "to", "view"])
def test_reserved_words_need_quotes(db, name):
    db.refused(Syntax, f"CREATE TABLE reserved ({name} int PRIMARY KEY)")
    table = db.table(f'"{name}" int PRIMARY KEY')
    assert f'"{name}" int' in db.create_statement(f"TABLE {table}")


@pytest.mark.parametrize("text", [
    "", ";", "   ", "SELECT", "SELECT * FROM", "SELEC * FROM t", "SELECT * FROM t WHERE",
    "SELECT * FROM t WHERE pk",
    "SELECT * FROM t WHERE pk = ", "SELECT * FROM t WHERE pk = 'unterminated",
    'SELECT "unterminated FROM t',
    "SELECT * FROM t WHERE pk = 1 AND", "SELECT , FROM t", "SELECT a b FROM t",
    "SELECT * FROM t; SELECT * FROM t",
    "INSERT INTO t VALUES (1)", "INSERT INTO t () VALUES ()", "INSERT INTO t (pk) VALUES 1",
    "UPDATE t WHERE pk = 1",
    "UPDATE t SET v = 1", "UPDATE t SET WHERE pk = 1", "DELETE t WHERE pk = 1", "DELETE FROM t",
    "CREATE TABLE",
    "CREATE TABLE t", "CREATE TABLE t ()", "CREATE KEYSPACE k WITH", "DROP TABLE", "ALTER TABLE t",
    "TRUNCATE",
    "BEGIN BATCH", "BEGIN BATCH SELECT * FROM t; APPLY BATCH", "GRANT", "USE",
    "SELECT * FROM a.b.c", "1", "?", "(",
    "SELECT * FROM t LIMIT", "SELECT * FROM t ORDER ck", "SELECT * FROM t WHERE pk == 1",
    "SELECT * FROM t WHERE 1 = pk",
    "INSERT INTO t (pk) VALUES (1e)", "SELECT * FROM t WHERE pk IN 1",
    "SELECT * FROM t -- comment only to the end\n WHERE", "SELECT * FROM t /* unterminated", "\x00",
    "SELECT * FROM \x01",
    "SELECT * FROM tänzer", "@#$%^&", "SELECT * FROM t WHERE pk = $$unterminated",
])
def test_broken_text(db, text):
    db.refused(
        (
            (Syntax, Invalid)
            if text in ("INSERT INTO t () VALUES ()", "CREATE TABLE t ()")
            else Syntax
        ),
        text,
    )


def test_errors_point_at_the_place(db):
    db.refused(Syntax, "SELECT *\nFROM t\nWHERE pk ~ 3", match=r"line 3")


@pytest.mark.scylla  # Cassandra's parser overflows its stack
def test_absurdly_nested_text(db, t):
    db.refused(
        (Syntax, Invalid), f"SELECT * FROM {t} WHERE pk = " + "(" * 20000 + "1" + ")" * 20000
    )
    db.refused(
        (Syntax, Invalid), f"INSERT INTO {t} (pk, v) VALUES (1, " + "[" * 20000 + "]" * 20000 + ")"
    )
    db.refused(
        (Syntax, Invalid),
        "CREATE TABLE deep (pk int PRIMARY KEY, v " + "list<" * 5000 + "int" + ">" * 5000 + ")",
    )


def test_long_literal(db, t):
    value = "x" * 1_000_000
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (8, '{value}')")
    assert db.one(f"SELECT v FROM {t} WHERE pk = 8") == value


def test_time_literals(db):
    table = db.table("pk int PRIMARY KEY, ts timestamp, d date, t time, du duration")
    for literal, expected in [
        ("'2024-02-29'", datetime.datetime(2024, 2, 29)),
        ("'2024-02-29 13:14'", datetime.datetime(2024, 2, 29, 13, 14)),
        ("'2024-02-29 13:14:15+0000'", datetime.datetime(2024, 2, 29, 13, 14, 15)),
        ("'2024-02-29T13:14:15.678Z'", datetime.datetime(2024, 2, 29, 13, 14, 15, 678000)),
        ("'2024-02-29T13:14:15.6+02:00'", datetime.datetime(2024, 2, 29, 11, 14, 15, 600000)),
        ("'2024-02-29 13:14:15 -0330'", datetime.datetime(2024, 2, 29, 16, 44, 15)),
        ("1709212455678", datetime.datetime(2024, 2, 29, 13, 14, 15, 678000)),
        ("-1", datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)),
    ]:
        # The server's time zone is used where none is given, so give UTC.
        if literal.startswith("'") and len(literal) < 20:
            literal = literal[:-1] + "+0000'" if ":" in literal else literal[:-1] + " 00:00+0000'"
        db.execute(f"INSERT INTO {table} (pk, ts) VALUES (1, {literal})")
        assert db.one(f"SELECT ts FROM {table} WHERE pk = 1") == expected, literal
    for literal, expected in [
        ("'2024-02-29'", "2024-02-29"),
        ("'1970-01-01'", "1970-01-01"),
        ("2147483648", "1970-01-01"),
        ("'0001-01-01'", "0001-01-01"),
    ]:
        db.execute(f"INSERT INTO {table} (pk, d) VALUES (1, {literal})")
        assert str(db.one(f"SELECT d FROM {table} WHERE pk = 1")) == expected
    for literal, nanos in [
        ("'00:00:00'", 0),
        ("'23:59:59.999999999'", 86399999999999),
        ("'08:12:54.123'", 29574123000000),
        ("1000", 1000),
    ]:
        db.execute(f"INSERT INTO {table} (pk, t) VALUES (1, {literal})")
        assert db.one(f"SELECT t FROM {table} WHERE pk = 1").nanosecond_time == nanos
    for literal, expected in [
        ("1y2mo3w4d5h6m7s8ms9us10ns", (14, 25, ((5 * 60 + 6) * 60 + 7) * 10**9 + 8_009_010)),
        ("-1mo", (-1, 0, 0)), ("P1Y2M3DT4H5M6S", (14, 3, ((4 * 60 + 5) * 60 + 6) * 10**9)),
        ("P2W", (0, 14, 0)),
        ("P0001-02-03T04:05:06", (14, 3, ((4 * 60 + 5) * 60 + 6) * 10**9)), ("0s", (0, 0, 0)),
        ("89h4m48s", (0, 0, 320688 * 10**9)),
        ("1µs", (0, 0, 1000)),
    ]:
        db.execute(f"INSERT INTO {table} (pk, du) VALUES (1, {literal})")
        seen = db.one(f"SELECT du FROM {table} WHERE pk = 1")
        assert (seen.months, seen.days, seen.nanoseconds) == expected, literal


@pytest.mark.parametrize("kind, literal", [
    ("int", "'1'"), ("int", "1.0"), ("int", "2147483648"), ("int", "true"), ("int", "[1]"),
    ("tinyint", "128"),
    ("tinyint", "-129"), ("smallint", "32768"), ("bigint", "9223372036854775808"),
    ("bigint", "1e3"), ("text", "1"),
    ("text", "0x61"), ("text", "true"), ("ascii", "'ä'"), ("blob", "'61'"), ("blob", "61"),
    ("boolean", "1"),
    ("boolean", "'true'"), ("boolean", "maybe"), ("float", "'1'"), ("double", "true"),
    ("varint", "1.5"),
    ("decimal", "'1'"), ("uuid", "'d2177dd0-eaa2-11de-a572-001b779c76e3'"), ("uuid", "1"),
    ("inet", "'300.1.1.1'"),
    ("inet", "'name'"), ("inet", "1"), ("timeuuid", "d2177dd0-eaa2-41de-a572-001b779c76e3"),
    ("timestamp", "'yesterday'"), ("timestamp", "'2024-13-01'"), ("timestamp", "1.5"),
    ("date", "'2024-02-30'"),
    ("date", "'x'"), ("date", "4294967296"), ("time", "'24:00:00'"), ("time", "86400000000000"),
    ("time", "-1"),
    ("duration", "'1mo'"), ("duration", "1"), ("list<int>", "{1}"), ("list<int>", "['a']"),
    ("list<int>", "1"),
    ("set<int>", "[1]"), ("set<int>", "{1: 2}"), ("map<int, int>", "{1}"),
    ("map<int, int>", "{1: 'a'}"),
    ("tuple<int, int>", "[1, 2]"), ("tuple<int, int>", "(1, 2, 3)"),
    ("tuple<int, int>", "(1, 'a')"),
    ("list<int>", "[null]"), ("set<int>", "{null}"), ("map<int, int>", "{1: null}"),
])
def test_literal_of_the_wrong_type(db, kind, literal):
    table = f"wrong_{''.join(c if c.isalnum() else '_' for c in kind)}"
    db.execute(f"CREATE TABLE IF NOT EXISTS {table} (pk int PRIMARY KEY, v {kind})")
    # A duration or a bare word may also be refused by the grammar.
    db.refused(
        (Invalid, Syntax) if literal in ("maybe",) else Invalid,
        f"INSERT INTO {table} (pk, v) VALUES (1, {literal})",
    )
    assert db.rows(f"SELECT * FROM {table}") == []
