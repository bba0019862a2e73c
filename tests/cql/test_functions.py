"""Functions in selectors and values: time, uuid, blob conversion, token, writetime, ttl, count;
column names of results."""

import datetime
import time
import uuid

import pytest
from database import Invalid, Syntax


@pytest.fixture(scope="module")
def t(db):
    name = db.table("pk int PRIMARY KEY, v int, s text, ts timestamp, d date, u timeuuid, b blob")
    db.execute(f"INSERT INTO {name} (pk, v, s) VALUES (1, 10, 'ten') USING TIMESTAMP 123456")
    return name


def test_count(db):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    assert db.one(f"SELECT count(*) FROM {t}") == 0
    for n in range(30):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES ({n % 3}, {n}, {n if n % 2 else 'null'})")
    assert db.one(f"SELECT count(*) FROM {t}") == 30
    assert db.one(f"SELECT COUNT(1) FROM {t}") == 30
    assert db.one(f"SELECT count(*) FROM {t} WHERE pk = 1") == 10
    assert db.one(f"SELECT count(*) FROM {t} WHERE pk = 1 AND ck < 10") == 3
    assert db.one(f"SELECT count(*) FROM {t} WHERE pk = 77") == 0
    assert db.one(f"SELECT count(*) FROM {t}", fetch_size=4) == 30
    assert db.execute(f"SELECT count(*) FROM {t}").column_names == ["count"]
    assert db.execute(f"SELECT count(*) AS how_many FROM {t}").column_names == ["how_many"]


def test_column_names(db, t):
    assert db.execute(f'SELECT v, v AS w, v AS "Upper" FROM {t}').column_names == [
        "v",
        "w",
        "Upper",
    ]
    assert db.execute(f"SELECT token(pk), writetime(v), ttl(v) FROM {t}").column_names == [
        "system.token(pk)",
        "writetime(v)",
        "ttl(v)",
    ]
    assert (
        db.execute(f"SELECT blobAsInt(intAsBlob(v)) FROM {t}")
        .column_names[0]
        .lower()
        .replace("_", "")
        == "system.blobasint(system.intasblob(v))"
    )


def test_writetime_and_ttl(db, t):
    assert db.rows(
        f"SELECT writetime(v), writetime(s), writetime(b), ttl(v) FROM {t} WHERE pk = 1"
    ) == [(123456, 123456, None, None)]
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, 5) USING TTL 1000 AND TIMESTAMP 77")
    stamp, left = db.one(f"SELECT writetime(v), ttl(v) FROM {t} WHERE pk = 2")
    assert stamp == 77 and 990 <= left <= 1000
    before = time.time_ns() // 1000
    db.execute(f"UPDATE {t} SET v = 1 WHERE pk = 3")
    assert abs(db.one(f"SELECT writetime(v) FROM {t} WHERE pk = 3") - before) < 60_000_000
    for text in (
        f"SELECT writetime(pk) FROM {t}",
        f"SELECT ttl(pk) FROM {t}",
        f"SELECT writetime(nothing) FROM {t}",
    ):
        db.refused(Invalid, text)
    db.refused((Invalid, Syntax), f"SELECT writetime(*) FROM {t}")


@pytest.mark.scylla
def test_writetime_of_a_collection_is_refused(db):
    t = db.table("pk int PRIMARY KEY, l list<int>, f frozen<list<int>>")
    db.execute(f"INSERT INTO {t} (pk, l, f) VALUES (1, [1], [1]) USING TIMESTAMP 5")
    db.refused(Invalid, f"SELECT writetime(l) FROM {t}")
    db.refused(Invalid, f"SELECT ttl(l) FROM {t}")
    assert db.one(f"SELECT writetime(f) FROM {t}") == 5


def test_time_functions(db, t):
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    db.execute(
        f"INSERT INTO {t} (pk, u, ts, d) VALUES (4, now(), currentTimestamp(), currentDate())"
    )
    u, ts, d = db.one(f"SELECT u, ts, d FROM {t} WHERE pk = 4")
    assert u.version == 1
    assert abs(ts - now) < datetime.timedelta(minutes=2)
    assert abs(d.date() - now.date()) <= datetime.timedelta(days=1)
    first, second = db.one(f"SELECT now(), now() FROM {t} WHERE pk = 4")
    assert first.version == 1 and second.version == 1
    from_u, unix, day = db.one(
        f"SELECT toTimestamp(u), toUnixTimestamp(u), toDate(u) FROM {t} WHERE pk = 4"
    )
    assert abs(from_u - now) < datetime.timedelta(minutes=2)
    assert unix == round((from_u - datetime.datetime(1970, 1, 1)).total_seconds() * 1000)
    assert day.date() == from_u.date()
    assert db.one(f"SELECT toTimestamp(d) FROM {t} WHERE pk = 4") == datetime.datetime.combine(
        d.date(), datetime.time()
    )
    assert db.one(f"SELECT toUnixTimestamp(ts) FROM {t} WHERE pk = 4") == round(
        (ts - datetime.datetime(1970, 1, 1)).total_seconds() * 1000
    )


