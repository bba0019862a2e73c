"""Tablets that move between three nodes as whole files, beside clients, over kill -9 of the source
and of the target."""

import threading

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.elasticity.moving import ROWS, Writer, admin, contents, fill_table, owners, tablets
from cluster.trio import eventually, rest


def session_dirs(trio):
    return [str(path) for node in trio.nodes for path in node.data_dir.glob("data/ks/t-*/streaming/*")]


@pytest.fixture
def filled(trio):
    """The session to the first node of three that share a table of four tablets. Tablets move only
    by request."""
    off = admin(trio.nodes[0], "balancing", "off")
    assert off.returncode == 0, off.stderr
    session = fill_table(trio, factor=1, tablets=4)
    trio.nodes[0].flush("ks")
    return session


def test_tablets_move_while_clients_write(trio, filled):
    with Writer(filled) as writer:
        for tablet in tablets(trio.nodes[0]):
            source, token = owners(tablet)[0], tablet["last_token"]
            target = next(node.address for node in trio.nodes if node.address != source)
            done = admin(trio.nodes[0], "move-tablet", "ks", "t", token, source, target)
            assert done.returncode == 0, done.stderr
            moved = next(one for one in tablets(trio.nodes[0]) if one["last_token"] == token)
            assert owners(moved) == [target]
    assert not writer.failures, writer.failures[:3]
    assert len(contents(filled)) == ROWS + writer.rows
    assert sum(node.metric("scylla_streaming_received_tablets") for node in trio.nodes) == 4
    incoming, outgoing = (sum(node.metric(f"scylla_streaming_total_{way}_bytes") for node in trio.nodes)
                          for way in ("incoming", "outgoing"))
    assert incoming == outgoing > 0
    eventually(lambda: session_dirs(trio) == [])


def test_replicas_are_added_and_removed(trio, filled):
    tablet = tablets(trio.nodes[0])[0]
    source, token = owners(tablet)[0], tablet["last_token"]
    others = [node.address for node in trio.nodes if node.address != source]
    before = contents(filled)
    done = admin(trio.nodes[1], "add-replica", "ks", "t", token, others[0])
    assert done.returncode == 0, done.stderr
    assert sorted(owners(tablets(trio.nodes[1])[0])) == sorted([source, others[0]])
    assert contents(filled) == before
    done = admin(trio.nodes[2], "del-replica", "ks", "t", token, source)
    assert done.returncode == 0, done.stderr
    assert owners(tablets(trio.nodes[1])[0]) == [others[0]]
    assert contents(filled) == before

    for words, why in [
        (("move-tablet", "ks", "t", token, source, others[1]), "has no replica of the tablet"),
        (("move-tablet", "ks", "nix", token, others[0], others[1]), "Can't find a column family nix"),
        (("move-tablet", "ks", "t", token, others[0], "10.9.9.9"), "is not known"),
        (("add-replica", "ks", "t", token, others[1], "--shard", "9"), "shards"),
        (("del-replica", "ks", "t", token, others[0]), "only one replica can be added or removed at a time"),
    ]:
        refused = admin(trio.nodes[0], *words)
        assert refused.returncode != 0 and why in refused.stderr, (words, refused.stderr)


def test_a_dropped_table_is_removed_at_once_while_tablets_leave(trio, filled):
    """Files of tablets that have left are removed in the background."""
    filled.execute("CREATE KEYSPACE three WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}")
    node = trio.nodes[0]
    for n, tablet in enumerate(tablets(node)):
        filled.execute(f"CREATE TABLE three.t{n} (k int PRIMARY KEY)")
        filled.execute(SimpleStatement(f"INSERT INTO three.t{n} (k) VALUES (1)", consistency_level=Level.ALL))
        source = next(at for at, one in enumerate(trio.nodes) if one.address == owners(tablet)[0])
        target = trio.nodes[(source + 1) % 3].address
        moved = admin(node, "move-tablet", "ks", "t", tablet["last_token"], owners(tablet)[0], target)
        assert moved.returncode == 0, moved.stderr
        trio.sessions[source].execute(f"DROP TABLE three.t{n}")
        names = [snapshot["key"] for snapshot in rest(trio.nodes[source], "/storage_service/snapshots")]
        assert any(name.endswith(f"-t{n}") for name in names), names


@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_move_survives_kill9(trio, filled, victim):
    """The move is repeated until it succeeds. No row is lost, and no file is left."""
    tablet = tablets(trio.nodes[0])[0]
    source = next(n for n, node in enumerate(trio.nodes) if node.address == owners(tablet)[0])
    target, witness = (n for n in range(3) if n != source)
    before = contents(filled)
    path = (f"/storage_service/tablets/move?ks=ks&table=t&token={tablet['last_token']}"
            f"&src_host={trio.nodes[source].address}&dst_host={trio.nodes[target].address}")
    asked = threading.Thread(target=trio.nodes[witness].admin, args=("POST", path))
    asked.start()
    killed = {"source": source, "target": target}[victim]
    for _ in range(3):
        trio.kill(killed)
        trio.nodes[killed].start()
    asked.join()
    eventually(lambda: owners(tablets(trio.nodes[witness])[0]) == [trio.nodes[target].address])
    for n in range(3):
        eventually(lambda: contents(trio.sessions[n]) == before)  # noqa: B023
    eventually(lambda: session_dirs(trio) == [])
