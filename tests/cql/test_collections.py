"""Lists, sets, maps and tuples, frozen or not: element operations, replacement, nesting, what is
refused."""

import pytest
from cassandra.query import UNSET_VALUE
from database import Invalid, Syntax


@pytest.fixture
def t(db):
    return db.table(
        "pk int PRIMARY KEY, l list<int>, s set<text>, m map<text, int>, fl frozen<list<int>>, fs"
        " frozen<set<int>>, fm frozen<map<int, text>>"
    )


def get(db, t, column):
    return db.one(f"SELECT {column} FROM {t} WHERE pk = 1")


def test_literals_replace(db, t):
    db.execute(f"INSERT INTO {t} (pk, l, s, m) VALUES (1, [3, 1, 3], {{'b', 'a', 'b'}}, {{'x': 1, "
        f"'y': 2}})")
    assert db.rows(f"SELECT l, s, m FROM {t}") == [([3, 1, 3], {"a", "b"}, {"x": 1, "y": 2})]
    db.execute(f"UPDATE {t} SET l = [9], s = {{'c'}}, m = {{'z': 0}} WHERE pk = 1")
    assert db.rows(f"SELECT l, s, m FROM {t}") == [([9], {"c"}, {"z": 0})]
    db.execute(f"INSERT INTO {t} (pk, l, s, m) VALUES (1, [], {{}}, {{}})")
    assert not any(db.rows(f"SELECT l, s, m FROM {t}")[0])


def test_no_collection_is_null(db, t):
    """An empty collection that is not frozen is no collection; the driver shows null."""
    db.execute(f"INSERT INTO {t} (pk, l, fl) VALUES (1, [], [])")
    assert db.rows(f"SELECT fl FROM {t}") == [([],)]
    db.execute(f"UPDATE {t} SET l = [1] WHERE pk = 2")
    db.execute(f"UPDATE {t} SET l = [] WHERE pk = 2")
    assert db.rows(f"SELECT * FROM {t} WHERE pk = 2") == []


def test_list(db, t):
    db.execute(f"UPDATE {t} SET l = l + [1, 2] WHERE pk = 1")
    db.execute(f"UPDATE {t} SET l = l + [2, 3] WHERE pk = 1")
    assert get(db, t, "l") == [1, 2, 2, 3]
    db.execute(f"UPDATE {t} SET l = [8, 9] + l WHERE pk = 1")
    assert get(db, t, "l") == [8, 9, 1, 2, 2, 3]
    db.execute(f"UPDATE {t} SET l += [4] WHERE pk = 1")
    db.execute(f"UPDATE {t} SET l -= [2, 77] WHERE pk = 1")
    assert get(db, t, "l") == [8, 9, 1, 3, 4]
    db.execute(f"UPDATE {t} SET l[0] = 80, l[4] = 40 WHERE pk = 1")
    assert get(db, t, "l") == [80, 9, 1, 3, 40]
    db.execute(f"DELETE l[1] FROM {t} WHERE pk = 1")
    db.execute(f"UPDATE {t} SET l[0] = null WHERE pk = 1")
    assert get(db, t, "l") == [1, 3, 40]
    db.execute(f"UPDATE {t} SET l = l - [1] WHERE pk = 1")
    assert get(db, t, "l") == [3, 40]
    for text in (
        "UPDATE {} SET l[2] = 1 WHERE pk = 1",
        "UPDATE {} SET l[-1] = 1 WHERE pk = 1",
        "DELETE l[5] FROM {} WHERE pk = 1",
        "UPDATE {} SET l['a'] = 1 WHERE pk = 1",
        "UPDATE {} SET l[0] = 'a' WHERE pk = 1",
        "UPDATE {} SET l[null] = 1 WHERE pk = 1",
        "UPDATE {} SET l[0] = 1 WHERE pk = 55",
        "UPDATE {} SET l = l + ['a'] WHERE pk = 1",
        "UPDATE {} SET l = l + {{1}} WHERE pk = 1",
        "UPDATE {} SET l = [1] - l WHERE pk = 1",
        "UPDATE {} SET l = s + [1] WHERE pk = 1",
        "UPDATE {} SET l = l + [null] WHERE pk = 1",
        "UPDATE {} SET l = l + 1 WHERE pk = 1",
    ):
        db.refused((Invalid, Syntax), text.format(t))
    assert get(db, t, "l") == [3, 40]


