"""The CQL surface, row by row: statements, clauses, options and behaviours that applications rely
on. A row has a name, statements that are executed in order in a keyspace of its own, and the result
of the last one: rows, or the error and a part of its message. Functions, aggregates, JSON and types
have tables of their own."""

import pathlib
import re

import pytest
from database import Config, Exists, Invalid, Syntax

T = "CREATE TABLE t (p int, c int, d int, v int, s int STATIC, PRIMARY KEY (p, c, d))"
FILL = [f"INSERT INTO t (p, c, d, v, s) VALUES ({p}, {c}, {d}, {p * 100 + c * 10 + d}, {p})" for p in (1, 2) for c in (1, 2) for d in (1, 2)]
M = "CREATE TABLE m (p int PRIMARY KEY, l list<int>, st set<text>, m map<text, int>, fl frozen<list<int>>, tx text)"
MFILL = [
    "INSERT INTO m (p, l, st, m, fl, tx) VALUES (1, [1, 2], {'a', 'b'}, {'x': 1, 'y': 2}, [1], 'apple')",
    "INSERT INTO m (p, l, st, m, fl, tx) VALUES (2, [2, 3], {'b', 'c'}, {'y': 3}, [2], 'apricot')",
    "INSERT INTO m (p) VALUES (3)",
]

