#!/usr/bin/env python3
"""Starts, kills and restarts a Messina node for tests and benchmarks. Standard library only.

A `Node` owns a process, a loopback address of its own (so that every node may use the default
ports) and a data directory, which it deletes on `close` unless it was given one. `wait_cql` asks
OPTIONS over a raw socket, so that the launcher needs no driver.

    tests/launch.py [--shards N] [--memory M] -- COMMAND...
                                  run COMMAND with NODE_HOST, NODE_PID and NODE_DATA set

The binary is $MESSINA_BIN, else target/release/messina, else target/debug/messina, whichever is
newer.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CQL_PORT = 9042
SHARD_AWARE_PORT = 19042
METRICS_PORT = 9180
ADMIN_PORT = 10000
OPTIONS_FRAME = bytes([4, 0, 0, 1, 5, 0, 0, 0, 0])


def die_with_parent():
    """Runs in the child before exec: if a test is killed, its nodes end, too."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class StartFailed(Exception):
    """The process ended, or did not answer CQL in time. Carries the end of its log."""


def failed_start(node, timeout=90.0):
    """The error of a start that must fail."""
    try:
        node.start(timeout)
    except StartFailed as error:
        return error
    raise AssertionError("the node started")


def binary():
    """The messina executable under test."""
    given = os.environ.get("MESSINA_BIN")
    if given:
        return pathlib.Path(given).resolve()
    found = [
        p for p in (ROOT / "target/release/messina", ROOT / "target/debug/messina") if p.exists()
    ]
    if not found:
        raise StartFailed("no messina binary: run `make build`, or set MESSINA_BIN")
    return max(found, key=lambda p: p.stat().st_mtime)


def free_address():
    """A loopback address on which all ports of a node are free."""
    for _ in range(100):
        address = f"127.{random.randint(64, 250)}.{random.randint(0, 250)}.{random.randint(1, 250)}"
        try:
            for port in (CQL_PORT, SHARD_AWARE_PORT, 9142, 19142, METRICS_PORT, ADMIN_PORT, 7000):
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind((address, port))
            return address
        except OSError:
            continue
    raise StartFailed("no free loopback address")


