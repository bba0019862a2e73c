"""Queriers: when they are evicted, what that costs other reads, and that the metrics agree."""

import time

import pytest
from cassandra.query import SimpleStatement
from database import Database
from launch import Node

pytestmark = pytest.mark.node
NAMES = ("lookups", "misses", "drops", "reused", "advanced", "scheduling_group_mismatches",
    "time_based_evictions",
         "resource_based_evictions", "memory_based_evictions", "population", "querier_population")


class Queriers:
    """A node with a partition of 100 rows in an sstable."""

    def __init__(self, **config):
        self.node = Node(shards=1, config=config)

    def __enter__(self):
        self.node.start()
        self.db = Database(self.node.address)
        self.table = self.db.table("pk int, ck int, v text, PRIMARY KEY (pk, ck)")
        insert = self.db.prepare(f"INSERT INTO {self.table} (pk, ck, v) VALUES (1, ?, ?)")
        for ck in range(100):
            self.db.execute(insert, ck, "x" * 100)
        self.node.flush(self.db.keyspace)
        return self

    def __exit__(self, *error):
        try:
            self.db.cluster.shutdown()
            if error[0] is None:
                assert self.node.stop() == 0, self.node.log_tail()
        finally:
            self.node.close()

    def counters(self):
        return {
            name: int(self.node.metric(f"scylla_database_querier_cache_{name}")) for name in NAMES
        }

    def begin(self, size=10, **options):
        """The first page of a query."""
        return self.db.session.execute(
            SimpleStatement(f"SELECT ck FROM {self.table} WHERE pk = 1", fetch_size=size), **options
        )

    def wait_for(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while not condition(self.counters()):
            assert time.monotonic() < end, self.counters()
            time.sleep(0.02)
        return self.counters()


def rest(result):
    """The rows of all pages."""
    rows = list(result.current_rows)
    while result.has_more_pages:
        result.fetch_next_page()
        rows += result.current_rows
    return [row.ck for row in rows]


def test_a_query_goes_on_with_one_reader():
    with Queriers() as it:
        before = it.counters()
        result = it.begin()
        assert it.counters()["population"] == it.counters()["querier_population"] == 1
        assert rest(result) == list(range(100))
        after = it.counters()
        # The last page is full, so one more page is requested, which is empty.
        assert after["lookups"] - before["lookups"] == 10 == after["reused"] - before["reused"]
        assert after["misses"] == after["drops"] == after["population"] == 0


def test_turned_off_it_keeps_nothing():
    with Queriers(querier_cache="false") as it:
        result = it.begin()
        assert it.counters()["population"] == 0
        assert rest(result) == list(range(100))
        assert not any(it.counters().values()), it.counters()


def test_time_evicts():
    with Queriers(querier_cache_ttl_in_ms=100) as it:
        result = it.begin()
        counters = it.wait_for(lambda counters: counters["population"] == 0)
        assert counters["time_based_evictions"] == 1
        result.fetch_next_page()
        assert it.counters()["misses"] == 1
        assert [row.ck for row in result.current_rows] == list(range(10, 20))


def test_reads_that_want_a_permit_evict():
    with Queriers(reader_concurrency_semaphore_count_limit=3) as it:
        results = [it.begin() for _ in range(10)]
        counters = it.counters()
        assert counters["population"] == 3 and counters["resource_based_evictions"] == 7, counters
        assert [rest(result) for result in results] == 10 * [list(range(100))]


def test_memory_evicts():
    with Queriers(querier_cache_memory_percent=0) as it:
        assert rest(it.begin()) == list(range(100))
        counters = it.counters()
        assert counters["memory_based_evictions"] == 10 and counters["population"] == 0, counters


def test_queriers_of_dropped_truncated_or_altered_tables_are_evicted():
    with Queriers(querier_cache_ttl_in_ms=1_000_000) as it:
        for statement in (
            f"ALTER TABLE {it.table} ADD w int",
            f"TRUNCATE {it.table}",
            f"DROP TABLE {it.table}",
        ):
            result = it.begin(size=1)
            assert it.counters()["population"] == 1 or "DROP" in statement
            it.db.execute(statement)
            assert it.counters()["population"] == 0, statement
            if "ALTER" in statement:
                assert rest(result) == list(range(100))
        held = [
            path
            for path in it.node.data_dir.rglob("*-Data.db")
            if it.table in str(path) and "snapshots" not in str(path)
        ]
        assert not held, held


def test_compaction_lets_the_old_files_go():
    """A querier must not delay a compaction, nor be used after it."""
    with Queriers() as it:
        result = it.begin()
        it.db.execute(f"INSERT INTO {it.table} (pk, ck, v) VALUES (1, 1000, 'y')")
        it.node.flush(it.db.keyspace)
        it.node.compact(it.db.keyspace)
        assert rest(result) == [*range(100), 1000]
        assert it.counters()["drops"] == 1


def test_abandoned_queries_cost_others_nothing():
    with Queriers() as it:
        for _ in range(500):
            it.begin(size=1)
        counters = it.counters()
        assert counters["population"] <= 100 and counters["resource_based_evictions"] >= 400
        assert rest(it.begin()) == list(range(100))


def test_the_trace_tells():
    with Queriers() as it:
        def said(result):
            return [
                event.description
                for event in result.get_query_trace(max_wait_sec=10).events
                if "Querier" in event.description
            ]

        result = it.begin(size=50, trace=True)
        assert said(result) == ["Querier cache: kept for the next page"]
        statement = SimpleStatement(f"SELECT ck FROM {it.table} WHERE pk = 1", fetch_size=50)
        second = it.db.session.execute(statement, trace=True, paging_state=result.paging_state)
        assert said(second)[0] == "Querier cache: hit"
        again = it.db.session.execute(statement, trace=True, paging_state=result.paging_state)
        assert said(again)[0] in (
            "Querier cache: miss",
            "Querier cache: dropped, since it is at another position",
        ), said(again)
        assert again.current_rows == second.current_rows
