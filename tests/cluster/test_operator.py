"""The operator's view of three nodes: `messina admin`, the REST paths that ScyllaDB's tools read,
and system tables."""

import json
import shutil
import subprocess

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement
from cluster.trio import NODES, eventually, rest
from launch import binary


@pytest.fixture(scope="module")
def filled(quiet):
    """A keyspace with replication factor 3, and one with replication factor 1."""
    quiet.keyspace("ks")
    quiet.keyspace("single", factor=1)
    session = quiet.sessions[0]
    session.execute("CREATE TABLE ks.t (k int, c text, v text, PRIMARY KEY ((k, c)))")
    session.execute("CREATE TABLE single.t (k int PRIMARY KEY, v text)")
    for k in range(100):
        session.execute(
            SimpleStatement(
                f"INSERT INTO ks.t (k, c, v) VALUES ({k}, 'c', '{'x' * 1000}')",
                consistency_level=ConsistencyLevel.ALL,
            )
        )
        session.execute(f"INSERT INTO single.t (k, v) VALUES ({k}, 'x')")
    for node in quiet.nodes:
        node.flush("ks")
    return quiet


def admin(node, *arguments):
    done = subprocess.run(
        [binary(), "admin", "--api", f"http://{node.address}:10000", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ids(trio):
    return {
        node.address: str(
            trio.sessions[n].execute("SELECT host_id FROM system.local").one().host_id
        )
        for n, node in enumerate(trio.nodes)
    }


def test_status_shows_every_node(filled):
    known = ids(filled)
    for node in filled.nodes:
        eventually(lambda: all(one["load"] for one in rest(node, "/cluster/nodes")))
        lines = [line.split() for line in admin(node, "status").splitlines()]
        shown = {line[1]: line for line in lines if line and line[0] == "UN"}
        assert set(shown) == set(known)
        for n, other in enumerate(filled.nodes):
            assert known[other.address] in shown[other.address] and f"r{n}" in shown[other.address]
    nodes = json.loads(admin(filled.nodes[0], "--json", "status"))
    assert [one["shards"] for one in sorted(nodes, key=lambda one: one["rack"])] == [1, 2, 1]
    assert all(abs(one["clock_ahead_us"]) < 500_000 for one in nodes if not one["own"])


def test_rest_paths_of_other_tools(filled):
    known = ids(filled)
    addresses = sorted(known)
    for n, node in enumerate(filled.nodes):
        get = lambda path: rest(node, path)  # noqa: B023, E731
        assert (
            sorted(get("/gossiper/endpoint/live")) == addresses
            and get("/gossiper/endpoint/down") == []
        )
        assert {one["key"]: one["value"] for one in get("/storage_service/host_id")} == known
        assert get("/storage_service/hostid/local") == known[node.address]
        assert (
            get("/failure_detector/count/endpoint/up") == NODES
            and get("/failure_detector/count/endpoint/down") == 0
        )
        assert {
            one["key"]: one["value"] for one in get("/failure_detector/simple_states")
        } == dict.fromkeys(addresses, "UP")
        eventually(lambda: len(get("/storage_service/load_map")) == NODES)
        for other, at in enumerate(filled.nodes):
            assert (
                get(f"/snitch/rack?host={at.address}") == f"r{other}"
                and get(f"/snitch/datacenter?host={known[at.address]}") == "datacenter1"
            )
        assert get("/storage_service/nodes/joining") == get("/storage_service/nodes/leaving") == []
        (version,) = get("/storage_proxy/schema_versions")
        assert sorted(version["value"]) == addresses and version["key"] == get(
            "/storage_service/schema_version"
        )
        gossip = {
            one["addrs"]: {
                state["application_state"]: state["value"] for state in one["application_state"]
            }
            for one in get("/failure_detector/endpoints")
        }
        assert {address: states[12] for address, states in gossip.items()} == known and gossip[
            node.address
        ][4] == f"r{n}"


def test_tokens_and_tablets(filled):
    session, node = filled.sessions[0], filled.nodes[0]
    ring = {one["key"]: one["value"] for one in rest(node, "/storage_service/tokens_endpoint")}
    for n, other in enumerate(filled.nodes):
        own = filled.sessions[n].execute("SELECT tokens FROM system.local").one().tokens
        assert sorted(rest(node, f"/storage_service/tokens/{other.address}")) == sorted(own)
        assert {token for token, address in ring.items() if address == other.address} == set(own)
    for n in (1, 2):
        tokens = (
            session.execute(
                f"SELECT tokens FROM system.peers WHERE peer = '{filled.nodes[n].address}'"
            )
            .one()
            .tokens
        )
        assert set(tokens) == set(rest(filled.nodes[n], "/storage_service/tokens"))
    assert len(ring) == NODES * 64 == len(admin(node, "ring").splitlines())

    hosts = {host: address for address, host in ids(filled).items()}
    for keyspace, copies in (("ks", 3), ("single", 1)):
        rows = list(
            session.execute(
                "SELECT last_token, replicas FROM system.tablets WHERE table_name = 't' AND"
                f" keyspace_name = '{keyspace}' ALLOW FILTERING"
            )
        )
        known = {
            str(row.last_token): {(hosts[str(host)], shard) for host, shard in row.replicas}
            for row in rows
        }
        for each in filled.nodes:
            shown = rest(each, f"/cluster/tablets/{keyspace}?cf=t")
            assert {
                one["last_token"]: {(copy["address"], copy["shard"]) for copy in one["replicas"]}
                for one in shown
            } == known
            ranges = rest(each, f"/storage_service/describe_ring/{keyspace}?table=t")
            assert {one["end_token"]: set(one["endpoints"]) for one in ranges} == {
                token: {address for address, _ in owners} for token, owners in known.items()
            }
        assert all(len(owners) == copies for owners in known.values())
        assert (
            len(admin(node, "tablets", keyspace, "t").splitlines())
            == len(rows)
            == len(admin(node, "ring", keyspace, "t").splitlines())
        )
        owns = {
            one["key"]: float(one["value"])
            for one in rest(node, f"/storage_service/ownership/{keyspace}")
        }
        assert len(owns) == NODES and abs(sum(owns.values()) - copies) < 1e-4
    assert all(
        abs(float(one["value"]) - 1 / NODES) < 1e-6
        for one in rest(node, "/storage_service/ownership")
    )


def test_getendpoints_names_the_replicas_of_a_key(filled):
    session, node = filled.sessions[0], filled.nodes[0]
    assert set(admin(node, "getendpoints", "ks", "t", "7:c").split()) == {
        one.address for one in filled.nodes
    }
    rows = list(
        session.execute(
            "SELECT last_token, replicas FROM system.tablets WHERE table_name = 't' AND"
            " keyspace_name = 'single' ALLOW FILTERING"
        )
    )
    hosts = {host: address for address, host in ids(filled).items()}
    for k in range(20):
        token = session.execute(f"SELECT token(k) AS t FROM single.t WHERE k = {k}").one().t
        owner = next(
            row for row in sorted(rows, key=lambda row: row.last_token) if token <= row.last_token
        )
        for each in filled.nodes:
            assert rest(each, f"/storage_service/natural_endpoints/single?cf=t&key={k}") == [
                hosts[str(owner.replicas[0][0])]
            ]
    for path, what in (("ks?cf=t&key=7", "2 columns"), ("single?cf=t&key=x", "x")):
        status, body = node.admin("GET", f"/storage_service/natural_endpoints/{path}")
        assert status == 400 and what in body


def test_system_tables(filled):
    known = ids(filled)
    for n, node in enumerate(filled.nodes):
        session = filled.sessions[n]
        peers = {row.peer: row for row in session.execute("SELECT * FROM system.peers")}
        assert {address: str(row.host_id) for address, row in peers.items()} == {
            address: host for address, host in known.items() if address != node.address
        }
        assert all(
            row.rack == f"r{other}"
            for other, at in enumerate(filled.nodes)
            for row in [peers.get(at.address)]
            if row
        )
        peers_v2 = {
            row.peer: (row.native_address, row.native_port)
            for row in session.execute("SELECT * FROM system.peers_v2")
        }
        assert peers_v2 == {address: (address, 9042) for address in peers}
        status = {row.peer: row for row in session.execute("SELECT * FROM system.cluster_status")}
        assert set(status) == set(known) and all(
            row.up and row.status == "NORMAL" and row.tokens == 64 for row in status.values()
        )
        eventually(
            lambda: all(
                row.load and int(row.load) > 0
                for row in session.execute("SELECT load FROM system.cluster_status")
            )
        )
        load = {str(row.node): row for row in session.execute("SELECT * FROM system.load_per_node")}
        assert set(load) == set(known.values()) and all(
            row.up and row.tablets_allocated > 0 for row in load.values()
        )
        ring = list(
            session.execute(
                "SELECT endpoint, start_token FROM system.token_ring WHERE keyspace_name = 'ks' AND"
                " table_name = 't'"
            )
        )
        tablets = rest(node, "/cluster/tablets/ks?cf=t")
        assert len(ring) == NODES * len(tablets) and {row.endpoint for row in ring} == set(known)
    versions = {
        row.schema_version
        for n in range(NODES)
        for row in filled.sessions[n].execute("SELECT schema_version FROM system.local")
    }
    assert len(versions) == 1


def test_a_node_that_is_dead_is_shown_so(trio):
    third = trio.nodes[2]
    trio.kill(2)
    trio.wait_down(2)
    for n in (0, 1):
        node = trio.nodes[n]
        assert rest(node, "/gossiper/endpoint/down") == [third.address]
        assert f"DN {third.address}" in admin(node, "status")
        assert "UNREACHABLE on " + third.address in admin(node, "describecluster")
        up = {
            row.peer: row.up
            for row in trio.sessions[n].execute("SELECT peer, up FROM system.cluster_status")
        }
        assert up == {each.address: each is not third for each in trio.nodes}
    third.start()
    trio.wait_up(2)
    for node in trio.nodes:
        eventually(
            lambda: len(rest(node, "/storage_proxy/schema_versions")) == 1
            and not rest(node, "/gossiper/endpoint/down")
        )
    assert "UNREACHABLE" not in admin(trio.nodes[0], "describecluster")


def test_refresh_refuses_what_other_nodes_own(filled):
    """All or nothing: rows of tablets on other nodes must not be dropped silently."""
    session = filled.sessions[0]
    session.execute("CREATE TABLE single.lost (k int PRIMARY KEY, v text)")
    for k in range(100):
        session.execute(f"INSERT INTO single.lost (k, v) VALUES ({k}, 'x')")
    count = lambda: session.execute("SELECT count(*) FROM single.lost").one()[0]  # noqa: E731
    directories = []
    for node in filled.nodes:
        admin(node, "snapshot", "single", "lost", "--tag", "before")
        (directory,) = (node.data_dir / "data" / "single").glob("lost-*")
        directories.append(directory)
    session.execute("TRUNCATE single.lost")
    (directories[0] / "upload").mkdir(exist_ok=True)
    for source in directories:
        for path in (source / "snapshots" / "before").glob("m*-big-*"):
            shutil.copy(path, directories[0] / "upload")
    uploaded = sorted(path.name for path in (directories[0] / "upload").iterdir())
    done = subprocess.run(
        [
            binary(),
            "admin",
            "--api",
            f"http://{filled.nodes[0].address}:10000",
            "refresh",
            "single",
            "lost",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "belong to no tablet of this node" in done.stderr, (
        done.stdout,
        done.stderr,
    )
    assert (
        sorted(path.name for path in (directories[0] / "upload").iterdir()) == uploaded
        and count() == 0
    )
    # The correct way: every node loads its own snapshot.
    for path in (directories[0] / "upload").iterdir():
        path.unlink()
    for node, directory in zip(filled.nodes, directories, strict=True):
        (directory / "upload").mkdir(exist_ok=True)
        for path in (directory / "snapshots" / "before").glob("m*-big-*"):
            shutil.copy(path, directory / "upload")
        admin(node, "refresh", "single", "lost")
    assert count() == 100


def test_snapshots_of_dropped_tables_are_removed(filled):
    node = filled.nodes[0]
    filled.sessions[0].execute("CREATE TABLE ks.gone (k int PRIMARY KEY)")
    filled.sessions[0].execute(
        SimpleStatement(
            "INSERT INTO ks.gone (k) VALUES (1)", consistency_level=ConsistencyLevel.ALL
        )
    )
    admin(node, "snapshot", "ks", "gone", "--tag", "kept")
    filled.sessions[0].execute("DROP TABLE ks.gone")
    names = lambda: {one["key"] for one in rest(node, "/storage_service/snapshots")}  # noqa: E731
    assert "kept" in names()
    admin(node, "clearsnapshot", "ks", "gone", "--tag", "kept")
    assert "kept" not in names()
    (dropped,) = [
        name for name in names() if name.startswith("dropped-") and name.endswith("-gone")
    ]
    admin(node, "clearsnapshot", "--tag", dropped)
    assert dropped not in names()
    assert not list(
        (node.data_dir / "data" / "ks").glob("gone-*")
    ), "its directory goes with the last one"
    done = subprocess.run(
        [
            binary(),
            "admin",
            "--api",
            f"http://{node.address}:10000",
            "clearsnapshot",
            "--tag",
            "nope",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "there is no snapshot nope" in done.stderr
