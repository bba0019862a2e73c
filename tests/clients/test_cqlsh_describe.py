"""DESCRIBE of both cqlsh programs: the output for a keyspace with all kinds of objects creates that
keyspace again, through SOURCE and through -f."""

import re

import pytest
from cqlshell import REPLICATION, Shell, shell  # noqa: F401

KEYSPACE = '"DescribedOnce"'

# One object of each kind, without indexes, views and functions. The names say which test uses
# which.
SCHEMA = f'''
CREATE KEYSPACE {KEYSPACE} WITH replication = {REPLICATION} AND durable_writes = false;
USE {KEYSPACE};
CREATE TYPE inner_type (x int, "Y" text, z frozen<list<text>>);
CREATE TYPE "Outer" (i frozen<inner_type>, m frozen<map<text, frozen<set<int>>>>, t frozen<tuple<int, text>>);
CREATE TABLE "CaseSensitive" ("Pk" int, "select" text, "a ""quote""" timeuuid, "Shared" text STATIC, v int, PRIMARY KEY (("Pk", "select"), "a ""quote"""))
  WITH CLUSTERING ORDER BY ("a ""quote""" DESC) AND comment = 'it''s; -- not a comment
in two lines';
CREATE TABLE every_type (pk uuid PRIMARY KEY, a ascii, b blob, c boolean, d date, e decimal, f double, g duration, h float, i inet, j smallint, k time, l timestamp, m tinyint,
  n tuple<int, frozen<tuple<text, text>>>, o varint, p bigint, q timeuuid, r list<int>, s set<text>, t map<text, frozen<list<frozen<set<int>>>>>, u frozen<list<int>>,
  v frozen<map<int, text>>, w inner_type, x frozen<"Outer">, y list<frozen<inner_type>>, z vector<float, 3>);
CREATE TABLE counters (pk int, ck int, hits counter, misses counter, PRIMARY KEY (pk, ck));
CREATE TABLE mixed_order (pk int, a int, b text, c timestamp, v int, PRIMARY KEY (pk, a, b, c)) WITH CLUSTERING ORDER BY (a ASC, b DESC, c ASC);
CREATE TABLE options_leveled (pk int PRIMARY KEY, v text) WITH gc_grace_seconds = 100 AND default_time_to_live = 50 AND bloom_filter_fp_chance = 0.2
  AND min_index_interval = 64 AND max_index_interval = 1024 AND crc_check_chance = 0.5 AND memtable_flush_period_in_ms = 70000 AND speculative_retry = '10ms'
  AND caching = {{'keys': 'NONE', 'rows_per_partition': '5'}} AND compression = {{'sstable_compression': 'DeflateCompressor', 'chunk_length_in_kb': 32}}
  AND compaction = {{'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': '64', 'enabled': 'false'}};
CREATE TABLE options_windows (pk int, ck timestamp, PRIMARY KEY (pk, ck)) WITH compression = {{'sstable_compression': ''}}
  AND compaction = {{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'HOURS', 'compaction_window_size': '6'}} AND speculative_retry = 'NONE';
CREATE TABLE options_zstd (pk int PRIMARY KEY, v text) WITH compression = {{'sstable_compression': 'ZstdCompressor'}} AND speculative_retry = 'ALWAYS'
  AND compaction = {{'class': 'SizeTieredCompactionStrategy', 'min_threshold': '5', 'max_threshold': '17', 'bucket_low': '0.4'}};
CREATE TABLE altered (pk int PRIMARY KEY, gone text, kept text);
ALTER TABLE altered DROP gone;
ALTER TABLE altered ADD later map<int, text>;
ALTER TABLE altered WITH comment = 'altered';
ALTER TYPE inner_type ADD added double;
'''


@pytest.fixture
def described(shell):
    """The keyspace, created again. Returns the output of DESCRIBE KEYSPACE."""
    shell.run(f"DROP KEYSPACE IF EXISTS {KEYSPACE};")
    shell.run(SCHEMA)
    yield shell.run(f"DESCRIBE KEYSPACE {KEYSPACE};")
    shell.run(f"DROP KEYSPACE IF EXISTS {KEYSPACE};")


def output(text):
    """Without the warning of Apache's cqlsh about the server's version."""
    return re.sub(r"^WARNING: .*\n", "", text).strip()


def statements(text):
    """The CREATE statements of a text, in order."""
    return re.findall(
        r"^CREATE (KEYSPACE|TYPE|TABLE) (\S+|\"[^\"]*\"(?:\.(?:\"(?:[^\"]|\"\")*\"|\w+))?)",
        text,
        re.MULTILINE,
    )


def test_it_makes_itself_again(shell, described, tmp_path):
    kinds = [kind for kind, _ in statements(described)]
    assert kinds == ["KEYSPACE"] + ["TYPE"] * 2 + ["TABLE"] * 8, described
    assert described.index("inner_type (") < described.index('"Outer" (')
    for part in ("durable_writes = false", "it''s; -- not a comment\nin two lines", "added double",
            "later map<int, text>", "vector<float, 3>", '"a ""quote""" timeuuid',
                 "hits counter", "CLUSTERING ORDER BY (a ASC, b DESC, c ASC)",
                 "'compaction_window_unit': 'HOURS'", "gc_grace_seconds = 100"):
        assert part in described, part
    assert "gone" not in described
    file = tmp_path / "schema.cql"
    file.write_text(output(described))
    shell.run(f"DROP KEYSPACE {KEYSPACE};")
    shell.run(f"SOURCE '{file}'\n")
    assert shell.run(f"DESCRIBE KEYSPACE {KEYSPACE};") == described
    shell.run(f"DROP KEYSPACE {KEYSPACE};")
    shell.run("", "-f", str(file))
    assert shell.run(f"DESCRIBE KEYSPACE {KEYSPACE};") == described


