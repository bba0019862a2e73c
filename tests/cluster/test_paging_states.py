"""Paging states on three nodes: each node accepts the states of the others, over key rotations and
restarts. Forged states are refused."""

import struct
import time

import pytest
from cluster.trio import NODES, Trio, eventually
from wire import PROTOCOL, Wire

ROTATION = 1  # seconds
ROWS = 40
TEXT = "SELECT ck FROM ks.t WHERE pk = 1"


@pytest.fixture
def rotating(tmp_path):
    """Three nodes that rotate their key all the time."""
    with Trio(tmp_path, paging_key_rotation_period_in_s=ROTATION) as it:
        it.keyspace()
        it.sessions[0].execute("CREATE TABLE ks.t (pk int, ck int, PRIMARY KEY (pk, ck))")
        it.sessions[0].execute("CREATE TABLE ks.other (pk int, ck int, PRIMARY KEY (pk, ck))")
        for ck in range(ROWS):
            it.sessions[0].execute(f"INSERT INTO ks.t (pk, ck) VALUES (1, {ck})")
        yield it


def read(node, state=None, text=TEXT, size=10):
    """Requests a page from one node with an arbitrary state. Returns the keys and the next
    state."""
    with Wire(node.address) as wire:
        answer = wire.query(text, page_size=size, paging_state=state)
        return [struct.unpack(">i", row[0])[0] for row in answer.rows()], answer.paging_state


def key(state):
    """The number of the key that has authenticated a state."""
    return struct.unpack_from("<I", state, 1)[0]


def check(trio, states):
    for state in states:
        for node in trio.nodes:
            assert read(node, state)[0] == list(range(10, 20)), f"{node.address}, key {key(state)}"


def test_every_node_takes_what_another_gave_out(rotating):
    states = [read(node)[1] for node in rotating.nodes]
    check(rotating, states)
    newest = max(map(key, states))
    for node in rotating.nodes:
        eventually(lambda: key(read(node)[1]) > newest)  # noqa: B023
    states += [read(node)[1] for node in rotating.nodes]
    assert len({key(state) for state in states}) > 1
    check(rotating, states)

    # All nodes are killed, and start again from disk.
    for n in range(NODES):
        rotating.kill(n)
    rotating.restart_all()
    for n in range(NODES):
        rotating.wait_up(n)
    check(rotating, states)
    assert all(key(read(node)[1]) >= max(map(key, states)) for node in rotating.nodes)


def test_no_page_fails_while_keys_change(rotating):
    """The node that creates a new key uses it at once. Other nodes receive it a little later, and
    may get such a state before."""
    wires = [Wire(node.address) for node in rotating.nodes]
    seen, end = set(), time.monotonic() + 5 * ROTATION
    while time.monotonic() < end:
        rows, state = [], None
        for page in range(ROWS):
            answer = wires[page % NODES].query(TEXT, page_size=3, paging_state=state)
            rows += [struct.unpack(">i", row[0])[0] for row in answer.rows()]
            state = answer.paging_state
            if state is None:
                break
            seen.add(key(state))
        assert rows == list(range(ROWS))
    for wire in wires:
        wire.__exit__()
    assert len(seen) > 2, seen


def test_a_node_that_was_away_takes_states_of_keys_that_it_has_missed(rotating):
    known = key(read(rotating.nodes[0])[1])
    rotating.kill(2)
    eventually(lambda: key(read(rotating.nodes[0])[1]) > known + 2)
    state = read(rotating.nodes[0])[1]
    rotating.nodes[2].start()
    assert read(rotating.nodes[2], state)[0] == list(range(10, 20))


def test_forged_paging_states_are_refused_everywhere(rotating):
    first = read(rotating.nodes[0])[1]
    eventually(lambda: key(read(rotating.nodes[1])[1]) > key(first))
    second = read(rotating.nodes[1])[1]
    forged = [
        first[:at] + bytes([first[at] ^ 1 << at % 8]) + first[at + 1 :]
        for at in range(0, len(first), 3)
    ]
    forged += [
        first[:1] + second[1:5] + first[5:],
        first[:21] + second[21:],
        first[:-1],
        first + b"\0",
        b"\2" + bytes(80),
    ]
    # The key and the position are valid, but for another query.
    others = [
        "SELECT ck FROM ks.t WHERE pk = 2",
        "SELECT ck FROM ks.t WHERE pk = 1 ORDER BY ck DESC",
        "SELECT ck FROM ks.other WHERE pk = 1",
        "SELECT ck FROM ks.t",
    ]
    for node in rotating.nodes:
        with Wire(node.address) as wire:
            for text, state in [(TEXT, state) for state in forged] + [
                (text, first) for text in others
            ]:
                answer = wire.query(text, page_size=10, paging_state=state)
                answer.is_error(PROTOCOL)
                assert answer.message == "Invalid value for the paging state", answer.message
            wire.works()
    check(rotating, [first, second])
