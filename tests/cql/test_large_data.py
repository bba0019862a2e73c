"""The large-data guardrails on replicas: writes to partitions, rows and collections that earlier
writes made large."""

import json

import pytest
from database import Invalid, Syntax

pytestmark = [pytest.mark.scylla, pytest.mark.node]

KIB = 1024


@pytest.fixture
def setting(db):
    """Changes settings during a test."""
    before = {}

    def change(**values):
        for name, value in values.items():
            if name not in before:
                before[name] = json.loads(
                    db.one(f"SELECT value FROM system.config WHERE name = '{name}'")
                )
            db.execute(f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'")

    yield change
    for name, value in before.items():
        db.execute(f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'")


@pytest.fixture
def t(db):
    """A table with guardrails."""
    return db.table(
        "pk int, ck int, a blob, b blob, s set<int>, PRIMARY KEY (pk, ck)",
        "WITH large_data_guardrails_enabled = true",
    )


class Writer:
    """Writes rows of a table. `put` returns the warnings."""

    def __init__(self, db, t):
        self.db = db
        self.statements = {
            column: db.prepare(f"INSERT INTO {t} (pk, ck, {column}) VALUES (?, ?, ?)")
            for column in "abs"
        }

    def put(self, pk, ck, **columns):
        found = []
        for column, value in columns.items():
            future = self.db.session.execute_async(self.statements[column], (pk, ck, value))
            future.result()
            found += future.warnings or []
        return found


def soft(*kinds):
    return ["Large data guardrail: Soft limit violation for " + ", ".join(kinds)]


def test_partition(db, server, setting, t):
    setting(compaction_large_partition_warning_threshold_mb=1, large_partition_fail_threshold_mb=2)
    writer = Writer(db, t)
    counted = server.metric("scylla_database_large_partition_exceeding_threshold")
    for ck in range(3):
        assert writer.put(1, ck, a=bytes(600 * KIB)) == [], "it is not known to be large yet"
    server.flush(db.keyspace)
    assert server.metric("scylla_database_large_partition_exceeding_threshold") == counted + 1
    assert writer.put(1, 99, a=b"") == soft("partition")
    assert writer.put(2, 0, a=b"") == []
    line = f"Writing large partition {db.keyspace}/{t}: 1 ("
    assert any(
        "large_data" in log and line in log for log in server.log_tail(1000).splitlines()
    ), server.log_tail()
    listed = db.rows(
        "SELECT partition_key, rows FROM system.large_partitions WHERE keyspace_name ="
        f" '{db.keyspace}' AND table_name = '{t}'"
    )
    assert listed == [("1", 3)]
    setting(large_data_cql_warnings="false")
    assert writer.put(1, 99, a=b"") == [], "the log has it"

    setting(large_partition_fail_threshold_mb=1, large_data_cql_warnings="true")
    refusal = (
        r"Large data guardrail: partition size \d+ exceeds hard limit 1048576 \(keyspace="
        + f"{db.keyspace}, table={t}, partition_key=1"
    )
    with pytest.raises(Invalid, match=refusal):
        writer.put(1, 99, a=b"")
    batch = (
        f"BEGIN BATCH INSERT INTO {t} (pk, ck) VALUES (2, 7); INSERT INTO {t} (pk, ck) VALUES (1,"
        " 7); APPLY BATCH"
    )
    db.refused(Invalid, batch, match="partition size")
    assert db.rows(f"SELECT ck FROM {t} WHERE pk = 1 AND ck = 7") == []
    db.refused(Invalid, f"DELETE FROM {t} WHERE pk = 1 AND ck = 0", match="partition size")
    db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck = 0 BYPASS LARGE_DATA_GUARDRAILS")
    db.refused(Syntax, f"INSERT INTO {t} (pk, ck) VALUES (1, 1) BYPASS LARGE_DATA_GUARDRAILS")
    assert writer.put(2, 0, a=b"") == []
    db.execute(f"ALTER TABLE {t} WITH large_data_guardrails_enabled = false")
    assert writer.put(1, 99, a=b"") == []
    db.execute(f"ALTER TABLE {t} WITH large_data_guardrails_enabled = true")
    setting(large_partition_fail_threshold_mb=0)
    assert writer.put(1, 99, a=b"") == soft("partition")
    # When the sstable is gone, the partition is small again.
    db.execute(f"DELETE FROM {t} WHERE pk = 1 BYPASS LARGE_DATA_GUARDRAILS")
    db.execute(f"ALTER TABLE {t} WITH gc_grace_seconds = 0")
    server.flush(db.keyspace)
    server.compact(db.keyspace)
    assert writer.put(1, 0, a=b"") == []


def test_rows_of_a_partition(db, server, setting, t):
    setting(compaction_rows_count_warning_threshold=50, rows_count_fail_threshold=0)
    writer = Writer(db, t)
    for ck in range(60):
        writer.put(1, ck, a=b"")
    server.flush(db.keyspace)
    assert writer.put(1, 99, a=b"") == soft("partition")
    setting(rows_count_fail_threshold=50)
    with pytest.raises(Invalid, match="partition row count 60 exceeds hard limit 50"):
        writer.put(1, 99, a=b"")


def test_row(db, server, setting, t):
    """A row that several writes made large, in the memtable and in an sstable."""
    setting(compaction_large_row_warning_threshold_mb=1, large_row_fail_threshold_mb=10)
    writer = Writer(db, t)
    assert writer.put(1, 0, a=bytes(600 * KIB), b=bytes(600 * KIB)) == []
    for place in ("memtable", "sstable"):
        assert writer.put(1, 0, s={1}) == soft("row"), place
        assert writer.put(1, 1, s={1}) == [], place
        setting(large_row_fail_threshold_mb=1)
        with pytest.raises(Invalid, match="row size .* exceeds hard limit .*clustering_key=0"):
            writer.put(1, 0, s={1})
        db.refused(Invalid, f"DELETE FROM {t} WHERE pk = 1 AND ck = 0", match="row size")
        assert writer.put(1, 99, a=b"") == []
        setting(large_row_fail_threshold_mb=0)
        server.flush(db.keyspace)
    db.execute(f"DELETE FROM {t} WHERE pk = 1 AND ck = 0 BYPASS LARGE_DATA_GUARDRAILS")


def test_collection(db, server, setting, t):
    setting(
        compaction_collection_elements_count_warning_threshold=50,
        large_collection_elements_fail_threshold=10000,
    )
    add = db.prepare(f"UPDATE {t} SET s = s + ? WHERE pk = 1 AND ck = 0")
    writer = Writer(db, t)
    for first in (0, 30):
        db.execute(add, set(range(first, first + 30)))

    def one_more():
        future = db.session.execute_async(add, ({1000},))
        future.result()
        return future.warnings or []

    for place in ("memtable", "sstable"):
        assert one_more() == soft("collection"), place
        assert writer.put(1, 0, a=b"") == [], "another column of the row"
        assert writer.put(1, 1, s={1}) == [], place
        setting(large_collection_elements_fail_threshold=50)
        with pytest.raises(
            Invalid,
            match="collection element count 6. exceeds hard limit 50 .*column=s, clustering_key=0",
        ):
            one_more()
        setting(large_collection_elements_fail_threshold=0)
        server.flush(db.keyspace)


def test_all_kinds_at_once(db, server, setting, t):
    setting(
        compaction_large_partition_warning_threshold_mb=1,
        compaction_large_row_warning_threshold_mb=1,
        compaction_collection_elements_count_warning_threshold=50,
    )
    writer = Writer(db, t)
    writer.put(1, 0, a=bytes(600 * KIB), b=bytes(600 * KIB), s=set(range(60)))
    server.flush(db.keyspace)
    assert writer.put(1, 0, s={1}) == soft("partition", "row", "collection")


def test_only_so_many_are_listed(db, server, setting):
    setting(compaction_rows_count_warning_threshold=1, compaction_large_data_records_per_sstable=2)
    t = db.table("pk int, ck int, PRIMARY KEY (pk, ck)", "WITH tablets = {'min_tablet_count': 1}")
    for pk in range(5):
        for ck in range(2 + pk):
            db.execute(f"INSERT INTO {t} (pk, ck) VALUES ({pk}, {ck})")
    server.flush(db.keyspace)
    query = (
        "SELECT sstable_name, rows FROM system.large_partitions WHERE keyspace_name ="
        f" '{db.keyspace}' AND table_name = '{t}'"
    )
    by_sstable = {}
    for sstable, rows in db.rows(query):
        by_sstable.setdefault(sstable, []).append(rows)
    assert by_sstable and all(len(rows) <= 2 for rows in by_sstable.values()), by_sstable
