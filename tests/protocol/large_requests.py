#!/usr/bin/env python3
"""How long large requests hold a shard: the longest wait of small reads on other connections
meanwhile.

    tests/protocol/large_requests.py [NAME...]      the binary is chosen as by tests/launch.py

Starts a node of one shard. Prints for each kind of large request its answer and time, the longest
wait of a small read, and the longest poll that the node has logged. A busy machine adds waits of
its own: the row `nothing` shows them.
"""

import multiprocessing
import pathlib
import re
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import launch  # noqa: E402
import wire  # noqa: E402


def probe(address, longest, stop):
    client = wire.Wire(address)
    frame = wire.query("SELECT v FROM k.t WHERE p = 1")
    while not stop.value:
        began = time.monotonic()
        client.ask(wire.QUERY, frame)
        longest.value = max(longest.value, time.monotonic() - began)
        time.sleep(0.0005)


def list_of(count, one):
    return struct.pack(">i", count) + b"".join(one(n) for n in range(count))


def integer(n):
    return struct.pack(">ii", 4, n)


def spread(n):
    return integer((n * 2654435761) % (1 << 31))


def prepared(client, text, values):
    return wire.EXECUTE, wire.string(client.prepare(text).prepared_id()) + wire.parameters(values)


def text(statement):
    return lambda client: (wire.QUERY, wire.query(statement))


def bound(statement, *values):
    return lambda client: prepared(client, statement, [value() for value in values])


def joined(count, one, separator=", "):
    return separator.join(one(n) for n in range(count))


def batch(count):
    body = struct.pack(">BH", 1, count)
    for n in range(count):
        body += (
            b"\0"
            + wire.long_string(f"INSERT INTO k.t (p, v) VALUES ({n}, 1)")
            + struct.pack(">H", 0)
        )
    return wire.BATCH, body + struct.pack(">HB", wire.ONE, 0)


KEY = struct.pack(">i", 1)
MILLION = 1_000_000
CASES = {
    "nothing": text("SELECT v FROM k.t WHERE p = 1"),
    "bound-in-partition": bound("SELECT v FROM k.t WHERE p IN ?",
        lambda: list_of(3 * MILLION, spread)),
    "bound-in-partition-equal": bound("SELECT v FROM k.t WHERE p IN ?",
        lambda: list_of(3 * MILLION, lambda n: integer(1))),
    "bound-in-clustering": bound("SELECT v FROM k.c WHERE p = 1 AND c IN ?",
        lambda: list_of(3 * MILLION, spread)),
    "bound-in-filter": bound("SELECT v FROM k.t WHERE v IN ? ALLOW FILTERING",
        lambda: list_of(3 * MILLION, spread)),
    "bound-in-delete": bound("DELETE FROM k.c WHERE p = 1 AND c IN ?",
        lambda: list_of(3 * MILLION, spread)),
    "bound-list": bound("INSERT INTO k.t (p, l) VALUES (1, ?)", lambda: list_of(1_500_000, spread)),
    "bound-set": bound("INSERT INTO k.t (p, s) VALUES (1, ?)", lambda: list_of(1_500_000, spread)),
    "bound-map": bound("INSERT INTO k.t (p, m) VALUES (1, ?)",
        lambda: list_of(750_000, lambda n: spread(n) + integer(n))),
    "bound-unfrozen-set": bound("INSERT INTO k.t (p, u) VALUES (1, ?)",
        lambda: list_of(500_000, spread)),
    "json-keys": text("INSERT INTO k.t JSON '{" + joined(500_000, lambda n: '"p": 1') + "}'"),
    "json-unknown": text("INSERT INTO k.t JSON '{\"p\": 1, "
        + joined(500_000, lambda n: f'"k{n}": 1') + "}'"),
    "json-set": text("INSERT INTO k.t JSON '{\"p\": 1, \"s\": ["
        + joined(MILLION, lambda n: str(n * 7919 % MILLION)) + "]}'"),
    "json-bound-map": bound("INSERT INTO k.t JSON ?",
        lambda: ('{"p": 1, "m": {' + joined(700_000, lambda n: f'"{n * 7919 % MILLION}": 1')
            + "}}").encode()),
    "from-json-bound": bound("INSERT INTO k.t (p, s) VALUES (1, fromjson(?))",
        lambda: ("[" + joined(MILLION, lambda n: str(n * 7919 % MILLION)) + "]").encode()),
    "selectors": text("SELECT " + joined(100_000, lambda n: "v") + " FROM k.t WHERE p = 1"),
    "selector-calls": text("SELECT " + joined(100_000, lambda n: "ttl(v)")
        + " FROM k.t WHERE p = 1"),
    "set-literal": text("INSERT INTO k.t (p, s) VALUES (1, {"
        + joined(500_000, lambda n: str(n * 7919 % MILLION)) + "})"),
    "list-literal": text("INSERT INTO k.t (p, l) VALUES (1, [" + joined(500_000, str) + "])"),
    "map-literal": text("INSERT INTO k.t (p, m) VALUES (1, {"
        + joined(250_000, lambda n: f"{n}: {n}") + "})"),
    "update-elements": text("UPDATE k.t SET " + joined(100_000, lambda n: f"um[{n}] = {n}")
        + " WHERE p = 1"),
    "in-literal": text("SELECT v FROM k.t WHERE p IN (" + joined(500_000, str) + ")"),
    "in-filter-literal": text("SELECT v FROM k.t WHERE v IN (" + joined(500_000, str)
        + ") ALLOW FILTERING"),
    "relations": text("SELECT v FROM k.t WHERE " + joined(100_000, lambda n: f"v > {n}", " AND ")
        + " ALLOW FILTERING"),
    "batch-text": text("BEGIN UNLOGGED BATCH "
        + joined(60_000, lambda n: f"INSERT INTO k.t (p, v) VALUES ({n}, 1)", "; ")
        + "; APPLY BATCH"),
    "batch-one-partition": text("BEGIN UNLOGGED BATCH "
        + joined(60_000, lambda n: f"INSERT INTO k.c (p, c, v) VALUES (1, {n}, 1)", "; ")
        + "; APPLY BATCH"),
    "batch-frame": lambda client: batch(65_535),
    "blob-literal": text("INSERT INTO k.t (p, b) VALUES (1, 0x" + "5a" * (15 << 20) + ")"),
    "syntax-error": text("SELECT v FROM k.t WHERE p IN (" + joined(500_000, str) + ",,)"),
    "prepare-set-literal": lambda client: (wire.PREPARE,
        wire.long_string("INSERT INTO k.t (p, s) VALUES (1, {"
            + joined(500_000, lambda n: str(n * 7919 % MILLION)) + "})")),
}


