"""GROUP BY, and aggregates over all types."""

import collections
import datetime
import decimal
import uuid

import pytest
from database import Invalid, Syntax

ROWS = [(p, c, d, p * 100 + c * 10 + d) for p in range(4) for c in range(p + 1) for d in range(3)]


@pytest.fixture(scope="module")
def t(db):
    name = db.table("p int, c int, d int, v int, s int STATIC, PRIMARY KEY (p, c, d)")
    insert = db.prepare(f"INSERT INTO {name} (p, c, d, v) VALUES (?, ?, ?, ?)")
    for row in ROWS:
        db.execute(insert, *row)
    return name


def groups(columns, rows=ROWS):
    """The expected result of GROUP BY with this number of key columns: key, count, sum."""
    out = collections.OrderedDict()
    for row in rows:
        out.setdefault(row[:columns], []).append(row[3])
    return sorted((*key, len(values), sum(values)) for key, values in out.items())


@pytest.mark.parametrize("size", [None, 1, 2, 5, 1000])
def test_groups(db, t, size):
    options = {"fetch_size": size}
    assert sorted(db.rows(f"SELECT p, count(*), sum(v) FROM {t} GROUP BY p", **options)) == groups(
        1
    )
    assert sorted(
        db.rows(f"SELECT p, c, count(*), sum(v) FROM {t} GROUP BY p, c", **options)
    ) == groups(2)
    assert sorted(
        db.rows(f"SELECT p, c, d, count(v), sum(v) FROM {t} GROUP BY p, c, d", **options)
    ) == groups(3)
    large = [row for row in ROWS if row[3] > 200]
    assert sorted(
        db.rows(
            f"SELECT p, c, count(*), sum(v) FROM {t} WHERE v > 200 GROUP BY p, c ALLOW FILTERING",
            **options,
        )
    ) == groups(2, large)
    of_two = [row for row in ROWS if row[0] == 2]
    assert db.rows(
        f"SELECT p, c, count(*), sum(v) FROM {t} WHERE p = 2 GROUP BY c", **options
    ) == groups(2, of_two)
    assert (
        db.rows(
            f"SELECT p, c, count(*), sum(v) FROM {t} WHERE p = 2 GROUP BY p, c ORDER BY c DESC",
            **options,
        )
        == groups(2, of_two)[::-1]
    )
    assert len(db.rows(f"SELECT p, c, count(*) FROM {t} GROUP BY p, c LIMIT 3", **options)) == 3
    assert (
        len(
            db.rows(
                f"SELECT p, c, count(*) FROM {t} GROUP BY p, c PER PARTITION LIMIT 2", **options
            )
        )
        == 7
    )


def test_first_values(db, t):
    assert sorted(db.rows(f"SELECT * FROM {t} GROUP BY p")) == [
        (p, 0, 0, None, p * 100) for p in range(4)
    ]
    assert db.rows(f"SELECT v, max(v) FROM {t} WHERE p = 3 GROUP BY p, c LIMIT 2") == [
        (300, 302),
        (310, 312),
    ]


@pytest.mark.parametrize("options", [{}, {"fetch_size": 1}, {"fetch_size": 2}])
def test_equal_values_are_one_group(db, options):
    t = db.table("p int, c decimal, d int, PRIMARY KEY (p, c, d)")
    for d, c in enumerate(("1", "1.0", "1.00", "1.0", "2", "2.0")):
        db.execute(f"INSERT INTO {t} (p, c, d) VALUES (1, {c}, {d})")
    assert db.rows(f"SELECT c, count(*) FROM {t} WHERE p = 1 GROUP BY p, c", **options) == [
        (decimal.Decimal(1), 4),
        (decimal.Decimal(2), 2),
    ]


def test_nothing(db, t):
    assert db.rows(f"SELECT p, count(*) FROM {t} WHERE p = 77 GROUP BY p") == []
    assert db.rows(f"SELECT p, count(*) FROM {t} WHERE v > 9999 GROUP BY p ALLOW FILTERING") == []
    assert db.rows(f"SELECT count(*), sum(v), max(v) FROM {t} WHERE p = 77") == [(0, 0, None)]


