"""System tables as clients read them: columns that must exist and not be null, and consistency
between tables."""

import uuid

import pytest
from database import Invalid

LOCAL = ["key", "cluster_name", "cql_version", "data_center", "rack", "host_id", "partitioner",
    "release_version", "rpc_address",
         "broadcast_address", "listen_address", "schema_version", "tokens",
         "native_protocol_version"]


@pytest.mark.parametrize("where", ["", "WHERE key = 'local'", "WHERE key='local' LIMIT 1"])
def test_local(db, where):
    row = db.execute(f"SELECT * FROM system.local {where}").one()
    for name in LOCAL:
        assert getattr(row, name) not in (None, "", set()), name
    assert row.partitioner == "org.apache.cassandra.dht.Murmur3Partitioner"
    assert row.tokens and all(-2**63 <= int(token) < 2**63 for token in row.tokens)
    assert isinstance(row.host_id, uuid.UUID) and isinstance(row.schema_version, uuid.UUID)
    assert str(row.rpc_address) == db.host
    assert db.rows("SELECT key FROM system.local WHERE key = 'other'") == []


@pytest.mark.scylla
def test_supported_features(db):
    """The features of the node. ScyllaDB's tools look for TABLETS."""
    features = db.one("SELECT supported_features FROM system.local").split(",")
    assert "TABLETS" in features and len(features) > 1 and features == sorted(set(features))


def test_local_by_columns(db):
    for name in LOCAL + [
        "bootstrapped",
        "gossip_generation",
        "truncated_at",
        "broadcast_port",
        "listen_port",
        "rpc_port",
    ]:
        db.one(f"SELECT {name} FROM system.local WHERE key = 'local'")
    db.refused(Invalid, "SELECT nothing FROM system.local")


@pytest.mark.scylla
def test_versions(db):
    assert db.one("SELECT release_version FROM system.local").startswith("4.1.")
    assert db.rows("SELECT key, version FROM system.versions WHERE key = 'local'")[0][0] == "local"
    assert (
        db.one("SELECT data_center FROM system.local"),
        db.one("SELECT rack FROM system.local"),
    ) == ("datacenter1", "rack1")
    assert db.one("SELECT cql_version FROM system.local").startswith("3.4.")


def test_peers(db):
    assert (
        db.rows(
            "SELECT peer, data_center, rack, host_id, rpc_address, release_version, schema_version,"
            " tokens FROM system.peers"
        )
        == []
    )
    assert db.rows("SELECT peer, peer_port, data_center, host_id, native_address, native_port, "
        "preferred_ip, preferred_port, rack, "
                   "release_version, schema_version, tokens FROM system.peers_v2") == []
    assert db.rows("SELECT * FROM system.peers WHERE peer = '127.0.0.99'") == []


COLUMNS = {
    "keyspaces": "keyspace_name, durable_writes, replication",
    "tables": "keyspace_name, table_name, id, bloom_filter_fp_chance, caching, comment, "
        "compaction, compression, crc_check_chance, "
              "default_time_to_live, extensions, flags, gc_grace_seconds, max_index_interval, "
                  "memtable_flush_period_in_ms, min_index_interval, "
              "speculative_retry",
    "columns": "keyspace_name, table_name, column_name, clustering_order, column_name_bytes, kind, "
        "position, type",
    "types": "keyspace_name, type_name, field_names, field_types",
    "functions": "keyspace_name, function_name, argument_types, argument_names, body, "
        "called_on_null_input, language, return_type",
    "aggregates": "keyspace_name, aggregate_name, argument_types, final_func, initcond, "
        "return_type, state_func, state_type",
    "triggers": "keyspace_name, table_name, trigger_name, options",
    "indexes": "keyspace_name, table_name, index_name, kind, options",
    "views": "keyspace_name, view_name, base_table_id, base_table_name, id, include_all_columns, "
        "where_clause",
    "dropped_columns": "keyspace_name, table_name, column_name, dropped_time, kind, type",
}


