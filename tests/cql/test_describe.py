"""DESCRIBE on the server: every form. The printed statements create the same schema again."""

import re

import pytest
from database import Invalid, Syntax

TABLES = {
    "plain": ("pk int PRIMARY KEY, v text", ""),
    "composite": ("a int, b text, c timeuuid, d bigint, s set<int> STATIC, v frozen<map<text, "
        "frozen<list<int>>>>, w list<text>, "
                  "PRIMARY KEY ((a, b), c, d)", "WITH CLUSTERING ORDER BY (c DESC, d ASC)"),
    "quoted": ('"Pk" int, "select" text, "a ""quote""" int, v int, PRIMARY KEY ("Pk", "select")',
        'WITH CLUSTERING ORDER BY ("select" DESC)'),
    "natives": ("pk uuid PRIMARY KEY, a ascii, b blob, c boolean, d date, e decimal, f double, g "
        "duration, h float, i inet, j smallint, "
                "k time, l timestamp, m tinyint, n tuple<int, text>, o varint, p bigint, q "
                    "timeuuid", ""),
    "options": ("pk int PRIMARY KEY", "WITH comment = 'it''s described' AND gc_grace_seconds = 100 "
        "AND default_time_to_live = 50 "
                "AND bloom_filter_fp_chance = 0.1 AND min_index_interval = 64 AND "
                    "max_index_interval = 1024 AND crc_check_chance = 0.5 "
                "AND memtable_flush_period_in_ms = 70000 AND speculative_retry = '10ms' AND "
                    "caching = {'keys': 'NONE', 'rows_per_partition': '5'} "
                "AND compression = {'class': 'DeflateCompressor', 'chunk_length_in_kb': 32} "
                "AND compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': '5', "
                    "'max_threshold': '17', 'enabled': 'false'}"),
    "uncompressed": ("pk int PRIMARY KEY", "WITH compression = {'enabled': false}"),
    "udts": ("pk int PRIMARY KEY, a frozen<described_outer>, b described_inner, c "
        "list<frozen<described_inner>>", ""),
}


@pytest.fixture(scope="module")
def schema(db):
    db.execute("CREATE TYPE described_inner (x int, \"Y\" text)")
    db.execute(
        "CREATE TYPE described_outer (i frozen<described_inner>, l"
        " frozen<list<frozen<described_inner>>>)"
    )
    for name, (columns, options) in TABLES.items():
        db.execute(f"CREATE TABLE described_{name} ({columns}) {options}")
    return db


def stored(db, table):
    """A table in the schema tables, without its id."""
    result = []
    for name in ("tables", "columns"):
        rows = db.execute(
            f"SELECT * FROM system_schema.{name} WHERE keyspace_name = %s AND table_name = %s",
            db.keyspace,
            table,
        )
        result.append(
            sorted(str({k: v for k, v in row._asdict().items() if k != "id"}) for row in rows)
        )
    return result


@pytest.mark.parametrize("name", TABLES)
def test_table_makes_itself_again(schema, name):
    db, table = schema, f"described_{name}"
    before, text = stored(db, table), db.create_statement(f"TABLE {table}")
    assert text.startswith(f"CREATE TABLE {db.keyspace}.{table} (") and text.rstrip().endswith(";")
    db.execute(f"DROP TABLE {table}")
    db.execute(text)
    assert db.create_statement(f"TABLE {table}") == text
    assert stored(db, table) == before


def test_rows(schema):
    db = schema
    result = db.execute(f"DESCRIBE TABLE {db.keyspace}.described_plain")
    assert result.column_names == ["keyspace_name", "type", "name", "create_statement"]
    row = result.one()
    assert tuple(row)[:3] == (db.keyspace, "table", "described_plain")
    assert re.search(r"pk int PRIMARY KEY,\s+v text", row.create_statement)


def test_keyspace_makes_itself_again(schema):
    db = schema
    rows = db.rows(f"DESCRIBE KEYSPACE {db.keyspace}")
    kinds = [row[1] for row in rows]
    assert kinds[0] == "keyspace" and set(kinds) == {"keyspace", "type", "table"}
    assert kinds == sorted(kinds, key=["keyspace", "type", "table"].index)
    names = [row[2] for row in rows]
    assert names.index("described_inner") < names.index("described_outer")
    copy = db.keyspace + "_copy"
    db.execute(f"DROP KEYSPACE IF EXISTS {copy}")
    for row in rows:
        db.execute(row[3].replace(db.keyspace, copy))
    again = [
        (row[1], row[2].replace(copy, db.keyspace), row[3].replace(copy, db.keyspace))
        for row in db.rows(f"DESCRIBE KEYSPACE {copy}")
    ]
    assert again == [(row[1], row[2], row[3]) for row in rows]
    db.execute(f"DROP KEYSPACE {copy}")
    assert db.rows(f"DESCRIBE ONLY KEYSPACE {db.keyspace}") == rows[:1]
    assert db.rows("DESCRIBE KEYSPACE") == rows


