"""Native functions, casts, type hints, parts of values, and the times of cells, one row for
each."""

import pytest
from cassandra.query import UNSET_VALUE
from database import Invalid, Syntax

pytestmark = pytest.mark.scylla


@pytest.fixture(scope="module")
def t(db):
    name = db.table("pk int PRIMARY KEY, i int, ti tinyint, b bigint, d double, de decimal, v "
        "varint, te text, l list<int>, s set<int>, m map<text, int>, ts timestamp, "
                    "da date, bl blob, bo boolean")
    db.execute(f"INSERT INTO {name} (pk, i, ti, b, d, de, v, te, l, s, m, ts, da, bl, bo) VALUES "
        f"(1, -5, 7, 100, 2.5, -1.50, 1000, 'x', [3, 1, 2], {{2, 1}}, "
               "{'b': 1, 'a': 2}, '2024-02-29T12:00:00Z', '2024-02-29', 0xca, true) USING "
                   "TIMESTAMP 1000")
    return name


# An expression, the text of its value, and the name of its column if that name is not obvious.
@pytest.mark.parametrize("expression, expected", [
    ("abs(i)", "5"), ("abs(de)", "1.50"), ("round(d)", "3.0"), ("exp(d)", "12.182493960703473"),
    ("log(b)", "4"), ("log10(v)", "3"), ("map_keys(m)", "['a', 'b']"), ("map_values(m)", "[2, 1]"),
    ("collection_count(m)", "2"), ("collection_min(l)", "1"), ("collection_max(s)", "2"),
    ("collection_sum(l)", "6"), ("collection_avg(l)", "2"),
    ("cast(i AS text)", "-5"), ("cast(d AS int)", "2"), ("cast(i AS double)", "-5.0"),
    ("cast(ts AS date)", "2024-02-29"), ("cast(bo AS text)", "true"), ("cast(de AS varint)", "-1"),
    ("(int)5", "5"), ("(text)'a'", "a"), ("(list<int>)[1, 2]", "[1, 2]"),
    ("(tuple<int, text>)(1, 'a')", "(1, 'a')"), ("m['a']", "2"), ("m['none']", "None"),
    ("l[0]", "3"),
    ("l[9]", "None"), ("s[2]", "2"), ("s[9]", "None"), ("to_date(ts)", "2024-02-29"),
    ("to_unix_timestamp(da)", "1709164800000"), ("int_as_blob(i)", "b'\\xff\\xff\\xff\\xfb'"),
    ("blobAsInt(intAsBlob(abs(i)))", "5"), ("writetime(m['a'])", "1000"), ("ttl(m['a'])", "None"),
    ("writetime(s[1])", "1000"), ("writetime(s[7])", "None"), ("abs(-5)", "5"),
    ("round(2.5)", "3.0"),
])
def test_expressions(db, t, expression, expected):
    value = db.rows(f"SELECT {expression} FROM {t} WHERE pk = 1")[0][0]
    assert str(sorted(value) if isinstance(value, set) else value) == expected


@pytest.mark.parametrize("expression, name", [
    ("i", "i"), ("intAsBlob(i)", "system.intasblob(i)"), ("token(pk)", "system.token(pk)"),
    ("writetime(i)", "writetime(i)"), ("ttl(i)", "ttl(i)"), ("m['a']", "m['a']"),
    ("writetime(m['a'])", "writetime(m['a'])"), ("cast(i AS text)", "cast(i as text)"),
    ("toTimestamp(da)", "system.totimestamp(da)"), ("count(*)", "count"), ('i AS "Big"', "Big"),
])
def test_names(db, t, expression, name):
    assert db.execute(f"SELECT {expression} FROM {t}").column_names == [name]


@pytest.mark.parametrize("expression", [
    "abs(te)", "abs(i, i)", "collection_count(i)", "map_keys(l)", "collection_sum(m)",
    "collection_min(m)", "cast(te AS int)", "cast(l AS text)", "(int)'x'", "te[0]", "te.x",
    "writetime(l['a'])", "writetime(m)", "ttl(s)", "writetime(pk)", "writetime(i['a'])",
    "writetime(nothere)", "nothere(i)", "null", "?",
])
def test_refused(db, t, expression):
    db.refused((Invalid, Syntax), f"SELECT {expression} FROM {t}")


