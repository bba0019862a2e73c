"""Values of every type: written and read back, as text and bound; their order as clustering keys;
their tokens as partition keys."""

import datetime
import decimal
import ipaddress
import math
import random
import uuid

import cassandra.util as util
import pytest
from cassandra.metadata import Murmur3Token
from database import Config, Invalid

TIMEUUIDS = [uuid.UUID(t) for t in (
    "00000000-0000-1000-8080-808080808080", "00000001-0000-1000-8000-000000000000",
    "00000001-0000-1000-bfff-ffffffffffff", "ffffffff-0000-1000-8000-000000000001",
    "00000000-0001-1000-8000-000000000001", "d2177dd0-eaa2-11de-a572-001b779c76e3",
    "00000000-0000-1fff-8000-000000000000",
)]

# For each type, values in ascending order.
ORDERED = {
    "ascii": ["", "\x00", "0", "A", "a", "aa", "b", "~"],
    "text": ["", "A", "a", "aa", "z", "ß", "漢", "\uffee", "🦀"],
    "blob": [b"", b"\x00", b"\x00\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\x00"],
    "boolean": [False, True],
    "tinyint": [-128, -1, 0, 1, 127],
    "smallint": [-32768, -256, -1, 0, 1, 255, 32767],
    "int": [-2**31, -65536, -1, 0, 1, 255, 256, 2**31 - 1],
    "bigint": [-2**63, -2**32, -1, 0, 1, 2**32, 2**63 - 1],
    "varint": [-2**200, -2**64, -32769, -129, -128, -1, 0, 1, 127, 128, 255, 256, 2**64, 2**200],
    "decimal": [decimal.Decimal(t) for t in ("-1E+30", "-12.5", "-0.001", "0", "1E-20", "0.9999",
        "1", "1.0001", "9", "10", "1E+40")],
    "float": [-math.inf, -1.5, -2.0**-140, 0.0, 2.0**-140, 1.0, 2.0**127, math.inf],
    "double": [-math.inf, -1e300, -5e-324, 0.0, 5e-324, 1.0, 1e300, math.inf],
    "timestamp": [datetime.datetime(1, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999000),
        datetime.datetime(1970, 1, 1),
                  datetime.datetime(2024, 2, 29, 1, 2, 3, 4000),
                  datetime.datetime(9999, 12, 31, 23, 59, 59)],
    "date": [util.Date(-2**31), util.Date(-719162), util.Date(-1), util.Date(0), util.Date(1),
        util.Date(2**31 - 1)],
    "time": [util.Time(n) for n in (0, 1, 10**9, 86399999999999)],
    "inet": ["0.0.0.0", "1.2.3.4", "127.0.0.1", "128.0.0.1", "255.255.255.255"],
    "timeuuid": sorted(TIMEUUIDS, key=lambda u: (u.time, bytes(b ^ 0x80 for b in u.bytes[8:]))),
    "frozen<list<int>>": [[], [-1], [0], [0, -5], [0, 0], [1]],
    "frozen<set<text>>": [util.sortedset(s) for s in ("", "a", "ab", "ac", "b")],
    "frozen<map<int, text>>": [{}, {-1: "z"}, {0: "a"}, {0: "a", 1: "a"}, {0: "b"}, {1: ""}],
    "tuple<int, text>": [(None, None), (None, "a"), (-1, None), (-1, ""), (-1, "b"), (2, None),
        (2, "a")],
}
# Types that a key cannot have, and values that compare equal to another value of their type.
OTHERS = {
    "duration": [util.Duration(0, 0, 0), util.Duration(1, 2, 3), util.Duration(-1, -2, -3),
        util.Duration(2**31 - 1, 0, 2**63 - 1),
                 util.Duration(-2**31, -2**31, -2**63)],
    "uuid": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1),
        uuid.UUID("123e4567-e89b-42d3-a456-426614174000"), *TIMEUUIDS],
    "inet": ["::", "::1", "2001:db8::8a2e:370:7334", "fe80::1"],
    "double": [math.pi, -0.0, 1.7976931348623157e308],
    "float": [-0.0, 0.5],
    "list<text>": [["b", "a", "b", ""], ["x" * 70000]],
    "set<int>": [{3, 1, 2}],
    "map<text, double>": [{"a": 1.5, "": -2.0}],
    "map<text, frozen<map<int, frozen<list<text>>>>>": [{"k": {1: ["a", "b"], 2: []}}],
    "list<frozen<tuple<int, frozen<set<text>>>>>": [[(1, {"a"}), (2, set())]],
    "tuple<int, frozen<tuple<text, frozen<map<int, int>>>>>": [(1, ("a", {1: 2})), (None, None)],
    "frozen<set<frozen<tuple<int, int>>>>": [{(1, 2), (3, 4)}],
    "text": ["x" * 1_000_000, "\x00\x01"],
    "blob": [bytes(range(256)) * 1000],
}
ALL = {kind: ORDERED.get(kind, []) + OTHERS.get(kind, []) for kind in {**ORDERED, **OTHERS}}


