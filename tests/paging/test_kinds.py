"""Pages that end at every kind of fragment, forward and backward, compared with a naive model of
the table.

A page ends behind a row that lives, a dead row, either end of a range deletion, a partition that is
nothing but a deletion or a static row. With page sizes from one row and tombstone limits from one
tombstone, every place of the table is the end of some page.
"""

import random

import pytest
from cassandra.query import SimpleStatement
from database import Database
from launch import Node

KEYS, SIDE = range(4), range(6)
COLUMNS = "pk, a, b, s, v"
SHAPES = {
    "partition": ("WHERE pk = 1", lambda row: row[0] == 1),
    "prefix": ("WHERE pk = 1 AND a = 3", lambda row: row[0] == 1 and row[1] == 3),
    "slice": ("WHERE pk = 1 AND a >= 1 AND a < 5",
        lambda row: row[0] == 1 and row[1] is not None and 1 <= row[1] < 5),
    "slice of pairs": ("WHERE pk = 1 AND (a, b) > (1, 3)",
        lambda row: row[0] == 1 and row[1] is not None and (row[1], row[2]) > (1, 3)),
    "several prefixes": ("WHERE pk = 1 AND a IN (1, 2, 4)",
        lambda row: row[0] == 1 and row[1] in (1, 2, 4)),
    "several partitions": ("WHERE pk IN (2, 1, 9)", lambda row: row[0] in (1, 2)),
    "scan": ("", lambda row: True),
    "token range": ("WHERE token(pk) > -9000000000000000000", lambda row: True),
}


class Model:
    """The contents of the table, as a reader sees them."""

    def __init__(self):
        self.rows, self.statics = {}, {}

    def delete(self, pk, doomed):
        for key in [key for key in self.rows if key[0] == pk and doomed(key[1], key[2])]:
            del self.rows[key]

    def seen(self, wanted):
        """Rows by partition, in the table's order; a partition with a static row and no rows is one
        row."""
        found = {}
        for pk in KEYS:
            own = sorted(
                (key for key in self.rows if key[0] == pk), key=lambda key: (key[1], -key[2])
            )
            rows = [(*key, self.statics.get(pk), self.rows[key]) for key in own]
            if not rows and pk in self.statics:
                rows = [(pk, None, None, self.statics[pk], None)]
            found[pk] = [row for row in rows if wanted(row)]
        return found


def change(rng, model, table, number):
    """A statement, applied to the model."""
    pk, a, b = rng.choice(KEYS), rng.choice(SIDE), rng.choice(SIDE)
    kind = rng.choices(["row", "row deletion", "prefix", "range", "pairs", "static",
        "static deletion", "partition"],
                       [14, 3, 1, 2, 2, 1, 0.5, 0.3])[0]
    using = f"USING TIMESTAMP {number}"
    if kind == "row":
        value = "x" * rng.choice([1, 50, 2000])
        model.rows[pk, a, b] = value
        return f"INSERT INTO {table} (pk, a, b, v) VALUES ({pk}, {a}, {b}, '{value}') {using}"
    if kind == "static":
        model.statics[pk] = number
        return f"INSERT INTO {table} (pk, s) VALUES ({pk}, {number}) {using}"
    if kind == "static deletion":
        model.statics.pop(pk, None)
        return f"DELETE s FROM {table} {using} WHERE pk = {pk}"
    if kind == "partition":
        model.delete(pk, lambda *_: True)
        model.statics.pop(pk, None)
        return f"DELETE FROM {table} {using} WHERE pk = {pk}"
    if kind == "row deletion":
        model.delete(pk, lambda x, y: (x, y) == (a, b))
        return f"DELETE FROM {table} {using} WHERE pk = {pk} AND a = {a} AND b = {b}"
    if kind == "prefix":
        model.delete(pk, lambda x, _: x == a)
        return f"DELETE FROM {table} {using} WHERE pk = {pk} AND a = {a}"
    if kind == "range":
        low, high = sorted((a, b))
        model.delete(pk, lambda x, _: low <= x < high)
        return f"DELETE FROM {table} {using} WHERE pk = {pk} AND a >= {low} AND a < {high}"
    model.delete(pk, lambda x, y: x == a and y > b)
    return f"DELETE FROM {table} {using} WHERE pk = {pk} AND a = {a} AND b > {b}"


class Scene:
    """A node, a table full of every kind of thing, and what is in it."""

    def __init__(self, node, seed):
        self.node, self.rng, self.model, self.number = node, random.Random(seed), Model(), 0
        self.db = Database(node.address)
        self.table = self.db.table(
            "pk int, a int, b int, s int static, v text, PRIMARY KEY (pk, a, b)",
            "WITH CLUSTERING ORDER BY (a ASC, b DESC)",
        )
        self.added = 0

    def write(self, count):
        for _ in range(count):
            self.number += 1
            self.db.execute(change(self.rng, self.model, self.table, self.number))

    def flush(self):
        self.node.flush(self.db.keyspace)

    def compact(self):
        self.node.compact(self.db.keyspace)

    def alter(self):
        self.added += 1
        self.db.execute(f"ALTER TABLE {self.table} ADD extra{self.added} int")

    def statement(self, shape, backward, size):
        order = " ORDER BY a DESC, b ASC" if backward else ""
        return SimpleStatement(
            f"SELECT {COLUMNS} FROM {self.table} {SHAPES[shape][0]}{order}", fetch_size=size
        )

    def truth(self, shape, backward):
        found = self.model.seen(SHAPES[shape][1])
        return {pk: rows[::-1] if backward else rows for pk, rows in found.items() if rows}


