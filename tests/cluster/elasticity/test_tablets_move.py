"""Tablets that move between three nodes, as whole files and as mutations, beside clients, over kill
-9 of the source and of the target."""

import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cassandra import ConsistencyLevel as Level
from cassandra.query import SimpleStatement
from cluster.elasticity.moving import (
    ROWS, Writer, admin, contents, fill_table, host_id, owners, tablets,
)
from cluster.trio import eventually, rest
from launch import binary


def session_dirs(trio):
    return [
        str(path) for node in trio.nodes for path in node.data_dir.glob("data/ks/t-*/streaming/*")
    ]


def set_all(trio, **settings):
    """Changes live settings of all nodes."""
    for n in range(len(trio.nodes)):
        for name, value in settings.items():
            trio.sessions[n].execute(
                f"UPDATE system.config SET value = '{value}' WHERE name = '{name}'"
            )


@pytest.fixture
def filled(trio):
    """The session to the first node of three that share a table of four tablets. Tablets move only
    by request."""
    off = admin(trio.nodes[0], "balancing", "off")
    assert off.returncode == 0, off.stderr
    session = fill_table(trio, factor=1, tablets=4)
    trio.nodes[0].flush("ks")
    return session


@pytest.fixture(params=["files", "mutations"])
def way(request, trio):
    """How tablets are streamed."""
    set_all(trio, enable_file_stream=str(request.param == "files").lower())
    return request.param


def move(node, tablet, target):
    done = admin(node, "move-tablet", "ks", "t", tablet["last_token"], owners(tablet)[0], target)
    assert done.returncode == 0, done.stderr


def test_tablets_move_while_clients_write(trio, filled, way):
    with Writer(filled) as writer:
        for tablet in tablets(trio.nodes[0]):
            target = next(node.address for node in trio.nodes if node.address != owners(tablet)[0])
            move(trio.nodes[0], tablet, target)
            moved = next(
                one for one in tablets(trio.nodes[0]) if one["last_token"] == tablet["last_token"]
            )
            assert owners(moved) == [target]
    assert not writer.failures, writer.failures[:3]
    assert len(contents(filled)) == ROWS + writer.rows
    assert sum(node.metric("scylla_streaming_received_tablets") for node in trio.nodes) == 4
    incoming, outgoing = (
        sum(node.metric(f"scylla_streaming_total_{way}_bytes") for node in trio.nodes)
        for way in ("incoming", "outgoing")
    )
    assert incoming == outgoing > 0
    logged = "".join(node.log_path.read_text() for node in trio.nodes).count(
        "a tablet is streamed as mutations"
    )
    assert logged == {"files": 0, "mutations": 4}[way]
    eventually(lambda: session_dirs(trio) == [])


