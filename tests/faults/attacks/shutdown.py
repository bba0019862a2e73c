"""HTTP clients that send half a request or do not read, and a stop of the node meanwhile."""

import os
import signal
import socket
import subprocess
import time

from database import connect
from launch import ADMIN_PORT, METRICS_PORT, Node, StartFailed, die_with_parent, failed_start
from trio import eventually

HALF = b"GET /metrics HTTP/1.1\r\nHost: "
STOPS_WITHIN = 20  # seconds
HALF_REQUESTS = 6000
GROWS_AT_MOST = 100  # MiB
LOG_LINES, LINE_BYTES = 1200, 7000  # more than a pipe and the queue of the log hold
GIVEN_UP_AFTER = 90  # seconds


def stop(node, check, what):
    with check(f"SIGTERM ends the node within {STOPS_WITHIN} s: {what}"):
        began = time.monotonic()
        try:
            code = node.stop(timeout=STOPS_WITHIN)
        except StartFailed:
            raise AssertionError(f"it still runs after {STOPS_WITHIN} s") from None
        assert code == 0, f"status {code} after {time.monotonic() - began:.1f} s"


def unusable_files(node, check):
    """SIGHUP with a file that cannot be read in bounded time: the node keeps its settings and
    serves."""
    path = node.config_path
    good = path.read_text()
    for why, make in (
        ("not a regular file, but a FIFO", lambda: os.mkfifo(path)),
        ("nested more than 64 levels", lambda: path.write_text("a: " + "[" * 200_000)),
        ("has no settings", lambda: path.write_text("")),
        ("larger than 1024 KiB", lambda: (path.write_text(good), os.truncate(path, 1 << 30))),
    ):
        with check(f"SIGHUP with a wrong file ({why}): nothing changes, and metrics are served"):
            path.unlink()
            make()
            node.process.send_signal(signal.SIGHUP)
            eventually(lambda why=why: why in node.log_tail(10), 10)
            assert node.metrics()
    # The node stops with the FIFO in place.
    path.unlink()
    os.mkfifo(path)
    node.process.send_signal(signal.SIGHUP)


def signals(place, check):
    """SIGHUP reads the configuration again, others are ignored, SIGQUIT and SIGPWR stop the node in
    order."""
    for name in ("SIGQUIT", "SIGPWR"):
        with Node(shards=2, memory="256M", data_dir=place / name) as node:
            if name == "SIGQUIT":
                for ignored in (
                    signal.SIGUSR1,
                    signal.SIGUSR2,
                    signal.SIGALRM,
                    signal.SIGVTALRM,
                    signal.SIGIO,
                ):
                    with check(f"{ignored.name} is ignored and logged"):
                        node.process.send_signal(ignored)
                        eventually(lambda: f"signal=\"{ignored.name}\"" in node.log_tail(10), 10)
                with check("SIGHUP changes what can be changed live, and names the rest"):
                    node.config |= {"read_request_timeout_in_ms": 1234, "auto_snapshot": "false"}
                    node.command()
                    node.process.send_signal(signal.SIGHUP)
                    eventually(lambda: "configuration was reloaded" in node.log_tail(10), 10)
                    cluster, session = connect(node.address)
                    values = {
                        row.name: row.value
                        for row in session.execute("SELECT name, value FROM system.config")
                    }
                    cluster.shutdown()
                    assert (
                        values["read_request_timeout_in_ms"] == "1234"
                        and values["auto_snapshot"] == "true"
                    ), values
                    assert "auto_snapshot" in node.log_tail(10), node.log_tail(10)
                with check("SIGHUP with a wrong file changes nothing"):
                    node.config["read_request_timeout_in_ms"] = "never"
                    node.command()
                    node.process.send_signal(signal.SIGHUP)
                    eventually(lambda: "configuration is wrong" in node.log_tail(10), 10)
                unusable_files(node, check)
                assert node.alive()
            with check(f"{name} stops the node in order"):
                node.process.send_signal(getattr(signal, name))
                code = node.process.wait(STOPS_WITHIN)
                assert code == 0, code


def few_descriptors(place, check):
    """Too few descriptors to serve a client: the start is refused and says what to set."""
    node = Node(
        shards=1, memory="256M", data_dir=place / "node", prefix=["prlimit", "--nofile=40:40"]
    )
    with check("40 descriptors are refused"):
        failed_start(node, 20)
        assert "RLIMIT_NOFILE" in node.log_tail(5) and node.process.wait(10) == 1, node.log_tail(5)
    node.prefix = ["prlimit", "--nofile=60:60"]
    with check("60 descriptors serve a client"):
        node.start()
        connect(node.address)[0].shutdown()
    node.close()


