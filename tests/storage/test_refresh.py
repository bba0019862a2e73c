"""Sstables from outside: a restored snapshot, and tables that Cassandra wrote. Defects are
reported."""

import json
import shutil
import subprocess
import time

import pytest
from database import Database
from judges import SSTABLETOOL
from launch import Node, binary
from table_files import FIXTURES, SPECS, refresh, statements, table_dir, upload

pytestmark = pytest.mark.node
# Version and name. Counters are missing, because a statement cannot write a single counter shard.
MADE = [
    (version, spec.stem)
    for version in ("me", "nb")
    for spec in sorted(SPECS.glob("*.cql"))
    if spec.stem != "counters" and (FIXTURES / f"cassandra-{version}-{spec.stem}").is_dir()
]


@pytest.fixture(scope="module")
def running():
    node = Node(shards=2)
    node.start()
    yield node
    assert node.alive(), node.log_tail()
    node.close()


@pytest.fixture
def db(running):
    database = Database(running.address)
    yield database
    database.close()


def admin(node, *arguments):
    done = subprocess.run(
        [binary(), "admin", "--api", f"http://{node.address}:10000", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def everything(db, table):
    return sorted(map(repr, db.rows(f"SELECT * FROM {table}")))


@pytest.mark.parametrize("loss", ["truncate", "drop"])
def test_a_snapshot_is_restored(node, loss):
    """As in docs/backup.md: snapshot, a loss, the table created again from schema.cql, copy,
    refresh."""
    node.start()
    db = Database(node.address)
    inner = db.type("a int")
    outer = db.type(f"i frozen<{inner}>, b text")
    table = db.table(
        f"pk int, ck int, v text, s text static, l list<int>, u frozen<{outer}>, old int, PRIMARY"
        " KEY (pk, ck)"
    )
    for pk in range(50):
        db.execute(f"INSERT INTO {table} (pk, ck, v, s, l, u, old) VALUES ({pk}, 1, 'v{pk}', 's', "
            f"[1, 2], {{i: {{a: 1}}, b: 'b'}}, 7)")
        db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES ({pk}, 2, 'gone')")
    node.flush(db.keyspace)
    db.execute(f"ALTER TABLE {table} DROP old")
    for pk in range(50):
        db.execute(f"DELETE FROM {table} WHERE pk = {pk} AND ck = 2")
        db.execute(f"UPDATE {table} SET l = l + [3] WHERE pk = {pk} AND ck = 1")
    before = everything(db, table)
    assert len(before) == 50
    admin(node, "snapshot", db.keyspace, table, "--tag", f"{loss}1")
    snapshot = table_dir(node, db.keyspace, table) / "snapshots" / f"{loss}1"
    db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (1000, 1, 'after the snapshot')")
    kept = node.data_dir / f"kept-{loss}"
    shutil.copytree(snapshot, kept)
    manifest = json.loads((kept / "manifest.json").read_text())
    assert manifest["files"] and all((kept / name).exists() for name in manifest["files"])
    if loss == "drop":
        db.execute(f"DROP TABLE {table}")
        text = (kept / "schema.cql").read_text()
        for statement in text.split(";"):
            if statement.strip():
                db.execute(statement)
        shutil.rmtree(snapshot.parent.parent)
    else:
        db.execute(f"TRUNCATE {table}")
    assert everything(db, table) == []
    upload(node, db.keyspace, table, kept.glob("me-*"))
    done = json.loads(admin(node, "--json", "refresh", db.keyspace, table))
    assert done["sstables"] == len(manifest["files"]) and done["bytes"] > 0
    assert everything(db, table) == before
    db.cluster.shutdown()
    node.restart(kill=True)
    again = Database(node.address)
    again.session.set_keyspace(db.keyspace)
    assert everything(again, table) == before
    again.cluster.shutdown()


@pytest.mark.parametrize("version, name", MADE)
def test_a_table_of_cassandra_answers_the_same(running, db, version, name):
    """Cassandra's writer and our CQL execute the same statements; then the same queries return the
    same rows."""
    compare(
        running, db, (SPECS / f"{name}.cql").read_text(), FIXTURES / f"cassandra-{version}-{name}"
    )


def test_there_are_tables_of_cassandra():
    assert len(MADE) >= 23


@pytest.mark.long
def test_a_table_that_sstabletool_makes_now(running, db, tmp_path):
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("Cassandra's writer needs Java and Maven")
    spec = (SPECS / "ranges.cql").read_text()
    spec += (
        "REPEAT 3000 INSERT INTO ks.ranges (pk, c1, c2, v) VALUES ({i}, {i}, 7, {i}) USING"
        " TIMESTAMP 5000;\n"
    )
    (tmp_path / "spec.cql").write_text(spec)
    made = subprocess.run(
        [SSTABLETOOL, "make", "me", tmp_path / "spec.cql", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    compare(running, db, spec, tmp_path / "out")


def compare(node, db, spec, files):
    table, creates, writes = statements(spec)
    for statement in creates:
        for keyspace in (db.keyspace, f"{db.keyspace}_loaded"):
            db.execute(
                f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{'class':"
                " 'NetworkTopologyStrategy', 'replication_factor': 1}"
            )
            db.execute(statement.replace("ks.", f"{keyspace}."))
    for statement in writes:
        db.execute(statement.replace("ks.", f"{db.keyspace}."))
    try:
        upload(
            node,
            f"{db.keyspace}_loaded",
            table,
            files.glob("m*-*" if list(files.glob("me-*")) else "nb-*"),
        )
        status, answer = refresh(node, f"{db.keyspace}_loaded", table)
        assert status == 200 and json.loads(answer)["sstables"] == 1, answer
        end = time.monotonic() + 10
        while True:
            ours, theirs = everything(db, f"{db.keyspace}.{table}"), everything(
                db, f"{db.keyspace}_loaded.{table}"
            )
            # Until the TTL of one second has expired.
            if ours == theirs or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert ours == theirs
        assert theirs, "there are rows to compare"
        key = db.rows(f"SELECT * FROM {db.keyspace}.{table} LIMIT 1")
        assert key, "and single partitions"
    finally:
        db.execute(f"DROP KEYSPACE {db.keyspace}_loaded")


def test_errors_name_the_fault(running, db, tmp_path):
    table = db.table("pk int PRIMARY KEY, v text")
    status, answer = refresh(running, db.keyspace, "nothing")
    assert status == 400 and "nothing" in answer
    status, answer = running.admin("POST", f"/storage_service/sstables/{db.keyspace}")
    assert status == 400 and "cf" in answer
    for pk in range(100):
        db.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, '{pk * 7}')")
    admin(running, "snapshot", db.keyspace, table, "--tag", "s")
    snapshot = table_dir(running, db.keyspace, table) / "snapshots/s"
    other = db.table("pk int PRIMARY KEY, another text")
    to = upload(running, db.keyspace, other, snapshot.glob("me-*"))
    status, answer = refresh(running, db.keyspace, other)
    assert status == 500 and "its column v is not one of" in answer, answer
    for file in to.iterdir():
        file.unlink()
    third = db.table("pk int PRIMARY KEY, v int")
    to = upload(running, db.keyspace, third, snapshot.glob("me-*"))
    status, answer = refresh(running, db.keyspace, third)
    assert status == 500 and "column v" in answer, answer
    fourth = db.table("pk int PRIMARY KEY, v text")
    to = upload(running, db.keyspace, fourth, snapshot.glob("me-*"))
    data = next(to.glob("*-Data.db"))
    bytes_ = bytearray(data.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    data.write_bytes(bytes_)
    names = sorted(path.name for path in to.iterdir())
    status, answer = refresh(running, db.keyspace, fourth)
    assert status == 500 and data.name in answer, answer
    assert sorted(path.name for path in to.iterdir()) == names, "it stays where it is"
    assert everything(db, fourth) == []


def test_pages_go_on_over_a_refresh(running, db):
    """A query between two pages continues, and sees the loaded rows after its position."""
    from cassandra.query import SimpleStatement

    table = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    for ck in range(1, 400, 2):
        db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (1, {ck}, 1)")
    admin(running, "snapshot", db.keyspace, table, "--tag", "odd")
    snapshot = table_dir(running, db.keyspace, table) / "snapshots/odd"
    db.execute(f"TRUNCATE {table}")
    for ck in range(0, 400, 2):
        db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (1, {ck}, 0)")
    running.flush(db.keyspace)
    result = db.session.execute(
        SimpleStatement(f"SELECT ck FROM {table} WHERE pk = 1", fetch_size=50)
    )
    seen = [row.ck for row in result.current_rows]
    assert seen == list(range(0, 100, 2))
    upload(running, db.keyspace, table, snapshot.glob("me-*"))
    status, answer = refresh(running, db.keyspace, table)
    assert status == 200, answer
    while result.has_more_pages:
        result.fetch_next_page()
        seen += [row.ck for row in result.current_rows]
    assert seen == list(range(0, 100, 2)) + list(range(99, 400))
    assert len(db.rows(f"SELECT ck FROM {table} WHERE pk = 1")) == 400


def test_tablestats(running, db):
    table = db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
    for pk in range(64):
        db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES ({pk}, 1, '{'x' * 1000}')")
    numbers = json.loads(admin(running, "--json", "tablestats", db.keyspace, table))[0]
    assert (
        numbers["sstable_count"] == 0
        and numbers["memtable_partition_count"] == 64
        and numbers["memtable_data_size"] > 64_000
    )
    running.flush(db.keyspace)
    numbers = json.loads(admin(running, "--json", "tablestats", db.keyspace, table))[0]
    assert (
        numbers["memtable_partition_count"] == 0 and numbers["number_of_partitions_estimate"] == 64
    )
    assert 0 < numbers["sstable_count"] <= 32 and numbers["sstable_compression_ratio"] < 0.5
    assert (
        1000
        <= numbers["compacted_partition_minimum_bytes"]
        <= numbers["compacted_partition_maximum_bytes"]
        < 1500
    )
    name = f"{db.keyspace}:{table}"
    for metric, field in [
        ("live_ss_table_count", "sstable_count"),
        ("live_disk_space_used", "space_used_live"),
        ("mean_row_size", "compacted_partition_mean_bytes"),
    ]:
        assert running.admin("GET", f"/column_family/metrics/{metric}/{name}") == (
            200,
            str(numbers[field]),
        )
    assert running.admin("GET", f"/column_family/metrics/nonsense/{name}")[0] == 404
    shown = admin(running, "tablestats", db.keyspace)
    assert (
        f"Keyspace: {db.keyspace}" in shown
        and f"\tTable: {table}\n\t\tSSTable count: {numbers['sstable_count']}\n" in shown
    )
