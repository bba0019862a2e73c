"""CREATE, ALTER, DROP and TRUNCATE of tables: refusals, the schema tables, and the effect on
data."""

import pytest
from database import Config, Exists, Invalid, Syntax


def columns(db, table):
    rows = db.rows(
        "SELECT column_name, kind, position, type, clustering_order FROM system_schema.columns "
        "WHERE keyspace_name = %s AND table_name = %s",
        db.keyspace,
        table,
    )
    return {row[0]: row[1:] for row in rows}


def option(db, table, name):
    return db.one(
        f"SELECT {name} FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
        db.keyspace,
        table,
    )


def test_schema_tables_show_the_columns(db):
    t = db.table("a int, b text, c int, d bigint, s set<int> STATIC, v frozen<map<text, int>>, "
        "PRIMARY KEY ((a, b), c, d)",
                 "WITH CLUSTERING ORDER BY (c DESC, d ASC)")
    assert columns(db, t) == {
        "a": ("partition_key", 0, "int", "none"), "b": ("partition_key", 1, "text", "none"),
        "c": ("clustering", 0, "int", "desc"), "d": ("clustering", 1, "bigint", "asc"),
        "s": ("static", -1, "set<int>", "none"),
        "v": ("regular", -1, "frozen<map<text, int>>", "none"),
    }


@pytest.mark.parametrize("declared, shown", [
    ("varchar", "text"), ("TEXT", "text"), ("list<varchar>", "list<text>"),
    ("map<int,int>", "map<int, int>"),
    ("frozen<set<frozen<list<int>>>>", "frozen<set<frozen<list<int>>>>"),
    ("tuple<int,text>", "frozen<tuple<int, text>>"),
    ("list<frozen<tuple<int, int>>>", "list<frozen<tuple<int, int>>>"),
    ("frozen<list<list<int>>>", "frozen<list<frozen<list<int>>>>"),
    ("'org.apache.cassandra.db.marshal.Int32Type'", "int"),
])
def test_type_names(db, declared, shown):
    t = db.table(f"pk int PRIMARY KEY, v {declared}")
    assert columns(db, t)["v"][2] == shown


def test_create_twice(db):
    t = db.table("pk int PRIMARY KEY")
    db.refused(Exists, f"CREATE TABLE {t} (pk int PRIMARY KEY)")
    db.refused(Exists, f"CREATE TABLE {t} (other text PRIMARY KEY)")
    db.execute(f"CREATE TABLE IF NOT EXISTS {t} (other text PRIMARY KEY)")
    assert list(columns(db, t)) == ["pk"]


@pytest.mark.parametrize("body", [
    "pk int", "pk int PRIMARY KEY, v int PRIMARY KEY", "pk int PRIMARY KEY, v int, PRIMARY KEY (v)",
    "pk int, PRIMARY KEY (nothing)", "pk int, PRIMARY KEY (pk, pk)",
    "pk int, pk int, PRIMARY KEY (pk)",
    "pk int PRIMARY KEY, v no_such_type", "pk int PRIMARY KEY, v list<no_such_type>",
    "pk int PRIMARY KEY, v list<list<int>>",
    "pk int PRIMARY KEY, v set<map<int, int>>", "pk list<int> PRIMARY KEY",
    "pk int, ck set<int>, PRIMARY KEY (pk, ck)",
    "pk duration PRIMARY KEY", "pk int, ck duration, PRIMARY KEY (pk, ck)",
    "pk int PRIMARY KEY, v set<duration>", "pk int PRIMARY KEY, v map<duration, int>",
    "pk counter PRIMARY KEY",
    "pk int PRIMARY KEY, s int STATIC", "pk int STATIC, ck int, PRIMARY KEY (pk, ck)",
    "pk int, ck int STATIC, PRIMARY KEY (pk, ck)", "pk int PRIMARY KEY, v list<counter>",
    "pk int PRIMARY KEY, c counter, v int",
])
def test_wrong_columns(db, body):
    db.refused(
        (Invalid, Config) if "counter, v" in body else Invalid,
        f"CREATE TABLE wrong_columns ({body})",
    )


