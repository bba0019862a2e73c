"""Sstables that Cassandra's writer made of random statements: `messina inspect dump` prints what
sstabledump prints, and verify finds them sound."""

import json
import os
import subprocess

import launch
import pytest
from judges import SSTABLETOOL as TOOL
from random_spec import spec

# SPEC_SEEDS=100-200 tries others.
FIRST, LAST = map(int, os.environ.get("SPEC_SEEDS", "1-12").split("-"))

pytestmark = [pytest.mark.node, pytest.mark.long]


def plain(value):
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key != "position"}
    return [plain(each) for each in value] if isinstance(value, list) else value


def difference(ours, theirs, place=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs = [
            (ours.get(key), theirs.get(key), f"{place}.{key}")
            for key in ours.keys() | theirs.keys()
        ]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(a, b, f"{place}[{i}]") for i, (a, b) in enumerate(zip(ours, theirs))]
    else:
        return (
            None
            if ours == theirs and type(ours) is type(theirs)
            else f"{place}: {ours!r:.300} / {theirs!r:.300}"
        )
    return next((found for a, b, at in pairs if (found := difference(a, b, at))), None)


@pytest.mark.parametrize("seed", range(FIRST, LAST + 1))
def test_dumps_alike(seed, tmp_path):
    version = ("me", "nb")[seed % 2]
    (tmp_path / "spec.cql").write_text(spec(seed, version))
    made = subprocess.run(
        [TOOL, "make", version, tmp_path / "spec.cql", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    path = tmp_path / f"out/{version}-1-big-Data.db"
    assert path.exists(), made.stderr[-2000:]
    theirs = subprocess.run([TOOL, "dump", path, "-t"], capture_output=True, text=True, timeout=200)
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    binary = launch.binary()
    ours = subprocess.run(
        [binary, "inspect", "dump", path], capture_output=True, text=True, timeout=200
    )
    assert ours.returncode == 0, ours.stderr
    found = difference(plain(json.loads(ours.stdout)), plain(json.loads(theirs.stdout)))
    assert found is None, found
    verified = subprocess.run(
        [binary, "inspect", "verify", path], capture_output=True, text=True, timeout=200
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