@pytest.mark.parametrize("table", COLUMNS)
def test_schema_tables(db, table):
    db.table("pk int PRIMARY KEY")
    if table == "dropped_columns":  # of other tests, with drop times that Python cannot show
        assert (
            db.rows(
                f"SELECT {COLUMNS[table]} FROM system_schema.{table} WHERE keyspace_name = %s",
                db.keyspace,
            )
            == []
        )
        return
    star = db.rows(f"SELECT * FROM system_schema.{table}")
    assert len(db.rows(f"SELECT {COLUMNS[table]} FROM system_schema.{table}")) == len(star)
    assert len(db.rows(f"SELECT * FROM system_schema.{table}", fetch_size=3)) == len(star)
    mine = db.rows(
        f"SELECT {COLUMNS[table]} FROM system_schema.{table} WHERE keyspace_name = %s", db.keyspace
    )
    assert bool(mine) == (table in ("keyspaces", "tables", "columns"))
    assert db.rows(f"SELECT * FROM system_schema.{table} WHERE keyspace_name = 'nothing'") == []


def test_schema_tables_by_full_key(db):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    where = f"WHERE keyspace_name = '{db.keyspace}' AND table_name = '{t}'"
    assert len(db.rows(f"SELECT * FROM system_schema.tables {where}")) == 1
    assert db.column(f"SELECT column_name FROM system_schema.columns {where}") == ["ck", "pk", "v"]
    assert db.column(
        f"SELECT column_name FROM system_schema.columns {where} AND column_name = 'v'"
    ) == ["v"]
    assert db.column(
        f"SELECT type FROM system_schema.columns {where} AND column_name IN ('v', 'pk')"
    ) == ["int", "int"]
    assert db.rows(f"SELECT * FROM system_schema.indexes {where}") == []
    assert (
        len(
            db.rows(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name IN"
                f" ('{db.keyspace}', 'nothing')"
            )
        )
        >= 1
    )


def test_schema_covers_the_system_tables(db):
    """Drivers read the types of queried columns from the schema tables."""
    known = {
        (k, t) for k, t in db.rows("SELECT keyspace_name, table_name FROM system_schema.tables")
    }
    assert {
        ("system", "local"),
        ("system", "peers"),
        ("system_schema", "tables"),
        ("system_schema", "columns"),
    } <= known
    keyspaces = set(db.column("SELECT keyspace_name FROM system_schema.keyspaces"))
    assert {k for k, _ in known} <= keyspaces and {"system", "system_schema"} <= keyspaces


def test_virtual_schema(db):
    for table, columns in (("keyspaces", "keyspace_name"),
            ("tables", "keyspace_name, table_name, comment"),
                           ("columns", "keyspace_name, table_name, column_name, clustering_order, "
                               "column_name_bytes, kind, position, type")):
        db.rows(f"SELECT {columns} FROM system_virtual_schema.{table}")
        db.rows(
            f"SELECT * FROM system_virtual_schema.{table} WHERE keyspace_name ="
            " 'system_virtual_schema'"
        )


def test_schema_version_changes_with_the_schema(db):
    select = "SELECT schema_version FROM system.local WHERE key = 'local'"
    before = db.one(select)
    assert db.one(select) == before
    t = db.table("pk int PRIMARY KEY")
    after = db.one(select)
    assert after != before
    db.execute(f"INSERT INTO {t} (pk) VALUES (1)")
    assert db.one(select) == after


def test_size_estimates(db):
    db.rows(
        "SELECT range_start, range_end, partitions_count, mean_partition_size FROM"
        " system.size_estimates WHERE keyspace_name = %s AND table_name = %s",
        db.keyspace,
        "x",
    )


@pytest.mark.scylla
def test_scylla_tables(db):
    t = db.table("pk int PRIMARY KEY")
    db.rows("SELECT keyspace_name, table_name, partitioner FROM system_schema.scylla_tables")
    assert db.rows(
        "SELECT keyspace_name, initial_tablets FROM system_schema.scylla_keyspaces WHERE"
        " keyspace_name = %s",
        db.keyspace,
    )
    assert (
        db.rows("SELECT address, port, driver_name, driver_version, shard_id FROM system.clients")
        != []
    )
    table_id = db.one(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
        db.keyspace,
        t,
    )
    tablets = db.rows(
        "SELECT last_token, replicas FROM system.tablets WHERE table_id = %s", table_id
    )
    assert tablets and tablets[-1][0] == 2**63 - 1


