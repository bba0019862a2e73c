"""Servers and loads of bench/goodput. All loads are runs of bench/examples/attack."""

import collections
import json
import math
import os
import pathlib
import statistics
import subprocess
import time

import harness
import three
from harness import cassandra, messina_node, start_cassandra
from launch import die_with_parent
from wire import ERROR, Wire
from witness import Watch

TABLE = "goodput.t"
FLIGHT = 64  # requests in flight of good traffic
VALUE = 200  # bytes of its values
# The attacker: 8 times the requests in flight, 10 times the bytes a read. Its keys are below 0.
ATTACK_FLIGHT, HOT, HOT_VALUE = 8 * FLIGHT, 100, 10 * VALUE
# Latencies count in undisturbed seconds (witness.py): a pause of 150 ms in 15 s decides a p99. A
# round counts if at least this share of its seconds do.
UNDISTURBED = 0.5
SHARE = 0.6  # of the capacity that good traffic takes
# The speed of this machine changes by a third within seconds, and for minutes. So the capacity is
# measured before and after each round. A round counts if the lower one is at least this share of
# the higher one.
STEADY, CAPACITY_SECONDS = 0.85, 3
RATIOS = ("goodput", "p99_ratio", "p99_ratio_of_all_seconds")
# The attacker has the client's core when good traffic leaves it.
BEHIND = str(min(19, int(harness.PRIORITY) + 15))


# -- servers ---------------------------------------------------------------------------------------

class One:
    """One node of Messina."""
    name, replicas, level = "one", 1, "one"

    def __init__(self, memory, shards=1, **config):
        self.node = messina_node(
            memory,
            data=harness.fresh("goodput"),
            shards=shards,
            overprovisioned=shards > 1,
            **config,
        )
        self.nodes = [self.node]
        self.hosts = [self.node.address]

    def start(self):
        harness.start(self.node)

    def pids(self):
        return [self.node.pid]

    def flush(self):
        self.node.flush("goodput")

    def close(self):
        self.node.close()


class Three(three.Messina):
    """Three nodes of Messina."""
    name, replicas, level = "three", 3, "quorum"

    def __init__(self, memory, shards=1, **config):
        super().__init__("goodput", memory, shards=shards, **config)

    def flush(self):
        self.compact("goodput")


class OneCassandra:
    """One node of Cassandra."""
    name, replicas, level = "cassandra-one", 1, "one"
    hosts = [harness.CASSANDRA]

    def __init__(self, memory):
        self.memory, self.pid = memory, None

    def start(self):
        # The database is filled with both cores. `pin` restarts it on one core for the measurement.
        cassandra("stop")
        self.pid = start_cassandra("--fresh", "--heap", self.memory)

    def pin(self):
        cassandra("tool", "nodetool", "flush", "goodput")
        cassandra("stop")
        self.pid = start_cassandra("--cpus", "0", "--heap", self.memory)

    def pids(self):
        return [self.pid]

    def close(self):
        cassandra("stop")
        cassandra("wipe")


class ThreeCassandra(three.Cassandra):
    """Three nodes of Cassandra."""
    name, replicas, level = "cassandra-three", 3, "quorum"

    def pin(self):
        super().pin("0")

    def start(self):
        super().start()


def query(server, text, host=0):
    """The answer of a statement that must succeed."""
    answer = ask(server, text, host)
    if answer.opcode == ERROR:
        raise SystemExit(f"goodput: {text}: {answer.message}")
    return answer


def ask(server, text, host=0):
    with Wire(server.hosts[host], timeout=60) as wire:
        return wire.query(text)


def create(server, table=TABLE):
    keyspace = table.split(".")[0]
    query(
        server,
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {server.replicas}}}",
    )
    query(server, f"CREATE TABLE IF NOT EXISTS {table} (pk bigint PRIMARY KEY, v blob)")
    time.sleep(1)


def limit(server, table=TABLE, reads=None, writes=None):
    """Sets the limits of a table. None: no limit."""
    each = {"max_reads_per_second": reads, "max_writes_per_second": writes}
    option = ", ".join(f"'{name}': {value}" for name, value in each.items() if value is not None)
    query(server, f"ALTER TABLE {table} WITH per_partition_rate_limit = {{{option}}}")


