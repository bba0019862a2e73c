"""Replicas that stop, and replicas that do not answer: clients get the errors that the retry
policies of drivers expect."""

import threading
import time

import cassandra
import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from cluster.trio import NODES, rest


def at_all(text):
    return SimpleStatement(text, consistency_level=ConsistencyLevel.ALL)


@pytest.fixture
def filled(trio):
    trio.keyspace()
    trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
    trio.sessions[0].execute("CREATE TABLE ks.c (k int PRIMARY KEY, n counter)")
    for k in range(20):
        trio.sessions[0].execute(at_all(f"INSERT INTO ks.t (k, v) VALUES ({k}, {k})"))
    return trio


def test_writes_at_all_while_a_replica_stops(filled):
    """Each write succeeds or is refused as unavailable. None fails, and none times out."""
    outcomes, stopped = [], threading.Event()

    def work(n):
        session, k = filled.sessions[n], 0
        while not stopped.is_set():
            k += 1
            began = time.monotonic()
            try:
                session.execute(at_all(f"INSERT INTO ks.t (k, v) VALUES ({k % 100}, {k})"))
                outcomes.append((n, "done", began))
            except cassandra.Unavailable as error:
                assert (error.required_replicas, error.alive_replicas) == (3, 2)
                outcomes.append((n, "unavailable", began))
            except Exception as error:  # noqa: BLE001
                outcomes.append((n, repr(error), began))

    sessions = [filled.sessions[n] for n in (0, 1)]
    workers = [threading.Thread(target=work, args=(n,)) for n in (0, 1) for _ in range(4)]
    for worker in workers:
        worker.start()
    while len(outcomes) < 200:
        time.sleep(0.01)
    filled.sessions.forget(2)
    assert filled.nodes[2].stop() == 0
    gone = time.monotonic()
    while sum(began > gone for _, _, began in outcomes) < 200:
        time.sleep(0.01)
    stopped.set()
    for worker in workers:
        worker.join()
    assert sessions and {how for _, how, _ in outcomes} == {"done", "unavailable"}
    assert {how for _, how, began in outcomes if began > gone} == {"unavailable"}
    # No request hung: the stop was announced, so the others did not have to detect it.
    for n in (0, 1):
        assert "it announced that it stops" in filled.nodes[n].log_path.read_text()
    filled.nodes[2].start()
    filled.wait_up(2)
    filled.sessions[0].execute(at_all("INSERT INTO ks.t (k, v) VALUES (1, 1)"))


def test_a_replica_that_ceases_to_answer_is_a_timeout(filled):
    """A timeout until the node is marked down; then the level is unavailable. Never a failure."""
    session = filled.sessions[0]
    with filled.nodes[2].standing_still():
        began = time.monotonic()
        with pytest.raises(cassandra.WriteTimeout) as write:
            session.execute(at_all("INSERT INTO ks.t (k, v) VALUES (1, 2)"))
        assert (write.value.required_responses, write.value.received_responses) == (3, 2)
        assert time.monotonic() - began < 10
        for statement in (
            "INSERT INTO ks.t (k, v) VALUES (1, 3)",
            "SELECT v FROM ks.t WHERE k = 1",
            "UPDATE ks.c SET n = n + 1 WHERE k = 1",
        ):
            with pytest.raises(
                (cassandra.Unavailable, cassandra.WriteTimeout, cassandra.ReadTimeout)
            ):
                session.execute(at_all(statement))
    filled.wait_up(2)


def test_a_read_of_a_replica_that_ceases_to_answer(filled):
    with filled.nodes[2].standing_still():
        with pytest.raises(cassandra.ReadTimeout) as read:
            filled.sessions[0].execute(at_all("SELECT v FROM ks.t WHERE k = 1"))
        assert (
            read.value.required_responses,
            read.value.received_responses,
            read.value.data_retrieved,
        ) == (3, 2, True)
    filled.wait_up(2)


def test_a_replica_that_is_killed_is_no_failure(filled):
    """The connection is refused before the node is marked down: a timeout, or unavailable if
    nothing was sent."""
    session = filled.sessions[0]
    filled.kill(2)
    seen = set()
    while filled.nodes[2].address not in rest(filled.nodes[0], "/gossiper/endpoint/down"):
        for statement in (
            "INSERT INTO ks.t (k, v) VALUES (1, 2)",
            "SELECT v FROM ks.t WHERE k = 1",
        ):
            with pytest.raises(
                (cassandra.Unavailable, cassandra.WriteTimeout, cassandra.ReadTimeout)
            ) as error:
                session.execute(at_all(statement))
            seen.add(type(error.value))
    assert seen
    assert len(filled.nodes) == NODES
