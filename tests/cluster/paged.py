"""Reads page by page with real drivers, and computes what a table must show. Used by the tests of
paging and by `paging-disasters`."""

import dataclasses
import random
from typing import Callable

from cassandra import ConsistencyLevel as Level
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.metadata import Murmur3Token
from cassandra.policies import (
    ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, RetryPolicy, RoundRobinPolicy,
    TokenAwarePolicy,
)

# With either of them, the ScyllaDB driver also uses the shard that owns a key.
POLICIES = {
    "round robin": RoundRobinPolicy,
    "token aware": lambda: TokenAwarePolicy(DCAwareRoundRobinPolicy()),
}
RETRIES = 10
COLUMNS = "pk int, ck int, s int static, v text, w int, PRIMARY KEY (pk, ck)"
# The values of `w` are those of `v` modulo this.
KINDS = 5


class Always(RetryPolicy):
    """A retry policy: failed reads are retried on any node."""

    def on_request_error(self, query, consistency, error, retry_num):
        return (self.RETRY_NEXT_HOST, None) if retry_num < RETRIES else (self.RETHROW, None)

    on_unavailable = on_read_timeout = lambda self, *_, retry_num, **__: (
        (self.RETRY_NEXT_HOST, None) if retry_num < RETRIES else (self.RETHROW, None)
    )


class Driver:
    """A session that uses all nodes."""

    def __init__(self, trio, policy, retry=Always, timeout=60):
        profile = ExecutionProfile(
            load_balancing_policy=POLICIES[policy](), retry_policy=retry(), request_timeout=timeout
        )
        self.cluster = Cluster(
            [node.address for node in trio.nodes],
            protocol_version=4,
            connect_timeout=30,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(0.3, None),
        )

    def __enter__(self):
        return self.cluster.connect()

    def __exit__(self, *_):
        self.cluster.shutdown()


COUNTERS = (
    "lookups",
    "misses",
    "drops",
    "reused",
    "advanced",
    "population",
    "memory_bytes",
    "time_based_evictions",
    "resource_based_evictions",
    "memory_based_evictions",
)


def counters(node):
    """The metrics of the queriers of a node."""
    return {name: int(node.metric(f"scylla_database_querier_cache_{name}")) for name in COUNTERS}


def counters_of_all(trio):
    """The same, summed over all running nodes."""
    own = [counters(node) for node in trio.nodes if node.alive()]
    return {name: sum(each[name] for each in own) for name in COUNTERS}


def grown(now, before):
    return {name: value - before[name] for name, value in now.items()}


def pages(session, statement, values=None, between=lambda page: None):
    """All rows, page by page."""
    result = session.execute(statement, values)
    rows = list(result.current_rows)
    for page in range(5000):
        if not result.has_more_pages:
            return [tuple(row) for row in rows]
        between(page)
        result.fetch_next_page()
        rows += result.current_rows
    raise AssertionError("pages without end")


def in_order_of_tokens(keys):
    return sorted(keys, key=lambda pk: Murmur3Token.hash_fn(pk.to_bytes(4, "big")))


@dataclasses.dataclass
class Change:
    """A statement that changes a table; the later its number, the later its timestamp."""

    kind: str
    pk: int
    ck: int
    number: int

    WEIGHTS = {
        "row": 20,
        "row deletion": 4,
        "range": 2,
        "static": 2,
        "static deletion": 1,
        "partition": 0.3,
    }

    @classmethod
    def any(cls, rng, number, partitions, side):
        kind = rng.choices(list(cls.WEIGHTS), cls.WEIGHTS.values())[0]
        return cls(kind, rng.choice(partitions), rng.randrange(side), number)

    def text(self, table):
        pk, ck, number, using = self.pk, self.ck, self.number, f"USING TIMESTAMP {self.number}"
        return {
            "row": f"INSERT INTO {table} (pk, ck, v, w) VALUES ({pk}, {ck}, '{number}', "
                f"{number % KINDS}) {using}",
            "static": f"INSERT INTO {table} (pk, s) VALUES ({pk}, {number}) {using}",
            "static deletion": f"DELETE s FROM {table} {using} WHERE pk = {pk}",
            "row deletion": f"DELETE FROM {table} {using} WHERE pk = {pk} AND ck = {ck}",
            "range": f"DELETE FROM {table} {using} WHERE pk = {pk} AND ck >= {ck} AND ck < "
                f"{ck + 6}",
            "partition": f"DELETE FROM {table} {using} WHERE pk = {pk}",
        }[self.kind]


