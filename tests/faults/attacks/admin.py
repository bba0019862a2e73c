"""Requests to the admin REST interface from a foreign web page, and log lines that are written
through it."""

import http.client
import urllib.parse

from launch import ADMIN_PORT, Node


def ask(node, method, path, **headers):
    """The status of a request with these headers; `Host` is the node's unless given."""
    connection = http.client.HTTPConnection(node.address, ADMIN_PORT, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    headers = {
        "Host": f"{node.address}:{ADMIN_PORT}",
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    for name, text in headers.items():
        connection.putheader(name, text)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def foreign(place, check):
    """A foreign Host, Origin or Sec-Fetch-Site gets 403, for GET and POST. The node's own names are
    served."""
    with Node(
        shards=1, data_dir=place / "node", config={"http_allowed_hosts": "console.example.org"}
    ) as node:
        requests = [("GET", "/storage_service/release_version"), ("POST", "/storage_service/flush")]
        for method, path in requests:
            what = f"{method} {path}"
            for headers in (
                {"Host": "attacker.example.com"},
                {"Host": f"attacker.example.com:{ADMIN_PORT}"},
                {"Host": "localhost.attacker.example.com"},
                {"Host": "169.254.0.1"},
                {"Origin": "http://attacker.example.com"},
                {"Origin": "null"},
                {"Sec_Fetch_Site": "cross-site"},
                {"Sec_Fetch_Site": "same-site"},
            ):
                with check(f"{what} with {headers} is refused"):
                    status = ask(node, method, path, **headers)
                    assert status == 403, status
            for headers in (
                {},
                {"Host": f"localhost:{ADMIN_PORT}"},
                {"Host": "localhost"},
                {"Host": node.address},
                {"Host": f"console.example.org:{ADMIN_PORT}"},
                {"Origin": f"http://{node.address}:{ADMIN_PORT}"},
                {"Sec_Fetch_Site": "same-origin"},
                {"Sec_Fetch_Site": "none"},
            ):
                with check(f"{what} with {headers or 'its own Host'} is served"):
                    status = ask(node, method, path, **headers)
                    assert status == 200, status


def log_lines(place, check):
    """Newlines and control characters in /system/log do not forge lines; wrong snapshot tags are
    the client's error."""
    with Node(shards=1, data_dir=place / "node") as node:
        for n, between in enumerate(("\n2026-01-01T00:00:00Z ERROR ", "\r\n", "\r", "\x1b[2K")):
            forged = f"begin-{n}{between}forged-{n}"
            with check(f"{forged!r}"):
                status, _ = node.admin(
                    "POST", "/system/log?level=info&message=" + urllib.parse.quote(forged)
                )
                assert status in (200, 400), status
                data = node.log_path.read_bytes()
                lines = [line for line in data.split(b"\n") if b"forged-%d" % n in line]
                assert all(
                    b"begin-%d" % n in line and b"\r" not in line and b"\x1b[2K" not in line
                    for line in lines
                ), lines
        for tag in ("..", "../../etc", "a/b", "", "x" * 300, "a\nb", "."):
            with check(f"snapshot tag {tag[:20]!r} is 400"):
                status, body = node.admin(
                    "POST", f"/storage_service/snapshots?tag={urllib.parse.quote(tag, safe='')}"
                )
                # Without a tag, ScyllaDB uses the time.
                assert status == 400 or (tag == "" and status == 200), f"{status} {body}"


ATTACKS = {"foreign-pages": foreign, "log-lines": log_lines}
