"""Files and a kernel that refuse operations: what the node reports, that it keeps serving if it
can, and that no data is lost."""

import os
import shutil
import time
import zlib

import pytest
from cassandra import DriverException, OperationTimedOut, ReadFailure
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ServerError
from database import Database, connect
from launch import Node, StartFailed
from table_files import KEYSPACE, table_dir

pytestmark = pytest.mark.node


def test_a_second_process_on_the_directory_is_refused(node):
    node.start()
    second = Node(data_dir=node.data_dir)
    with pytest.raises(StartFailed, match="is in use by another process"):
        second.start()
    assert node.alive()


def restamp(node, change):
    """Rewrites the stamp, with a valid checksum."""
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
    """A flipped bit before records that were synced. With commitlog_ignore_corruption the node
    starts, and logs what it skipped."""
    node.config["commitlog_sync"] = "batch"
    node.start()
    db = Database(node.address)
    table = db.table("pk int PRIMARY KEY, v text")
    for pk in range(200):
        db.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, '{'x' * 500}')")
    db.cluster.shutdown()
    node.kill()
    segments = sorted(
        node.data_dir.glob("commitlog/*/*/segment-*"),
        key=lambda path: path.read_bytes().count(b"x"),
    )
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


def test_files_of_unreadable_formats_are_named(node):
    """Cassandra 5 files are in a table's directory: the node logs that, and serves the rest."""
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
    assert (
        "format that this release cannot read" in log
        and "oa-7-big-Data.db" in log
        and "da-8-bti-Data.db" in log
    ), log
    cluster, session = connect(node.address)
    assert (
        session.execute(f"SELECT v FROM {db.keyspace}.{table.split('.')[-1]} WHERE pk = 1").one().v
        == 2
    )
    cluster.shutdown()
    assert (directory / "oa-7-big-Data.db").read_bytes() == b"not ours", "and leaves them alone"


def test_a_change_that_the_disk_refuses_is_not_acknowledged_and_comes_later(node):
    """A file has the name of a directory: CREATE TABLE fails with the reason, and so do later
    changes. None is lost once the file is removed."""
    node.start()
    cluster, session = connect(node.address)
    session.execute(KEYSPACE)
    session.execute(KEYSPACE.replace("KEYSPACE k", "KEYSPACE other"))
    session.execute("CREATE TABLE other.t (pk int PRIMARY KEY, v int)")
    obstacle = node.data_dir / "data/k"
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.write_text("not a directory")
    with pytest.raises(
        Exception, match="cannot apply a( committed)? change of the metadata.*data/k/t-"
    ):
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v int)")
    with pytest.raises(
        Exception, match="cannot apply a( committed)? change of the metadata.*nothing was changed"
    ):
        session.execute("CREATE TABLE other.u (pk int PRIMARY KEY, v int)")
    assert node.metric("scylla_metadata_change_stuck") == 1
    session.execute("INSERT INTO other.t (pk, v) VALUES (1, 1)")
    assert (
        session.execute("SELECT v FROM other.t WHERE pk = 1").one().v == 1
    ), "the existing rows are served"
    assert not list(
        session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'k'")
    )
    obstacle.unlink()
    end = time.monotonic() + 30
    while not list(
        session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'k'")
    ):
        assert time.monotonic() < end, "it is carried out at last"
        time.sleep(0.1)
    session.execute("CREATE TABLE k.v (pk int PRIMARY KEY, v int)")
    for table in ("t", "v"):
        session.execute(f"INSERT INTO k.{table} (pk, v) VALUES (1, 1)")
    assert node.metric("scylla_metadata_change_stuck") == 0
    cluster.shutdown()
    node.restart(kill=True)
    cluster, session = connect(node.address)
    for table in ("k.t", "k.v", "other.t"):
        assert session.execute(f"SELECT v FROM {table} WHERE pk = 1").one().v == 1
    # The same with a stop and a start while the change waits.
    session.execute(KEYSPACE.replace("KEYSPACE k", "KEYSPACE late"))
    obstacle = node.data_dir / "data/late"
    obstacle.write_text("not a directory")
    with pytest.raises(Exception, match="cannot apply a( committed)? change of the metadata"):
        session.execute("CREATE TABLE late.t (pk int PRIMARY KEY, v int)")
    cluster.shutdown()
    assert node.stop() in (0, None), "a stop does not wait for the disk"
    with pytest.raises(StartFailed, match="data/late/t-"):
        node.start()
    obstacle.unlink()
    node.start()
    cluster, session = connect(node.address)
    session.execute("INSERT INTO late.t (pk, v) VALUES (1, 1)")
    assert session.execute("SELECT v FROM late.t WHERE pk = 1").one().v == 1
    cluster.shutdown()


def test_a_stop_that_could_not_flush_says_so(node):
    """The commitlog has the data of a failed flush: the stop reports that, exits with another
    status than 0, and the start replays it."""
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
    assert node.stop() == 3, "all writes are on disk"
    said = (
        f"the memtables of {keyspace}.{table} could not be flushed; their writes are in the"
        " commitlog and are replayed at the next start"
    )
    assert said in node.log_tail(40)
    directory.unlink()
    aside.rename(directory)
    node.start()
    db = Database(node.address)
    assert db.one(f"SELECT count(*) FROM {keyspace}.{table}") == 50
    # The cause of a failed flush is gone when the node stops.
    for pk in range(50):
        db.execute(f"INSERT INTO {keyspace}.{table} (pk, v) VALUES ({pk}, 'y')")
    directory.rename(aside)
    directory.write_text("not a directory")
    status, _ = node.admin("POST", f"/storage_service/keyspace_flush/{keyspace}")
    assert status >= 400
    directory.unlink()
    aside.rename(directory)
    db.cluster.shutdown()
    assert node.stop() == 0


