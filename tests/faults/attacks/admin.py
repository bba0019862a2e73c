"""The admin REST as a foreign web page would reach it, and what is written to the log through it."""

import http.client
import urllib.parse

from launch import ADMIN_PORT, METRICS_PORT, Node


def ask(node, method, path, port=ADMIN_PORT, **headers):
    """The status of a request with these headers; `Host` is the node's unless given."""
    connection = http.client.HTTPConnection(node.address, port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    headers = {"Host": f"{node.address}:{port}", **{name.replace("_", "-"): text for name, text in headers.items()}}
    for name, text in headers.items():
        connection.putheader(name, text)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def foreign(place, check):
    """A foreign Host, Origin or Sec-Fetch-Site is answered 403, for GET and POST; the node's own are served."""
    with Node(shards=1, data_dir=place / "node", config={"http_allowed_hosts": "console.example.org"}) as node:
        requests = [("GET", "/storage_service/release_version", ADMIN_PORT), ("POST", "/storage_service/flush", ADMIN_PORT), ("GET", "/metrics", METRICS_PORT)]
        for method, path, port in requests:
            what = f"{method} {path}"
            for headers in (
                {"Host": "attacker.example.com"}, {"Host": f"attacker.example.com:{port}"}, {"Host": "localhost.attacker.example.com"}, {"Host": "169.254.0.1"},
                {"Origin": "http://attacker.example.com"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
            ):
                with check(f"{what} with {headers} is refused"):
                    status = ask(node, method, path, port, **headers)
                    assert status == 403, status
            for headers in (
                {}, {"Host": f"localhost:{port}"}, {"Host": "localhost"}, {"Host": node.address}, {"Host": f"console.example.org:{port}"},
                {"Origin": f"http://{node.address}:{port}"}, {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"},
            ):
                with check(f"{what} with {headers or 'its own Host'} is served"):
                    status = ask(node, method, path, port, **headers)
                    assert status == 200, status


def log_lines(place, check):
    """Newlines and control characters in /system/log do not forge lines; wrong snapshot tags are the client's error."""
    with Node(shards=1, data_dir=place / "node") as node:
        for forged in ("one\n2026-01-01T00:00:00Z ERROR forged-line", "one\r\nforged-line", "one\x1b[2Kforged-line", "one\u2028forged-line"):
            with check(f"{forged!r}"):
                status, _ = node.admin("POST", "/system/log?level=info&message=" + urllib.parse.quote(forged))
                assert status in (200, 400), status
                data = node.log_path.read_bytes()
                lines = [line for line in data.split(b"\n") if b"forged-line" in line]
                assert all(b"one" in line and b"\r" not in line and b"\x1b[2K" not in line for line in lines), lines
        for tag in ("..", "../../etc", "a/b", "", "x" * 300, "a\nb", "."):
            with check(f"snapshot tag {tag[:20]!r} is 400"):
                status, body = node.admin("POST", f"/storage_service/snapshots?tag={urllib.parse.quote(tag, safe='')}")
                # Without a tag, ScyllaDB takes the time for one.
                assert status == 400 or (tag == "" and status == 200), f"{status} {body}"


ATTACKS = {"foreign-pages": foreign, "log-lines": log_lines}