def test_list_keeps_the_order_of_appends(db, t):
    append = db.prepare(f"UPDATE {t} SET l = l + ? WHERE pk = 1")
    for n in range(60):
        db.execute(append, [n, n])
    assert get(db, t, "l") == [n for n in range(60) for _ in (0, 1)]
    prepend = db.prepare(f"UPDATE {t} SET l = ? + l WHERE pk = 2")
    for n in range(60):
        db.execute(prepend, [n, -n])
    assert db.one(f"SELECT l FROM {t} WHERE pk = 2") == [
        x for n in reversed(range(60)) for x in (n, -n)
    ]


def test_set(db, t):
    db.execute(f"UPDATE {t} SET s = s + {{'b', 'a'}} WHERE pk = 1")
    db.execute(f"UPDATE {t} SET s += {{'c', 'a'}} WHERE pk = 1")
    assert list(db.execute(f"SELECT s FROM {t}").one().s) == ["a", "b", "c"]
    db.execute(f"UPDATE {t} SET s = s - {{'b', 'zzz'}} WHERE pk = 1")
    db.execute(f"DELETE s['c'] FROM {t} WHERE pk = 1")
    assert get(db, t, "s") == {"a"}
    db.execute(f"UPDATE {t} SET s -= {{'a'}} WHERE pk = 1")
    assert db.rows(f"SELECT * FROM {t}") == []
    for text in (
        "UPDATE {} SET s['a'] = 'b' WHERE pk = 1",
        "UPDATE {} SET s = s + ['a'] WHERE pk = 1",
        "UPDATE {} SET s = s + {{1}} WHERE pk = 1",
        "UPDATE {} SET s = {{'a'}} + s WHERE pk = 1 AND x = 1",
        "UPDATE {} SET s = s + {{null}} WHERE pk = 1",
        "UPDATE {} SET s = s + {{'a': 1}} WHERE pk = 1",
    ):
        db.refused((Invalid, Syntax), text.format(t))


def test_map(db, t):
    db.execute(f"UPDATE {t} SET m['b'] = 2 WHERE pk = 1")
    db.execute(f"UPDATE {t} SET m = m + {{'a': 1, 'c': 3}} WHERE pk = 1")
    db.execute(f"UPDATE {t} SET m += {{'c': 33}} WHERE pk = 1")
    assert list(db.execute(f"SELECT m FROM {t}").one().m.items()) == [("a", 1), ("b", 2), ("c", 33)]
    db.execute(f"DELETE m['a'], m['nothing'] FROM {t} WHERE pk = 1")
    db.execute(f"UPDATE {t} SET m = m - {{'b'}} WHERE pk = 1")
    assert get(db, t, "m") == {"c": 33}
    db.execute(f"UPDATE {t} SET m['d'] = 4, m['c'] = null WHERE pk = 1")
    assert get(db, t, "m") == {"d": 4}
    db.execute(f"UPDATE {t} SET m -= {{'d'}} WHERE pk = 1")
    assert db.rows(f"SELECT * FROM {t}") == []
    for text in (
        "UPDATE {} SET m[1] = 1 WHERE pk = 1",
        "UPDATE {} SET m['a'] = 'b' WHERE pk = 1",
        "UPDATE {} SET m = m - {{'a': 1}} WHERE pk = 1",
        "UPDATE {} SET m = m + {{'a'}} WHERE pk = 1",
        "UPDATE {} SET m[null] = 1 WHERE pk = 1",
        "UPDATE {} SET m = m + {{'a': null}} WHERE pk = 1",
        "UPDATE {} SET m = m + {{null: 1}} WHERE pk = 1",
    ):
        db.refused((Invalid, Syntax), text.format(t))


def test_frozen(db, t):
    db.execute(f"INSERT INTO {t} (pk, fl, fs, fm) VALUES (1, [2, 1, 2], {{3, 1, 3}}, {{2: 'b', 1: "
        f"'a'}})")
    assert db.rows(f"SELECT fl, fs, fm FROM {t}") == [([2, 1, 2], {1, 3}, {1: "a", 2: "b"})]
    db.execute(f"INSERT INTO {t} (pk, fl, fs, fm) VALUES (1, [], {{}}, {{}})")
    assert db.rows(f"SELECT fl, fs, fm FROM {t}") == [([], set(), {})]
    for text in (
        "UPDATE {} SET fl = fl + [1] WHERE pk = 1",
        "UPDATE {} SET fl[0] = 1 WHERE pk = 1",
        "DELETE fl[0] FROM {} WHERE pk = 1",
        "UPDATE {} SET fs = fs + {{1}} WHERE pk = 1",
        "UPDATE {} SET fm[1] = 'a' WHERE pk = 1",
        "UPDATE {} SET fm = fm - {{1}} WHERE pk = 1",
        "DELETE fm[1] FROM {} WHERE pk = 1",
    ):
        db.refused(Invalid, text.format(t))


