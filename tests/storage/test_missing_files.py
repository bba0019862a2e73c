"""Files of a data directory that are gone at the start of a real process: the start is refused and
names them, or no row is lost.

What becomes of every single file is in crates/server/tests/all/missing.rs.
"""

import pathlib
import shutil
import time

import pytest
from cluster.trio import eventually
from database import connect
from launch import Node, StartFailed
from table_files import table_dir

pytestmark = pytest.mark.node
KEYSPACE = (
    "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
    " 'replication_factor': 1}"
)
ROWS = 100


def rows(node):
    cluster, session = connect(node.address)
    try:
        return {
            table: session.execute(f"SELECT count(*) FROM k.{table}").one()[0]
            for table in ("flushed", "logged")
        }
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module", params=["stop", "kill"])
def template(request, tmp_path_factory):
    """The directory of a node after a stop or a kill. One table is in sstables, and one is only in
    the log."""
    node = Node(shards=2, config={"commitlog_sync": "batch"})
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute("CREATE TABLE k.flushed (pk int PRIMARY KEY, v text)")
        session.execute("CREATE TABLE k.logged (pk int PRIMARY KEY, v text)")
        for pk in range(ROWS):
            session.execute(f"INSERT INTO k.flushed (pk, v) VALUES ({pk}, 'v')")
        node.flush("k")
        for pk in range(ROWS):
            session.execute(f"INSERT INTO k.logged (pk, v) VALUES ({pk}, 'v')")
        cluster.shutdown()
        node.kill() if request.param == "kill" else node.stop()
        directory = tmp_path_factory.mktemp("template") / "data"
        shutil.copytree(node.data_dir, directory)
        yield directory
    finally:
        node.close()


@pytest.fixture
def node(template, tmp_path):
    directory = tmp_path / "data"
    shutil.copytree(template, directory)
    node = Node(shards=2, data_dir=directory, config={"commitlog_sync": "batch"})
    yield node
    node.close()


