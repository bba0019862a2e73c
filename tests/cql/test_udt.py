"""User-defined types: DDL, frozen and not, field updates, nesting, changes of a type with existing
data."""

import pytest
from database import Config, Database, Invalid, Syntax, plain
from launch import Node


def fields(db, name):
    return db.rows(
        "SELECT field_names, field_types FROM system_schema.types WHERE keyspace_name = %s AND"
        " type_name = %s",
        db.keyspace,
        name,
    )


def test_create(db):
    u = db.type('a int, "B" text, c frozen<list<int>>, d frozen<map<text, frozen<set<int>>>>')
    assert fields(db, u) == [
        (
            ["a", "B", "c", "d"],
            ["int", "text", "frozen<list<int>>", "frozen<map<text, frozen<set<int>>>>"],
        )
    ]
    db.refused(Invalid, f"CREATE TYPE {u} (a int)")
    db.execute(f"CREATE TYPE IF NOT EXISTS {u} (other int)")
    assert fields(db, u)[0][0] == ["a", "B", "c", "d"]


@pytest.mark.parametrize("text", [
    "CREATE TYPE bad (a no_such_type)", "CREATE TYPE bad (a int, a text)",
    "CREATE TYPE bad (a counter)", "CREATE TYPE bad (a bad)",
    "CREATE TYPE no_such_keyspace.bad (a int)", "CREATE TYPE bad (a list<list<int>>)",
])
def test_create_refused(db, text):
    db.refused((Invalid, Config), text)


@pytest.mark.parametrize("text", ["CREATE TYPE bad", "CREATE TYPE bad ()", "CREATE TYPE bad (a)",
    "CREATE TYPE int (a int)", "CREATE TYPE bad (a int PRIMARY KEY)"])
def test_create_is_no_cql(db, text):
    db.refused((Syntax, Invalid), text)


def test_drop(db):
    u = db.type("a int")
    db.execute(f"DROP TYPE {u}")
    assert fields(db, u) == []
    db.refused(Invalid, f"DROP TYPE {u}")
    db.execute(f"DROP TYPE IF EXISTS {u}")
    u = db.type("a int")
    outer = db.type(f"b frozen<{u}>")
    t = db.table(f"pk int PRIMARY KEY, v list<frozen<{outer}>>")
    db.refused(Invalid, f"DROP TYPE {u}")
    db.refused(Invalid, f"DROP TYPE {outer}")
    db.execute(f"DROP TABLE {t}")
    db.refused(Invalid, f"DROP TYPE {u}")
    db.execute(f"DROP TYPE {outer}")
    db.execute(f"DROP TYPE {u}")


@pytest.mark.parametrize("frozen", [True, False])
def test_values(db, frozen):
    u = db.type("a int, b text, c frozen<set<int>>")
    t = db.table(f"pk int PRIMARY KEY, v {'frozen<' + u + '>' if frozen else u}")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, {{a: 1, b: 'x', c: {{2, 1}}}})")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (2, {{b: 'only'}})")
    db.execute(f"INSERT INTO {t} (pk, v) VALUES (3, {{a: null, b: 'y'}})")
    db.execute(f"INSERT INTO {t} (pk) VALUES (4)")

    def value(pk):
        v = db.execute(f"SELECT v FROM {t} WHERE pk = {pk}").one().v
        return None if v is None else (v.a, v.b, plain(v.c))

    assert [value(pk) for pk in (1, 2, 3, 4)] == [(1, "x", {1, 2}), (None, "only", None),
        (None, "y", None), None]
    assert db.rows(f"SELECT v.a, v.b FROM {t} WHERE pk = 1") == [(1, "x")]
    assert db.rows(f"SELECT v.a FROM {t} WHERE pk = 4") == [(None,)]
    for bad in ("{a: 'x'}", "{nothing: 1}", "{1: 1}", "(1, 2)", "[1]", "1", "{'a': 1}"):
        db.refused(Invalid, f"INSERT INTO {t} (pk, v) VALUES (9, {bad})")
    db.refused(Invalid, f"SELECT v.nothing FROM {t}")
    db.refused(Invalid, f"SELECT pk.a FROM {t}")


