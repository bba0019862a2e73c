"""SELECT: every restriction of a primary key, order, limits, DISTINCT, static rows, and what is
refused."""

import itertools

import pytest
from database import Invalid, Syntax


@pytest.fixture(scope="module")
def t(db):
    """pk 0..3, c1 0..3, c2 0..3; v encodes all three."""
    name = db.table("pk int, c1 int, c2 int, v int, s int STATIC, PRIMARY KEY (pk, c1, c2)")
    insert = db.prepare(f"INSERT INTO {name} (pk, c1, c2, v) VALUES (?, ?, ?, ?)")
    for pk, c1, c2 in itertools.product(range(4), repeat=3):
        db.execute(insert, pk, c1, c2, pk * 100 + c1 * 10 + c2)
    return name


def all_rows():
    return [(pk, c1, c2) for pk in range(4) for c1 in range(4) for c2 in range(4)]


@pytest.mark.parametrize("where, keep", [
    ("pk = 1", lambda c1, c2: True),
    ("pk = 1 AND c1 = 2", lambda c1, c2: c1 == 2),
    ("pk = 1 AND c1 = 2 AND c2 = 3", lambda c1, c2: (c1, c2) == (2, 3)),
    ("c2 = 3 AND c1 = 2 AND pk = 1", lambda c1, c2: (c1, c2) == (2, 3)),
    ("pk = 1 AND c1 = 9", lambda c1, c2: False),
    ("pk = 1 AND c1 > 1", lambda c1, c2: c1 > 1),
    ("pk = 1 AND c1 >= 1 AND c1 < 3", lambda c1, c2: 1 <= c1 < 3),
    ("pk = 1 AND c1 > 1 AND c1 <= 1", lambda c1, c2: False),
    ("pk = 1 AND c1 > 3 AND c1 < 1", lambda c1, c2: False),
    ("pk = 1 AND c1 = 1 AND c2 > 0 AND c2 <= 2", lambda c1, c2: c1 == 1 and 0 < c2 <= 2),
    ("pk = 1 AND c1 IN (0, 2)", lambda c1, c2: c1 in (0, 2)),
    ("pk = 1 AND c1 IN (2, 0, 2, 7)", lambda c1, c2: c1 in (0, 2)),
    ("pk = 1 AND c1 IN ()", lambda c1, c2: False),
    ("pk = 1 AND c1 IN (1, 2) AND c2 IN (0, 3)", lambda c1, c2: c1 in (1, 2) and c2 in (0, 3)),
    ("pk = 1 AND c1 IN (1, 2) AND c2 = 3", lambda c1, c2: c1 in (1, 2) and c2 == 3),
    ("pk = 1 AND c1 IN (1, 3) AND c2 > 1", lambda c1, c2: c1 in (1, 3) and c2 > 1),
    ("pk = 1 AND c1 = 1 AND c2 IN (3, 1)", lambda c1, c2: c1 == 1 and c2 in (3, 1)),
    ("pk = 1 AND (c1, c2) = (1, 2)", lambda c1, c2: (c1, c2) == (1, 2)),
    ("pk = 1 AND (c1, c2) > (1, 2)", lambda c1, c2: (c1, c2) > (1, 2)),
    ("pk = 1 AND (c1, c2) >= (1, 2) AND (c1, c2) < (3, 1)",
        lambda c1, c2: (1, 2) <= (c1, c2) < (3, 1)),
    ("pk = 1 AND (c1) > (1)", lambda c1, c2: c1 > 1),
    ("pk = 1 AND (c1) >= (1) AND (c1, c2) < (2, 2)", lambda c1, c2: c1 >= 1 and (c1, c2) < (2, 2)),
    ("pk = 1 AND (c1, c2) IN ((0, 1), (2, 3), (2, 3), (9, 9))",
        lambda c1, c2: (c1, c2) in ((0, 1), (2, 3))),
    ("pk = 1 AND (c1, c2) IN ()", lambda c1, c2: False),
])
@pytest.mark.parametrize("order", ["", "ORDER BY c1 DESC", "ORDER BY c1 DESC, c2 DESC",
    "ORDER BY c1 ASC, c2 ASC"])
