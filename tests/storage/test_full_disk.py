"""A full disk: writes are refused with the reason, reads are served, and no acknowledged write is
lost."""

import json
import os
import shutil
import subprocess
import time

import pytest
from cassandra import OperationTimedOut, WriteFailure, WriteTimeout
from cassandra.cluster import NoHostAvailable
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.protocol import OverloadedErrorMessage
from cluster.trio import eventually
from database import connect
from launch import Node

pytestmark = pytest.mark.node

REFUSALS = (WriteFailure, WriteTimeout, OverloadedErrorMessage, NoHostAvailable, OperationTimedOut)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 96 MiB of its own."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "messina-test", str(path)],
        capture_output=True,
        text=True,
    )
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
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        fill(small_disk, leave=36 << 20)
        refused = []
        for first in range(0, 4096, 64):
            rows = [(first + i, os.urandom(50_000)) for i in range(64)]
            results = execute_concurrent_with_args(
                session, insert, rows, concurrency=64, raise_on_first_error=False
            )
            refused += [result for ok, result in results if not ok]
            if len(refused) > 256:
                break
        assert refused, "the disk is full"
        others = [
            error
            for error in refused
            if not (isinstance(error, WriteFailure) and "no space left" in str(error))
        ]
        assert not others, others[:3]
        alerts = [node.metric("scylla_commitlog_out_of_space"),
                  node.metric("scylla_memtables_failed_flushes")]
        assert any(alerts), "an alert shows it"
        cluster.shutdown()
    finally:
        node.close()
        shutil.rmtree(small_disk / "data", ignore_errors=True)


def refuses_writes(node):
    """Whether `messina admin status` shows a full disk."""
    status, body = node.admin("GET", "/cluster/nodes")
    assert status == 200, body
    (own,) = json.loads(body)
    return own["refuses_writes"]


def test_a_disk_without_space_for_a_segment_is_an_alert_until_there_is_space(small_disk):
    node = Node(shards=1, data_dir=small_disk / "data", config=FULL)
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        assert node.metric("scylla_commitlog_out_of_space") == 0
        ballast = fill(small_disk)
        with pytest.raises(WriteFailure, match="no space left"):
            for pk in range(1000):
                session.execute(insert, (pk, os.urandom(50_000)))
        assert node.metric("scylla_commitlog_out_of_space") == 1
        assert "this shard refuses writes until there is" in node.log_tail(50)
        assert refuses_writes(node)
        os.unlink(ballast)
        eventually(lambda: node.metric("scylla_commitlog_out_of_space") == 0)
        session.execute(insert, (0, b"accepted"))
        assert "the commitlog has space again: writes are accepted" in node.log_tail(50)
        assert not refuses_writes(node)
        cluster.shutdown()
    finally:
        node.close()
        shutil.rmtree(small_disk / "data", ignore_errors=True)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("rows", [20, 300], ids=["little to flush",
    "more to flush than there is space"])
def test_a_start_on_a_full_disk_serves_reads(small_disk, end, rows):
    """The disk space that the node has reserved is enough to start and serve, also with another
    number of shards. Data that cannot be flushed stays in the old commitlog."""
    node = Node(shards=1, data_dir=small_disk / "data", config=FULL)
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        execute_concurrent_with_args(
            session, insert, [(pk, os.urandom(50_000)) for pk in range(rows)], concurrency=16
        )
        cluster.shutdown()
        ballast = fill(small_disk)
        node.kill() if end == "kill" else node.stop()
        if shutil.disk_usage(small_disk).free:
            with open(ballast, "ab") as file:
                os.posix_fallocate(file.fileno(), file.tell(), shutil.disk_usage(small_disk).free)
        for shards in (2, 1):
            node.shards = shards
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
    node = Node(
        shards=1,
        data_dir=small_disk / "data",
        config={"commitlog_segment_size_in_mb": 4, "commitlog_total_space_in_mb": 32},
    )
    ballast = small_disk / "ballast"
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
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
        read = session.execute("SELECT v FROM k.t WHERE pk = 0")
        assert read.one().v == b"first", "reads continue"
        assert len(list(session.execute("SELECT pk FROM k.t"))) >= len(acknowledged)
        ballast.unlink()
        end = time.monotonic() + 60
        while True:
            try:
                session.execute(insert, (5000, b"again"), timeout=60)
                break
            except REFUSALS:
                assert time.monotonic() < end, "writes resume when there is space"
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
