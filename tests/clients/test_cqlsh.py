"""Both cqlsh programs, run as users run them: what goes in on the command line, what comes out as text."""

import csv
import os
import pathlib
import random
import re
import subprocess
import tempfile

import pytest

VENVS = pathlib.Path(os.environ.get("VENVS") or pathlib.Path(__file__).resolve().parents[2] / ".venv")
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


class Shell:
    def __init__(self, program, host):
        self.program, self.host = program, host
        self.keyspace = "shell_" + program.replace("-", "_")

    def run(self, text, *arguments, fails=False):
        """Runs statements from standard input; returns what was printed. Errors must be expected."""
        command = [str(VENVS / self.program / "bin" / "cqlsh"), *arguments, "--request-timeout=60", "--connect-timeout=20", "--no-color",
                   self.host, "9042"]
        environment = dict(os.environ, HOME=tempfile.gettempdir(), CQL_HISTORY="/dev/null", PYTHONWARNINGS="ignore", COLUMNS="200")
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=300,
                              cwd=tempfile.gettempdir())
        errors = "\n".join(line for line in done.stderr.splitlines() if line.strip() and not re.search(r"(?i)^warn|warning|may not be compatible", line))
        if fails:
            assert errors, f"no error from {text!r}: {done.stdout[-500:]}"
            return errors
        assert not errors and done.returncode == 0, f"{text[:300]!r} ended with {done.returncode}: {errors[:1500]}"
        return done.stdout


@pytest.fixture(scope="module", params=["cqlsh", "scylla-cqlsh"])
def shell(request, host):
    it = Shell(request.param, host)
    it.run(f"DROP KEYSPACE IF EXISTS {it.keyspace}; CREATE KEYSPACE {it.keyspace} WITH replication = {REPLICATION};")
    yield it
    it.run(f"DROP KEYSPACE IF EXISTS {it.keyspace};")


def table(output):
    """The rows of a printed result as lists of stripped texts."""
    lines = output.splitlines()
    for n, line in enumerate(lines):
        if re.fullmatch(r"[-+]+", line) and n:
            head = [c.strip() for c in lines[n - 1].split("|")]
            rows = []
            for row in lines[n + 1 :]:
                if not row.strip():
                    break
                rows.append([c.strip() for c in row.split("|")])
            return head, rows
    raise AssertionError(f"no table in {output!r}")


def test_first_session(shell):
    output = shell.run(f"""
        USE {shell.keyspace};
        CREATE TABLE users (id int PRIMARY KEY, name text, born date);
        INSERT INTO users (id, name, born) VALUES (1, 'Ada', '1815-12-10');
        INSERT INTO users (id, name, born) VALUES (2, 'Grace', '1906-12-09');
        SELECT * FROM users WHERE id = 1;
        UPDATE users SET name = 'Ada L.' WHERE id = 1;
        DELETE FROM users WHERE id = 2;
        SELECT id, name FROM users;
    """)
    assert "(1 rows)" in output
    assert table(output) == (["id", "born", "name"], [["1", "1815-12-10", "Ada"]])
    assert "Ada L." in output and output.count("Grace") == 0


def test_single_statement_and_file(shell, tmp_path):
    assert "local" in shell.run("", "-e", "SELECT key FROM system.local;")
    file = tmp_path / "statements.cql"
    file.write_text("SELECT key\nFROM system.local -- comment\n;\n/* more */ SELECT cluster_name FROM system.local;")
    output = shell.run("", "-f", str(file))
    assert "local" in output and "cluster_name" in output


def test_show_and_consistency(shell):
    output = shell.run("SHOW VERSION; SHOW HOST; CONSISTENCY; CONSISTENCY QUORUM; SERIAL CONSISTENCY;")
    assert "Connected to" in output and "CQL spec" in output and "Consistency level set to QUORUM" in output


