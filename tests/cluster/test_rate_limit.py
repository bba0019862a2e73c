"""Rate limits on three nodes: the excess is refused at every level, the limit holds for all nodes
together, no refusal leaves a hint, and accepted writes are on all replicas."""

import contextlib
import math
import re
import threading
import time

import cassandra
import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.protocol import ConfigurationException
from cassandra.query import SimpleStatement
from cluster.trio import NODES, eventually
from wire import ERROR, Wire

LEVELS = (Level.ONE, Level.QUORUM, Level.ALL)
BURST = 300
Limited = getattr(cassandra, "RateLimitReached", ConfigurationException)


def at(level, text):
    return SimpleStatement(text, consistency_level=level)


def hints(trio):
    """Hints written by all nodes since they started."""
    return sum(
        float(value)
        for node in trio.nodes
        for value in re.findall(r"^scylla_hints_manager_written\{.*\} (\S+)$", node.metrics(), re.M)
    )


def write(session, level, text):
    try:
        session.execute(at(level, text))
        return True
    except Limited:
        return False


def test_limits_at_every_level(trio):
    trio.keyspace()
    session = trio.sessions[0]
    session.execute("CREATE TABLE ks.t (k int, c int, v int, PRIMARY KEY (k, c))")
    session.execute("ALTER TABLE ks.t WITH per_partition_rate_limit = {'max_writes_per_second': 1}")
    accepted, began = [], time.monotonic()
    for n in range(BURST):
        for which, level in enumerate(LEVELS):
            c = n * len(LEVELS) + which
            if write(
                trio.sessions[n % NODES],
                level,
                f"INSERT INTO ks.t (k, c, v) VALUES (1, {c}, {level})",
            ):
                accepted.append(c)
    seconds, count = time.monotonic() - began, BURST * len(LEVELS)
    # Until the nodes have reported their rates to each other, each decides alone.
    most = NODES * (seconds + 2) * (2 + math.log2(count)) * 2
    assert 2 <= len(accepted) <= most, f"{len(accepted)} of {count} accepted in {seconds:.1f} s"
    assert hints(trio) == 0, "no refusal leaves a hint"
    for node in range(NODES):
        # Each node reads its own copy. Reads have no limit.
        def has_all(node=node):
            rows = trio.sessions[node].execute(at(Level.ONE, "SELECT c FROM ks.t WHERE k = 1"))
            return set(accepted) <= {row.c for row in rows}
        eventually(has_all)

    # A limit of 0 refuses everything on every node, at once, and nothing is stored.
    session.execute(
        "ALTER TABLE ks.t WITH per_partition_rate_limit = {'max_writes_per_second': 0,"
        " 'max_reads_per_second': 0}"
    )
    for node in range(NODES):
        for level in (*LEVELS, Level.ANY):
            for k in range(2, 10):
                assert not write(
                    trio.sessions[node], level, f"INSERT INTO ks.t (k, c, v) VALUES ({k}, 1, 1)"
                )
                if level != Level.ANY:
                    with pytest.raises(Limited):
                        trio.sessions[node].execute(at(level, f"SELECT c FROM ks.t WHERE k = {k}"))
    session.execute("ALTER TABLE ks.t WITH per_partition_rate_limit = {}")
    for node in range(NODES):
        for k in range(2, 10):
            assert (
                not trio.sessions[node]
                .execute(at(Level.ONE, f"SELECT c FROM ks.t WHERE k = {k}"))
                .all()
            )
    assert hints(trio) == 0


class Clients:
    """Threads that execute a statement again and again, one on each node. They count what is
    offered, and accepted by each node, in the measured time."""

    def __init__(self, trio, statement):
        self.offered, self.accepted = 0, [0] * NODES
        self.measures, self.ends, self.failures = False, False, []
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.work, args=(trio.sessions[node], node, statement))
            for node in range(NODES)
        ]
        for thread in self.threads:
            thread.start()

    def work(self, session, node, statement):
        try:
            while not self.ends:
                try:
                    session.execute(statement)
                    accepted = 1
                except Limited:
                    accepted = 0
                with self.lock:
                    if self.measures:
                        self.offered += 1
                        self.accepted[node] += accepted
        except Exception as failure:
            self.failures.append(failure)

    def end(self):
        self.ends = True
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures


@pytest.mark.parametrize("reads, writes", [(Level.ONE, Level.QUORUM), (Level.QUORUM, Level.ALL),
    (Level.ALL, Level.ONE)])
