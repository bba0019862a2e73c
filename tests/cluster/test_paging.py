"""Stateful paging over three nodes: pages continue on the replicas with their queriers, and are
exact with any coordinator, dead nodes and missed writes."""

import random

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.paged import (
    COLUMNS, POLICIES, Change, Driver, Model, Query, counters_of_all, grown, in_order_of_tokens,
    load, pages,
)
from cluster.trio import NODES, Trio, eventually, quorum

ROWS = 300


@pytest.fixture
def three(tmp_path):
    """Three nodes without hints: a node lacks the writes that it missed until a read repairs it."""
    with Trio(tmp_path, hinted_handoff_enabled="false") as it:
        yield it


def a_table(trio):
    # No speculative retry: the load of the machine must not change which replicas are read.
    trio.sessions[0].execute(f"CREATE TABLE ks.t ({COLUMNS}) WITH speculative_retry = 'NONE'")


def test_pages_go_on_where_their_readers_are(three):
    three.keyspace()
    a_table(three)
    session = three.sessions[0]
    insert = session.prepare("INSERT INTO ks.t (pk, ck, v) VALUES (?, ?, ?)")
    insert.consistency_level = Level.ALL
    for pk in range(4):
        for ck in range(ROWS):
            session.execute(insert, (pk, ck, "x" * 50))
    for node in three.nodes:
        node.flush("ks")
    for policy in POLICIES:
        with Driver(three, policy) as driver:
            select = driver.prepare("SELECT pk, ck FROM ks.t WHERE pk = ?")
            scan = driver.prepare("SELECT pk, ck FROM ks.t")
            for level in (Level.ONE, Level.QUORUM, Level.ALL):
                before = counters_of_all(three)
                for statement in (select, scan):
                    statement.fetch_size, statement.consistency_level = 10, level
                for pk in range(4):
                    assert pages(driver, select, (pk,)) == [(pk, ck) for ck in range(ROWS)]
                whole = pages(driver, scan)
                assert len(whole) == len(set(whole)) == 4 * ROWS
                assert all(
                    [ck for own, ck in whole if own == pk] == list(range(ROWS)) for pk in range(4)
                )
                done = grown(counters_of_all(three), before)
                assert (
                    done["lookups"] >= 200
                    and done["reused"] == done["lookups"] - done["misses"] - done["drops"]
                )
                # On a busy machine a node may seem slow now and then. Then another replica is read.
                assert done["reused"] / done["lookups"] > 0.8, done
    # The client is answered before the last replica. That replica may still be reading.
    eventually(lambda: counters_of_all(three)["population"] == 0)


@pytest.mark.parametrize("more", ["", " AND w >= 0 ALLOW FILTERING", " GROUP BY pk, ck"],
    ids=["plain", "filtered", "grouped"])
def test_a_tablet_aware_driver_uses_the_node_that_keeps_the_reader(three, more):
    """From the third page on, the driver uses the node with the querier, whichever replica read the
    first page. The next query may begin anywhere."""
    three.keyspace()
    a_table(three)
    load(three.sessions[0], "ks.t", [], [1], large=1, side=ROWS)
    passed_on = lambda: sum(
        node.metric("scylla_storage_proxy_coordinator_remote_requests") for node in three.nodes
    )  # noqa: E731
    queries, began_at = 30, set()
    with Driver(three, "token aware") as driver:
        select = driver.prepare("SELECT ck FROM ks.t WHERE pk = ?" + more)
        select.fetch_size, select.consistency_level = 10, Level.ONE
        before = passed_on()
        for _ in range(queries):
            result = driver.execute(select, (1,))
            began_at.add(result.response_future.coordinator_host)
            assert [row.ck for row in result] == list(range(ROWS))
    # Otherwise the coordinator would send two of three pages to another node.
    assert passed_on() - before <= 3 * queries
    assert len(began_at) == NODES


