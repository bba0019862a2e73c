"""Every error code of the protocol that can occur, and how to cause it.

Codes that cannot occur yet, and the features that will cause them:
- 0x0100 bad credentials, and 0x2100 for the user's tables: roles;
- write type VIEW: views;
- 0x1600 CDC write failure, 0x1700 CAS write unknown: CDC and Paxos.
0x1002 bootstrapping, 0x1000 without enough live nodes, and write type BATCH_LOG need a cluster of
several nodes. 0xF000 rate limit has tests of its own in test_rate_limit.py. 0x0000 server error and
0x1003 truncate error are faults of the node itself (tests/storage/test_faults.py). 0x1001 overload
has tests of its own in tests/protocol.
"""

import struct

import pytest
from wire import (
    BATCH, EXECUTE, QUERY, REGISTER, RESULT, STARTUP, Wire, integer, long_string, parameters,
    query, string,
)

ANY, ONE, TWO, QUORUM, ALL, SERIAL = 0, 1, 2, 4, 5, 8
KEYSPACE = "error_codes"


@pytest.fixture(scope="module")
def wire(host):
    with Wire(host) as it:
        it.query(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        it.query(f"DROP KEYSPACE IF EXISTS {KEYSPACE}_three")
        for text in (
            (
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class':"
                " 'NetworkTopologyStrategy', 'replication_factor': 1}"
            ),
            (
                f"CREATE KEYSPACE {KEYSPACE}_three WITH replication = {{'class':"
                " 'NetworkTopologyStrategy', 'replication_factor': 3}"
            ),
            f"USE {KEYSPACE}",
            "CREATE TABLE t (pk int, ck int, v int, PRIMARY KEY (pk, ck))",
            "CREATE TABLE c (pk int PRIMARY KEY, n counter)",
            "CREATE TYPE u (a int)",
            f"CREATE TABLE {KEYSPACE}_three.t (pk int PRIMARY KEY, v int)",
        ):
            answer = it.query(text)
            assert answer.opcode == RESULT, answer.message
        yield it
        it.query(f"DROP KEYSPACE {KEYSPACE}")
        it.query(f"DROP KEYSPACE {KEYSPACE}_three")


def batch(kind, texts, consistency=ONE):
    body = struct.pack(">BH", kind, len(texts))
    for text in texts:
        body += b"\0" + long_string(text) + struct.pack(">H", 0)
    return body + struct.pack(">HB", consistency, 0)


# The request (a text, or opcode and body), the error code, a part of the message.
TABLE = [
    # 0x000A protocol error
    ((0x55, b""), 0x000A, "opcode"),
    ((EXECUTE, b"\0"), 0x000A, ""),
    ((REGISTER, struct.pack(">H", 1) + string("NO_SUCH_EVENT")), 0x000A, "NO_SUCH_EVENT"),
    ((QUERY, query("SELECT * FROM t", paging_state=b"not ours")), 0x000A, "paging state"),
    ((QUERY, query("SELECT * FROM t", consistency=99)), 0x000A, ""),
    # 0x1000 unavailable
    ((QUERY, query(f"INSERT INTO {KEYSPACE}_three.t (pk, v) VALUES (1, 1)", consistency=QUORUM)),
        0x1000, "QUORUM"),
    ((QUERY, query(f"SELECT * FROM {KEYSPACE}_three.t WHERE pk = 1", consistency=ALL)), 0x1000,
        "ALL"),
    ((QUERY, query("INSERT INTO t (pk, ck) VALUES (1, 1)", consistency=TWO)), 0x1000, "TWO"),
    # 0x1100 write timeout
    ("INSERT INTO t (pk, ck, v) VALUES (1, 1, 1) USING TIMEOUT 0s", 0x1100, "timed out"),
    ("UPDATE c USING TIMEOUT 0s SET n = n + 1 WHERE pk = 1", 0x1100, "timed out"),
    ("BEGIN BATCH USING TIMEOUT 0s INSERT INTO t (pk, ck, v) VALUES (1, 1, 1); INSERT INTO t (pk, "
        "ck) VALUES (2, 2); APPLY BATCH", 0x1100, "timed out"),
    # 0x1200 read timeout
    ("SELECT * FROM t WHERE pk = 1 USING TIMEOUT 0s", 0x1200, "timed out"),
    ("SELECT * FROM t USING TIMEOUT 0s", 0x1200, "timed out"),
    ("SELECT count(*) FROM t USING TIMEOUT 0s", 0x1200, "timed out"),
    # 0x1400 function failure
    ("INSERT INTO t (pk, ck, v) VALUES (1, 1, fromJson('['))", 0x1400, "fromJson"),
    ("INSERT INTO t (pk, ck, v) VALUES (1, 1, fromJson('\"x\"'))", 0x1400, "fromJson"),
    ("SELECT * FROM t WHERE pk = fromJson('1.5')", 0x1400, "fromJson"),
    # 0x1500 write failure
    ("INSERT INTO system.local (key) VALUES ('x')", 0x1500,
        "this virtual table doesn't allow updates"),
    ("INSERT INTO system.one_row (\"system$dummy\") VALUES ('Y')", 0x1500,
        "this virtual table doesn't allow updates"),
    ((BATCH, batch(1, ["DELETE FROM system.peers WHERE peer = '127.0.0.1'"])), 0x1500,
        "this virtual table doesn't allow updates"),
    ((BATCH, batch(1, ["UPDATE system.config SET value = '1' WHERE name = 'no_such_setting'"])),
        0x1500, "this virtual table doesn't allow updates"),
    ("UPDATE system.config SET value = '1' WHERE name = 'no_such_setting'", 0x1500,
        "no such option"),
    ("UPDATE system.config SET value = '1' WHERE name = 'cluster_name'", 0x1500, "not live"),
    ("UPDATE system.config SET value = 'soon' WHERE name = 'read_request_timeout_in_ms'", 0x1500,
        "cannot parse"),
    # 0x2000 syntax error
    ("SELEKT * FROM t", 0x2000, "line 1:0"),
    ("SELECT * FROM t WHERE", 0x2000, "line 1"),
    ("SELECT * FROM t WHERE pk = 'unfinished", 0x2000, "line 1"),
    ("INSERT INTO t (pk, ck) VALUES (1, 1) USING TTL -1", None, ""),
    ("CREATE TABLE t2 (pk int PRIMARY KEY) WITH nonsense = 1", 0x2000, "nonsense"),
    ("CREATE TABLE t2 (pk int PRIMARY KEY) WITH comment = 'a' AND comment = 'b'", 0x2000,
        "comment"),
    # 0x2100 unauthorized: statements that no client may execute.
    ("DROP TABLE system.local", 0x2100, "system"),
    ("ALTER KEYSPACE system_schema WITH durable_writes = true", 0x2100, "system_schema"),
    ("TRUNCATE system.peers", 0x2100, "system"),
    # 0x2200 invalid
    ("SELECT * FROM nothing", 0x2200, "unconfigured table nothing"),
    ("SELECT nothing FROM t", 0x2200, "nothing"),
    ("SELECT * FROM nowhere.t", 0x2200, "nowhere"),
    ("USE nowhere", 0x2200, "nowhere"),
    ("SELECT * FROM t WHERE v = 1", 0x2200, "ALLOW FILTERING"),
    ("SELECT * FROM t WHERE ck = 1", 0x2200, "ALLOW FILTERING"),
    ("SELECT * FROM t LIMIT 0", 0x2200, "LIMIT"),
    ("SELECT * FROM t ORDER BY ck", 0x2200, "ORDER BY"),
    ("INSERT INTO t (pk) VALUES (1)", 0x2200, "ck"),
    ("INSERT INTO t (pk, ck, v) VALUES (1, 1, 'a')", 0x2200, "v"),
    ("INSERT INTO t (pk, ck) VALUES (null, 1)", 0x2200, "null"),
    ("INSERT INTO t (pk, ck) VALUES (1, 1) USING TIMESTAMP 9000000000000000000", 0x2200, "3 days"),
    ("INSERT INTO t (pk, ck) VALUES (1, 1) USING TTL 700000000", 0x2200, "ttl is too large"),
    ("INSERT INTO t JSON '{'", 0x2200, "JSON"),
    ("INSERT INTO t JSON '{\"pk\": 1, \"ck\": \"x\"}'", 0x2200, "ck"),
    ("SELECT * FROM t WHERE pk = 1 AND ck != 1", 0x2200, "!="),
    ("SELECT * FROM t WHERE v IS NOT NULL ALLOW FILTERING", 0x2200, "materialized view"),
    ("SELECT v FROM t GROUP BY v", 0x2200, "Group by"),
    ("SELECT no_such_function(v) FROM t", 0x2200, "no_such_function"),
    ("SELECT CAST(v AS date) FROM t", 0x2200, "cast"),
    ("ALTER TYPE u ADD a int", 0x2200, "already exists"),
    ("ALTER TYPE nothing ADD a int", 0x2200, "nothing"),
    ("ALTER TABLE t RENAME v TO w", 0x2200, "PRIMARY KEY"),
    ("BEGIN BATCH USING TIMESTAMP 1 INSERT INTO t (pk, ck) VALUES (1, 1) USING TIMESTAMP 2; APPLY "
        "BATCH", 0x2200, "BATCH"),
    (f"INSERT INTO t (pk, ck) VALUES ({','.join(['1'] * 3)})", 0x2200, "column names/values"),
    ("DESCRIBE TABLE nothing", 0x2200, "nothing"),
    ("INSERT INTO c (pk, n) VALUES (1, 1)", 0x2200, "UPDATE"),
    ("CREATE TABLE t2 (pk int)", 0x2200, "PRIMARY KEY"),
    ("CREATE TABLE t2 (pk nothing PRIMARY KEY)", 0x2200, "nothing"),
    ("ALTER TABLE t DROP pk", 0x2200, "pk"),
    ("DROP TYPE nothing", 0x2200, "nothing"),
    ("CREATE TYPE u (a int)", 0x2200, "already exists"),
    ("DROP TABLE nothing", 0x2200, "nothing"),
    ("TRUNCATE nothing", 0x2200, "nothing"),
    ("CREATE INDEX ON t (v)", 0x2200, "not supported yet"),
    ((QUERY, query("SELECT * FROM t WHERE pk = ?")), 0x2200, ""),
    ((QUERY, query("SELECT * FROM t WHERE pk = ?", values=[b"\0"])), 0x2200, ""),
    ((QUERY, query("SELECT * FROM t", consistency=ANY)), 0x2200, "ANY"),
    ((QUERY, query("INSERT INTO t (pk, ck) VALUES (1, 1)", consistency=SERIAL)), 0x2200,
        "serializable"),
    ((BATCH, batch(0, ["SELECT * FROM t"])), 0x2200, ""),
    ((BATCH, batch(0, ["UPDATE c SET n = n + 1 WHERE pk = 1"])), 0x2200, "logged"),
    ((BATCH, batch(2, ["INSERT INTO t (pk, ck) VALUES (1, 1)"])), 0x2200, "counter batch"),
    ((BATCH, batch(1, [f"INSERT INTO t (pk, ck, v) VALUES ({pk}, 1, 1)" for pk in range(2)],
        SERIAL)), 0x2200, "serializable"),
    # 0x2300 configuration
    ("CREATE KEYSPACE k WITH replication = {'class': 'NoSuchStrategy'}", 0x2300, "NoSuchStrategy"),
    ("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', "
        "'replication_factor': 'x'}", 0x2300, "numeric"),
    ("CREATE TABLE t2 (pk int PRIMARY KEY) WITH compaction = {'class': 'NoSuchStrategy'}", 0x2300,
        "NoSuchStrategy"),
    ("CREATE TABLE t2 (pk int PRIMARY KEY, n counter, v int)", 0x2300, "non counter"),
    ("ALTER TABLE t ALTER v TYPE text", 0x2300, "Cannot change v"),
    ("DROP KEYSPACE nowhere", 0x2300, "nowhere"),
    # 0x2400 already exists
    (f"CREATE KEYSPACE {KEYSPACE}", 0x2400, KEYSPACE),
    ("CREATE TABLE t (pk int PRIMARY KEY)", 0x2400, "t"),
    # 0x2500 unprepared
    ((EXECUTE, string(bytes(16)) + parameters()), 0x2500, "00000000000000000000000000000000"),
    ((BATCH, struct.pack(">BHB", 0, 1, 1) + string(bytes(16)) + struct.pack(">HHB", 0, ONE, 0)),
        0x2500, "0000"),
]


@pytest.mark.scylla
@pytest.mark.parametrize("sent, code, words", TABLE, ids=[str(sent)[:60] for sent, _, _ in TABLE])
def test_code(wire, sent, code, words):
    answer = wire.query(sent) if isinstance(sent, str) else wire.ask(*sent)
    if code is None:
        assert answer.code in (0x2000, 0x2200)
    else:
        assert answer.code == code, f"{answer.code:#06x}: {answer.message}"
    assert words.lower() in answer.message.lower(), answer.message
    wire.works()


def test_function_failure_names_the_function(wire):
    body = wire.query("INSERT INTO t (pk, ck, v) VALUES (1, 1, fromJson('['))").body
    assert body.endswith(
        string("system") + string("fromjson") + struct.pack(">H", 1) + string("text")
    )


def test_already_exists_names_what(wire):
    body = wire.query("CREATE TABLE t (pk int PRIMARY KEY)").body
    assert body.endswith(string(KEYSPACE) + string("t"))
    body = wire.query(f"CREATE KEYSPACE {KEYSPACE}").body
    assert body.endswith(string(KEYSPACE) + string(""))


def test_unavailable_says_how_many(wire):
    body = wire.query(f"SELECT * FROM {KEYSPACE}_three.t WHERE pk = 1", consistency=QUORUM).body
    assert body.endswith(struct.pack(">Hii", QUORUM, 2, 1))


def test_timeouts_say_what(wire):
    body = wire.query("UPDATE c USING TIMEOUT 0s SET n = n + 1 WHERE pk = 1").body
    assert body.endswith(struct.pack(">Hii", ONE, 0, 1) + string("COUNTER"))
    body = wire.query("INSERT INTO t (pk, ck) VALUES (1, 1) USING TIMEOUT 0s").body
    assert body.endswith(struct.pack(">Hii", ONE, 0, 1) + string("SIMPLE"))
    body = wire.query("SELECT * FROM t WHERE pk = 1 USING TIMEOUT 0s").body
    assert body.endswith(struct.pack(">HiiB", ONE, 0, 1, 0))


@pytest.mark.node
def test_read_failure(wire):
    """0x1300: an unpaged result that needs more memory than allowed."""
    setting = "max_memory_for_unlimited_query_hard_limit"
    before = (
        wire.query(f"SELECT value FROM system.config WHERE name = '{setting}'")
        .rows()[0][0]
        .decode()
    )
    wire.query("CREATE TABLE IF NOT EXISTS big (pk int, ck int, v text, PRIMARY KEY (pk, ck))")
    for ck in range(20):
        assert (
            wire.query(f"INSERT INTO big (pk, ck, v) VALUES (1, {ck}, '{'x' * 10_000}')").opcode
            == RESULT
        )
    for pk in range(2, 22):
        made = wire.query(f"INSERT INTO big (pk, ck, v) VALUES ({pk}, 0, '{'x' * 10_000}')")
        assert made.opcode == RESULT
    assert (
        wire.query(f"UPDATE system.config SET value = '100000' WHERE name = '{setting}'").opcode
        == RESULT
    )
    try:
        # One partition, and parts that are within the limit each.
        keys = ", ".join(map(str, range(2, 22)))
        for which in ("WHERE pk = 1", f"WHERE pk IN ({keys})", ""):
            answer = wire.query(f"SELECT * FROM big {which}")
            assert answer.code == 0x1300 and setting in answer.message, answer.message
            assert "limit of 100000 " in answer.message, answer.message
        assert len(wire.query("SELECT * FROM big WHERE pk = 1", page_size=3).rows()) == 3
    finally:
        assert (
            wire.query(
                f"UPDATE system.config SET value = '{before}' WHERE name = '{setting}'"
            ).opcode
            == RESULT
        )
    assert len(wire.query("SELECT * FROM big WHERE pk = 1").rows()) == 20


@pytest.mark.node
def test_a_page_size_without_bound(wire):
    """Pages end at what the node can send, whatever the settings are, and no memory is reserved for
    more."""
    settings = ("query_page_size_in_bytes", "max_memory_for_unlimited_query_hard_limit")
    before = {
        name: (
            wire.query(f"SELECT value FROM system.config WHERE name = '{name}'")
            .rows()[0][0]
            .decode()
        )
        for name in settings
    }
    wire.query("CREATE TABLE IF NOT EXISTS wide (pk int PRIMARY KEY, v text)")
    for pk in range(4):
        assert (
            wire.query(f"INSERT INTO wide (pk, v) VALUES ({pk}, '{'x' * 100_000}')").opcode
            == RESULT
        )
    try:
        for value in ("1000000000000000", str(2 ** 63 - 1), str(2 ** 64 - 1)):
            for name in settings:
                assert (
                    wire.query(
                        f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'"
                    ).opcode
                    == RESULT
                )
            assert len(wire.query("SELECT * FROM wide", page_size=5000).rows()) == 4
            assert len(wire.query("SELECT * FROM wide").rows()) == 4
    finally:
        for name, value in before.items():
            assert (
                wire.query(
                    f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'"
                ).opcode
                == RESULT
            )


def test_errors_before_startup(host):
    with Wire(host, started=False) as wire:
        answer = wire.query("SELECT key FROM system.local")
        assert answer.code == 0x000A, answer.message
    with Wire(host, started=False) as wire:
        answer = wire.ask(STARTUP, struct.pack(">H", 0))
        assert answer.code in (0x000A, 0x2200), answer.message
    assert integer(1) == b"\0\0\0\1"
