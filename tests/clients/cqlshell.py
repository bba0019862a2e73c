"""Runs a cqlsh as users do: statements in, text out. The fixture `shell` is each of the two
programs, with a keyspace of its own."""

import os
import pathlib
import re
import subprocess
import tempfile

import pytest

VENVS = pathlib.Path(
    os.environ.get("VENVS") or pathlib.Path(__file__).resolve().parents[2] / ".venv"
)
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


class Shell:
    def __init__(self, program, host):
        self.program, self.host = program, host
        self.keyspace = "shell_" + program.replace("-", "_")

    def run(self, text, *arguments, fails=False, cwd=None):
        """Runs statements from standard input; returns what was printed. Errors must be expected,
        and are returned then."""
        done = self.start(text, *arguments, cwd=cwd)
        errors = "\n".join(
            line
            for line in done.stderr.splitlines()
            if line.strip() and not re.search(r"(?i)^warn|warning|may not be compatible", line)
        )
        if fails:
            assert errors, f"no error from {text!r}: {done.stdout[-500:]}"
            return errors
        assert (
            not errors and done.returncode == 0
        ), f"{text[:300]!r} ended with {done.returncode}: {errors[:1500]}"
        return done.stdout

    def start(self, text, *arguments, cwd=None):
        """The finished process, whatever its output."""
        command = [
            str(VENVS / self.program / "bin" / "cqlsh"),
            *arguments,
            "--request-timeout=60",
            "--connect-timeout=20",
            "--no-color",
            self.host,
            "9042",
        ]
        environment = dict(
            os.environ,
            HOME=tempfile.gettempdir(),
            CQL_HISTORY="/dev/null",
            PYTHONWARNINGS="ignore",
            COLUMNS="200",
        )
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            cwd=cwd or tempfile.gettempdir(),
        )


@pytest.fixture(scope="module", params=["cqlsh", "scylla-cqlsh"])
def shell(request, host):
    it = Shell(request.param, host)
    it.run(
        f"DROP KEYSPACE IF EXISTS {it.keyspace}; CREATE KEYSPACE {it.keyspace} WITH replication ="
        f" {REPLICATION};"
    )
    yield it
    it.run(f"DROP KEYSPACE IF EXISTS {it.keyspace};")


def table(output):
    """The head and the rows of a printed result as lists of stripped texts."""
    lines = output.splitlines()
    for n, line in enumerate(lines):
        if re.fullmatch(r"[-+]+", line) and n:
            head = [c.strip() for c in lines[n - 1].split("|")]
            rows = []
            for row in lines[n + 1 :]:
                if not row.strip():
                    break
                rows.append([c.strip() for c in row.split("|")])
            return head, rows
    raise AssertionError(f"no table in {output!r}")
