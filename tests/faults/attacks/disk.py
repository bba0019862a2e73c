"""A full disk: while a node runs, and when it starts. A small tmpfs is the disk (needs the right to
mount)."""

import contextlib
import os
import shutil
import subprocess
import time

from cassandra import ConsistencyLevel, OperationTimedOut
from cassandra.query import SimpleStatement
from database import connect
from launch import Node
from trio import Trio, eventually

KEYSPACE = (
    "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
    " 'replication_factor': 1}"
)
ANSWERED = 3  # seconds in which a refused write is answered


@contextlib.contextmanager
def small_disk(place, size="96m"):
    path = place / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "messina-faults", str(path)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise PermissionError(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path, leave=0):
    free = shutil.disk_usage(path).free - leave
    with open(path / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free)


def full_disk(place, check):
    """Writes to a full disk fail with an error that says so. A start on a full disk serves reads.
    With free space, everything works again."""
    with small_disk(place) as path:
        node = Node(
            shards=1,
            data_dir=path / "data",
            config={"commitlog_segment_size_in_mb": 4, "commitlog_total_space_in_mb": 32},
        )
        try:
            node.start()
            cluster, session = connect(node.address)
            session.execute(KEYSPACE)
            session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
            insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
            session.execute(insert, (0, b"first"))
            node.flush("k")
            fill(path, leave=6 << 20)
            acknowledged, errors, slow = {0}, {}, 0
            for pk in range(1, 400):
                began = time.monotonic()
                try:
                    session.execute(insert, (pk, os.urandom(50_000)), timeout=30)
                    acknowledged.add(pk)
                except Exception as error:
                    text = (
                        "client time-out"
                        if isinstance(error, OperationTimedOut)
                        else f"{type(error).__name__}: {error}"
                    )
                    errors[text] = errors.get(text, 0) + 1
                    slow += time.monotonic() - began > ANSWERED
                    if sum(errors.values()) == 40:
                        break
            print(f"   {len(acknowledged)} writes acknowledged, then {errors}")
            with check("writes are refused with an error that says the disk is full"):
                assert errors, "nothing was refused"
                other = {
                    text: count
                    for text, count in errors.items()
                    if "full" not in text.lower() and "space" not in text.lower()
                }
                assert not other, f"{other} of {sum(errors.values())}"
            with check(f"refusals are answered within {ANSWERED} s"):
                assert slow == 0, f"{slow} of {sum(errors.values())} took longer"
            with check("reads are served"):
                assert (
                    session.execute("SELECT v FROM k.t WHERE pk = 0", timeout=10).one().v
                    == b"first"
                )
            with check("the log does not grow by more than 100 kB in 5 s"):
                size = node.log_path.stat().st_size
                until = time.monotonic() + 5
                while time.monotonic() < until:
                    with contextlib.suppress(Exception):
                        session.execute(insert, (5000, b"x"), timeout=5)
                assert node.log_path.stat().st_size - size < 100_000, (
                    node.log_path.stat().st_size - size
                )
            cluster.shutdown()
            node.kill()
            (path / "ballast").unlink()
            fill(path)
            with check("a start on the full disk serves reads"):
                node.start(timeout=30)
                cluster, session = connect(node.address)
                assert (
                    session.execute("SELECT v FROM k.t WHERE pk = 0", timeout=10).one().v
                    == b"first"
                )
            with check("and says what it needs"):
                assert (
                    "space" in node.log_tail(200).lower() or "full" in node.log_tail(200).lower()
                ), node.log_tail(10)
            (path / "ballast").unlink()
            if not node.alive():
                node.start()
                cluster, session = connect(node.address)
            with check(
                "with space, writes are accepted within 60 s, and acknowledged rows are there"
            ):
                until = time.monotonic() + 60
                while True:
                    try:
                        session.execute("INSERT INTO k.t (pk, v) VALUES (9999, 0x01)", timeout=10)
                        break
                    except Exception as error:
                        assert time.monotonic() < until, error
                        time.sleep(0.2)
                there = {row.pk for row in session.execute("SELECT pk FROM k.t")}
                assert (
                    acknowledged <= there
                ), f"{len(acknowledged - there)} of {len(acknowledged)} acknowledged rows are gone"
            cluster.shutdown()
        finally:
            node.close()
            shutil.rmtree(path / "data", ignore_errors=True)


def full_disk_of_one(place, check):
    """The disk of one of three nodes is full: QUORUM is served, writes at ALL get an error that
    says so, not a time-out."""
    with small_disk(place) as path:
        (path / "data").mkdir()
        (place / "n1").symlink_to(path / "data")
        with Trio(place, commitlog_segment_size_in_mb=4, commitlog_total_space_in_mb=32) as trio:
            trio.keyspace("k")
            session = trio.sessions[0]
            session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
            insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
            fill(path, leave=6 << 20)
            acknowledged, errors = set(), {}
            insert.consistency_level = ConsistencyLevel.ALL
            for pk in range(400):
                try:
                    session.execute(insert, (pk, os.urandom(50_000)), timeout=30)
                    acknowledged.add(pk)
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                    errors[text] = errors.get(text, 0) + 1
                    if sum(errors.values()) == 40:
                        break
            print(f"   {len(acknowledged)} writes at ALL acknowledged, then {errors}")
            with check("writes at ALL are refused with an error that says the disk is full"):
                assert errors, "nothing was refused"
                other = {
                    text: count
                    for text, count in errors.items()
                    if "full" not in text.lower() and "space" not in text.lower()
                }
                assert not other, f"{other} of {sum(errors.values())}"
            with check("writes at QUORUM are acknowledged"):
                insert.consistency_level = ConsistencyLevel.QUORUM
                for pk in range(1000, 1040):
                    session.execute(insert, (pk, os.urandom(50_000)), timeout=30)
                    acknowledged.add(pk)
            (path / "ballast").unlink()
            with check(
                "with space, writes at ALL are accepted within 60 s, and acknowledged rows are"
                " at ALL"
            ):
                eventually(
                    lambda: session.execute(
                        SimpleStatement(
                            "INSERT INTO k.t (pk, v) VALUES (9999, 0x01)",
                            consistency_level=ConsistencyLevel.ALL,
                        )
                    )
                    is not None,
                    60,
                )
                # Each shard of the node retries on its own. This read repairs the writes that the
                # node missed.
                there = set()

                def read():
                    there.update(
                        row.pk
                        for row in session.execute(
                            SimpleStatement(
                                "SELECT pk FROM k.t", consistency_level=ConsistencyLevel.ALL
                            )
                        )
                    )
                    return True

                eventually(read, 60)
                assert (
                    acknowledged <= there
                ), f"{len(acknowledged - there)} of {len(acknowledged)} acknowledged rows are gone"


ATTACKS = {"full-disk": full_disk, "full-disk-of-one": full_disk_of_one}
