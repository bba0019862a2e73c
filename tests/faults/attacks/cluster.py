"""Three nodes: changed addresses, a stop and a pause of a replica and the error codes they cause, a
node without its metadata log."""

import shutil
import threading
import time
import uuid

import cassandra
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from database import connect
from launch import Node, StartFailed, failed_start, free_address
from trio import NODES, Trio, eventually, rest

ROWS = 100
ROUNDS = 4  # kills of a coordinator


def all_of(text):
    return SimpleStatement(text, consistency_level=ConsistencyLevel.ALL)


def fill(trio):
    trio.keyspace("k")
    trio.sessions[0].execute("CREATE TABLE k.t (pk int PRIMARY KEY, v int)")
    for pk in range(ROWS):
        trio.sessions[0].execute(all_of(f"INSERT INTO k.t (pk, v) VALUES ({pk}, {pk})"))


def whole(trio):
    """All three nodes serve: all rows at ALL through each, and a write at ALL."""
    for n in range(NODES):
        eventually(
            lambda: len(list(trio.sessions[n].execute(all_of("SELECT pk FROM k.t")))) == ROWS, 60
        )
        trio.sessions[n].execute(all_of("INSERT INTO k.t (pk, v) VALUES (1, 1)"))
        states = [one["state"] for one in rest(trio.nodes[n], "/cluster/nodes")]
        assert states == ["normal"] * NODES, states


def move(trio, addresses):
    """Stops all nodes and starts them with other addresses, which are in their seeds."""
    for n in range(NODES):
        trio.sessions.forget(n)
        trio.nodes[n].kill()
    for n, node in enumerate(trio.nodes):
        node.address = addresses[n]
        node.config["seeds"] = f"'{addresses[0]},{addresses[n - 1]}'"
    trio.restart_all()


def addresses(place, check):
    """All three nodes get new addresses, then two swap theirs: all serve again. A copied directory
    is refused."""
    with Trio(place) as trio:
        fill(trio)
        with check("all three with new addresses serve again within 60 s"):
            move(trio, [free_address() for _ in range(NODES)])
            whole(trio)
        with check("two that swapped their addresses serve again within 60 s"):
            now = [node.address for node in trio.nodes]
            move(trio, [now[1], now[0], now[2]])
            whole(trio)
        with check("one with a new address serves again within 60 s"):
            now = [node.address for node in trio.nodes]
            move(trio, [now[0], now[1], free_address()])
            whole(trio)
        with check("a copy of a running node's directory does not serve"):
            shutil.copytree(trio.nodes[2].data_dir, place / "copy")
            (place / "copy/lock").unlink(missing_ok=True)
            copy = Node(
                shards=1,
                memory="256M",
                data_dir=place / "copy",
                config={**trio.nodes[2].config},
                keep=True,
            )
            try:
                copy.start(timeout=15)
                cluster, session = connect(copy.address)
                try:
                    session.execute(all_of("SELECT pk FROM k.t"), timeout=10)
                    raise AssertionError("the copy serves reads at ALL")
                except cassandra.DriverException:
                    pass
                except cassandra.RequestExecutionException:
                    pass
                finally:
                    cluster.shutdown()
            except StartFailed:
                pass
            finally:
                copy.close()
        with check("and the three nodes continue"):
            whole(trio)


def errors_while(trio, statement, change, seconds):
    """The errors of a statement at ALL that is sent without pause for a while, with the seconds
    since `change` was called."""
    errors, ended = [], threading.Event()
    session = trio.sessions[0]
    changed = []

    def load():
        number = 0
        while not ended.is_set():
            number += 1
            began = time.monotonic()
            try:
                session.execute(all_of(statement.format(number % ROWS)), timeout=60)
            except Exception as error:
                errors.append((began - changed[0] if changed else -1, error))

    threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    changed.append(time.monotonic())
    change()
    time.sleep(seconds)
    ended.set()
    for thread in threads:
        thread.join(90)
    return errors


def kinds(errors):
    return {
        type(error).__name__: sum(
            type(other).__name__ == type(error).__name__ for _, other in errors
        )
        for _, error in errors
    }


def stop_of_a_replica(place, check):
    """SIGTERM of a replica during writes and reads at ALL: Unavailable, never a failure. QUORUM is
    not affected."""
    for what, statement in (
        ("writes", "INSERT INTO k.t (pk, v) VALUES ({}, 1)"),
        ("reads", "SELECT v FROM k.t WHERE pk = {}"),
    ):
        (place / what).mkdir()
        with Trio(place / what) as trio:
            fill(trio)
            quorum_errors, ended = [], threading.Event()

            def quorum():
                number = 0
                session = trio.sessions[1]
                while not ended.is_set():
                    number += 1
                    try:
                        session.execute(
                            SimpleStatement(
                                statement.format(number % ROWS),
                                consistency_level=ConsistencyLevel.QUORUM,
                            ),
                            timeout=60,
                        )
                    except Exception as error:
                        quorum_errors.append((0, error))

            thread = threading.Thread(target=quorum, daemon=True)
            trio.sessions[1]
            thread.start()
            errors = errors_while(trio, statement, lambda: trio.nodes[2].stop(), 1.5)
            ended.set()
            thread.join(90)
            print(f"   {what}: {kinds(errors)}")
            with check(f"{what} at ALL get Unavailable only"):
                other = [
                    (f"{at:.2f} s", error)
                    for at, error in errors
                    if not isinstance(error, cassandra.Unavailable)
                ]
                assert errors, "nothing failed, though a replica is gone"
                assert not other, f"{len(other)} of {len(errors)}: {other[:2]}"
            with check(f"{what} at QUORUM do not notice it"):
                assert not quorum_errors, f"{kinds(quorum_errors)}: {quorum_errors[0]}"