# -- loads -----------------------------------------------------------------------------------------

class Load:
    """A run of the loader on core 1. Its arguments are those of bench/examples/attack."""

    def __init__(self, server, table=TABLE, preferred=True, **words):
        directory = pathlib.Path(
            os.environ.get("EXAMPLES_BIN", harness.ROOT / "target/release/examples")
        )
        words.setdefault("level", server.level)
        priority = harness.PRIORITY if preferred else BEHIND
        # In a session of its own, so that it has a scheduling group.
        shell = f'(echo {priority} >/proc/$$/autogroup) 2>/dev/null; exec "$@"'
        command = ["bash", "-c", shell, "load", "taskset", "-c", "1", str(directory / "attack"),
            ",".join(server.hosts), table,
                   *(f"{name}={value}" for name, value in words.items())]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        line = self.process.stdout.readline()
        self.began = json.loads(line)["began_ms"] / 1000 if line else self.report()

    def report(self):
        out, err = self.process.communicate(timeout=7200)
        if self.process.returncode:
            raise SystemExit(
                f"goodput: {' '.join(self.process.args[7:])} failed: {out[-500:]} {err[-2000:]}"
            )
        return json.loads(out.splitlines()[-1])

    def wait_until(self, seconds):
        """Waits until so many seconds after its start."""
        time.sleep(max(0.0, self.began + seconds - time.time()))


def per_second(report, name, since, until):
    """The rate of an outcome between two times, in seconds since the start."""
    width = report["bucket_ms"] / 1000
    return sum(report[name][round(since / width):round(until / width)]) / (until - since)


def answered(report, since, until):
    return sum(
        per_second(report, name, since, until) for name in ("good", "late", "refused", "failed")
    )


def cpu(server):
    return sum(map(harness.cpu_seconds, server.pids()))


def measured(server, seconds, table=TABLE, **words):
    """A closed loop: outcomes per second without the first second, and server CPU for each
    answer."""
    since, until = 1, seconds
    load = Load(server, table, plan=f"0:{seconds + 1}", **words)
    load.wait_until(since)
    before = cpu(server)
    load.wait_until(until)
    used = cpu(server) - before
    report = load.report()
    figures = {
        name: round(per_second(report, name, since, until))
        for name in ("good", "late", "refused", "failed")
    }
    every = answered(report, since, until)
    figures["server_cpu_us_per_answer"] = (
        round(used / (until - since) / every * 1e6, 3) if every else None
    )
    figures["server_cpu_cores"] = round(used / (until - since), 3)
    figures["latency_us"] = report["phases"][0]["latency_us"]
    return figures | wrong(report)


def wrong(report):
    """What an unlimited load must not have."""
    return {key: report[key] for key in ("missing", "corrupt", "codes") if report[key]}


def fill(server, rows, table=TABLE, value=VALUE, first=0):
    report = Load(
        server, table, op="write", keys=rows, first=first, value=value, once="true", flight=256
    ).report()
    written = sum(report["good"]) + sum(report["late"])
    if written != rows:
        # Cassandra may time out while it flushes. The rows are written again.
        Load(
            server, table, op="write", keys=rows, first=first, value=value, once="true", flight=32
        ).report()
    return {"rows": rows, "rows_per_s": round(rows / report["seconds"]), **wrong(report)}


def fill_all(server, rows):
    create(server)
    figures = fill(server, rows)
    fill(server, HOT, value=HOT_VALUE, first=-HOT)
    return figures


def capacity(server, rows, seconds):
    return measured(server, seconds, keys=rows, flight=FLIGHT)


