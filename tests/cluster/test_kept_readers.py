"""Queriers on three nodes: when they are evicted, and that their metrics agree with traces."""

import random

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.paged import (
    COLUMNS, Change, Model, Query, counters, grown, in_order_of_tokens, load, pages,
)
from cluster.trio import NODES, Trio, eventually, quorum

FOR_EVER = 1_000_000  # milliseconds
# Events of queriers in traces, and the matching metrics.
TOLD = {
    "Querier cache: hit": ("lookups", "reused"),
    "Querier cache: hit, advanced": ("advanced",),
    "Querier cache: miss": ("lookups", "misses"),
    "Querier cache: dropped": ("lookups", "drops"),
}


@pytest.fixture
def patient(tmp_path):
    """Three nodes whose queriers never expire, and which keep no hints."""
    with Trio(tmp_path, hinted_handoff_enabled="false", querier_cache_ttl_in_ms=FOR_EVER) as it:
        it.keyspace()
        yield it


def a_table(trio):
    # No speculative retry: the load of the machine must not change which replicas are read.
    trio.sessions[0].execute(f"CREATE TABLE ks.t ({COLUMNS}) WITH speculative_retry = 'NONE'")


def begin(trio, coordinator=0, text="SELECT ck FROM ks.t WHERE pk = 1"):
    """The first page of a query, read by all replicas."""
    return trio.sessions[coordinator].execute(
        SimpleStatement(text, fetch_size=10, consistency_level=Level.ALL)
    )


def kept(trio):
    return [counters(node)["population"] for node in trio.nodes]


def reading(node):
    """The number of client reads that hold or wait for a permit, and the memory of queriers."""
    return [node.metric(f"scylla_database_{name}_reads") for name in ("active", "queued")] + [
        counters(node)["memory_bytes"]
    ]


def test_changes_of_a_table_evict_queriers_on_every_node(patient):
    a_table(patient)
    load(patient.sessions[0], "ks.t", [], [1, 2], large=2, side=50)
    for coordinator, change in enumerate(
        ("ALTER TABLE ks.t ADD x int", "TRUNCATE ks.t", "DROP TABLE ks.t")
    ):
        result = begin(patient)
        if not change.startswith("DROP"):
            eventually(lambda: kept(patient) == [1] * NODES)
        patient.sessions[coordinator].execute(change)
        eventually(lambda: kept(patient) == [0] * NODES)
        if change.startswith("ALTER"):
            rest = patient.sessions[2].execute(
                SimpleStatement("SELECT ck FROM ks.t WHERE pk = 1", fetch_size=5000),
                paging_state=result.paging_state,
            )
            assert [row.ck for row in rest] == list(range(10, 50))
        if change.startswith("TRUNCATE"):
            assert begin(patient).current_rows == []
            patient.sessions[0].execute(
                SimpleStatement(
                    "INSERT INTO ks.t (pk, ck) VALUES (1, 1)", consistency_level=Level.ALL
                )
            )
    eventually(lambda: all(reading(node) == [0, 0, 0] for node in patient.nodes))


def test_time_evicts_where_nothing_else_happens(tmp_path):
    with Trio(tmp_path, querier_cache_ttl_in_ms=700) as trio:
        trio.keyspace()
        a_table(trio)
        load(trio.sessions[0], "ks.t", [], [1, 2], large=2, side=50)
        before = [counters(node) for node in trio.nodes]
        for _ in range(3):
            begin(trio)
            begin(trio, 1, "SELECT ck FROM ks.t")
        eventually(lambda: kept(trio) == [0] * NODES)
        for node, then in zip(trio.nodes, before):
            done = grown(counters(node), then)
            assert done["time_based_evictions"] >= 6 and done["lookups"] == 0, done
            eventually(lambda: reading(node) == [0, 0, 0])  # noqa: B023


def test_a_query_that_has_ended_leaves_nothing(patient):
    """Also if tablets were read in parallel, or ahead of the pages."""
    a_table(patient)
    partitions, model = list(range(60)), Model()
    load(patient.sessions[0], "ks.t", [model], partitions, large=3, side=40)
    for coordinator in range(NODES):
        for level in (Level.ONE, Level.ALL):
            for size in (3, 7, 16, 33):
                query = Query("SELECT pk, ck, s, v FROM ks.t", (), in_order_of_tokens(partitions))
                statement = SimpleStatement(query.text, fetch_size=size, consistency_level=level)
                assert pages(patient.sessions[coordinator], statement) == query.expected(model)
                # A replica whose answer was not needed may still be reading.
                eventually(lambda: kept(patient) == [0] * NODES)


def test_counters_agree_with_traces(patient):
    """Pages over replicas that differ: the trace of a page has each querier that was looked up,
    found or useless, on its node."""
    a_table(patient)
    rng, number = random.Random(4), load(
        patient.sessions[0], "ks.t", [model := Model()], [1, 2], large=2, side=40
    )
    for absent in range(NODES):
        patient.kill(absent)
        patient.wait_down(absent)
        for _ in range(25):
            change = Change.any(rng, number, [1, 2], 40)
            model.apply(change)
            patient.sessions[(absent + 1) % NODES].execute(quorum(change.text("ks.t")))
            number += 1
        patient.nodes[absent].start()
        patient.wait_up(absent)
    before = [counters(node) for node in patient.nodes]
    told = {
        node.address: dict.fromkeys(("lookups", "misses", "drops", "reused", "advanced"), 0)
        for node in patient.nodes
    }
    for query in (Query("SELECT pk, ck, s, v FROM ks.t WHERE pk = 1", (), [1]),
            Query("SELECT pk, ck, s, v FROM ks.t", (), in_order_of_tokens([1, 2]))):
        statement, state, rows = (
            SimpleStatement(query.text, fetch_size=6, consistency_level=Level.ALL),
            None,
            [],
        )
        while state is not None or not rows:
            # A trace is read on the node that coordinated the request.
            result = patient.sessions[len(rows) % NODES].execute(
                statement, paging_state=state, trace=True
            )
            rows, state = rows + [tuple(row) for row in result.current_rows], result.paging_state
            for event in result.get_query_trace(max_wait_sec=20).events:
                for words, names in TOLD.items():
                    for name in names if event.description.startswith(words) else ():
                        told[event.source][name] += 1
        assert rows == query.expected(model)
    for node, then in zip(patient.nodes, before):
        done = grown(counters(node), then)
        assert told[node.address] == {name: done[name] for name in told[node.address]}
        assert done["lookups"] == done["reused"] + done["misses"] + done["drops"]
    whole = [grown(counters(node), then) for node, then in zip(patient.nodes, before)]
    assert (
        sum(done["drops"] for done in whole) > 3 and sum(done["reused"] for done in whole) > 20
    ), whole
