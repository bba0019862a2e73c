"""A real disk and kernel that refuse operations: what the node reports, that it keeps serving if it
can, and that no data is lost."""

import os
import resource
import shutil
import socket
import subprocess
import time
import zlib

import pytest
from cassandra import DriverException, OperationTimedOut, ReadFailure, WriteFailure, WriteTimeout
from cassandra.cluster import NoHostAvailable
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.protocol import OverloadedErrorMessage, ServerError
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
    """Far more sstables than the process may have open files: all are served, also after a restart,
    and flushes work."""
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
    """A client opens connections until no descriptor is left: failures name the cause, the node
    stays up, and recovers when the connections are closed."""
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
        assert session.execute("SELECT v FROM k.t WHERE pk = 15").one().v == "v", "rows in memory can be read"
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
    assert "format that this release cannot read" in log and "oa-7-big-Data.db" in log and "da-8-bti-Data.db" in log, log
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


def fill(small_disk, leave=0):
    """Fills the small disk, except for `leave` bytes. Returns the file to remove."""
    ballast = small_disk / "ballast"
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - leave)
    return ballast


FULL = {"commitlog_segment_size_in_mb": 4, "commitlog_total_space_in_mb": 32}


def test_a_full_disk_with_many_writers_gives_errors_that_say_so(small_disk):
    """The commitlog reaches its limit, and no flush succeeds: each write is refused at once, and
    none times out."""
    node = Node(shards=1, data_dir=small_disk / "data", config=FULL)
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        fill(small_disk, leave=36 << 20)
        refused = []
        for first in range(0, 4096, 64):
            rows = [(first + i, os.urandom(50_000)) for i in range(64)]
            results = execute_concurrent_with_args(session, insert, rows, concurrency=64, raise_on_first_error=False)
            refused += [result for ok, result in results if not ok]
            if len(refused) > 256:
                break
        assert refused, "the disk is full"
        others = [error for error in refused if not (isinstance(error, WriteFailure) and "no space left" in str(error))]
        assert not others, others[:3]
        cluster.shutdown()
    finally:
        node.close()
        shutil.rmtree(small_disk / "data", ignore_errors=True)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("rows", [20, 300], ids=["little to flush", "more to flush than there is space"])
def test_a_start_on_a_full_disk_serves_reads(small_disk, end, rows):
    """The disk space that the node has reserved is enough to start and serve. Data that cannot be
    flushed stays in the old commitlog."""
    node = Node(shards=1, data_dir=small_disk / "data", config=FULL)
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        execute_concurrent_with_args(session, insert, [(pk, os.urandom(50_000)) for pk in range(rows)], concurrency=16)
        cluster.shutdown()
        ballast = fill(small_disk)
        node.kill() if end == "kill" else node.stop()
        if shutil.disk_usage(small_disk).free:
            with open(ballast, "ab") as file:
                os.posix_fallocate(file.fileno(), file.tell(), shutil.disk_usage(small_disk).free)
        for _ in range(2):
            node.start()
            cluster, session = connect(node.address)
            assert session.execute("SELECT count(*) FROM k.t").one()[0] == rows
            cluster.shutdown()
            node.kill()
        ballast.unlink()
        node.start()
        cluster, session = connect(node.address)
        session.execute(session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)"), (rows, b"again"))
        assert session.execute("SELECT count(*) FROM k.t").one()[0] == rows + 1
        cluster.shutdown()
    finally:
        node.close()
        shutil.rmtree(small_disk / "data", ignore_errors=True)


def test_a_full_disk(small_disk):
    """Writes are refused and reads work. When there is space again, writes work without an
    intervention."""
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


