"""`make cluster`: starts three nodes, starts them again on the same data, and stops at Ctrl-C."""

import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import time
import urllib.request

from database import connect
from launch import answers_options, binary

RUN = pathlib.Path(__file__).resolve().parents[2] / "tools/cluster/run"


def free_net():
    return f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"


class Running:
    def __init__(self, data, net):
        self.net = net
        self.process = subprocess.Popen([RUN, "--data", data, "--net", net], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
                                        env={**os.environ, "MESSINA_BIN": str(binary())},
                                        # As in a terminal. In the background, the signal would be
                                        # ignored.
                                        preexec_fn=lambda: signal.signal(signal.SIGINT,
                                            signal.SIG_DFL))
        self.said = []
        for line in self.process.stdout:
            self.said.append(line)
            if "Ctrl-C" in line:
                return
        raise AssertionError("".join(self.said))

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.said += self.process.stdout.readlines()
        assert self.process.wait(60) == 0, "".join(self.said)


def test_three_nodes_from_their_files(tmp_path):
    net = free_net()
    for start in range(2):
        running = Running(tmp_path, net)
        try:
            assert re.search(
                r"one cluster after [0-9.]+ s", running.said[0]
            ) and f"cqlsh {net}.1" in "".join(running.said)
            cluster, session = connect(f"{net}.{start + 1}")
            assert {
                row.rack for row in session.execute("SELECT rack FROM system.cluster_status")
            } == {"rack1", "rack2", "rack3"}
            if start == 0:
                session.execute(
                    "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
                    " 'replication_factor': 3}"
                )
                session.execute("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
                session.execute("INSERT INTO ks.t (k, v) VALUES (1, 1)")
            assert session.execute("SELECT v FROM ks.t WHERE k = 1").one().v == 1
            cluster.shutdown()
            for n in (1, 2, 3):
                with urllib.request.urlopen(f"http://{net}.{n}:9180/metrics", timeout=10) as answer:
                    assert b"scylla_gossip_live" in answer.read()
        finally:
            running.stop()
        assert not any(answers_options(f"{net}.{n}", timeout=0.5) for n in (1, 2, 3))


def test_ctrl_c_also_stops_a_node_that_the_printed_line_started(tmp_path):
    net = free_net()
    running = Running(tmp_path, net)
    try:
        os.kill(int(re.search(r"kill -9 (\d+)", "".join(running.said)).group(1)), signal.SIGKILL)
        ended = running.process.stdout.readline()
        again = subprocess.Popen(
            shlex.split(ended.split("again: ")[1]),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 30
        while not answers_options(f"{net}.3", timeout=0.5):
            assert time.monotonic() < until and again.poll() is None
        assert re.search(r"node 1 runs already \(process \d+\)", subprocess.run(
            [RUN, "--data", tmp_path, "--net", net], capture_output=True, text=True, timeout=30,
            env={**os.environ, "MESSINA_BIN": str(binary())}).stderr)
    finally:
        running.stop()
    assert again.wait(10) == 0


def test_a_node_is_added_and_leaves_again(tmp_path):
    net = free_net()
    running = Running(tmp_path, net)
    add = [RUN.parent / "add", "--data", tmp_path, "--net", net]
    environment = {**os.environ, "MESSINA_BIN": str(binary())}
    added = subprocess.Popen(
        add, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        for line in added.stdout:
            if "is ready" in line:
                break
        assert answers_options(f"{net}.4")
        cluster, session = connect(f"{net}.1")
        assert {row.rack for row in session.execute("SELECT rack FROM system.cluster_status")} == {
            "rack1",
            "rack2",
            "rack3",
        }
        assert len(session.execute("SELECT peer FROM system.peers").all()) == 3
        cluster.shutdown()
        left = subprocess.run(
            [binary(), "admin", "decommission", "--api", f"{net}.4"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert left.returncode == 0, left.stderr
    finally:
        added.terminate()
        assert added.wait(60) == 0
        running.stop()
    none = subprocess.run(
        [*add[:1], "--data", tmp_path / "none"], capture_output=True, text=True, timeout=30
    )
    assert none.returncode == 1 and "make cluster" in none.stderr
