"""The launchers of tests/peers, without Java: which programs are chosen, settings, pinned sums."""

import importlib
import pathlib
import re
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def module(monkeypatch):
    """Imports a module of tests/ or tests/peers again, under the present environment."""
    monkeypatch.syspath_prepend(str(TESTS / "peers"))
    monkeypatch.syspath_prepend(str(TESTS))

    def again(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield again
    for name in ("jvm", "judges"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("PEERS", "PEERS_HOME", "LOAD_BIN", "CASSANDRA_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_the_programs_of_the_repository_are_the_default(module):
    judges = module("judges")
    assert judges.SSTABLETOOL.exists() and judges.CASSANDRA.exists()
    assert judges.LOAD.is_relative_to(judges.ROOT)
    command = judges.ledger("ledger-check", "h", "/l", 7, "--samples")
    assert command[0] == str(judges.LOAD) and "--counters" in command and command[-1] == "--samples"


def test_peers_names_others(module, monkeypatch):
    monkeypatch.setenv("PEERS", "/else/where")
    monkeypatch.setenv("PEERS_HOME", "/else/home")
    judges = module("judges")
    assert judges.CASSANDRA == pathlib.Path("/else/where/cassandra/cassandra")
    assert judges.LOAD == pathlib.Path("/else/home/cqlload/release/cqlload")
    assert "--counters" not in judges.ledger("ledger-write", "h", "/l", 7)


def test_jars_are_pinned(module):
    jvm = module("jvm")
    lines = jvm.PINNED.read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  [\w.+-]+\.jar", line) for line in lines)
    assert sum(line.endswith(f"  cassandra-all-{jvm.VERSION}.jar") for line in lines) == 1


def test_other_jars_are_refused(module, monkeypatch, tmp_path):
    monkeypatch.setenv("MESSINA_CACHE", str(tmp_path))
    jvm = module("jvm")

    class Fetched:
        returncode = 0

    def fetch(*_, **__):
        (jvm.LIB / "foreign-1.jar").write_bytes(b"x")
        return Fetched

    monkeypatch.setattr(jvm.subprocess, "run", fetch)
    with pytest.raises(SystemExit, match=r"not those of jars.sha256: .*foreign-1.jar"):
        jvm.install()
    with pytest.raises(SystemExit, match="foreign-1.jar"):
        jvm.install()  # nothing is kept of them


def test_settings_are_written_as_yaml(module):
    jvm = module("jvm")
    text = jvm.yaml({"a": "1", "list": ["x", "y"], "deep": [{"name": "n", "more": [{"k": '"v"'}]}]})
    assert text == (
        "a: 1\n"
        "list:\n"
        "  - x\n"
        "  - y\n"
        "deep:\n"
        "  - name: n\n"
        "    more:\n"
        '      - k: "v"\n'
    )