class Model:
    """The contents of a table on one replica, or on all of them together."""

    def __init__(self):
        self.rows, self.statics = {}, {}

    def apply(self, change):
        pk, ck = change.pk, change.ck
        doomed = {
            "row deletion": lambda own: own == ck,
            "range": lambda own: ck <= own < ck + 6,
            "partition": lambda own: True,
        }.get(change.kind)
        if change.kind == "row":
            self.rows[pk, ck] = str(change.number)
        elif change.kind == "static":
            self.statics[pk] = change.number
        if doomed:
            for key in [key for key in self.rows if key[0] == pk and doomed(key[1])]:
                del self.rows[key]
        if change.kind in ("static deletion", "partition"):
            self.statics.pop(pk, None)

    def seen(self, keys, backward=False):
        """Rows of some partitions: pk, ck, s, v. A partition with only a static row counts as one
        row."""
        own = {}
        for pk, ck in sorted(self.rows, reverse=backward):
            own.setdefault(pk, []).append((pk, ck, self.statics.get(pk), self.rows[pk, ck]))
        for pk, static in self.statics.items():
            own.setdefault(pk, [(pk, None, static, None)])
        return [row for pk in keys for row in own.get(pk, [])]


@dataclasses.dataclass
class Query:
    """A query of a table, and its expected result."""

    text: str
    values: tuple
    # Its partitions in order.
    keys: list
    backward: bool = False
    where: Callable = lambda row: True
    per_partition: int = None
    limit: int = None
    # What it returns: rows, their number, groups by partition, or partitions.
    shape: str = "rows"

    def shown(self, model):
        """Rows, without limits."""
        return [row for row in model.seen(self.keys, self.backward) if self.where(row)]

    def by_partition(self, model):
        parts = {}
        for row in self.shown(model):
            parts.setdefault(row[0], []).append(row)
        return parts

    def expected(self, model):
        """The expected result if the replicas have these contents together."""
        if self.shape == "count":
            return [(len(self.shown(model)),)]
        found = []
        for pk, rows in self.by_partition(model).items():
            cks = [row[1] for row in rows if row[1] is not None]
            found += {
                "rows": rows[: self.per_partition],
                "groups": [(pk, len(cks), max(cks, default=None))],
                "distinct": [(pk, rows[0][2])],
            }[self.shape]
        return found[:self.limit]

    def wrong_at_one(self, found, models):
        """What is wrong with a result whose pages each come from one of these replicas; None if
        nothing is."""
        shown = [self.shown(model) for model in models]
        place = {pk: at for at, pk in enumerate(self.keys)}
        if self.shape == "count":
            keys = [{row[:2] for row in rows} for rows in shown]
            least, most = len(set.intersection(*keys)), len(set.union(*keys))
            return (
                None
                if least <= found[0][0] <= most
                else f"{found[0][0]} rows, not {least} to {most}"
            )
        # The identity of a row of the result, and its position.
        width = 2 if self.shape == "rows" else 1
        known = [{row[:width] for row in rows} for rows in shown]
        keys = [row[:width] for row in found]
        at = [
            (
                place.get(key[0], -1),
                *(
                    (-1 if key[1] is None else -key[1] if self.backward else key[1])
                    for _ in key[1:]
                ),
            )
            for key in keys
        ]
        for before, after, row in zip(at, at[1:], found[1:]):
            if not before < after:
                return f"{row} is out of order, or there twice"
        strangers = set(found) - {
            answer for model in models for answer in self.expected_without_limits(model)
        }
        if self.shape != "groups" and strangers:
            return f"no replica has {sorted(strangers, key=str)[:3]}"
        if set(keys) - set.union(*known):
            return f"no replica has {sorted(set(keys) - set.union(*known))[:3]}"
        if self.limit and len(found) >= self.limit:
            return (
                None if len(found) == self.limit else f"{len(found)} rows instead of {self.limit}"
            )
        if not self.per_partition and set.intersection(*known) - set(keys):
            return f"all replicas have {sorted(set.intersection(*known) - set(keys), key=str)[:3]}"
        return None

    def expected_without_limits(self, model):
        return dataclasses.replace(self, per_partition=None, limit=None).expected(model)


