"""DSBulk as its users run it: tables out into files by token ranges and in again, counters,
timestamps and times to live, lines that are wrong.

`tests/install dsbulk` brings its parts.
"""

import csv
import datetime
import decimal
import os
import pathlib
import subprocess
import uuid

import cassandra.util as util
import pytest
from cassandra.concurrent import execute_concurrent_with_args

HOME = (
    pathlib.Path(os.environ.get("MESSINA_CACHE", pathlib.Path.home() / ".cache/messina"))
    / "clients/dsbulk"
)
ROWS = 2000

pytestmark = pytest.mark.long

SUCCESS, WITH_ERRORS = 0, 1  # how it ends


class Bulk:
    """Runs the program against one keyspace; its logs go where the test's files are."""

    def __init__(self, db, directory):
        self.db, self.directory = db, directory

    def run(self, operation, *arguments, ends=SUCCESS):
        command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp",
            f"{HOME}/lib/*", "com.datastax.oss.dsbulk.runner.DataStaxBulkLoader",
                   operation, "-h", self.db.host, "-logDir", str(self.directory / "logs"),
                   *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, cwd=self.directory
        )
        assert done.returncode == ends, (
            f"{operation} {' '.join(arguments)} ended with"
            f" {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout, done.stderr

    def unload(self, table, name, *arguments):
        """A directory of CSV files with a header each."""
        target = self.directory / name
        self.run(
            "unload",
            "-k",
            self.db.keyspace,
            "-t",
            table,
            "-url",
            str(target),
            "--codec.nullStrings",
            "NULL",
            *arguments,
        )
        return target

    def load(self, table, source, *arguments, **options):
        return self.run("load", "-k", self.db.keyspace, "-t", table, "-url", str(source),
            "--codec.nullStrings", "NULL", *arguments, **options)


@pytest.fixture
def bulk(db, tmp_path):
    return Bulk(db, tmp_path)


def lines(directory):
    """All lines of all files of a directory, as dictionaries."""
    found = []
    for path in sorted(directory.glob("*.csv")):
        with open(path, newline="") as file:
            found += list(csv.DictReader(file, escapechar="\\", doublequote=False))
    return found


EVERYTHING = {
    "a": ("ascii", "plain"), "t": ("text", "häß, \"漢\" 🦀\nnext"), "b": ("blob", bytes(range(256))),
    "bo": ("boolean", True), "ti": ("tinyint", -128),
    "si": ("smallint", 32767), "i": ("int", -2**31), "bi": ("bigint", 2**63 - 1),
    "vi": ("varint", -2**100), "de": ("decimal", decimal.Decimal("-12345.678900")),
    "f": ("float", 1.5), "d": ("double", 2.25e-100),
    "ts": ("timestamp", datetime.datetime(2024, 2, 29, 12, 30, 1, 123000)),
    "da": ("date", util.Date("2024-02-29")),
    "tm": ("time", util.Time("12:34:56.123456789")), "du": ("duration", util.Duration(1, 2, 3)),
    "ip": ("inet", "2001:db8::1"),
    "u": ("uuid", uuid.UUID("123e4567-e89b-42d3-a456-426614174000")),
    "tu": ("timeuuid", uuid.UUID("d2177dd0-eaa2-11de-a572-001b779c76e3")),
    "l": ("list<text>", ["b", "a", "b"]), "s": ("set<int>", {3, 1}),
    "m": ("map<text, bigint>", {"k": 1, "j": 2}), "fl": ("frozen<list<int>>", [1, 2]),
    "n": ("map<text, frozen<list<frozen<set<int>>>>>", {"k": [{1, 2}, {3}]}),
    "tp": ("tuple<int, text, frozen<list<int>>>", (1, "a", [2])),
    "ud": ("frozen<place>", None),
}


def test_every_type_out_and_in_again(db, bulk):
    db.execute("CREATE TYPE place (street text, numbers frozen<set<int>>)")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in EVERYTHING.items())
    for name in ("given", "taken"):
        db.table(f"pk int, ck int, st text STATIC, {columns}, PRIMARY KEY (pk, ck)", name=name)
    insert = db.prepare(
        f"INSERT INTO given (pk, ck, st, {', '.join(EVERYTHING)}) VALUES"
        f" ({', '.join('?' * (len(EVERYTHING) + 3))})"
    )
    values = [value for _, value in EVERYTHING.values()]
    values[-1] = ("Main", {1, 2})
    # The driver reads a missing list as an empty one, so it is written as such.
    none = [[] if kind == "frozen<list<int>>" else None for kind, _ in EVERYTHING.values()]
    rows = [(n % 37, n, f"static {n % 37}", *(values if n % 3 else none)) for n in range(ROWS)]
    assert all(ok for ok, _ in execute_concurrent_with_args(db.session, insert, rows))
    out = bulk.unload("given", "out")
    told = lines(out)
    assert len(told) == ROWS and sorted(int(line["ck"]) for line in told) == list(range(ROWS))
    assert {line["st"] for line in told} == {f"static {pk}" for pk in range(37)}
    full = next(line for line in told if int(line["ck"]) % 3)
    assert (full["i"], full["vi"], full["ts"], full["u"]) == (
        str(-(2**31)),
        str(-(2**100)),
        "2024-02-29T12:30:01.123Z",
        "123e4567-e89b-42d3-a456-426614174000",
    )
    bulk.load("taken", out)
    before, after = (
        sorted(map(str, db.rows(f"SELECT * FROM {name}"))) for name in ("given", "taken")
    )
    assert len(after) == ROWS and before == after