def the_run(node, shard):
    """The directory of the newest commitlog run of a shard."""
    return max((node.data_dir / f"commitlog/{shard}").glob("run-*"))


def test_a_stop_that_cannot_write_the_last_manifest_loses_nothing_and_says_so(node):
    """All writes are on disk: exit status 3, and the next start replays the log."""
    node.start()
    db = Database(node.address)
    table = f"{db.keyspace}.{db.table('pk int PRIMARY KEY, v text')}"
    for pk in range(50):
        db.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, 'x')")
    db.cluster.shutdown()
    obstacle = the_run(node, 0) / "manifest.tmp"
    obstacle.mkdir()
    assert node.stop() == 3
    said = node.log_tail(40)
    assert "the commitlog could not be closed" in said and "all writes are on disk" in said, said
    assert "may not be on disk" not in said, said
    obstacle.rmdir()
    node.start()
    db = Database(node.address)
    assert db.one(f"SELECT count(*) FROM {table}") == 50
    db.cluster.shutdown()
    assert node.stop() == 0


def test_a_failed_commitlog_stops_the_node_in_order():
    """A shard cannot create another segment: the node flushes that shard, closes the other shard's
    log, and exits with status 1. No data is lost, even if the failed log is."""
    node = Node(
        shards=2, config={"commitlog_segment_size_in_mb": 1, "commitlog_total_space_in_mb": 64}
    )
    try:
        node.start()
        db = Database(node.address)
        table = f"{db.keyspace}.{db.table('pk int PRIMARY KEY, v blob')}"
        run = the_run(node, 0)
        other = the_run(node, 1)
        run.rename(node.data_dir / "failed")
        acknowledged, value = set(), "0x" + "ab" * 20_000
        end = time.monotonic() + 60
        while node.alive():
            assert time.monotonic() < end, "the node ends"
            pk = len(acknowledged)
            try:
                db.session.execute(f"INSERT INTO {table} (pk, v) VALUES ({pk}, {value})", timeout=5)
                acknowledged.add(pk)
            except Exception:
                time.sleep(0.05)
        db.cluster.shutdown()
        said = node.log_tail(40)
        assert node.process.returncode == 1, said
        assert "the node has failed: stopping" in said and "all writes are on disk" in said, said
        assert (
            '"closed": true' in (other / "manifest").read_text()
        ), "the log of the other shard was closed"
        shutil.rmtree(node.data_dir / "failed")
        node.extra = ["--accept-loss"]
        node.start()
        db = Database(node.address)
        there = {row.pk for row in db.session.execute(f"SELECT pk FROM {table}")}
        assert acknowledged <= there, "acknowledged writes were flushed"
        db.cluster.shutdown()
    finally:
        node.close()


def test_a_metadata_log_that_is_removed_while_the_node_runs_is_noticed(node):
    """No write is acknowledged that would be lost with the process, and no stop reports success."""
    node.start()
    cluster, session = connect(node.address)
    try:
        shutil.rmtree(node.data_dir / "raft")
        with pytest.raises((NoHostAvailable, OperationTimedOut, DriverException, ServerError)):
            session.execute(
                "CREATE KEYSPACE gone WITH replication = {'class': 'NetworkTopologyStrategy',"
                " 'replication_factor': 1}"
            )
    finally:
        cluster.shutdown()
    node.process.wait(60)
    assert node.process.returncode == 1
    assert "was removed while the node ran" in node.log_tail(10)


def test_a_stop_without_the_metadata_log_says_so(node):
    node.start()
    shutil.rmtree(node.data_dir / "raft")
    assert node.stop() == 1
    assert "was removed while the node ran" in node.log_tail(10)


@pytest.mark.parametrize("name", ["messina.stamp", "messina.raft-end"])
def test_a_fifo_in_the_place_of_a_file_is_refused_at_once(node, name):
    node.start()
    node.stop()
    path = node.data_dir / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StartFailed, match="not a regular file, but a FIFO") as failed:
        node.start(timeout=20)
    assert name in str(failed.value)


def test_a_file_without_access_makes_one_table_unreadable(node):
    """A directory in the place of a component simulates a file that the system refuses to open:
    root may read all files."""
    node.start()
    cluster, session = connect(node.address)
    session.execute(
        "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'replication_factor': 1}"
    )
    for table in ("bad", "good"):
        session.execute(f"CREATE TABLE k.{table} (k int PRIMARY KEY)")
        session.execute(f"INSERT INTO k.{table} (k) VALUES (1)")
    node.flush("k")
    cluster.shutdown()
    node.stop()
    path = next(table_dir(node, "k", "bad").glob("*-Filter.db"))
    path.unlink()
    path.mkdir()
    node.start()
    cluster, session = connect(node.address)
    try:
        assert len(list(session.execute("SELECT * FROM k.good"))) == 1
        with pytest.raises(ReadFailure, match=path.name):
            session.execute("SELECT * FROM k.bad")
        assert '"unreadable_sstables":true' in node.admin("GET", "/cluster/nodes")[1]
    finally:
        cluster.shutdown()


def test_a_limit_on_the_size_of_files_is_an_error_that_is_told():
    node = Node(shards=1, prefix=["prlimit", "--fsize=1000000"])
    try:
        with pytest.raises(StartFailed):
            node.start(timeout=20)
        assert node.process.wait(10) == 1, node.log_tail()
        assert "File too large" in node.log_tail(), node.log_tail()
    finally:
        node.close()