def test_tracing(db):
    import time

    from cassandra.query import SimpleStatement

    t = db.table("pk int PRIMARY KEY, v int")
    result = db.session.execute(
        SimpleStatement(f"INSERT INTO {t} (pk, v) VALUES (1, 1)"), trace=True
    )
    trace = result.get_query_trace(max_wait_sec=20)
    assert trace.trace_id and trace.events and trace.request_type
    assert (
        trace.coordinator is not None
        and trace.started_at is not None
        and trace.duration is not None
    )
    assert all(event.description and event.source for event in trace.events)
    prepared = db.prepare(f"SELECT v FROM {t} WHERE pk = ?")
    trace = db.session.execute(prepared, (1,), trace=True).get_query_trace(max_wait_sec=20)
    assert trace.events
    end = time.monotonic() + 20
    while (
        not (
            rows := db.rows(
                "SELECT duration FROM system_traces.sessions WHERE session_id = %s", trace.trace_id
            )
        )
        and time.monotonic() < end
    ):
        time.sleep(0.1)
    assert rows and rows[0][0] >= 0


def test_traces_are_replicated(db):
    """As ScyllaDB creates it, and as operators alter it."""
    def replication():
        return dict(
            db.one(
                "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name ="
                " 'system_traces'"
            )
        )

    before = replication()
    assert before["class"].endswith("SimpleStrategy") and before["replication_factor"] == "2"
    db.execute(
        "ALTER KEYSPACE system_traces WITH replication = {'class': 'SimpleStrategy',"
        " 'replication_factor': 3}"
    )
    assert replication()["replication_factor"] == "3"
    db.execute(
        "ALTER KEYSPACE system_traces WITH replication = {'class': 'SimpleStrategy',"
        " 'replication_factor': 2}"
    )
    assert replication() == before


def test_warnings(db):
    t = db.table("pk int, ck int, v blob, PRIMARY KEY (pk, ck)")
    from cassandra.query import BatchStatement

    insert = db.prepare(f"INSERT INTO {t} (pk, ck, v) VALUES (?, ?, ?)")
    batch = BatchStatement()
    for n in range(20):
        batch.add(insert, (n, n, bytes(10_000)))
    future = db.session.execute_async(batch)
    try:
        future.result()
    except Invalid:
        return  # Cassandra's fail threshold is below ScyllaDB's warn threshold
    assert future.warnings


@pytest.mark.scylla
def test_settings_that_are_only_shown(db):
    import json

    from cassandra import WriteFailure

    shown = {
        name: (kind, json.loads(value))
        for name, kind, value in db.rows("SELECT name, type, value FROM system.config")
    }
    for name, kind, of in (("num_tokens", "integer", int), ("workdir", "string", str),
            ("commitlog_directory", "string", str), ("endpoint_snitch", "string", str),
                           ("developer_mode", "bool", bool),
                           ("experimental_features", "string list", list),
                           ("sstable_format", "string", str),
                           ("tablets_mode_for_new_keyspaces", "string", str),
                           ("live_updatable_config_params_changeable_via_cql", "bool", bool)):
        assert shown[name][0] == kind and isinstance(shown[name][1], of), name
    assert shown["num_tokens"][1] == len(db.one("SELECT tokens FROM system.local"))
    db.refused(
        WriteFailure,
        "UPDATE system.config SET value = '1' WHERE name = 'num_tokens'",
        match="not live",
    )


@pytest.fixture
def low_limits(db):
    """Collections of more than 3 elements and partitions of more than 10 rows are large."""
    changed = {
        "compaction_collection_elements_count_warning_threshold": "3",
        "compaction_rows_count_warning_threshold": "10",
    }
    before = {
        name: db.one("SELECT value FROM system.config WHERE name = %s", name) for name in changed
    }
    for name, value in changed.items():
        db.execute("UPDATE system.config SET value = %s WHERE name = %s", value, name)
    yield
    for name, value in before.items():
        db.execute("UPDATE system.config SET value = %s WHERE name = %s", value, name)