def silent_replica(place, check):
    """A replica that is paused (SIGSTOP) causes WriteTimeout and ReadTimeout until it is marked
    down, never a failure."""
    with Trio(place) as trio:
        fill(trio)
        for what, statement, expected in (
            ("writes", "INSERT INTO k.t (pk, v) VALUES ({}, 1)", cassandra.WriteTimeout),
            ("reads", "SELECT v FROM k.t WHERE pk = {}", cassandra.ReadTimeout),
        ):
            errors = errors_while(trio, statement, trio.nodes[2].stand_still, 6)
            trio.nodes[2].go_on()
            trio.wait_up(2)
            print(f"   {what}: {kinds(errors)}")
            with check(f"{what} at ALL get {expected.__name__} or Unavailable"):
                other = [
                    error
                    for _, error in errors
                    if not isinstance(error, (expected, cassandra.Unavailable))
                ]
                assert errors, "nothing failed, though a replica is silent"
                assert not other, f"{len(other)} of {len(errors)}: {other[0]}"


def killed_replica(place, check):
    """kill -9 of a replica under writes at ALL: WriteTimeout or Unavailable, never a failure that
    no replica reported."""
    with Trio(place) as trio:
        fill(trio)
        errors = errors_while(trio, "INSERT INTO k.t (pk, v) VALUES ({}, 1)", trio.nodes[2].kill, 4)
        print(f"   {kinds(errors)}")
        with check("writes at ALL get WriteTimeout or Unavailable"):
            other = [
                error
                for _, error in errors
                if not isinstance(error, (cassandra.WriteTimeout, cassandra.Unavailable))
            ]
            assert errors, "nothing failed, though a replica is gone"
            assert not other, f"{len(other)} of {len(errors)}: {other[0]}"


def raft_gone(place, check):
    """`raft/` is removed on one of three nodes: its start reports a remedy within 5 s, and the
    other two serve."""
    with Trio(place) as trio:
        fill(trio)
        trio.kill(1)
        shutil.rmtree(trio.nodes[1].data_dir / "raft")
        with check("the start is refused within 5 s, with raft and a way out"):
            began = time.monotonic()
            try:
                trio.nodes[1].start(timeout=20)
                raise AssertionError("the node started without a word")
            except StartFailed as error:
                text = trio.nodes[1].log_tail(10)
                assert "raft" in text and any(
                    word in text for word in ("accept", "restore", "replace", "remove")
                ), text
                assert time.monotonic() - began < 5 or "did not answer" not in str(
                    error
                ), "the way out was written, but the node neither ended nor served"
        if trio.nodes[1].alive():
            trio.kill(1)
        with check("the other two serve at QUORUM"):
            trio.wait_down(1)
            rows = trio.sessions[0].execute(
                SimpleStatement("SELECT pk FROM k.t", consistency_level=ConsistencyLevel.QUORUM)
            )
            assert len(list(rows)) == ROWS


def killed_coordinator(place, check):
    """kill -9 of the coordinator at the acknowledgement of a write that a node which is down lacks:
    a hint or a note of it is on disk."""
    with Trio(place) as trio:
        trio.keyspace("k")
        for r in range(ROUNDS):
            trio.sessions[0].execute(f"CREATE TABLE k.t{r} (pk int PRIMARY KEY, v text)")
        trio.kill(2)
        coordinator = trio.nodes[0]
        directories = [coordinator.data_dir / name for name in ("hints", "hint-notes")]
        for window, what in ((10800000, "hint"), (0, "note")):
            trio.kill(0)
            coordinator.config["max_hint_window_in_ms"] = window
            for r in range(ROUNDS):
                coordinator.start()
                eventually(
                    lambda: rest(coordinator, "/gossiper/endpoint/down") == [trio.nodes[2].address]
                )
                eventually(
                    lambda: rest(coordinator, "/gossiper/endpoint/live").count(
                        trio.nodes[1].address
                    )
                )
                table = uuid.UUID(
                    str(
                        trio.sessions[0]
                        .execute(
                            "SELECT id FROM system_schema.tables WHERE keyspace_name = 'k' AND"
                            f" table_name = 't{r}'"
                        )
                        .one()[0]
                    )
                )
                insert = SimpleStatement(
                    f"INSERT INTO k.t{r} (pk, v) VALUES ({r}, 'acknowledged-{r}')",
                    consistency_level=ConsistencyLevel.QUORUM,
                )
                trio.sessions[0].execute(insert, timeout=30)
                trio.kill(0)
                with check(f"a {what} of the first write after start {r + 1} is on disk"):
                    marker = f"acknowledged-{r}".encode() if what == "hint" else table.bytes
                    files = [
                        file
                        for directory in directories
                        for file in directory.rglob("*")
                        if file.is_file()
                    ]
                    assert any(
                        marker in file.read_bytes() for file in files
                    ), f"not in {len(files)} files"


def shared_hints(place, check):
    """A `hints_directory` of another node: the start is refused and names that node."""
    hints = place / "hints"
    first, second = (Node(shards=1, memory="256M", data_dir=place / name, address=address,
        config={"seeds": address, "hints_directory": hints})
                     for name, address in (("first", free_address()), ("second", free_address())))
    try:
        first.start()
        first.restart()
        with check("the second node is refused"):
            failed_start(second, 20)
            assert (
                "belongs to node" in second.log_tail(5) and second.process.wait(10) == 1
            ), second.log_tail(5)
    finally:
        first.close()
        second.close()


ATTACKS = {
    "killed-coordinator": killed_coordinator,
    "shared-hints": shared_hints,
    "addresses": addresses,
    "stop-of-a-replica": stop_of_a_replica,
    "killed-replica": killed_replica,
    "silent-replica": silent_replica,
    "raft-gone": raft_gone,
}