@pytest.mark.parametrize("text", [
    "SELECT p FROM {} GROUP BY v", "SELECT p FROM {} GROUP BY nothere",
    "SELECT p FROM {} GROUP BY c", "SELECT p FROM {} GROUP BY c, p",
    "SELECT p FROM {} GROUP BY p, d",
    "SELECT p FROM {} GROUP BY p, p", "SELECT DISTINCT p FROM {} GROUP BY p, c",
    "SELECT count(*) FROM {} PER PARTITION LIMIT 1", "SELECT sum(max(v)) FROM {}",
    "SELECT sum() FROM {}", "SELECT sum(v, v) FROM {}", "SELECT max(*) FROM {}",
    "SELECT p FROM {} WHERE v = max(3) ALLOW FILTERING",
])
def test_refused(db, t, text):
    db.refused((Invalid, Syntax), text.format(t))


# A type, three literals in ascending order, the greatest value as the driver returns it, and
# whether the type has a sum.
TYPES = [
    ("ascii", ["'a'", "'b'", "'c'"], "c", False), ("bigint", ["-1", "2", "30"], 30, True),
    ("blob", ["0x", "0x01", "0x02"], b"\x02", False),
    ("boolean", ["false", "false", "true"], True, False),
    ("decimal", ["-1", "0.5", "2.25"], decimal.Decimal("2.25"), True),
    ("double", ["-1", "0.5", "2"], 2.0, True),
    ("float", ["-1", "0.5", "2"], 2.0, True), ("int", ["-1", "2", "30"], 30, True),
    ("smallint", ["-1", "2", "30"], 30, True), ("text", ["''", "'A'", "'a'"], "a", False),
    ("timestamp", ["0", "1000", "2000"], datetime.datetime(1970, 1, 1, 0, 0, 2), False),
    ("tinyint", ["-1", "2", "30"], 30, True),
    ("uuid", [f"{n}2345678-1234-4234-8234-123456789abc" for n in (1, 2, 3)],
        uuid.UUID("32345678-1234-4234-8234-123456789abc"), False),
    ("varint", ["-1", "2", "123456789012345678901234567890"], 123456789012345678901234567890, True),
    ("inet", ["'10.0.0.1'", "'10.0.0.2'", "'10.0.0.3'"], "10.0.0.3", False),
    ("frozen<list<int>>", ["[1]", "[1, 2]", "[2]"], [2], False),
    ("list<int>", ["[1]", "[1, 2]", "[2]"], [2], False),
    ("set<int>", ["{1}", "{1, 2}", "{2}"], {2}, False),
    ("map<int, int>", ["{1: 1}", "{1: 2}", "{2: 1}"], {2: 1}, False),
    ("tuple<int, text>", ["(1, 'a')", "(1, 'b')", "(2, 'a')"], (2, "a"), False),
]


@pytest.mark.scylla
@pytest.mark.parametrize("kind, literals, greatest, adds", TYPES)
def test_aggregates(db, kind, literals, greatest, adds):
    t = db.table(f"pk int, ck int, v {kind}, PRIMARY KEY (pk, ck)")
    for ck, literal in enumerate(literals):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {ck}, {literal})")
    db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, 99)")
    first = db.rows(f"SELECT v FROM {t} WHERE pk = 1 AND ck = 0")[0][0]
    assert db.rows(f"SELECT count(*), count(v), min(v), max(v) FROM {t}") == [
        (4, 3, first, greatest)
    ]
    assert db.rows(f"SELECT count(v), min(v), max(v) FROM {t} WHERE pk = 2") == [(0, None, None)]
    if not adds:
        db.refused(Invalid, f"SELECT sum(v) FROM {t}")
        db.refused(Invalid, f"SELECT avg(v) FROM {t}")
        return
    values = db.column(f"SELECT v FROM {t} WHERE pk = 1 AND ck < 50")
    total, mean = db.one(f"SELECT sum(v), avg(v) FROM {t}")
    assert total == sum(values)
    assert abs(float(mean) - float(sum(values)) / 3) < 1 + abs(float(mean)) * 1e-9
    assert db.rows(f"SELECT sum(v), avg(v) FROM {t} WHERE pk = 2") == [(0, 0)]


def test_overflow(db):
    t = db.table("pk int PRIMARY KEY, v tinyint")
    for pk in range(3):
        db.execute(f"INSERT INTO {t} (pk, v) VALUES ({pk}, 100)")
    db.refused(Invalid, f"SELECT sum(v) FROM {t}", match="overflow")
    assert db.one(f"SELECT sum(cast(v AS int)) FROM {t}") == 300


def test_names(db, t):
    result = db.execute(
        "SELECT count(*), count(1), count(v), max(v), min(c) AS least, avg(cast(v AS double)),"
        f" sum(v) FROM {t}"
    )
    assert result.column_names == [
        "count",
        "count",
        "system.count(v)",
        "system.max(v)",
        "least",
        "system.avg(cast(v as double))",
        "system.sum(v)",
    ]
