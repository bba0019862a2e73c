"""The events about nodes and the schema that clients receive, as raw frames and through the Python
driver."""

import socket
import threading

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, WhiteListRoundRobinPolicy
from cluster.trio import eventually
from wire import EVENT, READY, REGISTER, Wire, string

KINDS = ("TOPOLOGY_CHANGE", "STATUS_CHANGE", "SCHEMA_CHANGE")


class Events:
    """The events that one node sends, as they arrive."""

    def __init__(self, node):
        self.seen = []
        self.wire = Wire(node.address, timeout=None)
        kinds = len(KINDS).to_bytes(2, "big") + b"".join(string(kind) for kind in KINDS)
        assert self.wire.ask(REGISTER, kinds).opcode == READY
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        try:
            while True:
                answer = self.wire.receive()
                assert answer.opcode == EVENT
                self.seen.append(self.parse(answer.body))
        except Exception:
            pass  # the test is over, or sees that nothing more comes

    @staticmethod
    def parse(body):
        words = []
        while body:
            if words and words[0] != "SCHEMA_CHANGE" and len(words) == 2:
                size = body[0]
                words.append(socket.inet_ntoa(body[1 : 1 + size]))
                assert int.from_bytes(body[1 + size :], "big") == 9042
                break
            length = int.from_bytes(body[:2], "big")
            words.append(body[2 : 2 + length].decode())
            body = body[2 + length :]
        return tuple(words)

    def of(self, address):
        return [words[:2] for words in self.seen if words[-1] == address]

    def close(self):
        self.wire.socket.close()


@pytest.fixture
def events(trio):
    listening = [Events(trio.nodes[n]) for n in (0, 1)]
    yield listening
    for one in listening:
        one.close()


UP, DOWN = ("STATUS_CHANGE", "UP"), ("STATUS_CHANGE", "DOWN")
NEW, REMOVED = ("TOPOLOGY_CHANGE", "NEW_NODE"), ("TOPOLOGY_CHANGE", "REMOVED_NODE")


def test_a_node_that_dies_and_comes_back_is_told_of_once(trio, events):
    third = trio.nodes[2]
    # Events that were sent while the cluster formed are ignored.
    before = [len(one.of(third.address)) for one in events]

    def told(n):
        return events[n].of(third.address)[before[n]:]

    trio.kill(2)
    for n in range(2):
        eventually(lambda: told(n) == [DOWN])
    third.start()
    Wire(third.address).works()
    for n in range(2):
        eventually(lambda: told(n) == [DOWN, UP])

    # A node that stops announces it before its connections end.
    third.stop()
    for n in range(2):
        eventually(lambda: told(n) == [DOWN, UP, DOWN], seconds=5)
    third.start()
    for n in range(2):
        eventually(lambda: told(n) == [DOWN, UP, DOWN, UP])
    # No event is sent twice, although pings are sent ten times a second.
    trio.sessions[0].execute(
        "CREATE KEYSPACE later WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'replication_factor': 1}"
    )
    for n in range(2):
        eventually(lambda: ("SCHEMA_CHANGE", "CREATED", "KEYSPACE", "later") in events[n].seen)
        assert told(n) == [DOWN, UP, DOWN, UP] and events[n].of(trio.nodes[n].address) == []


def test_a_node_that_moves_leaves_one_address_and_appears_at_another(trio, events):
    from launch import free_address

    old, new = trio.nodes[2].address, free_address()
    before = len(events[0].of(old))
    trio.kill(2)
    trio.nodes[2].address = new
    trio.nodes[2].start()
    eventually(lambda: events[0].of(new)[:2] == [NEW, UP], seconds=60)
    assert events[0].of(old)[before:] in ([DOWN, REMOVED], [REMOVED])


def test_the_node_that_leads_moves(trio):
    """The leader returns at a new address before the other nodes have elected another leader. They
    still know its old address."""
    from launch import free_address

    leads = next(
        n for n in range(3) if "a node joins the cluster" in trio.nodes[n].log_path.read_text()
    )
    trio.kill(leads)
    trio.nodes[leads].address = new = free_address()
    trio.nodes[leads].start()
    other = trio.sessions[(leads + 1) % 3]
    eventually(
        lambda: new in {row.peer for row in other.execute("SELECT peer FROM system.peers")},
        seconds=60,
    )


def test_every_node_tells_its_clients_of_the_schema(trio, events):
    session = trio.sessions[2]
    trio.keyspace()
    for text in (
        "CREATE TYPE ks.u (a int)",
        "CREATE TABLE ks.t (k int PRIMARY KEY, v frozen<u>)",
        "ALTER TABLE ks.t ADD w int",
        "ALTER TYPE ks.u ADD b int",
        (
            "ALTER KEYSPACE ks WITH durable_writes = true AND replication = {'class':"
            " 'NetworkTopologyStrategy', 'replication_factor': 3}"
        ),
        "DROP TABLE ks.t",
        "DROP TYPE ks.u",
        "DROP KEYSPACE ks",
    ):
        session.execute(text)
    wanted = [("CREATED", "KEYSPACE", "ks"), ("CREATED", "TYPE", "ks", "u"),
        ("CREATED", "TABLE", "ks", "t"), ("UPDATED", "TABLE", "ks", "t"),
              ("UPDATED", "TYPE", "ks", "u"), ("UPDATED", "TABLE", "ks", "t"),
              ("DROPPED", "TABLE", "ks", "t"), ("DROPPED", "TYPE", "ks", "u"),
              ("DROPPED", "KEYSPACE", "ks")]
    for one in events:
        schema = lambda: [
            words[1:] for words in one.seen if words[0] == "SCHEMA_CHANGE"
        ]  # noqa: B023, E731
        eventually(lambda: schema()[-1:] == wanted[-1:])
        assert schema() == wanted


def test_the_driver_knows_which_nodes_are_up(trio):
    """A driver that sends requests to the first node only. Events are its only source about the
    others."""
    first, third = trio.nodes[0], trio.nodes[2]
    profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy([first.address]))
    # The driver does not reconnect by itself within the time of the test.
    cluster = Cluster(
        [first.address],
        protocol_version=4,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(300),
        status_event_refresh_window=0,
        topology_event_refresh_window=0,
    )
    try:
        session = cluster.connect()
        assert {host.address for host in cluster.metadata.all_hosts()} == {
            node.address for node in trio.nodes
        }
        assert {host.rack for host in cluster.metadata.all_hosts()} == {"r0", "r1", "r2"}
        trio.kill(2)
        eventually(lambda: not cluster.metadata.get_host(third.address).is_up)
        third.start()
        eventually(lambda: cluster.metadata.get_host(third.address).is_up)
        assert session.execute("SELECT key FROM system.local").one().key == "local"
    finally:
        cluster.shutdown()