def any_query(rng, table, partitions, large, side):
    """A query of a table with these partitions. The first ones are large, with clustering keys
    below `side`."""
    every = in_order_of_tokens(partitions)
    pk, few = rng.choice(partitions[:large]), sorted(rng.sample(partitions, 8))
    low, limit, per_partition, kind = (
        rng.randrange(side),
        rng.randrange(1, side),
        rng.randrange(1, 5),
        rng.randrange(KINDS),
    )
    high = low + rng.randrange(side)
    token = rng.randrange(-2**63, 2**63)
    is_kind = lambda row: row[3] is not None and int(row[3]) % KINDS == kind  # noqa: E731
    columns = f"SELECT pk, ck, s, v FROM {table}"
    backward = rng.random() < 0.5
    order = " ORDER BY ck DESC" if backward else ""
    hashed = lambda pk: Murmur3Token.hash_fn(pk.to_bytes(4, "big"))  # noqa: E731
    between = lambda row: row[1] is not None and low <= row[1] < high  # noqa: E731
    return rng.choice([
        Query(f"{columns} WHERE pk = ?{order}", (pk,), [pk], backward),
        Query(f"{columns} WHERE pk = ?{order} LIMIT {limit}", (pk,), [pk], backward, limit=limit),
        Query(f"{columns} WHERE pk = ? AND ck >= ? AND ck < ?{order}", (pk, low, high), [pk],
            backward, between),
        Query(f"{columns} WHERE pk = ? AND w = ? ALLOW FILTERING", (pk, kind), [pk], where=is_kind),
        Query(f"{columns} WHERE pk IN ?", (few,), few),
        Query(f"{columns} WHERE pk IN ? PER PARTITION LIMIT {per_partition}", (few,), few,
            per_partition=per_partition),
        Query(columns, (), every),
        Query(f"{columns} LIMIT {3 * limit}", (), every, limit=3 * limit),
        Query(f"{columns} PER PARTITION LIMIT {per_partition}", (), every,
            per_partition=per_partition),
        Query(f"{columns} PER PARTITION LIMIT {per_partition} LIMIT {limit}", (), every,
            per_partition=per_partition, limit=limit),
        Query(f"{columns} WHERE token(pk) > ?", (token,),
            [pk for pk in every if hashed(pk) > token]),
        Query(f"{columns} WHERE ck >= ? AND ck < ? ALLOW FILTERING", (low, high), every,
            where=between),
        Query(f"{columns} WHERE w = ? LIMIT {limit} ALLOW FILTERING", (kind,), every, where=is_kind,
            limit=limit),
        Query(f"SELECT count(*) FROM {table}", (), every, shape="count"),
        Query(f"SELECT count(*) FROM {table} WHERE pk = ?", (pk,), [pk], shape="count"),
        Query(f"SELECT count(*) FROM {table} WHERE w = ? ALLOW FILTERING", (kind,), every,
            where=is_kind, shape="count"),
        Query(f"SELECT pk, count(ck), max(ck) FROM {table} GROUP BY pk", (), every, shape="groups"),
        Query(f"SELECT DISTINCT pk, s FROM {table}", (), every, shape="distinct"),
    ])


def load(session, table, models, partitions, large, side, first=1):
    """Writes the same to every replica: large and small partitions. Returns the number of the next
    change."""
    rng = random.Random(first)
    changes = []
    for at, pk in enumerate(partitions):
        for ck in range(side) if at < large else sorted(rng.sample(range(side), rng.randrange(5))):
            changes.append(Change("row", pk, ck, first + len(changes)))
        if rng.random() < 0.3:
            changes.append(Change("static", pk, 0, first + len(changes)))
    row = session.prepare(
        f"INSERT INTO {table} (pk, ck, v, w) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    )
    static = session.prepare(f"INSERT INTO {table} (pk, s) VALUES (?, ?) USING TIMESTAMP ?")
    row.consistency_level = static.consistency_level = Level.ALL
    rows = [
        (one.pk, one.ck, str(one.number), one.number % KINDS, one.number)
        for one in changes
        if one.kind == "row"
    ]
    execute_concurrent_with_args(session, row, rows, concurrency=64)
    execute_concurrent_with_args(
        session,
        static,
        [(one.pk, one.number, one.number) for one in changes if one.kind == "static"],
        concurrency=64,
    )
    for model in models:
        for change in changes:
            model.apply(change)
    return first + len(changes)