@pytest.mark.parametrize("text", [
    "CREATE TABLE bad (pk int PRIMARY KEY, v list)",
    "CREATE TABLE bad (pk int PRIMARY KEY, v list<int)",
    "CREATE TABLE bad (pk int PRIMARY KEY, v map<int>)", "CREATE TABLE bad (PRIMARY KEY (pk))",
    "CREATE TABLE bad pk int",
    "CREATE TABLE bad (pk PRIMARY KEY)", "CREATE TABLE bad (pk int PRIMARY KEY) WITH",
    "CREATE TABLE bad (pk int PRIMARY KEY) AND x = 1",
    "CREATE TABLE bad (pk int PRIMARY KEY, v frozen<int>)",
    "CREATE TABLE bad (pk int, PRIMARY KEY ())",
])
def test_wrong_text(db, text):
    db.refused((Syntax, Invalid), text)


@pytest.mark.parametrize("order", ["(ck1 DESC, nothing ASC)", "(ck2 DESC)", "(ck2 ASC, ck1 ASC)",
    "(pk ASC)", "(v ASC)",
                                   "(ck1 ASC, ck2 ASC, v ASC)"])
def test_wrong_clustering_order(db, order):
    db.refused(
        (Invalid, Syntax),
        "CREATE TABLE wrong_order (pk int, ck1 int, ck2 int, v int, PRIMARY KEY (pk, ck1, ck2)) "
        f"WITH CLUSTERING ORDER BY {order}",
    )


def test_clustering_order_of_a_prefix(db):
    """The directive may omit the last clustering columns, as in the schemas of Jaeger and Zipkin:
    these ascend."""
    t = db.table(
        "pk int, a int, b int, c int, PRIMARY KEY (pk, a, b, c)",
        "WITH CLUSTERING ORDER BY (a DESC)",
    )
    assert {name: column[3] for name, column in columns(db, t).items()} == {
        "pk": "none",
        "a": "desc",
        "b": "asc",
        "c": "asc",
    }


@pytest.mark.node
def test_no_compression(db, server):
    """An empty map means no compression: it is kept, and sstables are written uncompressed."""
    t = db.table("pk int PRIMARY KEY, v text", "WITH compression = {}")
    assert option(db, t, "compression") in ({}, None)
    assert "compression = {}" in db.execute(f"DESCRIBE TABLE {t}").one().create_statement
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 'a')")
    server.flush(db.keyspace)
    written = {
        path.name.rpartition("-")[2]
        for path in (server.data_dir / "data" / db.keyspace).glob(f"{t}-*/*")
    }
    assert "Data.db" in written and "CompressionInfo.db" not in written
    assert db.one(f"SELECT v FROM {t} WHERE pk = 1") == "a"


def test_unknown_keyspace(db):
    db.refused((Invalid, Config), "CREATE TABLE no_such_keyspace.t (pk int PRIMARY KEY)")
    db.refused((Invalid, Config), "DROP TABLE no_such_keyspace.t")
    db.execute("DROP TABLE IF EXISTS no_such_table")
    db.refused((Invalid, Config), "DROP TABLE no_such_table")
    db.refused((Invalid, Config), "ALTER TABLE no_such_table ADD v int")
    db.refused((Invalid, Config), "TRUNCATE no_such_table")


def test_names(db):
    db.refused((Invalid, Syntax, Config), f"CREATE TABLE {'a' * 300} (pk int PRIMARY KEY)")
    db.refused((Invalid, Syntax, Config), 'CREATE TABLE "with space" (pk int PRIMARY KEY)')
    db.refused((Invalid, Syntax, Config), 'CREATE TABLE "../up" (pk int PRIMARY KEY)')
    db.refused((Invalid, Syntax, Config), 'CREATE TABLE "" (pk int PRIMARY KEY)')


