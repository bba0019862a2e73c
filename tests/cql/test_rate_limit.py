"""per_partition_rate_limit: the option, its forms, and that it is enforced. No test depends on the
speed of the machine: a limit of 0 refuses everything, and bounds of bursts grow with the time that
they took."""

import math
import pathlib
import struct
import subprocess
import threading
import time

import cassandra
import pytest
from cassandra.query import BatchStatement, BatchType
from database import Config, Invalid, Syntax
from wire import CONFIG, RESULT, STARTUP, SUPPORTED, Wire, string_map

pytestmark = pytest.mark.scylla

READ, WRITE = 0, 1
# scylla-driver has an error of its own, cassandra-driver gets a configuration error.
Limited = getattr(cassandra, "RateLimitReached", Config)
KEYS = range(64)
OTHER_DRIVER = pathlib.Path(__file__).resolve().parents[2] / ".venv/cassandra/bin/python"


def limit(db, table, **limits):
    written = ", ".join(f"'max_{kind}_per_second': {value}" for kind, value in limits.items())
    db.execute(f"ALTER TABLE {table} WITH per_partition_rate_limit = {{{written}}}")


def refused(db, kind, table, statement, *values, **options):
    """Asserts that the statement is refused by a rate limit; returns `coordinator` or
    `replicas`, which refused it."""
    with pytest.raises(Limited) as caught:
        db.execute(statement, *values, **options)
    error = caught.value
    if Limited is not Config:
        assert (error.op_type.value, type(error.rejected_by_coordinator)) == (kind, bool)
        return "coordinator" if error.rejected_by_coordinator else "replicas"
    name = ["read", "write"][kind]
    assert (
        f"Per-partition rate limit reached for {name} in table {db.keyspace}.{table}, rejected by "
        in str(error)
    )
    return str(error).rpartition("rejected by ")[2].split()[0]


@pytest.fixture
def table(db):
    name = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    for pk in KEYS:
        db.execute(f"INSERT INTO {name} (pk, ck, v) VALUES ({pk}, 1, {pk})")
    return name


def test_a_limit_is_in_force_on_all_shards_when_alter_is_answered(db, table):
    read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
    write = db.prepare(f"UPDATE {table} SET v = 0 WHERE pk = ? AND ck = 1")
    for _ in range(3):
        limit(db, table, reads=0)
        for pk in KEYS:
            refused(db, READ, table, read, pk)
            refused(db, READ, table, f"SELECT * FROM {table} WHERE pk = {pk}")
            db.execute(write, pk)
        limit(db, table, writes=0)
        for pk in KEYS:
            refused(db, WRITE, table, write, pk)
            assert db.one(read, pk) == 0
        limit(db, table)
        for pk in KEYS:
            db.execute(write, pk)
            assert db.one(read, pk) == 0


def test_only_the_excess_of_one_partition_is_refused(db, table):
    for kind, statement in (
        (READ, f"SELECT v FROM {table} WHERE pk = 1"),
        (WRITE, f"UPDATE {table} SET v = 1 WHERE pk = 1 AND ck = 1"),
    ):
        limit(db, table, reads=1, writes=1)
        accepted, count, began = 0, 400, time.monotonic()
        for _ in range(count):
            try:
                db.execute(statement)
                accepted += 1
            except Limited:
                pass
        seconds = time.monotonic() - began
        # 2 L + L log2(V / 2 L) in the first second, less in the later ones; the draws vary.
        most = (seconds + 2) * (2 + math.log2(count)) * 2
        assert (
            2 <= accepted <= most
        ), f"{accepted} of {count} {['reads', 'writes'][kind]} in {seconds:.1f} s"
        for pk in KEYS:
            if pk != 1:
                assert (
                    len(db.rows(f"SELECT v FROM {table} WHERE pk = {pk}")) == 1
                ), "partitions below the limit are not refused"
        limit(db, table)
        assert len(db.rows(f"SELECT v FROM {table} WHERE pk = 1")) == 1


