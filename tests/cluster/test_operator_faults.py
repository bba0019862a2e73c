"""Mistakes of operators and requests of strangers: each leads to a clear log line, and harms
nothing."""

import errno
import pathlib
import random
import re
import shutil
import socket
import subprocess
import threading

import pytest
from certificates import Authority
from cluster.trio import Together, Trio, eventually, quorum, rest
from database import connect
from launch import Node, StartFailed, binary, free_address


def log(node):
    return node.log_path.read_text(errors="replace")


def one(tmp_path, name, **config):
    """A node that is not started. Its only seed is itself, unless `seeds` is given."""
    node = Node(shards=1, memory="256M", data_dir=tmp_path / name)
    node.config = {"seeds": f"'{node.address}'", **config}
    return node


@pytest.fixture
def nodes(tmp_path):
    """Creates nodes and stops them."""
    made = []

    def make(name, **config):
        made.append(one(tmp_path, name, **config))
        return made[-1]

    yield make
    for node in made:
        node.close()


def waits(node, *words):
    """A node that cannot join yet: it retries, and logs why."""
    with pytest.raises(StartFailed, match="did not answer CQL within"):
        node.start(timeout=1)
    eventually(lambda: all(word in log(node) for word in words), seconds=30)
    assert node.alive(), log(node)


def ends(node, *words):
    """A node that can never start like this: it stops, and reports why."""
    with pytest.raises(StartFailed) as failure:
        node.start(timeout=60)
    assert "ended with" in str(failure.value), failure.value
    assert all(word in log(node) for word in words), log(node)


def test_seeds_by_name(nodes, tmp_path):
    """Names are resolved by the system: here by a hosts file that only the nodes see."""
    own_mounts = subprocess.run(["unshare", "-rm", "true"], capture_output=True, text=True)
    if own_mounts.returncode:
        pytest.skip(f"no mounts of its own for a process here: {own_mounts.stderr.strip()}")
    first, second = nodes("first"), nodes("second")
    hosts = tmp_path / "hosts"
    hosts.write_text(
        f"127.0.0.1 localhost\n{first.address} first.test\n{second.address} second.test\n"
    )
    for node in (first, second):
        node.prefix = [
            "unshare",
            "-rm",
            "sh",
            "-c",
            f'mount --bind {hosts} /etc/hosts && exec "$@"',
            "sh",
        ]
        node.config["seeds"] = "first.test,second.test:7000"
    together = Together([first, second])
    eventually(lambda: len(rest(first, "/gossiper/endpoint/live")) == 2)
    assert "resolved the address of a seed" in log(first) and second.address in log(first)
    together.end()


def test_seeds_that_are_not_there(nodes):
    unused = free_address()
    node = nodes("lost", seeds=f"'{unused}'")
    waits(node, "still looking for a cluster", unused, "cannot connect")


def test_a_seed_without_an_address(nodes):
    waits(
        nodes("nameless", seeds="no-such-host.invalid"),
        "the address of a seed cannot be resolved",
        "no-such-host.invalid",
    )


def test_seeds_that_are_nonsense(nodes):
    for nonsense in ("1.2.3", "'a b'", "10.0.0.1:port"):
        ends(
            nodes(f"nonsense{len(nonsense)}", seeds=nonsense), "seeds", "IP addresses or host names"
        )


def test_something_else_at_the_seeds_address(nodes):
    """A seed that is another server, such as a web server: it answers with another protocol."""
    with socket.create_server((free_address(), 7000)) as stranger:
        def answer():
            while True:
                try:
                    connection, _ = stranger.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        node = nodes("misled", seeds=stranger.getsockname()[0])
        waits(node, "is not a node of Messina")
        node.kill()


def test_a_foreign_cluster(nodes):
    first = nodes("first")
    first.start()
    other = nodes("other", seeds=first.address, cluster_name="another")
    ends(other, "belongs to cluster 'another'", "to cluster 'messina test'")
    eventually(lambda: "belongs to cluster 'another'" in log(first))
    assert first.alive()


def test_another_clusters_data(nodes):
    """A data directory of another cluster is refused."""
    first, second = nodes("first"), nodes("second", cluster_name="another")
    first.start()
    second.start()
    second.stop()
    second.config.update(cluster_name="messina test", seeds=first.address)
    ends(second, "another")


def test_an_address_that_is_taken(nodes, trio):
    """Another node with the address of a member is refused while that member is known, even if it
    is dead."""
    first, third = trio.nodes[0], trio.nodes[2]
    trio.kill(2)
    double = nodes("double", seeds=first.address)
    double.address = third.address
    ends(double, "belongs to node", "use another address")
    third.start()
    trio.wait_up(2)