def damage(trio, n):
    """Changes a byte in the data of a node's sstables."""
    trio.nodes[n].flush("ks")
    trio.kill(n)
    for path in trio.nodes[n].data_dir.glob("data/ks/t-*/me-*-Data.db"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    trio.nodes[n].start()


def test_a_damaged_replica_is_replaced_by_the_others(trio, way):
    """The replica that moves is damaged. The tablet is built from its other replica instead."""
    off = admin(trio.nodes[0], "balancing", "off")
    assert off.returncode == 0, off.stderr
    session = fill_table(trio, factor=2, tablets=1)
    before = contents(session)
    (tablet,) = tablets(trio.nodes[0])
    damaged = next(n for n, node in enumerate(trio.nodes) if node.address == owners(tablet)[0])
    target = next(node for node in trio.nodes if node.address not in owners(tablet))
    damage(trio, damaged)
    set_all(trio, enable_file_stream=str(way == "files").lower())
    move(target, tablet, target.address)
    assert set(owners(tablets(target)[0])) == {target.address, *owners(tablet)[1:]}
    assert contents(trio.sessions[trio.nodes.index(target)]) == before
    logged = "".join(node.log_path.read_text() for node in trio.nodes)
    assert f"the tablet is damaged on node {host_id(trio.nodes[damaged])}" in logged


def test_a_move_that_cannot_end_is_cancelled(trio):
    """The only replica of a tablet is damaged, so that it cannot be moved."""
    off = admin(trio.nodes[0], "balancing", "off")
    assert off.returncode == 0, off.stderr
    fill_table(trio, factor=1, tablets=1)
    (tablet,) = tablets(trio.nodes[0])
    source = next(n for n, node in enumerate(trio.nodes) if node.address == owners(tablet)[0])
    target = trio.nodes[(source + 1) % 3]
    damage(trio, source)
    token = tablet["last_token"]
    nothing = admin(target, "cancel-move", "ks", "t", token)
    assert nothing.returncode != 0 and "the tablet is not moving" in nothing.stderr
    with ThreadPoolExecutor(1) as pool:
        words = ("move-tablet", "ks", "t", token, trio.nodes[source].address, target.address)
        moving = pool.submit(admin, target, *words)
        # Also the node that neither sends nor receives knows it.
        for node in (target, trio.nodes[(source + 2) % 3]):
            for path in ("/cluster/moves", "/task_manager/list_module_tasks/tablets"):
                eventually(lambda: "is damaged on node" in str(rest(node, path)))
        cancelled = admin(trio.nodes[source], "cancel-move", "ks", "t", token)
        assert cancelled.returncode == 0, cancelled.stderr
        moved = moving.result()
    assert moved.returncode != 0 and "was rolled back" in moved.stderr
    assert owners(tablets(target)[0]) == owners(tablet)
    assert rest(target, "/cluster/moves") == []


def large_tablet(trio, session):
    """Writes 4 MB into the first tablet, and returns it."""
    tablet = tablets(trio.nodes[0])[0]
    token = session.prepare("SELECT token(k) FROM ks.t WHERE k = ? LIMIT 1")
    own = next(
        k for k in range(100) if session.execute(token, (k,)).one()[0] <= int(tablet["last_token"])
    )
    insert = session.prepare("INSERT INTO ks.t (k, c, v) VALUES (?, ?, ?)")
    for c in range(40):
        session.execute(insert, (own, 10_000 + c, os.urandom(50_000).hex()))
    return tablet


def test_streaming_keeps_to_its_rate(trio, filled, way):
    tablet = large_tablet(trio, filled)
    source = owners(tablet)[0]
    set_all(trio, stream_io_throughput_mb_per_sec=1)
    began = time.monotonic()
    target = next(node.address for node in trio.nodes if node.address != source)
    move(trio.nodes[0], tablet, target)
    sent = sum(node.metric("scylla_streaming_total_outgoing_bytes") for node in trio.nodes)
    least = sent / 2**20 - 2  # The first bytes of each direction wait for nothing.
    assert time.monotonic() - began >= least >= 0.5, (sent, least)


def test_a_new_replica_has_the_rows_in_its_cache_that_the_old_one_reads_often(trio):
    """100 of 2,000 rows are read often."""
    off = admin(trio.nodes[0], "balancing", "off")
    assert off.returncode == 0, off.stderr
    trio.keyspace(factor=1)
    session = trio.sessions[0]
    session.execute(
        "CREATE TABLE ks.t (k int PRIMARY KEY, v int)"
        " WITH tablets = {'min_tablet_count': 1, 'max_tablet_count': 1}"
    )
    insert = session.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)")
    select = session.prepare("SELECT v FROM ks.t WHERE k = ?")
    for k in range(2000):
        session.execute(insert, (k, k))
    (tablet,) = tablets(trio.nodes[0])
    source = next(node for node in trio.nodes if node.address == owners(tablet)[0])
    target = next(node for node in trio.nodes if node.address != owners(tablet)[0])
    source.flush("ks")
    read_all = lambda: [session.execute(select, (k,)).one().v for k in range(100)]  # noqa: E731
    for _ in range(3):
        assert read_all() == list(range(100))
    move(trio.nodes[0], tablet, target.address)
    assert target.metric("scylla_streaming_hot_rows_read") == 100
    before = target.metric("scylla_cache_row_misses")
    assert read_all() == list(range(100))
    assert target.metric("scylla_cache_row_misses") - before < 50  # Those of system tables.


def test_replicas_are_added_and_removed(trio, filled):
    tablet = tablets(trio.nodes[0])[0]
    source, token = owners(tablet)[0], tablet["last_token"]
    others = [node.address for node in trio.nodes if node.address != source]
    before = contents(filled)
    done = admin(trio.nodes[1], "add-replica", "ks", "t", token, others[0])
    assert done.returncode == 0, done.stderr
    assert sorted(owners(tablets(trio.nodes[1])[0])) == sorted([source, others[0]])
    assert contents(filled) == before
    done = admin(trio.nodes[2], "del-replica", "ks", "t", token, source)
    assert done.returncode == 0, done.stderr
    assert owners(tablets(trio.nodes[1])[0]) == [others[0]]
    assert contents(filled) == before

    for words, why in [
        (("move-tablet", "ks", "t", token, source, others[1]), "has no replica of the tablet"),
        (("move-tablet", "ks", "nix", token, others[0], others[1]),
            "Can't find a column family nix"),
        (("move-tablet", "ks", "t", token, others[0], "10.9.9.9"), "is not known"),
        (("add-replica", "ks", "t", token, others[1], "--shard", "9"), "shards"),
        (("del-replica", "ks", "t", token, others[0]),
            "only one replica can be added or removed at a time"),
    ]:
        refused = admin(trio.nodes[0], *words)
        assert refused.returncode != 0 and why in refused.stderr, (words, refused.stderr)