def same(a, b):
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, (ipaddress.IPv4Address, ipaddress.IPv6Address)) or isinstance(b, str):
        return str(a) == b or str(ipaddress.ip_address(a)) == str(ipaddress.ip_address(b))
    return a == b


@pytest.fixture(scope="module", params=sorted(ALL))
def typed(request, db):
    """(type, table with a column v of it, values)"""
    return request.param, db.table(f"pk int PRIMARY KEY, v {request.param}"), ALL[request.param]


def comparable(kind, value):
    from database import plain

    value = plain(value)
    if kind == "frozen<set<frozen<tuple<int, int>>>>":
        return {tuple(v) for v in value}
    return value


def test_bound(db, typed):
    kind, t, values = typed
    insert, select = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)"), db.prepare(
        f"SELECT v FROM {t} WHERE pk = ?"
    )
    for pk, value in enumerate(values):
        db.execute(insert, pk, value)
    for pk, value in enumerate(values):
        if (
            kind == "frozen<set<frozen<tuple<int, int>>>>"
            or not hasattr(value, "__len__")
            or len(value)
            or "frozen" in kind
            or kind in ("text", "ascii", "blob")
        ):
            assert same(comparable(kind, db.one(select, pk)), comparable(kind, value)), (
                kind,
                value,
            )


LITERAL = {
    "blob": lambda v: "0x" + v.hex(), "uuid": str, "timeuuid": str, "inet": lambda v: f"'{v}'",
    "boolean": str,
    "text": lambda v: "'" + v.replace("'", "''") + "'",
    "ascii": lambda v: "'" + v.replace("'", "''") + "'",
    "timestamp": lambda v: str(
        round((v - datetime.datetime(1970, 1, 1)) / datetime.timedelta(milliseconds=1))
    ),
    "date": lambda v: str(v.days_from_epoch + 2**31), "time": lambda v: f"'{v}'",
    "duration": lambda v: (
        f"{'-' if v.months < 0 else ''}{abs(v.months)}mo{abs(v.days)}d{abs(v.nanoseconds)}ns"
    ),
    "double": lambda v: "Infinity" if v == math.inf else "-Infinity" if v == -math.inf else repr(v),
}
LITERAL["float"] = LITERAL["double"]


@pytest.mark.parametrize("kind", sorted(k for k in ALL if "<" not in k))
def test_literal(db, kind):
    t = db.table(f"pk int PRIMARY KEY, v {kind}")
    to_literal = LITERAL.get(kind, str)
    for pk, value in enumerate(ALL[kind]):
        if isinstance(value, util.Duration) and value.months == -2**31:
            continue  # its magnitude has no literal
        db.execute(f"INSERT INTO {t} (pk, v) VALUES ({pk}, {to_literal(value)})")
        assert same(db.one(f"SELECT v FROM {t} WHERE pk = {pk}"), value), (kind, to_literal(value))


