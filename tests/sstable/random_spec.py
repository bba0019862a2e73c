"""Random tables and statements, by seed, in the form that `sstabletool make` reads: every type,
every kind of write and deletion.

    tests/sstable/random_spec.py SEED [me|nb]
"""

import random
import sys
import uuid

SCALARS = ["ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float",
    "inet", "int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint"]
KEYS = [t for t in SCALARS if t != "duration"]
LETTERS = "abcXYZ019 _-:@\\\"'{}[]/%#\t\u00e9\u4e16\U0001f600\u007f\u0001"


def text(rng, letters=LETTERS):
    return "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 3, 8, 30])))


# What old clients could write into any of these: no bytes at all.
EMPTY = [
    "int",
    "bigint",
    "boolean",
    "double",
    "float",
    "decimal",
    "varint",
    "timestamp",
    "uuid",
    "inet",
]


def value(rng, type_):
    """A literal for a column that is no part of a key; sometimes empty where that is not a value of
    the type, sometimes longer than a chunk."""
    if type_ in EMPTY and rng.random() < 0.04:
        return f"blob_as_{type_}(0x)"
    if type_ in ("text", "ascii") and rng.random() < 0.02:
        return (
            "'"
            + rng.choice(["x" * 5000, "".join(rng.choice("abcdefgh") for _ in range(70_000))])
            + "'"
        )
    return literal(rng, type_)


def literal(rng, type_):
    """A CQL literal. Statements are split at every semicolon, so no text has one."""
    whole = lambda bits: rng.choice(
        [
            0,
            1,
            -1,
            2 ** (bits - 1) - 1,
            -(2 ** (bits - 1)),
            rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1)),
        ]
    )  # noqa: E731
    quote = lambda s: "'" + s.replace("'", "''") + "'"  # noqa: E731
    if type_ == "ascii":
        return quote(text(rng, "abcXYZ 019_-:@\\\"'{}[]\t\u0001"))
    if type_ == "text":
        return quote(text(rng))
    if type_ in ("bigint", "int", "smallint", "tinyint"):
        return str(whole({"bigint": 64, "int": 32, "smallint": 16, "tinyint": 8}[type_]))
    if type_ == "varint":
        return str(
            rng.choice([0, -1, 127, 128, -128, -129, 255, 256, rng.randrange(-(2**200), 2**200)])
        )
    if type_ == "decimal":
        return rng.choice(
            [
                "0",
                "-1.5",
                "1E+5",
                "1E-5",
                "0.000",
                "123456789.000000001",
                "-1E-10",
                "12E20",
                str(rng.randrange(-(10**12), 10**12)) + "." + str(rng.randrange(10**9)),
            ]
        )
    if type_ == "blob":
        return "0x" + rng.randbytes(rng.choice([0, 1, 5, 40])).hex()
    if type_ == "boolean":
        return rng.choice(["true", "false"])
    if type_ == "date":
        return quote(
            rng.choice(
                [
                    "1970-01-01",
                    "1969-12-31",
                    "2024-02-29",
                    "9999-12-31",
                    "0001-01-01",
                    "1582-10-04",
                    "1900-03-01",
                ]
            )
        )
    if type_ == "time":
        return quote(
            rng.choice(
                ["00:00:00", "23:59:59.999999999", "01:02:03.4", "12:00:00.000001", "05:06:07.080"]
            )
        )
    if type_ == "timestamp":
        return rng.choice(
            [
                "0",
                "-1",
                "1",
                "1700000000123",
                "-62135596800000",
                "253402300799999",
                "951782400000",
                str(rng.randrange(-(10**13), 10**13)),
            ]
        )
    if type_ in ("double", "float"):
        return rng.choice(["0", "-0.0", "1.5", "-2.25", "1e10", "1e-7", "0.1", "100", "1e7",
            "123456.789", "NaN", "Infinity", "-Infinity", "3.4e38", "1e-30"])
    if type_ == "duration":
        return rng.choice(
            [
                "1mo2d3h",
                "-1y2mo",
                "5ns",
                "1d",
                "3h4m5s6ms7us8ns",
                "12mo",
                "0s",
                "100d10h",
                "89h9m9s",
            ]
        )
    if type_ == "inet":
        return quote(
            rng.choice(
                [
                    "127.0.0.1",
                    "0.0.0.0",
                    "255.255.255.255",
                    "::1",
                    "2001:db8::8a2e:370:7334",
                    "fe80::1",
                    "::",
                ]
            )
        )
    if type_ == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if type_ == "timeuuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=1))
    return compound(rng, type_)


