"""COPY of both cqlsh programs: what COPY TO writes, COPY FROM reads, with every option that changes
the contents of the file or the chosen rows."""

import csv
import random
import re

import pytest
from cqlshell import shell, table  # noqa: F401

DIALECT = {"escapechar": "\\", "doublequote": False}  # what COPY reads and writes


def write_csv(path, rows, seed):
    rng = random.Random(seed)
    with open(path, "w", newline="") as file:
        out = csv.writer(file, **DIALECT)
        for n in range(rows):
            text = rng.choice(["plain", "with, comma", 'with "quotes"', "häß 漢", "", " spaces "])
            out.writerow([n % 1000, n, f"{text} {n}" if text else "",
                rng.randrange(-10**12, 10**12), rng.choice(["True", "False"]),
                round(rng.uniform(-1e6, 1e6), 3),
                          f"2024-{1 + n % 12:02}-{1 + n % 28:02}"])


def read_rows(path):
    with open(path, newline="") as file:
        return sorted(tuple(row) for row in csv.reader(file, **DIALECT))


@pytest.mark.parametrize("rows", [2000, pytest.param(100_000, marks=pytest.mark.long)])
def test_copy(shell, tmp_path, rows):
    """A CSV is written and read again, unchanged except for the order of the rows."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    write_csv(source, rows, seed=rows)
    columns = "pk, ck, name, number, flag, amount, day"
    output = shell.run(
        f"USE {shell.keyspace}; DROP TABLE IF EXISTS copied; CREATE TABLE copied (pk int, ck int,"
        " name text, number bigint, flag boolean, amount double, day date, PRIMARY KEY (pk, ck));"
        f" COPY copied ({columns}) FROM '{source}' WITH NULL = 'NULL';"
    )
    assert f"{rows} rows imported" in output, output[-1000:]
    assert str(rows) in shell.run(f"SELECT count(*) FROM {shell.keyspace}.copied;")
    output = shell.run(
        f"COPY {shell.keyspace}.copied ({columns}) TO '{target}' WITH NULL = 'NULL' AND"
        " FLOATPRECISION = 15 AND DOUBLEPRECISION = 15;"
    )
    assert f"{rows} rows exported" in output, output[-1000:]
    before, after = read_rows(source), read_rows(target)
    assert len(before) == len(after) == rows
    different = [
        (a, b)
        for a, b in zip(before, after)
        if a[:5] + a[6:] != b[:5] + b[6:] or float(a[5]) != float(b[5])
    ]
    assert different == []


def test_copy_as_text_statements(shell, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("".join(f"{n},{n * 2}\n" for n in range(500)))
    output = shell.run(
        f"USE {shell.keyspace}; CREATE TABLE plain (pk int PRIMARY KEY, v int); COPY plain (pk, v)"
        f" FROM '{source}' WITH PREPAREDSTATEMENTS = false;"
    )
    assert "500 rows imported" in output


EVERYTHING = {
    "c_ascii": ("ascii", "'plain'"), "c_text": ("text", "'häß, \"漢\" ''q'' end'"),
    "c_blob": ("blob", "0xcafe00"), "c_boolean": ("boolean", "true"),
    "c_tinyint": ("tinyint", "-128"),
    "c_smallint": ("smallint", "32767"), "c_int": ("int", "-2147483648"),
    "c_bigint": ("bigint", "9223372036854775807"),
    "c_varint": ("varint", "-123456789012345678901234567890"),
    "c_decimal": ("decimal", "12.3400"), "c_float": ("float", "1.5"),
    "c_double": ("double", "-2.25"), "c_timestamp": ("timestamp", "'2024-02-29 12:30:01.123+0000'"),
    "c_date": ("date", "'2024-02-29'"), "c_time": ("time", "'12:34:56.123456789'"),
    "c_duration": ("duration", "1mo2d3ns"), "c_inet": ("inet", "'2001:db8::1'"),
    "c_uuid": ("uuid", "123e4567-e89b-42d3-a456-426614174000"),
    "c_timeuuid": ("timeuuid", "d2177dd0-eaa2-11de-a572-001b779c76e3"),
    "c_list": ("list<text>", "['b, c', 'a', 'b']"),
    "c_set": ("set<int>", "{3, 1}"), "c_map": ("map<text, int>", "{'k': 1, 'j': 2}"),
    "c_flist": ("frozen<list<int>>", "[1, 2]"),
    "c_nested": ("map<text, frozen<list<frozen<set<int>>>>>", "{'k': [{1, 2}, {3}]}"),
    "c_tuple": ("tuple<int, text>", "(1, 'x')"),
    "c_point": ("frozen<copied_point>", "{x: 1, y: 'z'}"),
}


def test_copy_every_type(shell, tmp_path):
    """Values of every type are written and read into another table. A row of nulls stays one."""
    target = tmp_path / "types.csv"
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in EVERYTHING.items())
    names = ", ".join(EVERYTHING)
    # COPY FROM of scylla-cqlsh does not read the durations that its COPY TO writes.
    out = [name for name in EVERYTHING if name != "c_duration"]
    listed = "pk, " + ", ".join(out)
    shell.run(f"""USE {shell.keyspace}; CREATE TYPE copied_point (x int, y text);
        CREATE TABLE types_out (pk int PRIMARY KEY, {columns}); CREATE TABLE types_in (pk int PRIMARY KEY, {columns});
        INSERT INTO types_out (pk, {names}) VALUES (1, {', '.join(literal for _, literal in EVERYTHING.values())});
        INSERT INTO types_out (pk) VALUES (2);
        COPY types_out ({listed}) TO '{target}' WITH HEADER = true;""")
    assert target.read_text().splitlines()[0] == listed.replace(" ", "")
    output = shell.run(
        f"USE {shell.keyspace}; COPY types_in ({listed}) FROM '{target}' WITH HEADER = true;"
    )
    assert "2 rows imported" in output, output[-800:]
    before, after = (
        table(shell.run(f"SELECT {listed} FROM {shell.keyspace}.{name};"))
        for name in ("types_out", "types_in")
    )
    assert before == after and len(after[1]) == 2


def test_copy_styles_of_the_file(shell, tmp_path):
    """Separators and quotes, and the formats of booleans, numbers, times and nulls."""
    target = tmp_path / "styled.csv"
    style = (
        "DELIMITER = '|' AND QUOTE = '''' AND ESCAPE = '~' AND HEADER = true AND NULL = '<none>'"
        " AND BOOLSTYLE = 'yes, no' AND DECIMALSEP = ',' AND THOUSANDSSEP = '.' AND DATETIMEFORMAT"
        " = '%d/%m/%Y %H:%M:%S%z' AND ENCODING = 'utf8'"
    )
    shell.run(
        f"""USE {shell.keyspace}; CREATE TABLE styled_out (pk int PRIMARY KEY, flag boolean, amount double, big bigint, at timestamp, t text);
        CREATE TABLE styled_in (pk int PRIMARY KEY, flag boolean, amount double, big bigint, at timestamp, t text);
        INSERT INTO styled_out (pk, flag, amount, big, at, t) VALUES (1, true, 1234567.5, 1234567, '2024-02-29 12:30:01+0000', 'a|b');
        INSERT INTO styled_out (pk, flag, t) VALUES (2, false, 'it''s');
        COPY styled_out (pk, flag, amount, big, at, t) TO '{target}' WITH {style};""")
    head, *lines = target.read_text().splitlines()
    assert head == "pk|flag|amount|big|at|t" and len(lines) == 2
    first, second = sorted(lines)
    assert first.startswith(
        "1|yes|1.234.567,5|1.234.567|29/02/2024 12:30:01+0000|"
    ) and second.startswith("2|no|<none>|<none>|<none>|"), lines
    shell.run(
        f"USE {shell.keyspace}; COPY styled_in (pk, flag, amount, big, at, t) FROM '{target}' WITH"
        f" {style};"
    )
    before, after = (
        table(shell.run(f"SELECT * FROM {shell.keyspace}.{name};"))
        for name in ("styled_out", "styled_in")
    )
    assert before == after and len(after[1]) == 2


def test_copy_parts_of_a_file(shell, tmp_path):
    """Which lines and columns are read; several files; invalid lines go to a file of their own."""
    for number in range(2):
        (tmp_path / f"part{number}.csv").write_text(
            "".join(f"{number * 100 + n},{n},text {n}\n" for n in range(100))
        )
    k = shell.keyspace
    shell.run(f"USE {k}; CREATE TABLE parts (pk int PRIMARY KEY, a int, b text);")
    output = shell.run(
        f"USE {k}; COPY parts (pk, a, b) FROM '{tmp_path}/part*.csv' WITH CHUNKSIZE = 7 AND"
        " MINBATCHSIZE = 1 AND MAXBATCHSIZE = 3 AND NUMPROCESSES = 1 AND TTL = 5000;"
    )
    assert "200 rows imported" in output and "2 files" in output
    assert "200" in shell.run(f"SELECT count(*) FROM {k}.parts;")
    left = int(table(shell.run(f"SELECT ttl(a) FROM {k}.parts WHERE pk = 105;"))[1][0][0])
    assert 4000 < left <= 5000
    output = shell.run(
        f"USE {k}; TRUNCATE parts; COPY parts (pk, a, b) FROM '{tmp_path}/part0.csv' WITH SKIPROWS"
        " = 10 AND MAXROWS = 20 AND SKIPCOLS = 'b';"
    )
    assert "10 rows imported" in output, output[-500:]
    assert "null" in shell.run(f"SELECT b FROM {k}.parts WHERE pk = 15;")
    (tmp_path / "wrong.csv").write_text("1,1,ok\nnot a number,2,bad\n3,3,ok\n")
    done = shell.start(
        f"USE {k}; TRUNCATE parts; COPY parts (pk, a, b) FROM '{tmp_path}/wrong.csv' WITH ERRFILE ="
        f" '{tmp_path}/errors' AND MAXATTEMPTS = 1;",
        cwd=tmp_path,
    )
    assert "not a number" in "".join(file.read_text() for file in tmp_path.glob("errors*")), (
        done.stdout[-800:] + done.stderr[-800:]
    )
    assert "(2 rows)" in shell.run(f"SELECT * FROM {k}.parts;")


def test_copy_parts_of_a_table(shell, tmp_path):
    """Token ranges cover the table exactly once; page sizes change nothing; large outputs are split
    into files."""
    k, rows = shell.keyspace, 300
    source = tmp_path / "in.csv"
    source.write_text("".join(f"{n % 50},{n}\n" for n in range(rows)))
    shell.run(
        f"USE {k}; CREATE TABLE ranged (pk int, ck int, PRIMARY KEY (pk, ck)); COPY ranged (pk, ck)"
        f" FROM '{source}';"
    )
    halves = []
    for bounds in ("ENDTOKEN = '1'", "BEGINTOKEN = '1'"):
        file = tmp_path / f"half{len(halves)}.csv"
        shell.run(
            f"COPY {k}.ranged (pk, ck) TO '{file}' WITH {bounds} AND PAGESIZE = 7 AND MAXREQUESTS"
            " = 2;"
        )
        halves.append(read_rows(file))
    assert (
        halves[0]
        and halves[1]
        and sorted(int(ck) for _, ck in halves[0] + halves[1]) == list(range(rows))
    )
    shell.run(f"COPY {k}.ranged (pk, ck) TO '{tmp_path}/split.csv' WITH MAXOUTPUTSIZE = 100;")
    split = sorted(tmp_path.glob("split.csv*"))
    assert len(split) == 3 and sorted(
        row for file in split for row in read_rows(file)
    ) == read_rows(source)


def test_copy_through_pipes(shell):
    k = shell.keyspace
    shell.run(f"USE {k}; CREATE TABLE piped (pk int PRIMARY KEY, v text);")
    output = shell.run("1,one\n2,two\n", "-e", f"COPY {k}.piped (pk, v) FROM STDIN;")
    assert "2 rows imported" in output, output
    output = shell.run(f"COPY {k}.piped (pk, v) TO STDOUT;")
    assert {"1,one", "2,two"} <= set(output.splitlines()), output


def test_copy_counters(shell, tmp_path):
    k, source = shell.keyspace, tmp_path / "counters.csv"
    source.write_text("1,5\n2,-3\n")
    for expected in (["5", "-3"], ["10", "-6"]):
        shell.run(
            f"USE {k}; CREATE TABLE IF NOT EXISTS copied_counters (pk int PRIMARY KEY, n counter);"
            f" COPY copied_counters (pk, n) FROM '{source}';"
        )
        rows = table(shell.run(f"SELECT pk, n FROM {k}.copied_counters;"))[1]
        assert [n for _, n in sorted(rows)] == expected


@pytest.mark.parametrize("text, pattern", [
    ("COPY no_such_keyspace.t TO '/dev/null';", r"no_such_keyspace|not found|None"),
    ("COPY system.local (nothing) TO '/dev/null';", r"(?i)nothing|column"),
    ("COPY system.local FROM '/no/such/file';", r"(?i)can't open|no such file|No records|error"),
])
def test_copy_errors(shell, text, pattern):
    done = shell.start(text)
    assert re.search(pattern, done.stderr + done.stdout), done.stderr + done.stdout