def test_the_limit_holds_for_all_nodes_together(trio, reads, writes):
    limit, seconds = 50, 10
    trio.keyspace()
    trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
    trio.sessions[0].execute(
        f"ALTER TABLE ks.t WITH per_partition_rate_limit = {{'max_writes_per_second': {limit},"
        f" 'max_reads_per_second': {limit}}}"
    )
    # A read of the other table costs a little more than 2 KiB, so that as many are accepted.
    trio.sessions[0].execute("CREATE TABLE ks.b (k int PRIMARY KEY, v text)")
    trio.sessions[0].execute(
        "ALTER TABLE ks.b WITH per_partition_rate_limit = {'max_read_kb_per_second':"
        f" {2 * limit}}}"
    )
    trio.sessions[0].execute(at(Level.ALL, f"INSERT INTO ks.b (k, v) VALUES (1, '{'x' * 2000}')"))
    statements = (
        at(reads, "SELECT v FROM ks.t WHERE k = 1"),
        at(writes, "INSERT INTO ks.t (k, v) VALUES (1, 1)"),
        at(reads, "SELECT v FROM ks.b WHERE k = 1"),
    )
    all_clients = [Clients(trio, statement) for statement in statements]
    # The first seconds accept more.
    time.sleep(4)
    for clients in all_clients:
        clients.began, clients.measures = time.monotonic(), True
    time.sleep(seconds)
    for clients in all_clients:
        clients.measures, clients.took = False, time.monotonic() - clients.began
    for clients in all_clients:
        clients.end()
    for clients in all_clients:
        offered, accepted = (
            count / clients.took / limit for count in (clients.offered, sum(clients.accepted))
        )
        print(
            f"{offered:.1f} times the limit offered, {accepted:.2f} accepted, by node"
            f" {clients.accepted}"
        )
        assert offered > 2, "the clients are too slow for this test"
        # The draws vary by 5 % over this time.
        assert 0.8 <= accepted <= 1.2
        assert min(clients.accepted) > 0, "no node's clients are starved"


def test_a_refusal_leaves_no_hint_for_a_node_that_is_down(trio):
    trio.keyspace()
    session = trio.sessions[0]
    session.execute(
        "CREATE TABLE ks.t (k int PRIMARY KEY, v int) WITH per_partition_rate_limit ="
        " {'max_writes_per_second': 0}"
    )
    trio.kill(2)
    trio.wait_down(2)
    for k in range(20):
        for node in (0, 1):
            for level in (Level.ANY, Level.ONE, Level.QUORUM):
                assert not write(
                    trio.sessions[node], level, f"INSERT INTO ks.t (k, v) VALUES ({k}, 1)"
                )
    found = [
        float(value)
        for node in trio.nodes[:2]
        for value in re.findall(r"^scylla_hints_manager_written\{.*\} (\S+)$", node.metrics(), re.M)
    ]
    assert found and sum(found) == 0


def test_a_refusal_leaves_no_hint_for_a_node_that_does_not_answer(trio):
    """The connections are to any shards of a node, so that for half of the keys the replicas
    decide: two refuse, and the third is paused. The refused rows must be nowhere later."""
    trio.keyspace()
    session = trio.sessions[0]
    session.execute(
        "CREATE TABLE ks.t (k int PRIMARY KEY, v int) WITH per_partition_rate_limit ="
        " {'max_writes_per_second': 0}"
    )
    by_replicas = 0
    with contextlib.ExitStack() as open_until_the_end:
        wires = [
            open_until_the_end.enter_context(Wire(trio.nodes[1].address, timeout=30))
            for _ in range(4)
        ]
        with trio.nodes[2].standing_still():
            for k in range(40):
                for n, wire in enumerate(wires):
                    answer = wire.query(
                        f"INSERT INTO ks.t (k, v) VALUES ({len(wires) * k + n}, 1)",
                        consistency=Level.QUORUM,
                    )
                    assert answer.opcode == ERROR and "rate limit" in answer.message, answer
                    by_replicas += "rejected by replicas" in answer.message
            # Then the requests to the third replica have ended: their connections are closed.
            trio.wait_down(2)
    assert by_replicas > 10
    assert hints(trio) == 0
    eventually(lambda: not list(session.execute(at(Level.ALL, "SELECT k FROM ks.t"))))


def test_statements_that_read_first_are_refused_by_owners_before_they_read(trio):
    """A coordinator without a copy asks the owners, also for statements that then write nothing."""
    trio.keyspace(factor=1)
    session = trio.sessions[0]
    session.execute("CREATE TABLE ks.l (k int PRIMARY KEY, l list<int>)")
    for k in range(8):
        session.execute(f"INSERT INTO ks.l (k, l) VALUES ({k}, [1, 2])")
    session.execute("ALTER TABLE ks.l WITH per_partition_rate_limit = {'max_writes_per_second': 0}")

    def reads():
        return sum(node.metric("scylla_database_total_reads") for node in trio.nodes)

    before, by_replicas = reads(), 0
    update = "UPDATE ks.l SET l = l - [77] WHERE k = {}"
    batch = "BEGIN UNLOGGED BATCH {}; APPLY BATCH"
    texts = (update, "UPDATE ks.l SET l[0] = 5 WHERE k = {}", "DELETE l[1] FROM ks.l WHERE k = {}")
    for node in trio.nodes:
        with Wire(node.address) as wire:
            for k in range(8):
                for text in (*texts, batch.format(update)):
                    answer = wire.query(text.format(k))
                    assert answer.opcode == ERROR and "rate limit" in answer.message, answer
                    by_replicas += "rejected by replicas" in answer.message
    assert by_replicas > 10
    assert reads() == before, "nothing is read for a refused write"
    session.execute(
        "ALTER TABLE ks.l WITH per_partition_rate_limit = {'max_writes_per_second': 999}"
    )
    for node in trio.nodes:
        with Wire(node.address) as wire:
            for k in range(8):
                answer = wire.query(batch.format(f"UPDATE ks.l SET l[0] = {k} WHERE k = {k}"))
                assert answer.opcode != ERROR, answer
    for k in range(8):
        assert session.execute(f"SELECT l FROM ks.l WHERE k = {k}").one().l == [k, 2]
