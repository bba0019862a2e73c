"""Large-data guardrails on replicas: if one replica has large data, writes cause warnings or are
refused, with any coordinator."""

import pytest
from cassandra import ConsistencyLevel as Level, InvalidRequest
from cassandra.query import SimpleStatement
from cluster.trio import NODES, Trio, eventually

KIB = 1024


@pytest.fixture
def limited(tmp_path):
    with Trio(
        tmp_path,
        compaction_large_partition_warning_threshold_mb=1,
        large_partition_fail_threshold_mb=2,
    ) as it:
        it.keyspace()
        it.sessions[0].execute(
            "CREATE TABLE ks.t (pk int, ck int, v blob, PRIMARY KEY (pk, ck)) WITH"
            " large_data_guardrails_enabled = true"
        )
        yield it


def write(trio, coordinator, ck, size=0, level=Level.ALL):
    """Writes a row of partition 1 and returns the warnings."""
    text = f"INSERT INTO ks.t (pk, ck, v) VALUES (1, {ck}, %s)"
    future = trio.sessions[coordinator].execute_async(
        SimpleStatement(text, consistency_level=level), (bytes(size),)
    )
    future.result()
    return future.warnings or []


def test_replicas_check_large_data(limited):
    """Replicas warn and refuse. Read repair and hints still deliver existing data."""
    for ck in range(2):
        write(limited, 0, ck, 600 * KIB)
    limited.nodes[1].flush("ks")
    soft = ["Large data guardrail: Soft limit violation for partition"]
    for coordinator in range(NODES):
        eventually(lambda: write(limited, coordinator, 90 + coordinator) == soft)  # noqa: B023
    # One node misses the writes that make the partition too large.
    limited.kill(2)
    limited.wait_down(2)
    for ck in range(2, 6):
        write(limited, 0, ck, 600 * KIB, Level.QUORUM)
    limited.nodes[0].flush("ks")
    limited.nodes[1].flush("ks")
    for coordinator in range(2):
        with pytest.raises(InvalidRequest, match="partition size .* exceeds hard limit 2097152"):
            write(limited, coordinator, 99, level=Level.QUORUM)
    limited.nodes[2].start()
    limited.wait_up(2)
    rows = SimpleStatement("SELECT ck FROM ks.t WHERE pk = 1", consistency_level=Level.ALL)
    eventually(lambda: {row.ck for row in limited.sessions[2].execute(rows)} >= set(range(6)))
    limited.nodes[2].flush("ks")
    eventually(
        lambda: {
            row.ck
            for row in limited.sessions[2].execute(
                SimpleStatement("SELECT ck FROM ks.t WHERE pk = 1", consistency_level=Level.ONE)
            )
        }
        >= set(range(6))
    )
    limited.sessions[0].execute("DELETE FROM ks.t WHERE pk = 1 BYPASS LARGE_DATA_GUARDRAILS")
    assert limited.sessions[0].execute(rows).all() == []
