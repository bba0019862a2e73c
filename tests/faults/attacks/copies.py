"""Copies of a member's data directory: at another address while the member is restarted, and put
back after it has run on."""

import contextlib
import shutil
import subprocess
import time

from launch import Node, StartFailed, failed_start
from trio import Trio, eventually, quorum, write_mark

OLD, NEW = range(50), range(50, 100)
REFUSAL = "older copy of the node's directory"
LATER = 60  # seconds: more than the silence after which another address is accepted
SAVED = 12  # seconds: more than marks of other members are only in memory


def insert(session, keys):
    for k in keys:
        session.execute(quorum(f"INSERT INTO ks.t (k, v) VALUES ({k}, {k})"), timeout=30)


def keys(session):
    return {row.k for row in session.execute(quorum("SELECT k FROM ks.t"), timeout=30)}


def fill(trio):
    trio.keyspace()
    trio.sessions[0].execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
    insert(trio.sessions[0], OLD)


def is_marked(member, backup):
    """Waits until the member has raised its write mark since the backup was made, and announced
    it."""
    eventually(lambda: write_mark(member.data_dir) > write_mark(backup), seconds=LATER)
    time.sleep(1)


def is_at_rest(member):
    """Waits until the write mark of a member has not changed for several of its periods."""
    for _ in range(20):
        before = write_mark(member.data_dir)
        time.sleep(5)
        if write_mark(member.data_dir) == before:
            return
    raise AssertionError("the write mark of an idle member is raised")


def copy_of(source, copy):
    subprocess.run(["cp", "-a", str(source), str(copy)], check=True)


def refused(node, *texts):
    """The process ends without having served, and says one of these texts."""
    failed_start(node, LATER)
    assert node.process.poll() is not None, "the process neither serves nor ends"
    said = node.log_tail(20)
    assert any(text in said for text in texts), said


def refused_together(trio, member):
    """As `refused`, for a member that is started at the same time as all others, none of which
    runs."""
    try:
        trio.restart_all()
        raise AssertionError("the node serves")
    except StartFailed:
        pass
    assert not member.alive() and REFUSAL in member.log_tail(20), member.log_tail(20)
    for node in trio.nodes:
        node.kill()


@contextlib.contextmanager
def member_and_copy(place):
    """Three nodes with rows, the last of them, and a node on a copy of its directory, which is not
    started."""
    with Trio(place) as trio:
        fill(trio)
        member = trio.nodes[2]
        is_at_rest(member)
        copy_of(member.data_dir, place / "copy")
        copy = Node(
            shards=1, memory="256M", data_dir=place / "copy", config={**member.config}, keep=True
        )
        try:
            yield trio, member, copy
        finally:
            copy.close()


def copied_member(place, check):
    """A stale copy waits at another address while the member is restarted: the member keeps its
    place, the copy is refused."""
    with member_and_copy(place) as (trio, member, copy):
        with check("the copy waits while the member answers"):
            error = failed_start(copy, 5)
            assert "did not answer CQL" in str(error), error
        insert(trio.sessions[0], NEW)
        with check("the member is restarted and serves"):
            trio.sessions.forget(2)
            member.stop()
            member.start(timeout=LATER)
            trio.wait_up(2)
        with check("the waiting copy ends, and each later start of it"):
            eventually(lambda: not copy.alive(), seconds=LATER)
            refused(copy, REFUSAL)
        with check("no acknowledged row is missing at QUORUM with the member"):
            trio.kill(0)
            trio.wait_down(0)
            assert member.alive() and keys(trio.sessions[2]) == {*OLD, *NEW}


def more_rows(trio):
    insert(trio.sessions[0], NEW)


def more_tables(trio):
    for n in range(3):
        trio.sessions[0].execute(f"CREATE TABLE ks.later{n} (k int PRIMARY KEY)")


def older_copy(place, check, what, change, stops=False, all_end=False):
    """A copy of the third member's directory, made before a change, is put back in its place after
    a kill."""
    with Trio(place) as trio:
        fill(trio)
        member, backup = trio.nodes[2], place / "backup"
        trio.sessions.forget(2)
        if stops:
            member.stop()
        copy_of(member.data_dir, backup)
        if stops:
            member.start()
            trio.wait_up(2)
        trio.kill(1)
        trio.wait_down(1)
        change(trio)
        is_marked(member, backup)
        if all_end:
            trio.nodes[1].start(timeout=LATER)
            trio.wait_up(1)
            time.sleep(SAVED)
            trio.kill(0)
            trio.kill(1)
        trio.kill(2)
        shutil.rmtree(member.data_dir)
        copy_of(backup, member.data_dir)
        with check(f"a copy {what} is refused"):
            if all_end:
                refused_together(trio, member)
            else:
                refused(member, REFUSAL)
        for n in range(2):
            if not trio.nodes[n].alive():
                trio.nodes[n].start(timeout=LATER)
        trio.wait_up(0)
        trio.wait_up(1)
        with check(f"no acknowledged row is missing without the copy {what}"):
            assert keys(trio.sessions[1]) == {*OLD, *(NEW if change is more_rows else ())}


def older_member(place, check):
    """An older copy of the whole directory is put back, of an earlier run and of the present
    one."""
    kinds = (
        ("of an earlier run", {"change": more_rows, "stops": True}),
        ("of the present run", {"change": more_rows}),
        ("of the present run, from before changes of the metadata", {"change": more_tables}),
        ("of the present run, when all members are started again",
            {"change": more_rows, "all_end": True}),
    )
    for n, (what, kind) in enumerate(kinds):
        (place / str(n)).mkdir()
        older_copy(place / str(n), check, what, **kind)


def displaced_member(place, check):
    """A member that is paused for so long that a copy gets its place stops by itself when it goes
    on."""
    with member_and_copy(place) as (trio, member, copy):
        try:
            trio.sessions.forget(2)
            member.stand_still()
            with check("the copy is admitted after the silence, not before"):
                copy.start(timeout=2 * LATER)
                assert copy.start_seconds > 20, f"after {copy.start_seconds} s"
            member.go_on()
            with check("the member stops by itself"):
                eventually(lambda: not member.alive(), seconds=LATER)
                assert "another process has replaced this node in the cluster" in member.log_tail(
                    200
                )
            with check("a start of it is refused"):
                refused(member, REFUSAL)
        finally:
            if member.alive():
                member.go_on()


ATTACKS = {
    "copied-member": copied_member,
    "older-member": older_member,
    "displaced-member": displaced_member,
}
