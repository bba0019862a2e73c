"""Fixtures of the tests that write the bytes of the protocol themselves: a keyspace, a connection,
and a check that the node lives."""

import struct

import pytest
from wire import INVALID, PROTOCOL, RESULT, SERVER_ERROR, Wire

KEYSPACE = "raw_protocol"

BAD = (PROTOCOL, INVALID, SERVER_ERROR)


@pytest.fixture(scope="module", autouse=True)
def schema(host):
    with Wire(host) as wire:
        wire.query(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        answer = wire.query(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy',"
            " 'replication_factor': 1}"
        )
        assert answer.opcode == RESULT, answer.message
        for columns in ("t (pk int, ck int, v int, PRIMARY KEY (pk, ck))",
                "types (pk int PRIMARY KEY, t text, b bigint, l list<int>, "
                        "m map<text, int>, u uuid, tu tuple<int, text>, d decimal, f float, bo "
                            "boolean, i inet, du duration, da date, "
                        "ti time, ts timestamp, tt timeuuid, a ascii, s smallint, y tinyint, blb "
                            "blob, fl frozen<set<int>>)",
                        "big (pk int, ck int, v blob, PRIMARY KEY (pk, ck))"):
            answer = wire.query(f"CREATE TABLE {KEYSPACE}.{columns}")
            assert answer.opcode == RESULT, answer.message
        for ck in range(100):
            wire.query(f"INSERT INTO {KEYSPACE}.t (pk, ck, v) VALUES (1, {ck}, {ck})")
    yield


@pytest.fixture(autouse=True)
def node_lives(host, server):
    yield
    with Wire(host) as wire:
        wire.works()
    assert server is None or server.alive()


@pytest.fixture
def wire(host):
    with Wire(host) as it:
        yield it


def batch(statements, kind=0, consistency=1, flags=0):
    return (
        struct.pack(">BH", kind, len(statements))
        + b"".join(statements)
        + struct.pack(">HB", consistency, flags)
    )
