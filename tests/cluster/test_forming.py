"""Three processes find each other, agree on the schema, and work without one of them."""

import pytest
from cluster.trio import NODES, Sessions, Together, eventually, make, quorum
from launch import Node, StartFailed, free_address


@pytest.fixture
def three(tmp_path):
    nodes = make(tmp_path)
    try:
        together = Together(nodes)
        yield nodes
        together.end()
    finally:
        for node in nodes:
            node.close()


def tables(session):
    return {
        row.table_name
        for row in session.execute(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'ks'"
        )
    }


def peers(session):
    return {row.peer for row in session.execute("SELECT peer FROM system.peers")}


def test_three_nodes_form_a_cluster_and_go_on_without_one(three):
    sessions = Sessions(three)
    try:
        addresses = {node.address for node in three}
        for n in range(NODES):
            eventually(lambda: peers(sessions[n]) == addresses - {three[n].address})

        sessions[0].execute(
            "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 3}"
        )
        known = set()
        for n in range(NODES):
            sessions[n].execute(f"CREATE TABLE ks.t{n} (k int PRIMARY KEY, v int)")
            known.add(f"t{n}")
            for other in range(NODES):
                assert (
                    tables(sessions[other]) == known
                ), "all that are up have it before the client is answered"
        for k in range(30):
            sessions[k % NODES].execute(quorum(f"INSERT INTO ks.t0 (k, v) VALUES ({k}, {k})"))

        # Any one of them, even the leader, is killed. The others still agree on changes.
        three[0].kill()
        sessions.forget(0)
        eventually(
            lambda: sessions[1].execute(quorum("INSERT INTO ks.t0 (k, v) VALUES (100, 100)"))
            is not None
        )
        sessions[1].execute("CREATE TABLE ks.without (k int PRIMARY KEY)")
        known.add("without")
        assert tables(sessions[2]) == known
        assert len(list(sessions[2].execute(quorum("SELECT k FROM ks.t0")))) == 31

        # The node comes back with another address, and all other nodes find it there.
        three[0].address = free_address()
        three[0].start()
        eventually(lambda: tables(sessions[0]) == known)
        for n in (1, 2):
            eventually(
                lambda: three[0].address in peers(sessions[n]) and len(peers(sessions[n])) == 2
            )
        sessions[0].execute("DROP TABLE ks.without")
        assert "without" not in tables(sessions[2])
        assert len(list(sessions[0].execute(quorum("SELECT k FROM ks.t0")))) == 31
    finally:
        sessions.close()


def test_a_node_of_another_cluster_is_refused(tmp_path):
    first = Node(shards=1, memory="256M", data_dir=tmp_path / "first")
    first.config["seeds"] = first.address
    other = Node(
        shards=1,
        memory="256M",
        data_dir=tmp_path / "other",
        config={"seeds": first.address, "cluster_name": "another"},
    )
    try:
        first.start()
        with pytest.raises(StartFailed, match="(?s)another.*|cluster"):
            other.start(timeout=20)
        assert other.process.poll() is not None, "it ended, and does not wait for ever"
    finally:
        other.close()
        first.close()


def test_nodes_with_clusters_of_their_own_say_so(tmp_path):
    """Nodes that each began a cluster stay separate. Each logs once that its seed belongs to
    another cluster."""
    addresses = [free_address(), free_address()]
    nodes = [
        Node(shards=1, memory="256M", data_dir=tmp_path / f"alone{n}", address=addresses[n])
        for n in range(2)
    ]
    together = None
    try:
        for n, node in enumerate(nodes):
            node.start()
            node.stop()
            node.config["seeds"] = addresses[1 - n]
        together = Together(nodes)

        def lines(node):
            return [
                line
                for line in node.log_path.read_text().splitlines()
                if "belongs to another cluster" in line
            ]

        for n, node in enumerate(nodes):
            eventually(lambda: lines(node), seconds=60)
            assert addresses[1 - n] in lines(node)[0] and "WARN" in lines(node)[0]
        assert [len(lines(node)) for node in nodes] == [1, 1]
    finally:
        if together:
            together.end()
        for node in nodes:
            node.close()
