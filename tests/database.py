"""A thin layer over the Python drivers for short tests: run, expect rows, expect a refusal.

Works with cassandra-driver and scylla-driver alike, whichever the virtual environment has.
`refused` also asserts that the connection is still good afterwards: an error must never cost more
than the statement.
"""

import itertools
import re

import cassandra
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import FallthroughRetryPolicy, WhiteListRoundRobinPolicy
from cassandra.protocol import ConfigurationException, SyntaxException
from cassandra.query import SimpleStatement

Invalid = cassandra.InvalidRequest
Syntax = SyntaxException
Config = ConfigurationException
Exists = cassandra.AlreadyExists

names = itertools.count(1)


def connect(host, **options):
    """A cluster object of the driver and its session; protocol version 4, no retries, long client
    timeout."""
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([host]),
        retry_policy=FallthroughRetryPolicy(),
        request_timeout=120,
    )
    settings = {
        "contact_points": [host],
        "protocol_version": 4,
        "execution_profiles": {EXEC_PROFILE_DEFAULT: profile},
        "connect_timeout": 30,
        "control_connection_timeout": 30,
        **options,
    }
    cluster = Cluster(**settings)
    return cluster, cluster.connect()


def plain(value):
    """A value in a form that compares by content: the drivers' containers become lists, sets, dicts
    and tuples."""
    kind = type(value).__name__
    if kind in ("SortedSet", "set", "frozenset"):
        return {plain(v) for v in value}
    if kind in ("OrderedMapSerializedKey", "OrderedMap", "dict"):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    return value


class Database:
    """One session with a keyspace of its own, dropped on close."""

    def __init__(self, host, **options):
        self.host = host
        self.cluster, self.session = connect(host, **options)
        self.keyspace = f"test_{next(names)}_{id(self) % 100000}"
        self.execute(
            f"CREATE KEYSPACE {self.keyspace} WITH replication = "
            "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
        )
        self.session.set_keyspace(self.keyspace)

    def close(self):
        self.session.execute(f"DROP KEYSPACE IF EXISTS {self.keyspace}")
        self.cluster.shutdown()

    def execute(self, statement, *values, **options):
        if isinstance(statement, str):
            statement = SimpleStatement(statement, **options)
        return self.session.execute(statement, values or None)

    def rows(self, statement, *values, **options):
        """All rows, over all pages, as plain tuples."""
        return [plain(tuple(row)) for row in self.execute(statement, *values, **options)]

    def column(self, statement, *values, **options):
        """The first column of all rows."""
        return [row[0] for row in self.rows(statement, *values, **options)]

    def one(self, statement, *values, **options):
        """The only row; of a single column, its value."""
        rows = self.rows(statement, *values, **options)
        assert len(rows) == 1, f"{len(rows)} rows instead of one: {rows[:5]}"
        return rows[0][0] if len(rows[0]) == 1 else rows[0]

    def prepare(self, text):
        return self.session.prepare(text)

    def refused(self, errors, statement, *values, match=None, **options):
        """Asserts that the statement is refused with (one of) these errors and that the session
        still works."""
        shown = str(statement)[:200]
        try:
            result = self.execute(statement, *values, **options)
        except Exception as error:
            assert isinstance(error, errors), f"{shown}: {type(error).__name__}: {str(error)[:300]}"
            message = str(error)
            assert match is None or re.search(
                match, message, re.IGNORECASE
            ), f"{shown}: {message[:300]}"
        else:
            raise AssertionError(f"not refused: {shown}: {result.all()[:3]}")
        assert self.one("SELECT key FROM system.local WHERE key = 'local'") == "local"

    def table(self, columns, options="", name=None):
        """Creates a table and returns its name."""
        name = name or f"t{next(names)}"
        self.execute(f"CREATE TABLE {name} ({columns}) {options}")
        return name

    def type(self, fields):
        """Creates a user-defined type and returns its name."""
        name = f"u{next(names)}"
        self.execute(f"CREATE TYPE {name} ({fields})")
        return name

    def create_statement(self, what):
        """The text that DESCRIBE returns for it, with all its parts."""
        return "\n".join(row[3] for row in self.rows(f"DESCRIBE {what}"))
