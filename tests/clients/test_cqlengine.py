"""The Python drivers' object mapper, cqlengine: it creates and alters the tables of its models, and
writes their statements."""

import datetime
import decimal
import os
import uuid

import pytest
from cassandra.cqlengine import columns, connection, functions, management
from cassandra.cqlengine.models import Model
from cassandra.cqlengine.named import NamedTable
from cassandra.cqlengine.query import (
    BatchQuery, BatchType, DoesNotExist, MultipleObjectsReturned, QueryException,
)
from cassandra.cqlengine.usertype import UserType
from cassandra.util import Date, Duration, Time, uuid_from_time

KEYSPACE = "cqlengine"


class Place(UserType):
    street = columns.Text()
    number = columns.Integer(db_field="no")


class Reading(Model):
    __table_name__ = "readings"
    __options__ = {
        "compaction": {"class": "LeveledCompactionStrategy", "sstable_size_in_mb": "64"},
        "gc_grace_seconds": 1000,
        "comment": "readings' own",
    }
    sensor = columns.Integer(partition_key=True)
    day = columns.Date(partition_key=True)
    taken_at = columns.TimeUUID(primary_key=True, clustering_order="DESC", default=uuid.uuid1)
    label = columns.Text(static=True)
    value = columns.Double()
    tags = columns.Set(columns.Text)
    steps = columns.List(columns.Integer)
    counts = columns.Map(columns.Text, columns.Integer)
    place = columns.UserDefinedType(Place)
    path = columns.List(columns.UserDefinedType(Place))


class EveryType(Model):
    pk = columns.UUID(primary_key=True, default=uuid.uuid4)
    a = columns.Ascii()
    b = columns.Blob()
    c = columns.Boolean()
    d = columns.Date()
    e = columns.Decimal()
    f = columns.Float()
    g = columns.Inet()
    h = columns.SmallInt()
    i = columns.TinyInt()
    j = columns.Time()
    k = columns.DateTime()
    l = columns.VarInt()  # noqa: E741
    m = columns.BigInt()
    n = columns.Tuple(columns.Integer, columns.Text)
    o = columns.Duration()


class Tally(Model):
    sensor = columns.Integer(primary_key=True)
    hits = columns.Counter()
    misses = columns.Counter()


@pytest.fixture(scope="module", autouse=True)
def models(host):
    os.environ["CQLENG_ALLOW_SCHEMA_MANAGEMENT"] = "1"
    connection.setup(
        [host], KEYSPACE, protocol_version=4, connect_timeout=30, control_connection_timeout=30
    )
    try:
        management.drop_keyspace(KEYSPACE)
        management.create_keyspace_network_topology(KEYSPACE, {"datacenter1": 1})
        management.create_keyspace_simple(KEYSPACE, 1)  # is there already
        for model in (Reading, EveryType, Tally):
            for _ in range(2):  # the second finds all as it should be
                management.sync_table(model, [KEYSPACE])
        yield
        management.drop_keyspace(KEYSPACE)
    finally:
        connection.unregister_connection("default")


DAY = datetime.date(2024, 2, 29)


def at(minute):
    """A time UUID of that minute of the day."""
    return uuid_from_time(datetime.datetime(2024, 2, 29, 12, minute), node=1, clock_seq=1)


def test_objects():
    place = Place(street="Main", number=7)
    made = Reading.create(sensor=1, day=DAY, taken_at=at(0), label="all", value=1.5,
        tags={"cold", "dry"}, steps=[1, 2], counts={"k": 1}, place=place,
        path=[place, Place(street="Side")])
    seen = Reading.get(sensor=1, day=DAY, taken_at=at(0))
    assert dict(seen) == dict(made) and seen.place.number == 7 and seen.path[1].street == "Side"
    seen.value, seen.label = 2.5, "changed"
    seen.tags.add("wet")
    seen.tags.remove("dry")
    seen.steps.append(3)
    seen.counts["j"] = 2
    seen.save()
    again = Reading.get(sensor=1, day=DAY, taken_at=at(0))
    assert (again.value, again.label, again.tags, again.steps, again.counts) == (2.5, "changed",
        {"cold", "wet"}, [1, 2, 3], {"k": 1, "j": 2})
    again.update(value=None, steps=[0, 1, 2, 3])
    assert Reading.get(sensor=1, day=DAY, taken_at=at(0)).value is None
    again.delete()
    with pytest.raises(DoesNotExist):
        Reading.get(sensor=1, day=DAY, taken_at=at(0))


