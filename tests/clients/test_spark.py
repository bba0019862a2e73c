"""A Spark job in local mode on the Cassandra connector: the program of spark/. `make test-spark`;
`tests/install spark` builds it."""

import os
import pathlib
import subprocess

import pytest

HOME = (
    pathlib.Path(os.environ.get("MESSINA_CACHE", pathlib.Path.home() / ".cache/messina"))
    / "clients/spark"
)
CHECKS = {"write", "read_by_ranges", "filters", "frames", "types", "joins", "catalog", "counters"}
# The options that Spark 3.5 needs with Java 17, from its own start script.
OPENED = ["java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
          "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"]

pytestmark = pytest.mark.long


def test_spark(host, tmp_path):
    command = [
        "java",
        "-Xmx1g",
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
        "-Djdk.reflect.useDirectMethodHandle=false",
        f"-Djava.io.tmpdir={tmp_path}",
        "-cp",
        f"{HOME}/classes:{HOME}/lib/*",
        "SparkClient",
        host,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=420,
        cwd=tmp_path,
        env=dict(os.environ, SPARK_LOCAL_IP=host),
    )
    report = done.stdout[-4000:] + done.stderr[-4000:]
    assert done.returncode == 0, report
    assert {
        line.split()[1] for line in done.stdout.splitlines() if line.startswith("ok ")
    } == CHECKS, report