def test_one_partition(db, t, where, keep, order):
    expected = [(1, c1, c2) for pk, c1, c2 in all_rows() if pk == 1 and keep(c1, c2)]
    if "DESC" in order:
        expected.reverse()
    assert db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE {where} {order}") == expected
    assert db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE {where} {order} LIMIT 3") == expected[:3]
    assert db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE {where} {order}", fetch_size=2) == expected
    assert db.one(f"SELECT count(*) FROM {t} WHERE {where}") == len(expected)


@pytest.mark.parametrize("where, keep", [
    ("pk IN (0, 2)", lambda pk, c1, c2: pk in (0, 2)),
    ("pk IN (2, 0, 2, 9)", lambda pk, c1, c2: pk in (0, 2)),
    ("pk IN ()", lambda pk, c1, c2: False),
    ("pk IN (1, 3) AND c1 = 2", lambda pk, c1, c2: pk in (1, 3) and c1 == 2),
    ("pk IN (1, 3) AND c1 > 1", lambda pk, c1, c2: pk in (1, 3) and c1 > 1),
    ("pk IN (1, 3) AND c1 IN (0, 3) AND c2 = 1",
        lambda pk, c1, c2: pk in (1, 3) and c1 in (0, 3) and c2 == 1),
    ("pk IN (1, 3) AND (c1, c2) >= (3, 2)", lambda pk, c1, c2: pk in (1, 3) and (c1, c2) >= (3, 2)),
])
def test_several_partitions(db, t, where, keep):
    expected = [row for row in all_rows() if keep(*row)]
    assert sorted(db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE {where}")) == expected
    assert sorted(db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE {where}", fetch_size=3)) == expected
    assert len(db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE {where} LIMIT 5")) == min(
        5, len(expected)
    )


@pytest.mark.scylla
def test_partitions_of_in_come_in_key_order(db, t):
    expected = [row for row in all_rows() if row[0] in (0, 1, 3)]
    for size in (None, 3):
        assert (
            db.rows(
                f"SELECT pk, c1, c2 FROM {t} WHERE pk IN (3, 0, 1, 0)",
                **({"fetch_size": size} if size else {}),
            )
            == expected
        )


def test_token(db, t):
    rows = db.rows(f"SELECT token(pk), pk, c1, c2 FROM {t}")
    assert len(rows) == 64 and [r[0] for r in rows] == sorted(r[0] for r in rows)
    tokens = sorted({r[0] for r in rows})
    middle = tokens[1]
    select = f"SELECT token(pk), pk, c1, c2 FROM {t} WHERE"
    assert db.rows(f"{select} token(pk) > {middle}") == [r for r in rows if r[0] > middle]
    assert db.rows(f"{select} token(pk) >= {middle}") == [r for r in rows if r[0] >= middle]
    assert db.rows(f"{select} token(pk) < {middle}") == [r for r in rows if r[0] < middle]
    assert db.rows(f"{select} token(pk) <= {middle}") == [r for r in rows if r[0] <= middle]
    assert db.rows(f"{select} token(pk) = {middle}") == [r for r in rows if r[0] == middle]
    assert db.rows(f"{select} token(pk) > {tokens[0]} AND token(pk) <= {tokens[2]}") == [
        r for r in rows if tokens[0] < r[0] <= tokens[2]
    ]
    assert db.rows(f"{select} token(pk) > {tokens[2]} AND token(pk) <= {tokens[0]}") == []
    assert db.rows(f"{select} token(pk) > {-2**63} AND token(pk) <= {2**63 - 1}") == rows
    assert db.rows(f"{select} token(pk) >= token(1)") == [
        r for r in rows if r[0] >= [x[0] for x in rows if x[1] == 1][0]
    ]
    # All ranges together return every row once, with any page size.
    bounds = [-2**63, tokens[0] - 1, tokens[1], tokens[2] + 7, 2**63 - 1]
    for size in (3, 1000):
        pieces = [
            db.rows(f"{select} token(pk) > {low} AND token(pk) <= {high}", fetch_size=size)
            for low, high in itertools.pairwise(bounds)
        ]
        assert sum(pieces, []) == rows
    db.rows(f"{select} token(pk) > {middle} ALLOW FILTERING")


@pytest.mark.parametrize("where", [
    "c1 = 1", "c1 > 1", "v = 1", "pk > 1", "pk >= 1 AND pk < 3", "pk = 1 AND c2 = 1",
    "pk = 1 AND c2 > 1", "pk = 1 AND c2 IN (1, 2)",
    "pk = 1 AND v = 1", "pk = 1 AND c1 > 1 AND c2 = 1", "pk = 1 AND c1 > 1 AND c2 > 1",
    "pk = 1 AND s = 1", "s = 1",
    "token(c1) > 1", "token(pk, c1) > 1", "nothing = 1", "pk = 1 AND nothing = 1",
    "pk = 1 AND (c2) > (1)", "pk = 1 AND (c2, c1) > (1, 1)",
    "pk = 1 AND (c1, c2) > (1)", "pk = 1 AND (c1, c2) > (1, 2, 3)", "pk = 1 AND (c1, c1) > (1, 1)",
    "pk = 1 AND (c1, v) > (1, 1)",
    "(pk, c1) = (1, 1)", "pk = 1 AND (c1, c2) IN ((1), (2))", "pk = 1 AND c1 = 'x'", "pk = 'x'",
    "pk = 1.5", "pk IN (1, 'x')",
    "token(pk) > 'x'", "pk = 1 AND (c1, c2) > (1, 1) AND (c1, c2) > (2, 2)",
    pytest.param("pk = 1 AND c1 > 0 AND (c1, c2) < (2, 2)", marks=pytest.mark.scylla),
])
def test_refused_restrictions(db, t, where):
    db.refused(Invalid, f"SELECT * FROM {t} WHERE {where}")


@pytest.mark.parametrize("where", ["pk", "pk = 1 OR pk = 2", "NOT pk = 1", "pk BETWEEN 1",
    "pk = 1 AND", "pk IN 1", "c1 > "])
def test_restrictions_that_are_no_cql(db, t, where):
    db.refused((Syntax, Invalid), f"SELECT * FROM {t} WHERE {where}")


def test_mixed_clustering_order(db):
    t = db.table("pk int, a int, b int, c int, PRIMARY KEY (pk, a, b, c)",
        "WITH CLUSTERING ORDER BY (a ASC, b DESC, c ASC)")
    rows = list(itertools.product(range(3), repeat=3))
    for a, b, c in rows:
        db.execute(f"INSERT INTO {t} (pk, a, b, c) VALUES (1, {a}, {b}, {c})")
    forward = sorted(rows, key=lambda r: (r[0], -r[1], r[2]))
    select = f"SELECT a, b, c FROM {t} WHERE pk = 1"
    assert db.rows(select) == forward
    assert db.rows(f"{select} ORDER BY a DESC, b ASC, c DESC") == forward[::-1]
    assert db.rows(f"{select} ORDER BY a DESC, b ASC") == forward[::-1]
    for wrong in ("a ASC, b ASC", "a DESC, b DESC", "b ASC", "b DESC", "c ASC", "a ASC, c ASC"):
        db.refused(Invalid, f"{select} ORDER BY {wrong}")
    for low, high in (((0, 1), (2, 1)), ((1, 0), (1, 2)), ((0, 2), (2, 0))):
        expected = [r for r in forward if low < (r[0], r[1]) <= high]
        assert db.rows(f"{select} AND (a, b) > {low} AND (a, b) <= {high}") == expected, (low, high)
        assert (
            db.rows(f"{select} AND (a, b) > {low} AND (a, b) <= {high} ORDER BY a DESC")
            == expected[::-1]
        )
    assert db.rows(f"{select} AND (a, b, c) >= (1, 1, 1)", fetch_size=2) == [
        r for r in forward if r >= (1, 1, 1)
    ]
    assert db.rows(f"{select} AND a = 1 AND b >= 1") == [
        r for r in forward if r[0] == 1 and r[1] >= 1
    ]
    assert db.rows(f"{select} AND (a, b, c) IN ((2, 0, 1), (0, 2, 2), (0, 0, 0))") == [r
        for r in forward if r in ((2, 0, 1), (0, 2, 2), (0, 0, 0))]


def test_order_by_is_refused(db, t):
    for text in (
        "SELECT * FROM {} ORDER BY c1 ASC",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY v ASC",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY pk ASC",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY nothing ASC",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY c2 ASC",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY c1 ASC, c2 DESC",
        "SELECT * FROM {} WHERE token(pk) > 0 ORDER BY c1 ASC",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY s ASC",
    ):
        db.refused(Invalid, text.format(t))


def test_order_by_with_in(db, t):
    db.refused(
        Invalid, f"SELECT pk, c1 FROM {t} WHERE pk IN (1, 2) ORDER BY c1 ASC", fetch_size=100
    )
    rows = db.session.execute(
        __import__("cassandra.query", fromlist=["x"]).SimpleStatement(
            f"SELECT c1, c2, pk FROM {t} WHERE pk IN (1, 2) ORDER BY c1 DESC, c2 DESC",
            fetch_size=None,
        )
    ).all()
    assert [tuple(r)[:2] for r in rows] == sorted(
        [(c1, c2) for c1 in range(4) for c2 in range(4)] * 2, reverse=True
    )


def test_limits(db, t):
    assert len(db.rows(f"SELECT * FROM {t} LIMIT 1")) == 1
    assert len(db.rows(f"SELECT * FROM {t} LIMIT 10", fetch_size=3)) == 10
    assert len(db.rows(f"SELECT * FROM {t} LIMIT 2147483647")) == 64
    assert len(db.rows(f"SELECT * FROM {t} PER PARTITION LIMIT 3")) == 12
    assert len(db.rows(f"SELECT * FROM {t} PER PARTITION LIMIT 3", fetch_size=2)) == 12
    assert len(db.rows(f"SELECT * FROM {t} PER PARTITION LIMIT 3 LIMIT 7")) == 7
    assert len(db.rows(f"SELECT * FROM {t} PER PARTITION LIMIT 100 LIMIT 64", fetch_size=10)) == 64
    assert db.rows(f"SELECT pk, c1, c2 FROM {t} WHERE pk = 1 PER PARTITION LIMIT 2") == [
        (1, 0, 0),
        (1, 0, 1),
    ]
    assert db.rows(
        f"SELECT c1, c2 FROM {t} WHERE pk = 1 ORDER BY c1 DESC PER PARTITION LIMIT 2"
    ) == [(3, 3), (3, 2)]
    assert len(db.rows(f"SELECT * FROM {t} WHERE pk IN (0, 1, 2) PER PARTITION LIMIT 2")) == 6
    for text in (
        "LIMIT 0",
        "LIMIT -1",
        "PER PARTITION LIMIT 0",
        "PER PARTITION LIMIT -5",
        "LIMIT 2147483648",
        "LIMIT 'x'",
        "LIMIT 1.5",
    ):
        db.refused((Invalid, Syntax), f"SELECT * FROM {t} {text}")
    select = db.prepare(f"SELECT * FROM {t} PER PARTITION LIMIT ? LIMIT ?")
    assert len(db.rows(select, 2, 5)) == 5
    db.refused(Invalid, select, 0, 5)
    db.refused(Invalid, select, 5, 0)


def test_distinct(db, t):
    assert sorted(db.rows(f"SELECT DISTINCT pk FROM {t}")) == [(0,), (1,), (2,), (3,)]
    assert sorted(db.rows(f"SELECT DISTINCT pk FROM {t}", fetch_size=1)) == [(0,), (1,), (2,), (3,)]
    assert len(db.rows(f"SELECT DISTINCT pk FROM {t} LIMIT 2")) == 2
    assert db.rows(f"SELECT DISTINCT pk, s FROM {t} WHERE pk = 1") == [(1, None)]
    assert sorted(db.rows(f"SELECT DISTINCT pk FROM {t} WHERE pk IN (1, 2, 9)")) == [(1,), (2,)]
    assert len(db.rows(f"SELECT DISTINCT pk FROM {t} WHERE token(pk) > {-2**63}")) == 4
    for text in (
        f"SELECT DISTINCT v FROM {t}",
        f"SELECT DISTINCT c1 FROM {t}",
        f"SELECT DISTINCT pk, c1 FROM {t}",
        f"SELECT DISTINCT s FROM {t}",
        f"SELECT DISTINCT * FROM {t}",
        f"SELECT DISTINCT pk FROM {t} WHERE pk = 1 AND c1 = 1",
    ):
        db.refused((Invalid, Syntax), text)
    only = "only supports restriction by partition key and/or static columns"
    for where in ("v = 1", "c2 = 1", "pk = 1 AND v = 1", "c2 IN (1, 2)", "s = 1 AND v > 1"):
        db.refused(
            Invalid, f"SELECT DISTINCT pk FROM {t} WHERE {where} ALLOW FILTERING", match=only
        )
    assert sorted(db.rows(f"SELECT DISTINCT pk FROM {t} WHERE pk > 1 ALLOW FILTERING")) == [
        (2,),
        (3,),
    ]
    db.refused(
        Invalid,
        "SELECT DISTINCT keyspace_name FROM system_schema.columns WHERE kind = 'regular' ALLOW"
        " FILTERING",
        match=only,
    )
    composite = db.table("a int, b int, c int, PRIMARY KEY ((a, b), c)")
    for n in range(8):
        db.execute(f"INSERT INTO {composite} (a, b, c) VALUES ({n % 2}, {n % 4}, {n})")
    assert len(db.rows(f"SELECT DISTINCT a, b FROM {composite}")) == 4
    db.refused(Invalid, f"SELECT DISTINCT a FROM {composite}")


def test_composite_partition_key(db):
    t = db.table("a int, b text, c int, v int, PRIMARY KEY ((a, b), c)")
    for a, b, c in itertools.product(range(3), "xyz", range(3)):
        db.execute(f"INSERT INTO {t} (a, b, c, v) VALUES ({a}, '{b}', {c}, 1)")
    assert db.rows(f"SELECT a, b, c FROM {t} WHERE a = 1 AND b = 'y'") == [
        (1, "y", c) for c in range(3)
    ]
    assert sorted(
        db.rows(f"SELECT a, b, c FROM {t} WHERE a IN (0, 1) AND b IN ('x', 'z') AND c = 1")
    ) == [(a, b, 1) for a in (0, 1) for b in "xz"]
    assert (
        sorted(db.rows(f"SELECT a, b FROM {t} WHERE a = 2 AND b IN ('z', 'x') AND c IN (0, 2)"))
        == [(2, "x")] * 2 + [(2, "z")] * 2
    )
    assert len(db.rows(f"SELECT * FROM {t} WHERE token(a, b) > {-2**63}")) == 27
    for where in ("a = 1", "b = 'x'", "a = 1 AND c = 1", "a = 1 AND b > 'x'", "token(a) > 0",
            "token(b, a) > 0", "a IN (1, 2)",
                  "token(a, b) > 0 AND token(a) < 5"):
        db.refused(Invalid, f"SELECT * FROM {t} WHERE {where}")


def test_static_rows(db):
    t = db.table(
        "pk int, ck int, s int STATIC, m map<text, int> STATIC, v int, PRIMARY KEY (pk, ck)"
    )
    db.execute(f"INSERT INTO {t} (pk, s) VALUES (1, 10)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (2, 1, 1)")
    db.execute(f"INSERT INTO {t} (pk, ck, s, v) VALUES (3, 1, 30, 1)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (3, 2, 2)")
    assert db.rows(f"SELECT pk, ck, s, v FROM {t} WHERE pk = 1") == [(1, None, 10, None)]
    assert sorted(db.rows(f"SELECT pk, ck, s, v FROM {t}"), key=str) == sorted(
        [(1, None, 10, None), (2, 1, None, 1), (3, 1, 30, 1), (3, 2, 30, 2)], key=str)
    assert sorted(db.rows(f"SELECT DISTINCT pk, s FROM {t}"), key=str) == sorted(
        [(1, 10), (2, None), (3, 30)], key=str
    )
    assert db.rows(f"SELECT s, v FROM {t} WHERE pk = 1 AND ck = 5") == []
    db.refused(Invalid, f"SELECT s FROM {t} WHERE pk = 1 AND ck = 5")
    assert db.rows(f"SELECT s, v FROM {t} WHERE pk = 3 AND ck = 2") == [(30, 2)]
    assert db.rows(f"SELECT ck, s FROM {t} WHERE pk = 3 AND ck > 5") == []
    assert db.rows(f"SELECT ck, s FROM {t} WHERE pk = 3 ORDER BY ck DESC LIMIT 1") == [(2, 30)]
    assert db.one(f"SELECT count(*) FROM {t} WHERE pk = 1") == 1
    db.execute(f"UPDATE {t} SET s = 31, m = {{'a': 1}} WHERE pk = 3")
    assert db.rows(f"SELECT ck, s, m FROM {t} WHERE pk = 3") == [
        (1, 31, {"a": 1}),
        (2, 31, {"a": 1}),
    ]
    db.execute(f"DELETE s FROM {t} WHERE pk = 3")
    assert db.rows(f"SELECT ck, s FROM {t} WHERE pk = 3") == [(1, None), (2, None)]
    db.execute(f"DELETE FROM {t} WHERE pk = 3 AND ck = 1")
    db.execute(f"DELETE FROM {t} WHERE pk = 3 AND ck = 2")
    assert db.rows(f"SELECT ck, m FROM {t} WHERE pk = 3") == [(None, {"a": 1})]
    db.execute(f"DELETE FROM {t} WHERE pk = 3")
    assert db.rows(f"SELECT * FROM {t} WHERE pk = 3") == []
    # A partition with only a static row counts as one row, also for limits and pages.
    for pk in range(100, 120):
        db.execute(f"INSERT INTO {t} (pk, s) VALUES ({pk}, {pk})")
    assert len([r for r in db.rows(f"SELECT pk FROM {t}", fetch_size=3) if r[0] >= 100]) == 20
    db.refused(Invalid, f"UPDATE {t} SET v = 1 WHERE pk = 1")
    db.refused(Invalid, f"UPDATE {t} SET s = 1, v = 1 WHERE pk = 1")
    db.refused(Invalid, f"INSERT INTO {t} (pk, v) VALUES (1, 1)")


def test_unknown_names(db, t):
    for text in (
        "SELECT nothing FROM {}",
        "SELECT pk, nothing FROM {}",
        "SELECT * FROM nothing",
        "SELECT * FROM nothing.nothing",
        "SELECT v AS pk FROM {} WHERE x = 1",
    ):
        db.refused(Invalid, text.format(t))


def test_repeated_and_aliased_selectors(db, t):
    result = db.execute(f"SELECT v, v, v AS x, pk FROM {t} WHERE pk = 1 AND c1 = 2 AND c2 = 3")
    assert result.column_names == ["v", "v", "x", "pk"]
    db.refused((Invalid, Syntax), f"SELECT v AS x FROM {t} WHERE x = 1")
    db.refused(Syntax, f"SELECT * AS x FROM {t}")


@pytest.mark.scylla
@pytest.mark.parametrize("tail", ["BYPASS CACHE", "USING TIMEOUT 5s",
    "BYPASS CACHE USING TIMEOUT 500ms", "ALLOW FILTERING BYPASS CACHE USING TIMEOUT 1m"])
def test_scylla_clauses(db, t, tail):
    assert len(db.rows(f"SELECT * FROM {t} WHERE pk = 1 {tail}")) == 16
    assert len(db.rows(f"SELECT * FROM {t} {tail}")) == 64
    db.refused((Invalid, Syntax), f"SELECT * FROM {t} USING TIMEOUT 'x'")
    db.refused((Invalid, Syntax), f"SELECT * FROM {t} USING TIMEOUT -5s")


@pytest.mark.scylla
def test_comparison_with_null_matches_nothing(db, t):
    assert db.rows(f"SELECT * FROM {t} WHERE pk = null") == []
    assert db.rows(f"SELECT * FROM {t} WHERE pk = 1 AND c1 = null") == []
    assert db.rows(f"SELECT * FROM {t} WHERE pk = 1 AND c1 > null") == []


def test_empty_table(db):
    t = db.table("pk int, ck int, PRIMARY KEY (pk, ck)")
    for text in (
        "SELECT * FROM {}",
        "SELECT DISTINCT pk FROM {}",
        "SELECT * FROM {} WHERE pk = 1",
        "SELECT * FROM {} WHERE pk IN (1, 2)",
        "SELECT * FROM {} WHERE token(pk) > 0",
        "SELECT * FROM {} WHERE pk = 1 ORDER BY ck DESC LIMIT 1",
    ):
        result = db.execute(text.format(t))
        assert result.all() == [] and not result.has_more_pages


@pytest.mark.scylla
def test_literals_without_a_table(db):
    """A value without a column gets the type that ScyllaDB infers. Health checks send such
    statements."""
    row = db.execute("SELECT 1 AS one, 'hello' AS text, [1, 2] AS l, {1, 2} AS s, {'a': 1} AS m, "
        "(1, 'a', 3.0) AS t, true AS yes").one()
    assert (row.one, row.text, row.l, set(row.s), dict(row.m), tuple(row.t), row.yes) == (
        1, "hello", [1, 2], {1, 2}, {"a": 1}, (1, "a", 3.0), True)
    assert list(db.execute("SELECT count(1), sum(5), min('b'), max([1, 2])").one()) == [
        1,
        5,
        "b",
        [1, 2],
    ]
    assert db.one("SELECT JSON 1 AS one") == '{"one": 1}'
    db.refused(Invalid, "SELECT [1, 'a']", match="infer type")
    # More fields than a tuple can have in a result, and very many elements of two types.
    db.refused(Invalid, f"SELECT ({', '.join('1' * 70_000)})", match="infer type")
    db.refused(Invalid, f"SELECT [{', '.join('1' * 100_000)}, 'a']", match="infer type")


def test_nulls_in_relations(db):
    """A comparison with null is unknown, also within a list: only rows for which the entire clause
    is true are returned."""
    name = db.table("pk int, ck int, v int, m map<int, int>, PRIMARY KEY (pk, ck)")
    for ck, v in enumerate([1, 5, "null"]):
        db.execute(f"INSERT INTO {name} (pk, ck, v, m) VALUES (0, {ck}, {v}, {{1: {ck}}})")
    for clause, found in [
        ("v NOT IN (5)", [0]), ("v NOT IN (5, null)", []), ("v NOT IN (null)", []),
        ("v IN (5, null)", [1]), ("v = null", []), ("v > null", []),
        ("ck NOT IN (0, null)", []), ("(ck) NOT IN ((null))", []), ("ck IN (0, null)", [0]),
        ("m[1] = null", []),
        ("m[null] = 1", []), ("m CONTAINS null", []), ("m CONTAINS KEY null", []),
        ("pk IN (0, null)", [0, 1, 2]), ("pk NOT IN (1, null)", []),
    ]:
        text = f"SELECT ck FROM {name} WHERE {clause} ALLOW FILTERING"
        assert db.column(text) == found, clause
    assert db.column(
        db.prepare(f"SELECT ck FROM {name} WHERE v NOT IN ? ALLOW FILTERING"), [5]
    ) == [0]
    db.refused(
        Invalid,
        f"DELETE FROM {name} WHERE pk = 0 AND ck IN (0, null)",
        match="null value in condition for column ck",
    )
