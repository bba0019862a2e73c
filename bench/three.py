"""Three nodes of a server on this machine, for the benchmarks of clusters: Messina or Cassandra."""

import ipaddress
import json
import signal
import subprocess
import time

import harness
from harness import CASSANDRA, cassandra, messina_node
from launch import free_address

NODES = 3


class Messina:
    """Three nodes, each in a rack of its own. `config` is part of the configuration of all."""
    name = "messina"

    def __init__(self, place, memory, cpus="0", **config):
        self.hosts = [free_address() for _ in range(NODES)]
        seeds = f"'{','.join(self.hosts)}'"
        self.nodes = []
        for n, host in enumerate(self.hosts):
            node = messina_node(
                memory,
                data=harness.fresh(f"{place}{n}"),
                cpus=cpus,
                overprovisioned=True,
                seeds=seeds,
                rack=f"r{n}",
                **config,
            )
            node.address = host
            self.nodes.append(node)

    def spawn(self, node):
        with open(node.log_path, "ab") as log:
            node.process = subprocess.Popen(
                node.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self):
        """Seconds from the start of all processes until each node sees the entire cluster and
        serves."""
        began = time.monotonic()
        for node in self.nodes:
            self.spawn(node)
        self.settle()
        seconds = time.monotonic() - began
        for node in self.nodes:
            harness.prefer(node.pid)
        return seconds

    def restart(self, **config):
        """Restarts all nodes on their data, with another configuration."""
        self.stop()
        for node in self.nodes:
            node.config.update(config)
        self.start()

    def wait(self, node, seconds=60):
        end = time.monotonic() + seconds
        while not self.sees_all(node):
            if time.monotonic() > end or not node.alive():
                raise SystemExit(
                    f"{node.address} is not in a cluster of three after {seconds} s:"
                    f" {node.log_tail()}"
                )
            time.sleep(0.01)

    @staticmethod
    def sees_all(node):
        try:
            ask = lambda path: json.loads(node.admin("GET", path, timeout=2)[1])  # noqa: E731
            return len(ask("/gossiper/endpoint/live")) == NODES and not ask(
                "/storage_service/nodes/joining"
            )
        except (OSError, ValueError):
            return False

    def stop(self):
        for node in self.nodes:
            if node.process and node.alive():
                node.process.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.stop()

    def pids(self):
        return [node.pid for node in self.nodes]

    def kill(self, n):
        self.nodes[n].process.send_signal(signal.SIGKILL)
        self.nodes[n].process.wait()

    def again(self, n):
        self.spawn(self.nodes[n])
        self.settle()
        harness.prefer(self.nodes[n].pid)

    def settle(self):
        for node in self.nodes:
            self.wait(node)

    def compact(self, keyspace):
        for node in self.nodes:
            node.flush(keyspace)
            node.compact(keyspace)

    def numbers(self, names):
        """Metrics under short names, summed over the nodes."""
        each = [harness.numbers(node, names) for node in self.nodes]
        return {short: sum(one[short] for one in each) for short in names}

    def close(self):
        for node in self.nodes:
            node.close()


class Cassandra:
    """Three nodes of Cassandra."""
    name = "cassandra"
    hosts = [str(ipaddress.ip_address(CASSANDRA) + n) for n in range(NODES)]

    def __init__(self, memory):
        self.memory = memory

    def start(self):
        cassandra("stop")
        cassandra("wipe")
        began = time.monotonic()
        # Started with both cores, because it would take minutes on one. `pin` moves them to the
        # cores on which they are measured.
        lines = cassandra("start", "--nodes", "3", "--heap", self.memory, "--fresh").splitlines()
        self.known = [json.loads(line)["pid"] for line in lines]
        self.pin("0,1")
        return time.monotonic() - began

    def pin(self, cpus):
        for pid in self.known:
            subprocess.run(
                ["taskset", "-a", "-c", "-p", cpus, str(pid)], check=True, capture_output=True
            )

    def stop(self):
        cassandra("stop")

    def pids(self):
        return self.known

    def close(self):
        cassandra("stop")
        cassandra("wipe")