@pytest.mark.parametrize("text, name, value", [
    ("comment = 'it''s mine'", "comment", "it's mine"),
    ("gc_grace_seconds = 0", "gc_grace_seconds", 0),
    ("gc_grace_seconds = 60", "gc_grace_seconds", 60),
    ("default_time_to_live = 1000", "default_time_to_live", 1000),
    ("bloom_filter_fp_chance = 0.2", "bloom_filter_fp_chance", 0.2),
    ("crc_check_chance = 0.5", "crc_check_chance", 0.5),
    ("min_index_interval = 64", "min_index_interval", 64),
    ("max_index_interval = 4096", "max_index_interval", 4096),
    ("memtable_flush_period_in_ms = 60000", "memtable_flush_period_in_ms", 60000),
    ("speculative_retry = 'NONE'", "speculative_retry", "NONE"),
])
def test_options(db, text, name, value):
    t = db.table("pk int PRIMARY KEY", f"WITH {text}")
    seen = option(db, t, name)
    assert (seen.upper() if name == "speculative_retry" and seen == "NEVER" else seen) in (
        value,
        "NEVER",
    )
    t = db.table("pk int PRIMARY KEY")
    db.execute(f"ALTER TABLE {t} WITH {text}")
    assert option(db, t, name) in (value, "NEVER")


def test_map_options(db):
    t = db.table("pk int PRIMARY KEY", "WITH compaction = {'class': "
        "'SizeTieredCompactionStrategy', 'min_threshold': '6'} "
                 "AND compression = {'class': 'SnappyCompressor', 'chunk_length_in_kb': 16} "
                 "AND caching = {'keys': 'ALL', 'rows_per_partition': 'NONE'} AND comment = "
                     "'three'")
    compaction, compression = option(db, t, "compaction"), option(db, t, "compression")
    assert (
        compaction["class"].endswith("SizeTieredCompactionStrategy")
        and compaction["min_threshold"] == "6"
    )
    assert "SnappyCompressor" in str(compression) and compression["chunk_length_in_kb"] == "16"
    db.execute(f"ALTER TABLE {t} WITH compression = {{'enabled': false}}")
    assert "SnappyCompressor" not in str(option(db, t, "compression"))
    for compressor in ("LZ4Compressor", "DeflateCompressor", "ZstdCompressor"):
        db.execute(f"ALTER TABLE {t} WITH compression = {{'class': '{compressor}'}}")
        assert compressor in str(option(db, t, "compression"))
    db.execute(
        f"ALTER TABLE {t} WITH compaction = {{'class': 'SizeTieredCompactionStrategy', 'enabled':"
        " 'false'}"
    )
    assert option(db, t, "compaction")["enabled"] == "false"


@pytest.mark.scylla
def test_compression_by_its_old_key(db):
    t = db.table(
        "pk int PRIMARY KEY",
        "WITH compression = {'sstable_compression': 'DeflateCompressor', 'chunk_length_kb': 8}",
    )
    compression = option(db, t, "compression")
    assert "DeflateCompressor" in str(compression) and "8" in compression.values()
    db.execute(f"ALTER TABLE {t} WITH compression = {{'sstable_compression': ''}}")
    assert "DeflateCompressor" not in str(option(db, t, "compression"))
    db.execute(f"ALTER TABLE {t} WITH compression = {{}}")


@pytest.mark.parametrize("strategy", ["LeveledCompactionStrategy", "TimeWindowCompactionStrategy"])
def test_other_strategies_are_kept(db, strategy):
    t = db.table("pk int PRIMARY KEY", f"WITH compaction = {{'class': '{strategy}'}}")
    assert option(db, t, "compaction")["class"].endswith(strategy)


def test_unknown_option(db):
    db.refused(Syntax, "CREATE TABLE bad (pk int PRIMARY KEY) WITH no_such_option = 1")
    t = db.table("pk int PRIMARY KEY")
    db.refused(Syntax, f"ALTER TABLE {t} WITH no_such_option = 1")


