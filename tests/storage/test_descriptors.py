"""Too few file descriptors: tables and clients are served, and the node reports what it lacks."""

import os
import resource
import socket
import time

import pytest
from database import connect
from launch import Node, StartFailed
from table_files import KEYSPACE

pytestmark = pytest.mark.node

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
                assert (
                    session.execute(f"SELECT v FROM k.t WHERE pk = {pk} BYPASS CACHE").one().v
                    == f"v{pk}"
                )
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
        assert (
            session.execute("SELECT v FROM k.t WHERE pk = 15").one().v == "v"
        ), "rows in memory can be read"
        for connection in connections:
            connection.close()
        end = time.monotonic() + 30
        while True:
            status, answer = node.admin("POST", "/storage_service/keyspace_flush/k")
            if status == 200:
                break
            assert "open files" in answer, answer
            assert time.monotonic() < end, "flushes resume when there are descriptors"
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
        assert (
            len(refusals) == 1 and "reached its limit of" in refusals.pop()
        ), "clients get the reason of the refusal"
        assert (
            1 <= node.log_path.read_text().count("too many client connections") <= 20
        ), "a log line now and then"
        cluster.shutdown()
        for s in sockets:
            s.close()
        node.restart(kill=True)
        cluster, session = connect(node.address)
        for n in range(4):
            assert (
                len(list(session.execute(f"SELECT pk, v FROM k.t{n}"))) == 20
            ), f"t{n} was acknowledged"
        assert session.execute("SELECT w FROM k.t0 WHERE pk = 1").one().w is None
        cluster.shutdown()
    finally:
        for s in sockets:
            s.close()
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


def test_a_start_with_too_few_descriptors_says_so():
    for limit in range(8, 32, 3):
        node = Node(shards=1, prefix=["prlimit", f"--nofile={limit}:{limit}"])
        try:
            node.start(timeout=20)
        except StartFailed:
            assert node.process.wait(10) == 1, f"nofile={limit}: {node.log_tail()}"
        assert "panicked" not in node.log_tail(100), f"nofile={limit}: {node.log_tail()}"
        node.close()


def test_a_stop_has_its_time_limit_without_descriptors(node):
    node.config["shutdown_timeout_in_ms"] = 3000
    node.start()
    used = len(os.listdir(f"/proc/{node.pid}/fd"))
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (used, used))
    node.stop(timeout=30)
    assert "no time limit" not in node.log_tail(50)
