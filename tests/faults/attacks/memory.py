"""Very large requests and results in parallel: the node stays within --memory, and each client gets
an answer."""

import contextlib
import struct
import threading
import time

from database import connect
from launch import Node
from wire import (
    ERROR, EXECUTE, HEADER, OVERLOADED, PREPARE, RESULT, Closed, Wire, long_string, parameters,
    string,
)

MEMORY = 512  # MiB
BOUND = 1.1  # times --memory
WRITERS = 80
READERS = 16
BODY = 14 << 20
TOGETHER_WITHIN = 5  # seconds
KEYSPACE = (
    "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
    " 'replication_factor': 1}"
)
WRITE_TIMEOUT, READ_TIMEOUT, WRITE_FAILURE, READ_FAILURE, SERVER_ERROR = (
    0x1100,
    0x1200,
    0x1500,
    0x1300,
    0x0000,
)
INVALID = 0x2200


class Highest:
    """The highest resident memory of a node while the block runs, in MiB."""

    def __init__(self, node):
        self.node, self.value, self.ended = node, 0.0, threading.Event()

    def __enter__(self):
        threading.Thread(target=self.watch, daemon=True).start()
        return self

    def watch(self):
        while not self.ended.wait(0.02):
            try:
                self.value = max(self.value, self.node.rss_mib())
            except (OSError, ProcessLookupError):
                return

    def __exit__(self, *_):
        self.ended.set()


def together(count, work):
    """Runs `work(n)` in as many threads; what each returned or raised."""
    results = [None] * count

    def one(n):
        try:
            results[n] = work(n)
        except Closed:
            results[n] = "connection lost"
        except Exception as error:
            results[n] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    return results


def told(results):
    return {str(one): results.count(one) for one in results}


def judge(check, node, highest, results, what):
    with check(f"{what}: resident memory is at most {BOUND} x --memory"):
        assert highest.value <= BOUND * MEMORY, f"{highest.value:.0f} MiB at --memory {MEMORY}M"
    with check(f"{what}: each client got its answer or an error"):
        lost = [one for one in results if not isinstance(one, int) and one != "ok"]
        assert not lost, told(results)
    with check(f"{what}: the node runs and answers"):
        assert node.alive(), node.log_tail(5)
        with Wire(node.address) as wire:
            assert wire.query("SELECT key FROM system.local").opcode == RESULT


def receiving(place, check):
    """80 connections that send INSERTs of 14 MB, prepared, to a node of 512M."""
    with Node(shards=2, memory=f"{MEMORY}M", data_dir=place / "node") as node:
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        cluster.shutdown()
        values = parameters([struct.pack(">i", 0), bytes(BODY)])
        nearly_sent = threading.Barrier(WRITERS)

        def write(n):
            with Wire(node.address, timeout=120) as wire:
                insert = wire.ask(
                    PREPARE, long_string("INSERT INTO k.t (pk, v) VALUES (?, ?)")
                ).prepared_id()
                # The ends of all requests are sent last, so that the node holds all of them, as far
                # as it accepts them.
                body = bytearray(string(insert) + values)
                at = len(body) - len(values) + 9
                body[at : at + 4] = struct.pack(">i", n)
                wire.send_raw(HEADER.pack(4, 0, 0, EXECUTE, len(body)) + body[:-1000])
                with contextlib.suppress(threading.BrokenBarrierError):
                    nearly_sent.wait(TOGETHER_WITHIN)
                wire.send_raw(body[-1000:])
                answer = wire.receive()
                if answer.opcode == RESULT:
                    return "ok"
                answer.is_error(OVERLOADED, WRITE_TIMEOUT, WRITE_FAILURE, SERVER_ERROR)
                return answer.code

        with Highest(node) as highest:
            results = together(WRITERS, write)
        print(f"   {highest.value:.0f} MiB at most; {told(results)}")
        judge(check, node, highest, results, "prepared INSERTs of 14 MB")
        stored = [n for n, result in enumerate(results) if result == "ok"]
        with check("acknowledged rows are there"):
            for n in stored:
                with Wire(node.address, timeout=120) as wire:
                    assert wire.query(f"SELECT pk FROM k.t WHERE pk = {n}").rows() == [
                        [struct.pack(">i", n)]
                    ], n


def half_sent(place, check):
    """80 connections that announce 200 MB, send 10 MB of it and wait: memory is bounded, others are
    served."""
    with Node(shards=2, memory=f"{MEMORY}M", data_dir=place / "node") as node:
        wires = []
        with Highest(node) as highest:
            for _ in range(WRITERS):
                wire = Wire(node.address, timeout=10)
                try:
                    wire.send(EXECUTE, bytes(10 << 20), length=200 << 20)
                except OSError:
                    pass
                wires.append(wire)
            time.sleep(1)
            with (
                check("another client is served within 5 s"),
                Wire(node.address, timeout=5) as wire,
            ):
                assert wire.query("SELECT key FROM system.local").opcode == RESULT
        with check(f"resident memory is at most {BOUND} x --memory"):
            assert highest.value <= BOUND * MEMORY, f"{highest.value:.0f} MiB at --memory {MEMORY}M"
        for wire in wires:
            wire.socket.close()