ROWS = [
    # statements
    ("use", ["USE {ks}", "CREATE TABLE here (p int PRIMARY KEY)", "SELECT * FROM {ks}.here"], []),
    ("create keyspace if not exists", ["CREATE KEYSPACE IF NOT EXISTS {ks} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"], None),
    ("alter keyspace", ["ALTER KEYSPACE {ks} WITH durable_writes = false", "SELECT durable_writes FROM system_schema.keyspaces WHERE keyspace_name = '{ks}'"], [(False,)]),
    ("create keyspace by factor", ["CREATE KEYSPACE {ks}_x WITH replication = {{'replication_factor': 1}}", "DROP KEYSPACE {ks}_x", "DROP KEYSPACE IF EXISTS {ks}_x"], None),
    ("create table with all there is", ["CREATE TABLE a (p1 int, p2 text, c1 int, c2 int, v int, s int STATIC, PRIMARY KEY ((p1, p2), c1, c2)) "
     "WITH CLUSTERING ORDER BY (c1 DESC, c2 ASC) AND comment = 'x' AND gc_grace_seconds = 1", "INSERT INTO a (p1, p2, c1, c2, v, s) VALUES (1, 'a', 1, 2, 3, 4)",
     "SELECT * FROM a"], [(1, "a", 1, 2, 4, 3)]),
    ("create table with compact storage", ["CREATE TABLE a (p int PRIMARY KEY, v int) WITH COMPACT STORAGE"], (Invalid, "COMPACT STORAGE")),
    ("alter table add", [T, *FILL[:1], "ALTER TABLE t ADD w text", "ALTER TABLE t ADD (x int, y int STATIC)", "UPDATE t SET w = 'w', y = 1 WHERE p = 1 AND c = 1 AND d = 1",
     "SELECT v, w, x, y FROM t"], [(111, "w", None, 1)]),
    ("alter table add if not exists", [T, "ALTER TABLE t ADD IF NOT EXISTS v int"], None),
    ("alter table add twice", [T, "ALTER TABLE t ADD v int"], (Invalid, "conflicts")),
    ("alter table drop", [T, *FILL[:1], "ALTER TABLE t DROP v", "SELECT * FROM t"], [(1, 1, 1, 1)]),
    ("alter table drop several", [T, "ALTER TABLE t DROP (v, s)", "SELECT v FROM t"], (Invalid, "v")),
    ("alter table drop using timestamp", [T, "UPDATE t USING TIMESTAMP 10 SET v = 1 WHERE p = 1 AND c = 1 AND d = 1", "UPDATE t USING TIMESTAMP 30 SET v = 2 WHERE p = 1 AND c = 1 AND d = 2",
     "ALTER TABLE t DROP v USING TIMESTAMP 20", "ALTER TABLE t ADD v int", "SELECT d, v FROM t"], [(2, 2)]),
    ("alter table re-add", [T, *FILL[:1], "ALTER TABLE t DROP v", "ALTER TABLE t ADD v int", "SELECT p, v FROM t"], [(1, None)]),
    ("alter table re-add otherwise", [T, "ALTER TABLE t DROP v", "ALTER TABLE t ADD v text"], (Invalid, "previously dropped column")),
    ("alter table drop key", [T, "ALTER TABLE t DROP c"], (Invalid, "PRIMARY KEY")),
    ("alter table rename", [T, *FILL[:1], "ALTER TABLE t RENAME p TO pp AND d TO dd", "SELECT pp, c, dd FROM t WHERE pp = 1 AND c = 1 AND dd = 1"], [(1, 1, 1)]),
    ("alter table rename no key", [T, "ALTER TABLE t RENAME v TO w"], (Invalid, "non PRIMARY KEY")),
    ("alter table type", [M, "ALTER TABLE m ALTER tx TYPE blob"], None),
    ("alter table wrong type", [M, "ALTER TABLE m ALTER tx TYPE int"], (Config, "Cannot change tx")),
    ("alter table with", [T, "ALTER TABLE t WITH comment = 'new'", "SELECT comment FROM system_schema.tables WHERE keyspace_name = '{ks}' AND table_name = 't'"], [("new",)]),
    ("drop table", [T, "DROP TABLE t", "SELECT * FROM t"], (Invalid, "unconfigured table t")),
    ("truncate", [T, *FILL, "TRUNCATE t", "SELECT * FROM t"], []),
    ("truncate table using timeout", [T, *FILL, "TRUNCATE TABLE t USING TIMEOUT 20s", "SELECT * FROM t"], []),
    ("update lists, maps, fields", ["CREATE TYPE u (a int, b int)", "CREATE TABLE w (p int PRIMARY KEY, l list<int>, m map<int, int>, st set<int>, u u)",
     "UPDATE w SET l = [1, 2], m = {{1: 1}}, st = {{1}}, u = {{a: 1}} WHERE p = 1", "UPDATE w SET l = [0] + l, m += {{2: 2}}, st += {{2}}, u.b = 2 WHERE p = 1",
     "UPDATE w SET l[1] = 9, m[1] = 9, st -= {{1}} WHERE p = 1", "UPDATE w SET l = l + [3], l = l - [2], m -= {{2}} WHERE p = 1", "SELECT l, m, st FROM w"],
     [([0, 9, 3], {1: 9}, {2})]),
    ("delete columns", [T, *FILL[:2], "DELETE v FROM t WHERE p = 1 AND c = 1 AND d = 1", "SELECT d, v FROM t"], [(1, None), (2, 112)]),
    ("delete rows and ranges", [T, *FILL, "DELETE FROM t WHERE p = 1 AND c = 1", "DELETE FROM t WHERE p = 2 AND c = 2 AND d > 1", "DELETE FROM t WHERE p = 2 AND c IN (1) AND d = 1",
     "SELECT p, c, d FROM t WHERE p IN (1, 2)"], [(1, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)]),
    ("delete bypassing guardrails", [T, *FILL, "DELETE FROM t WHERE p = 1 BYPASS LARGE_DATA_GUARDRAILS", "SELECT p FROM t LIMIT 1"], [(2,)]),
    ("logged batch", [T, "BEGIN BATCH INSERT INTO t (p, c, d) VALUES (1, 1, 1); INSERT INTO t (p, c, d) VALUES (2, 1, 1); APPLY BATCH", "SELECT p FROM t WHERE p IN (1, 2)"], [(1,), (2,)]),
    ("unlogged batch", [T, "BEGIN UNLOGGED BATCH INSERT INTO t (p, c, d) VALUES (1, 1, 1); APPLY BATCH", "SELECT p FROM t"], [(1,)]),
    ("counter batch", ["CREATE TABLE k (p int PRIMARY KEY, n counter)", "BEGIN COUNTER BATCH UPDATE k SET n = n + 2 WHERE p = 1; UPDATE k SET n = n - 5 WHERE p = 1; APPLY BATCH", "SELECT * FROM k"], [(1, -3)]),
    ("empty batch", ["BEGIN BATCH APPLY BATCH"], None),
    ("batch with timeout", [T, "BEGIN BATCH USING TIMEOUT 5s AND TIMESTAMP 7 INSERT INTO t (p, c, d, v) VALUES (1, 1, 1, 1); APPLY BATCH", "SELECT writetime(v) FROM t"], [(7,)]),
    ("batch with a timeout inside", [T, "BEGIN BATCH INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMEOUT 5s; APPLY BATCH"], (Invalid, "Timeout must be set on BATCH")),
    ("select as", [T, *FILL[:1], "SELECT v AS \"Value\", p FROM t"], [(111, 1)]),
    ("select distinct", [T, *FILL, "SELECT DISTINCT p, s FROM t WHERE p IN (1, 2)"], [(1, 1), (2, 2)]),
    # relations
    ("where in on all key columns", [T, *FILL, "SELECT v FROM t WHERE p IN (2, 1) AND c IN (2) AND d IN (2, 1)"], [(121,), (122,), (221,), (222,)]),
    ("where range", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND c = 1 AND d >= 2"], [(112,)]),
    ("where slice between", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND c > 1 AND c <= 2"], [(121,), (122,)]),
    ("where tuple slice", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND (c, d) > (1, 1) AND (c, d) < (2, 2)"], [(112,), (121,)]),
    ("where tuple equals", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND (c, d) = (2, 1)"], [(121,)]),
    ("where tuples in", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND (c, d) IN ((2, 2), (1, 1))"], [(111,), (122,)]),
    ("where tuple slice of mixed order", ["CREATE TABLE x (p int, a int, b int, PRIMARY KEY (p, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC)",
     *[f"INSERT INTO x (p, a, b) VALUES (1, {a}, {b})" for a in (1, 2, 3) for b in (1, 2)], "SELECT a, b FROM x WHERE p = 1 AND (a, b) > (1, 1) AND (a, b) <= (3, 1)"],
     [(3, 1), (2, 1), (2, 2), (1, 2)]),
    ("where tuple of non-key", [T, "SELECT * FROM t WHERE p = 1 AND (c, v) = (1, 1)"], (Invalid, "clustering columns")),
    ("where tuple in wrong order", [T, "SELECT * FROM t WHERE p = 1 AND (d, c) = (1, 1)"], (Invalid, "PRIMARY KEY order")),
    ("where tuple with a gap", [T, "SELECT * FROM t WHERE p = 1 AND (d) = (1)"], (Invalid, "preceding column \"c\"")),
    ("where both kinds", [T, "SELECT * FROM t WHERE p = 1 AND c = 1 AND (d) > (1)"], (Invalid, "Mixing single column relations")),
    ("where gap in the clustering key", [T, "SELECT * FROM t WHERE p = 1 AND d = 1"], (Invalid, "preceding column \"c\"")),
    ("where gap in the clustering key filtered", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND d = 1 ALLOW FILTERING"], [(111,), (121,)]),
    ("where not equal", [T, "SELECT * FROM t WHERE p = 1 AND c != 1"], ((Invalid, Syntax), "!=")),
    ("where is not null", [T, "SELECT * FROM t WHERE v IS NOT NULL ALLOW FILTERING"], (Invalid, "materialized view")),
    ("where null", [T, *FILL, "SELECT * FROM t WHERE v = null ALLOW FILTERING"], []),
    ("where twice", [T, *FILL, "SELECT v FROM t WHERE p = 1 AND c = 1 AND c > 0 AND d = 1"], [(111,)]),
    ("where contains", [M, *MFILL, "SELECT p FROM m WHERE l CONTAINS 2 AND st CONTAINS 'a' ALLOW FILTERING"], [(1,)]),
    ("where contains value of a map", [M, *MFILL, "SELECT p FROM m WHERE m CONTAINS 3 ALLOW FILTERING"], [(2,)]),
    ("where contains key", [M, *MFILL, "SELECT p FROM m WHERE m CONTAINS KEY 'x' ALLOW FILTERING"], [(1,)]),
    ("where entry of a map", [M, *MFILL, "SELECT p FROM m WHERE m['y'] > 2 ALLOW FILTERING"], [(2,)]),
    ("where element of a list", [M, *MFILL, "SELECT p FROM m WHERE l[1] = 3 ALLOW FILTERING"], [(2,)]),
    ("where contains without filtering", [M, "SELECT p FROM m WHERE l CONTAINS 2"], (Invalid, "ALLOW FILTERING")),
    ("where frozen equals", [M, *MFILL, "SELECT p FROM m WHERE fl = [2] ALLOW FILTERING"], [(2,)]),
    ("where collection equals", [M, "SELECT p FROM m WHERE l = [2] ALLOW FILTERING"], (Invalid, "cannot be restricted by a '=' relation")),
    ("where like", [M, *MFILL, "SELECT p FROM m WHERE tx LIKE 'ap%le' ALLOW FILTERING"], [(1,)]),
    ("where in of a plain column", [M, *MFILL, "SELECT p FROM m WHERE tx IN ('apple', 'pear') ALLOW FILTERING"], [(1,)]),
    ("where token", [T, *FILL, "SELECT DISTINCT p FROM t WHERE token(p) >= token(1) AND token(p) <= token(1)"], [(1,)]),
    ("where token and key", [T, "SELECT * FROM t WHERE token(p) > 0 AND p = 1"], (Invalid, "token")),
    ("where partition key bounded", [T, *FILL, "SELECT DISTINCT p FROM t WHERE p > 1 ALLOW FILTERING"], [(2,)]),
    ("where static column", [T, *FILL, "SELECT DISTINCT p FROM t WHERE s = 2 ALLOW FILTERING"], [(2,)]),
    # order, limits, clauses
    ("order by", [T, *FILL, "SELECT v FROM t WHERE p = 1 ORDER BY c DESC, d DESC LIMIT 2"], [(122,), (121,)]),
    ("order by needs the key", [T, "SELECT * FROM t ORDER BY c"], (Invalid, "ORDER BY is only supported")),
    ("order by in two directions", [T, "SELECT * FROM t WHERE p = 1 ORDER BY c DESC, d ASC"], (Invalid, "order by")),
    ("limit of nothing", [T, "SELECT * FROM t LIMIT 0"], (Invalid, "strictly positive")),
    ("per partition limit", [T, *FILL, "SELECT v FROM t WHERE p IN (1, 2) PER PARTITION LIMIT 1"], [(111,), (211,)]),
    ("per partition limit filtered", [T, *FILL, "SELECT v FROM t WHERE p IN (1, 2) AND d = 2 PER PARTITION LIMIT 1 ALLOW FILTERING"], [(112,), (212,)]),
    ("bypass cache", [T, *FILL[:1], "SELECT v FROM t WHERE p = 1 BYPASS CACHE"], [(111,)]),
    ("using timeout", [T, *FILL[:1], "SELECT v FROM t WHERE p = 1 USING TIMEOUT 10s"], [(111,)]),
    ("both", [T, *FILL[:1], "SELECT v FROM t WHERE v = 111 ALLOW FILTERING BYPASS CACHE USING TIMEOUT 10s"], [(111,)]),
    ("timeout in days", [T, "SELECT * FROM t USING TIMEOUT 1d"], (Invalid, "days/months")),
    ("timeout too fine", [T, "SELECT * FROM t USING TIMEOUT 10us"], (Invalid, "milliseconds")),
    ("timeout of nothing", [T, "INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMEOUT null"], ((Invalid, Syntax), "")),
    # user types
    ("alter type add", ["CREATE TYPE u (a int)", "CREATE TABLE w (p int PRIMARY KEY, u u, f frozen<u>)", "INSERT INTO w (p, u, f) VALUES (1, {{a: 1}}, {{a: 2}})",
     "ALTER TYPE u ADD b text", "UPDATE w SET u.b = 'x' WHERE p = 1", "SELECT u.a, u.b, f.a, f.b FROM w"], [(1, "x", 2, None)]),
    ("alter type rename", ["CREATE TYPE u (a int, b int)", "CREATE TABLE w (p int PRIMARY KEY, u u)", "INSERT INTO w (p, u) VALUES (1, {{a: 1, b: 2}})",
     "ALTER TYPE u RENAME a TO x AND b TO y", "SELECT u.x, u.y FROM w"], [(1, 2)]),
    ("alter type add twice", ["CREATE TYPE u (a int)", "ALTER TYPE u ADD a int"], (Invalid, "already exists")),
    ("alter type rename to another", ["CREATE TYPE u (a int, b int)", "ALTER TYPE u RENAME a TO b"], (Invalid, "Duplicate field")),
    ("drop type in use", ["CREATE TYPE u (a int)", "CREATE TABLE w (p int PRIMARY KEY, u u)", "DROP TYPE u"], (Invalid, "still used by table")),
    ("drop type if exists", ["DROP TYPE IF EXISTS nothing"], None),
    # names
    ("reserved words in quotes", ["CREATE TABLE \"select\" (\"from\" int PRIMARY KEY, \"where\" int)", "INSERT INTO \"select\" (\"from\", \"where\") VALUES (1, 2)",
     "SELECT \"where\" FROM \"select\" WHERE \"from\" = 1"], [(2,)]),
    ("reserved words without", ["CREATE TABLE select (p int PRIMARY KEY)"], (Syntax, "select")),
    ("words that are names", ["CREATE TABLE type (key int PRIMARY KEY, timestamp int, ttl int, values int, static int, filtering int, json int)",
     "INSERT INTO type (key, timestamp, ttl, values, static, filtering, json) VALUES (1, 2, 3, 4, 5, 6, 7)", "SELECT ttl, values, json FROM type"], [(3, 4, 7)]),
    ("case of names", ["CREATE TABLE Names (P int PRIMARY KEY, \"V\" int)", "INSERT INTO NAMES (p, \"V\") VALUES (1, 2)", "SELECT \"V\" FROM names"], [(2,)]),
    ("case of names in quotes", ["CREATE TABLE names (p int PRIMARY KEY, \"V\" int)", "SELECT V FROM names"], (Invalid, "v")),
    ("long name", [f"CREATE TABLE {'a' * 192} (p int PRIMARY KEY)"], None),
    ("longer name", [f"CREATE TABLE {'a' * 250} (p int PRIMARY KEY)"], (Invalid, "characters long")),
    # habits
    ("upsert", [T, *FILL[:1], "INSERT INTO t (p, c, d, v) VALUES (1, 1, 1, 5)", "SELECT v, s FROM t"], [(5, 1)]),
    ("update makes no row mark", [T, "UPDATE t SET v = 1 WHERE p = 1 AND c = 1 AND d = 1", "DELETE v FROM t WHERE p = 1 AND c = 1 AND d = 1", "SELECT * FROM t"], []),
    ("key too long", ["CREATE TABLE b (p blob PRIMARY KEY)", f"INSERT INTO b (p) VALUES (0x{'00' * 65536})"], (Invalid, "Key length")),
    ("empty key", ["CREATE TABLE b (p text PRIMARY KEY)", "INSERT INTO b (p) VALUES ('')"], (Invalid, "Key may not be empty")),
    ("key of an empty part", ["CREATE TABLE b (p text, q text, PRIMARY KEY ((p, q)))", "INSERT INTO b (p, q) VALUES ('', '')", "SELECT * FROM b"], [("", "")]),
    ("timestamp of the far future", [T, "INSERT INTO t (p, c, d) VALUES (1, 1, 1) USING TIMESTAMP 9223372036854775807"], (Invalid, "3 days")),
    ("created again", [T, T], (Exists, "t")),
]


@pytest.fixture(scope="module")
def keyspaces(db):
    """Keyspaces in which statements were executed. Rows that only read the results of the same
    statements share one."""
    made = {}

    def make(statements):
        shared = tuple(statements[:-1]) if statements[-1].startswith("SELECT") else (len(made), "alone")
        known = shared in made
        name = made.setdefault(shared, f"{db.keyspace}_r{len(made)}")
        if not known:
            db.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}}")
        db.execute(f"USE {name}")
        texts = [text.replace("{ks}", name).replace("{{", "{").replace("}}", "}") for text in statements]
        for text in texts[:-1] if not known else []:
            db.execute(text)
        return texts[-1]

    yield make
    for name in made.values():
        db.execute(f"DROP KEYSPACE {name}")
    db.execute(f"USE {db.keyspace}")


@pytest.mark.scylla
@pytest.mark.parametrize("name, statements, wanted", ROWS, ids=[name.replace(" ", "-") for name, _, _ in ROWS])
def test_row(db, keyspaces, name, statements, wanted):
    last = keyspaces(statements)
    if isinstance(wanted, tuple):
        db.refused(wanted[0], last, match=re.escape(wanted[1]))
    elif wanted is None:
        db.execute(last)
    else:
        assert db.rows(last) == wanted


def test_tests_named_by_the_surface_exist():
    """SURFACE.md names tests that exist."""
    here = pathlib.Path(__file__).parent
    cases = here.parent.parent / "crates/cql/tests/cases"
    page = (here / "SURFACE.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", page)
    assert len(named) > 100
    for file, test in named:
        assert re.search(rf"^def {test}\(", (here / file).read_text(), re.MULTILINE) or test == "test_tests_named_by_the_surface_exist", (file, test)
    files = set(re.findall(r"`(\w+\.cql)`", page)) - {"x.cql"}
    assert files and all((cases / file).is_file() for file in files), files
    rows = {name for name, _, _ in ROWS}
    assert set(re.findall(r'row "([^"]+)"', page)) - {"..."} <= rows