def test_times_of_elements(db):
    u = db.type("a int, b text")
    t = db.table(f"pk int PRIMARY KEY, m map<text, int>, s set<int>, u {u}")
    db.execute(
        f"INSERT INTO {t} (pk, m, s, u) VALUES (1, {{'a': 1}}, {{1}}, {{a: 1, b: 'x'}}) USING"
        " TIMESTAMP 1000"
    )
    db.execute(
        f"UPDATE {t} USING TIMESTAMP 2000 AND TTL 1000 SET m['b'] = 2, s = s + {{2}}, u.b = 'y'"
        " WHERE pk = 1"
    )
    assert (
        db.one(
            "SELECT writetime(m['a']), writetime(m['b']), writetime(s[1]), writetime(s[2]),"
            f" writetime(u.a), writetime(u.b) FROM {t}"
        )
        == (1000, 2000) * 3
    )
    left = db.one(
        f"SELECT ttl(m['a']), ttl(m['b']), ttl(s[1]), ttl(s[2]), ttl(u.a), ttl(u.b) FROM {t}"
    )
    assert [value is None for value in left] == [True, False] * 3 and all(
        900 < value <= 1000 for value in left if value
    )
    key = db.prepare(f"SELECT writetime(m[?]) FROM {t} WHERE pk = ?")
    assert [db.one(key, "a", 1), db.one(key, "none", 1)] == [1000, None]
    db.execute(f"DELETE m['a'], u.a FROM {t} WHERE pk = 1")
    assert db.one(f"SELECT writetime(m['a']), writetime(u.a), writetime(u.b) FROM {t}") == (
        None,
        None,
        2000,
    )


def test_hints_of_markers(db, t):
    assert db.one(db.prepare(f"SELECT (int)? FROM {t} WHERE pk = 1"), 7) == 7
    db.execute(db.prepare(f"UPDATE {t} SET te = (text)? WHERE pk = (int)?"), "hinted", 2)
    assert db.one(f"SELECT te FROM {t} WHERE pk = 2") == "hinted"
    assert db.one(db.prepare(f"SELECT intAsBlob((int)?) FROM {t} WHERE pk = 1"), 1) == b"\0\0\0\1"


def test_functions_in_where(db):
    t = db.table("pk int, ck timeuuid, v int, PRIMARY KEY (pk, ck)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, now(), 1)")
    assert db.rows(
        f"SELECT v FROM {t} WHERE pk = blobAsInt(intAsBlob(1)) AND ck <"
        " maxTimeuuid(toTimestamp(now())) AND ck > minTimeuuid(toTimestamp(toDate(now())))"
    ) == [(1,)]
    assert db.rows(f"SELECT v FROM {t} WHERE token(pk) = token(blobAsInt(0x00000001))") == [(1,)]


def test_null_unset_and_empty(db):
    t = db.table("pk int PRIMARY KEY, i int, te text, l list<int>, tu tuple<int, int>")
    insert = db.prepare(f"INSERT INTO {t} (pk, i, te, l, tu) VALUES (?, ?, ?, ?, ?)")
    db.execute(insert, 1, 1, "x", [1], (1, 1))
    db.execute(insert, 1, UNSET_VALUE, "", UNSET_VALUE, None)
    assert db.rows(f"SELECT i, te, l, tu FROM {t}") == [(1, "", [1], None)]
    db.execute(f"INSERT INTO {t} (pk, i) VALUES (2, blobAsInt(0x))")
    assert db.rows(f"SELECT pk FROM {t} WHERE pk = 2") == [(2,)]
    inside = db.prepare(f"INSERT INTO {t} (pk, l) VALUES (1, [?, 2])")
    db.refused(Invalid, inside, None, match="null is not supported inside collections")
    db.refused(
        Invalid, inside, UNSET_VALUE, match="unset value is not supported inside collections"
    )
    field = db.prepare(f"INSERT INTO {t} (pk, tu) VALUES (1, (?, 2))")
    db.refused(Invalid, field, UNSET_VALUE, match="unset value for tuple field number 0")
    db.execute(field, None)
    assert db.rows(f"SELECT tu FROM {t} WHERE pk = 1") == [((None, 2),)]
    key = db.prepare(f"UPDATE {t} SET i = 1 WHERE pk = (int)?")
    db.refused(Invalid, f"INSERT INTO {t} (pk, i) VALUES (null, 1)", match="null")
    db.execute(key, 3)
