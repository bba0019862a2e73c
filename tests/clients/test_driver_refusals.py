"""Refusals by a per-partition rate limit, as both Python drivers receive them: each request is sent
once, and fails with one error.

Run with both drivers, as test_driver.py is.
"""

import contextlib

import cassandra
import pytest
from cassandra.cluster import Cluster
from cassandra.metadata import RegisteredTableExtension, _RegisteredExtensionType
from cassandra.protocol import ConfigurationException
from cassandra.query import SimpleStatement
from cluster.trio import Trio
from refusals import KINDS, refusals

pytestmark = pytest.mark.scylla

# scylla-driver negotiates an error of its own. cassandra-driver gets a configuration error.
TYPED = getattr(cassandra, "RateLimitReached", None)
REFUSED = TYPED or ConfigurationException
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
KEYSPACE = "python_refusals"
STATEMENTS = ("SELECT v FROM {} WHERE pk = {}", "INSERT INTO {} (pk, v) VALUES ({}, 1)")
MOST_UNTIL_REFUSED = 1000


@contextlib.contextmanager
def application(address):
    """A session with the driver's own retry policy, and tables that refuse everything (`refusing`)
    and the excess (`limited`)."""
    cluster = Cluster(
        [address], protocol_version=4, connect_timeout=30, control_connection_timeout=30
    )
    try:
        session = cluster.connect()
        session.default_timeout = 120
        session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {REPLICATION}")
        session.set_keyspace(KEYSPACE)
        for table, most in (("refusing", 0), ("limited", 1)):
            option = f"{{'max_reads_per_second': {most}, 'max_writes_per_second': {most}}}"
            session.execute(
                f"CREATE TABLE {table} (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit ="
                f" {option}"
            )
        yield session
        session.execute(f"DROP KEYSPACE {KEYSPACE}")
    finally:
        cluster.shutdown()


def check_error(error, kind, table, most):
    """The error has the refused operation, in the form of the driver."""
    if TYPED:
        assert type(error) is TYPED and error.op_type.name.lower() == kind
        assert type(error.rejected_by_coordinator) is bool
        return
    assert type(error) is ConfigurationException and error.code == 0x2300
    message = error.message
    assert (
        f"Per-partition rate limit reached for {kind} in table {KEYSPACE}.{table}, rejected by "
        in message
    )
    assert f"limit {most};" in message


def check_refusals(session, nodes):
    counted = refusals(nodes)
    for which, kind in enumerate(KINDS):
        for prepared in (False, True):
            for idempotent in (False, True):
                text = STATEMENTS[which].format("refusing", "?" if prepared else "1")
                statement = session.prepare(text) if prepared else SimpleStatement(text)
                statement.is_idempotent = idempotent
                with pytest.raises(REFUSED) as caught:
                    session.execute(statement, (1,) if prepared else None)
                check_error(caught.value, kind, "refusing", 0)
                counted[which] += 1
                assert refusals(nodes) == counted, f"{text}, idempotent: {idempotent}"
    for which, kind in enumerate(KINDS):
        with pytest.raises(REFUSED) as caught:
            for _ in range(MOST_UNTIL_REFUSED):
                session.execute(STATEMENTS[which].format("limited", 1))
        check_error(caught.value, kind, "limited", 1)
        counted[which] += 1
        session.execute(STATEMENTS[which].format("limited", 2))
        assert refusals(nodes) == counted


def test_each_refused_request_is_sent_once(server):
    if server is None:
        pytest.skip("needs the node's metrics")
    with application(server.address) as session:
        check_refusals(session, [server])


@pytest.mark.long
def test_no_other_host_is_asked(tmp_path):
    """A refused request is not sent to the next host, also if it is idempotent."""
    with Trio(tmp_path) as trio, application(trio.nodes[0].address) as session:
        assert len(session.hosts) == len(trio.nodes)
        check_refusals(session, trio.nodes)


def test_the_option_in_the_metadata(host):
    """The drivers have the option as an extension: its bytes as the server sends them. They print
    it if the application registers how."""
    option = "{'max_read_kb_per_second': 3, 'max_reads_per_second': 5, 'mode': 'observe'}"

    class Printed(RegisteredTableExtension):
        name = "per_partition_rate_limit"

        @classmethod
        def after_table_cql(cls, table, key, value):
            return (
                f"ALTER TABLE {table.keyspace_name}.{table.name} WITH extensions = {{'{key}':"
                f" 0x{value.hex()}}};"
            )

    try:
        with application(host) as session:
            session.execute(
                "CREATE TABLE printed (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit ="
                f" {option}"
            )

            def described():
                return "\n".join(row[3] for row in session.execute("DESCRIBE TABLE printed"))

            known = session.cluster.metadata.keyspaces[KEYSPACE].tables["printed"]
            assert set(known.extensions) == {"per_partition_rate_limit"}
            before, exported = described(), known.export_as_string()
            assert (
                "per_partition_rate_limit = {'max_read_kb_per_second': '3', 'max_reads_per_second':"
                " '5', 'mode': 'observe'}"
                in before
            )
            session.execute("DROP TABLE printed")
            for statement in filter(None, map(str.strip, exported.split(";\n"))):
                session.execute(statement)
            assert described() == before
    finally:
        del _RegisteredExtensionType._extension_registry["per_partition_rate_limit"]
