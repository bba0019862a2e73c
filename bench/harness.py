"""Shared by the benchmarks: paths, starting servers and load generators, recording and evaluating
figures.

The server runs on core 0 (one shard, no mailbox polling), the client on core 1. The load generator
is tools/load and Cassandra that of tests/peers, or both are those of PEERS (tests/judges.py). Each
case is one line of JSON, printed and appended to bench/results/NAME.jsonl. The last line has every
figure, its target, and whether it holds.

Environment:

PEERS, PEERS_HOME          see tests/judges.py
BENCH_DIR                  data of the nodes (default target/bench-data)
MESSINA_BIN, HOT_PATH_BIN  binaries to measure, instead of building them
BENCH_PRIORITY             scheduling priority (default -15; use 10 for a trial beside other work)
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/protocol"), str(ROOT / "tests/storage")]

import judges  # noqa: E402
from judges import FIRST_CASSANDRA as CASSANDRA  # noqa: E402, F401
from launch import Node  # noqa: E402

DATA = pathlib.Path(os.environ.get("BENCH_DIR", ROOT / "target/bench-data"))
PRIORITY = os.environ.get("BENCH_PRIORITY", "-15")
KEPT = ["ops_per_s", "rows_per_s", "value_mb_per_s", "latency_us", "errors", "corrupt", "missing",
    "client_cpu_cores", "server_cpu_cores",
        "other_cpu_cores", "server_rss_mib", "seconds"]
WRONG = ("errors", "corrupt", "missing")
# Lines of callgrind: a function, or one that it calls; and the first characters of a cost.
FUNCTION, COSTS = re.compile(r"(c?)fn=\((\d+)\)(?: (.*))?"), tuple("0123456789+-*")
ALLOCATOR = re.compile("_?mi_")
COMPARE = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}


class Bench:
    """One run of a benchmark: its cases, and the file for its results."""

    def __init__(self, name, quick):
        self.name = name
        self.quick = quick
        self.began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.cases = {}  # case -> figures
        self.wrong = 0
        self.results = ROOT / "bench/results" / f"{name}.jsonl"
        self.results.parent.mkdir(parents=True, exist_ok=True)
        DATA.mkdir(parents=True, exist_ok=True)

    def say(self, text):
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def fail(self, text):
        raise SystemExit(f"{self.name}: {text}")

    def write(self, record):
        line = json.dumps({"bench": self.name, "run": self.began, "quick": self.quick, **record})
        print(line, flush=True)
        with open(self.results, "a") as file:
            file.write(line + "\n")

    def emit(self, case, figures):
        self.cases[case] = figures
        self.write({"case": case, **figures})

    def get(self, case, key):
        """A figure of a case, such as `latency_us.p99`; None if it has none."""
        value = self.cases.get(case, {})
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def short(self, quick, full):
        return quick if self.quick else full

    def load(self, host, pid, command, *arguments, cpus="1"):
        """Runs the load generator, by default on core 1."""
        done = subprocess.run(
            load_command(host, pid, command, *arguments, cpus=cpus), capture_output=True, text=True
        )
        return self.load_report(command, done.stdout, done.stderr)

    def load_report(self, command, out, err):
        """The report of a run of the load generator."""
        try:
            report = json.loads(out[out.index("{"):])
        except ValueError:
            self.fail(f"{command} failed: {out[-1000:]} {err[-2000:]}")
        figures = {key: report[key] for key in KEPT if key in report}
        if report.get("error_kinds"):
            figures["error_kinds"] = report["error_kinds"]
        return figures

    def count_wrong(self, figures):
        self.wrong += sum(figures.get(key) or 0 for key in WRONG)

    def summary(self, rows, repeat):
        """Prints the last line. Rows are: name, value, comparison, must, aim. A row without a
        target is for information. Returns whether each `must` holds."""
        figures, holds = {}, True
        for name, value, sign, must, aim in rows:
            figure = {"value": value}
            for kind, target in (("must", must), ("aim", aim)):
                if target is not None:
                    figure[kind] = f"{sign} {target}"
                    figure[f"{kind}_holds"] = (
                        None if value is None else COMPARE[sign](value, target)
                    )
            figures[name] = figure
            if must is not None and not figure["must_holds"]:
                holds = False
        self.write(
            {
                "case": "summary",
                "figures": figures,
                "holds": holds,
                "repeat": f"make {repeat}" + (" QUICK=1" if self.quick else ""),
            }
        )
        return holds


def preferred(*command):
    """A command in its own scheduling group, with priority over background jobs if allowed."""
    shell = f'(echo {PRIORITY} >/proc/$$/autogroup) 2>/dev/null; exec "$@"'
    return ["setsid", "--wait", "bash", "-c", shell, "preferred", *map(str, command)]


def load_command(host, pid, command, *arguments, cpus="1"):
    return preferred(
        "taskset",
        "-c",
        cpus,
        judges.LOAD,
        command,
        "--hosts",
        host,
        "--server-pid",
        pid,
        *arguments,
    )


# -- beginning -------------------------------------------------------------------------------------

def arguments(doc, parts, only_parts=False):
    """The command line parser of every benchmark. `--only` names a server, or parts."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", default=os.environ.get("QUICK", "0") not in ("", "0")
    )
    if only_parts:
        parser.add_argument("--only", action="append", default=[], choices=parts)
    else:
        parser.add_argument("--only", choices=("messina", "cassandra"))
    parser.add_argument("--skip", action="append", default=[], choices=parts)
    return parser