def test_token_ranges_of_a_query(db, bulk):
    """A custom query, split by the tool into token ranges; and the same to standard output."""
    db.execute("CREATE TABLE ranged (pk int, ck int, v text, PRIMARY KEY (pk, ck))")
    insert = db.prepare("INSERT INTO ranged (pk, ck, v) VALUES (?, ?, ?) USING TIMESTAMP 1234567")
    execute_concurrent_with_args(db.session, insert, [(n % 301, n, f"v{n}") for n in range(ROWS)])
    query = (
        f"SELECT pk, ck, writetime(v) AS w FROM {db.keyspace}.ranged WHERE token(pk) > :start AND"
        " token(pk) <= :end"
    )
    bulk.run(
        "unload", "-query", query, "-url", str(bulk.directory / "ranges"), "--schema.splits", "13"
    )
    told = lines(bulk.directory / "ranges")
    assert sorted(int(line["ck"]) for line in told) == list(range(ROWS)) and {
        int(line["pk"]) for line in told
    } == set(range(301))
    printed, _ = bulk.run(
        "unload", "-query", f"SELECT ck FROM {db.keyspace}.ranged WHERE pk = 5", "-header", "false"
    )
    assert sorted(map(int, printed.split())) == [n for n in range(ROWS) if n % 301 == 5]


def test_timestamps_and_times_to_live_stay(db, bulk):
    for name in ("aged", "young"):
        db.execute(f"CREATE TABLE {name} (pk int PRIMARY KEY, a int, b text)")
    insert = db.prepare("INSERT INTO aged (pk, a) VALUES (?, ?) USING TIMESTAMP ? AND TTL 100000")
    update = db.prepare("UPDATE aged USING TIMESTAMP ? AND TTL 50000 SET b = ? WHERE pk = ?")
    for pk in range(50):
        db.execute(insert, pk, pk, 1_000_000 + pk)
        db.execute(update, 2_000_000 + pk, f"b{pk}", pk)
    kept = ["--schema.preserveTimestamp", "true", "--schema.preserveTtl", "true"]
    bulk.load("young", bulk.unload("aged", "aged", *kept), *kept)
    seen = {
        row[0]: row[1:]
        for row in db.rows("SELECT pk, a, b, writetime(a), writetime(b), ttl(a), ttl(b) FROM young")
    }
    assert set(seen) == set(range(50))
    for pk, (a, b, first, second, longer, shorter) in seen.items():
        assert (
            (a, b, first, second) == (pk, f"b{pk}", 1_000_000 + pk, 2_000_000 + pk)
            and 90_000 < longer <= 100_000
            and 40_000 < shorter <= 50_000
        )


def test_counters(db, bulk, tmp_path):
    db.execute("CREATE TABLE counted (pk int, ck int, hits counter, PRIMARY KEY (pk, ck))")
    source = tmp_path / "counted.csv"
    source.write_text("pk,ck,hits\n" + "".join(f"{n % 7},{n},{n}\n" for n in range(200)))
    for _ in range(2):
        bulk.load("counted", source)
    assert dict(db.rows("SELECT ck, hits FROM counted")) == {n: 2 * n for n in range(200)}
    assert {
        int(line["ck"]): int(line["hits"]) for line in lines(bulk.unload("counted", "counted"))
    } == {n: 2 * n for n in range(200)}


def test_wrong_lines_are_told_and_cost_nothing_else(db, bulk, tmp_path):
    db.execute("CREATE TABLE picky (pk int PRIMARY KEY, v int)")
    source = tmp_path / "picky.csv"
    source.write_text("pk,v\n1,10\nnot a number,20\n3,30\n,40\n5,50\n")
    _, told = bulk.load("picky", source, ends=WITH_ERRORS)
    assert "completed with" in told
    assert sorted(db.rows("SELECT pk, v FROM picky")) == [(1, 10), (3, 30), (5, 50)]
    bulk.run(
        "load",
        "-query",
        f"DELETE FROM {db.keyspace}.picky WHERE pk = :pk",
        "-url",
        str(source),
        "-m",
        "pk",
        ends=WITH_ERRORS,
    )
    assert db.rows("SELECT * FROM picky") == []


def test_refused_is_told(bulk):
    _, told = bulk.run("unload", "-k", "no_such_keyspace", "-t", "t", ends=3)
    assert "no_such_keyspace" in told