@pytest.mark.parametrize("order", ["ASC", "DESC"])
@pytest.mark.parametrize("kind", sorted(ORDERED))
def test_clustering_order(db, kind, order):
    values = ORDERED[kind]
    t = db.table(
        f"pk int, ck {kind}, v int, PRIMARY KEY (pk, ck)", f"WITH CLUSTERING ORDER BY (ck {order})"
    )
    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (1, ?, ?)")
    shuffled = list(enumerate(values))
    random.Random(kind).shuffle(shuffled)
    for n, value in shuffled:
        db.execute(insert, value, n)
    up, down = list(range(len(values))), list(range(len(values)))[::-1]
    assert db.column(f"SELECT v FROM {t} WHERE pk = 1") == (up if order == "ASC" else down)
    assert db.column(f"SELECT v FROM {t} WHERE pk = 1 ORDER BY ck ASC") == up
    assert db.column(f"SELECT v FROM {t} WHERE pk = 1 ORDER BY ck DESC") == down
    for operator, keep in (("<", lambda n, m: n < m), ("<=", lambda n, m: n <= m),
            (">", lambda n, m: n > m),
                           (">=", lambda n, m: n >= m), ("=", lambda n, m: n == m)):
        select = db.prepare(f"SELECT v FROM {t} WHERE pk = 1 AND ck {operator} ?")
        for m, value in enumerate(values):
            expected = [n for n in (up if order == "ASC" else down) if keep(n, m)]
            assert db.column(select, value) == expected, (kind, operator, value)


def test_uuid_order(db):
    """Type 1 uuids sort among themselves by time; uuids of different versions sort by version."""
    t = db.table("pk int, ck uuid, PRIMARY KEY (pk, ck)")
    random_ones = sorted(
        uuid.UUID(int=random.Random(n).getrandbits(128), version=4) for n in range(20)
    )
    ones = sorted(TIMEUUIDS, key=lambda u: u.time)
    zero = uuid.UUID(int=0)
    for ck in [*random_ones[::-1], *ones[::-1], zero]:
        db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, {ck})")
    seen = db.column(f"SELECT ck FROM {t} WHERE pk = 1")
    assert seen[0] == zero
    assert [u.time for u in seen[1 : 1 + len(ones)]] == [u.time for u in ones]
    assert seen[1 + len(ones) :] == random_ones


def test_equal_decimals_are_one_row(db):
    t = db.table("pk int, ck decimal, v int, PRIMARY KEY (pk, ck)")
    for v, ck in enumerate(("1.0", "1", "1.000", "10E-1")):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {ck}, {v})")
    assert db.column(f"SELECT v FROM {t} WHERE pk = 1") == [3]
    assert db.column(f"SELECT v FROM {t} WHERE pk = 1 AND ck = 1.00") == [3]


def test_float_specials_order(db):
    t = db.table("pk int, ck double, PRIMARY KEY (pk, ck)")
    for ck in ("NaN", "Infinity", "0.0", "-0.0", "-Infinity", "1.5"):
        db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, {ck})")
    seen = db.column(f"SELECT ck FROM {t} WHERE pk = 1")
    assert [str(f) for f in seen] == ["-inf", "-0.0", "0.0", "1.5", "inf", "nan"]


KEYS = [
    ("int", [0, 1, -1, 2**31 - 1]), ("text", ["", "a", "häß", "x" * 300]),
    ("blob", [b"\x00", bytes(range(256))]),
    ("bigint", list(range(-40, 40))), ("uuid", TIMEUUIDS), ("double", [0.0, 1.5, -math.inf]),
    ("boolean", [True, False]),
    ("frozen<list<int>>", [[], [1, 2]]), ("decimal", [decimal.Decimal("1.5")]),
    ("varint", [0, 2**70, -1]),
    ("date", [util.Date(0)]), ("timestamp", [datetime.datetime(2020, 1, 1)]),
    ("inet", ["1.2.3.4", "::1"]),
    ("tuple<int, text>", [(1, "a"), (None, "b")]),
]