def test_every_type_is_printed(shell):
    values = {
        "ascii": ("'plain'", "plain"), "text": ("'häß ''q'''", "häß 'q'"), "blob": ("0xcafe00", "0xcafe00"), "boolean": ("true", "True"),
        "tinyint": ("-128", "-128"), "smallint": ("32767", "32767"), "int": ("-5", "-5"), "bigint": ("9223372036854775807", "9223372036854775807"),
        "varint": ("-123456789012345678901234567890", "-123456789012345678901234567890"), "decimal": ("12.3400", "12.3400"), "float": ("1.5", "1.5"),
        "double": ("-2.25", "-2.25"), "timestamp": ("'2024-02-29 12:30:01.123+0000'", "2024-02-29 12:30:01.123000+0000"), "date": ("'2024-02-29'", "2024-02-29"),
        "time": ("'12:34:56.123456789'", "12:34:56.123456789"), "duration": ("1mo2d3ns", "1mo2d3ns"), "inet": ("'2001:db8::1'", "2001:db8::1"),
        "uuid": ("123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000"),
        "timeuuid": ("d2177dd0-eaa2-11de-a572-001b779c76e3", "d2177dd0-eaa2-11de-a572-001b779c76e3"), "list<int>": ("[3, 1, 3]", "[3, 1, 3]"),
        "set<text>": ("{'b', 'a'}", "{'a', 'b'}"), "map<text, int>": ("{'k': 1}", "{'k': 1}"), "tuple<int, text>": ("(1, 'x')", "(1, 'x')"),
        "frozen<point>": ("{x: 1, y: 'z'}", "{x: 1, y: 'z'}"), "frozen<list<frozen<set<int>>>>": ("[{2, 1}]", "[{1, 2}]"),
    }
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(values))
    names = ", ".join(f"c{n}" for n in range(len(values)))
    output = shell.run(f"""
        USE {shell.keyspace}; CREATE TYPE IF NOT EXISTS point (x int, y text);
        CREATE TABLE every_type (pk int PRIMARY KEY, {columns});
        INSERT INTO every_type (pk, {names}) VALUES (1, {', '.join(literal for literal, _ in values.values())});
        INSERT INTO every_type (pk) VALUES (2);
        EXPAND ON
        SELECT * FROM every_type WHERE pk = 1;
        EXPAND OFF
        SELECT c0, c7 FROM every_type WHERE pk = 2;
    """)
    assert "@ Row 1" in output
    shown = {}
    for line in output.splitlines():
        match = re.match(r"\s*(c\d+)\s*\|\s?(.*)$", line)
        if match and match[1] not in shown:
            shown[match[1]] = match[2].strip()
    shown["c15"] = shown["c15"].replace(".0", "")  # how scylla-cqlsh prints a duration
    assert {f"c{n}": expected for n, (_, expected) in enumerate(values.values())} == shown
    assert "null" in output


def test_describe(shell):
    k = shell.keyspace
    shell.run(f"""USE {k}; CREATE TYPE described (a int, b frozen<list<text>>);
        CREATE TABLE shaped (a int, b text, c timeuuid, s int STATIC, v frozen<described>, PRIMARY KEY ((a, b), c))
        WITH CLUSTERING ORDER BY (c DESC) AND comment = 'it''s shaped' AND gc_grace_seconds = 55;""")
    assert k in shell.run("DESCRIBE KEYSPACES;").split()
    assert "shaped" in shell.run(f"USE {k}; DESCRIBE TABLES;").split()
    assert "described" in shell.run(f"USE {k}; DESCRIBE TYPES;").split()
    text = shell.run(f"DESCRIBE TABLE {k}.shaped;")
    for part in (f"CREATE TABLE {k}.shaped", "PRIMARY KEY ((a, b), c)", "CLUSTERING ORDER BY (c DESC)", "comment = 'it''s shaped'", "gc_grace_seconds = 55",
                 "s int static", "v frozen<described>"):
        assert part in text, part
    assert f"CREATE TYPE {k}.described" in shell.run(f"USE {k}; DESCRIBE TYPE described;")
    whole = shell.run(f"DESCRIBE KEYSPACE {k};")
    assert whole.index("CREATE KEYSPACE") < whole.index("CREATE TYPE") < whole.index("CREATE TABLE")
    assert f"CREATE TABLE {k}.shaped" in shell.run("DESCRIBE SCHEMA;")
    assert "CREATE TABLE system" in shell.run("DESCRIBE FULL SCHEMA;")
    cluster = shell.run("DESCRIBE CLUSTER;")
    assert "Cluster:" in cluster and "Murmur3Partitioner" in cluster
    assert f"CREATE TABLE {k}.shaped" in shell.run(f"DESCRIBE {k}.shaped;")
    shell.run(f"USE {k}; DROP TABLE shaped; DROP TYPE described;")
    # What was described makes the same again.
    create = whole[whole.index("CREATE TYPE") :]
    wanted = [s for s in re.split(r"(?<=;)\n", create) if re.search(r"\.(described|shaped) \(", s)]
    shell.run("\n".join(wanted))
    assert shell.run(f"DESCRIBE TABLE {k}.shaped;") == text


def test_tracing(shell):
    output = shell.run(f"""USE {shell.keyspace}; CREATE TABLE IF NOT EXISTS traced (pk int PRIMARY KEY, v int);
        TRACING ON
        INSERT INTO traced (pk, v) VALUES (1, 1);
        SELECT * FROM traced WHERE pk = 1;
        TRACING OFF
        SELECT * FROM traced;""")
    assert output.count("Tracing session:") == 2 and "Request complete" in output and "activity" in output


