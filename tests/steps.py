"""The steps of `tests/run`, as data. GROUPS, at the end, lists the steps of each target of make.

A test that has a short and a long form has both in one place here (`both`): the short one is part
of `make test` and runs on the debug build, the long one on the release build.
"""

import dataclasses
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOAK_MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
DEBUG, RELEASE = "debug", "release"

SIMULATED_FLAGS = f"{os.environ.get('RUSTFLAGS', '')} --cfg tokio_unstable".strip()
TOKIO_UNSTABLE = {"RUSTFLAGS": SIMULATED_FLAGS}
# Tests of properties try the same inputs in every run. An input that fails is found by `laws`, not
# by a run that tests another change.
SAME_INPUTS = {"PROPTEST_RNG_SEED": os.environ.get("PROPTEST_RNG_SEED", "1")}
# `make soak` tries many inputs, new ones each time.
MANY_INPUTS = {
    "PROPTEST_CASES": os.environ.get("PROPTEST_CASES", "5120"),
    "STREAM_FLIPS": os.environ.get("STREAM_FLIPS", "10000"),
    "STREAM_CUTS": os.environ.get("STREAM_CUTS", "1000"),
}
# The simulation runs four times as fast with this, and keeps all assertions. Other crates than ours
# stay those of the debug build.
OPTIMISED = {**TOKIO_UNSTABLE, "CARGO_PROFILE_DEV_OPT_LEVEL": "1", "CARGO_INCREMENTAL": "0"}


@dataclasses.dataclass
class Step:
    """One command, and how its output is counted."""

    name: str
    command: list
    counts: str = "exit"  # "exit", "cargo", "pytest", "last" or "seeds"; see `count` in tests/run
    environment: dict = dataclasses.field(default_factory=dict)
    binary: str = ""  # DEBUG or RELEASE: the build whose `messina` it starts
    needs: str = ""  # the step that it fails with; by default the build of its binary
    tools: tuple = ()  # is not run without these commands
    variables: tuple = ()  # is not run without these variables of the environment
    aloud: bool = False  # takes long and reports its progress: its output is shown at once
    waits: bool = False  # waits for processes more than it computes: runs in the second lane

    def __post_init__(self):
        if self.binary:
            built = os.environ.get("MESSINA_BIN", str(ROOT / "target" / self.binary / "messina"))
            self.environment = {**self.environment, "MESSINA_BIN": built}
            self.needs = self.needs or f"build-{self.binary}"


# Commands


def cargo(*arguments):
    return ["cargo", *arguments]


def install(*parts):
    return ["tests/install", *parts]


def python(venv, *arguments):
    return [str(ROOT / f".venv/{venv}/bin/python"), *arguments]


def pytest(venv, *arguments):
    """A run of pytest with one of the two Python drivers, `scylla` or `cassandra`."""
    options = ["-c", "tests/pytest.ini", "--rootdir", "tests", "-rfER"]
    return python(venv, "-m", "pytest", *options, *arguments)


def loader(verb, *arguments):
    """A command of cargo for the load generator, a workspace of its own."""
    places = ["--manifest-path", "tools/load/Cargo.toml", "--target-dir", "target/load"]
    return cargo(verb, "-q", "--release", "--locked", *places, *arguments)


# The crates that are built for the simulated machine.
SIMULATED = [
    *("--target-dir", "target/sim"),
    *("-p", "messina-rt", "-p", "messina-engine", "-p", "messina-sim"),
    *("--features", "messina-rt/sim,messina-engine/sim,messina-sim/sim"),
]


def sim(*arguments):
    return cargo("test", "-q", "--no-fail-fast", *SIMULATED, *arguments)


# Steps


def both(short, long, command, short_options=(), long_options=(), **options):
    """A test in its short form, on the debug build, and its long form, on the release build."""
    yield Step(short, [*command, *short_options], binary=DEBUG, **options)
    yield Step(long, [*command, *long_options], binary=RELEASE, **options)


def suite(short, long, command, short_options=(), **options):
    """As `both`, for pytest. The clients and processes of such tests mostly wait for each other."""
    return both(short, long, command, short_options, counts="pytest", waits=True, **options)


def release(name, command, **options):
    """A test of the release build that `make test` does not run."""
    return Step(name, command, counts="pytest", binary=RELEASE, **options)


def seeds(name, each, seconds, **options):
    """All trials of simulated clusters, with `each` seeds of so many simulated seconds."""
    given = {
        "SEEDS": os.environ.get("SEEDS", str(each)),
        "SECONDS": os.environ.get("SECONDS", str(seconds)),
    }
    command = sim("--test", "seeds")
    return Step(name, command, counts="seeds", environment={**OPTIMISED, **given}, **options)


