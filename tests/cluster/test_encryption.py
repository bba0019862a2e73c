"""Two processes with encryption between nodes. Strangers and nodes without encryption are refused,
and both sides log the reason."""

import socket
import urllib.request

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from certificates import Authority
from cluster.trio import Sessions, eventually
from launch import METRICS_PORT, Node, StartFailed, free_address

STORAGE_PORT = 7000


def options(authority, name):
    certificate, key = authority.sign(name)
    return {
        "server_encryption_options": f"{{internode_encryption: all, certificate: {certificate}, "
            f"keyfile: {key}, "
                                     f"truststore: {authority.certificate}, require_client_auth: "
                                         f"true}}",
        "internode_compression": "all",
    }


def node(tmp_path, name, seed, config, address=None):
    return Node(
        shards=2,
        memory="256M",
        data_dir=tmp_path / name,
        address=address,
        config={"seeds": f"'{seed}'", "rack": name, **config},
    )


@pytest.fixture
def two(tmp_path):
    authority, address = Authority(tmp_path), free_address()
    nodes = [
        node(tmp_path, name, address, options(authority, name), at)
        for name, at in (("one", address), ("two", None))
    ]
    try:
        for each in nodes:
            each.start()
        yield nodes
    finally:
        for each in nodes:
            each.close()


def metric(node, name):
    with urllib.request.urlopen(
        f"http://{node.address}:{METRICS_PORT}/metrics", timeout=10
    ) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith((f"{name}{{", f"{name} "))
    )


def log(node):
    return node.log_path.read_text(errors="replace")


def turned_away(node, by, theirs, ours):
    """A node that cannot join, and what both logs say."""
    try:
        with pytest.raises(StartFailed):
            node.start(timeout=2)
        eventually(lambda: theirs in log(by))
        eventually(lambda: ours in log(node))
    finally:
        node.close()


def test_traffic_between_nodes_is_encrypted(two, tmp_path):
    one, other = two
    sessions = Sessions(two)
    try:
        sessions[0].execute(
            "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 2}"
        )
        sessions[1].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v text)")
        everywhere = ConsistencyLevel.ALL
        for k in range(20):
            sessions[k % 2].execute(
                SimpleStatement(
                    f"INSERT INTO ks.t (k, v) VALUES ({k}, '{'x' * 20000}')",
                    consistency_level=everywhere,
                )
            )
        for n in range(2):
            rows = list(
                sessions[n].execute(
                    SimpleStatement("SELECT k, v FROM ks.t", consistency_level=everywhere)
                )
            )
            assert sorted(row.k for row in rows) == list(range(20)) and all(
                row.v == "x" * 20000 for row in rows
            )
        assert metric(one, "scylla_rpc_client_count") > 0 and metric(one, "scylla_gossip_live") == 1
        # 200 kB were sent in each direction. The repeated x of a row compress to a few bytes.
        assert 0 < metric(one, "scylla_rpc_sent_bytes") < 150_000

        with socket.create_connection((one.address, STORAGE_PORT), timeout=20) as garbage:
            garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
            try:
                assert garbage.recv(100) == b""
            except ConnectionResetError:
                pass  # closed before all of it was read
        eventually(lambda: "closing a connection whose peer is not a node" in log(one))

        plain = node(tmp_path, "plain", one.address, {})
        turned_away(
            plain, one, "accepts only encrypted connections", "accepts only encrypted connections"
        )
        strangers = tmp_path / "strangers"
        strangers.mkdir()
        stranger = node(
            tmp_path, "stranger", one.address, options(Authority(strangers, "other"), "stranger")
        )
        turned_away(
            stranger,
            one,
            "no encrypted connection with the node at",
            "no encrypted connection to the node at",
        )

        sessions[1].execute("CREATE TABLE ks.after (k int PRIMARY KEY)")
        assert one.alive() and other.alive()
    finally:
        sessions.close()
