"""Shared by the tests of clusters whose tablets move: a table with rows, a client that writes, and
the administration of a node."""

import subprocess
import threading

from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.trio import rest
from launch import binary

ROWS = 3000


def admin(node, *words):
    command = [str(binary()), "admin", "--api", f"{node.address}:10000", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def tablets(node):
    return rest(node, "/cluster/tablets/ks?cf=t")


def owners(tablet):
    return [replica["address"] for replica in tablet["replicas"]]


def all_owners(node):
    return {owner for tablet in tablets(node) for owner in owners(tablet)}


def fill(session):
    insert = session.prepare("INSERT INTO ks.t (k, c, v) VALUES (?, ?, ?)")
    insert.consistency_level = Level.QUORUM
    waiting = [session.execute_async(insert, (k % 100, k, "a" * 20)) for k in range(ROWS)]
    for one in waiting:
        one.result()


def fill_table(trio, factor, tablets):
    """Makes a table with rows on a trio; returns the session to the first node."""
    trio.keyspace(factor=factor)
    session = trio.sessions[0]
    session.execute(
        "CREATE TABLE ks.t (k int, c int, v text, PRIMARY KEY (k, c))"
        f" WITH tablets = {{'min_tablet_count': {tablets}, 'max_tablet_count': {tablets}}}"
    )
    fill(session)
    return session


def host_id(node):
    return rest(node, "/storage_service/hostid/local")


def kill(trio, n):
    """Kills a node, waits until the others have noticed, and returns its host id."""
    name = host_id(trio.nodes[n])
    trio.kill(n)
    trio.wait_down(n)
    return name


def members(node):
    return {one["address"]: one["state"] for one in rest(node, "/cluster/nodes")}


def contents(session):
    text = SimpleStatement("SELECT k, c, v FROM ks.t", consistency_level=Level.ALL, fetch_size=1000)
    return {(row.k, row.c): row.v for row in session.execute(text)}


class Decommission:
    """A decommission that runs in a thread."""

    def __init__(self, node):
        self.done = None
        self.thread = threading.Thread(target=self.run, args=(node,))
        self.thread.start()

    def run(self, node):
        self.done = admin(node, "decommission")

    def result(self):
        self.thread.join()
        return self.done


class Writer:
    """Writes new rows until the block ends. `failures` has the errors."""

    def __init__(self, session, level=Level.ALL):
        self.session = session
        self.level = level
        self.ended = threading.Event()
        self.failures = []
        self.rows = 0
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ended.is_set():
            text = (
                f"INSERT INTO ks.t (k, c, v) VALUES ({self.rows % 100}, {10**6 + self.rows},"
                " 'live')"
            )
            try:
                self.session.execute(SimpleStatement(text, consistency_level=self.level))
                self.rows += 1
            except Exception as error:
                self.failures.append(error)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
