"""Files of a stopped node are removed, truncated or zeroed, one at a time. No acknowledged row may
be lost silently."""

import pathlib
import shutil
import subprocess
import time

from database import connect
from launch import Node, StartFailed, failed_start

FLUSHED, LOGGED = 100, 50  # rows of the tables
PER_KIND = 2  # files: there are as many sstables as tablets and flushes, all alike
HARMS = ("removed", "truncated", "zeroed")
# Files without acknowledged data. The node may create them again.
DISPENSABLE = {"lock"}


def prepare(place):
    """The data directory of a killed node: two flushed sstables, rows in the log of both shards, a
    table in the log only."""
    node = Node(shards=2, data_dir=place / "original", config={"commitlog_sync": "batch"})
    node.start()
    try:
        cluster, session = connect(node.address)
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        for table in ("flushed", "logged"):
            session.execute(f"CREATE TABLE k.{table} (pk int PRIMARY KEY, v text)")
        for pk in range(FLUSHED):
            session.execute(f"INSERT INTO k.flushed (pk, v) VALUES ({pk}, '{'f' * 200}')")
            if pk == FLUSHED // 2:
                node.flush("k")
        cluster.shutdown()
        # A clean stop: data in sstables is no longer in the log.
        node.restart()
        cluster, session = connect(node.address)
        for pk in range(LOGGED):
            session.execute(f"INSERT INTO k.flushed (pk, v) VALUES ({FLUSHED + pk}, '{'l' * 200}')")
            session.execute(f"INSERT INTO k.logged (pk, v) VALUES ({pk}, '{'l' * 200}')")
        cluster.shutdown()
        node.kill()
        return node.address
    finally:
        node.keep = True
        node.close()