def test_paging(shell):
    inserts = "".join(f"INSERT INTO paged (pk, ck) VALUES (1, {n});" for n in range(250))
    output = shell.run(f"USE {shell.keyspace}; CREATE TABLE paged (pk int, ck int, PRIMARY KEY (pk, ck)); {inserts} PAGING 100; SELECT * FROM paged;"
                       "PAGING OFF; SELECT * FROM paged;")
    assert output.count("(250 rows)") == 2
    output = shell.run(f"USE {shell.keyspace}; PAGING 10; SELECT ck FROM paged WHERE pk = 1 ORDER BY ck DESC LIMIT 25;")
    assert "(25 rows)" in output and table(output)[1][0] == ["249"]


@pytest.mark.parametrize("text, pattern", [
    ("SELEC * FROM x;", r"SyntaxException|Syntax error|code=2000|Improper"), ("SELECT * FROM no_such_keyspace.t;", r"InvalidRequest|does not exist|code=2200"),
    ("SELECT nothing FROM system.local;", r"InvalidRequest.*code=2200"), ("USE no_such_keyspace;", r"InvalidRequest|code=2200"),
    ("CREATE KEYSPACE system WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};", r"(?i)already exists|unauthorized|system|invalid"),
    ("CREATE KEYSPACE bad WITH replication = {'class': 'NoSuch'};", r"ConfigurationException|code=2300"),
    ("DESCRIBE TABLE no_such_table;", r"(?i)not found|No keyspace|InvalidRequest"),
])
def test_errors(shell, text, pattern):
    assert re.search(pattern, shell.run(text, fails=True))


def test_errors_leave_the_session(shell):
    done = shell.run("SELECT nothing FROM system.local; SELECT key FROM system.local;", fails=True)
    assert "code=2200" in done


def test_batch_and_quoting(shell):
    output = shell.run(f"""USE {shell.keyspace};
        CREATE TABLE "Quoted" ("Pk" int PRIMARY KEY, "a b" text);
        BEGIN BATCH INSERT INTO "Quoted" ("Pk", "a b") VALUES (1, 'it''s'); INSERT INTO "Quoted" ("Pk", "a b") VALUES (2, 'two'); APPLY BATCH;
        SELECT "a b" FROM "Quoted" WHERE "Pk" IN (1, 2);""")
    assert sorted(r[0] for r in table(output)[1]) == ["it's", "two"]


DIALECT = {"escapechar": "\\", "doublequote": False}  # what COPY reads and writes


def write_csv(path, rows, seed):
    rng = random.Random(seed)
    with open(path, "w", newline="") as file:
        out = csv.writer(file, **DIALECT)
        for n in range(rows):
            text = rng.choice(["plain", "with, comma", 'with "quotes"', "häß 漢", "", " spaces "])
            out.writerow([n % 1000, n, f"{text} {n}" if text else "", rng.randrange(-10**12, 10**12), rng.choice(["True", "False"]), round(rng.uniform(-1e6, 1e6), 3),
                          f"2024-{1 + n % 12:02}-{1 + n % 28:02}"])


def read_rows(path):
    with open(path, newline="") as file:
        return sorted(tuple(row) for row in csv.reader(file, **DIALECT))


@pytest.mark.parametrize("rows", [2000, pytest.param(100_000, marks=pytest.mark.long)])
def test_copy(shell, tmp_path, rows):
    """A CSV in and out again, unchanged but for the order of the rows."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    write_csv(source, rows, seed=rows)
    columns = "pk, ck, name, number, flag, amount, day"
    output = shell.run(f"USE {shell.keyspace}; DROP TABLE IF EXISTS copied; CREATE TABLE copied (pk int, ck int, name text, number bigint, flag boolean, amount double, "
                       f"day date, PRIMARY KEY (pk, ck)); COPY copied ({columns}) FROM '{source}' WITH NULL = 'NULL';")
    assert f"{rows} rows imported" in output, output[-1000:]
    assert str(rows) in shell.run(f"SELECT count(*) FROM {shell.keyspace}.copied;")
    output = shell.run(f"COPY {shell.keyspace}.copied ({columns}) TO '{target}' WITH NULL = 'NULL' AND FLOATPRECISION = 15 AND DOUBLEPRECISION = 15;")
    assert f"{rows} rows exported" in output, output[-1000:]
    before, after = read_rows(source), read_rows(target)
    assert len(before) == len(after) == rows
    different = [(a, b) for a, b in zip(before, after) if a[:5] + a[6:] != b[:5] + b[6:] or float(a[5]) != float(b[5])]
    assert different == []


def test_copy_as_text_statements(shell, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("".join(f"{n},{n * 2}\n" for n in range(500)))
    output = shell.run(f"USE {shell.keyspace}; CREATE TABLE plain (pk int PRIMARY KEY, v int); COPY plain (pk, v) FROM '{source}' WITH PREPAREDSTATEMENTS = false;")
    assert "500 rows imported" in output