@pytest.mark.parametrize("text", [
    "gc_grace_seconds = -1", "gc_grace_seconds = 'x'", "default_time_to_live = -1",
    "default_time_to_live = 700000000",
    "bloom_filter_fp_chance = 0", "bloom_filter_fp_chance = 1.5",
    pytest.param("bloom_filter_fp_chance = -1", marks=pytest.mark.scylla),
    "crc_check_chance = 1.1", "crc_check_chance = -0.1", "min_index_interval = 0",
    "min_index_interval = 128 AND max_index_interval = 64", "memtable_flush_period_in_ms = -1",
    "speculative_retry = 'sometimes'", "speculative_retry = '101PERCENTILE'",
    "compaction = {'class': 'NoSuchStrategy'}", "compaction = {'min_threshold': '4'}",
    "compaction = {'class': 'SizeTieredCompactionStrategy', 'no_such_key': '1'}",
    "compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': '1'}",
    "compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 'x'}",
    "compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': '8', 'max_threshold': "
        "'4'}",
    "compression = {'sstable_compression': 'NoSuchCompressor'}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': 3}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': 0}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'no_such_key': '1'}",
    "caching = {'keys': 'SOME'}", "caching = {'no_such_key': 'ALL'}",
])
def test_wrong_option_values(db, text):
    db.refused((Config, Syntax, Invalid), f"CREATE TABLE bad (pk int PRIMARY KEY) WITH {text}")
    t = db.table("pk int PRIMARY KEY")
    before = db.create_statement(f"TABLE {t}")
    db.refused((Config, Syntax, Invalid), f"ALTER TABLE {t} WITH {text}")
    assert db.create_statement(f"TABLE {t}") == before


@pytest.mark.scylla
@pytest.mark.parametrize("text", [
    "tombstone_gc = {'mode': 'timeout'}", "tombstone_gc = {'mode': 'immediate'}",
    "tombstone_gc = {'mode': 'disabled'}",
    "per_partition_rate_limit = {'max_reads_per_second': 100}", "paxos_grace_seconds = 1000",
    "speculative_retry = '99.0PERCENTILE'",
    "cdc = {'enabled': 'false'}", "read_repair_chance = 0.1", "dclocal_read_repair_chance = 0.1",
])
def test_scylla_options_are_accepted(db, text):
    db.table("pk int PRIMARY KEY", f"WITH {text}")


@pytest.mark.scylla
def test_wrong_tombstone_gc(db):
    db.refused(
        Config, "CREATE TABLE bad (pk int PRIMARY KEY) WITH tombstone_gc = {'mode': 'sometimes'}"
    )


def test_id_option(db):
    t = db.table("pk int PRIMARY KEY", "WITH id = 5a1c395e-b41f-11e5-9f22-ba0be0483c18")
    assert str(option(db, t, "id")) == "5a1c395e-b41f-11e5-9f22-ba0be0483c18"
    db.refused((Config, Invalid, Syntax), "CREATE TABLE bad (pk int PRIMARY KEY) WITH id = 55")


def test_add_column(db):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 1)")
    db.execute(f"ALTER TABLE {t} ADD w text")
    db.execute(f"ALTER TABLE {t} ADD (x set<int>, s int STATIC)")
    assert db.rows(f"SELECT pk, ck, v, w, x, s FROM {t}") == [(1, 1, 1, None, None, None)]
    db.execute(f"UPDATE {t} SET w = 'w', x = {{1}}, s = 7 WHERE pk = 1 AND ck = 1")
    assert db.rows(f"SELECT v, w, x, s FROM {t}") == [(1, "w", {1}, 7)]
    db.refused(Invalid, f"ALTER TABLE {t} ADD v int")
    db.refused(Invalid, f"ALTER TABLE {t} ADD pk int")
    db.refused(Invalid, f"ALTER TABLE {t} ADD y no_such_type")
    db.refused(Invalid, f"ALTER TABLE {t} ADD y list<list<int>>")
    simple = db.table("pk int PRIMARY KEY")
    db.refused(Invalid, f"ALTER TABLE {simple} ADD s int STATIC")


def test_drop_column(db):
    t = db.table("pk int, ck int, v int, w int, PRIMARY KEY (pk, ck)")
    db.execute(f"INSERT INTO {t} (pk, ck, v, w) VALUES (1, 1, 1, 2)")
    db.execute(f"ALTER TABLE {t} DROP v")
    db.refused(Invalid, f"SELECT v FROM {t}")
    assert db.rows(f"SELECT * FROM {t}") == [(1, 1, 2)]
    db.refused(Invalid, f"ALTER TABLE {t} DROP v")
    db.refused(Invalid, f"ALTER TABLE {t} DROP pk")
    db.refused(Invalid, f"ALTER TABLE {t} DROP ck")
    db.execute(f"ALTER TABLE {t} ADD v int")
    assert db.rows(f"SELECT v, w FROM {t}") == [(None, 2)]
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 1, 5)")
    assert db.rows(f"SELECT v, w FROM {t}") == [(5, 2)]
    db.execute(f"ALTER TABLE {t} DROP (v, w)")
    assert db.rows(f"SELECT * FROM {t}") == [(1, 1)]