def test_types(schema):
    db = schema
    assert db.rows("DESCRIBE TYPES")[0][:3] == (db.keyspace, "type", "described_inner")
    text = db.create_statement("TYPE described_inner")
    assert re.fullmatch(
        rf'CREATE TYPE {db.keyspace}.described_inner \(\s*x int,\s*"Y" text\s*\);', text.strip()
    )
    assert "frozen<described_inner>" in db.create_statement(f"TYPE {db.keyspace}.described_outer")


def test_lists(schema):
    db = schema
    assert (db.keyspace, "keyspace", db.keyspace) in [
        row[:3] for row in db.rows("DESCRIBE KEYSPACES")
    ]
    assert "system" in [row[2] for row in db.rows("DESC KEYSPACES")]
    tables = [row[2] for row in db.rows("DESCRIBE TABLES") if row[0] == db.keyspace]
    assert sorted(tables) == sorted(f"described_{name}" for name in TABLES)
    assert db.rows("DESCRIBE FUNCTIONS") is not None and db.rows("DESCRIBE AGGREGATES") is not None


def test_schema_and_cluster(schema):
    db = schema
    rows = db.rows("DESCRIBE SCHEMA")
    assert (db.keyspace, "table", "described_plain") in [row[:3] for row in rows]
    assert not any(row[0] in ("system", "system_schema") for row in rows)
    full = db.rows("DESCRIBE FULL SCHEMA")
    assert any(row[0] == "system_schema" for row in full)
    ((cluster, partitioner, snitch, *_),) = [row for row in db.rows("DESCRIBE CLUSTER")][:1]
    assert cluster and partitioner.endswith("Murmur3Partitioner") and snitch


def test_generic(schema):
    db = schema
    assert db.rows("DESCRIBE described_plain") == db.rows("DESCRIBE TABLE described_plain")
    assert db.rows(f"DESCRIBE {db.keyspace}") == db.rows(f"DESCRIBE KEYSPACE {db.keyspace}")
    assert db.rows(f"DESCRIBE {db.keyspace}.described_plain") == db.rows(
        "DESCRIBE TABLE described_plain"
    )


def test_internals(schema):
    db = schema
    text = db.create_statement("TABLE described_plain WITH INTERNALS")
    table_id = db.one(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name ="
        " 'described_plain'",
        db.keyspace,
    )
    assert f"ID = {table_id}" in text or f"id = {table_id}" in text
    db.execute("DROP TABLE described_plain")
    db.execute(text)
    assert (
        db.one(
            "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name ="
            " 'described_plain'",
            db.keyspace,
        )
        == table_id
    )


def test_pages(schema):
    db = schema
    assert db.rows(f"DESCRIBE KEYSPACE {db.keyspace}", fetch_size=2) == db.rows(
        f"DESCRIBE KEYSPACE {db.keyspace}"
    )


def test_system_tables_are_described(db):
    assert "cluster_name" in db.create_statement("TABLE system.local")
    assert "CREATE TABLE" in db.create_statement("TABLE system_schema.tables")


@pytest.mark.parametrize("text", ["TABLE no_such_table", "KEYSPACE no_such_keyspace",
    "TYPE no_such_type", "no_such_thing", "FUNCTION no_such_function",
                                  "AGGREGATE no_such_aggregate", "INDEX no_such_index",
                                  "MATERIALIZED VIEW no_such_view", "TABLE no_ks.no_table"])
def test_unknown(db, text):
    db.refused(Invalid, f"DESCRIBE {text}")


@pytest.mark.parametrize("text", ["DESCRIBE TABLE", "DESCRIBE ONLY TABLE x",
    "DESCRIBE KEYSPACE a.b.c", "DESCRIBE WITH INTERNALS"])
def test_wrong_text(db, text):
    db.refused((Syntax, Invalid), text)


def test_dropped_columns_with_internals(db):
    t = db.table("pk int PRIMARY KEY, a int, b int")
    db.execute(f"ALTER TABLE {t} DROP a")
    text = db.create_statement(f"TABLE {t} WITH INTERNALS")
    assert re.search(rf"ALTER TABLE {db.keyspace}.{t} DROP a USING TIMESTAMP \d+;", text)
    assert " a int" in text and "DROP" not in db.create_statement(f"TABLE {t}")