def test_of_each_and_of_all(shell, described):
    """The description of an object is also part of those of its keyspace, of the schema, and of the
    full schema."""
    whole, full = shell.run("DESCRIBE SCHEMA;"), shell.run("DESCRIBE FULL SCHEMA;")
    assert "CREATE TABLE system.local" in full and "CREATE TABLE system.local" not in whole
    for what in (
        'TABLE "CaseSensitive"',
        "TABLE counters",
        "TABLE options_windows",
        'TYPE "Outer"',
        "TYPE inner_type",
    ):
        # On a line of its own: after another statement scylla-cqlsh uses the driver's description,
        # which is Cassandra's.
        text = output(shell.run(f"USE {KEYSPACE};\nDESCRIBE {what};"))
        assert (
            text.startswith("CREATE ") and text in described and text in whole and text in full
        ), text
    one = output(shell.run(f"DESC ONLY KEYSPACE {KEYSPACE};")) if shell.program == "cqlsh" else None
    assert one is None or (one.startswith(f"CREATE KEYSPACE {KEYSPACE}") and "TABLE" not in one)
    lists = {
        "TABLES": {"counters", "altered"},
        "TYPES": {"inner_type"},
        "KEYSPACES": {"system_schema", "system_traces"},
    }
    for what, names in lists.items():
        assert names <= set(re.split(r"\s+", shell.run(f"USE {KEYSPACE};\nDESCRIBE {what};"))), what
    assert '"Outer"' in shell.run(f"USE {KEYSPACE};\nDESCRIBE TYPES;")
    assert "counters" in shell.run("DESCRIBE TABLES;")
    for what in ("FUNCTIONS", "AGGREGATES"):
        assert "CREATE" not in shell.run(f"USE {KEYSPACE};\nDESCRIBE {what};")
    cluster = shell.run("DESC CLUSTER;")
    assert (
        "Cluster: messina test" in cluster and "Partitioner: " in cluster and "Snitch: " in cluster
    ), cluster


def test_internals(shell, described):
    if shell.program != "cqlsh":
        # Its parser does not accept WITH INTERNALS after every form. The server's answer is the
        # same.
        return
    text = shell.run(f"DESCRIBE TABLE {KEYSPACE}.altered WITH INTERNALS;")
    identity = re.search(r"(?i)\bid = ([0-9a-f-]{36})", text)[1]
    assert "gone" in text and "USING TIMESTAMP" in text
    shell.run(f"DROP TABLE {KEYSPACE}.altered;")
    shell.run(output(text) + "\n")
    assert identity in shell.run(
        f"SELECT id FROM system_schema.tables WHERE keyspace_name = '{KEYSPACE[1:-1]}' AND"
        " table_name = 'altered';"
    )


@pytest.mark.scylla
def test_rate_limits(shell):
    """DESCRIBE prints every part of a rate limit. The printed statement creates the same table."""
    table = f"{shell.keyspace}.limited_in_all_ways"
    limits = {
        "max_read_kb_per_second": "3",
        "max_reads_per_second": "0",
        "max_write_kb_per_second": "4294967295",
        "max_writes_per_second": "12",
        "mode": "observe",
    }
    shell.run(
        f"CREATE TABLE {table} (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit ="
        f" {limits};"
    )
    text = output(shell.run(f"DESCRIBE TABLE {table};"))
    assert f"AND per_partition_rate_limit = {limits};" in text
    shell.run(f"DROP TABLE {table};")
    shell.run(text)
    assert output(shell.run(f"DESCRIBE TABLE {table};")) == text
    # The mode that it has without the key is not printed.
    shell.run(
        f"ALTER TABLE {table} WITH per_partition_rate_limit = {{'max_reads_per_second': 5, 'mode':"
        " 'enforce'};"
    )
    assert "AND per_partition_rate_limit = {'max_reads_per_second': '5'};" in shell.run(
        f"DESCRIBE TABLE {table};"
    )
    shell.run(f"DROP TABLE {table};")


@pytest.mark.parametrize("what", ["FUNCTION f", "AGGREGATE a", "INDEX i", "MATERIALIZED VIEW v",
    "TYPE t", "TABLE t", "KEYSPACE k", "nothing_of_the_kind", "k.t"])
def test_missing_objects(shell, what):
    """The error names the object. The session stays usable."""
    done = shell.start(f"USE {shell.keyspace}; DESCRIBE {what}; SELECT key FROM system.local;")
    assert "local" in done.stdout and re.search(
        r"(?i)not found|does not exist|InvalidRequest|No keyspace", done.stderr
    ), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_of_the_other_program(described, host, shell):
    """Both programs print the same statements: the server writes them."""
    other = Shell("scylla-cqlsh" if shell.program == "cqlsh" else "cqlsh", host)
    assert statements(other.run(f"DESCRIBE KEYSPACE {KEYSPACE};")) == statements(described)