def sending(place, check):
    """16 parallel readers of rows of 14 MB from a node of 512M: rows or errors, never a lost
    connection."""
    with Node(shards=2, memory=f"{MEMORY}M", data_dir=place / "node") as node:
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob)")
        insert = session.prepare("INSERT INTO k.t (pk, v) VALUES (?, ?)")
        stored = []
        for n in range(8):
            try:
                session.execute(insert, (n, bytes([n]) * BODY), timeout=120)
                stored.append(n)
            except Exception as error:
                print(f"   row {n} was refused: {type(error).__name__}")
        cluster.shutdown()
        assert stored, "no row could be stored"

        def read(n):
            pk = stored[n % len(stored)]
            with Wire(node.address, timeout=120) as wire:
                for _ in range(4):
                    answer = wire.query(f"SELECT v FROM k.t WHERE pk = {pk}")
                    if answer.opcode == ERROR:
                        answer.is_error(OVERLOADED, READ_TIMEOUT, READ_FAILURE, SERVER_ERROR)
                        return answer.code
                    assert answer.rows() == [[bytes([pk]) * BODY]], "another row"
            return "ok"

        with Highest(node) as highest:
            results = together(READERS, read)
        print(f"   {highest.value:.0f} MiB at most; {told(results)}")
        judge(check, node, highest, results, "readers of rows of 14 MB")

        def slow(n):
            """Requests the same row many times, and reads nothing for a while."""
            wire = Wire(node.address, timeout=120)
            for stream in range(20):
                wire.send(
                    0x07,
                    long_string(f"SELECT v FROM k.t WHERE pk = {stored[0]}")
                    + struct.pack(">HB", 1, 0),
                    stream=stream,
                )
            time.sleep(3)
            with wire:
                answers = [wire.receive() for _ in range(20)]
            return (
                "ok"
                if all(answer.opcode in (RESULT, ERROR) for answer in answers)
                else "another answer"
            )

        with Highest(node) as highest:
            results = together(READERS, slow)
        print(f"   {highest.value:.0f} MiB at most; {told(results)}")
        judge(check, node, highest, results, "readers that read late")


def multiplied(place, check):
    """Statements that write one large value to many rows, and lists that are compared with lists,
    on a node of 512M."""
    value, elements = bytes(1 << 20), 200_000
    ints = b"".join(struct.pack(">ii", 4, n) for n in range(1, elements + 1))
    unwanted = struct.pack(">i", elements) + ints
    others = struct.pack(">i", elements) + struct.pack(">ii", 4, 0) * elements
    with Node(shards=2, memory=f"{MEMORY}M", data_dir=place / "node") as node:
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v blob, l list<int>)")
        cluster.shutdown()

        def update(n):
            """Each frame of 1 MB causes 15 MB of mutations, which is below the limit, or 100 MB."""
            keys = ", ".join(map(str, range((15, 100)[n % 2])))
            with Wire(node.address, timeout=120) as wire:
                prepared = wire.ask(
                    PREPARE, long_string(f"UPDATE k.t SET v = ? WHERE pk IN ({keys})")
                ).prepared_id()
                answer = wire.ask(EXECUTE, string(prepared) + parameters([value]))
                if answer.opcode == RESULT:
                    return "ok"
                answer.is_error(OVERLOADED, WRITE_TIMEOUT, WRITE_FAILURE, INVALID)
                return answer.code

        with Highest(node) as highest:
            results = together(32, update)
        print(f"   {highest.value:.0f} MiB at most; {told(results)}")
        judge(check, node, highest, results, "updates of 15 and of 100 partitions")
        with check("some of the updates are carried out"):
            assert "ok" in results, told(results)

        def discard(n):
            with Wire(node.address, timeout=120) as wire:
                insert = wire.ask(
                    PREPARE, long_string("INSERT INTO k.t (pk, l) VALUES (?, ?) USING TIMEOUT 60s")
                ).prepared_id()
                remove = wire.ask(
                    PREPARE, long_string("UPDATE k.t USING TIMEOUT 60s SET l = l - ? WHERE pk = ?")
                ).prepared_id()
                pk = struct.pack(">i", 100 + n)
                for prepared, values in ((insert, [pk, others]), (remove, [unwanted, pk])):
                    answer = wire.ask(EXECUTE, string(prepared) + parameters(values))
                    if answer.opcode == ERROR:
                        answer.is_error(OVERLOADED, WRITE_TIMEOUT, READ_TIMEOUT, WRITE_FAILURE)
                        return answer.code
            return "ok"

        with Highest(node) as highest:
            results = together(4, discard)
        print(f"   {highest.value:.0f} MiB at most; {told(results)}")
        judge(check, node, highest, results, "lists of 200,000 elements without 200,000 others")


ATTACKS = {
    "receiving": receiving,
    "half-sent": half_sent,
    "sending": sending,
    "multiplied": multiplied,
}
