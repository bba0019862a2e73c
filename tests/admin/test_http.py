"""The HTTP ports: which callers are answered, and which connections a stop does not wait for."""

import re
import socket
import time

import pytest
from launch import ADMIN_PORT, CQL_PORT, METRICS_PORT, Node, answers_options

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def node():
    with Node(shards=2, memory="256M", config={"http_allowed_hosts": "[node1.example]"}) as node:
        yield node


def ask(node, port, method, path, **headers):
    """The status of a request with these headers only."""
    with socket.create_connection((node.address, port), timeout=10) as s:
        lines = [
            f"{method} {path} HTTP/1.1",
            "Connection: close",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        s.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while more := s.recv(1 << 16):
            answer += more
        return int(answer.split()[1])


@pytest.mark.parametrize("port, path", [(ADMIN_PORT, "/storage_service/keyspaces"),
    (METRICS_PORT, "/metrics")])
def test_pages_of_other_sites_are_refused(node, port, path):
    for host in (
        node.address,
        f"{node.address}:{port}",
        f"localhost:{port}",
        f"127.0.0.1:{port}",
        f"[::1]:{port}",
        "node1.example",
        f"NODE1.example:{port}",
    ):
        assert ask(node, port, "GET", path, Host=host) == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"{node.address}.evil.example",
        "node2.example",
        "10.1.2.3",
    ):
        assert ask(node, port, "GET", path, Host=host) == 403, host
    own = f"{node.address}:{port}"
    assert (
        ask(node, port, "GET", path, Host=own, Origin=f"http://{own}", Sec_Fetch_Site="same-origin")
        == 200
    )
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert ask(node, port, "GET", path, Host=own, **headers) == 403, headers
    if port == ADMIN_PORT:
        assert ask(node, port, "POST", "/storage_service/flush", Host="evil.example") == 403
        assert (
            ask(
                node, port, "POST", "/storage_service/flush", Host=own, Origin="http://evil.example"
            )
            == 403
        )


def test_a_message_is_one_line_of_the_log(node):
    status, _ = node.admin(
        "POST",
        "/system/log?level=warn&message=begin%0A2026-01-01T00:00:00Z%20ERROR%20forged%1B%5B31m",
    )
    assert status == 200
    text = node.log_path.read_text()
    assert r"begin\n2026-01-01T00:00:00Z ERROR forged\u{1b}[31m" in text
    assert not re.search(r"^2026-01-01", text, re.MULTILINE) and "\x1b[31mforged" not in text


def test_wrong_names_are_the_callers_fault(node):
    for method in ("POST", "DELETE"):
        for tag in ("..", "a%2Fb", "..%2F..", "%00", "x" * 201, "%C3%A9"):
            status, body = node.admin(method, f"/storage_service/snapshots?tag={tag}")
            assert status == 400, f"{method} {tag}: {status} {body}"


def test_clients_can_be_refused_and_served_again(node):
    path = "/storage_service/native_transport"
    with socket.create_connection((node.address, CQL_PORT), timeout=10) as client:
        assert node.admin("GET", path) == (200, "true")
        assert node.admin("DELETE", path)[0] == 200
        assert node.admin("GET", path) == (200, "false")
        assert client.recv(1) == b"", "its connection is closed"
    assert not answers_options(node.address)
    assert node.admin("DELETE", path)[0] == 200, "nothing to do"
    for _ in range(2):
        assert node.admin("POST", path)[0] == 200
        assert node.admin("GET", path) == (200, "true")
        assert answers_options(node.address)


def test_a_stop_does_not_wait_for_clients_that_do_not_send_or_read():
    """A regression: a stop waited forever for half an HTTP request, and 15 seconds for a client
    that did not read."""
    with Node(shards=2, memory="256M", config={"shutdown_timeout_in_ms": 8000}) as node:
        held = []
        for port in (ADMIN_PORT, METRICS_PORT):
            for begin in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: "):
                held.append(socket.create_connection((node.address, port)))
                held[-1].sendall(begin)
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((node.address, METRICS_PORT))
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        # Half a frame, and half of a long one.
        for begin in (
            b"\x04\0\0\1",
            b"\x04\0\0\1\x01\0\0\0\x16\0\1\0\x0bCQL_VERSION\0\x053.0.0"
            + b"\x04\0\0\1\x07\0\x40\0\0"
            + b"x" * 100_000,
        ):
            held.append(socket.create_connection((node.address, CQL_PORT)))
            held[-1].sendall(begin)
        began = time.monotonic()
        assert node.stop(timeout=30) == 0, node.log_tail()
        assert time.monotonic() - began < 8 + 2, node.log_tail()
        for s in [*held, reader]:
            s.close()
