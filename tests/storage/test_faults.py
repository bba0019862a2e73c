"""A real disk and a real kernel that refuse: what the node says, that it lives on where it can, and that nothing is lost."""

import os
import shutil
import socket
import subprocess
import time
import zlib

import pytest
from cassandra import OperationTimedOut, WriteFailure, WriteTimeout
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage
from database import Database, connect
from launch import Node, StartFailed
from table_files import table_dir

pytestmark = pytest.mark.node
REFUSALS = (WriteFailure, WriteTimeout, OverloadedErrorMessage, NoHostAvailable, OperationTimedOut)


def test_a_second_process_on_the_directory_is_refused(node):
    node.start()
    second = Node(data_dir=node.data_dir)
    with pytest.raises(StartFailed, match="is in use by another process"):
        second.start()
    assert node.alive()


def restamp(node, change):
    """Writes the stamp anew, with a good checksum."""
    stamp = node.data_dir / "messina.stamp"
    line, body = stamp.read_text().split("\n", 1)
    words = line.split(" ")
    words[2], body = change(words[2], body)
    words[3] = f"{zlib.crc32(body.encode()):08x}"
    stamp.write_text(" ".join(words) + "\n" + body)


def test_a_newer_directory_is_refused(node):
    node.start()
    node.stop()
    restamp(node, lambda version, body: (str(int(version) + 1), body))
    before = sorted(path.name for path in node.data_dir.rglob("*"))
    with pytest.raises(StartFailed, match="written by a later release of Messina"):
        node.start()
    assert sorted(path.name for path in node.data_dir.rglob("*")) == before, "nothing was touched"
    restamp(node, lambda version, body: (str(int(version) - 1), body))
    node.start()


def test_a_damaged_log_stops_the_start_and_has_a_way_out(node):
    """A flipped bit before records that were synced; with commitlog_ignore_corruption the node starts, and says loudly what it skipped."""
    node.config["commitlog_sync"] = "batch"
    node.start()
    db = Database(node.address)
    table = db.table("pk int PRIMARY KEY, v text")
    for pk in range(200):
        db.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, '{'x' * 500}')")
    db.cluster.shutdown()
    node.kill()
    segments = sorted(node.data_dir.glob("commitlog/*/*/segment-*"), key=lambda path: path.read_bytes().count(b"x"))
    contents = bytearray(segments[-1].read_bytes())
    at = contents.index(b"x" * 400)
    contents[at] ^= 1
    segments[-1].write_bytes(contents)
    with pytest.raises(StartFailed, match="commitlog_ignore_corruption"):
        node.start()
    with pytest.raises(StartFailed, match="commitlog_ignore_corruption"):
        node.start()
    node.config["commitlog_ignore_corruption"] = "true"
    node.start()
    assert "commitlog damage was skipped" in node.log_tail(60)
    cluster, session = connect(node.address)
    left = session.execute(f"SELECT count(*) FROM {db.keyspace}.{table}").one()[0]
    assert left == 199, "all but the damaged record"
    cluster.shutdown()


def test_a_torn_tail_is_no_damage(node):
    node.start()
    db = Database(node.address)
    table = db.table("pk int PRIMARY KEY, v text")
    for pk in range(50):
        db.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, '{pk:05}')")
    db.cluster.shutdown()
    node.kill()
    torn = 0
    for segment in node.data_dir.glob("commitlog/*/*/segment-*"):
        contents = bytearray(segment.read_bytes())
        at = contents.rfind(b"00049")
        if at >= 0:
            contents[at:] = bytes(len(contents) - at)
            segment.write_bytes(contents)
            torn += 1
    assert torn == 1
    node.start()
    cluster, session = connect(node.address)
    assert session.execute(f"SELECT count(*) FROM {db.keyspace}.{table}").one()[0] == 49
    cluster.shutdown()


KEYSPACE = "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
STILL = "WITH compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"


def test_more_sstables_than_open_files(request):
    """Far more sstables than the process may have files open: all are served, also after a restart, and flushes go on."""
    short = request.config.getoption("--short")
    sstables, limit = (40, 90) if short else (150, 200)
    node = Node(shards=1, prefix=["prlimit", f"--nofile={limit}:{limit}"])
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute(f"CREATE TABLE k.t (pk int, ck int, v text, PRIMARY KEY (pk, ck)) {STILL}")
        for pk in range(sstables):
            session.execute(f"INSERT INTO k.t (pk, ck, v) VALUES ({pk}, 1, 'v{pk}')")
            status, answer = node.admin("POST", "/storage_service/keyspace_flush/k")
            assert status == 200, answer
        for again in range(2):
            for pk in range(sstables):
                assert session.execute(f"SELECT v FROM k.t WHERE pk = {pk} BYPASS CACHE").one().v == f"v{pk}"
            assert session.execute("SELECT count(*) FROM k.t").one()[0] == sstables
            assert len(os.listdir(f"/proc/{node.pid}/fd")) < limit
            if not again:
                cluster.shutdown()
                node.restart(kill=True)
                cluster, session = connect(node.address)
        cluster.shutdown()
        assert node.alive()
    finally:
        node.close()


