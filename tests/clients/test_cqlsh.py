"""Both cqlsh programs, run as users run them: command lines in, text out."""

import re

import pytest
from cqlshell import shell, table  # noqa: F401
from refusals import refusals


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
    file.write_text(
        "SELECT key\nFROM system.local -- comment\n;\n/* more */ SELECT cluster_name FROM"
        " system.local;"
    )
    output = shell.run("", "-f", str(file))
    assert "local" in output and "cluster_name" in output


def test_show_and_consistency(shell):
    output = shell.run(
        "SHOW VERSION; SHOW HOST; CONSISTENCY; CONSISTENCY QUORUM; SERIAL CONSISTENCY;"
    )
    assert (
        "Connected to" in output
        and "CQL spec" in output
        and "Consistency level set to QUORUM" in output
    )


def test_every_type_is_printed(shell):
    values = {
        "ascii": ("'plain'", "plain"), "text": ("'häß ''q'''", "häß 'q'"),
        "blob": ("0xcafe00", "0xcafe00"), "boolean": ("true", "True"),
        "tinyint": ("-128", "-128"), "smallint": ("32767", "32767"), "int": ("-5", "-5"),
        "bigint": ("9223372036854775807", "9223372036854775807"),
        "varint": ("-123456789012345678901234567890", "-123456789012345678901234567890"),
        "decimal": ("12.3400", "12.3400"), "float": ("1.5", "1.5"),
        "double": ("-2.25", "-2.25"), "timestamp": ("'2024-02-29 12:30:01.123+0000'",
            "2024-02-29 12:30:01.123000+0000"), "date": ("'2024-02-29'", "2024-02-29"),
        "time": ("'12:34:56.123456789'", "12:34:56.123456789"),
        "duration": ("1mo2d3ns", "1mo2d3ns"), "inet": ("'2001:db8::1'", "2001:db8::1"),
        "uuid": ("123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000"),
        "timeuuid": ("d2177dd0-eaa2-11de-a572-001b779c76e3",
            "d2177dd0-eaa2-11de-a572-001b779c76e3"), "list<int>": ("[3, 1, 3]", "[3, 1, 3]"),
        "set<text>": ("{'b', 'a'}", "{'a', 'b'}"), "map<text, int>": ("{'k': 1}", "{'k': 1}"),
        "tuple<int, text>": ("(1, 'x')", "(1, 'x')"),
        "frozen<point>": ("{x: 1, y: 'z'}", "{x: 1, y: 'z'}"),
        "frozen<list<frozen<set<int>>>>": ("[{2, 1}]", "[{1, 2}]"),
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
    for part in (
        f"CREATE TABLE {k}.shaped",
        "PRIMARY KEY ((a, b), c)",
        "CLUSTERING ORDER BY (c DESC)",
        "comment = 'it''s shaped'",
        "gc_grace_seconds = 55",
        "s int static",
        "v frozen<described>",
    ):
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
    # The printed statements create the same objects again.
    create = whole[whole.index("CREATE TYPE") :]
    wanted = [s for s in re.split(r"(?<=;)\n", create) if re.search(r"\.(described|shaped) \(", s)]
    shell.run("\n".join(wanted))
    assert shell.run(f"DESCRIBE TABLE {k}.shaped;") == text


def test_tracing(shell):
    output = shell.run(
        f"""USE {shell.keyspace}; CREATE TABLE IF NOT EXISTS traced (pk int PRIMARY KEY, v int);
        TRACING ON
        INSERT INTO traced (pk, v) VALUES (1, 1);
        SELECT * FROM traced WHERE pk = 1;
        TRACING OFF
        SELECT * FROM traced;""")
    assert (
        output.count("Tracing session:") == 2
        and "Request complete" in output
        and "activity" in output
    )


def test_paging(shell):
    inserts = "".join(f"INSERT INTO paged (pk, ck) VALUES (1, {n});" for n in range(250))
    output = shell.run(
        f"USE {shell.keyspace}; CREATE TABLE paged (pk int, ck int, PRIMARY KEY (pk, ck));"
        f" {inserts} PAGING 100; SELECT * FROM paged;PAGING OFF; SELECT * FROM paged;"
    )
    assert output.count("(250 rows)") == 2
    output = shell.run(
        f"USE {shell.keyspace}; PAGING 10; SELECT ck FROM paged WHERE pk = 1 ORDER BY ck DESC"
        " LIMIT 25;"
    )
    assert "(25 rows)" in output and table(output)[1][0] == ["249"]


@pytest.mark.parametrize("text, pattern", [
    ("SELEC * FROM x;", r"SyntaxException|Syntax error|code=2000|Improper"),
    ("SELECT * FROM no_such_keyspace.t;", r"InvalidRequest|does not exist|code=2200"),
    ("SELECT nothing FROM system.local;", r"InvalidRequest.*code=2200"),
    ("USE no_such_keyspace;", r"InvalidRequest|code=2200"),
    ("CREATE KEYSPACE system WITH replication = {'class': 'SimpleStrategy', 'replication_factor': "
        "1};", r"(?i)already exists|unauthorized|system|invalid"),
    ("CREATE KEYSPACE bad WITH replication = {'class': 'NoSuch'};",
        r"ConfigurationException|code=2300"),
    ("DESCRIBE TABLE no_such_table;", r"(?i)not found|No keyspace|InvalidRequest"),
])
def test_errors(shell, text, pattern):
    assert re.search(pattern, shell.run(text, fails=True))


def test_errors_leave_the_session(shell):
    done = shell.run("SELECT nothing FROM system.local; SELECT key FROM system.local;", fails=True)
    assert "code=2200" in done


@pytest.mark.scylla
def test_refusals(shell, server):
    """A refusal by a rate limit prints what was refused. The statement is sent once, and the
    session stays usable."""
    if server is None:
        pytest.skip("needs the node's metrics")
    shell.run(f"""USE {shell.keyspace};
        CREATE TABLE refusing (pk int PRIMARY KEY, v text) WITH per_partition_rate_limit = {{'max_reads_per_second': 0, 'max_writes_per_second': 0}};
        CREATE TABLE limited (pk int PRIMARY KEY, v text) WITH per_partition_rate_limit = {{'max_read_kb_per_second': 1, 'max_write_kb_per_second': 1}};
    """)
    reads, writes = refusals([server])
    done = shell.start(f"""USE {shell.keyspace};
        INSERT INTO refusing (pk, v) VALUES (1, 'x');
        SELECT v FROM refusing WHERE pk = 1;
        SELECT key FROM system.local;""")
    check_refusals(shell, done, "refusing", 0)
    assert "local" in done.stdout and refusals([server]) == [reads + 1, writes + 1]
    # The first write and the first read use up the budget of a minute, but only of their partition.
    large = "x" * 60_000
    done = shell.start(f"""USE {shell.keyspace};
        INSERT INTO limited (pk, v) VALUES (1, '{large}');
        INSERT INTO limited (pk, v) VALUES (1, 'refused');
        INSERT INTO limited (pk, v) VALUES (2, 'accepted');
        SELECT v FROM limited WHERE pk = 1;
        SELECT v FROM limited WHERE pk = 1;
        SELECT v FROM limited WHERE pk = 2;""")
    check_refusals(shell, done, "limited", 1)
    assert done.stdout.count(large) == 1 and "accepted" in done.stdout, done.stderr
    assert refusals([server]) == [reads + 2, writes + 2]


def check_refusals(shell, done, table, limit):
    """Asserts that a write and a read, and nothing else, are printed as refused."""
    if shell.program == "scylla-cqlsh":
        # Its driver has an error of its own, without the text.
        found = re.findall(r"RateLimitReached: .*OpType=(Read|Write)", done.stderr)
        assert found == ["Write", "Read"], done.stderr
    else:
        found = re.findall(
            r"(\w+): Per-partition rate limit reached for (\w+) in table (\S+), rejected by .*limit"
            r" (\d+)",
            done.stderr,
        )
        expected = [
            ("ConfigurationException", kind, f"{shell.keyspace}.{table}", str(limit))
            for kind in ("write", "read")
        ]
        assert found == expected, done.stderr


def test_batch_and_quoting(shell):
    output = shell.run(f"""USE {shell.keyspace};
        CREATE TABLE "Quoted" ("Pk" int PRIMARY KEY, "a b" text);
        BEGIN BATCH INSERT INTO "Quoted" ("Pk", "a b") VALUES (1, 'it''s'); INSERT INTO "Quoted" ("Pk", "a b") VALUES (2, 'two'); APPLY BATCH;
        SELECT "a b" FROM "Quoted" WHERE "Pk" IN (1, 2);""")
    assert sorted(r[0] for r in table(output)[1]) == ["it's", "two"]


def test_tracing_of_each_statement(shell):
    """TRACING shows what each statement did; SHOW SESSION shows it again."""
    output = shell.run(
        f"""USE {shell.keyspace}; CREATE TABLE IF NOT EXISTS traced_more (pk int, ck int, v int, PRIMARY KEY (pk, ck));
        TRACING
        TRACING ON
        TRACING
        BEGIN BATCH INSERT INTO traced_more (pk, ck, v) VALUES (1, 1, 1); UPDATE traced_more SET v = 2 WHERE pk = 2 AND ck = 2; APPLY BATCH;
        DELETE FROM traced_more WHERE pk = 2;
        SELECT count(*) FROM traced_more;
        CREATE TABLE IF NOT EXISTS traced_more (pk int PRIMARY KEY);
        PAGING 2
        SELECT * FROM traced_more;
        TRACING OFF
""")
    sessions = re.findall(r"Tracing session: ([0-9a-f-]{36})", output)
    assert len(sessions) == len(set(sessions)) >= 4, output
    again = shell.run(f"SHOW SESSION {sessions[0]}\n")
    assert "Request complete" in again and "source_elapsed" in again
    assert re.search(
        r"(?i)wasn.t found|not found",
        shell.run("SHOW SESSION 11111111-eaa2-11de-a572-001b779c76e3\n", fails=True),
    )


def test_settings_of_the_session(shell):
    """Each setting prints its state, on and off, and can also be set on the command line."""
    output = shell.run(
        f"""USE {shell.keyspace}; CREATE TABLE IF NOT EXISTS settings (pk int PRIMARY KEY, v text);
        EXPAND
        EXPAND ON
        INSERT INTO settings (pk, v) VALUES (1, 'x');
        SELECT * FROM settings;
        EXPAND OFF
        PAGING
        PAGING OFF
        PAGING
        PAGING 17
        CONSISTENCY LOCAL_QUORUM
        INSERT INTO settings (pk, v) VALUES (2, 'y');
        SELECT * FROM settings WHERE pk = 2;
        CONSISTENCY ALL
        SELECT * FROM settings WHERE pk = 1;
        SERIAL CONSISTENCY LOCAL_SERIAL
        SERIAL CONSISTENCY
        SHOW VERSION
""")
    assert (
        "@ Row 1" in output
        and "Page size: 17" in output
        and "Consistency level set to ALL." in output
        and "LOCAL_SERIAL" in output
    )
    assert "CQL spec" in output
    assert shell.keyspace in shell.run(
        "DESCRIBE TABLES;", "-k", shell.keyspace
    ) or "settings" in shell.run("DESCRIBE TABLES;", "-k", shell.keyspace)
    assert "(2 rows)" in shell.run(
        "SELECT * FROM settings;", "-k", shell.keyspace, "--protocol-version=4"
    )


def test_levels_that_cannot_be_met(shell):
    shell.run(f"CREATE TABLE {shell.keyspace}.levels (key int PRIMARY KEY);")
    for level in ("TWO", "THREE"):
        assert re.search(
            r"(?i)unavailable|Cannot achieve|NoHostAvailable",
            shell.run(f"CONSISTENCY {level}; SELECT key FROM {shell.keyspace}.levels;", fails=True),
        )


def test_source_and_capture(shell, tmp_path):
    """SOURCE continues after an error. CAPTURE writes results to a file."""
    inner, outer, captured = (
        tmp_path / "inner.cql",
        tmp_path / "outer.cql",
        tmp_path / "captured.txt",
    )
    inner.write_text(
        f"USE {shell.keyspace};\nCREATE TABLE IF NOT EXISTS sourced (pk int PRIMARY KEY);\nINSERT"
        " INTO sourced (pk) VALUES (1);\nSELECT nothing FROM sourced;\nINSERT INTO sourced (pk)"
        " VALUES (2);\n"
    )
    outer.write_text(f"SOURCE '{inner}';\nSELECT count(*) FROM {shell.keyspace}.sourced;\n")
    done = shell.start(
        f"SOURCE '{outer}'\nCAPTURE '{captured}'\nSELECT pk FROM {shell.keyspace}.sourced;\nCAPTURE"
        " OFF\nSELECT key FROM system.local;"
    )
    assert "code=2200" in done.stderr and table(done.stdout)[1] == [["2"]], (
        done.stdout,
        done.stderr,
    )
    assert "(2 rows)" in captured.read_text() and "(2 rows)" not in done.stdout
    assert re.search(
        r"(?i)could not open|no such file", shell.run("SOURCE '/no/such/file'\n", fails=True)
    )


def test_login(shell):
    """Without authentication every user is accepted, because the driver sends no password. The
    shell refuses a LOGIN without a name."""
    assert "local" in shell.run("LOGIN somebody 'secret'\nSELECT key FROM system.local;")
    assert (
        "local" in shell.start(
            "SELECT key FROM system.local;", "-u", "somebody", "-p", "secret"
        ).stdout
    )
    done = shell.start("LOGIN\nSELECT key FROM system.local;")
    assert "local" in done.stdout and done.stderr


def test_statements_of_every_shape(shell):
    """Several statements on a line, one over many lines, comments of every kind, strings with
    everything in them, long ones."""
    k, long = shell.keyspace, "x" * 60_000
    output = shell.run(
        f"""USE {k}; CREATE TABLE shapes (pk int PRIMARY KEY, v text); INSERT INTO shapes (pk, v) VALUES (1, 'semi;colon'); -- a comment; with a semicolon
        INSERT INTO shapes (pk, v) // another
          VALUES (2,
            'two
lines and ''quotes''');
        /* a long
           comment; */ INSERT INTO shapes (pk, v) VALUES (3, $$dollar's text$$);
        INSERT INTO shapes (pk, v) VALUES (4, '{long}');
        SELECT v FROM shapes WHERE pk IN (1, 2, 3);
        SELECT pk FROM shapes WHERE v = '{long}' ALLOW FILTERING;""")
    assert (
        "semi;colon" in output
        and "two\\nlines and 'quotes'" in output
        and "dollar's text" in output
        and "(1 rows)" in output
    )