def answers_options(address, port=CQL_PORT, timeout=2.0):
    """Whether something at the address answers the protocol's OPTIONS request."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as s:
            s.settimeout(timeout)
            s.sendall(OPTIONS_FRAME)
            head = b""
            while len(head) < 9:
                more = s.recv(9 - len(head))
                if not more:
                    return False
                head += more
            return head[4] == 6
    except OSError:
        return False


class Node:
    """One messina process that can be killed and started again on the same data."""

    def __init__(self, shards=2, memory="1G", data_dir=None, overprovisioned=True, cpus=None,
            extra=(), config=None,
                 address=None, keep=None, prefix=()):
        self.shards = shards
        self.memory = memory
        self.overprovisioned = overprovisioned
        self.cpus = cpus
        self.extra = list(extra)
        self.prefix = list(prefix)
        self.address = address or free_address()
        self.own_directory = data_dir is None
        self.keep = keep if keep is not None else bool(os.environ.get("KEEP_DATA"))
        self.data_dir = pathlib.Path(
            data_dir or tempfile.mkdtemp(prefix="messina-", dir=os.environ.get("TEST_DIR"))
        )
        self.log_path = self.data_dir.parent / (self.data_dir.name + ".log")
        self.config_path = self.data_dir.parent / (self.data_dir.name + ".yaml")
        self.config = dict(config or {})
        self.process = None
        self.start_seconds = None

    def command(self):
        settings = {
            "cluster_name": "messina test",
            "listen_address": self.address,
            "rpc_address": self.address,
            "api_address": self.address,
            "prometheus_address": self.address,
            **self.config,
        }
        self.config_path.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        command = self.prefix + [
            str(binary()),
            "serve",
            "--config",
            str(self.config_path),
            "--data-dir",
            str(self.data_dir),
            "--memory",
            self.memory,
            "--shards",
            str(self.shards),
        ]
        if self.cpus is not None:
            command += ["--cpuset", str(self.cpus)]
        if self.overprovisioned:
            command.append("--overprovisioned")
        return command + self.extra

    def start(self, timeout=90.0):
        """Starts the process and returns once it answers CQL; `start_seconds` has the time
        that this took."""
        command = self.command()
        with open(self.log_path, "ab") as log:
            began = time.monotonic()
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.wait_cql(timeout)
        self.start_seconds = time.monotonic() - began
        return self

    def wait_cql(self, timeout=90.0):
        end = time.monotonic() + timeout
        while not answers_options(self.address):
            if self.process.poll() is not None:
                raise StartFailed(
                    f"messina ended with {self.process.returncode} while"
                    f" starting:\n{self.log_tail()}"
                )
            if time.monotonic() > end:
                raise StartFailed(
                    f"messina did not answer CQL within {timeout} s:\n{self.log_tail()}"
                )
            time.sleep(0.005)

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL, as in a crash."""
        if self.alive():
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout=60.0):
        """SIGTERM; returns the exit status. A node that does not stop in time is killed, and that
        is an error."""
        if not self.alive():
            return self.process.returncode if self.process else None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StartFailed(
                f"messina did not stop within {timeout} s of SIGTERM:\n{self.log_tail()}"
            ) from None

    @contextlib.contextmanager
    def standing_still(self):
        """Pauses the process within the block, like a paused machine."""
        self.stand_still()
        try:
            yield
        finally:
            self.go_on()

    def stand_still(self):
        """Sends SIGSTOP. The signal takes effect when the process next gets a CPU: this returns
        after that."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self.pid}/task")
        while not all(self.is_stopped(task) for task in tasks.iterdir()):
            time.sleep(0.001)

    @staticmethod
    def is_stopped(task):
        try:
            # In "pid (name) state", the name may contain any characters.
            return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):
            return True  # The thread has ended.

    def go_on(self):
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def restart(self, kill=False, timeout=60.0):
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start(timeout)

    def close(self):
        """Ends the process in any state, and removes its data directory."""
        if self.alive():
            self.kill()
        if self.own_directory and not self.keep:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.config_path.unlink(missing_ok=True)
            self.log_path.unlink(missing_ok=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def log_tail(self, lines=25):
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def rss_mib(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self):
        """The text of the Prometheus endpoint."""
        with urllib.request.urlopen(
            f"http://{self.address}:{METRICS_PORT}/metrics", timeout=10
        ) as answer:
            return answer.read().decode()

    def metric(self, name):
        """The sum of a metric over its labels; None when there is no such metric."""
        values = [float(line.rsplit(" ", 1)[1]) for line in self.metrics().splitlines()
                  if line.startswith((name + "{", name + " "))]
        return sum(values) if values else None

    def admin(self, method, path, timeout=300):
        """A request to the REST API; returns (status, body)."""
        request = urllib.request.Request(f"http://{self.address}:{ADMIN_PORT}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def flush(self, keyspace):
        status, body = self.admin("POST", f"/storage_service/keyspace_flush/{keyspace}")
        assert status == 200, f"flush of {keyspace}: {status} {body}"

    def compact(self, keyspace):
        status, body = self.admin("POST", f"/storage_service/keyspace_compaction/{keyspace}")
        assert status == 200, f"compaction of {keyspace}: {status} {body}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--memory", default="1G")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    with Node(shards=args.shards, memory=args.memory) as node:
        environment = dict(
            os.environ, NODE_HOST=node.address, NODE_PID=str(node.pid), NODE_DATA=str(node.data_dir)
        )
        code = subprocess.run(command, env=environment).returncode
        if not node.alive():
            print(f"launch: the node ended by itself:\n{node.log_tail()}", file=sys.stderr)
            code = code or 1
    return code


if __name__ == "__main__":
    sys.exit(main())