def begin(name, options):
    if os.cpu_count() < 2:
        raise SystemExit(f"{name}: needs two cores")

    def end(*_):
        # Makes sure that servers are stopped. A second signal must not prevent that.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(f"{name}: ended by SIGTERM")
    signal.signal(signal.SIGTERM, end)
    return Bench(name, options.quick)


def install(*parts):
    subprocess.run([str(ROOT / "tests/install"), *parts], check=True, stdout=sys.stderr)


def build(variable, package, name, *options):
    """Builds a binary, unless the environment names one. One with options is copied, because the
    next build takes its place."""
    if not os.environ.get(variable):
        subprocess.run(["cargo", "build", "--release", "-q", "-p", package, "--bin", name,
            *options], cwd=ROOT, check=True)
        built = ROOT / f"target/release/{name}"
        os.environ[variable] = str(
            shutil.copy2(built, f"{built}-{variable.lower()}") if options else built
        )


def build_messina():
    build("MESSINA_BIN", "messina", "messina")


def build_hot_path():
    build("HOT_PATH_BIN", "messina-bench", "hot-path")


def build_hot_path_without_limits():
    build("HOT_PATH_BEFORE", "messina-bench", "hot-path", "--features", "without-limits")


# -- the servers -----------------------------------------------------------------------------------

def messina_node(memory, data=None, shards=1, cpus="0", overprovisioned=False, **config):
    return Node(
        shards=shards,
        memory=memory,
        data_dir=data,
        overprovisioned=overprovisioned,
        cpus=cpus,
        config={"idle_poll_time_us": "0us", **config},
        prefix=["taskset", "-c", cpus] if cpus else [],
    )


def prefer(pid):
    """Priority over background jobs, if allowed, as tests/peers/cassandra gives to Cassandra."""
    try:
        pathlib.Path(f"/proc/{pid}/autogroup").write_text(PRIORITY)
    except OSError:
        pass


def start(node):
    node.start(timeout=120)
    prefer(node.pid)


def restart(node, memory=None):
    node.stop()
    node.memory = memory or node.memory
    start(node)


def total(text, name):
    """The sum of a metric over its labels."""
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text if line.startswith((name + "{", name + " "))
    )


def numbers(node, names):
    """Metrics under short names."""
    text = node.metrics().splitlines()
    return {short: total(text, name) for short, name in names.items()}


def grown(after, before):
    return {key: after[key] - before[key] for key in before}


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_seconds(core):
    """The idle time of a core since the machine started. Time in interrupts and kernel threads is
    not idle."""
    line = next(
        line
        for line in pathlib.Path("/proc/stat").read_text().splitlines()
        if line.startswith(f"cpu{core} ")
    )
    idle, waiting = line.split()[4:6]
    return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")


def cassandra(*words, prefix=()):
    done = subprocess.run([*prefix, str(judges.CASSANDRA), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"cassandra {words[0]} failed: {done.stdout[-1000:]} {done.stderr[-2000:]}"
        )
    return done.stdout


def start_cassandra(*words):
    """Starts it and gives its process."""
    return json.loads(cassandra("start", *words).splitlines()[0])["pid"]


# -- tools -----------------------------------------------------------------------------------------

def fresh(name):
    """An empty directory for a node."""
    path = DATA / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def drop_caches():
    """Empties the page cache of this machine. A layer below its disk may still cache."""
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def fio(bench, seconds, *words, cpus=None):
    """The report of `fio` for a job with direct I/O, and how it accessed the disk."""
    last = None
    for engine in ("io_uring", "libaio", "psync"):
        command = preferred(*(["taskset", "-c", cpus] if cpus else []), "fio", "--name=job",
            "--direct=1", f"--ioengine={engine}", f"--runtime={seconds}",
                            "--time_based", "--output-format=json", *words)
        last = subprocess.run(command, capture_output=True, text=True)
        if last.returncode == 0:
            return json.loads(last.stdout[last.stdout.index("{"):])["jobs"][0], engine
    bench.fail(f"fio failed: {last.stderr[-1000:]}")


def callgrind(bench, *words):
    """The instructions and the report of one run of hot-path. `outside_allocator` of the report has
    the instructions without those of the allocator: how full its pages are by chance decides about
    hundreds of them for each request."""
    scratch = DATA / "callgrind.out"
    environment = dict(os.environ, TMPDIR=str(DATA), MESSINA_NO_IO_URING="1")
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={scratch}",
            os.environ["HOT_PATH_BIN"],
            *map(str, words),
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        bench.fail(f"hot-path {words} failed: {done.stdout[-500:]} {done.stderr[-2000:]}")
    counted = instructions(scratch.read_text())
    scratch.unlink()
    outside = sum(count for name, count in counted.items() if not ALLOCATOR.match(name))
    return sum(counted.values()), json.loads(done.stdout.splitlines()[-1]) | {
        "outside_allocator": outside
    }


def instructions(profile):
    """The instructions of each function in the output of callgrind, without those that it calls."""
    names, counted, current, is_call = {}, collections.Counter(), None, False
    for line in profile.splitlines():
        if found := FUNCTION.match(line):
            number, name = found.group(2, 3)
            names.setdefault(number, name)
            current = current if found.group(1) else number
        elif line.startswith("calls="):
            is_call = True
        elif line[:1] in COSTS:
            # The line after a call has what the callee took.
            if not is_call:
                counted[current] += int(line.split()[1])
            is_call = False
    # Functions of generic code that differ only in their types share a name.
    by_name = collections.Counter()
    for number, count in counted.items():
        by_name[names[number]] += count
    return by_name


def median(values):
    return round(statistics.median(values), 4)


def quotient(a, b, digits=4):
    return None if a is None or not b else round(a / b, digits)