def harm(path, how):
    """Returns False if the damage changes nothing."""
    if path.is_dir():
        shutil.rmtree(path)
        return True
    size = path.stat().st_size
    if how == "removed":
        path.unlink()
    elif size == 0:
        return False
    elif how == "truncated":
        with open(path, "r+b") as file:
            file.truncate(size // 2)
    else:
        path.write_bytes(bytes(size))
    return True


def rows(session, table):
    """The number of rows of a table; an error's text if it cannot be read."""
    try:
        return len(list(session.execute(f"SELECT pk FROM k.{table}", timeout=60)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def judge(place, address, name, how):
    """None if the node refuses to start, names the damage or has everything; else what is wrong."""
    directory = place / "harmed"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(place / "original", directory)
    if not harm(directory / name, how):
        return "unchanged"
    node = Node(
        shards=2, data_dir=directory, address=address, config={"commitlog_sync": "batch"}, keep=True
    )
    node.log_path.unlink(missing_ok=True)
    try:
        try:
            node.start(timeout=20)
        except StartFailed as error:
            if "did not answer" in str(error):
                return f"the start neither succeeds nor fails: {node.log_tail(3)}"
            return None if str(error).strip() else "the start failed without a word"
        cluster, session = connect(node.address)
        found = {table: rows(session, table) for table in ("flushed", "logged")}
        cluster.shutdown()
        expected = {"flushed": FLUSHED + LOGGED, "logged": LOGGED}
        wrong = {table: count for table, count in found.items() if count != expected[table]}
        if not wrong:
            return None
        # A table that cannot be read, with an error that names its file, is correct. Missing rows
        # never are.
        if all(
            isinstance(count, str) and "unconfigured" not in count and "does not exist" not in count
            for count in wrong.values()
        ):
            return None
        return f"{wrong} instead of {expected}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        node.close()


def report(check, names, place, address, harms):
    """One check for each kind of file and damage, on all files of the kind."""
    for kind, files in names.items():
        for how in harms:
            wrong, tried = [], 0
            for name in files:
                why = judge(place, address, name, how)
                if why == "unchanged":
                    continue
                tried += 1
                if why:
                    wrong.append(f"{name}: {why}")
            if not tried:
                continue
            with check(f"{kind} {how} ({tried})"):
                assert not wrong, f"{len(wrong)} of {tried}: " + "; ".join(wrong[:3])


def kind(name):
    """The kind of a file: the component of an sstable, or the log that it belongs to."""
    parts = pathlib.PurePath(name).parts
    if parts[0] == "data":
        table = parts[2].rsplit("-", 1)[0] if len(parts) > 2 else ""
        return f"{parts[1]}.{table} {parts[-1].rsplit('-', 1)[-1]}"
    if parts[0] == "commitlog":
        return "commitlog " + parts[-1].split("-")[0]
    return "/".join(parts)


def one_at_a_time(place, check):
    """Each file of a killed node is removed, truncated to half or zeroed before a start: the start
    is refused, the file is named, or no data is lost."""
    address = prepare(place)
    original = place / "original"
    names = {}
    for path in sorted(original.rglob("*")):
        name = str(path.relative_to(original))
        # There are many similar system tables: one of them is tested, and all of the user's tables.
        if (
            path.is_file()
            and name not in DISPENSABLE
            and (not name.startswith("data/") or name.startswith("data/k/"))
        ):
            names.setdefault(kind(name), []).append(name)
    print(
        f"   {sum(len(files) for files in names.values())} files of {len(names)} kinds, of each"
        f" kind {PER_KIND} at most"
    )
    names = {
        kind: (
            [files[n * (len(files) - 1) // (PER_KIND - 1)] for n in range(PER_KIND)]
            if len(files) > PER_KIND
            else files
        )
        for kind, files in names.items()
    }
    report(check, names, place, address, HARMS)


def incomplete_sstables(place, check):
    """TOC.txt removed together with another component, or that one emptied or zeroed: each start
    names it, nothing is moved or gone."""
    address = prepare(place)
    directory = place / "harmed"
    table = next((place / "original/data/k").glob("flushed-*"))
    own = sorted(table.glob("me-*-TOC.txt"))[0].name.removesuffix("TOC.txt")
    components = sorted(
        file.name.removeprefix(own)
        for file in table.glob(f"{own}*")
        if not file.name.endswith("TOC.txt")
    )
    cases = [(component, "removed") for component in components]
    cases += [
        (component, how)
        for component in components
        if component not in ("Data.db", "Index.db")
        for how in ("emptied", "zeroed")
    ]
    for component, how in cases:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(place / "original", directory)
        at = directory / "data/k" / table.name
        (at / f"{own}TOC.txt").unlink()
        file = at / f"{own}{component}"
        if how == "emptied":
            file.write_bytes(b"")
        else:
            harm(file, how)
        left = sorted(path.name for path in at.rglob(f"{own}*"))
        with check(f"TOC.txt removed, {component} {how}"):
            node = Node(
                shards=2,
                data_dir=directory,
                address=address,
                config={"commitlog_sync": "batch"},
                keep=True,
            )
            try:
                for start in range(2):
                    node.log_path.unlink(missing_ok=True)
                    node.start(timeout=20)
                    cluster, session = connect(node.address)
                    found = rows(session, "flushed"), rows(session, "logged")
                    cluster.shutdown()
                    assert (
                        isinstance(found[0], str) and own in found[0] and component in found[0]
                    ), f"start {start}: {found}"
                    assert found[1] == LOGGED, f"start {start}: {found}"
                    assert (
                        "an sstable cannot be opened" in node.log_path.read_text()
                    ), f"start {start}: nothing in the log"
                    node.stop()
                    now = sorted(path.name for path in at.rglob(f"{own}*"))
                    assert now == left, f"start {start}: {set(now) ^ set(left)}"
            finally:
                node.close()


def whole_directories(place, check):
    """`raft/`, `commitlog/`, one shard's log, or a table's directory is removed: the start is
    refused, or no data is lost."""
    address = prepare(place)
    original = place / "original"
    names = {}
    for path in sorted(original.rglob("*")):
        name = str(path.relative_to(original))
        depth = len(pathlib.PurePath(name).parts)
        if path.is_dir() and (
            depth == 1
            or name.startswith("commitlog/")
            or (name.startswith("data/k") and depth <= 3)
        ):
            names[
                name if not name.startswith("data/k/") else f"data/k/{path.name.rsplit('-', 1)[0]}"
            ] = [name]
    report(check, names, place, address, ("removed",))
    with check("a node without harm has all rows"):
        (place / "original/harmless").write_text("")
        assert judge(place, address, "harmless", "removed") is None


def refusal_names_the_way_out(place, check):
    """A start without its logs reports within 10 s what is missing and what can be done, and does
    not change the files."""
    address = prepare(place)
    for name in ("raft", "commitlog"):
        directory = place / "harmed"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(place / "original", directory)
        shutil.rmtree(directory / name)
        before = sorted(
            str(path.relative_to(directory)) for path in (directory / "data/k").rglob("*")
        )
        node = Node(
            shards=2,
            data_dir=directory,
            address=address,
            config={"commitlog_sync": "batch"},
            keep=True,
        )
        node.log_path.unlink(missing_ok=True)
        with check(f"{name}/ is missing: the refusal names it and a way out"):
            began = time.monotonic()
            try:
                node.start(timeout=20)
                raise AssertionError("the node started")
            except StartFailed as error:
                assert time.monotonic() - began < 10, "it took more than 10 s"
                text = str(error)
                assert name in text and (
                    "accept" in text or "restore" in text or "ignore" in text
                ), text
            finally:
                node.close()
        with check(f"{name}/ is missing: nothing else was touched"):
            after = sorted(
                str(path.relative_to(directory)) for path in (directory / "data/k").rglob("*")
            )
            assert after == before, set(before) ^ set(after)


def immutable_sstables(place, check):
    """`chattr +i` on sstables, then a compaction: the next start is refused with the way out, and
    nothing is lost after it."""
    node = Node(shards=1, memory="256M", data_dir=place / "node")
    files = []
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        session.execute(
            "CREATE TABLE k.t (pk int PRIMARY KEY, v text) WITH compaction = {'class':"
            " 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
        )
        for pk in range(LOGGED):
            session.execute(f"INSERT INTO k.t (pk, v) VALUES ({pk}, 'v')")
            if pk in (LOGGED // 2, LOGGED - 1):
                node.flush("k")
        session.execute("DELETE FROM k.t WHERE pk = 0")
        node.flush("k")
        cluster.shutdown()
        files = list((node.data_dir / "data" / "k").rglob("me-*"))
        subprocess.run(["chattr", "+i", *files], check=True)
        try:
            node.admin("POST", "/storage_service/keyspace_compaction/k", timeout=30)
        except OSError:
            pass
        node.kill()
        with check("the start is refused and names the file and the way out"):
            failed_start(node, 20)
            log = node.log_tail(5)
            assert "cannot be removed" in log and "chattr -i" in log and "me-" in log, log
        subprocess.run(["chattr", "-i", *(file for file in files if file.exists())], check=True)
        files = []
        with check("afterwards the node starts with all rows, and without the deleted one"):
            node.start()
            cluster, session = connect(node.address)
            rows = sorted(row.pk for row in session.execute("SELECT pk FROM k.t"))
            cluster.shutdown()
            assert rows == list(range(1, LOGGED)), rows
    finally:
        left = [file for file in files if file.exists()]
        if left:
            subprocess.run(["chattr", "-i", *left])
        node.close()


ATTACKS = {
    "immutable-sstables": immutable_sstables,
    "files": one_at_a_time,
    "incomplete": incomplete_sstables,
    "directories": whole_directories,
    "way-out": refusal_names_the_way_out,
}