def test_frozen_keys(db):
    t = db.table(
        "pk frozen<set<int>>, ck frozen<map<text, frozen<list<int>>>>, v int, PRIMARY KEY (pk, ck)"
    )
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES ({{2, 1}}, {{'b': [1], 'a': [2, 3]}}, 1)")
    db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES ({{1, 2, 1}}, {{'a': [2, 3], 'b': [1]}}, 2)")
    assert db.rows(f"SELECT v FROM {t}") == [(2,)]
    assert db.rows(f"SELECT v FROM {t} WHERE pk = {{1, 2}} AND ck = {{'b': [1], 'a': [2, 3]}}") == [
        (2,)
    ]
    assert db.rows(f"SELECT v FROM {t} WHERE pk = {{1}}") == []


def test_bound(db, t):
    insert = db.prepare(f"INSERT INTO {t} (pk, l, s, m, fl) VALUES (?, ?, ?, ?, ?)")
    db.execute(insert, 1, [1, 1], {"x"}, {"k": 1}, [5])
    db.execute(insert, 1, UNSET_VALUE, UNSET_VALUE, UNSET_VALUE, UNSET_VALUE)
    assert db.rows(f"SELECT l, s, m, fl FROM {t}") == [([1, 1], {"x"}, {"k": 1}, [5])]
    db.execute(insert, 1, None, None, {}, None)
    assert db.rows(f"SELECT l, m, fl FROM {t}")[0][0] in (None, [])
    element = db.prepare(f"UPDATE {t} SET m[?] = ?, l = l + ?, s = s - ? WHERE pk = ?")
    db.execute(element, "a", 5, [7], {"x"}, 1)
    assert db.rows(f"SELECT l, m FROM {t}") == [([7], {"a": 5})]
    index = db.prepare(f"UPDATE {t} SET l[?] = ? WHERE pk = ?")
    db.execute(index, 0, 8, 1)
    assert get(db, t, "l") == [8]
    db.refused(Invalid, index, 3, 8, 1)
    remove = db.prepare(f"DELETE m[?] FROM {t} WHERE pk = ?")
    db.execute(remove, "a", 1)


@pytest.mark.scylla  # a server error in Cassandra
def test_unset_operands_change_nothing(db, t):
    db.execute(f"INSERT INTO {t} (pk, l, s, m) VALUES (1, [7], {{'x'}}, {{'a': 5}})")
    prepared = db.prepare(f"UPDATE {t} SET m[?] = ?, l = l + ?, s = s - ? WHERE pk = ?")
    db.execute(prepared, "a", UNSET_VALUE, UNSET_VALUE, UNSET_VALUE, 1)
    assert db.rows(f"SELECT l, s, m FROM {t}") == [([7], {"x"}, {"a": 5})]


def test_the_lowest_timestamp(db):
    """Nothing can have been written before it, so nothing is deleted with the collection that is
    written."""
    udt = db.type("a int")
    name = db.table(f"p int PRIMARY KEY, m map<int, int>, s set<int>, l list<int>, u {udt}")
    values = f"INSERT INTO {name} (p, m, s, l, u) VALUES (1, {{1: 1}}, {{1}}, [1], {{a: 1}})"
    db.execute(f"{values} USING TIMESTAMP {1 - 2**63}")
    m, s, l, u = db.rows(f"SELECT m, s, l, u FROM {name}")[0]
    assert (dict(m), set(s), list(l), tuple(u)) == ({1: 1}, {1}, [1], (1,))


def test_timestamps_and_ttl_of_elements(db, t):
    db.execute(f"UPDATE {t} USING TIMESTAMP 10 SET m = {{'a': 1, 'b': 1}} WHERE pk = 1")
    db.execute(f"UPDATE {t} USING TIMESTAMP 20 SET m['a'] = 2 WHERE pk = 1")
    db.execute(f"UPDATE {t} USING TIMESTAMP 15 SET m['a'] = 3, m['b'] = 3, m['c'] = 3 WHERE pk = 1")
    assert get(db, t, "m") == {"a": 2, "b": 3, "c": 3}
    db.execute(f"UPDATE {t} USING TIMESTAMP 17 SET m = {{'d': 4}} WHERE pk = 1")
    assert get(db, t, "m") == {"a": 2, "d": 4}
    db.execute(f"DELETE m FROM {t} USING TIMESTAMP 18 WHERE pk = 1")
    assert get(db, t, "m") == {"a": 2}
    db.execute(f"UPDATE {t} SET s = {{'stays'}} WHERE pk = 1")
    db.execute(f"UPDATE {t} USING TTL 1 SET s = s + {{'goes'}} WHERE pk = 1")
    import time

    end = time.monotonic() + 10
    while time.monotonic() < end and get(db, t, "s") != {"stays"}:
        time.sleep(0.1)
    assert get(db, t, "s") == {"stays"}