def test_a_copied_data_directory(nodes, tmp_path):
    """Two nodes with one identity: the second is refused, the first is not affected."""
    first, second = nodes("first"), nodes("second")
    second.config["seeds"] = first.address
    first.start()
    second.start()
    second.stop()
    copy = nodes("copy", seeds=first.address)
    shutil.copytree(second.data_dir, copy.data_dir, dirs_exist_ok=True)
    second.start()
    # It would answer clients with the data that the other node had when it was copied.
    ends(copy, "older copy of the node's directory")
    assert first.alive() and second.alive()
    eventually(
        lambda: sorted(rest(first, "/gossiper/endpoint/live"))
        == sorted([first.address, second.address])
    )


def test_garbage_on_the_port_for_nodes(tmp_path):
    with Trio(tmp_path) as trio:
        trio.keyspace()
        rng = random.Random(7)
        first = trio.nodes[0]
        for n in range(60):
            with socket.create_connection((first.address, 7000), timeout=20) as garbage:
                front = b"MSNA\x01\x00\x00\x00" if n % 2 else b""
                try:
                    garbage.sendall(front + rng.randbytes(rng.randrange(1, 3000)))
                    garbage.shutdown(socket.SHUT_WR)
                    while garbage.recv(4096):
                        pass
                except OSError as closed:
                    # The node may close the connection first. Then nothing can be sent, and no
                    # direction can be shut down.
                    assert closed.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN), closed
        lines = [
            line
            for line in log(first).splitlines()
            if "closing a connection whose peer is not a node" in line
        ]
        assert 1 <= len(lines) <= 3, "it is said, and not sixty times"
        assert first.metric("scylla_rpc_garbage_connections") >= 30
        trio.sessions[1].execute("CREATE TABLE ks.t (k int PRIMARY KEY)")
        assert all(node.alive() for node in trio.nodes)
        assert len(rest(first, "/gossiper/endpoint/live")) == 3


def test_names_in_certificates_do_not_matter(tmp_path, nodes):
    """The signature of a node's certificate is checked. The name in it is not, because nodes move
    between addresses."""
    authority = Authority(tmp_path)
    made = []
    for name in ("some.name", "other.name"):
        certificate, key = authority.sign(name)
        options = (
            f"{{internode_encryption: all, certificate: {certificate}, keyfile: {key}, truststore:"
            f" {authority.certificate}, require_client_auth: true}}"
        )
        made.append(nodes(name, server_encryption_options=options))
        made[-1].config["seeds"] = made[0].address
        made[-1].start()
    eventually(lambda: len(rest(made[0], "/gossiper/endpoint/live")) == 2)


def test_a_clock_an_hour_off(tmp_path):
    """The node serves clients, and every status report shows the problem."""
    shim = tmp_path / "clock.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", shim, pathlib.Path(__file__).with_name("clock.c")],
        check=True,
    )
    trio = Trio(tmp_path)
    trio.nodes[2].prefix = ["env", f"LD_PRELOAD={shim}", "CLOCK_OFFSET=3600"]
    with trio:
        first, third = trio.nodes[0], trio.nodes[2]
        # The accuracy of a ping: most of its time may be spent in one direction.
        for node, said in (
            (first, r"clock differs from this node's clock.* ahead_micros=3[56]\d{8}\b"),
            (third, r"clock differs from this node's clock.* ahead_micros=-3[56]\d{8}\b"),
        ):
            eventually(lambda: re.search(said, log(node)))  # noqa: B023
        shown = lambda: {
            one["address"]: one["clock_ahead_us"]
            for one in rest(first, "/cluster/nodes")
            if not one["own"]
        }  # noqa: E731
        eventually(
            lambda: abs(shown()[third.address] - 3_600_000_000) < 5_000_000
            and abs(shown()[trio.nodes[1].address]) < 500_000
        )
        status = subprocess.run(
            [binary(), "admin", "--api", f"http://{first.address}:10000", "status"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.search(
            rf"UN {third.address} .*its clock is 3[56]\d\d\.\d s ahead of this node's",
            status.stdout,
        ), status.stdout
        trio.keyspace()
        trio.sessions[2].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
        for n in range(3):
            trio.sessions[n].execute(quorum(f"INSERT INTO ks.t (k, v) VALUES ({n}, {n})"))
        assert sorted(trio.sessions[1].execute(quorum("SELECT k, v FROM ks.t"))) == [
            (n, n) for n in range(3)
        ]


def test_fewer_shards_than_before(nodes):
    first, second = nodes("first"), nodes("second")
    second.shards = 2
    second.config["seeds"] = first.address
    first.start()
    second.start()
    second.stop()
    second.shards = 1
    ends(second, "number of shards can only grow", "--shards 2")
    second.shards = 2
    second.start()
    cluster, session = connect(second.address)
    assert session.execute("SELECT count(*) FROM system.cluster_status").one().count == 2
    cluster.shutdown()