def test_too_many_open_files():
    """Somebody opens connections until no descriptor is left: what fails says so, the node lives, and goes on when they are gone."""
    node = Node(shards=1, prefix=["prlimit", "--nofile=120:120"])
    connections = []
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute(f"CREATE TABLE k.t (pk int PRIMARY KEY, v text) {STILL}")
        for pk in range(10):
            session.execute(f"INSERT INTO k.t (pk, v) VALUES ({pk}, 'v')")
            assert node.admin("POST", "/storage_service/keyspace_flush/k")[0] == 200
        for _ in range(200):
            connections.append(socket.create_connection((node.address, 9042), timeout=5))
        end = time.monotonic() + 10
        while len(os.listdir(f"/proc/{node.pid}/fd")) < 115 and time.monotonic() < end:
            time.sleep(0.05)
        for pk in range(10, 20):
            session.execute(f"INSERT INTO k.t (pk, v) VALUES ({pk}, 'v')")
        assert node.alive(), node.log_tail()
        assert session.execute("SELECT v FROM k.t WHERE pk = 15").one().v == "v", "what is in memory can be read"
        for connection in connections:
            connection.close()
        end = time.monotonic() + 30
        while True:
            status, answer = node.admin("POST", "/storage_service/keyspace_flush/k")
            if status == 200:
                break
            assert "open files" in answer, answer
            assert time.monotonic() < end, "flushes go on when there are descriptors"
            time.sleep(0.2)
        assert session.execute("SELECT count(*) FROM k.t").one()[0] == 20
        cluster.shutdown()
        node.kill()
        node.start()
        cluster, session = connect(node.address)
        assert session.execute("SELECT count(*) FROM k.t").one()[0] == 20
        cluster.shutdown()
    finally:
        for connection in connections:
            connection.close()
        node.close()


def test_files_of_unreadable_formats_are_named(node):
    """Files that Cassandra 5 wrote lie in a table's directory: the node says so, and serves the rest."""
    node.start()
    db = Database(node.address)
    table = db.table("pk int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {table} (pk, v) VALUES (1, 2)")
    node.flush(db.keyspace)
    db.cluster.shutdown()
    node.stop()
    directory = table_dir(node, db.keyspace, table.split(".")[-1])
    for name in ("oa-7-big-Data.db", "oa-7-big-TOC.txt", "da-8-bti-Data.db"):
        (directory / name).write_bytes(b"not ours")
    node.start()
    log = node.log_tail(200)
    assert "format that cannot be read" in log and "oa-7-big-Data.db" in log and "da-8-bti-Data.db" in log, log
    cluster, session = connect(node.address)
    assert session.execute(f"SELECT v FROM {db.keyspace}.{table.split('.')[-1]} WHERE pk = 1").one().v == 2
    cluster.shutdown()
    assert (directory / "oa-7-big-Data.db").read_bytes() == b"not ours", "and leaves them alone"



@pytest.fixture
def small_disk(tmp_path):
    """A file system of 96 MiB of its own."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "messina-test", str(path)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk(small_disk):
    """Writes are refused, reads go on, and writes go on by themselves when there is space again."""
    node = Node(shards=1, data_dir=small_disk / "data", config={"commitlog_segment_size_in_mb": 4, "commitlog_total_space_in_mb": 32})
    ballast = small_disk / "ballast"
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        session.execute(insert, (0, b"first"))
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - (8 << 20))
        acknowledged, refused = [0], None
        for pk in range(1, 2000):
            try:
                session.execute(insert, (pk, os.urandom(50_000)), timeout=60)
                acknowledged.append(pk)
            except REFUSALS as error:
                refused = error
                break
        assert refused is not None, "the disk is full"
        assert node.alive(), node.log_tail()
        assert session.execute("SELECT v FROM k.t WHERE pk = 0").one().v == b"first", "reads go on"
        assert len(list(session.execute("SELECT pk FROM k.t"))) >= len(acknowledged)
        ballast.unlink()
        end = time.monotonic() + 60
        while True:
            try:
                session.execute(insert, (5000, b"again"), timeout=60)
                break
            except REFUSALS:
                assert time.monotonic() < end, "writes go on when there is space"
                time.sleep(0.2)
        cluster.shutdown()
        node.kill()
        node.start()
        cluster, session = connect(node.address)
        there = {row.pk for row in session.execute("SELECT pk FROM k.t")}
        assert set(acknowledged) | {5000} <= there, "nothing acknowledged is lost"
        cluster.shutdown()
    finally:
        node.close()
        shutil.rmtree(small_disk / "data", ignore_errors=True)


def test_a_stop_that_could_not_flush_says_so(node):
    """What a failed flush would have written is in the commitlog: the stop says that, with another status than 0, and the start replays it."""
    node.start()
    db = Database(node.address)
    table, keyspace = db.table("pk int PRIMARY KEY, v text"), db.keyspace
    for pk in range(50):
        db.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, 'x')")
        if pk == 25:
            node.flush(keyspace)
    db.cluster.shutdown()
    directory = table_dir(node, keyspace, table)
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.write_text("not a directory")
    status, _ = node.admin("POST", f"/storage_service/keyspace_flush/{keyspace}")
    assert status >= 400
    assert node.stop() != 0
    said = f"the memtables of {keyspace}.{table} could not be flushed; their writes are in the commitlog and are replayed at the next start"
    assert said in node.log_tail(40)
    directory.unlink()
    aside.rename(directory)
    node.start()
    db = Database(node.address)
    assert db.one(f"SELECT count(*) FROM {keyspace}.{table}") == 50
    db.cluster.shutdown()
    assert node.stop() == 0