def test_the_trace_names_the_replicas_and_readers_of_a_page(three):
    three.keyspace()
    a_table(three)
    for ck in range(30):
        three.sessions[0].execute(
            SimpleStatement(
                f"INSERT INTO ks.t (pk, ck) VALUES (1, {ck})", consistency_level=Level.ALL
            )
        )
    statement = SimpleStatement(
        "SELECT ck FROM ks.t WHERE pk = 1", fetch_size=10, consistency_level=Level.ONE
    )
    first = three.sessions[0].execute(statement, trace=True)
    second = three.sessions[1].execute(statement, trace=True, paging_state=first.paging_state)
    assert [row.ck for row in second.current_rows] == list(range(10, 20))
    events = second.get_query_trace(max_wait_sec=20).events
    asked = [
        event.description for event in events if event.description.startswith("Asking for rows")
    ]
    assert len(asked) == 1 and asked[0].endswith(", as for the page before"), asked
    found = [event.source for event in events if event.description == "Querier cache: hit"]
    assert found == [
        three.nodes[0].address
    ], "node 0 was nearest for the first page, and has the reader"
    kept = [
        event.source
        for event in events
        if event.description == "Querier cache: kept for the next page"
    ]
    assert kept == found
    assert three.nodes[1].address in {event.source for event in events}


def test_traces_are_found_by_drivers_that_ask_another_node_for_them(three):
    three.keyspace()
    a_table(three)
    for ck in range(90):
        three.sessions[0].execute(
            SimpleStatement(
                f"INSERT INTO ks.t (pk, ck) VALUES (1, {ck})", consistency_level=Level.ALL
            )
        )
    statement = SimpleStatement(
        "SELECT ck FROM ks.t WHERE pk = 1", fetch_size=10, consistency_level=Level.QUORUM
    )
    with Driver(three, "round robin") as driver:
        state = None
        # Each request goes to the next node, so the node that returns the trace has not coordinated
        # the page.
        for _ in range(7):
            result = driver.execute(statement, trace=True, paging_state=state)
            state = result.paging_state
            trace = result.get_query_trace(max_wait_sec=20)
            assert any(
                event.description.startswith("The rows are from node") for event in trace.events
            ), trace.events
            sources = {
                event.source
                for event in trace.events
                if event.description == "Querier cache: kept for the next page"
            }
            assert len(sources) >= 2, "both replicas report it"


def test_events_after_the_level_was_reached_belong_to_the_trace(three):
    """A write at ONE is answered while one of its replicas is paused. The trace has the later
    answer of that replica."""
    three.keyspace()
    a_table(three)
    session, late = three.sessions[0], three.nodes[2]
    session.execute(
        "UPDATE system.config SET value = '20000' WHERE name = 'write_request_timeout_in_ms'"
    )
    insert = SimpleStatement("INSERT INTO ks.t (pk, ck) VALUES (1, 1)", consistency_level=Level.ONE)
    with late.standing_still():
        future = session.execute_async(insert, trace=True)
        future.result()
        (trace,) = future.get_query_trace_ids()
        eventually(
            lambda: session.execute(
                f"SELECT duration FROM system_traces.sessions WHERE session_id = {trace}"
            ).one()
        )

        def sources():
            return {
                row.source
                for row in session.execute(
                    f"SELECT source FROM system_traces.events WHERE session_id = {trace}"
                )
            }

        assert sources() and late.address not in sources()
    eventually(lambda: late.address in sources())


def test_nodes_that_die_between_pages_cost_no_row(three):
    three.keyspace()
    a_table(three)
    session = three.sessions[0]
    for pk in range(5):
        for ck in range(60):
            session.execute(
                SimpleStatement(
                    f"INSERT INTO ks.t (pk, ck) VALUES ({pk}, {ck})", consistency_level=Level.ALL
                )
            )
    expected = [(pk, ck) for pk in range(5) for ck in range(60)]
    for dead, (policy, level) in enumerate(
        [("round robin", Level.QUORUM), ("token aware", Level.QUORUM), ("round robin", Level.ONE)]
    ):
        def strike(page, dead=dead):
            if page == 3:
                three.kill(dead)
            if page == 20:
                three.nodes[dead].start()

        with Driver(three, policy) as driver:
            statement = SimpleStatement(
                "SELECT pk, ck FROM ks.t", fetch_size=7, consistency_level=level
            )
            found = pages(driver, statement, between=strike)
        assert len(found) == len(set(found)) and sorted(found) == expected, f"node {dead} died"
        three.wait_up(dead)