def test_queries():
    for minute in range(30):
        Reading.create(sensor=2, day=DAY, taken_at=at(minute), value=float(minute))
    q = Reading.objects(sensor=2, day=DAY)
    assert q.count() == len(q) == 30
    assert [one.value for one in q.limit(3)] == [29.0, 28.0, 27.0]
    assert [one.value for one in q.order_by("taken_at").limit(3)] == [0.0, 1.0, 2.0]
    assert list(
        q.filter(taken_at__gt=at(10), taken_at__lte=at(13)).values_list("value", flat=True)
    ) == [13.0, 12.0, 11.0]
    since = functions.MinTimeUUID(datetime.datetime(2024, 2, 29, 12, 25))
    assert len(q.filter(taken_at__gte=since)) == 5
    assert {
        one.value for one in Reading.objects(sensor__in=[2, 3], day=DAY).limit(None).fetch_size(7)
    } == set(map(float, range(30)))
    assert [one.value for one in q.filter(value=17.0).allow_filtering()] == [17.0]
    assert q.only(["value"])[:2][1].value == 28.0 and q[5].value == 24.0
    assert [
        one.sensor for one in Reading.objects.distinct(["sensor", "day"]).all() if one.sensor == 2
    ] == [2]
    with pytest.raises(MultipleObjectsReturned):
        q.get()
    with pytest.raises(QueryException):
        list(Reading.objects(value=1.0))
    q.filter(taken_at=at(3)).update(
        value=33.0, tags__add={"x"}, counts__update={"k": 1}, steps__append=[5]
    )
    one = q.get(taken_at=at(3))
    assert (one.value, one.tags, one.counts, one.steps) == (33.0, {"x"}, {"k": 1}, [5])
    q.delete()
    assert Reading.objects(sensor=2, day=DAY).count() == 0


def test_pages_by_token():
    for sensor in range(100, 150):
        Tally.create(sensor=sensor, hits=1)
    seen, page = [], list(Tally.objects.all().limit(20))
    while page:
        seen += [one.sensor for one in page]
        page = list(Tally.objects.filter(pk__token__gt=functions.Token(page[-1].sensor)).limit(20))
    assert sorted(sensor for sensor in seen if sensor >= 100) == list(range(100, 150))


def test_counters():
    tally = Tally.create(sensor=1)
    tally.hits += 5
    tally.save()
    tally = Tally.get(sensor=1)
    tally.hits -= 2
    tally.misses += 1
    tally.save()
    assert (Tally.get(sensor=1).hits, Tally.get(sensor=1).misses) == (3, 1)


def test_batches_times_and_lives():
    with BatchQuery(
        batch_type=BatchType.Unlogged, timestamp=datetime.timedelta(seconds=30)
    ) as batch:
        for minute in range(5):
            Reading.batch(batch).create(sensor=4, day=DAY, taken_at=at(minute), value=1.0)
    with BatchQuery() as batch:
        Reading.objects(sensor=4, day=DAY, taken_at=at(0)).batch(batch).delete()
        Reading.batch(batch).create(sensor=5, day=DAY, taken_at=at(0), value=2.0)
    assert Reading.objects(sensor=4, day=DAY).count() == 5, "a deletion older than what it deletes"
    assert Reading.objects(sensor=5, day=DAY).count() == 1
    Reading.ttl(5000).create(sensor=6, day=DAY, taken_at=at(0), value=1.0)
    Reading.timestamp(datetime.datetime(2020, 1, 1)).create(
        sensor=6, day=DAY, taken_at=at(0), value=9.0
    )
    row = connection.execute(
        f"SELECT ttl(value), value FROM {KEYSPACE}.readings WHERE sensor = 6 AND day = '2024-02-29'"
    ).one()
    assert row["value"] == 1.0 and 4000 < row["ttl(value)"] <= 5000


def test_every_type():
    values = {"a": "plain", "b": b"\x00\xff", "c": True, "d": Date("2024-02-29"),
        "e": decimal.Decimal("-12.3400"), "f": 1.5, "g": "2001:db8::1", "h": -7, "i": 7,
              "j": Time("12:34:56.123456789"),
              "k": datetime.datetime(2024, 2, 29, 12, 30, 1, 123000), "l": -2**100, "m": 2**62,
              "n": (1, "x"), "o": Duration(1, 2, 3)}
    key = EveryType.create(**values).pk
    seen = EveryType.get(pk=key)
    assert {name: getattr(seen, name) for name in values} == values


def test_the_table_changes_with_its_model():
    class More(Reading):
        __table_name__ = "readings"
        extra = columns.Text()

    management.sync_table(More, [KEYSPACE])
    More.create(sensor=7, day=DAY, taken_at=at(0), extra="more")
    assert More.get(sensor=7, day=DAY, taken_at=at(0)).extra == "more"
    assert (
        NamedTable(KEYSPACE, "readings").get(sensor=7, day=DAY, taken_at=at(0))["extra"] == "more"
    )
    management.drop_table(EveryType, [KEYSPACE])
    tables = connection.get_cluster().metadata.keyspaces[KEYSPACE].tables
    assert "every_type" not in tables and tables["readings"].options["comment"] == "readings' own"
