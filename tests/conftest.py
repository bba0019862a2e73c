"""What the Python tests share: which server they talk to, and one database session with its own
keyspace.

Without --host the tests start a Messina node and stop it at the end. `--peer cassandra` runs them
against Apache Cassandra, started by `tests/peers/cassandra start`, as a check of the tests
themselves; it leaves out, and counts in the last lines, what is marked `scylla` or `node`.
`--short` leaves out what is marked `long`.
"""

import pytest
from database import Database
from judges import FIRST_CASSANDRA
from launch import Node


def pytest_addoption(parser):
    parser.addoption("--host", help="address of a running server; without it a node is started")
    parser.addoption("--peer", choices=["cassandra"], help="the server is this one, not Messina")
    parser.addoption("--short", action="store_true", help="leave out tests marked long")
    parser.addoption("--shards", type=int, default=2, help="shards of the node that is started")


def pytest_collection_modifyitems(config, items):
    out = set()
    if config.getoption("--peer"):
        out |= {"scylla", "node"}
    elif config.getoption("--host"):
        out |= {"node"}
    if config.getoption("--short"):
        out |= {"long"}
    gone = [item for item in items if out & {mark.name for mark in item.iter_markers()}]
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=gone)


@pytest.fixture(scope="session")
def server(request):
    """The node under test, or None when the tests do not start the server."""
    if request.config.getoption("--host") or request.config.getoption("--peer"):
        yield None
        return
    node = Node(shards=request.config.getoption("--shards"))
    try:
        node.start()
        yield node
        assert node.alive(), f"the node ended by itself:\n{node.log_tail()}"
        code = node.stop()
        assert code == 0, f"the node ended with {code} after SIGTERM:\n{node.log_tail()}"
    finally:
        node.close()


@pytest.fixture(scope="session")
def host(request, server):
    """The address that clients connect to."""
    if server is not None:
        return server.address
    return request.config.getoption("--host") or FIRST_CASSANDRA


@pytest.fixture(scope="module")
def db(host):
    """A session with a keyspace of the test file's own."""
    database = Database(host)
    yield database
    database.close()


@pytest.fixture
def node():
    """A node of the test's own, not yet started."""
    it = Node()
    yield it
    it.close()
