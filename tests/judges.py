"""The programs that load a server and judge it, and what starts Apache Cassandra.

By default they are those of this repository: the load generator of tools/load, and `cassandra` and
`sstabletool` of tests/peers. The environment may name others:

PEERS       a directory with `load`, `cassandra/cassandra` and `sstabletools/sstabletool`, which
            take the same commands. They share no code with ours: a second judge.
PEERS_HOME  where these keep what they fetch and build (default ~/.cache/peers).
LOAD_BIN    another load generator.
"""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = pathlib.Path(os.environ["PEERS"]).resolve() if os.environ.get("PEERS") else None
PEERS_HOME = pathlib.Path(os.environ.get("PEERS_HOME", pathlib.Path.home() / ".cache/peers"))

if PEERS:
    LOAD = PEERS_HOME / "cqlload/release/cqlload"
    CASSANDRA = PEERS / "cassandra/cassandra"
    SSTABLETOOL = PEERS / "sstabletools/sstabletool"
    FIRST_CASSANDRA = "127.0.0.11"
else:
    LOAD = ROOT / "target/load/release/messina-load"
    CASSANDRA = ROOT / "tests/peers/cassandra"
    SSTABLETOOL = ROOT / "tests/peers/sstabletool"
    FIRST_CASSANDRA = os.environ.get("CASSANDRA_ADDRESS", "127.0.0.11")

LOAD = pathlib.Path(os.environ.get("LOAD_BIN", LOAD))

# The fields of a report of `ledger-check` that count wrong data.
WRONG = ("lost", "phantom", "corrupt", "missing", "unreadable")


def ledger(verb, hosts, path, keys, *more):
    """A command that writes or checks a ledger. A tenth of the writes are deletions, and some are
    increments."""
    # The ledger of PEERS does not support counters.
    counters = [] if PEERS else ["--counters", "0.05"]
    options = [
        "--hosts",
        hosts,
        "--ledger",
        path,
        "--rows",
        keys,
        "--deletes",
        "0.1",
        "--connections",
        "0",
    ]
    return [str(word) for word in (LOAD, verb, *options, *counters, *more)]
