"""The governor: statements at a fixed rate during continuous compactions, with and without a target
for their 99th percentile. Part `governor` of bench/storage.

Each second is evaluated with the node's own histogram of statements. The bounds of its buckets
double, so a second meets the target only if its 99th percentile is in a bucket that ends at 4.096
ms or less. Spare CPU is the shard's time without statements and control. Compaction's part of it is
the time of the maintenance group.
"""

import threading
import time

import harness
from harness import fresh, messina_node, start

TARGET_MS = 5
LATENCIES = tuple(f"scylla_storage_proxy_coordinator_{kind}_latency" for kind in ("read", "write"))
GROUPS = ("control", "statement", "scan", "maintenance")
RUNTIME = "scylla_scheduler_runtime_ms"


def sample(node):
    """(cumulated counts of statements by bound in microseconds, runtime of each group in
    seconds)"""
    counts, runtime = {}, dict.fromkeys(GROUPS, 0.0)
    for line in node.metrics().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(tuple(f"{latency}_bucket" for latency in LATENCIES)):
            bound = float(name.split('le="')[1].split('"')[0].replace("+Inf", "inf"))
            counts[bound] = counts.get(bound, 0.0) + float(value)
        elif name.startswith(RUNTIME + "{"):
            runtime[name.split('group="')[1].split('"')[0]] += float(value) / 1e3
    return counts, runtime


def percentile99(after, before):
    """The upper bound of the bucket with the 99th percentile, in milliseconds; None without
    statements."""
    grown = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = grown.get(float("inf"), 0.0)
    if not total:
        return None
    return next(bound for bound, count in grown.items() if count >= 0.99 * total) / 1e3


class Compactions(threading.Thread):
    """Major compactions, one after the other, until the end."""

    def __init__(self, node, table, keyspace="bench"):
        super().__init__(daemon=True)
        self.node, self.done, self.ends = node, 0, threading.Event()
        self.path = f"/storage_service/keyspace_compaction/{keyspace}?cf={table}"

    def run(self):
        while not self.ends.is_set():
            status, _ = self.node.admin("POST", self.path, timeout=3600)
            if status != 200:
                return
            self.done += 1


def measure(bench, node, table, rows, rate, seconds):
    """The load and the compactions together, evaluated for each second."""
    compactions = Compactions(node, table)
    compactions.start()
    reports = []
    words = (
        "--table",
        table,
        "--rows",
        rows,
        "--rate",
        rate,
        "--warmup",
        2,
        "--duration",
        seconds + 4,
    )
    load = threading.Thread(
        target=lambda: reports.append(bench.load(node.address, node.pid, "mixed", *words)))
    load.start()
    time.sleep(4)
    p99, (counts, began), first = [], sample(node), time.monotonic()
    for _ in range(seconds):
        time.sleep(1)
        now, runtime = sample(node)
        p99.append(percentile99(now, counts))
        counts = now
    wall = time.monotonic() - first
    compactions.ends.set()
    load.join()
    compactions.join()
    took = {group: runtime[group] - began[group] for group in GROUPS}
    spare = wall - took["statement"] - took["control"]
    kept = [ms is not None and ms <= TARGET_MS for ms in p99]
    figures = {"rate": rate, "seconds": seconds, "compactions": compactions.done,
               "seconds_kept": round(sum(kept) / len(kept), 4),
               "compaction_of_spare_cpu": round(took["maintenance"] / spare, 4),
               "cpu_of_groups": {group: round(took[group] / wall, 4) for group in GROUPS},
               "p99_ms_by_second": p99, **reports[0]}
    bench.count_wrong(figures)
    return figures


def governor(bench, options, fill, manual):
    """`fill` writes each row once. `manual` are table options that turn automatic compaction
    off."""
    data, rows = fresh("storage-governor"), bench.short(200_000, 1_000_000)
    node = messina_node("2G", data, auto_snapshot="false")
    try:
        start(node)
        for _ in range(4):
            fill(bench, node, "governed", rows, 200, "--table-options", manual)
            node.flush("bench")
        for name, target in (("none", 0), (f"{TARGET_MS}ms", TARGET_MS)):
            node.stop()
            node.config["foreground_p99_target_in_ms"] = f"{target}ms"
            start(node)
            figures = measure(bench, node, "governed", rows, options.rate, bench.short(15, 60))
            bench.emit(f"governor-{name}", {"target_ms": target, **figures})
    finally:
        node.close()