def test_bound_values(db):
    from collections import namedtuple

    u = db.type("a int, b text")
    t = db.table(
        f"pk int PRIMARY KEY, v {u}, f frozen<{u}>, l list<frozen<{u}>>, m map<int, frozen<{u}>>"
    )
    point = namedtuple("point", "a b")
    insert = db.prepare(f"INSERT INTO {t} (pk, v, f, l, m) VALUES (?, ?, ?, ?, ?)")
    db.execute(insert, 1, point(1, "x"), point(None, "y"), [point(2, None), point(3, "z")],
        {1: point(None, None)})
    assert db.rows(f"SELECT v, f, l, m FROM {t}") == [((1, "x"), (None, "y"), [(2, None), (3, "z")],
        {1: (None, None)})]


def test_field_updates(db):
    u = db.type("a int, b text, c int")
    t = db.table(f"pk int PRIMARY KEY, v {u}, f frozen<{u}>")
    db.execute(f"UPDATE {t} SET v.a = 1 WHERE pk = 1")
    db.execute(f"UPDATE {t} SET v.b = 'x', v.c = 3 WHERE pk = 1")
    assert db.one(f"SELECT v FROM {t}") == (1, "x", 3)
    db.execute(f"DELETE v.a FROM {t} WHERE pk = 1")
    db.execute(f"UPDATE {t} SET v.c = null WHERE pk = 1")
    assert db.one(f"SELECT v FROM {t}") == (None, "x", None)
    db.execute(f"UPDATE {t} SET v = {{a: 9}} WHERE pk = 1")
    assert db.one(f"SELECT v FROM {t}") == (9, None, None)
    update = db.prepare(f"UPDATE {t} SET v.b = ? WHERE pk = ?")
    db.execute(update, "bound", 1)
    assert db.one(f"SELECT v FROM {t}") == (9, "bound", None)
    db.execute(f"UPDATE {t} SET v = null WHERE pk = 1")
    assert db.rows(f"SELECT v FROM {t}") == []
    for text in (
        "UPDATE {} SET f.a = 1 WHERE pk = 1",
        "UPDATE {} SET v.nothing = 1 WHERE pk = 1",
        "UPDATE {} SET v.a = 'x' WHERE pk = 1",
        "DELETE f.a FROM {} WHERE pk = 1",
        "UPDATE {} SET pk.a = 1 WHERE pk = 1",
        "UPDATE {} SET v = v + {{a: 1}} WHERE pk = 1",
    ):
        db.refused(Invalid, text.format(t))


def test_field_timestamps(db):
    u = db.type("a int, b int")
    t = db.table(f"pk int PRIMARY KEY, v {u}")
    db.execute(f"UPDATE {t} USING TIMESTAMP 20 SET v.a = 2 WHERE pk = 1")
    db.execute(f"UPDATE {t} USING TIMESTAMP 10 SET v = {{a: 1, b: 1}} WHERE pk = 1")
    assert db.one(f"SELECT v FROM {t}") == (2, 1)


def test_not_frozen_only_at_the_top(db):
    u = db.type("a int")
    for column in (f"v list<{u}>", f"v set<{u}>", f"v map<int, {u}>", f"v map<{u}, int>"):
        db.refused(Invalid, f"CREATE TABLE bad (pk int PRIMARY KEY, {column})")
    db.refused(Invalid, f"CREATE TABLE bad (pk {u} PRIMARY KEY)")
    db.refused(Invalid, f"CREATE TABLE bad (pk int, ck {u}, PRIMARY KEY (pk, ck))")
    holder = db.type("x int, l list<int>")
    db.refused(Invalid, f"CREATE TABLE bad (pk int PRIMARY KEY, v {holder})")
    db.table(f"pk int PRIMARY KEY, v frozen<{holder}>")


def test_as_key(db):
    u = db.type("a int, b text")
    t = db.table(f"pk frozen<{u}>, ck frozen<{u}>, v int, PRIMARY KEY (pk, ck)")
    for v, ck in enumerate(("{a: 2, b: 'a'}", "{a: 1, b: 'z'}", "{b: 'x'}", "{a: 1}")):
        db.execute(f"INSERT INTO {t} (pk, ck, v) VALUES ({{a: 1, b: 'k'}}, {ck}, {v})")
    assert db.column(f"SELECT v FROM {t} WHERE pk = {{a: 1, b: 'k'}}") == [2, 3, 1, 0]
    assert db.column(
        f"SELECT v FROM {t} WHERE pk = {{b: 'k', a: 1}} AND ck >= {{a: 1, b: 'z'}}"
    ) == [1, 0]