CHECKS = [
    Step("install", install("machine", "drivers")),
    Step("format", cargo("fmt", "--all", "--check", "--", "--color", "never")),
    Step("edges", ["tools/check-edges"]),
    Step("text", ["tools/check-text"]),
    Step("checks", pytest("scylla", "tests/tools"), counts="pytest"),
    Step("clippy", cargo("clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings")),
    Step(
        "clippy-sim",
        cargo("clippy", "-q", *SIMULATED, "--all-targets", "--", "-D", "warnings"),
        environment=TOKIO_UNSTABLE,
    ),
    Step("loader-format", cargo("fmt", "--manifest-path", "tools/load/Cargo.toml", "--check")),
    Step("loader-clippy", loader("clippy", "--all-targets", "--", "-D", "warnings")),
]

BUILDS = [
    # With the tests: a crate that only they need has features that would compile all crates again.
    Step("build-debug", cargo("build", "-q", "--workspace", "--tests", "--bin", "messina")),
    Step("build-release", cargo("build", "-q", "--release", "-p", "messina")),
]

# No example of the documentation is Rust code, and clippy compiles the programs in examples/.
UNIT = cargo("test", "-q", "--workspace", "--no-fail-fast", "--tests")
CODE = [
    Step("unit", UNIT, counts="cargo", environment=SAME_INPUTS),
    Step(
        "other-sstables",
        cargo("test", "-q", "--workspace", "--test", "all", "--", "--ignored", "other_writers"),
        counts="cargo",
        variables=("SSTABLE_FIXTURES",),
    ),
    Step("loader-unit", loader("test", "--no-fail-fast"), counts="cargo"),
    Step("laws", UNIT, counts="cargo", environment=MANY_INPUTS),
    Step(
        "fuzz",
        cargo("test", "--release", "-p", "messina-fuzz"),
        counts="cargo",
        environment={"FUZZ_SECONDS": os.environ.get("FUZZ_SECONDS", "60")},
    ),
    Step("sim-short", sim("--tests"), counts="cargo", environment={**OPTIMISED, **SAME_INPUTS}),
    Step(
        "sim-long",
        sim("--tests"),
        counts="cargo",
        environment={
            **OPTIMISED,
            "SEEDS": os.environ.get("SEEDS", str(int(max(4, SOAK_MINUTES)))),
            "EVERY": os.environ.get("EVERY", "25"),
        },
    ),
    seeds("sim-seeds", 6, 2),
    seeds("sim-many", 150, 4, aloud=True),
]

# The commands that programs of these kinds need.
NODE, JVM = ("node", "npm"), ("java", "javac", "mvn")

# What both Python drivers run.
PYTHON_NAMES = ("driver", "driver_requests", "driver_refusals", "cqlengine")
PYTHON = [f"tests/clients/test_{name}.py" for name in PYTHON_NAMES]
CQLSH = [f"tests/clients/test_cqlsh{part}.py" for part in ("", "_copy", "_describe")]
PROGRAMS, FAMILIES = "tests/clients/test_programs.py", "tests/clients/test_families.py"

PROCESSES = [
    *suite("cql", "all-cql", pytest("scylla", "tests/cql"), ["--short"]),
    *suite("paging", "all-paging", pytest("scylla", "tests/paging")),
    *suite("storage", "all-storage", pytest("scylla", "tests/storage"), ["--short"]),
    *suite("protocol", "all-protocol", pytest("scylla", "tests/protocol"), ["--short"]),
    *suite("driver-cassandra", "all-driver-cassandra", pytest("cassandra", *PYTHON), ["--short"]),
    *suite("driver-scylla", "all-driver-scylla", pytest("scylla", *PYTHON), ["--short"]),
    *(
        Step(name, pytest("scylla", f"tests/{name}"), counts="pytest", binary=DEBUG, waits=True)
        for name in ("releases", "admin", "cluster")
    ),
    release("all-cql-other-driver", pytest("cassandra", "tests/cql", "--shards", "1")),
    release("paging-other-driver", pytest("cassandra", "tests/paging")),
    release("sstables", pytest("scylla", "tests/sstable"), needs="judge-tools", tools=JVM),
    Step(
        "sstable-judge",
        ["crates/sstable/tests/judge"],
        counts="last",
        needs="judge-tools",
        tools=JVM,
    ),
    Step(
        "faults-short",
        ["tests/faults/run", "prepared", "null-in-lists", "way-out"],
        counts="last",
        binary=DEBUG,
        waits=True,
    ),
    Step("faults", ["tests/faults/run"], counts="last", binary=RELEASE, aloud=True),
]

# The languages whose programs are in tests/clients: what installs them, and the commands for it.
LANGUAGES = {
    "go": ("go-clients", ("go",)),
    "java": ("java-clients", JVM),
    "node": ("node-client", NODE),
}