def idle_connections(address, count):
    """Connected sockets that send nothing, and the answers of refused ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 512)), hard))
    sockets = []
    for _ in range(count):
        sockets.append(socket.create_connection((address, 9042), timeout=10))
    return sockets


def refusals_of(sockets):
    refusals = set()
    for s in sockets:
        s.setblocking(False)
        try:
            if answer := s.recv(4096):
                refusals.add(answer[15:].decode())
        except BlockingIOError:
            pass
    return refusals


def test_idle_connections_leave_descriptors_for_tables():
    """1,500 idle connections with nofile=1024: tables can be created, written and flushed, and
    survive a restart."""
    node = Node(shards=2, prefix=["prlimit", "--nofile=1024:1024"])
    sockets = []
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        sockets = idle_connections(node.address, 1500)
        for n in range(5):
            session.execute(f"CREATE TABLE k.t{n} (pk int PRIMARY KEY, v text)")
            for pk in range(20):
                session.execute(f"INSERT INTO k.t{n} (pk, v) VALUES ({pk}, 'v{pk}')")
        status, answer = node.admin("POST", "/storage_service/keyspace_flush/k")
        assert status == 200, answer
        session.execute("ALTER TABLE k.t0 ADD w int")
        session.execute("DROP TABLE k.t4")
        refusals = refusals_of(sockets)
        assert len(refusals) == 1 and "no more than" in refusals.pop(), "clients are told why they are refused"
        assert 1 <= node.log_path.read_text().count("too many client connections") <= 20, "a log line now and then"
        cluster.shutdown()
        for s in sockets:
            s.close()
        node.restart(kill=True)
        cluster, session = connect(node.address)
        for n in range(4):
            assert len(list(session.execute(f"SELECT pk, v FROM k.t{n}"))) == 20, f"t{n} was acknowledged"
        assert session.execute("SELECT w FROM k.t0 WHERE pk = 1").one().w is None
        cluster.shutdown()
    finally:
        for s in sockets:
            s.close()
        node.close()


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
    with pytest.raises(Exception, match="cannot apply a( committed)? change of the metadata.*data/k/t-"):
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v int)")
    with pytest.raises(Exception, match="cannot apply a( committed)? change of the metadata.*nothing was changed"):
        session.execute("CREATE TABLE other.u (pk int PRIMARY KEY, v int)")
    assert node.metric("scylla_metadata_change_stuck") == 1
    session.execute("INSERT INTO other.t (pk, v) VALUES (1, 1)")
    assert session.execute("SELECT v FROM other.t WHERE pk = 1").one().v == 1, "the existing rows are served"
    assert not list(session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'k'"))
    obstacle.unlink()
    end = time.monotonic() + 30
    while not list(session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'k'")):
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
    said = f"the memtables of {keyspace}.{table} could not be flushed; their writes are in the commitlog and are replayed at the next start"
    assert said in node.log_tail(40)
    directory.unlink()
    aside.rename(directory)
    node.start()
    db = Database(node.address)
    assert db.one(f"SELECT count(*) FROM {keyspace}.{table}") == 50
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
    node = Node(shards=2, config={"commitlog_segment_size_in_mb": 1, "commitlog_total_space_in_mb": 64})
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
        assert '"closed": true' in (other / "manifest").read_text(), "the log of the other shard was closed"
        shutil.rmtree(node.data_dir / "failed")
        node.extra = ["--accept-loss"]
        node.start()
        db = Database(node.address)
        there = {row.pk for row in db.session.execute(f"SELECT pk FROM {table}")}
        assert acknowledged <= there, "acknowledged writes were flushed"
        db.cluster.shutdown()
    finally:
        node.close()


def test_silent_connections_do_not_lock_out_clients():
    """Idle connections use all connection slots, and more arrive: a client is served, and its
    connections stay open."""
    node = Node(shards=2, prefix=["prlimit", "--nofile=1024:1024"])
    sockets = []
    try:
        node.start()
        early, first = connect(node.address)
        first.execute(KEYSPACE)
        sockets = idle_connections(node.address, 600)
        time.sleep(1.2)  # Longer than the grace for STARTUP.
        late, second = connect(node.address)
        sockets += idle_connections(node.address, 200)
        second.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v int)")
        for session in (first, second):
            session.execute("INSERT INTO k.t (pk, v) VALUES (1, 1)")
        evicted = node.metric("scylla_transport_connections_evicted_silent")
        assert evicted >= 1, evicted
        lines = node.log_path.read_text().count("closed connections without STARTUP")
        assert 1 <= lines <= 4, "a line a minute for each port"
        early.shutdown()
        late.shutdown()
    finally:
        for s in sockets:
            s.close()
        node.close()


def test_a_metadata_log_that_is_removed_while_the_node_runs_is_noticed(node):
    """No write is acknowledged that would be lost with the process, and no stop reports success."""
    node.start()
    cluster, session = connect(node.address)
    try:
        shutil.rmtree(node.data_dir / "raft")
        with pytest.raises((NoHostAvailable, OperationTimedOut, DriverException, ServerError)):
            session.execute("CREATE KEYSPACE gone WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
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
    session.execute("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
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
    finally:
        cluster.shutdown()


def test_a_start_with_too_few_descriptors_says_so():
    for limit in range(8, 32, 3):
        node = Node(shards=1, prefix=["prlimit", f"--nofile={limit}:{limit}"])
        try:
            node.start(timeout=20)
        except StartFailed:
            assert node.process.wait(10) == 1, f"nofile={limit}: {node.log_tail()}"
        assert "panicked" not in node.log_tail(100), f"nofile={limit}: {node.log_tail()}"
        node.close()


def test_a_limit_on_the_size_of_files_is_an_error_that_is_told():
    node = Node(shards=1, prefix=["prlimit", "--fsize=1000000"])
    try:
        with pytest.raises(StartFailed):
            node.start(timeout=20)
        assert node.process.wait(10) == 1, node.log_tail()
        assert "File too large" in node.log_tail(), node.log_tail()
    finally:
        node.close()


def test_a_stop_has_its_time_limit_without_descriptors(node):
    node.config["shutdown_timeout_in_ms"] = 3000
    node.start()
    used = len(os.listdir(f"/proc/{node.pid}/fd"))
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (used, used))
    node.stop(timeout=30)
    assert "no time limit" not in node.log_tail(50)
