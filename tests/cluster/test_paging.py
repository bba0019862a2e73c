"""Stateful paging over three nodes: pages go on where their readers are kept, and are exact whoever coordinates, dies, or has missed what."""

import random
import signal

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.metadata import Murmur3Token
from cassandra.policies import DCAwareRoundRobinPolicy, RetryPolicy, RoundRobinPolicy, TokenAwarePolicy
from cassandra.query import SimpleStatement
from cluster.trio import NODES, Trio, eventually, quorum

POLICIES = {"round robin": RoundRobinPolicy, "token aware": lambda: TokenAwarePolicy(DCAwareRoundRobinPolicy())}
ROWS = 300


class Always(RetryPolicy):
    """Reads may be asked for again anywhere."""

    def on_request_error(self, query, consistency, error, retry_num):
        return (self.RETRY_NEXT_HOST, None) if retry_num < 10 else (self.RETHROW, None)

    on_unavailable = on_read_timeout = lambda self, *_, retry_num, **__: (self.RETRY_NEXT_HOST, None) if retry_num < 10 else (self.RETHROW, None)


@pytest.fixture
def three(tmp_path):
    """Three nodes that keep no hints: what a node misses it lacks until a read repairs it."""
    with Trio(tmp_path, hinted_handoff_enabled="false") as it:
        yield it


class Driver:
    """A session that speaks to all nodes."""

    def __init__(self, trio, policy):
        profile = ExecutionProfile(load_balancing_policy=POLICIES[policy](), retry_policy=Always(), request_timeout=60)
        self.cluster = Cluster([node.address for node in trio.nodes], protocol_version=4, connect_timeout=30, execution_profiles={EXEC_PROFILE_DEFAULT: profile})

    def __enter__(self):
        return self.cluster.connect()

    def __exit__(self, *_):
        self.cluster.shutdown()


def counters(trio):
    """What the queriers of all nodes that live did."""
    names = ("lookups", "misses", "drops", "reused", "population")
    return {name: sum(node.metric(f"scylla_database_querier_cache_{name}") for node in trio.nodes if node.alive()) for name in names}


def grown(trio, before):
    return {name: value - before[name] for name, value in counters(trio).items()}


def pages(session, statement, values=None, between=lambda page: None):
    """All rows, page by page."""
    result = session.execute(statement, values)
    rows = list(result.current_rows)
    for page in range(5000):
        if not result.has_more_pages:
            return [tuple(row) for row in rows]
        between(page)
        result.fetch_next_page()
        rows += result.current_rows
    raise AssertionError("pages without end")


def a_table(trio):
    # No speculation: how busy the machine is must not decide who is asked.
    trio.sessions[0].execute("CREATE TABLE ks.t (pk int, ck int, s int static, v text, PRIMARY KEY (pk, ck)) WITH speculative_retry = 'NONE'")


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
                before = counters(three)
                for statement in (select, scan):
                    statement.fetch_size, statement.consistency_level = 10, level
                for pk in range(4):
                    assert pages(driver, select, (pk,)) == [(pk, ck) for ck in range(ROWS)]
                whole = pages(driver, scan)
                assert len(whole) == len(set(whole)) == 4 * ROWS
                assert all([ck for own, ck in whole if own == pk] == list(range(ROWS)) for pk in range(4))
                done = grown(three, before)
                assert done["lookups"] >= 200 and done["reused"] == done["lookups"] - done["misses"] - done["drops"]
                # On a machine that is busy a node may seem slow now and then: then another one reads on.
                assert done["reused"] / done["lookups"] > 0.8, done
    # The client is answered before the last replica has been: it may still be reading.
    eventually(lambda: counters(three)["population"] == 0)


def test_the_trace_says_who_read_the_page_and_with_what(three):
    three.keyspace()
    a_table(three)
    for ck in range(30):
        three.sessions[0].execute(SimpleStatement(f"INSERT INTO ks.t (pk, ck) VALUES (1, {ck})", consistency_level=Level.ALL))
    statement = SimpleStatement("SELECT ck FROM ks.t WHERE pk = 1", fetch_size=10, consistency_level=Level.ONE)
    first = three.sessions[0].execute(statement, trace=True)
    second = three.sessions[1].execute(statement, trace=True, paging_state=first.paging_state)
    assert [row.ck for row in second.current_rows] == list(range(10, 20))
    events = second.get_query_trace(max_wait_sec=20).events
    asked = [event.description for event in events if event.description.startswith("Asking for rows")]
    assert len(asked) == 1 and asked[0].endswith(", as for the page before"), asked
    found = [event.source for event in events if event.description == "Querier cache: hit"]
    assert found == [three.nodes[0].address], "node 0 was nearest for the first page, and has the reader"
    kept = [event.source for event in events if event.description == "Querier cache: kept for the next page"]
    assert kept == found
    assert three.nodes[1].address in {event.source for event in events}


def test_nodes_that_die_between_pages_cost_no_row(three):
    three.keyspace()
    a_table(three)
    session = three.sessions[0]
    for pk in range(5):
        for ck in range(60):
            session.execute(SimpleStatement(f"INSERT INTO ks.t (pk, ck) VALUES ({pk}, {ck})", consistency_level=Level.ALL))
    expected = [(pk, ck) for pk in range(5) for ck in range(60)]
    for dead, (policy, level) in enumerate([("round robin", Level.QUORUM), ("token aware", Level.QUORUM), ("round robin", Level.ONE)]):
        def strike(page, dead=dead):
            if page == 3:
                three.kill(dead)
            if page == 20:
                three.nodes[dead].start()

        with Driver(three, policy) as driver:
            statement = SimpleStatement("SELECT pk, ck FROM ks.t", fetch_size=7, consistency_level=level)
            found = pages(driver, statement, between=strike)
        assert len(found) == len(set(found)) and sorted(found) == expected, f"node {dead} died"
        three.wait_up(dead)