CLIENTS = [
    Step("client-tools", install("shells", "rust-client")),
    Step("judge-tools", install("sstabletools"), tools=JVM),
    Step("load-tools", install("load", "latte")),
    release("cqlsh", pytest("scylla", *CQLSH)),
    release("rust-driver", pytest("scylla", PROGRAMS, FAMILIES, "-k", "rust")),
    release("load-programs", pytest("scylla", PROGRAMS, "-k", "not rust"), needs="load-tools"),
    *(
        Step(f"{name}-tools", install(part), tools=tools)
        for name, (part, tools) in LANGUAGES.items()
    ),
    *(
        step
        for name, (_, tools) in LANGUAGES.items()
        for step in suite(
            f"clients-{name}",
            f"all-clients-{name}",
            pytest("scylla", FAMILIES, "-k", name),
            ["--short"],
            tools=tools,
        )
    ),
    Step("dsbulk-tools", install("dsbulk"), tools=("java", "mvn")),
    release("dsbulk", pytest("scylla", "tests/clients/test_dsbulk.py"), tools=("java", "mvn")),
    Step("spark-tools", install("spark"), tools=JVM),
    release("spark", pytest("scylla", "tests/clients/test_spark.py"), tools=JVM),
]

# The applications of tests/apps, and the commands that their installation needs.
APPS = {
    "pekko": JVM,
    "janusgraph": JVM,
    "spring": JVM,
    "zipkin": JVM,
    "feast": (),
    "celery": (),
    "django": (),
    "express-cassandra": NODE,
    "jaeger": ("go",),
}


def app(name, tools):
    yield Step(f"{name}-app", install(name), tools=tools)
    yield Step(
        f"app-{name}",
        ["tests/apps/run", name],
        counts="last",
        binary=RELEASE,
        needs=f"{name}-app",
        tools=tools,
        aloud=True,
    )


APPLICATIONS = [step for name, tools in APPS.items() for step in app(name, tools)]


def kill9(*options):
    return ["tests/crash/kill9", *options]


def disasters(*options):
    return ["tests/cluster/disasters", *options]


def paging_disasters(driver, *options):
    return python(driver, "tests/cluster/paging-disasters", *options)


KINDS = ["kill9", "stop", "partition", "full"]

# What judges lost data: a ledger of acknowledged writes beside kill -9, SIGSTOP, partitions.
LOSSES = [
    Step("crash-tools", install("load")),
    *both(
        "crash-short",
        "crash",
        kill9(),
        short_options=["--rounds", "3", "--seconds", "3", "--keys", "20000"],
        long_options=["--rounds", "10", "--seconds", "5"],
        waits=True,
    ),
    Step("crash-reshard", kill9("--rounds", "5", "--seconds", "4", "--reshard"), binary=RELEASE),
    Step(
        "crash-long",
        kill9("--rounds", str(max(10, int(SOAK_MINUTES * 2))), "--seconds", "15"),
        binary=RELEASE,
    ),
    *both(
        "disasters-short",
        "disasters",
        disasters(),
        short_options=["--seconds", "2", "--keys", "4000", "--only", *KINDS],
        long_options=["--rounds", "3"],
        waits=True,
    ),
    Step(
        "disasters-long",
        disasters("--rounds", str(max(5, int(SOAK_MINUTES / 2)))),
        binary=RELEASE,
    ),
    *both(
        "paging-disasters-short",
        "paging-disasters-scylla",
        paging_disasters("scylla"),
        short_options=["--seconds", "6", "--rows", "80", "--calm", "3"],
        long_options=["--seconds", "60"],
        waits=True,
    ),
    Step(
        "paging-disasters-cassandra",
        paging_disasters("cassandra", "--seconds", "60"),
        binary=RELEASE,
    ),
    Step(
        "paging-disasters-long",
        paging_disasters("scylla", "--seconds", str(int(SOAK_MINUTES * 20))),
        binary=RELEASE,
    ),
]

STEPS = {
    step.name: step
    for steps in (CHECKS, BUILDS, CODE, PROCESSES, CLIENTS, APPLICATIONS, LOSSES)
    for step in steps
}

# The steps of each target of make, in their order. Those that mostly wait (`waits`) run in a second
# lane, one after another, beside those that follow them here.
GROUPS = {
    "test": """
        install format edges text checks clippy loader-format loader-clippy
        build-debug cluster crash-tools go-tools node-tools
        storage faults-short crash-short disasters-short paging-disasters-short
        cql paging releases protocol admin
        driver-cassandra driver-scylla clients-go clients-node
        unit other-sstables loader-unit sim-short sim-seeds
    """,
    "clients": """
        install client-tools load-tools judge-tools build-release
        all-cql all-cql-other-driver all-paging all-storage paging-other-driver all-protocol
        all-driver-cassandra all-driver-scylla cqlsh rust-driver
        go-tools all-clients-go node-tools all-clients-node java-tools all-clients-java
        dsbulk-tools dsbulk load-programs sstables sstable-judge
        crash crash-reshard disasters paging-disasters-scylla paging-disasters-cassandra
    """,
    "spark": "install build-release spark-tools spark",
    "apps": "install build-release " + " ".join(step.name for step in APPLICATIONS),
    "faults": "install build-release faults",
    "soak": """
        install laws crash-tools build-release
        crash-long disasters-long paging-disasters-long sim-many sim-long
    """,
    "sim": "clippy-sim sim-many sim-long",
    "fuzz": "fuzz",
}
GROUPS = {group: names.split() for group, names in GROUPS.items()}