def attacked(server, rows, seconds, closed=False, hot=1, operation="read", route="any"):
    """Good traffic before and during an attack: in a closed loop, or in an open one at `SHARE` of
    the capacity. `seconds` are those of both parts."""
    before, during = seconds
    able = lambda: capacity(server, rows, CAPACITY_SECONDS)["good"]  # noqa: E731
    capacities = [] if closed else [able()]
    rate = int(capacities[0] * SHARE) if capacities else 0
    # The attack begins a second before the second part is measured, and ends after it. Each second
    # is a phase of its own.
    length, machine = before + 1 + during, Watch()
    good = Load(server, keys=rows, flight=FLIGHT, plan=",".join([f"{rate}:1"] * length))
    attack = Load(
        server,
        preferred=False,
        op=operation,
        first=-HOT,
        keys=hot,
        value=HOT_VALUE,
        flight=ATTACK_FLIGHT,
        route=route,
        plan=f"0:{during + 2}",
        at=round((good.began + before) * 1000),
    )
    machine.mark()
    for second in range(1, length + 1):
        good.wait_until(second)
        machine.mark()
        if second == before + 1:
            used = cpu(server)
    used = cpu(server) - used
    counted = machine.end(good.began)
    report, hostile = good.report(), attack.report()
    if not closed:
        capacities.append(able())
    seconds = list(zip(report["phases"], counted))
    parts = seconds[:before], seconds[before + 1:]
    first, second = (summed([phase for phase, _ in part]) for part in parts)
    calm = [summed([phase for phase, counts in part if counts]) for part in parts]
    rates = [part["good"] / part["seconds"] for part in (first, second)]
    p99, p99_of_all = (
        [percentile(part, 0.99) for part in both] for both in (calm, (first, second))
    )
    figures = {
        "offered": rate or None, "good_before_per_s": round(rates[0]),
        "good_during_per_s": round(rates[1]),
        "goodput": harness.quotient(rates[1], rates[0]),
        "p99_before_us": p99[0], "p99_during_us": p99[1],
        "p99_ratio": harness.quotient(p99[1], p99[0]),
        "p99_ratio_of_all_seconds": harness.quotient(p99_of_all[1], p99_of_all[0]),
        "undisturbed": round(min(one["seconds"] / every["seconds"] for one,
            every in zip(calm, (first, second))), 2),
        "capacities": capacities,
        "steady": round(min(capacities) / max(capacities), 2) if capacities else 1.0,
        "during": {name: second[name] for name in ("late", "refused", "failed", "unsent")},
        "attack": {name: round(per_second(hostile, name, 1, 1 + during))
            for name in ("good", "late", "refused", "failed")},
        "server_cpu_cores": round(used / during, 2), "stolen_ms": machine.stolen_ms,
        "latest_ms": machine.latest_ms, "daemon_ms": machine.daemon_ms,
    }
    return figures | wrong(report)


def summed(phases):
    """One phase from several."""
    names = ("seconds", "good", "late", "refused", "failed", "unsent")
    latencies = collections.Counter()
    for phase in phases:
        latencies.update(phase["latencies"])
    return {name: sum(phase[name] for phase in phases) for name in names} | {"latencies": latencies}


def percentile(phase, share):
    """The latency in microseconds that this share of the requests does not exceed. None without
    requests."""
    counts = sorted((int(latency), count) for latency, count in phase["latencies"].items())
    rank, seen = math.ceil(sum(count for _, count in counts) * share), 0
    for latency, count in counts:
        seen += count
        if seen >= rank:
            return latency
    return None


def counts(figures):
    """Whether the machine was undisturbed and steady in a round."""
    return figures["undisturbed"] >= UNDISTURBED and figures["steady"] >= STEADY


def repeated(rounds, run):
    """The medians of the ratios over some rounds, with the figures of the last round. Of twice as
    many rounds at most, those come first that count."""
    each = [run()]
    while len(each) < 2 * rounds and sum(map(counts, each)) < rounds > 1:
        each.append(run())
    each = sorted(each, key=lambda one: not counts(one))[:rounds]
    figures = dict(each[-1])
    if rounds > 1:
        for name in RATIOS:
            values = [one[name] for one in each if one[name] is not None]
            figures[name] = round(statistics.median(values), 4) if values else None
        for name in (*RATIOS, "undisturbed", "steady"):
            figures[f"{name}_rounds"] = [one[name] for one in each]
    return figures