def test_one_statement_replaces_and_adds(db, t):
    """The tombstone of a replacement is just older than what the same statement writes."""
    db.execute(f"UPDATE {t} USING TIMESTAMP 100 SET m = {{'a': 1}} WHERE pk = 1")
    db.execute(f"UPDATE {t} USING TIMESTAMP 100 SET m = {{'b': 1}} WHERE pk = 1")
    assert get(db, t, "m") == {"a": 1, "b": 1}


def test_static_collections(db):
    t = db.table("pk int, ck int, m map<int, int> STATIC, l list<int> STATIC, PRIMARY KEY (pk, ck)")
    db.execute(f"UPDATE {t} SET m[1] = 1, l = l + [1] WHERE pk = 1")
    db.execute(f"INSERT INTO {t} (pk, ck) VALUES (1, 1)")
    db.execute(f"UPDATE {t} SET m[2] = 2, l = l + [2] WHERE pk = 1")
    assert db.rows(f"SELECT ck, m, l FROM {t}") == [(1, {1: 1, 2: 2}, [1, 2])]
    db.execute(f"DELETE m[1], l[0] FROM {t} WHERE pk = 1")
    assert db.rows(f"SELECT ck, m, l FROM {t}") == [(1, {2: 2}, [2])]


def test_large(db, t):
    insert = db.prepare(f"INSERT INTO {t} (pk, l, s, m) VALUES (1, ?, ?, ?)")
    db.execute(
        insert,
        list(range(20_000)),
        {f"{n:06}" for n in range(20_000)},
        {f"{n:06}": n for n in range(20_000)},
    )
    l, s, m = db.one(f"SELECT l, s, m FROM {t}")
    assert l == list(range(20_000)) and len(s) == 20_000 and m["019999"] == 19_999


def test_collection_is_no_key_restriction(db, t):
    for where in (
        "l = [1]",
        "s = {'a'}",
        "s CONTAINS 'a'",
        "m CONTAINS KEY 'a'",
        "m['a'] = 1",
        "l CONTAINS 1",
    ):
        db.refused(Invalid, f"SELECT * FROM {t} WHERE {where}")


def test_tuples(db):
    t = db.table("pk int PRIMARY KEY, v tuple<int, text, boolean>")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, (1, 'a', true))")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, (null, 'b', null))")
    assert sorted(db.rows(f"SELECT pk, v FROM {t}")) == [
        (1, (1, "a", True)),
        (2, (None, "b", None)),
    ]
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (3, (7, 'short'))")
    assert db.one(f"SELECT v FROM {t} WHERE pk = 3") == (7, "short", None)
    insert = db.prepare(f"INSERT INTO {t} (pk, v) VALUES (?, (?, ?, ?))")
    db.execute(insert, 4, 5, "x", False)
    assert db.one(f"SELECT v FROM {t} WHERE pk = 4") == (5, "x", False)
    for bad in ("(1, 2, true)", "(1, 'a', true, 4)", "{1}", "('a', 'a', true)"):
        db.refused(Invalid, f"INSERT INTO {t} (pk, v) VALUES (9, {bad})")
    db.refused((Invalid, Syntax), f"INSERT INTO {t} (pk, v) VALUES (9, ())")


def test_tuple_keys(db):
    t = db.table("pk tuple<int, int>, ck tuple<text, int>, PRIMARY KEY (pk, ck)")
    for a, b in ((2, 1), (1, 2), (1, 1)):
        db.execute(f"INSERT INTO {t} (pk, ck) VALUES ((0, 0), ('{a}', {b}))")
    assert db.column(f"SELECT ck FROM {t} WHERE pk = (0, 0)") == [("1", 1), ("1", 2), ("2", 1)]
    assert db.column(f"SELECT ck FROM {t} WHERE pk = (0, 0) AND ck > ('1', 1)") == [
        ("1", 2),
        ("2", 1),
    ]
