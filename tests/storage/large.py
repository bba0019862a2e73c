"""Many clients at once with large rows: the load of tests and of `bench/storage --only memory`.
Standard library only."""

import struct
import threading
import time

from wire import (
    ERROR, EXECUTE, PREPARE, QUERY, RESULT, Closed, Wire, long_string, parameters, query,
)

OVERLOADED, WRITE_TIMEOUT, READ_TIMEOUT = 0x1001, 0x1100, 0x1200
# The errors that a client may get from a node without memory, and retries.
PASSING = (OVERLOADED, WRITE_TIMEOUT, READ_TIMEOUT)
KEYSPACE = "large"


class Work(threading.Thread):
    """One client. `rows` were written or read, `errors` counts errors by code, `lost` is why the
    connection was lost."""

    def __init__(self, host, keys, size, timeout, all_done):
        super().__init__(daemon=True)
        self.host, self.keys, self.size, self.timeout, self.all_done = (
            host,
            keys,
            size,
            timeout,
            all_done,
        )
        self.rows, self.wrong, self.errors, self.lost = 0, 0, {}, None

    def run(self):
        try:
            with Wire(self.host, timeout=self.timeout) as wire:
                self.work(wire)
                # A connection that stays open shows how much memory the node keeps for it.
                self.all_done.wait()
        except threading.BrokenBarrierError:
            pass
        except (Closed, OSError) as why:
            self.lost = repr(why)
            self.all_done.abort()

    def again(self, ask, limit=300):
        """Retries until the result is not a temporary error, for at most `limit` seconds."""
        end = time.monotonic() + limit
        while True:
            answer = ask()
            if answer.opcode != ERROR:
                return answer
            self.errors[answer.code] = self.errors.get(answer.code, 0) + 1
            if answer.code not in PASSING or time.monotonic() > end:
                return None


def value_of(key, size):
    return (struct.pack(">i", key) * 256 + bytes(range(256)) * 4) * (size // 2048)


class Writer(Work):
    def work(self, wire):
        statement = wire.ask(
            PREPARE, long_string(f"INSERT INTO {KEYSPACE}.t (pk, v) VALUES (?, ?)")
        ).prepared_id()
        head = struct.pack(">H", len(statement)) + statement
        for key in self.keys:
            body = head + parameters([struct.pack(">i", key), value_of(key, self.size)])
            answer = self.again(lambda: wire.ask(EXECUTE, body))
            self.rows += answer is not None and answer.opcode == RESULT


class Reader(Work):
    def work(self, wire):
        for key in self.keys:
            answer = self.again(
                lambda: wire.ask(QUERY, query(f"SELECT v FROM {KEYSPACE}.t WHERE pk = {key}"))
            )
            if answer is not None:
                self.rows += 1
                self.wrong += answer.rows() != [[value_of(key, self.size)]]


def make_table(host):
    with Wire(host) as wire:
        for text in (
            (
                f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {{'class':"
                " 'NetworkTopologyStrategy', 'replication_factor': 1}"
            ),
            f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.t (pk int PRIMARY KEY, v blob)",
        ):
            assert wire.ask(QUERY, query(text)).opcode == RESULT, text


def run(kind, host, clients, rows_each, size, keys=None, timeout=120.0):
    """Runs clients of one kind at once. Returns their results."""
    lists = [keys or range(n * rows_each, (n + 1) * rows_each) for n in range(clients)]
    all_done = threading.Barrier(clients)
    began, work = time.monotonic(), [kind(host, keys, size, timeout, all_done) for keys in lists]
    for one in work:
        one.start()
    for one in work:
        one.join()
    errors = {}
    for one in work:
        for code, count in one.errors.items():
            errors[hex(code)] = errors.get(hex(code), 0) + count
    return {"clients": clients, "row_mib": round(size / 2**20, 1),
        "rows": sum(one.rows for one in work), "expected": sum(len(keys) for keys in lists),
            "wrong": sum(one.wrong for one in work), "errors": errors,
            "lost": [one.lost for one in work if one.lost],
            "seconds": round(time.monotonic() - began, 1)}


def peak_mib(pid):
    """The peak of resident memory so far, as the kernel counts it."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def reset_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w") as clear:
        clear.write("5")
