"""ALTER KEYSPACE adds, removes and moves replicas while clients read and write at every level."""

import pytest
from cassandra import ConsistencyLevel as Level, InvalidRequest
from cassandra.query import SimpleStatement
from cluster.elasticity.moving import ROWS, Writer, contents, fill_table, owners, tablets
from cluster.trio import Sessions, eventually
from launch import Node, free_address

TABLETS = 16


def alter(session, factor):
    text = (
        "ALTER KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1':"
        f" {factor}}}"
    )
    session.execute(text, timeout=60)


def copies(node):
    return {len(owners(tablet)) for tablet in tablets(node)}


def factor(session):
    row = session.execute(
        "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'ks'"
    ).one()
    return row.replication["datacenter1"]


@pytest.mark.parametrize("level", [Level.ONE, Level.QUORUM, Level.ALL])
def test_replicas_come_and_go_at_every_level(trio, level):
    session = fill_table(trio, factor=1, tablets=TABLETS)
    other = trio.sessions[1]
    with Writer(session, level) as writer:
        for number in (2, 3, 2, 1):
            alter(other, number)
            assert copies(trio.nodes[0]) == {number}
            assert factor(other) == str(number)
            read = SimpleStatement("SELECT k FROM ks.t WHERE k = 1", consistency_level=level)
            assert len(session.execute(read).all()) >= ROWS // 100
    assert not writer.failures, writer.failures[:3]
    assert len(contents(session)) == ROWS + writer.rows


def test_each_replica_has_all_rows(trio):
    session = fill_table(trio, factor=1, tablets=TABLETS)
    alter(session, 2)
    alter(session, 3)
    for killed in (1, 2):
        trio.kill(killed)
    eventually(lambda: len(rows_at_one(session)) == ROWS)


def test_replicas_move_to_the_racks_of_a_list(trio):
    session = fill_table(trio, factor=1, tablets=TABLETS)
    other = trio.sessions[1]
    with Writer(session, Level.ALL) as writer:
        for racks in (["r2"], ["r2", "r0"], ["r0"], ["r1", "r0"], ["r0", "r1", "r2"]):
            alter(other, str(racks))
            addresses = {trio.nodes[int(rack[1])].address for rack in racks}
            assert all(set(owners(tablet)) == addresses for tablet in tablets(trio.nodes[0])), racks
            assert factor(other) == str(len(racks))
            if len(racks) == 2:
                with pytest.raises(InvalidRequest, match="by one rack at a time"):
                    alter(other, "['r1', 'r2']")
            read = SimpleStatement("SELECT k FROM ks.t WHERE k = 1", consistency_level=Level.ALL)
            assert len(session.execute(read).all()) >= ROWS // 100
    assert not writer.failures, writer.failures[:3]
    assert len(contents(session)) == ROWS + writer.rows
    with pytest.raises(InvalidRequest, match="RF can be changed at a time"):
        alter(session, "['r1']")
    for killed in (1, 2):
        trio.kill(killed)
    eventually(lambda: len(rows_at_one(session)) == ROWS + writer.rows)


def rows_at_one(session):
    return session.execute(
        SimpleStatement("SELECT k, c FROM ks.t", consistency_level=Level.ONE)
    ).all()


def test_alterations_of_replication_that_are_refused(trio):
    session = fill_table(trio, factor=1, tablets=TABLETS)
    with pytest.raises(InvalidRequest, match="Only one DC's RF can be changed at a time"):
        alter(session, 3)
    alter(session, 2)
    alter(session, 3)
    with pytest.raises(Exception, match="doesn't have enough nodes"):
        alter(session, 4)
    assert copies(trio.nodes[0]) == {3}


def test_a_change_that_waits_for_a_dead_node_is_taken_back(trio):
    session = fill_table(trio, factor=1, tablets=TABLETS)
    trio.kill(1)
    trio.wait_down(1)
    waits = session.execute_async(
        "ALTER KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': 2}"
    )
    eventually(lambda: copies(trio.nodes[0]) == {1, 2})
    assert factor(session) == "1"
    alter(trio.sessions[2], 1)
    waits.result()
    assert copies(trio.nodes[0]) == {1} and factor(session) == "1"


def test_a_change_goes_on_after_kill9_of_the_node_that_was_asked(trio):
    session = fill_table(trio, factor=1, tablets=64)
    asked = trio.sessions[1].execute_async(
        "ALTER KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'datacenter1': 2}"
    )
    eventually(lambda: 2 in copies(trio.nodes[0]))
    trio.kill(1)
    trio.nodes[1].start()
    eventually(lambda: copies(trio.nodes[0]) == {2}, 60)
    eventually(lambda: factor(session) == "2")
    assert len(contents(session)) == ROWS
    del asked


def test_tables_of_a_node_alone_get_their_replicas_when_others_join(tmp_path):
    address = free_address()
    nodes = [
        Node(
            shards=1,
            memory="256M",
            data_dir=tmp_path / f"n{n}",
            address=address if n == 0 else free_address(),
            config={"seeds": f"'{address}'", "rack": f"r{n}"},
        )
        for n in range(3)
    ]
    try:
        nodes[0].start()
        with Sessions(nodes) as sessions:
            session = sessions[0]
            session.execute(
                "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy',"
                " 'replication_factor': 3}"
            )
            session.execute("CREATE TABLE ks.t (k int, c int, v text, PRIMARY KEY (k, c))")
            for k in range(100):
                session.execute(
                    SimpleStatement(
                        f"INSERT INTO ks.t (k, c, v) VALUES ({k}, 0, 'x')",
                        consistency_level=Level.ONE,
                    )
                )
            assert copies(nodes[0]) == {1}
            for node in nodes[1:]:
                node.start()
            eventually(lambda: copies(nodes[0]) == {3}, 60)
            assert len(contents(sessions[2])) == 100
    finally:
        for node in nodes:
            node.close()