def test_alter(db):
    u = db.type("a int, b text")
    t = db.table(f"pk int PRIMARY KEY, v {u}, f frozen<{u}>, l list<frozen<{u}>>")
    db.execute(
        f"INSERT INTO {t} (pk, v, f, l) VALUES (1, {{a: 1, b: 'x'}}, {{a: 1, b: 'x'}}, [{{a: 1, b:"
        " 'x'}])"
    )
    db.execute(f"ALTER TYPE {u} ADD c int")
    assert fields(db, u) == [(["a", "b", "c"], ["int", "text", "int"])]
    row = db.execute(f"SELECT v, f, l FROM {t}").one()
    assert (row.v.c, row.f.c, row.l[0].c) == (None, None, None) and (row.f.a, row.f.b) == (1, "x")
    db.execute(f"INSERT INTO {t} (pk, v, f) VALUES (2, {{a: 1, c: 3}}, {{c: 5}})")
    db.execute(f"UPDATE {t} SET v.c = 7 WHERE pk = 1")
    assert db.one(f"SELECT v FROM {t} WHERE pk = 1") == (1, "x", 7)
    db.execute(f"ALTER TYPE {u} RENAME a TO z AND b TO y")
    assert fields(db, u)[0][0] == ["z", "y", "c"]
    assert db.rows(f"SELECT v.z, f.y, v.c FROM {t} WHERE pk = 1") == [(1, "x", 7)]
    for text in (
        "ALTER TYPE {} ADD z int",
        "ALTER TYPE {} RENAME nothing TO x",
        "ALTER TYPE {} RENAME z TO y",
        "ALTER TYPE no_such_type ADD x int",
        "ALTER TYPE {} ADD x no_such_type",
    ):
        db.refused((Invalid, Config), text.format(u))


def test_nested(db):
    inner = db.type("x int, names frozen<list<text>>")
    outer = db.type(f"i frozen<{inner}>, m frozen<map<text, frozen<{inner}>>>")
    t = db.table(f"pk int PRIMARY KEY, v {outer}")
    db.execute(
        f"INSERT INTO {t} (pk, v) VALUES (1, {{i: {{x: 1, names: ['a', 'b']}}, m: {{'k': {{x:"
        " 2}}})"
    )
    v = db.execute(f"SELECT v FROM {t}").one().v
    assert (
        v.i.x == 1 and list(v.i.names) == ["a", "b"] and v.m["k"].x == 2 and v.m["k"].names is None
    )
    db.execute(f"ALTER TYPE {inner} ADD y int")
    v = db.execute(f"SELECT v FROM {t}").one().v
    assert v.i.x == 1 and v.i.y is None
    db.execute(f"UPDATE {t} SET v.i = {{x: 5, y: 6}} WHERE pk = 1")
    v = db.execute(f"SELECT v FROM {t}").one().v
    assert v.i.y == 6 and v.m["k"].x == 2


@pytest.mark.scylla
def test_never_in_itself(db):
    u = db.type("x tuple<int>")
    middle = db.type(f"u frozen<{u}>")
    outer = db.type(f"l frozen<list<frozen<{middle}>>>")
    for used in (u, middle, outer):
        for change in (
            f"ADD y frozen<{used}>",
            f"ADD y tuple<frozen<{used}>>",
            f"ALTER x TYPE tuple<int, frozen<{used}>>",
            f"ALTER x TYPE frozen<tuple<int, frozen<map<int, frozen<{used}>>>>>",
        ):
            db.refused(Invalid, f"ALTER TYPE {u} {change}", match="circular")
    ordered = db.type("x tuple<int>")
    db.table(f"pk int, ck frozen<{ordered}>, PRIMARY KEY (pk, ck)")
    db.refused(Invalid, f"ALTER TYPE {ordered} ADD y duration", match="durations are not allowed")
    db.refused(
        Invalid,
        f"ALTER TYPE {ordered} ALTER x TYPE tuple<int, duration>",
        match="durations are not allowed",
    )
    db.execute(f"ALTER TYPE {ordered} ALTER x TYPE tuple<int, int>")
    db.execute(f"ALTER TYPE {u} ALTER x TYPE tuple<int, frozen<{ordered}>>")
    ((names, types),) = fields(db, u)
    assert names == ["x"] and f"frozen<{ordered}>" in types[0]