@pytest.mark.scylla
def test_old_time_functions(db, t):
    db.execute(f"INSERT INTO {t} (pk, u) VALUES (5, d2177dd0-eaa2-11de-a572-001b779c76e3)")
    moment, millis = db.one(f"SELECT dateOf(u), unixTimestampOf(u) FROM {t} WHERE pk = 5")
    assert (
        millis
        == round((moment - datetime.datetime(1970, 1, 1)).total_seconds() * 1000)
        == 1261009589805
    )


def test_timeuuid_bounds(db):
    t = db.table("pk int, ck timeuuid, v int, PRIMARY KEY (pk, ck)")
    for v, millis in enumerate((1000, 2000, 2000, 3000)):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {uuid_at(millis, v)}, {v})")
    select = f"SELECT v FROM {t} WHERE pk = 1 AND ck"
    assert db.column(f"{select} > maxTimeuuid('1970-01-01 00:00:02+0000')") == [3]
    assert db.column(f"{select} >= minTimeuuid('1970-01-01 00:00:02+0000')") == [1, 2, 3]
    assert db.column(f"{select} < minTimeuuid('1970-01-01 00:00:02+0000')") == [0]


def uuid_at(millis, salt):
    ticks = millis * 10000 + 0x01B21DD213814000
    return uuid.UUID(
        fields=(
            ticks & 0xFFFFFFFF,
            ticks >> 32 & 0xFFFF,
            ticks >> 48 & 0xFFF | 0x1000,
            0x80,
            salt,
            0x123456789ABC,
        )
    )


def test_uuid(db, t):
    seen = {db.one(f"SELECT uuid() FROM {t} WHERE pk = 1") for _ in range(5)}
    assert len(seen) == 5 and all(u.version == 4 for u in seen)
    k = db.table("pk uuid PRIMARY KEY")
    db.execute(f"INSERT INTO {k} (pk) VALUES (uuid())")
    assert db.one(f"SELECT pk FROM {k}").version == 4


@pytest.mark.parametrize("kind, literal, blob", [
    ("int", "3", "00000003"), ("bigint", "-1", "ffffffffffffffff"), ("text", "'ab'", "6162"),
    ("boolean", "true", "01"),
    ("smallint", "258", "0102"), ("tinyint", "5", "05"), ("double", "1.0", "3ff0000000000000"),
    ("varint", "128", "0080"),
    ("uuid", "d2177dd0-eaa2-11de-a572-001b779c76e3", "d2177dd0eaa211dea572001b779c76e3"),
    ("inet", "'1.2.3.4'", "01020304"),
    ("timestamp", "5", "0000000000000005"), ("ascii", "'x'", "78"),
    ("date", "2147483648", "80000000"), ("float", "1.0", "3f800000"),
])
def test_blob_conversion(db, kind, literal, blob):
    t = db.table(f"pk int PRIMARY KEY, v {kind}, b blob")
    db.execute(f"INSERT INTO {t} (pk, v, b) VALUES (1, {literal}, {kind}AsBlob({literal}))")
    assert db.one(f"SELECT b FROM {t}").hex() == blob
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, blobAs{kind}(0x{blob}))")
    one, two = db.one(f"SELECT v FROM {t} WHERE pk = 1"), db.one(f"SELECT v FROM {t} WHERE pk = 2")
    assert one == two
    assert db.one(f"SELECT {kind}AsBlob(v) FROM {t} WHERE pk = 1").hex() == blob


def test_bad_calls(db, t):
    for text in (
        "SELECT no_such_function(v) FROM {}",
        "SELECT toTimestamp(s) FROM {}", "SELECT uuid(v) FROM {}", "SELECT token() FROM {}",
        "SELECT intAsBlob(nothing) FROM {}",
        "INSERT INTO {} (pk, v) VALUES (1, blobAsInt(0x00))",
        "INSERT INTO {} (pk, v) VALUES (1, now())",
        "INSERT INTO {} (pk, v) VALUES (1, no_such_function(1))",
        "INSERT INTO {} (pk, v) VALUES (1, uuid())",
    ):
        db.refused((Invalid, Syntax), text.format(t))


def test_functions_of_null(db, t):
    db.execute(f"INSERT INTO {t} (pk) VALUES (9)")
    assert db.rows(
        f"SELECT intAsBlob(v), toTimestamp(u), blobAsInt(b), toDate(ts) FROM {t} WHERE pk = 9"
    ) == [(None,) * 4]


def test_count_column(db):
    t = db.table("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    for ck in range(5):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES (1, {ck}, {ck if ck < 3 else 'null'})")
    assert db.one(f"SELECT count(v) FROM {t}") == 3


def test_type_hints(db, t):
    db.execute(f"INSERT INTO {t} (pk, v) VALUES ((int)77, (int)78)")
    assert db.one(f"SELECT v FROM {t} WHERE pk = 77") == 78
    db.refused((Invalid, Syntax), f"INSERT INTO {t} (pk, v) VALUES ((text)'x', 78)")


@pytest.mark.scylla
def test_token_of_other_columns(db, t):
    db.refused(Invalid, f"SELECT token(v) FROM {t}")