def test_dropped_column_of_another_type(db):
    t = db.table("pk int PRIMARY KEY, v int, c list<int>")
    db.execute(f"ALTER TABLE {t} DROP v")
    db.refused(Invalid, f"ALTER TABLE {t} ADD v list<int>")
    db.refused(Invalid, f"ALTER TABLE {t} ADD v text")
    db.execute(f"ALTER TABLE {t} ADD v int")


def test_drop_column_using_timestamp(db):
    t = db.table("pk int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 1) USING TIMESTAMP 1000")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, 2) USING TIMESTAMP 3000")
    db.execute(f"ALTER TABLE {t} DROP v USING TIMESTAMP 2000")
    db.execute(f"ALTER TABLE {t} ADD v int")
    assert sorted(db.rows(f"SELECT pk, v FROM {t}")) == [(1, None), (2, 2)]


def test_rename_column(db):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 3)")
    db.execute(f"ALTER TABLE {t} RENAME pk TO a AND ck TO b")
    assert db.rows(f"SELECT a, b, v FROM {t} WHERE a = 1 AND b = 2") == [(1, 2, 3)]
    db.refused(Invalid, f"SELECT pk FROM {t}")
    db.refused(Invalid, f"ALTER TABLE {t} RENAME v TO w")
    db.refused(Invalid, f"ALTER TABLE {t} RENAME a TO v")
    db.refused(Invalid, f"ALTER TABLE {t} RENAME nothing TO w")


def test_alter_type_is_refused(db):
    t = db.table("pk int PRIMARY KEY, v int")
    db.refused((Invalid, Syntax, Config), f"ALTER TABLE {t} ALTER v TYPE text")


def test_drop_and_create_again(db):
    t = db.table("pk int PRIMARY KEY, v int")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, 1)")
    db.execute(f"DROP TABLE {t}")
    db.refused(Invalid, f"SELECT * FROM {t}")
    db.refused(Invalid, f"INSERT INTO {t} (pk, v) VALUES (1, 1)")
    db.table("pk text PRIMARY KEY, v text", name=t)
    assert db.rows(f"SELECT * FROM {t}") == []
    db.execute(f"INSERT INTO {t} (pk, v) VALUES ('a', 'b')")
    assert db.rows(f"SELECT * FROM {t}") == [("a", "b")]


@pytest.mark.parametrize("verb", ["TRUNCATE", "TRUNCATE TABLE"])
def test_truncate(db, verb):
    t = db.table("pk int, ck int, s int STATIC, PRIMARY KEY (pk, ck)")
    for pk in range(20):
        db.execute(f"INSERT INTO {t} (pk, ck, s) VALUES ({pk}, 1, 1)")
    db.execute(f"{verb} {t}")
    assert db.rows(f"SELECT * FROM {t}") == []
    db.execute(f"INSERT INTO {t} (pk, ck, s) VALUES (1, 2, 3)")
    assert db.rows(f"SELECT pk, ck, s FROM {t}") == [(1, 2, 3)]


def test_select_star_order(db):
    t = db.table("z int, b int, c int, m int, a int STATIC, y int, PRIMARY KEY ((z, b), m, c)")
    assert db.execute(f"SELECT * FROM {t}").column_names == ["z", "b", "m", "c", "a", "y"]


def test_many_columns(db):
    count = 500
    t = db.table("pk int PRIMARY KEY, " + ", ".join(f"c{n} int" for n in range(count)))
    db.execute(
        f"INSERT INTO {t} (pk, {', '.join(f'c{n}' for n in range(count))}) VALUES (1,"
        f" {', '.join(map(str, range(count)))})"
    )
    row = db.execute(f"SELECT * FROM {t}").one()
    assert all(getattr(row, f"c{n}") == n for n in range(count))
