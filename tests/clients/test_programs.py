"""Client programs that are not Python: the Rust driver, latte and the load generator, each against
a node of its own."""

import json
import os
import pathlib
import subprocess

import pytest
from judges import LOAD

CACHE = pathlib.Path(os.environ.get("MESSINA_CACHE", pathlib.Path.home() / ".cache/messina"))

pytestmark = pytest.mark.long


def run(*command, **options):
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=240, **options
    )
    assert (
        done.returncode == 0
    ), f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_rust_driver(server, host):
    """Every type, paging, batches; and no forwarding between shards once the driver knows the
    tablets."""
    metrics = ["--metrics", f"{host}:9180"] if server else []
    print(run(CACHE / "target-clients/release/rust-client", host, *metrics))


def test_latte(host):
    script = pathlib.Path(__file__).with_name("latte.rn")
    latte = CACHE / "bin/latte"
    run(latte, "schema", script, host)
    run(latte, "load", script, "-P", "rows=20000", host)
    for function in ("write", "read"):
        text = run(latte, "run", script, "-P", "rows=20000", "-f", function, "-d", "5s", "-c", "64",
            host, cwd="/tmp")
        errors = [line for line in text.splitlines() if "Errors" in line]
        assert all(
            line.split("[")[-1] and " 0" in line or "0.0" in line
            for line in errors
            if any(c.isdigit() for c in line)
        ), text


def load(*arguments):
    return json.loads(run(LOAD, *arguments))


def test_load(host):
    common = ["--hosts", host, "--rows", "20000"]
    for arguments in (["write", "--once"], ["write", "--duration", "3"],
            ["read", "--duration", "3"], ["mixed", "--duration", "3"],
                      ["scan-serial"], ["scan-parallel"]):
        table = ["--table", "small"]
        report = load(*arguments, *common, *table)
        assert (
            report["errors"] == 0 and not report.get("corrupt") and not report.get("missing")
        ), report
    big = ["--hosts", host, "--partitions", "3", "--rows", "300"]
    for arguments in (
        ["bigpart-write"],
        ["bigpart-read", "--once"],
        ["bigpart-read", "--once", "--reverse"],
    ):
        report = load(*arguments, *big)
        assert (
            report["errors"] == 0 and not report.get("corrupt") and not report.get("missing")
        ), report
