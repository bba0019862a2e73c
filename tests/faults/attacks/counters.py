"""Three nodes with counters. One of them loses part of its counter updates. No acknowledged
increment that the other nodes have may be lost."""

import shutil
import subprocess

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from launch import ADMIN_PORT, binary
from trio import Trio, eventually, quorum, rest

from attacks.cluster import all_of

EACH = 20  # increments through each node before the loss


def add(trio, n, k, times):
    for _ in range(times):
        trio.sessions[n].execute(quorum(f"UPDATE k.n SET c = c + 1 WHERE k = {k}"))


def counts(trio):
    rows = trio.sessions[1].execute(all_of("SELECT k, c FROM k.n"))
    return {row.k: row.c for row in rows}


def fill(trio):
    trio.keyspace("k")
    trio.sessions[0].execute("CREATE TABLE k.n (k int PRIMARY KEY, c counter)")
    for k in range(3):
        for n in range(3):
            add(trio, n, k, EACH)
    before = counts(trio)
    assert before == {k: 3 * EACH for k in range(3)}
    return before


def start(trio, *extra):
    """Starts node 0 and waits until all see it."""
    node = trio.nodes[0]
    node.extra = list(extra)
    node.start()
    node.extra = []
    trio.sessions.forget(0)
    trio.wait_up(0)
    eventually(lambda: all(one["up"] for one in rest(node, "/cluster/nodes")))


def resync(trio):
    command = [
        binary(),
        "admin",
        "--api",
        f"http://{trio.nodes[1].address}:{ADMIN_PORT}",
        "resync",
        trio.nodes[0].address,
        "--force",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def judge(trio, check, what, before):
    """Node 0 has started without a part of its counter updates. `before`: the counters before."""
    add(trio, 0, 0, 1)
    expected = {k: count + (k == 0) for k, count in before.items()}
    with check(f"{what}: increments after it add to what others have"):
        assert counts(trio) == expected, f"{counts(trio)}, expected {expected}"
    resync(trio)
    add(trio, 0, 1, 1)
    expected[1] += 1
    with check(f"{what}: so do those after a resync"):
        assert counts(trio) == expected, f"{counts(trio)}, expected {expected}"


def without_its_log(place, check):
    """kill -9, `commitlog/` removed, --accept-loss."""
    with Trio(place) as trio:
        before = fill(trio)
        trio.kill(0)
        shutil.rmtree(trio.nodes[0].data_dir / "commitlog")
        start(trio, "--accept-loss")
        judge(trio, check, "the commitlog is lost", before)


def stop_flushed(trio):
    """Stops node 0 with all counts in sstables. Returns the directory of the table."""
    node = trio.nodes[0]
    node.flush("k")
    trio.sessions.forget(0)
    node.stop()
    return next((node.data_dir / "data/k").glob("n-*"))


def without_a_table(place, check):
    """A stop, the directory of the table removed, --accept-loss, as docs/faults.md says of a table
    that missed too much."""
    with Trio(place) as trio:
        before = fill(trio)
        shutil.rmtree(stop_flushed(trio))
        start(trio, "--accept-loss")
        judge(trio, check, "the table is lost", before)


def without_an_sstable(place, check):
    """A stop, all files of the sstables moved away, --accept-loss, as docs/faults.md says of
    damaged ones."""
    with Trio(place) as trio:
        before = fill(trio)
        for file in stop_flushed(trio).glob("me-*"):
            file.unlink()
        start(trio, "--accept-loss")
        judge(trio, check, "sstables are lost", before)


def without_the_last_writes(place, check):
    """The directory as it was before the last increments, as a power loss in the mode `periodic`
    leaves it."""
    with Trio(place) as trio:
        trio.keyspace("k")
        trio.sessions[0].execute("CREATE TABLE k.n (k int PRIMARY KEY, c counter)")
        for k in range(3):
            add(trio, 0, k, EACH)
        node, older = trio.nodes[0], place / "older"
        shutil.copytree(node.data_dir, older)
        for k in range(3):
            for n in range(3):
                add(trio, n, k, EACH)
        before = counts(trio)
        trio.kill(0)
        shutil.rmtree(node.data_dir)
        shutil.move(older, node.data_dir)
        start(trio)
        judge(trio, check, "the last writes are lost", before)


ATTACKS = {
    "counters-log": without_its_log,
    "counters-table": without_a_table,
    "counters-sstable": without_an_sstable,
    "counters-power": without_the_last_writes,
}
