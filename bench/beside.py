"""Latencies of statements beside continuous compactions, compared with an earlier build.

Part `beside` of bench/storage. MESSINA_BEFORE names the binary of the earlier build.

Each build has a node with the same data. In alternating rounds, reads and writes are sent at fixed
rates (open loop) while major compactions run one after the other. Each second in which the machine
was undisturbed counts (bench/witness.py).
"""

import os
import statistics
import types

import attacks
import governor
import harness
from attacks import Load, percentile, query, summed
from witness import Watch

TABLE = "beside.t"
OPTIONS = "{'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
SSTABLES = 4  # of which each has each row
WARM = 3  # seconds that do not count


def prepare(bench, name, binary, rows):
    """A stopped node with the rows, each of them in all sstables."""
    os.environ["MESSINA_BIN"] = binary
    node = harness.messina_node("2G", harness.fresh(f"storage-{name}"), auto_snapshot="false")
    harness.start(node)
    server = types.SimpleNamespace(
        name=name, node=node, hosts=[node.address], level="one", replicas=1, binary=binary
    )
    attacks.create(server, TABLE)
    query(server, f"ALTER TABLE {TABLE} WITH compaction = {OPTIONS}")
    for _ in range(SSTABLES):
        attacks.fill(server, rows, TABLE)
        node.flush("beside")
    node.stop()
    return server


def measure(server, rows, rate, seconds):
    """Half of the rate are reads."""
    os.environ["MESSINA_BIN"] = server.binary
    harness.start(server.node)
    compactions = governor.Compactions(server.node, "t", "beside")
    compactions.start()
    plan, machine = ",".join([f"{rate // 2}:1"] * (WARM + seconds)), Watch()
    words = dict(table=TABLE, keys=rows, plan=plan, value=attacks.VALUE)
    loads = [Load(server, op="read", **words)]
    loads.append(Load(server, op="write", at=round(loads[0].began * 1000) + 1000, **words))
    # The writes began a second later. Only the seconds that both were sent are compared.
    for second in range(WARM, seconds + 1):
        loads[1].wait_until(second)
        machine.mark()
    counts = machine.end(loads[1].began + WARM)
    compactions.ends.set()
    reports = [load.report() for load in loads]
    compactions.join()
    server.node.stop()
    figures = {"undisturbed": sum(counts), "seconds": len(counts), "compactions": compactions.done}
    for name, report, first in zip(("read", "write"), reports, (WARM + 1, WARM)):
        phases = report["phases"][first:first + len(counts)]
        calm = summed([phase for phase, each in zip(phases, counts) if each])
        every = summed(phases)
        figures |= {
            f"{name}_p99_us": percentile(calm, 0.99),
            f"{name}_p99_us_of_all_seconds": percentile(every, 0.99),
            f"{name}_p99_us_by_second": [percentile(phase, 0.99) for phase in phases],
            f"{name}_unanswered": every["failed"] + every["unsent"],
        } | attacks.wrong(report)
    return figures


def beside(bench, options):
    binaries = {"before": os.environ.get("MESSINA_BEFORE"), "now": os.environ["MESSINA_BIN"]}
    if not binaries["before"]:
        bench.emit("beside", {"skipped": "MESSINA_BEFORE does not name an earlier build's binary"})
        return
    rows, rounds, seconds = bench.short(100_000, 1_000_000), bench.short(1, 4), bench.short(8, 30)
    servers = [prepare(bench, name, binary, rows) for name, binary in binaries.items()]
    try:
        for number in range(rounds):
            for server in servers if number % 2 == 0 else reversed(servers):
                figures = measure(server, rows, options.rate, seconds)
                bench.emit(f"beside-{server.name}-{number}", {"rate": options.rate, **figures})
        bench.emit("beside", {
            f"{name}_{build}": statistics.median(
                bench.get(f"beside-{build}-{number}", name) or 0 for number in range(rounds)
            )
            for build in binaries
            for name in ("read_p99_us", "write_p99_us", "compactions")
        })
    finally:
        for server in servers:
            server.node.close()
        os.environ["MESSINA_BIN"] = binaries["now"]
