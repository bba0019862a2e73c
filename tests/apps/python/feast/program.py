"""A Feast feature store with its online store in Messina: features are materialized and pushed
while a node is killed.

Feast's store writes and reads at LOCAL_ONE. A write that fails is repeated, as Feast's users do;
what a node missed while it was down reaches it by hints, so reads after the kill are repeated until
they agree, for a named time.
"""

import datetime
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from middle import DATACENTER, HOSTS, WORK_DIR, Kill, check, end, keyspace, same  # noqa: E402

import pandas  # noqa: E402
from feast import (  # noqa: E402
    Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType,
)
from feast.types import Array, Bool, Float64, Int64, String  # noqa: E402

DRIVERS = 200
PUSHED = 25  # rows of one write
AGREES_WITHIN = 60  # seconds
NOW = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
FEATURES = ["rides:trips", "rides:rating", "rides:name", "rides:busy", "rides:last"]


def rows(drivers, round):
    """What the drivers' features are in a round."""
    return pandas.DataFrame({
        "driver": list(drivers),
        "trips": [1000 * round + driver for driver in drivers],
        "rating": [driver / 7 for driver in drivers],
        "name": [f"driver {driver}, {round}, Zoë" for driver in drivers],
        "busy": [(driver + round) % 2 == 0 for driver in drivers],
        "last": [[driver, round, -1] for driver in drivers],
        "event_timestamp": [NOW - datetime.timedelta(hours=1)
            + datetime.timedelta(seconds=round)] * len(drivers),
        "created": [NOW] * len(drivers),
    })


def expected(frame):
    return [
        tuple(frame[name][n] for name in ("driver", "trips", "rating", "name", "busy", "last"))
        for n in range(len(frame))
    ]


def online(store, drivers):
    found = store.get_online_features(
        features=FEATURES, entity_rows=[{"driver": driver} for driver in drivers]
    ).to_dict()
    return list(
        zip(
            found["driver"],
            found["trips"],
            found["rating"],
            found["name"],
            found["busy"],
            found["last"],
        )
    )


def agrees(store, frame):
    """The online store has these features, within AGREES_WITHIN."""
    until = time.monotonic() + AGREES_WITHIN
    drivers = [int(driver) for driver in frame["driver"]]
    while (found := online(store, drivers)) != expected(frame) and time.monotonic() < until:
        time.sleep(0.5)
    differing = [(one, other) for one, other in zip(found, expected(frame)) if one != other]
    assert not differing, f"{len(differing)} of {len(frame)} rows differ, among them {differing[0]}"


def push(store, frame):
    """Writes until it succeeds; the number of attempts."""
    for attempt in range(1, 30):
        try:
            store.write_to_online_store("rides", frame)
            return attempt
        except Exception as error:
            print(f"attempt {attempt}: {error}", file=sys.stderr)
            time.sleep(0.3)
    raise AssertionError("29 attempts to write failed")


def main():
    path = pathlib.Path(WORK_DIR) / "rides.parquet"
    rows(range(DRIVERS), 0).to_parquet(path)
    keyspace("feast")
    store = FeatureStore(config=RepoConfig(
        project="taxis", provider="local", registry=f"{WORK_DIR}/registry.db",
        entity_key_serialization_version=3,
        offline_store={"type": "dask"},
        online_store={"type": "cassandra", "hosts": HOSTS, "keyspace": "feast",
            "request_timeout": 15.0,
                      "load_balancing": {
                          "load_balancing_policy": "TokenAwarePolicy(DCAwareRoundRobinPolicy)",
                          "local_dc": DATACENTER}},
    ))
    driver = Entity(name="driver", join_keys=["driver"], value_type=ValueType.INT64)
    rides = FeatureView(
        name="rides", entities=[driver], ttl=datetime.timedelta(days=1), online=True,
        schema=[Field(name="driver", dtype=Int64), Field(name="trips", dtype=Int64),
            Field(name="rating", dtype=Float64),
                Field(name="name", dtype=String), Field(name="busy", dtype=Bool),
                Field(name="last", dtype=Array(Int64))],
        source=FileSource(name="rides_file", path=str(path), timestamp_field="event_timestamp",
            created_timestamp_column="created"),
    )
    with check("apply"):
        store.apply([driver, rides])
        same([view.name for view in store.list_feature_views()], ["rides"], "feature views")
    with check("materialize"):
        store.materialize(start_date=NOW - datetime.timedelta(days=2), end_date=NOW)
        agrees(store, rows(range(DRIVERS), 0))
    with check("kill_middle"):
        kill, round, attempts = None, 0, 0
        until = time.monotonic() + 120
        while kill is None or not kill.back or round < 3:
            assert time.monotonic() < until, "the node did not come back"
            round += 1
            for first in range(0, DRIVERS, PUSHED):
                attempts += push(store, rows(range(first, first + PUSHED), round))
            kill = kill or Kill()
        print(f"{round} rounds, {attempts} writes", file=sys.stderr)
        agrees(store, rows(range(DRIVERS), round))
    with check("online"):
        store.materialize(start_date=NOW - datetime.timedelta(days=2), end_date=NOW)
        agrees(store, rows(range(DRIVERS), 0))
        same(
            online(store, [DRIVERS + 5]),
            [(DRIVERS + 5, None, None, None, None, None)],
            "a driver that is not there",
        )
    with check("overwrite"):
        push(store, rows(range(DRIVERS), 9))
        agrees(store, rows(range(DRIVERS), 9))
    with check("teardown"):
        from cassandra.cluster import Cluster
        session = Cluster(HOSTS).connect()
        same(
            [
                row.table_name
                for row in session.execute(
                    "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'feast'"
                )
            ],
            ["taxis_rides"],
            "tables",
        )
        store.teardown()
        same(
            session.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'feast'"
            ).all(),
            [],
            "tables after the teardown",
        )
    end()


main()
