"""Statements that once had wrong results: prepared ones that outlive their table, NULL in NOT IN,
settings that stop all work."""

import struct

from database import connect
from launch import Node
from wire import ERROR, EXECUTE, PREPARE, RESULT, UNPREPARED, Wire, long_string, parameters, string

KEYSPACE = (
    "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
    " 'replication_factor': 1}"
)


def prepared(place, check):
    """INSERT and SELECT prepared before a DROP and CREATE with another type: UNPREPARED, never the
    old bytes as the new type."""
    node = Node(shards=2, data_dir=place / "node")
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        changes = {
            "DROP and CREATE TABLE with another type": (["DROP TABLE k.t",
                "CREATE TABLE k.t (pk int PRIMARY KEY, v double)"], True),
            "DROP and CREATE TABLE alike": (["DROP TABLE k.t",
                "CREATE TABLE k.t (pk int PRIMARY KEY, v bigint)"], False),
            "DROP and ADD of the column with another type": (["ALTER TABLE k.t DROP v",
                "ALTER TABLE k.t ADD v double"], True),
            "DROP and CREATE KEYSPACE": (["DROP KEYSPACE k", KEYSPACE,
                "CREATE TABLE k.t (pk int PRIMARY KEY, v double)"], True),
        }
        for what, (statements, other_type) in changes.items():
            session.execute("DROP TABLE IF EXISTS k.t")
            session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v bigint)")
            with check(what), Wire(node.address) as wire:
                insert = wire.ask(
                    PREPARE, long_string("INSERT INTO k.t (pk, v) VALUES (?, ?)")
                ).prepared_id()
                select = wire.ask(
                    PREPARE, long_string("SELECT v FROM k.t WHERE pk = ?")
                ).prepared_id()
                values = [struct.pack(">i", 1), struct.pack(">q", 42)]
                assert wire.ask(EXECUTE, string(insert) + parameters(values)).opcode == RESULT
                for statement in statements:
                    try:
                        session.execute(statement)
                    except Exception as error:
                        if statement.endswith("ADD v double"):
                            # ScyllaDB refuses to add a dropped column with another type; then there
                            # is nothing to attack.
                            other_type = False
                            session.execute("ALTER TABLE k.t ADD v bigint")
                        else:
                            raise error
                answer = wire.ask(EXECUTE, string(insert) + parameters(values))
                if other_type:
                    assert answer.opcode == ERROR, "the old bytes were stored as the new type"
                if answer.opcode == ERROR:
                    answer.is_error(UNPREPARED)
                    assert answer.body.endswith(string(insert)), "UNPREPARED names the statement"
                    answer = wire.ask(EXECUTE, string(select) + parameters(values[:1]))
                    if other_type:
                        answer.is_error(UNPREPARED)
                    # A driver prepares again.
                    again = wire.ask(
                        PREPARE, long_string("INSERT INTO k.t (pk, v) VALUES (?, ?)")
                    ).prepared_id()
                    assert (
                        wire.ask(
                            EXECUTE,
                            string(again)
                            + parameters(
                                [values[0], struct.pack(">d", 2.5) if other_type else values[1]]
                            ),
                        ).opcode
                        == RESULT
                    )
                found = session.execute("SELECT v FROM k.t WHERE pk = 1").one()
                assert found is not None and found.v == (2.5 if other_type else 42), found
        cluster.shutdown()
    finally:
        node.close()


def null_in_lists(place, check):
    """`NOT IN (5, NULL)` and other conditions with NULL match nothing or are refused, in filters on
    every kind of column."""
    node = Node(shards=1, data_dir=place / "node")
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute(
            "CREATE TABLE k.t (pk int, ck int, s int static, v int, PRIMARY KEY (pk, ck))"
        )
        for n in range(1, 6):
            session.execute(f"INSERT INTO k.t (pk, ck, s, v) VALUES ({n}, {n}, {n}, {n})")
        session.execute("INSERT INTO k.t (pk, ck) VALUES (6, 6)")
        for column in ("v", "s", "ck"):
            for condition, expected in (("NOT IN (5, NULL)", []), ("NOT IN (5)", [1, 2, 3, 4]),
                    ("IN (5, NULL)", [5])):
                with check(f"{column} {condition}"):
                    try:
                        found = sorted(
                            row.pk
                            for row in session.execute(
                                f"SELECT pk FROM k.t WHERE {column} {condition} ALLOW FILTERING"
                            )
                        )
                    except Exception as error:
                        # A refusal is correct if NULL is no valid value of the column.
                        assert (
                            "NULL" in condition and "InvalidRequest" in type(error).__name__
                        ), error
                        continue
                    wanted = (
                        expected + [6] if column == "ck" and condition == "NOT IN (5)" else expected
                    )
                    assert found == wanted, f"{found} instead of {wanted}"
        cluster.shutdown()
    finally:
        node.close()


def settings(place, check):
    """UPDATE system.config refuses values that stop all work. The node stays usable."""
    node = Node(shards=1, data_dir=place / "node")
    try:
        node.start()
        cluster, session = connect(node.address)
        session.execute(KEYSPACE)
        session.execute("CREATE TABLE k.t (pk int PRIMARY KEY, v int)")
        names = [
            row.name
            for row in session.execute("SELECT name FROM system.config")
            if row.name.endswith("request_timeout_in_ms")
        ]
        with check("there are timeouts to attack"):
            assert {"read_request_timeout_in_ms", "write_request_timeout_in_ms"} <= set(
                names
            ), names
        for name in sorted(names):
            with check(f"{name} = 0"):
                try:
                    session.execute(f"UPDATE system.config SET value = '0' WHERE name = '{name}'")
                except Exception as error:
                    # As in ScyllaDB, writing a wrong value fails with WRITE_FAILURE.
                    assert type(error).__name__ == "WriteFailure" and "out of range" in str(
                        error
                    ), error
                else:
                    raise AssertionError("accepted")
        with check("reads and writes continue"):
            session.execute("INSERT INTO k.t (pk, v) VALUES (1, 1)", timeout=10)
            assert session.execute("SELECT v FROM k.t WHERE pk = 1", timeout=10).one().v == 1
        cluster.shutdown()
    finally:
        node.close()


ATTACKS = {"prepared": prepared, "null-in-lists": null_in_lists, "settings": settings}
