"""`messina admin` and the HTTP ports while a node waits for its seeds, or has no descriptors left;
and the JSON of commands without a result."""

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from launch import CQL_PORT, METRICS_PORT, Node, binary, die_with_parent, free_address

pytestmark = pytest.mark.node


def admin(node, *arguments):
    command = [str(binary()), "admin", "--api", node.address, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def test_a_node_that_waits_for_its_seeds_says_so(tmp_path):
    """One of three nodes is started."""
    seeds = [free_address() for _ in range(2)]
    node = Node(shards=1, memory="256M", data_dir=tmp_path / "data")
    node.config["seeds"] = f"'{','.join([node.address, *seeds])}'"
    with open(node.log_path, "ab") as log:
        node.process = subprocess.Popen(
            node.command(),
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        within(10, lambda: admin(node, "status").stderr.count("cannot connect") == 2)
        status = admin(node, "status")
        assert status.returncode == 1 and "the node is starting" in status.stderr, status
        assert all(f"{seed}:7000 (" in status.stderr for seed in seeds), status.stderr
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{node.address}:{METRICS_PORT}/metrics", timeout=5)
        assert refused.value.code == 503 and seeds[0] in json.loads(refused.value.read())["message"]
        # The first line comes soon, and has a reason for each seed.
        within(3, lambda: "still looking for a cluster" in node.log_path.read_text())
        line = next(
            line for line in node.log_path.read_text().splitlines() if "still looking" in line
        )
        assert all(f"{seed}:7000 (" in line for seed in seeds), line
    finally:
        node.close()


def test_a_node_without_descriptors_answers_its_operator():
    with Node(shards=1, memory="256M") as node:
        used = max(int(name) for name in os.listdir(f"/proc/{node.pid}/fd")) + 1
        subprocess.run(["prlimit", f"--pid={node.pid}", f"--nofile={used}:{used}"], check=True)
        free = used - len(os.listdir(f"/proc/{node.pid}/fd"))
        # Clients take the descriptors that are left.
        silent = [
            socket.create_connection((node.address, CQL_PORT), timeout=10) for _ in range(free)
        ]
        for _ in range(3):
            assert admin(node, "status").returncode == 0
            assert admin(node, "info").returncode == 0
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(admin(node, "status").returncode))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [0] * 8
        with urllib.request.urlopen(
            f"http://{node.address}:{METRICS_PORT}/metrics", timeout=10
        ) as answer:
            assert answer.status == 200
        for client in silent:
            client.close()


def test_every_command_prints_json():
    with Node(shards=1, memory="256M") as node:
        for command in ("cleanup", "cleanup system", "stop COMPACTION", "stop CLEANUP", "flush",
                "flush system", "compact system",
                        "compactions", "compactionhistory", "status", "info", "keyspaces", "tables",
                        "tablestats", "resync --all",
                        "listsnapshots", "enablebinary", "statusbinary", "hot", "ring",
                        "describecluster", "gossipinfo"):
            done = admin(node, "--json", *command.split())
            assert done.returncode == 0, (command, done)
            json.loads(done.stdout)