def test_a_node_that_stands_still_is_replaced_by_another(three):
    """It has read the first page, and answers nothing from then on, and nobody knows: the next page waits for it a moment, those after it do not."""
    three.keyspace()
    three.sessions[0].execute("CREATE TABLE ks.t (pk int, ck int, PRIMARY KEY (pk, ck)) WITH speculative_retry = '20ms'")
    for ck in range(100):
        three.sessions[0].execute(SimpleStatement(f"INSERT INTO ks.t (pk, ck) VALUES (1, {ck})", consistency_level=Level.ALL))
    for level in (Level.ONE, Level.QUORUM):
        statement = SimpleStatement("SELECT ck FROM ks.t WHERE pk = 1", fetch_size=7, consistency_level=level)
        result = three.sessions[2].execute(statement)
        rows, coordinator = [row.ck for row in result.current_rows], 0
        three.nodes[2].process.send_signal(signal.SIGSTOP)
        try:
            while result.paging_state:
                result = three.sessions[coordinator].execute(statement, paging_state=result.paging_state)
                rows += [row.ck for row in result.current_rows]
                coordinator = 1 - coordinator
        finally:
            three.nodes[2].process.send_signal(signal.SIGCONT)
        assert rows == list(range(100)), Level.value_to_name[level]
        three.wait_up(2)
        eventually(lambda: three.sessions[2].execute("SELECT key FROM system.local").one())


class Model:
    """What the table holds when all nodes' knowledge is put together."""

    def __init__(self):
        self.rows, self.statics = {}, {}

    def change(self, rng, number):
        """A statement, applied."""
        pk, ck = rng.randrange(4), rng.randrange(40)
        kind = rng.choices(["row", "row deletion", "range", "static", "static deletion", "partition"], [20, 4, 2, 2, 1, 0.3])[0]
        using = f"USING TIMESTAMP {number}"
        doomed = lambda condition: [self.rows.pop(key) for key in list(self.rows) if key[0] == pk and condition(key[1])]
        if kind == "row":
            self.rows[pk, ck] = str(number)
            return f"INSERT INTO ks.t (pk, ck, v) VALUES ({pk}, {ck}, '{number}') {using}"
        if kind == "static":
            self.statics[pk] = number
            return f"INSERT INTO ks.t (pk, s) VALUES ({pk}, {number}) {using}"
        if kind == "static deletion":
            self.statics.pop(pk, None)
            return f"DELETE s FROM ks.t {using} WHERE pk = {pk}"
        if kind == "row deletion":
            doomed(lambda own: own == ck)
            return f"DELETE FROM ks.t {using} WHERE pk = {pk} AND ck = {ck}"
        if kind == "range":
            doomed(lambda own: ck <= own < ck + 6)
            return f"DELETE FROM ks.t {using} WHERE pk = {pk} AND ck >= {ck} AND ck < {ck + 6}"
        doomed(lambda own: True)
        self.statics.pop(pk, None)
        return f"DELETE FROM ks.t {using} WHERE pk = {pk}"

    def seen(self, keys, backward=False, per_partition=1000):
        found = []
        for pk in keys:
            own = sorted((key for key in self.rows if key[0] == pk), reverse=backward)
            rows = [(*key, self.statics.get(pk), self.rows[key]) for key in own]
            if not rows and pk in self.statics:
                rows = [(pk, None, self.statics[pk], None)]
            found += rows[:per_partition]
        return found


def test_replicas_that_differ_are_read_page_by_page_as_one(three):
    """Each node in turn misses what is written while it is away. Nothing but reads bring them together, page by page."""
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
                session.execute(quorum(model.change(rng, number)))
            if absent == 1:
                three.nodes[0].flush("ks")
            three.nodes[absent].start()
            three.wait_up(absent)

    model = Model()
    miss(model)
    columns = "pk, ck, s, v"
    before = sum(node.metric("scylla_storage_proxy_coordinator_foreground_read_repairs") for node in three.nodes)
    for size in (1, 5):
        if size > 1:
            miss(model)
        with Driver(three, "round robin") as driver:
            every = sorted(range(4), key=lambda pk: Murmur3Token.hash_fn(pk.to_bytes(4, "big")))
            cases = [
                (f"SELECT {columns} FROM ks.t WHERE pk = 1", model.seen([1])),
                (f"SELECT {columns} FROM ks.t WHERE pk = 2 ORDER BY ck DESC", model.seen([2], backward=True)),
                (f"SELECT {columns} FROM ks.t WHERE pk IN (3, 0, 9)", None),
                (f"SELECT {columns} FROM ks.t PER PARTITION LIMIT 3", model.seen(every, per_partition=3)),
                (f"SELECT {columns} FROM ks.t LIMIT 25", model.seen(every)[:25]),
                (f"SELECT {columns} FROM ks.t WHERE ck > 20 ALLOW FILTERING", [row for row in model.seen(every) if row[1] is not None and row[1] > 20]),
                ("SELECT count(*) FROM ks.t", [(len(model.seen(every)),)]),
                (f"SELECT {columns} FROM ks.t", model.seen(every)),
            ]
            for text, expected in cases:
                found = pages(driver, SimpleStatement(text, fetch_size=size, consistency_level=Level.QUORUM))
                if expected is None:
                    assert sorted(found, key=str) == sorted(model.seen([0, 3]), key=str), f"{text}, pages of {size}"
                else:
                    assert found == expected, f"{text}, pages of {size}"
    repaired = sum(node.metric("scylla_storage_proxy_coordinator_foreground_read_repairs") for node in three.nodes) - before
    assert repaired > 10, repaired
