"""What an application does with a Python driver in protocol version 5. Run by test_drivers_v5.py
with the Python of each driver.

    PYTHONPATH=tests .venv/scylla/bin/python tests/protocol/driver_v5.py \\
        HOST lz4|plain [PORT CERTIFICATE]     with PORT over TLS

Prints `passed: driver N` at the end.
"""

import logging
import ssl
import sys
import threading
import time

import cassandra
from cassandra import AlreadyExists, ConsistencyLevel, InvalidRequest, ProtocolVersion
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.protocol import SyntaxException
from cassandra.query import BatchStatement, SimpleStatement, UNSET_VALUE
from database import connect

KEYSPACE = "driver_v5"
ROWS = 1000
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


class Complaints(logging.Handler):
    """Fails on errors that the driver logs. Otherwise it silently repairs broken connections."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def values_and_pages(session):
    session.execute(
        "CREATE TABLE t (pk int, ck int, v text, b blob, m map<text, frozen<list<int>>>, PRIMARY"
        " KEY (pk, ck))"
    )
    insert = session.prepare("INSERT INTO t (pk, ck, v, b, m) VALUES (?, ?, ?, ?, ?)")
    execute_concurrent_with_args(
        session,
        insert,
        [(n % 7, n, f"v{n}", bytes([n % 256]) * (n % 50), {"k": [n]}) for n in range(ROWS)],
        concurrency=200,
    )
    select = session.prepare("SELECT * FROM t WHERE pk = ? AND ck = ?")
    answers = execute_concurrent_with_args(
        session, select, [(n % 7, n) for n in range(ROWS)], concurrency=200
    )
    for n, (fine, rows) in enumerate(answers):
        assert fine, rows
        row = rows.one()
        assert (row.ck, row.v, row.b, list(row.m["k"])) == (
            n,
            f"v{n}",
            bytes([n % 256]) * (n % 50),
            [n],
        )
    for size in (10, 1000, 5000):
        rows = list(session.execute(SimpleStatement("SELECT ck FROM t", fetch_size=size)))
        assert len(rows) == ROWS, f"{len(rows)} rows at {size} a page"
    session.execute(insert, (100, 1, UNSET_VALUE, None, UNSET_VALUE))
    assert tuple(session.execute("SELECT v, b, m FROM t WHERE pk = 100").one()) == (
        None,
        None,
        None,
    )


def long_frames(session):
    insert = session.prepare("INSERT INTO t (pk, ck, b) VALUES (200, ?, ?)")
    for size in (8_191, 131_000, 131_071, 200_000, 900_000):
        data = bytes(n * 131 % 251 for n in range(size))
        session.execute(insert, (size, data))
        assert (
            session.execute("SELECT b FROM t WHERE pk = 200 AND ck = %s", (size,)).one().b == data
        )
    rows = list(session.execute(SimpleStatement("SELECT b FROM t WHERE pk = 200", fetch_size=100)))
    assert sum(len(row.b) for row in rows) == 8_191 + 131_000 + 131_071 + 200_000 + 900_000


def metadata_that_changes(session):
    session.execute("CREATE TABLE changing (pk int PRIMARY KEY, a int)")
    session.execute("INSERT INTO changing (pk, a) VALUES (1, 2)")
    select = session.prepare("SELECT * FROM changing WHERE pk = 1")
    assert session.execute(select).one()._fields == ("pk", "a")
    session.execute("ALTER TABLE changing ADD aa text")
    session.execute("UPDATE changing SET aa = 'x' WHERE pk = 1")
    for _ in range(3):
        row = session.execute(select).one()
        assert (row._fields, tuple(row)) == (("pk", "a", "aa"), (1, 2, "x")), row
    session.execute("ALTER TABLE changing DROP a")
    for _ in range(3):
        assert tuple(session.execute(select).one()) == (1, "x")


def keyspace_of_a_statement(session):
    session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}_other")
    session.execute(f"CREATE KEYSPACE {KEYSPACE}_other WITH replication = {REPLICATION}")
    session.execute(f"CREATE TABLE {KEYSPACE}_other.only_here (pk int PRIMARY KEY)")
    session.execute(
        SimpleStatement("INSERT INTO only_here (pk) VALUES (5)", keyspace=f"{KEYSPACE}_other")
    )
    assert (
        session.execute(SimpleStatement("SELECT pk FROM only_here", keyspace=f"{KEYSPACE}_other"))
        .one()
        .pk
        == 5
    )
    prepared = session.prepare(
        "SELECT pk FROM only_here WHERE pk = ?", keyspace=f"{KEYSPACE}_other"
    )
    assert session.execute(prepared, (5,)).one().pk == 5
    try:
        session.execute("SELECT pk FROM only_here")
    except InvalidRequest as error:
        assert "unconfigured table" in str(error)
    else:
        raise AssertionError("the session's keyspace is another")
    session.execute(f"DROP KEYSPACE {KEYSPACE}_other")


def batches_errors_and_traces(session):
    batch = BatchStatement(consistency_level=ConsistencyLevel.ONE)
    insert = session.prepare("INSERT INTO t (pk, ck, v) VALUES (300, ?, 'b')")
    for n in range(20):
        batch.add(insert, (n,))
    batch.add("INSERT INTO t (pk, ck) VALUES (300, 100)")
    session.execute(batch)
    assert len(list(session.execute("SELECT ck FROM t WHERE pk = 300"))) == 21
    for statement, kind in (
        ("SELEKT", SyntaxException),
        ("SELECT * FROM no_table", InvalidRequest),
        ("CREATE TABLE t (pk int PRIMARY KEY)", AlreadyExists),
    ):
        try:
            session.execute(statement)
        except kind:
            pass
        else:
            raise AssertionError(f"{statement} succeeded")
    trace = session.execute("SELECT ck FROM t WHERE pk = 300", trace=True).get_query_trace(20)
    assert trace.events and trace.request_type


def events(session, connect_again):
    cluster, other = connect_again()
    try:
        session.execute("CREATE TABLE announced (pk int PRIMARY KEY)")
        end = time.monotonic() + 20
        while "announced" not in cluster.metadata.keyspaces[KEYSPACE].tables:
            assert time.monotonic() < end, "the other client heard nothing of the new table"
            time.sleep(0.05)
    finally:
        cluster.shutdown()


def restarts(session):
    """A statement that was prepared on a closed connection can be executed on the next one."""
    select = session.prepare("SELECT v FROM t WHERE pk = 1 AND ck = 1")
    done = threading.Event()
    for pool in session.get_pools():
        for connection in list(getattr(pool, "_connections", {}).values()) or [
            getattr(pool, "_connection", None)
        ]:
            if connection is not None:
                connection.close()
    end = time.monotonic() + 30
    while not done.is_set():
        try:
            assert session.execute(select).one().v == "v1"
            done.set()
        except AssertionError:
            raise
        except Exception:
            assert time.monotonic() < end, "the driver did not come back"
            time.sleep(0.1)


def main():
    host = sys.argv[1]
    options = {}
    compression = sys.argv[2] == "lz4"
    if len(sys.argv) > 3:
        context = ssl.create_default_context(cafile=sys.argv[4])
        context.check_hostname = False
        options = {"port": int(sys.argv[3]), "ssl_context": context}
    complaints = Complaints()
    logging.getLogger("cassandra").addHandler(complaints)

    def connect_again():
        return connect(host, protocol_version=5, compression=compression, **options)

    cluster, session = connect_again()
    assert cluster.protocol_version == ProtocolVersion.V5
    session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
    session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {REPLICATION}")
    session.set_keyspace(KEYSPACE)
    chosen = [
        row.client_options.get("COMPRESSION")
        for row in session.execute("SELECT driver_name, client_options FROM system.clients")
        if row.driver_name
    ]
    assert chosen and set(chosen) == {"lz4" if compression else None}, chosen
    values_and_pages(session)
    long_frames(session)
    metadata_that_changes(session)
    keyspace_of_a_statement(session)
    batches_errors_and_traces(session)
    events(session, connect_again)
    assert not complaints.lines, complaints.lines
    restarts(session)
    complaints.lines.clear()
    session.execute(f"DROP KEYSPACE {KEYSPACE}")
    cluster.shutdown()
    # By default, the driver negotiates version 5.
    cluster = Cluster([host], **options)
    session = cluster.connect()
    assert cluster.protocol_version == ProtocolVersion.V5, cluster.protocol_version
    rows = [
        row
        for row in session.execute(
            "SELECT driver_name, protocol_version, ssl_enabled FROM system.clients"
        )
        if row.driver_name
    ]
    assert (
        all(row.protocol_version == 5 and row.ssl_enabled == bool(options) for row in rows) and rows
    ), rows
    cluster.shutdown()
    print(f"passed: driver {cassandra.__version__}")


if __name__ == "__main__":
    main()
