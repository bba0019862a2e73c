"""Applications in Go, Java, Node.js and Rust, each on the drivers of its language: the programs of
go/, java/, java3/, node/ and rust/.

Each creates a schema, sends and reads every type, pages, batches, uses prepared and unprepared
statements, and lives through schema changes and a restart of its node. They say `ok NAME` or
`FAILED NAME: why` for each check; `restart?` asks for the restart, `refusals?` for the numbers of
reads and writes that rate limits have refused. `tests/install go-clients java-clients node-client
rust-client` builds them.
"""

import os
import pathlib
import subprocess
import tempfile
import threading

import pytest
from cluster.trio import Trio
from launch import Node
from refusals import refusals

HERE = pathlib.Path(__file__).resolve().parent
BUILT = (
    pathlib.Path(os.environ.get("MESSINA_CACHE", pathlib.Path.home() / ".cache/messina"))
    / "clients"
)
PROGRAM_TAKES = 180

COMMON = {"types", "paging", "batches", "null_and_unset", "schema_change", "metadata", "errors",
    "concurrency", "counters", "rate_limits", "restart"}
GO = COMMON | {"maps", "host_selection", "extras", "keyspaces", "large"}
JAVA = COMMON | {
    "named_values",
    "tracing",
    "streams",
    "extras",
    "keyspaces",
    "codecs",
    "mapping",
    "builder",
}
JAVA_3 = {"mapping", "paging", "ranges", "batches", "builders", "metadata", "errors", "rate_limits"}
NODE = COMMON | {"mapped", "streams", "extras", "keyspaces", "encodings"}
RUST = {"types", "paging", "batches", "unset_and_null", "errors", "structs", "extras", "keyspaces",
    "metadata", "schema_change", "rate_limits", "restart"}


def java(driver, program="Client"):
    # Optimised for a small size and a fast start.
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
    return [
        "java",
        *flags,
        "-cp",
        f"{BUILT}/java-{driver}/classes:{BUILT}/java-{driver}/lib/*",
        program,
    ]


def program(name, command, checks, *options, full=False):
    return pytest.param(
        command,
        options,
        checks,
        id="-".join((name, *options)).replace("---", "-"),
        marks=[pytest.mark.long] if full else [],
    )


PROGRAMS = [
    program("go-gocql1", [f"{BUILT}/go-client-1"], GO),
    program("go-gocql1", [f"{BUILT}/go-client-1"], GO, "--protocol", "3", full=True),
    program("go-gocql1", [f"{BUILT}/go-client-1"], GO, "--compression", "snappy", full=True),
    program("go-gocql2", [f"{BUILT}/go-client-2"], GO),
    program("go-gocql2", [f"{BUILT}/go-client-2"], GO, "--protocol", "4", full=True),
    program("go-gocql2", [f"{BUILT}/go-client-2"], GO, "--compression", "lz4", full=True),
    program("java-apache", java("apache"), JAVA),
    program("java-apache", java("apache"), JAVA, "--protocol", "V4", full=True),
    program("java-apache", java("apache"), JAVA, "--compression", "lz4", full=True),
    program("java-scylla", java("scylla"), JAVA),
    program("java-scylla", java("scylla"), JAVA, "--protocol", "V4", full=True),
    program("java-3", java("3", "Client3"), JAVA_3),
    program("java-3", java("3", "Client3"), JAVA_3, "--protocol", "V3", full=True),
    program("java-3", java("3", "Client3"), JAVA_3, "--compression", "LZ4", full=True),
    program("node", ["node", str(HERE / "node/client.js")], NODE),
    program("node", ["node", str(HERE / "node/client.js")], NODE, "--protocol", "3", full=True),
    program("rust", [str(BUILT.parent / "target-clients/release/rust-client")], RUST, full=True),
]
# Each program once, with its driver's own choice of the protocol.
DRIVERS = [pytest.param(one.values[0], id=one.id) for one in PROGRAMS if not one.values[1]]


@pytest.fixture(scope="module")
def own(request):
    """The node that the programs may have restarted; None when the server is not ours."""
    if request.config.getoption("--host") or request.config.getoption("--peer"):
        yield None
        return
    node = Node(shards=request.config.getoption("--shards"))
    try:
        node.start()
        yield node
        assert node.alive(), node.log_tail()
    finally:
        node.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three nodes of one cluster."""
    with Trio(tmp_path_factory.mktemp("three")) as trio:
        yield trio.nodes


def run(command, checks, answers):
    """Runs a program, which must pass exactly these checks. `answers` has a function for each line
    that is a question: it returns the line to answer."""
    environment = dict(os.environ, NODE_PATH=str(BUILT / "node/node_modules"))
    said = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        guard = threading.Timer(PROGRAM_TAKES, process.kill)
        guard.start()
        try:
            for line in process.stdout:
                said.append(line.rstrip())
                if said[-1] in answers:
                    print(answers[said[-1]](), file=process.stdin, flush=True)
            code = process.wait()
        finally:
            guard.cancel()
            process.kill()
            process.wait()
        errors.seek(0)
        report = "\n".join(said)[-4000:] + "\n" + errors.read()[-2000:]
    assert code == 0, f"ended with {code}:\n{report}"
    assert {line.split()[1] for line in said if line.startswith("ok ")} == checks, report


@pytest.mark.parametrize("command, options, checks", PROGRAMS)
def test_program(own, request, command, options, checks):
    address = own.address if own else request.getfixturevalue("host")

    def restart():
        if not own:
            return "no"
        own.restart(kill=len(options) == 0)
        return "done"

    answers = {
        "restart?": restart,
        "refusals?": lambda: " ".join(map(str, refusals([own]))) if own else "no",
    }
    run([*command, address, *options], checks, answers)


@pytest.mark.scylla
@pytest.mark.long
@pytest.mark.parametrize("command", DRIVERS)
def test_refusals_in_a_cluster(three, command):
    """No driver sends a request that a rate limit refused to the next host."""
    answers = {"refusals?": lambda: " ".join(map(str, refusals(three)))}
    run([*command, three[0].address, "--check", "rate_limits"], {"rate_limits"}, answers)
