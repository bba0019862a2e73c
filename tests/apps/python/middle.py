"""What the Python programs share: checks that are reported line by line, and the node that is
killed in the middle."""

import os
import sys
import threading
import traceback

HOSTS = os.environ["HOSTS"].split(",")
DATACENTER = os.environ["DATACENTER"]
WORK_DIR = os.environ["WORK_DIR"]

failed = []


class check:
    """Reports what the block did: `ok NAME`, or `FAILED NAME: why`, and continues behind it."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error is None:
            print(f"ok {self.name}", flush=True)
        elif isinstance(error, Exception):
            failed.append(self.name)
            traceback.print_exception(error, file=sys.stderr)
            print(
                f"FAILED {self.name}: {type(error).__name__}: {' '.join(str(error).split())}",
                flush=True,
            )
            return True
        return False


class Kill:
    """Asks the runner for a kill -9 of one node; `back` once that node was started again."""

    def __init__(self):
        self.line = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        print("kill?", flush=True)

    def read(self):
        sys.stdin.readline()
        self.line.set()

    @property
    def back(self):
        return self.line.is_set()


def same(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {found!r:.300} instead of {expected!r:.300}")


def keyspace(name):
    """A keyspace with a replica on each node, made as its operator would."""
    from cassandra.cluster import Cluster

    cluster = Cluster(HOSTS)
    session = cluster.connect()
    session.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy',"
        f" '{DATACENTER}': 3}}"
    )
    cluster.shutdown()


def end():
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # Threads of drivers and workers are not waited for.