def by_partition(rows):
    """Rows grouped by partition. The rows of a partition must not be separated."""
    found, last = {}, None
    for row in rows:
        if row[0] != last:
            assert row[0] not in found, f"partition {row[0]} comes twice"
            last = row[0]
        found.setdefault(row[0], []).append(tuple(row))
    return found


def pages(db, statement, between=lambda: None):
    """All rows, page by page."""
    result = db.session.execute(statement)
    rows, count = [], 0
    while True:
        rows += result.current_rows
        count += 1
        assert count < 5000, "pages without end"
        if not result.has_more_pages:
            return rows
        between()
        result.fetch_next_page()


def backwards(shape):
    """The orders in which a shape can be read. The reverse order works only within one
    partition."""
    return (False, True) if "pk = 1" in SHAPES[shape][0] else (False,)


@pytest.fixture(scope="module")
def scene():
    node = Node(shards=2)
    try:
        it = Scene(node.start(), seed=7)
        for _ in range(3):
            it.write(70)
            it.flush()
        it.write(50)
        yield it
        it.db.close()
        assert node.stop() == 0, node.log_tail()
    finally:
        node.close()


@pytest.mark.node
@pytest.mark.parametrize("tombstones", [1, 2, 3, 10_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_boundary(scene, shape, tombstones):
    scene.db.execute(
        f"UPDATE system.config SET value = '{tombstones}' WHERE name = 'query_tombstone_page_limit'"
    )
    for backward in backwards(shape):
        truth = scene.truth(shape, backward)
        for size in (1, 2, 3, 5, 1000):
            found = by_partition(pages(scene.db, scene.statement(shape, backward, size)))
            assert found == truth, f"backward {backward}, pages of {size}"


@pytest.mark.node
def test_the_readers_were_kept(scene):
    lookups, misses, drops, reused = (scene.node.metric(f"scylla_database_querier_cache_{name}")
                                      for name in ("lookups", "misses", "drops", "reused"))
    assert reused == lookups - misses - drops
    assert lookups > 1000 and reused / lookups > 0.95, (lookups, misses, drops)


@pytest.mark.node
@pytest.mark.parametrize("shape", SHAPES)
def test_the_data_moves_between_pages(scene, shape):
    """Flushes, compactions and new columns do not change the results."""
    scene.db.execute(
        "UPDATE system.config SET value = '3' WHERE name = 'query_tombstone_page_limit'"
    )
    rng = random.Random(shape)
    prepared = scene.db.prepare(scene.statement(shape, False, 1).query_string)
    prepared.fetch_size = 2
    for backward in backwards(shape):
        scene.write(30)
        truth = scene.truth(shape, backward)
        events = [scene.flush, scene.compact, scene.alter] + 9 * [lambda: None]
        between = lambda: rng.choice(events)()
        assert by_partition(pages(scene.db, scene.statement(shape, backward, 2), between)) == truth
        if not backward:
            assert by_partition(pages(scene.db, prepared, between)) == truth


@pytest.mark.node
def test_acknowledged_writes_are_on_the_next_page(scene):
    scene.db.execute(
        "UPDATE system.config SET value = '10000' WHERE name = 'query_tombstone_page_limit'"
    )
    table = scene.db.table("pk int, ck int, s int static, v int, PRIMARY KEY (pk, ck)")
    for backward in (False, True):
        sign = -1 if backward else 1
        scene.db.execute(f"TRUNCATE {table}")
        for ck in range(0, 100, 10):
            scene.db.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (1, {sign * ck}, 0)")
        scene.flush()
        statement = SimpleStatement(
            f"SELECT ck, s, v FROM {table} WHERE pk = 1{' ORDER BY ck DESC' if backward else ''}",
            fetch_size=1,
        )
        result = scene.db.session.execute(statement)
        seen = []
        for step in range(1000):
            seen += [(sign * row.ck, row.s, row.v) for row in result.current_rows]
            if not result.has_more_pages:
                break
            at = seen[-1][0]
            if at % 10 == 0 and at < 90:
                # Inserts a row just after the position, deletes the row after it, and inserts a row
                # before the position, which must not be returned.
                scene.db.execute(
                    f"INSERT INTO {table} (pk, ck, s, v) VALUES (1, {sign * (at + 5)}, {at}, 1)"
                )
                scene.db.execute(f"DELETE FROM {table} WHERE pk = 1 AND ck = {sign * (at + 10)}")
                scene.db.execute(
                    f"INSERT INTO {table} (pk, ck, v) VALUES (1, {sign * (at - 5)}, 9)"
                )
                if at % 30 == 0:
                    scene.flush()
            result.fetch_next_page()
        rows = [ck for ck, _, _ in seen]
        assert rows == sorted(rows) and len(set(rows)) == len(rows), rows
        assert rows == [0, 5, 20, 25, 40, 45, 60, 65, 80, 85], rows
        assert all(v == (1 if ck % 10 else 0) for ck, _, v in seen), seen
        assert [s for ck, s, _ in seen if ck % 10] == [ck - 5 for ck in rows if ck % 10], seen