def remove(path: pathlib.Path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def raft_log(node):
    return max(
        (node.data_dir / "raft").glob("log-*"), key=lambda path: int(path.name.removeprefix("log-"))
    )


def cut_raft_log(node):
    """Truncates the log before its last records, as if they had never been written."""
    contents = raft_log(node).read_bytes().rstrip(b"\0")
    raft_log(node).write_bytes(contents[:len(contents) // 2])


MISSING = {
    "raft": (lambda node: remove(node.data_dir / "raft"), "raft, with log-1, is missing"),
    "the metadata log": (lambda node: remove(raft_log(node)), "raft, with log-1, is missing"),
    "the end of the metadata log": (cut_raft_log, "raft/log-1 is cut off"),
    "commitlog": (lambda node: remove(node.data_dir / "commitlog"), "commitlog is missing"),
    "a shard's commitlog": (lambda node: remove(node.data_dir / "commitlog/1"),
        "commitlog/1 is missing"),
    "a table's directory": (lambda node: remove(table_dir(node, "k", "flushed")),
        "data/k/flushed-"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_start_names_what_is_missing_and_has_a_way_out(node, what):
    break_it, message = MISSING[what]
    break_it(node)
    with pytest.raises(StartFailed, match=message) as refused:
        node.start()
    assert "start once with --accept-loss" in str(refused.value)
    node.extra = ["--accept-loss"]
    node.start()
    assert "starting without a missing file" in node.log_tail(60), node.log_tail(60)
    node.extra = []
    node.restart()
    assert node.alive()


def test_segments_and_what_says_how_far_they_are_synced(node):
    """After a clean stop, only the segments of a run are needed."""
    for synced in node.data_dir.glob("commitlog/*/*/synced"):
        contents = synced.read_bytes()
        synced.unlink()
        with pytest.raises(StartFailed, match="synced is missing, damaged or of another node"):
            node.start()
        synced.write_bytes(contents)
    for segment in node.data_dir.glob("commitlog/*/*/segment-*"):
        contents = segment.read_bytes()
        if not any(contents[64:]):
            continue
        segment.unlink()
        with pytest.raises(StartFailed, match=f"{segment.name} is missing"):
            node.start()
        segment.write_bytes(contents[:len(contents.rstrip(bytes(1))) // 2])
        with pytest.raises(StartFailed, match=segment.name):
            node.start()
        segment.write_bytes(contents)
    node.start()
    assert rows(node) == {"flushed": ROWS, "logged": ROWS}


def test_a_lost_toc_is_rebuilt(node):
    tocs = list(table_dir(node, "k", "flushed").glob("*-TOC.txt"))
    assert tocs
    for toc in tocs:
        toc.unlink()
    node.start()
    assert rows(node) == {"flushed": ROWS, "logged": ROWS}
    assert "TOC.txt of an sstable was missing: rebuilt from Checksums.db" in node.log_tail(60)
    assert all(toc.exists() for toc in tocs)


def test_an_sstable_without_toc_and_another_component_makes_its_table_unreadable(node):
    directory = table_dir(node, "k", "flushed")
    gone = [
        path
        for path in directory.glob("me-*")
        if path.name.endswith(("-TOC.txt", "-Statistics.db"))
    ]
    for path in gone:
        path.unlink()
    left = sorted(path.name for path in directory.glob("me-*"))
    for _ in range(2):
        node.start()
        cluster, session = connect(node.address)
        assert session.execute("SELECT count(*) FROM k.logged").one()[0] == ROWS
        with pytest.raises(Exception, match="TOC.txt.*cannot be rebuilt: Statistics.db is missing"):
            session.execute("SELECT * FROM k.flushed").all()
        cluster.shutdown()
        assert "an sstable cannot be opened" in node.log_tail(200)
        # Rows that the commitlog still has are replayed into sstables beside them.
        assert set(left) <= {path.name for path in directory.glob("me-*")}
        assert not (directory / "quarantine").exists()
        node.stop()


def test_files_of_unknown_origin_are_moved_aside(node):
    directory = table_dir(node, "k", "flushed")
    (directory / "nb-7-big-Data.db").write_text("of another database")
    node.start()
    assert rows(node) == {"flushed": ROWS, "logged": ROWS}
    assert [path.name for path in (directory / "quarantine").iterdir()] == ["nb-7-big-Data.db"]
    assert "moved to quarantine" in node.log_tail(200)
    node.stop()
    node.log_path.unlink()
    node.start()
    assert "files are in quarantine" in node.log_path.read_text()


@pytest.mark.parametrize("component", ["Data.db", "Index.db"])
def test_a_table_without_a_component_is_not_read_and_the_node_lives(node, component):
    remove(next(table_dir(node, "k", "flushed").glob(f"*-{component}")))
    node.start()
    cluster, session = connect(node.address)
    assert session.execute("SELECT count(*) FROM k.logged").one()[0] == ROWS
    with pytest.raises(Exception, match=f"{component}.*is missing|the TOC lists it"):
        session.execute("SELECT * FROM k.flushed").all()
    cluster.shutdown()


def test_a_member_of_a_cluster_without_its_raft_log_is_refused(template, tmp_path):
    """It must not continue with a new log, whatever its options: its votes were in the old one."""
    directory = tmp_path / "data"
    shutil.copytree(template, directory)
    shutil.rmtree(directory / "raft")
    node = Node(shards=2, data_dir=directory, extra=["--accept-loss"])
    node.config["seeds"] = node.address
    try:
        with pytest.raises(
            StartFailed, match="A member of a cluster cannot start without its metadata log"
        ):
            node.start()
    finally:
        node.close()


def test_an_older_metadata_log_is_noticed_together_with_its_end(tmp_path):
    """A table that was made since has rows only in the commitlog. A replay by the older log would
    discard them."""
    older = tmp_path / "older"
    node = Node(shards=2, data_dir=tmp_path / "data", config={"commitlog_sync": "batch"})
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        shutil.copytree(node.data_dir / "raft", older / "raft")
        shutil.copy(node.data_dir / "messina.raft-end", older)
        stamp = (node.data_dir / "messina.stamp").read_text()
        session.execute("CREATE TABLE k.logged (pk int PRIMARY KEY, v text)")
        for pk in range(ROWS):
            session.execute(f"INSERT INTO k.logged (pk, v) VALUES ({pk}, 'v')")
        deadline = time.monotonic() + 60
        while (node.data_dir / "messina.stamp").read_text() == stamp:
            assert time.monotonic() < deadline, "the stamp does not name the new end of the log"
            time.sleep(0.1)
        cluster.shutdown()
        node.kill()
        newer = tmp_path / "newer"
        newer.mkdir()
        for part in ("raft", "messina.raft-end"):
            shutil.move(node.data_dir / part, newer / part)
        shutil.copytree(older / "raft", node.data_dir / "raft")
        shutil.copy(older / "messina.raft-end", node.data_dir)
        with pytest.raises(StartFailed, match="lacks files that it had when .*raft.*accept-loss"):
            node.start()
        shutil.rmtree(node.data_dir / "raft")
        for part in ("raft", "messina.raft-end"):
            shutil.move(newer / part, node.data_dir / part)
        node.start()
        cluster, session = connect(node.address)
        assert session.execute("SELECT count(*) FROM k.logged").one()[0] == ROWS
        cluster.shutdown()
    finally:
        node.close()


def test_directories_that_could_not_be_recorded_at_once_are_missed_later(tmp_path):
    """The stamp cannot be written while a table gets its directory and another one is truncated."""
    node = Node(shards=2, data_dir=tmp_path / "data", config={"commitlog_sync": "batch"})
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute("CREATE TABLE k.old (pk int PRIMARY KEY)")
        session.execute("INSERT INTO k.old (pk) VALUES (1)")
        node.flush("k")
        in_the_way = node.data_dir / "messina.stamp.tmp"
        in_the_way.mkdir()
        session.execute("CREATE TABLE k.new (pk int PRIMARY KEY)")
        for pk in range(ROWS):
            session.execute(f"INSERT INTO k.new (pk) VALUES ({pk})")
        node.flush("k")
        session.execute("TRUNCATE k.old")
        refused = "directories of tables cannot be recorded"
        eventually(lambda: refused in node.log_path.read_text())
        # The node tries again each second. It must not give up after one more failure.
        time.sleep(2.5)
        in_the_way.rmdir()
        again = "directories of tables are recorded in the inventory again"
        eventually(lambda: again in node.log_path.read_text())
        cluster.shutdown()
        node.stop()
        for lost in (table_dir(node, "k", "new"), table_dir(node, "k", "old") / "epoch"):
            aside = tmp_path / "aside"
            shutil.move(lost, aside)
            with pytest.raises(StartFailed, match=f"lacks files that it had when .*{lost.name}"):
                node.start()
            shutil.move(aside, lost)
        node.start()
    finally:
        node.close()