@pytest.mark.scylla
@pytest.mark.node
def test_large_things(db, server, low_limits):
    t = db.table("pk text, ck int, m map<int, text>, v text, PRIMARY KEY (pk, ck)")
    for ck in range(12):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES ('many', {ck}, 'x')")
    for pk, entries in (("few", 3), ("more", 4)):
        db.execute(
            f"INSERT INTO {t} (pk, ck, m) VALUES ('{pk}', 7,"
            f" {{{', '.join(f'{n}: {chr(39)}x{chr(39)}' for n in range(entries))}}})"
        )
    where = f"WHERE keyspace_name = '{db.keyspace}' AND table_name = '{t}'"
    tables = {
        "large_partitions": "partition_key, rows, range_tombstones",
        "large_rows": "partition_key",
        "large_cells": "partition_key, clustering_key, column_name, collection_elements",
    }

    def found():
        return {
            name: db.rows(f"SELECT {columns} FROM system.{name} {where}")
            for name, columns in tables.items()
        }

    nothing = dict.fromkeys(tables, [])
    assert found() == nothing, "nothing is written yet"
    server.flush(db.keyspace)
    large = {
        "large_partitions": [("many", 12, 0)],
        "large_rows": [],
        "large_cells": [("more", "7", "m", 4)],
    }
    assert found() == large
    ((name, size, at),) = db.rows(
        f"SELECT sstable_name, partition_size, compaction_time FROM system.large_partitions {where}"
    )
    assert name.startswith("me-") and name.endswith("-big-Data.db") and size > 12 and at is not None
    status, answer = server.admin(
        "POST", f"/storage_service/keyspace_compaction/{db.keyspace}?cf={t}"
    )
    assert status == 200, answer
    assert found() == large
    db.execute(f"TRUNCATE {t}")
    assert found() == nothing, "the large data was removed with its sstable"


@pytest.mark.scylla
@pytest.mark.node
def test_snapshots_and_sizes(db, server):
    t = db.table("pk int PRIMARY KEY, v text")
    for pk in range(50):
        db.execute(f"INSERT INTO {t} (pk, v) VALUES ({pk}, 'x')")
    assert (
        int(
            db.one(
                "SELECT value FROM system.runtime_info WHERE group = 'memtable' AND item ="
                " 'entries'"
            )
        )
        >= 50
    )
    status, answer = server.admin(
        "POST", f"/storage_service/snapshots?tag=listed&kn={db.keyspace}&cf={t}"
    )
    assert status == 200, answer
    rows = db.rows(
        "SELECT snapshot_name, live, total FROM system.snapshots WHERE keyspace_name ="
        f" '{db.keyspace}' AND table_name = '{t}' ALLOW FILTERING"
    )
    assert len(rows) == 1 and rows[0][0] == "listed" and rows[0][2] > 0
    table_id = db.one(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
        db.keyspace,
        t,
    )
    sizes = db.rows(
        "SELECT last_token, missing_replicas, replicas FROM system.tablet_sizes WHERE table_id"
        " = %s",
        table_id,
    )
    assert [row[0] for row in sizes] == db.column(
        "SELECT last_token FROM system.tablets WHERE table_id = %s", table_id
    )
    host_id = db.one("SELECT host_id FROM system.local")
    assert all(set(row[2]) == {host_id} and not row[1] for row in sizes)
    on_disk = sum(row[2][host_id] for row in sizes)
    node, load, allocated = db.rows(
        "SELECT node, storage_load, tablets_allocated FROM system.load_per_node"
    )[0]
    assert node == host_id and load >= on_disk > 0 and allocated >= len(sizes)
    assert (
        int(
            db.one(
                "SELECT value FROM system.runtime_info WHERE group = 'generic' AND item = 'load'"
            )
        )
        > 0
    )
    server.admin("DELETE", f"/storage_service/snapshots?tag=listed&kn={db.keyspace}")
    assert (
        db.rows("SELECT * FROM system.snapshots WHERE snapshot_name = 'listed' ALLOW FILTERING")
        == []
    )


@pytest.mark.scylla
def test_tables_of_the_process(db):
    assert db.rows("SELECT name, is_running, protocol FROM system.protocol_servers") == [
        ("native", True, "cql")
    ]
    assert db.one("SELECT compatible_version FROM system.versions") == db.one(
        "SELECT release_version FROM system.local"
    )