def frozen_type(rng, depth=0):
    inner = lambda: (
        rng.choice(SCALARS) if depth or rng.random() < 0.7 else frozen_type(rng, depth + 1)
    )  # noqa: E731
    kind = rng.randrange(6)
    if kind == 0:
        return ("list", True, [inner()])
    if kind == 1:
        return ("set", True, [rng.choice(KEYS)])
    if kind == 2:
        return ("map", True, [rng.choice(KEYS), inner()])
    if kind == 3:
        return ("tuple", True, [inner() for _ in range(rng.randrange(1, 4))])
    if kind == 4:
        return (
            "vector",
            True,
            [rng.choice(["float", "int", "text", "varint"]), rng.randrange(1, 4)],
        )
    return ("udt", True, ["person"])


def column_type(rng):
    kind = rng.randrange(10)
    element = lambda: (
        rng.choice(SCALARS) if rng.random() < 0.8 else frozen_type(rng, 1)
    )  # noqa: E731
    if kind == 0:
        return ("list", False, [element()])
    if kind == 1:
        return ("set", False, [rng.choice(KEYS) if rng.random() < 0.7 else frozen_key(rng)])
    if kind == 2:
        return (
            "map",
            False,
            [rng.choice(KEYS) if rng.random() < 0.7 else frozen_key(rng), element()],
        )
    if kind == 3:
        return ("udt", False, ["person"])
    if kind in (4, 5):
        return frozen_type(rng)
    return rng.choice(SCALARS)


def frozen_key(rng):
    some = [("tuple", True, ["int", "text"]), ("list", True, ["int"]), ("udt", True, ["person"]),
        ("set", True, ["text"])]
    return rng.choice([*some, ("map", True, ["int", "inet"]), ("vector", True, ["float", 2]),
        ("tuple", True, ["timestamp", "double", ("list", True, ["inet"])])])


PERSON = [("name", "text"), ("age", "int"), ("tags", ("set", True, ["text"])), ("big", "varint")]


def name(type_):
    if isinstance(type_, str):
        return type_
    kind, frozen, parts = type_
    if kind == "tuple":
        return "tuple<" + ", ".join(map(name, parts)) + ">"
    if kind == "vector":
        return f"vector<{name(parts[0])}, {parts[1]}>"
    inner = "person" if kind == "udt" else kind + "<" + ", ".join(map(name, parts)) + ">"
    return f"frozen<{inner}>" if frozen else inner


def compound(rng, type_):
    kind, _, parts = type_
    n = rng.choice([0, 1, 2, 4])
    if kind == "list":
        return "[" + ", ".join(literal(rng, parts[0]) for _ in range(n)) + "]"
    if kind == "vector":
        return (
            "["
            + ", ".join(
                literal(rng, parts[0])
                .replace("NaN", "1")
                .replace("-Infinity", "2")
                .replace("Infinity", "2")
                for _ in range(parts[1])
            )
            + "]"
        )
    if kind == "set":
        return "{" + ", ".join(literal(rng, parts[0]) for _ in range(n)) + "}"
    if kind == "map":
        return (
            "{"
            + ", ".join(literal(rng, parts[0]) + ": " + literal(rng, parts[1]) for _ in range(n))
            + "}"
        )
    if kind == "tuple":
        return (
            "("
            + ", ".join("null" if rng.random() < 0.15 else literal(rng, part) for part in parts)
            + ")"
        )
    fields = [(f, t) for f, t in PERSON if rng.random() < 0.7] or PERSON[:1]
    return (
        "{"
        + ", ".join(
            f"{f}: " + ("null" if rng.random() < 0.15 else literal(rng, t)) for f, t in fields
        )
        + "}"
    )


# The last one leaves chunks plain, which only `nb` can say.
OPTIONS = [
    "{'enabled': 'false'}",
    "{'class': 'LZ4Compressor', 'chunk_length_in_kb': '4'}",
    "{'class': 'LZ4Compressor', 'chunk_length_in_kb': '1'}",
    "{'class': 'LZ4Compressor', 'chunk_length_in_kb': '256'}",
    "{'class': 'SnappyCompressor', 'chunk_length_in_kb': '4'}",
    "{'class': 'DeflateCompressor', 'chunk_length_in_kb': '16'}",
    "{'class': 'NoopCompressor', 'chunk_length_in_kb': '4'}",
    "{'class': 'ZstdCompressor', 'chunk_length_in_kb': '8', 'compression_level': '5'}",
    "{'class': 'SnappyCompressor', 'chunk_length_in_kb': '64'}",
    "{'class': 'LZ4Compressor', 'chunk_length_in_kb': '4', 'min_compress_ratio': '2.0'}",
]


