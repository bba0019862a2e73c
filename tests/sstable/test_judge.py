"""Cassandra's own tools on sstables that a node wrote through CQL: its verifier accepts them, and
its dump shows the data."""

import json
import os
import subprocess

import pytest
from database import Database
from judges import SSTABLETOOL as TOOL

pytestmark = [pytest.mark.node, pytest.mark.long]

SCHEMA = {
    "simple": "pk bigint PRIMARY KEY, v blob",
    "rows": "pk int, ck int, v text, s text STATIC, PRIMARY KEY (pk, ck)",
    "collections": "pk int PRIMARY KEY, l list<int>, s set<text>, m map<text, int>, f "
        "frozen<list<int>>, u point, fu frozen<point>, t tuple<int, text>",
    "wide": "pk int, a text, b int, v blob, PRIMARY KEY (pk, a, b)",
    "natives": "pk uuid PRIMARY KEY, a ascii, b boolean, c tinyint, d smallint, e bigint, f "
        "varint, g decimal, h float, i double, j timestamp, k date, l time, "
               "m duration, n inet, o timeuuid",
}
OPTIONS = {"wide": "WITH CLUSTERING ORDER BY (a DESC, b ASC)"}


def tool(verb, path, *arguments):
    done = subprocess.run(
        [str(TOOL), verb, str(path), *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, f"{verb} {path.name}: {done.stdout[-1500:]} {done.stderr[-1500:]}"
    return done.stdout


def data_files(node, keyspace, table):
    """All of them: with several tablets and flushes, dozens."""
    return sorted(
        node.data_dir.glob(f"**/data/{keyspace}/{table}-*/me-*-big-Data.db"),
        key=lambda path: path.stat().st_size,
    )


def some(files):
    """The largest two and the smallest: each run of a tool takes more than a second."""
    return [*files[-2:], files[0]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A node with data of every kind, flushed twice."""
    from launch import Node

    node = Node()
    node.start()
    db = Database(node.address)
    try:
        db.execute("CREATE TYPE point (x int, y text)")
        for name, columns in SCHEMA.items():
            db.execute(f"CREATE TABLE {name} ({columns}) {OPTIONS.get(name, '')}")
            db.execute(
                f"ALTER TABLE {name} WITH compaction = {{'class': 'SizeTieredCompactionStrategy',"
                " 'enabled': 'false'}"
            )
        simple = db.prepare("INSERT INTO simple (pk, v) VALUES (?, ?)")
        for pk in range(3000):
            db.execute(simple, pk, bytes([pk % 256]) * 100)
        for pk in range(8):
            db.execute(f"INSERT INTO rows (pk, s) VALUES ({pk}, 'static {pk}')")
            for ck in range(50):
                db.execute(
                    f"INSERT INTO rows (pk, ck, v) VALUES ({pk}, {ck}, 'v{ck}') USING TIMESTAMP"
                    f" {1000 + ck}"
                )
        db.execute("UPDATE rows USING TTL 100000 SET v = 'expires' WHERE pk = 1 AND ck = 1")
        db.execute("DELETE FROM rows WHERE pk = 2 AND ck >= 10 AND ck < 20")
        db.execute("DELETE FROM rows WHERE pk = 2 AND ck = 30")
        db.execute("DELETE FROM rows WHERE pk = 3")
        db.execute("INSERT INTO rows (pk, ck, v) VALUES (3, 1, 'after the deletion')")
        db.execute("DELETE v FROM rows WHERE pk = 4 AND ck = 4")
        db.execute("DELETE s FROM rows WHERE pk = 5")
        db.execute("UPDATE rows SET v = 'no marker' WHERE pk = 100 AND ck = 1")
        for pk in range(30):
            db.execute(f"INSERT INTO collections (pk, l, s, m, f, u, fu, t) VALUES ({pk}, [1, 2], "
                f"{{'a', 'b'}}, {{'k': {pk}}}, [3], {{x: 1, y: 'y'}}, {{x: 2}}, (1, 't'))")
        db.execute(
            "UPDATE collections SET l = l + [9], s = s - {'a'}, m['j'] = 5, u.x = 7 WHERE pk = 1"
        )
        db.execute("DELETE m['k'], l[0] FROM collections WHERE pk = 2")
        db.execute("DELETE l, m FROM collections WHERE pk = 3")
        wide = db.prepare("INSERT INTO wide (pk, a, b, v) VALUES (?, ?, ?, ?)")
        for n in range(4000):
            db.execute(wide, n % 3, f"a{n % 7}", n, os.urandom(300))
        db.execute("DELETE FROM wide WHERE pk = 1 AND a = 'a3'")
        db.execute(
            "DELETE FROM wide WHERE pk = 2 AND (a, b) > ('a1', 100) AND (a, b) <= ('a5', 2000)"
        )
        natives = (
            "INSERT INTO natives (pk, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) VALUES"
            " (uuid(), 'a', true, 1, 2, 3, 4, 5.5, 1.5, 2.5, 1000, '2024-01-01', '01:02:03',"
            " 1mo, '::1', now())"
        )
        for _ in range(10):
            db.execute(natives)
        node.flush(db.keyspace)
        for pk in range(0, 3000, 3):
            db.execute(simple, pk, b"again")
        db.execute("DELETE FROM rows WHERE pk = 7")
        node.flush(db.keyspace)
        yield node, db
    finally:
        db.cluster.shutdown()
        node.close()


@pytest.mark.parametrize("table", SCHEMA)
def test_verified(written, table):
    node, db = written
    files = data_files(node, db.keyspace, table)
    assert files, f"no sstable of {table} under {node.data_dir}"
    for path in some(files):
        tool("verify", path)


def test_dump_shows_the_rows(written):
    node, db = written
    partitions = [
        p for path in data_files(node, db.keyspace, "rows") for p in json.loads(tool("dump", path))
    ]
    assert {p["partition"]["key"][0] for p in partitions} == {str(pk) for pk in [*range(8), 100]}
    of = lambda pk: [
        row for p in partitions if p["partition"]["key"] == [pk] for row in p["rows"]
    ]  # noqa: E731
    assert sum(row["type"] == "row" for row in of("0")) == 50
    assert any(row["type"] == "static_block" for row in of("0"))
    assert any("range_tombstone_bound" in row["type"] for row in of("2"))
    assert any(
        "deletion_info" in p["partition"] for p in partitions if p["partition"]["key"] == ["3"]
    )
    expiring = [cell for row in of("1") for cell in row.get("cells", []) if "ttl" in cell]
    assert len(expiring) == 1 and expiring[0]["value"] == "expires"


def test_after_compaction(written):
    """Runs last: compaction leaves verified files and the same rows."""
    node, db = written
    before = {table: sorted(map(repr, db.rows(f"SELECT * FROM {table}"))) for table in SCHEMA}
    node.compact(db.keyspace)
    for table in SCHEMA:
        assert sorted(map(repr, db.rows(f"SELECT * FROM {table}"))) == before[table]
        for path in some(data_files(node, db.keyspace, table)):
            tool("verify", path)


def test_components(written):
    node, db = written
    path = data_files(node, db.keyspace, "simple")[0]
    base = path.name[: -len("Data.db")]
    names = set((path.parent / f"{base}TOC.txt").read_text().split())
    assert {
        "Data.db",
        "Index.db",
        "Summary.db",
        "Filter.db",
        "Statistics.db",
        "CompressionInfo.db",
        "TOC.txt",
        "Checksums.db",
    } <= names
    for name in names:
        assert (path.parent / (base + name)).exists(), name
    digests = [n for n in names if n.startswith("Digest.")]
    assert digests and (path.parent / (base + digests[0])).read_text().strip().isdigit()
