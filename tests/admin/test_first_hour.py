"""What an operator meets in the first hour: messages of starts that are refused, the log of a new
node, names of settings, and paths in answers."""

import json
import os
import subprocess

import pytest
from database import Database
from launch import Node, binary, free_address

pytestmark = pytest.mark.node


def refused(tmp_path, *options, config=""):
    """The last line of a start that must fail."""
    (tmp_path / "m.yaml").write_text(config)
    address = free_address()
    addresses = [f"--{name}-address={address}" for name in ("listen", "rpc", "api", "prometheus")]
    command = [
        str(binary()),
        "serve",
        "--config",
        "m.yaml",
        "--shards=1",
        "--memory=512M",
        "--overprovisioned",
        *addresses,
        *options,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node with a relative data directory: another working directory than that of clients."""
    home, here = tmp_path_factory.mktemp("home"), os.getcwd()
    os.chdir(home)
    try:
        node = Node(shards=1, data_dir="data").start()
    finally:
        os.chdir(here)
    node.log_path = home / node.log_path
    db = Database(node.address)
    db.table("pk int PRIMARY KEY", name="t")
    yield node, db, home
    if node.alive():
        node.close()


def test_a_new_node_does_not_speak_of_counters_that_it_never_had(node):
    assert "counter id" not in node[0].log_path.read_text()


def test_a_refresh_shows_an_absolute_path(node):
    node, db, home = node
    admin = [str(binary()), "admin", "--api", node.address, "--json", "refresh", db.keyspace, "t"]
    shown = json.loads(
        subprocess.run(admin, capture_output=True, text=True, check=True, timeout=60).stdout
    )
    assert shown["directory"].startswith(f"{home}/data/data/{db.keyspace}/t-")


def test_settings_are_changed_by_each_of_their_names(node):
    _, db, _ = node
    value = (
        lambda: db.execute(
            "SELECT value FROM system.config WHERE name = 'read_request_timeout_in_ms'"
        )
        .one()
        .value
    )
    for name, ms in [("read_request_timeout", 6000), ("read_request_timeout_in_ms", 7000)]:
        db.execute(f"UPDATE system.config SET value = '{ms}' WHERE name = '{name}'")
        assert value() == str(ms)
    with pytest.raises(Exception, match="no such option; did you mean read_request_timeout"):
        db.execute("UPDATE system.config SET value = '1s' WHERE name = 'read_requst_timeout'")


def test_an_orderly_stop_ends_with_a_line(node):
    node, db, _ = node
    db.close()
    assert node.stop() == 0
    assert node.log_path.read_text().splitlines()[-1].endswith("stopped")


def test_starts_that_are_refused_name_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    line = refused(tmp_path, "--data-dir", "file")
    assert "file is not a directory: name a directory" in line and "move it away" not in line
    line = refused(tmp_path, config="log_level: LOUD\n")
    assert "log_level: 'loud' is not a log level" in line
    line = refused(tmp_path, config="data_file_directories: [/tmp/elsewhere]\n")
    assert "data_file_directories is not supported" in line and "Set data_dir" in line
    assert not (tmp_path / "data").exists()
