"""How good traffic fares while a fourth node joins three, for bench/streaming.

The three nodes share core 0. The load has core 1, with priority; the fourth node has the rest of
it. So the fourth node disturbs the others as a node of its own machine would, except for the
streaming itself.
"""

import json
import threading
import time

import harness
from attacks import (
    FLIGHT,
    Load,
    Three,
    capacity,
    create,
    fill,
    percentile,
    summed,
)
from witness import Watch

ROWS = (50_000, 400_000)
VALUE = 1000  # bytes
SHARE = 0.5  # of the capacity that good traffic takes
BEFORE, DURING, AFTER = 10, 60, 60  # seconds; the join must end in the second part


class Fourth:
    """A node that joins, in the rack of the first."""

    def __init__(self, three, memory):
        self.three, self.took = three, None
        self.node = harness.messina_node(
            memory,
            data=harness.fresh("joining3"),
            cpus="1",
            overprovisioned=True,
            seeds=f"'{','.join(three.hosts)}'",
            rack="r0",
        )

    def start(self):
        self.three.spawn(self.node)

    def tablets(self):
        """The tablets of each node, as the first node knows them."""
        nodes = json.loads(self.three.nodes[0].admin("GET", "/cluster/nodes")[1])
        return {node["address"]: node.get("tablets", 0) for node in nodes}

    def wait(self):
        """Starts it, and waits until it has its part of the tablets and none is going to move."""
        begun = time.monotonic()
        self.start()
        while not self.tablets().get(self.node.address):
            time.sleep(0.05)
        self.three.nodes[0].admin("POST", "/storage_service/quiesce_topology", timeout=300)
        self.took = time.monotonic() - begun


def bytes_received(node):
    return harness.total(node.metrics().splitlines(), "scylla_streaming_total_incoming_bytes")


def joined(bench, memory="1G", **config):
    server = Three(memory, **config)
    fourth = Fourth(server, memory)
    try:
        server.start()
        create(server)
        rows = bench.short(*ROWS)
        fill(server, rows, value=VALUE)
        server.flush()
        rate = int(capacity(server, rows, bench.short(4, 10))["good"] * SHARE)
        during, after = bench.short(30, DURING), bench.short(10, AFTER)
        length = BEFORE + during + after
        machine = Watch()
        good = Load(server, keys=rows, flight=FLIGHT, plan=",".join([f"{rate}:1"] * length))
        machine.mark()
        joining = threading.Thread(target=fourth.wait)
        for second in range(1, length + 1):
            good.wait_until(second)
            machine.mark()
            if second == BEFORE:
                joining.start()
        counted = machine.end(good.began)
        report = good.report()
        joining.join(timeout=60)
        ended = fourth.took
        if ended is None or ended > during:
            raise SystemExit(
                f"streaming: the fourth node has not its part after {during} s: {fourth.tablets()}"
            )
        seconds = list(zip(report["phases"], counted))
        last = BEFORE + int(ended) + 1
        parts = seconds[1:BEFORE], seconds[BEFORE:last], seconds[last:last + after]
        p99 = [
            percentile(summed([phase for phase, counts in part if counts]), 0.99) for part in parts
        ]
        received = bytes_received(fourth.node)
        bench.emit("join", {
            "offered": rate, "join_s": round(ended, 2), "bytes": int(received),
            "mb_per_s": round(received / ended / 1e6, 1),
            "tablets": fourth.tablets(), "p99_before_us": p99[0], "p99_during_us": p99[1],
            "p99_after_us": p99[2],
            "p99_during": harness.quotient(p99[1], p99[0]),
            "p99_after": harness.quotient(p99[2], p99[0]),
            "failed": sum(phase["failed"] + phase["unsent"] for phase in report["phases"]),
            "stolen_ms": machine.stolen_ms,
        })
    finally:
        fourth.node.close()
        server.close()
