"""Schema changes that a node cannot apply, and types that can be declared but perhaps not
stored."""

import socket
import subprocess
import time

from cassandra import OperationTimedOut
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ErrorMessage
from cassandra.query import SimpleStatement
from database import connect
from launch import Node
from trio import Trio, eventually

KEYSPACE = (
    "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
    " 'replication_factor': %d}"
)
REFUSED = (ErrorMessage, NoHostAvailable, OperationTimedOut, Exception)
IDLE = 1500  # connections, of a node that may have 1,024 descriptors
LIMIT = ["prlimit", "--nofile=1024:1024"]


def idle(address, count=IDLE):
    connections = []
    for _ in range(count):
        try:
            connections.append(socket.create_connection((address, 9042), timeout=5))
        except OSError:
            break
    return connections


def ddl(session, names):
    """Creates tables; the names of those that were acknowledged, and the errors of the others."""
    acknowledged, errors = [], {}
    for name in names:
        try:
            session.execute(f"CREATE TABLE k.{name} (pk int PRIMARY KEY, v text)", timeout=30)
            acknowledged.append(name)
        except REFUSED as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return acknowledged, errors


def fill(session, names):
    """A row in each table; the names of those whose row was acknowledged."""
    filled = []
    for name in names:
        try:
            session.execute(f"INSERT INTO k.{name} (pk, v) VALUES (1, '{name}')", timeout=30)
            filled.append(name)
        except REFUSED:
            pass
    return filled


def missing(session, filled):
    """Tables whose acknowledged row is not there, and why."""
    gone = {}
    for name in filled:
        try:
            row = session.execute(f"SELECT v FROM k.{name} WHERE pk = 1", timeout=30).one()
            if row is None or row.v != name:
                gone[name] = f"row {row}"
        except Exception as error:
            gone[name] = f"{type(error).__name__}: {error}"
    return gone


def descriptors(place, check):
    """1,500 idle connections with 1,024 descriptors while tables are created: acknowledged changes
    survive a restart."""
    node = Node(shards=2, data_dir=place / "node", prefix=LIMIT)
    connections = []
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE % 1)
        before, _ = ddl(session, [f"before{n}" for n in range(3)])
        filled = fill(session, before)
        connections = idle(node.address)
        during, errors = ddl(session, [f"during{n}" for n in range(8)])
        filled += fill(session, during)
        print(
            f"   during: {len(during)} acknowledged, {len(errors)} refused {set(errors.values())}"
        )
        for connection in connections:
            connection.close()
        time.sleep(1)
        with check(
            "the node serves tables again once descriptors are free, or has ended and said why"
        ):
            if node.alive():
                def again():
                    session.execute(
                        "CREATE TABLE IF NOT EXISTS k.after0 (pk int PRIMARY KEY, v text)"
                    )
                    return True
                eventually(again, 60)
            else:
                assert (
                    "descriptor" in node.log_tail().lower()
                    or "open files" in node.log_tail().lower()
                ), node.log_tail()
                node.start()
                cluster, session = connect(node.address)
                session.execute("CREATE TABLE k.after0 (pk int PRIMARY KEY, v text)")
        after, errors = ddl(session, [f"after{n}" for n in range(1, 4)])
        filled += fill(session, ["after0", *after])
        with check("tables created after the shortage are acknowledged"):
            assert not errors, errors
        with check("acknowledged rows are there"):
            assert not missing(session, filled), missing(session, filled)
        cluster.shutdown()
        node.restart(kill=True)
        cluster, session = connect(node.address)
        with check("acknowledged tables and rows are there after a kill -9"):
            gone = missing(session, filled)
            assert not gone, f"{len(gone)} of {len(filled)}: {gone}"
        cluster.shutdown()
    finally:
        for connection in connections:
            connection.close()
        node.close()


def descriptors_of_one(place, check):
    """One of three nodes runs out of descriptors while tables are created. All nodes have the same
    tables afterwards, also after a restart."""
    with Trio(place) as trio:
        trio.keyspace("k")
        victim = trio.nodes[1]
        trio.sessions[1].execute("SELECT key FROM system.local")
        # The limit is set while the node runs, so its start needs no spare descriptors.
        subprocess.run(["prlimit", f"--pid={victim.pid}", "--nofile=1024:1024"], check=True)
        connections = idle(victim.address)
        here, errors_here = ddl(trio.sessions[1], [f"starved{n}" for n in range(4)])
        there, errors_there = ddl(trio.sessions[0], [f"other{n}" for n in range(4)])
        print(
            f"   through the starved node {len(here)} of 4, through another {len(there)} of 4"
            f" {set(errors_here.values()) | set(errors_there.values())}"
        )
        for connection in connections:
            connection.close()
        acknowledged = here + there
        if not victim.alive():
            print(f"   the starved node ended: {victim.log_tail(2)}")
            # `start` waits for CQL; the thread that starts a node has to live on, which this one
            # does.
            victim.start()
            trio.sessions.forget(1)

        def tables(n):
            return {
                row.table_name
                for row in trio.sessions[n].execute(
                    "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'k'"
                )
            }

        with check("all nodes have the same tables, among them all that were acknowledged"):
            eventually(lambda: tables(0) == tables(1) == tables(2), 60)
            assert set(acknowledged) <= tables(1), set(acknowledged) - tables(1)
        with check("a table can be created through each node afterwards"):
            for n in range(3):
                trio.sessions[n].execute(f"CREATE TABLE k.later{n} (pk int PRIMARY KEY, v text)")
                acknowledged.append(f"later{n}")
            eventually(lambda: tables(0) == tables(1) == tables(2), 30)
        filled = fill(trio.sessions[0], acknowledged)
        for n in range(3):
            trio.kill(n)
        trio.restart_all()
        with check("and after a kill -9 of all"):
            for n in range(3):
                eventually(lambda: trio.sessions[n].execute("SELECT key FROM system.local"), 60)
            eventually(lambda: tables(0) == tables(1) == tables(2) >= set(acknowledged), 60)
            gone = missing(trio.sessions[1], filled)
            assert not gone, gone