def main():
    names = sys.argv[1:] or list(CASES)
    with launch.Node(shards=1, memory="2G") as node:
        node.start()
        client = wire.Wire(node.address, timeout=60)
        for statement in (
            (
                "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
                " 'replication_factor': 1}"
            ),
            (
                "CREATE TABLE k.t (p int PRIMARY KEY, v int, b blob, l frozen<list<int>>, s"
                " frozen<set<int>>, m frozen<map<int, int>>, u set<int>, um map<int, int>)"
            ),
            "CREATE TABLE k.c (p int, c int, v int, PRIMARY KEY (p, c))",
            "INSERT INTO k.t (p, v) VALUES (1, 1)",
        ):
            answer = client.ask(wire.QUERY, wire.query(statement))
            assert answer.opcode == wire.RESULT, answer.body
        for name in names:
            opcode, body = CASES[name](client)
            longest, stop = multiprocessing.Value("d", 0.0), multiprocessing.Value("b", 0)
            prober = multiprocessing.Process(target=probe, args=(node.address, longest, stop))
            prober.start()
            time.sleep(0.2)
            longest.value = 0.0
            log_end = node.log_path.stat().st_size
            began = time.monotonic()
            answer = client.ask(opcode, body)
            took = time.monotonic() - began
            time.sleep(0.1)
            stop.value = 1
            prober.join()
            log = node.log_path.read_bytes()[log_end:].decode(errors="replace")
            stalls = [
                float(n) for n in re.findall(r"a task stalled the shard.*?\bms=\"?([0-9.]+)", log)
            ]
            said = (
                "ok" if answer.opcode == wire.RESULT else answer.body[6:90].decode(errors="replace")
            )
            print(
                f"{name:26} took {1000 * took:7.0f} ms  read waited {1000 * longest.value:6.1f} ms "
                f" longest poll {max(stalls, default=0):6.1f} ms  {said}",
                flush=True,
            )


if __name__ == "__main__":
    main()