def test_many_given_fields(db):
    """The last value for a field counts, as in Cassandra."""
    u = db.type(", ".join(f"f{n} int" for n in range(100)))
    t = db.table(f"pk int PRIMARY KEY, v frozen<{u}>")
    for times in (1, 2, 1000):
        given = ", ".join(f"f{n % 100}: {n}" for n in range(100 * times))
        db.execute(f"INSERT INTO {t} (pk, v) VALUES (1, {{{given}}})")
        assert list(db.one(f"SELECT v FROM {t}")) == list(range(100 * (times - 1), 100 * times))
        text = ", ".join(f'"F{n % 100}": {n}' for n in range(100 * times))
        db.execute(f"INSERT INTO {t} JSON '{{\"pk\": 1, \"v\": {{{text}}}}}'")
        assert list(db.one(f"SELECT v FROM {t}")) == list(range(100 * (times - 1), 100 * times))
        db.refused(
            Invalid, f"INSERT INTO {t} (pk, v) VALUES (1, {{{given}, nothere: 1}})", match="nothere"
        )


@pytest.mark.node
def test_many_short_literals_of_a_type_with_many_fields():
    """A literal is stored with a null for each field that it leaves out. All of a statement are
    limited."""
    with Node(shards=1, memory="512M") as node:
        db = Database(node.address)
        wide = db.type(", ".join(f"f{n} int" for n in range(4000)))
        many = f"frozen<list<frozen<{wide}>>>"
        holder = db.type(f"l {many}")
        t = db.table(
            f"pk int PRIMARY KEY, v frozen<{holder}>, t tuple<int, {many}>, l list<frozen<{wide}>>"
        )

        def literals(count):
            return f"[{', '.join(f'{{f{n % 4000}: {n}}}' for n in range(count))}]"
        for column, literal in (
            ("v", "{{l: {}}}"),
            ("t", "(1, {})"),
            ("l", "{}"),
            ("l", f"(list<frozen<{wide}>>) {{}}"),
        ):
            statement = f"INSERT INTO {t} (pk, {column}) VALUES (1, {literal})"
            db.execute(statement.format(literals(500)))
            for count in (2200, 170_000):
                db.refused(
                    Invalid,
                    statement.format(literals(count)),
                    match="longer than the limit of 33554432 bytes",
                )
        a, b, c, (one, listed) = db.one(f"SELECT l[499].f499, l[499].f0, v.l[499].f499, t FROM {t}")
        assert (a, b, c, one, len(listed), listed[499][499], listed[499][0]) == (499, None, 499, 1,
            500, 499, None)
        db.close()
        assert node.alive(), node.log_tail()


def test_types_of_other_keyspaces_are_refused(db):
    db.refused(Invalid, "CREATE TABLE bad (pk int PRIMARY KEY, v frozen<system_schema.some_type>)")


def test_limits(db):
    """Types that cannot be stored are refused at once when they are declared."""
    below = "int"
    for level in range(15):
        statement = f"CREATE TYPE wide{level} (a {below}, b {below}, c {below}, d {below})"
        if level < 5:
            db.execute(statement)
            below = f"frozen<wide{level}>"
        else:
            db.refused(Invalid, statement, match=f"wide{level} consists of more than 4096 types")
            break
    name = db.table("pk int PRIMARY KEY, v frozen<wide4>, l list<frozen<wide4>>")
    db.refused(Invalid, "ALTER TYPE wide0 ADD e tuple<int, int, int, int, int, int, int, int, int, "
        "int, int, int>", match="4096 types")
    below = "int"
    for level in range(40):
        statement = f"CREATE TYPE deep{level} (a {below})"
        if level < 31:
            db.execute(statement)
            below = f"frozen<deep{level}>"
        else:
            db.refused(Invalid, statement, match="deep31 nests types more than 32 deep")
            break
    db.refused(Invalid, f"ALTER TABLE {name} ADD x list<frozen<deep30>>", match="more than 32 deep")
    db.refused(
        Invalid, "ALTER TYPE deep0 ADD b tuple<int>", match="deep30 nests types more than 32 deep"
    )
    db.execute(f"ALTER TABLE {name} ADD x frozen<deep30>")
    db.execute(f"INSERT INTO {name} (pk, x) VALUES (1, {'{a: ' * 31}5{'}' * 31})")
    value = db.one(f"SELECT x FROM {name}")
    for _ in range(31):
        value = value[0]
    assert value == 5