def test_alter_and_drop_under_attack(db, table):
    """The limit is the one of the last ALTER, and nothing fails but what is refused, or reads a
    table that is gone."""
    read = db.prepare(f"SELECT v FROM {table} WHERE pk = ?")
    ended, errors = threading.Event(), []

    def attack():
        while not ended.is_set():
            try:
                db.execute(read, 1)
            except (Limited, Invalid) as error:
                errors.append(error)

    attackers = [threading.Thread(target=attack) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    try:
        for _ in range(10):
            limit(db, table, reads=0)
            refused(db, READ, table, read, 1)
            refused(db, READ, table, read, 2)
            limit(db, table, reads=1_000_000)
            assert db.one(read, 2) == 2
            limit(db, table)
            assert (db.one(read, 1), db.one(read, 2)) == (1, 2)
        assert all(isinstance(error, Limited) for error in errors), errors
        db.execute(f"DROP TABLE {table}")
        with pytest.raises(Invalid):
            db.execute(f"SELECT v FROM {table} WHERE pk = 1")
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join()
    assert errors and any(isinstance(error, Limited) for error in errors)


def test_statements_that_are_limited(db, table):
    counters = db.table("pk int PRIMARY KEY, n counter")
    limit(db, table, reads=0, writes=0)
    limit(db, counters, writes=0)
    refused(db, READ, table, f"SELECT * FROM {table} WHERE pk IN (1, 2, 3)")
    refused(db, READ, table, f"SELECT count(*) FROM {table} WHERE pk = 1")
    refused(db, READ, table, f"SELECT * FROM {table} WHERE pk = 1 AND v = 1 ALLOW FILTERING")
    token = db.one(
        "SELECT token(key) FROM system.local"
    ) and cassandra.metadata.Murmur3Token.hash_fn(struct.pack(">i", 1))
    refused(db, READ, table, f"SELECT * FROM {table} WHERE token(pk) = {token}")
    refused(
        db,
        READ,
        table,
        f"SELECT * FROM {table} WHERE token(pk) > {token - 1} AND token(pk) <= {token}",
    )
    refused(db, WRITE, table, f"DELETE FROM {table} WHERE pk = 1")
    refused(db, WRITE, table, f"INSERT INTO {table} (pk, ck) VALUES (1, 1) USING TIMEOUT 10s")
    refused(
        db,
        WRITE,
        table,
        f"BEGIN UNLOGGED BATCH DELETE FROM {table} WHERE pk = 1; DELETE FROM {table} WHERE pk = 2;"
        " APPLY BATCH",
    )
    refused(db, WRITE, table, f"BEGIN BATCH DELETE FROM {table} WHERE pk = 1; APPLY BATCH")
    refused(db, WRITE, counters, f"UPDATE {counters} SET n = n + 1 WHERE pk = 1")
    assert len(db.rows(f"SELECT * FROM {table}")) == len(KEYS), "a scan is not limited"
    assert len(db.rows(f"SELECT * FROM {table} WHERE token(pk) > {token - 1}")) >= 1
    db.execute(
        f"BEGIN BATCH DELETE FROM {table} WHERE pk = 1; DELETE FROM {table} WHERE pk = 2; APPLY"
        " BATCH"
    )
    assert (
        len(db.rows(f"SELECT * FROM {table}")) == len(KEYS) - 2
    ), "a logged batch of several partitions is not limited"


@pytest.mark.parametrize("kind", [BatchType.UNLOGGED, BatchType.LOGGED])
def test_a_batch_is_refused_before_it_reads(db, server, kind):
    """Statements on list elements read their partition first, and some of them then write
    nothing."""
    lists = db.table("pk int PRIMARY KEY, l list<int>, v int")
    for pk in (1, 2):
        db.execute(f"INSERT INTO {lists} (pk, l) VALUES ({pk}, [1, 2])")
    limit(db, lists, writes=0)
    remove_absent = db.prepare(f"UPDATE {lists} SET l = l - [77] WHERE pk = ?")
    change, delete = db.prepare(f"UPDATE {lists} SET l[0] = 5 WHERE pk = ?"), db.prepare(
        f"DELETE l[1] FROM {lists} WHERE pk = ?"
    )

    def batch(*parts):
        made = BatchStatement(batch_type=kind)
        for statement, *values in parts:
            made.add(statement, values)
        return made

    every = [(remove_absent, 1), (change, 1), (delete, 1)]
    json = (f"INSERT INTO {lists} JSON '{{\"pk\": 1, \"v\": 1}}'",)
    # The driver sends each batch to the shard that owns its first partition. This shard decides
    # alone.
    before = server and server.metric("scylla_database_total_reads")
    for parts in (every[:1], every[1:2], every, [*every, json], every[:1] * 40):
        assert refused(db, WRITE, lists, batch(*parts)) == "coordinator"
    if server:
        assert (
            server.metric("scylla_database_total_reads") == before
        ), "nothing is read for a refused batch"
    if kind == BatchType.LOGGED:
        # A logged batch of several partitions is not limited.
        db.execute(batch((change, 1), (change, 2)))
        assert db.rows(f"SELECT l FROM {lists} WHERE pk = 2")[0][0] == [5, 2]
        other = (f"INSERT INTO {lists} JSON '{{\"pk\": 2, \"v\": 7}}'",)
        db.execute(batch((change, 1), other))
        assert db.rows(f"SELECT v FROM {lists} WHERE pk = 2")[0][0] == 7
    # A shard that does not own the partition asks the owner.
    for _ in range(4):
        refused(
            db,
            WRITE,
            lists,
            f"BEGIN UNLOGGED BATCH UPDATE {lists} SET l = l - [77] WHERE pk = 1; APPLY BATCH",
        )
    limit(db, lists, writes=1000)
    db.execute(batch(*every))
    assert db.rows(f"SELECT l FROM {lists} WHERE pk = 1")[0][0] == [5]


def test_a_refused_batch_names_the_limited_table(db, table):
    other = db.table("pk int PRIMARY KEY, v int")
    limit(db, table, writes=0)
    with Wire(db.host) as wire:
        wire.query(f"USE {db.keyspace}")
        answer = wire.query(
            f"BEGIN UNLOGGED BATCH INSERT INTO {other} (pk) VALUES (1); INSERT INTO {table} (pk,"
            " ck) VALUES (1, 1); APPLY BATCH"
        )
        assert (
            answer.is_error(CONFIG) and f"write in table {db.keyspace}.{table}," in answer.message
        )
    batch = BatchStatement(batch_type=BatchType.UNLOGGED)
    batch.add(f"INSERT INTO {other} (pk) VALUES (1)")
    db.execute(batch)


def test_codes_with_and_without_the_extension(db, table, host):
    limit(db, table, reads=0, writes=0)
    statements = (
        (READ, f"SELECT * FROM {db.keyspace}.{table} WHERE pk = 1"),
        (WRITE, f"DELETE FROM {db.keyspace}.{table} WHERE pk = 1"),
    )
    with Wire(host) as plain, Wire(host, started=False) as knowing:
        supported = knowing.ask(0x05)
        assert (
            supported.opcode == SUPPORTED
            and b"SCYLLA_RATE_LIMIT_ERROR\x00\x01\x00\x10ERROR_CODE=61440" in supported.body
        )
        knowing.ask(STARTUP, string_map({"CQL_VERSION": "3.0.0", "SCYLLA_RATE_LIMIT_ERROR": ""}))
        for kind, statement in statements:
            name = ["read", "write"][kind]
            bare = plain.query(statement)
            assert bare.is_error(CONFIG)
            assert bare.message.startswith(
                f"Per-partition rate limit reached for {name} in table {db.keyspace}.{table},"
                " rejected by "
            )
            typed = knowing.query(statement)
            assert typed.code == 61440
            rest = typed.body[6 + len(typed.message.encode()):]
            by = int("coordinator" in typed.message)
            assert rest == bytes([kind, by])
            plain.works()
            knowing.works()
        assert (
            plain.query(
                f"ALTER TABLE {db.keyspace}.{table} WITH per_partition_rate_limit = {{}}"
            ).opcode
            == RESULT
        )


@pytest.mark.skipif(not OTHER_DRIVER.exists(), reason="cassandra-driver is not installed")
def test_other_drivers_get_a_configuration_error_and_do_not_retry(db, table, server):
    if server is None:
        pytest.skip("needs the node's metrics")
    limit(db, table, reads=0)
    script = """if True:
        import sys
        from cassandra.cluster import Cluster
        from cassandra.protocol import ConfigurationException
        cluster = Cluster([sys.argv[1]], protocol_version=4)
        session = cluster.connect()
        try:
            session.execute(sys.argv[2])
        except ConfigurationException as error:
            print(type(error).__name__, error)
        cluster.shutdown()
    """
    before = refusals(server)
    text = f"SELECT * FROM {db.keyspace}.{table} WHERE pk = 1"
    ran = subprocess.run(
        [str(OTHER_DRIVER), "-c", script, db.host, text],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Per-partition rate limit reached for read" in ran.stdout, ran.stderr
    assert refusals(server) == before + 1, "sent once"


def refusals(node):
    lines = [
        line
        for line in node.metrics().splitlines()
        if line.startswith("scylla_storage_proxy_coordinator_read_rate_limited{")
    ]
    assert lines
    return sum(float(line.split()[-1]) for line in lines)


def test_the_option_in_all_its_forms(db):
    option = "per_partition_rate_limit = {'max_writes_per_second': 7, 'max_reads_per_second': '12'}"
    table = db.table("pk int PRIMARY KEY", f"WITH {option}")
    text = db.create_statement(f"TABLE {table}")
    assert (
        "AND per_partition_rate_limit = {'max_reads_per_second': '12', 'max_writes_per_second':"
        " '7'}"
        in text
    )
    extension = db.one(
        "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
        db.keyspace,
        table,
    )
    expected = {"max_reads_per_second": "12", "max_writes_per_second": "7"}
    data = struct.pack("<I", 2)
    for key, value in expected.items():
        for part in (key, value):
            data += struct.pack("<I", len(part)) + part.encode()
    assert extension == {"per_partition_rate_limit": data}
    db.execute(f"DROP TABLE {table}")
    db.execute(text)
    assert db.create_statement(f"TABLE {table}") == text
    # As drivers write it that print extensions.
    other = db.table(
        "pk int PRIMARY KEY", f"WITH extensions = {{'per_partition_rate_limit': 0x{data.hex()}}}"
    )
    assert (
        "per_partition_rate_limit = {'max_reads_per_second': '12', 'max_writes_per_second': '7'}"
        in db.create_statement(f"TABLE {other}")
    )
    limit(db, table)
    assert "per_partition_rate_limit" not in db.create_statement(f"TABLE {table}")


@pytest.mark.parametrize("value, errors, words", [
    ("{'x': 1}", Config, "Unknown keys in map for per_partition_rate_limit extension: x"),
    ("{'max_reads_per_second': -1}", Config, "max_reads_per_second option: expected a non-negative "
        "number"),
    ("{'max_reads_per_second': 1.5}", Config, "expected a non-negative number"),
    ("{'max_reads_per_second': 'many'}", Config, "expected a non-negative number"),
    ("{'max_writes_per_second': 4294967296}", Config,
        "max_writes_per_second option: out of range accepted by 32-bit numbers"),
    ("5", Syntax, "map"),
])
def test_wrong_values_are_refused(db, table, value, errors, words):
    db.refused(errors, f"ALTER TABLE {table} WITH per_partition_rate_limit = {value}", match=words)
    db.refused(
        errors,
        f"CREATE TABLE bad (pk int PRIMARY KEY) WITH per_partition_rate_limit = {value}",
        match=words,
    )


def test_system_tables_have_no_limits(db):
    option = "per_partition_rate_limit = {'max_reads_per_second': 1}"
    for system in ("system.local", "system.peers", "system_schema.tables"):
        db.refused(Exception, f"ALTER TABLE {system} WITH {option}")
    for _ in range(50):
        assert db.one("SELECT key FROM system.local WHERE key = 'local'") == "local"