@pytest.mark.parametrize("kind, keys", KEYS, ids=[k for k, _ in KEYS])
def test_partition_key_and_token(db, kind, keys):
    t = db.table(f"pk {kind} PRIMARY KEY, v int")
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, ?)")
    select = db.prepare(f"SELECT v, token(pk) FROM {t} WHERE pk = ?")
    keys = [k for k in keys if k not in ("", b"")]
    for v, key in enumerate(keys):
        db.execute(insert, key, v)
    for v, key in enumerate(keys):
        token = Murmur3Token.hash_fn(insert.bind((key, v)).routing_key)
        assert db.one(select, key) == (v, token)
    tokens = db.column(f"SELECT token(pk) FROM {t}")
    assert tokens == sorted(tokens) and len(tokens) == len(keys)


def test_composite_partition_key_and_token(db):
    t = db.table("a int, b text, c blob, v int, PRIMARY KEY ((a, b, c))")
    insert = db.prepare(f"INSERT INTO {t} (a, b, c, v) VALUES (?, ?, ?, ?)")
    for a, b, c in [(1, "x", b"y"), (0, "", b""), (-1, "ab", bytes(300))]:
        db.execute(insert, a, b, c, 7)
        token = Murmur3Token.hash_fn(insert.bind((a, b, c, 7)).routing_key)
        prepared = db.prepare(f"SELECT token(a, b, c), v FROM {t} WHERE a = ? AND b = ? AND c = ?")
        assert db.one(prepared, a, b, c) == (token, 7)


@pytest.mark.parametrize("size, good", [(65535, True), (65536, False), (200_000, False)])
def test_key_size_limit(db, size, good):
    db.execute(
        "CREATE TABLE IF NOT EXISTS key_size (pk text, ck text, v int, PRIMARY KEY (pk, ck))"
    )
    insert = db.prepare("INSERT INTO key_size (pk, ck, v) VALUES (?, ?, 1)")
    select = db.prepare("SELECT v FROM key_size WHERE pk = ? AND ck = ?")
    long = "k" * size
    if size == 65535:
        long = long[:65533]  # ScyllaDB documents 65533
    for pk, ck in ((long, "c"), ("p", long)):
        if good:
            db.execute(insert, pk, ck)
            assert db.one(select, pk, ck) == 1
        else:
            db.refused(Invalid, insert, pk, ck)


def test_empty_values(db):
    """An empty string is a value, not null. blobAsInt creates the empty value of other types."""
    t = db.table("pk int, ck text, v text, i int, b blob, PRIMARY KEY (pk, ck)")
    db.execute(f"INSERT INTO {t} (pk, ck, v, b) VALUES (1, '', '', 0x)")
    assert db.rows(f"SELECT ck, v, i, b FROM {t} WHERE pk = 1 AND ck = ''") == [("", "", None, b"")]
    single = db.table("pk text PRIMARY KEY")
    db.refused(Invalid, f"INSERT INTO {single} (pk) VALUES ('')")
    composite = db.table("a text, b text, PRIMARY KEY ((a, b))")
    db.execute(f"INSERT INTO {composite} (a, b) VALUES ('', '')")
    assert db.rows(f"SELECT * FROM {composite} WHERE a = '' AND b = ''") == [("", "")]


@pytest.mark.scylla
@pytest.mark.parametrize("ty", ["duration", "tuple<int, duration>", "frozen<list<duration>>",
    "frozen<map<int, duration>>",
                                "frozen<list<tuple<duration>>>", "{user}"])
@pytest.mark.parametrize("columns", ["c {ty} PRIMARY KEY", "p int, c {ty}, PRIMARY KEY (p, c)",
    "p int, c {ty}, v int, PRIMARY KEY ((p, c))"])
def test_durations_have_no_order(db, ty, columns):
    """A key cannot contain a duration at any depth, and ALTER cannot add one."""
    ty = ty.format(user=f"frozen<{db.type('a int, b duration')}>")
    db.refused(
        Invalid,
        f"CREATE TABLE durations ({columns.format(ty=ty)})",
        match="duration type is not supported for PRIMARY KEY part c",
    )


@pytest.mark.scylla
def test_tuples_of_keys_get_no_duration(db):
    t = db.table("p int, c tuple<int>, PRIMARY KEY (p, c)")
    db.refused(
        Config, f"ALTER TABLE {t} ALTER c TYPE tuple<int, duration>", match="not order-compatible"
    )