def declared(session, statement, errors):
    """Whether a declaration was accepted, within the timeout of a client."""
    began = time.monotonic()
    try:
        session.execute(statement, timeout=60)
        return True
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
        return False
    finally:
        assert (
            time.monotonic() - began < 10
        ), f"a declaration took {time.monotonic() - began:.0f} s: {statement[:100]}"


def storable(node, session, table, check, what):
    """Writes a row to the table, flushes and reads; whether all of it succeeded."""
    before = check.failed
    with check(f"{what}: what is declared can be written, flushed and read"):
        session.execute(f"INSERT INTO k.{table} (pk, other) VALUES (1, 'one')")
        status, body = node.admin("POST", "/storage_service/keyspace_flush/k")
        assert status == 200, f"flush: {status} {body}"
        assert session.execute(f"SELECT other FROM k.{table} WHERE pk = 1").one().other == "one"
    return check.failed == before


def deep_types(place, check):
    """User-defined types with increasing nesting, also in collections and tuples: accepted types
    can be stored."""
    for shape, use in (
        ("nested", "frozen<{}>"),
        ("in lists", "frozen<list<frozen<{}>>>"),
        ("in tuples", "frozen<tuple<int, frozen<{}>>>"),
    ):
        node = Node(shards=1, data_dir=place / shape.replace(" ", "-"))
        try:
            node.start()
            # The driver would parse the types of each table, which is not under test here.
            cluster, session = connect(node.address, schema_metadata_enabled=False)
            session.execute(KEYSPACE % 1)
            session.execute("CREATE TYPE k.t0 (a int)")
            depth, errors = 0, []
            while depth < 300 and declared(
                session, f"CREATE TYPE k.t{depth + 1} (a {use.format(f't{depth}')})", errors
            ):
                depth += 1
            print(f"   {shape}: {depth} deep accepted, then {errors[-1:]}")
            with check(f"{shape}: the refusal is the statement's"):
                assert depth < 300 and "InvalidRequest" in errors[-1], errors
            while depth > 0 and not declared(
                session,
                f"CREATE TABLE k.t (pk int PRIMARY KEY, v frozen<t{depth}>, other text)",
                errors,
            ):
                depth -= 1
            declared(session, "CREATE TYPE k.top (a int)", errors)
            if declared(session, f"ALTER TYPE k.top ADD b frozen<t{depth}>", errors):
                declared(
                    session,
                    "CREATE TABLE k.t2 (pk int PRIMARY KEY, v frozen<top>, other text)",
                    errors,
                )
            tables = [
                row.table_name
                for row in session.execute(
                    "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'k'"
                )
            ]
            stored = all(
                [storable(node, session, table, check, f"{shape}, {table}") for table in tables]
            )
            with check(f"{shape}: the node stops with status 0 exactly if it could write all"):
                cluster.shutdown()
                code = node.stop()
                assert (code == 0) == stored, f"status {code}"
            with check(f"{shape}: the node starts again and has the rows"):
                node.start()
                cluster, session = connect(node.address, schema_metadata_enabled=False)
                for table in tables:
                    assert (
                        session.execute(f"SELECT other FROM k.{table} WHERE pk = 1").one().other
                        == "one"
                    ), table
                cluster.shutdown()
        finally:
            node.close()


def wide_types(place, check):
    """Types of four fields of the type before, 15 times: their expansion has 4^15 fields. The node
    still answers."""
    node = Node(shards=1, data_dir=place / "node")
    try:
        node.start()
        cluster, session = connect(node.address, schema_metadata_enabled=False)
        session.execute(KEYSPACE % 1)
        session.execute("CREATE TYPE k.w0 (a int, b int, c int, d int)")
        level, errors = 0, []
        with check("declarations are answered within 10 s"):
            while level < 15 and declared(
                session,
                f"CREATE TYPE k.w{level + 1}"
                f" ({', '.join(f'{f} frozen<w{level}>' for f in 'abcd')})",
                errors,
            ):
                level += 1
        print(f"   {level} of 15 levels accepted, then {errors[-1:]}")
        with check("other statements are answered within 2 s"):
            began = time.monotonic()
            session.execute("SELECT key FROM system.local", timeout=30)
            assert time.monotonic() - began < 2, f"{time.monotonic() - began:.1f} s"
        with check("a table of the widest type that is accepted can be stored"):
            while level > 0 and not declared(
                session,
                f"CREATE TABLE k.t (pk int PRIMARY KEY, v frozen<w{level}>, other text)",
                errors,
            ):
                level -= 1
            storable(node, session, "t", check, f"{level} levels")
        with check("the node starts again within 10 s and has the row"):
            cluster.shutdown()
            node.kill()
            node.start(timeout=10)
            cluster, session = connect(node.address, schema_metadata_enabled=False)
            assert (
                session.execute(SimpleStatement("SELECT other FROM k.t WHERE pk = 1")).one().other
                == "one"
            )
            cluster.shutdown()
    finally:
        node.close()


ATTACKS = {
    "descriptors": descriptors,
    "descriptors-of-one": descriptors_of_one,
    "deep-types": deep_types,
    "wide-types": wide_types,
}