@pytest.mark.parametrize("speculation", ["20ms", "NONE"])
def test_a_node_that_stands_still_is_replaced_by_another(three, speculation):
    """The node has read the first page, then stops answering without notice. The next page waits
    for it until the speculative retry of the table, or until the node is marked down, before a read
    times out. Later pages do not wait."""
    three.keyspace()
    three.sessions[0].execute(
        "CREATE TABLE ks.t (pk int, ck int, PRIMARY KEY (pk, ck)) WITH speculative_retry ="
        f" '{speculation}'"
    )
    for ck in range(100):
        three.sessions[0].execute(
            SimpleStatement(
                f"INSERT INTO ks.t (pk, ck) VALUES (1, {ck})", consistency_level=Level.ALL
            )
        )
    stopped = str(three.sessions[2].execute("SELECT host_id FROM system.local").one().host_id)
    # Each case begins with a coordinator that has measured no slow replica yet.
    for coordinator, level in enumerate((Level.ONE, Level.QUORUM)):
        statement = SimpleStatement(
            "SELECT ck FROM ks.t WHERE pk = 1", fetch_size=7, consistency_level=level
        )
        result = three.sessions[2].execute(statement)
        rows, traced = [row.ck for row in result.current_rows], []
        with three.nodes[2].standing_still():
            while result.paging_state:
                result = three.sessions[coordinator].execute(
                    statement, paging_state=result.paging_state, trace=len(traced) < 2
                )
                if len(traced) < 2:
                    traced.append(
                        [
                            event.description
                            for event in result.get_query_trace(max_wait_sec=20).events
                        ]
                    )
                rows += [row.ck for row in result.current_rows]
                coordinator = 1 - coordinator
        assert rows == list(range(100)), Level.value_to_name[level]
        said = [step for step in traced[0] if "sking for" in step]
        assert f"node {stopped}, as for the page before" in said[0], said
        assert said[1].endswith("as well" if speculation == "20ms" else "instead"), said
        answered = next(step for step in traced[0] if step.startswith("The rows are from node"))
        assert stopped not in answered, "the trace names the serving node"
        assert not any(
            stopped in step for step in traced[1] if step.startswith("Asking for")
        ), "it is not asked any more"
        three.wait_up(2)
        eventually(lambda: three.sessions[2].execute("SELECT key FROM system.local").one())


def test_replicas_that_differ_are_read_page_by_page_as_one(three):
    """Each node in turn misses writes while it is down. Only reads repair it, page by page."""
    three.keyspace()
    a_table(three)
    rng, number = random.Random(11), 0

    def miss(model):
        nonlocal number
        for absent in range(NODES):
            three.kill(absent)
            three.wait_down(absent)
            session = three.sessions[(absent + 1) % NODES]
            for _ in range(60):
                number += 1
                change = Change.any(rng, number, range(4), 40)
                model.apply(change)
                session.execute(quorum(change.text("ks.t")))
            if absent == 1:
                three.nodes[0].flush("ks")
            three.nodes[absent].start()
            three.wait_up(absent)

    model = Model()
    miss(model)
    columns = "pk, ck, s, v"
    before = sum(
        node.metric("scylla_storage_proxy_coordinator_foreground_read_repairs")
        for node in three.nodes
    )
    for size in (1, 5):
        if size > 1:
            miss(model)
        with Driver(three, "round robin") as driver:
            every = in_order_of_tokens(range(4))
            for query in [
                Query(f"SELECT {columns} FROM ks.t WHERE pk = 1", (), [1]),
                Query(f"SELECT {columns} FROM ks.t WHERE pk = 2 ORDER BY ck DESC", (), [2],
                    backward=True),
                Query(f"SELECT {columns} FROM ks.t WHERE pk IN (3, 0, 9)", (), [0, 3, 9]),
                Query(f"SELECT {columns} FROM ks.t PER PARTITION LIMIT 3", (), every,
                    per_partition=3),
                Query(f"SELECT {columns} FROM ks.t LIMIT 25", (), every, limit=25),
                Query(f"SELECT {columns} FROM ks.t WHERE ck > 20 ALLOW FILTERING", (), every,
                    where=lambda row: row[1] is not None and row[1] > 20),
                Query("SELECT count(*) FROM ks.t", (), every, shape="count"),
                Query(f"SELECT {columns} FROM ks.t", (), every),
            ]:
                found = pages(
                    driver,
                    SimpleStatement(query.text, fetch_size=size, consistency_level=Level.QUORUM),
                )
                assert found == query.expected(model), f"{query.text}, pages of {size}"
    repaired = (
        sum(
            node.metric("scylla_storage_proxy_coordinator_foreground_read_repairs")
            for node in three.nodes
        )
        - before
    )
    assert repaired > 10, repaired