def counters(rng):
    """Counters, of several shards some."""
    out = [
        "CREATE TABLE ks.made (pk int, ck int, a counter, b counter, s counter static, PRIMARY KEY"
        " (pk, ck))"
    ]
    for n in range(rng.choice([1, 10, 200])):
        column = rng.choice("aabs")
        ck = "-" if column == "s" else rng.randrange(20)
        out.append(
            f"COUNTER {rng.randrange(5)} {ck} {column} {rng.randrange(1, 5)}"
            f" {rng.randrange(1, 10**6)} {rng.randrange(-(10**12), 10**12)} {1000 + n}"
        )
    return ";\n".join(out) + ";\n"


def column(rng, prefix, i, odd):
    """The name and type of a column. An odd name is quoted, and its bytes and its letters sort
    differently."""
    start = rng.choice(["", "A", "z", "\u00e9", "\U0001f600", " ", "a b", "\uffee"]) if odd else ""
    type_ = column_type(rng)
    if not isinstance(type_, str) and not start.isascii():
        # Cassandra's writer cannot merge rows with a multi-cell column whose name begins so: it
        # takes the column for one with a single cell.
        start = "z" + start
    return (f'"{start}{prefix}{i}"' if odd else f"{prefix}{i}"), type_


TIMESTAMPS = [
    9223372036854775807,
    -9223372036854775807,
    0,
    2**53 + 1,
    1442880000000000,
    1442879999999999,
]


