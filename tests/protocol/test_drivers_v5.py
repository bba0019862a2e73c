"""Both Python drivers in version 5, each with its own Python, by one program: driver_v5.py."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_program(driver, *arguments):
    python = ROOT / ".venv" / driver / "bin/python"
    done = subprocess.run([str(python), "-u", str(ROOT / "tests/protocol/driver_v5.py"),
        *map(str, arguments)], capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and done.stdout.strip().splitlines()[-1].startswith(
        "passed: driver"
    ), (done.stdout[-1000:] + done.stderr[-4000:])


@pytest.mark.scylla
@pytest.mark.parametrize("driver, compression", [
    ("scylla", "lz4"), ("cassandra", "plain"),
    pytest.param("scylla", "plain", marks=pytest.mark.long),
    pytest.param("cassandra", "lz4", marks=pytest.mark.long),
])
def test_driver(host, driver, compression):
    run_program(driver, host, compression)
