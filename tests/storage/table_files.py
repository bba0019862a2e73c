"""The files of a node's tables, a keyspace for them, and the statements in the specs for
Cassandra's writer."""

import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Sstables that Cassandra's writer made from the statements in SPECS.
FIXTURES = ROOT / "crates/sstable/tests/fixtures"
SPECS = pathlib.Path(__file__).with_name("specs")
KEYSPACE = (
    "CREATE KEYSPACE k"
    " WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
)


def table_dir(node, keyspace, table):
    found = list((node.data_dir / "data" / keyspace).glob(f"{table}-*"))
    assert len(found) <= 1, found
    return found[0] if found else None


def refresh(node, keyspace, table):
    """Requests a refresh. Returns (status, answer)."""
    return node.admin("POST", f"/storage_service/sstables/{keyspace}?cf={table}")


def upload(node, keyspace, table, files):
    """Copies files into the upload directory of a table. A first refresh without files creates
    it."""
    status, answer = refresh(node, keyspace, table)
    assert status == 200, answer
    to = table_dir(node, keyspace, table) / "upload"
    for file in files:
        shutil.copy(file, to / file.name)
    return to


def statements(spec):
    """Expands a spec: (the table's name, its CREATE TYPEs and CREATE TABLE, the writes). All TTLs
    become one second, because those of the fixtures expired long ago."""
    lines = [line for line in spec.splitlines() if not line.strip().startswith("--")]
    creates, writes = [], []
    for statement in (s.strip() for s in "\n".join(lines).split(";")):
        words = statement.split()
        if not words or words[0].upper() == "NOW":
            continue
        if words[0].upper() == "CREATE":
            creates.append(statement)
        elif words[0].upper() == "REPEAT":
            body = statement.split(None, 2)[2].replace("{pad}", "abcdefghijklmnopqrst" * 10)
            writes += [body.replace("{i}", str(i)) for i in range(int(words[1]))]
        else:
            at = [i for i, word in enumerate(words) if word.upper() == "TTL"]
            for i in at:
                statement = statement.replace(f"TTL {words[i + 1]}", "TTL 1")
            writes.append(statement)
    table = (
        next(s for s in creates if s.split()[1].upper() == "TABLE")
        .split()[2]
        .split("(")[0]
        .split(".")[1]
    )
    return table, creates, writes