def spec(seed, version):
    """The text of a spec. Without plain chunks for `me`, which cannot say that it has them."""
    rng = random.Random(seed)
    if rng.random() < 0.1:
        return counters(rng)
    t = "ks.made"
    out = ["CREATE TYPE ks.person (" + ", ".join(f"{f} {name(ty)}" for f, ty in PERSON) + ")"]
    pks = [
        (f"p{i}", rng.choice(KEYS) if rng.random() < 0.9 else frozen_key(rng))
        for i in range(rng.choice([1, 1, 2, 3]))
    ]
    cks = [
        (f"c{i}", rng.choice(KEYS) if rng.random() < 0.85 else frozen_key(rng))
        for i in range(rng.choice([0, 1, 2, 3]))
    ]
    count = rng.choice([0, 2, 5, 5, 8, 70])
    odd = rng.random() < 0.3
    regulars = [column(rng, "r", i, odd) for i in range(count)]
    statics = [column(rng, "s", i, odd) for i in range(rng.choice([0, 0, 1, 3, 66]) if cks else 0)]
    columns = (
        [f"{n} {name(ty)}" for n, ty in pks + cks]
        + [f"{n} {name(ty)}" for n, ty in regulars]
        + [f"{n} {name(ty)} STATIC" for n, ty in statics]
    )
    key = "(" + ", ".join(n for n, _ in pks) + ")"
    table = (
        f"CREATE TABLE {t} ("
        + ", ".join(columns)
        + f", PRIMARY KEY ({key}"
        + "".join(", " + n for n, _ in cks)
        + "))"
    )
    table += " WITH compression = " + rng.choice(OPTIONS if version == "nb" else OPTIONS[:-1])
    if cks:
        # Large partitions are made along the first clustering column.
        table += (
            " AND CLUSTERING ORDER BY ("
            + ", ".join(f"{n} {rng.choice(['ASC', 'DESC'])}" for n, _ in cks)
            + ")"
        )
    out.append(table)
    def key_literal(ty):
        while True:
            lit = literal(rng, ty)
            if lit not in ("''", "0x", "NaN"):
                return lit

    partitions = [[key_literal(ty) for _, ty in pks] for _ in range(rng.choice([1, 3, 10]))]
    rows = [
        [key_literal(ty) if rng.random() < 0.9 else literal(rng, ty) for _, ty in cks]
        for _ in range(rng.choice([1, 4, 12]))
    ]
    where = lambda names, values: " AND ".join(
        f"{n} = {v}" for (n, _), v in zip(names, values)
    )  # noqa: E731
    # The last one is close to 2038; nothing expires later than that, which `me` cannot say
    # (Cassandra's writer lets it wrap around here).
    now = rng.choice([1_600_000_000, 1_600_000_000, 1_300_000_000, 2_147_000_000])
    if cks and cks[0][1] in ("int", "bigint", "text", "varint") and rng.random() < 0.6:
        to = "'{i}'" if cks[0][1] == "text" else "{i}"
        texts = [n for n, ty in regulars if ty in ("text", "ascii")]
        names, values = [n for n, _ in pks + cks] + texts, partitions[0] + [to] + rows[0][1:] + [
            "'{i} {pad}'"
        ] * len(texts)
        out.append(
            f"REPEAT {rng.choice([50, 800])} INSERT INTO {t} ({', '.join(names)}) VALUES"
            f" ({', '.join(values)}) USING TIMESTAMP 1500"
        )
        for _ in range(rng.choice([0, 3])):
            low = rng.randrange(800)
            bounds = (
                [f"'{low}'", f"'{low}9'"]
                if cks[0][1] == "text"
                else [str(low), str(low + rng.randrange(1, 300))]
            )
            out.append(
                f"DELETE FROM {t} USING TIMESTAMP {rng.randrange(1400, 1600)} WHERE"
                f" {where(pks, partitions[0])} AND {cks[0][0]} > {bounds[0]} AND {cks[0][0]} <="
                f" {bounds[1]}"
            )
    for _ in range(rng.choice([5, 40, 150])):
        now += rng.randrange(0, 1000)
        out.append(f"NOW {now}")
        early, near = rng.randrange(1000, 2000), rng.randrange(-5, 5)
        late = 1_700_000_000_000_000 + rng.randrange(10**9)
        using = f"TIMESTAMP {rng.choice([early, near, late, rng.choice(TIMESTAMPS)])}"
        ttl = (
            " AND TTL"
            f" {rng.choice([1, 100, 86400, 630720000 // 4 if now < 1_900_000_000 else 7200])}"
            if rng.random() < 0.25
            else ""
        )
        pk, ck = rng.choice(partitions), rng.choice(rows)
        kind = rng.random()
        if kind < 0.5:
            some = [(n, ty) for n, ty in regulars if rng.random() < rng.choice([0.1, 0.5, 1.0])]
            some += [(n, ty) for n, ty in statics if rng.random() < 0.3]
            names = [n for n, _ in pks + cks + some]
            values = pk + ck + ["null" if rng.random() < 0.1 else value(rng, ty) for _, ty in some]
            out.append(
                f"INSERT INTO {t} ({', '.join(names)}) VALUES ({', '.join(values)}) USING"
                f" {using}{ttl}"
            )
        elif kind < 0.7 and regulars:
            n, ty = rng.choice(regulars)
            to = f"{n} = {value(rng, ty)}"
            if isinstance(ty, tuple) and not ty[1]:
                if ty[0] == "map" and rng.random() < 0.6:
                    to = f"{n}[{literal(rng, ty[2][0])}] = {literal(rng, ty[2][1])}"
                elif ty[0] in ("set", "map") and rng.random() < 0.6:
                    to = f"{n} = {n} + {literal(rng, ty)}"
                elif ty[0] == "udt" and rng.random() < 0.6:
                    f, fty = rng.choice(PERSON)
                    to = f"{n}.{f} = {literal(rng, fty)}"
            out.append(f"UPDATE {t} USING {using}{ttl} SET {to} WHERE {where(pks + cks, pk + ck)}")
        elif kind < 0.75 and regulars:
            n, ty = rng.choice(regulars)
            what = n
            if (
                isinstance(ty, tuple)
                and not ty[1]
                and ty[0] in ("set", "map")
                and rng.random() < 0.6
            ):
                what = f"{n}[{literal(rng, ty[2][0])}]"
            out.append(f"DELETE {what} FROM {t} USING {using} WHERE {where(pks + cks, pk + ck)}")
        elif kind < 0.8:
            out.append(f"DELETE FROM {t} USING {using} WHERE {where(pks + cks, pk + ck)}")
        elif kind < 0.83:
            out.append(f"DELETE FROM {t} USING {using} WHERE {where(pks, pk)}")
        elif cks:
            some = rng.randrange(len(cks))
            other = rng.choice(rows)
            bounds = []
            last = cks[some][0]
            if rng.random() < 0.8:
                bounds.append(f"{last} {rng.choice(['>', '>='])} {ck[some]}")
            if rng.random() < 0.8 or not bounds:
                bounds.append(f"{last} {rng.choice(['<', '<='])} {other[some]}")
            out.append(
                f"DELETE FROM {t} USING {using} WHERE"
                f" {' AND '.join([where(pks + cks[:some], pk + ck[:some])] + bounds)}"
            )
    return ";\n".join(out) + ";\n"


if __name__ == "__main__":
    print(spec(int(sys.argv[1]), (sys.argv[2:] or ["nb"])[0]))
