"""Requests that change the cluster, and moves of tablets, as tasks: on every node, also if the node
that began them is gone."""

import json

from cluster.elasticity.moving import (
    Decommission,
    admin,
    contents,
    fill_table,
    host_id,
    members,
)
from cluster.trio import eventually, rest

MANY = 128


def tasks(node, module):
    return rest(node, f"/task_manager/list_module_tasks/{module}")


def wait(node, task):
    return json.loads(admin(node, "tasks", "wait", task, "--json").stdout)


def requests_of(session, host):
    rows = session.execute("SELECT * FROM system.topology_requests")
    return [row for row in rows if str(row.host_id) == host]


def test_a_decommission_is_a_task_of_all_nodes(trio):
    session = fill_table(trio, factor=2, tablets=MANY)
    leaves, host = trio.nodes[2], host_id(trio.nodes[2])
    leaving = Decommission(leaves)

    def known():
        found = [task for task in tasks(trio.nodes[0], "node_ops") if task["state"] == "running"]
        return found[0] if found else None

    eventually(lambda: known() is not None)
    task = known()
    assert (task["type"], task["entity"], task["is_abortable"]) == ("decommission", host, True)
    eventually(lambda: tasks(trio.nodes[1], "tablets"))
    shown = admin(trio.nodes[1], "tasks", "list", "node_ops")
    assert task["task_id"] in shown.stdout and "decommission" in shown.stdout
    status = admin(trio.nodes[1], "tasks", "status", task["task_id"])
    assert f"entity: {host}\n" in status.stdout
    late = admin(trio.nodes[1], "tasks", "wait", task["task_id"], "--timeout", 0)
    assert late.returncode == 124 and "is still running" in late.stderr
    topology = {str(row.host_id): row for row in session.execute("SELECT * FROM system.topology")}
    assert topology[host].node_state == "decommissioning"
    assert str(topology[host].request_id) == task["task_id"]

    # Aborted by another node.
    aborted = admin(trio.nodes[0], "tasks", "abort", task["task_id"])
    assert aborted.returncode == 0, aborted.stderr
    assert leaving.result().returncode != 0
    ended = wait(trio.nodes[1], task["task_id"])
    assert (ended["state"], ended["error"]) == ("failed", "the request was cancelled")
    quiet = admin(trio.nodes[1], "tasks", "wait", task["task_id"], "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (123, "", "")
    again = admin(trio.nodes[0], "tasks", "abort", task["task_id"])
    assert again.returncode != 0 and "cannot be aborted" in again.stderr

    leaving = Decommission(leaves)
    eventually(lambda: known() is not None)
    ended = wait(trio.nodes[1], known()["task_id"])
    assert (ended["state"], ended["error"]) == ("done", "")
    assert leaving.result().returncode == 0
    rows = {str(row.id): row for row in requests_of(session, host)}
    last = rows[ended["id"]]
    assert (last.request_type, last.done, last.error) == ("leave", True, None)
    assert last.start_time < last.end_time
    # Nodes that restart know them, too.
    trio.nodes[0].stop()
    trio.nodes[0].start()
    eventually(lambda: len(members(trio.nodes[0])) == 2)
    assert {task["task_id"] for task in tasks(trio.nodes[0], "node_ops")} >= set(rows)
    assert len(contents(trio.sessions[1])) > 0


def test_moves_and_replications_are_tasks(trio):
    session = fill_table(trio, factor=1, tablets=MANY)
    session.execute(
        "ALTER KEYSPACE ks WITH replication ="
        " {'class': 'NetworkTopologyStrategy', 'datacenter1': 2}"
    )
    ended = [task for task in tasks(trio.nodes[1], "global_topology_requests")]
    assert [(task["type"], task["keyspace"], task["state"]) for task in ended] == [
        ("keyspace_rf_change", "ks", "done")
    ]
    modules = admin(trio.nodes[0], "tasks", "modules").stdout.split()
    assert modules == ["compaction", "global_topology_requests", "node_ops", "tablets"]
    for path in ("list_module_tasks/nothing", f"task_status/{host_id(trio.nodes[0])}"):
        code, why = trio.nodes[0].admin("GET", f"/task_manager/{path}")
        assert code == 404 and "not found" in why
    code, why = trio.nodes[0].admin("GET", "/task_manager/task_status/x")
    assert code == 400 and "x is not the id of a task" in why