def half_requests(place, check):
    """Half an HTTP request on 10000 and 9180, and a client of /metrics that does not read: SIGTERM
    still stops the node."""
    for port in (ADMIN_PORT, METRICS_PORT):
        with Node(shards=1, data_dir=place / f"node-{port}") as node:
            with socket.create_connection((node.address, port)) as half:
                half.sendall(HALF)
                stop(node, check, f"half a request on {port}")
    with Node(shards=1, data_dir=place / "node-body") as node:
        with socket.create_connection((node.address, ADMIN_PORT)) as half:
            half.sendall(
                b"POST /storage_service/flush HTTP/1.1\r\nHost: localhost\r\nContent-Length:"
                b" 100\r\n\r\nhalf"
            )
            stop(node, check, "half a body")
    with Node(shards=1, data_dir=place / "node-reader") as node:
        readers = []
        for _ in range(4):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            reader.connect((node.address, METRICS_PORT))
            # Many answers that are not read fill the buffers of the sockets.
            for _ in range(200):
                try:
                    reader.settimeout(0.2)
                    reader.sendall(
                        f"GET /metrics HTTP/1.1\r\nHost: {node.address}\r\n\r\n".encode()
                    )
                except OSError:
                    break
            readers.append(reader)
        time.sleep(0.5)
        stop(node, check, "readers of /metrics that do not read")
        for reader in readers:
            reader.close()


def many_half_requests(place, check):
    """6,000 half requests: memory stays bounded, the port answers afterwards, and half requests
    time out."""
    with Node(
        shards=1, memory="256M", data_dir=place / "node", prefix=["prlimit", "--nofile=16384:16384"]
    ) as node:
        node.metrics()
        before = node.rss_mib()
        connections = []
        for _ in range(HALF_REQUESTS):
            try:
                one = socket.create_connection((node.address, ADMIN_PORT), timeout=5)
                one.sendall(HALF + b"x" * 4000)
                connections.append(one)
            except OSError:
                pass
        time.sleep(1)
        with check(f"memory grows by at most {GROWS_AT_MOST} MiB"):
            grown = node.rss_mib() - before
            assert grown <= GROWS_AT_MOST, f"{grown:.0f} MiB by {len(connections)} half requests"
        with check(f"half a request is given up within {GIVEN_UP_AFTER} s"):
            until = time.monotonic() + GIVEN_UP_AFTER
            first = connections[0]
            first.settimeout(max(0.1, until - time.monotonic()))
            try:
                while first.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            except TimeoutError:
                raise AssertionError("the connection is still open") from None
        for one in connections:
            one.close()
        with check("the port answers afterwards"):
            status, _ = node.admin("GET", "/storage_service/release_version", timeout=20)
            assert status == 200, status
        stop(node, check, "after all of them")


def unread_log(place, check):
    """No process reads the pipe that the log goes to: the node serves and stops all the same, and
    counts the lines that it drops."""
    reader, writer = os.pipe()
    node = Node(shards=1, memory="256M", data_dir=place / "node")
    node.process = subprocess.Popen(
        node.command(),
        stdout=writer,
        stderr=writer,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    os.close(writer)
    log = lambda text: node.admin("POST", f"/system/log?level=info&message={text}", timeout=5)
    try:
        node.wait_cql()
        with check("requests are answered while no process reads the log"):
            for _ in range(LOG_LINES):
                status, _ = log("x" * LINE_BYTES)
                assert status == 200, status
        with check("dropped lines are counted once the log is read again"):
            os.set_blocking(reader, False)
            read, until = b"", time.monotonic() + STOPS_WITHIN
            while b"log lines were dropped" not in read and time.monotonic() < until:
                try:
                    read = read[-LINE_BYTES:] + os.read(reader, 1 << 16)
                except BlockingIOError:
                    time.sleep(0.05)
            assert b"log lines were dropped" in read, read[-300:]
        for _ in range(LOG_LINES // 8):
            log("y" * LINE_BYTES)
        stop(node, check, "no process reads its log")
    finally:
        os.close(reader)
        node.close()


ATTACKS = {
    "unread-log": unread_log,
    "signals": signals,
    "few-descriptors": few_descriptors,
    "half-requests": half_requests,
    "many-half-requests": many_half_requests,
}
