"""Shared by the tests of clusters: three nodes that start together, sessions to each, and waiting
for a condition."""

import json
import threading
import time

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from database import connect
from launch import Node, StartFailed, free_address

NODES = 3


class Sessions:
    """Sessions to nodes by number. Each session uses its node only."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.open = {}

    def __getitem__(self, n):
        if n not in self.open:
            self.open[n] = connect(self.nodes[n].address, max_schema_agreement_wait=0)
        return self.open[n][1]

    def forget(self, n):
        if n in self.open:
            self.open.pop(n)[0].shutdown()

    def close(self):
        for n in list(self.open):
            self.forget(n)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Together:
    """Starts nodes at the same time, and raises the first failure. The threads run until `end`,
    because a child process dies with the thread that started it."""

    def __init__(self, nodes):
        self.ended = threading.Event()
        self.failures = []
        up = [threading.Event() for _ in nodes]
        for node, started in zip(nodes, up):
            threading.Thread(target=self.start, args=(node, started), daemon=True).start()
        for started in up:
            started.wait()
        if self.failures:
            self.end()
            raise self.failures[0]

    def start(self, node, started):
        try:
            node.start()
        except StartFailed as failure:
            self.failures.append(failure)
        started.set()
        self.ended.wait()

    def end(self):
        self.ended.set()


def make(tmp_path, shards=(1, 2, 1), **config):
    """Three nodes that are not started. Each has another one as its seed, so all find each
    other."""
    addresses = [free_address() for _ in range(NODES)]
    seeds = [f"{addresses[0]},{addresses[n - 1]}" for n in range(NODES)]
    return [
        Node(shards=shards[n], memory="256M", data_dir=tmp_path / f"n{n}", address=addresses[n],
             config={"seeds": f"'{seeds[n]}'", "rack": f"r{n}", **config})
        for n in range(NODES)
    ]


class Trio:
    """Three nodes of one cluster, and sessions to them."""

    def __init__(self, tmp_path, **options):
        self.nodes = make(tmp_path, **options)
        self.sessions = Sessions(self.nodes)
        self.together = None

    def __enter__(self):
        try:
            self.together = Together(self.nodes)
            for node in self.nodes:
                eventually(
                    lambda: [
                        one["up"] and one["native_transport"] and one["state"]
                        for one in rest(node, "/cluster/nodes")
                    ]
                    == ["normal"] * NODES
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.sessions.close()
        if self.together:
            self.together.end()
        for node in self.nodes:
            node.close()

    def keyspace(self, name="ks", factor=NODES):
        self.sessions[0].execute(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
            f" 'replication_factor': {factor}}}"
        )

    def kill(self, n):
        self.sessions.forget(n)
        self.nodes[n].kill()

    def restart_all(self):
        """Starts all nodes at once. None of them may be running."""
        self.together.end()
        self.together = Together(self.nodes)

    def wait_down(self, n):
        """Waits until the others have marked a node down."""
        self.wait_seen(n, "down")

    def wait_up(self, n):
        self.wait_seen(n, "live")

    def wait_seen(self, n, how):
        for other, node in enumerate(self.nodes):
            if other != n and node.alive():
                eventually(lambda: self.nodes[n].address in rest(node, f"/gossiper/endpoint/{how}"))


def rest(node, path):
    status, body = node.admin("GET", path)
    assert status == 200, f"{path}: {status} {body}"
    return json.loads(body)


def write_mark(data_dir):
    """The write mark of a member."""
    file = data_dir / "messina.write-marks"
    return json.loads(file.read_text().split("\n", 1)[1])["own"] if file.exists() else 0


def quorum(text):
    return SimpleStatement(text, consistency_level=ConsistencyLevel.QUORUM)


def eventually(what, seconds=20):
    """Waits until `what` returns true without an exception."""
    end = time.monotonic() + seconds
    while True:
        try:
            if what():
                return
        except Exception:
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