def test_operators_see_a_tablet_that_moves(trio, filled, way):
    tablet = large_tablet(trio, filled)
    source = next(node for node in trio.nodes if node.address == owners(tablet)[0])
    target = next(node for node in trio.nodes if node is not source)
    witness = next(node for node in trio.nodes if node not in (source, target))
    for node in trio.nodes:
        done = admin(node, "setstreamthroughput", "1")
        assert done.returncode == 0, done.stderr
    assert "1 MiB/s" in admin(source, "getstreamthroughput").stdout
    assert rest(source, "/v2/config/stream_io_throughput_mb_per_sec") == 1
    quiet = []
    asked = [
        threading.Thread(target=move, args=(witness, tablet, target.address)),
        threading.Thread(
            target=lambda: quiet.append(witness.admin("POST", "/storage_service/quiesce_topology"))
        ),
    ]
    asked[0].start()
    eventually(lambda: rest(target, "/stream_manager/") and rest(source, "/stream_manager/"))
    asked[1].start()
    (shown,) = rest(witness, "/cluster/moves")
    assert (shown["keyspace"], shown["table"], shown["last_token"]) == (
        "ks",
        "t",
        tablet["last_token"],
    )
    assert (shown["from"], shown["to"], shown["stage"]) == (
        [source.address],
        [target.address],
        "streaming",
    )
    words = {"files": "%)", "mutations": "as mutations"}[way]
    assert (
        words
        in admin(target, "netstats").stdout.split(f"Receiving from {source.address}: ks.t tablet")[
            1
        ]
    )
    assert (
        words
        in admin(source, "netstats").stdout.split(f"Sending to {target.address}: ks.t tablet")[1]
    )
    shards = [
        line
        for line in target.metrics().splitlines()
        if line.startswith("scylla_streaming_finished_percentage{")
    ]
    finished = min(float(line.rsplit(" ", 1)[1]) for line in shards)
    assert finished < 1 if way == "files" else finished == 1
    assert not quiet
    watched = subprocess.Popen(
        [str(binary()), "admin", "--api", f"{witness.address}:10000", "tablets", "--watch"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watched.stdout.readline().startswith(
        f"ks.t tablet 0: {source.address} -> {target.address}: streaming"
    )
    for node in trio.nodes:
        assert admin(node, "setstreamthroughput", "0").returncode == 0
    for thread in asked:
        thread.join()
    assert [status for status, _ in quiet] == [200]
    assert "no tablet is moving" in watched.communicate(timeout=60)[0]
    assert rest(witness, "/cluster/moves") == []
    eventually(
        lambda: admin(target, "netstats").stdout
        == "Mode: NORMAL\nNot sending or receiving any tablets.\n"
    )
    refused = witness.admin("POST", "/storage_service/stream_throughput?value=fast")
    assert refused[0] == 400 and "fast" in refused[1], refused


def test_a_dropped_table_is_removed_at_once_while_tablets_leave(trio, filled):
    """Files of tablets that have left are removed in the background."""
    filled.execute(
        "CREATE KEYSPACE three WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'replication_factor': 3}"
    )
    node = trio.nodes[0]
    for n, tablet in enumerate(tablets(node)):
        filled.execute(f"CREATE TABLE three.t{n} (k int PRIMARY KEY)")
        filled.execute(
            SimpleStatement(f"INSERT INTO three.t{n} (k) VALUES (1)", consistency_level=Level.ALL)
        )
        source = next(at for at, one in enumerate(trio.nodes) if one.address == owners(tablet)[0])
        target = trio.nodes[(source + 1) % 3].address
        move(node, tablet, target)
        trio.sessions[source].execute(f"DROP TABLE three.t{n}")
        names = [
            snapshot["key"] for snapshot in rest(trio.nodes[source], "/storage_service/snapshots")
        ]
        assert any(name.endswith(f"-t{n}") for name in names), names


@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_move_survives_kill9(trio, filled, way, victim):
    """The move is repeated until it succeeds. No row is lost, and no file is left. It is so slow
    that a node is killed while it streams."""
    tablet = large_tablet(trio, filled)
    set_all(trio, stream_io_throughput_mb_per_sec=1)
    source = next(n for n, node in enumerate(trio.nodes) if node.address == owners(tablet)[0])
    target, witness = (n for n in range(3) if n != source)
    before = contents(filled)
    path = (f"/storage_service/tablets/move?ks=ks&table=t&token={tablet['last_token']}"
            f"&src_host={trio.nodes[source].address}&dst_host={trio.nodes[target].address}")
    asked = threading.Thread(target=trio.nodes[witness].admin, args=("POST", path))
    asked.start()
    killed = {"source": source, "target": target}[victim]
    eventually(lambda: any("/in-" in path for path in session_dirs(trio)))
    for _ in range(3):
        trio.kill(killed)
        trio.nodes[killed].start()
    asked.join()
    eventually(lambda: owners(tablets(trio.nodes[witness])[0]) == [trio.nodes[target].address])
    for n in range(3):
        eventually(lambda: contents(trio.sessions[n]) == before)  # noqa: B023
    eventually(lambda: session_dirs(trio) == [])
