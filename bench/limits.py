"""How exact limits are, and whether the hottest partitions are listed: parts `accuracy` and `zipf`
of bench/goodput."""

import itertools
import struct

from attacks import (
    ATTACK_FLIGHT, FLIGHT, One, Three, Load, answered, ask, create, fill, limit, per_second,
)
from wire import ERROR

LEVELS = ("one", "quorum", "all")
ROUTES = ("owner", "any")
# Loads run beside each other as long as they offer no more than this per second together. A load
# that offers more alone is a closed loop.
MOST = 20_000
SKIPPED = 3  # seconds that are not counted: from the fourth second on
EXACT, LOW = (100, 1000, 10_000), 10  # limits per second
# Other partitions, of a table with a limit of 1 per second, and the reads per second of all of them
# together. Each is below its limit.
OTHERS, CROWDS = "goodput.others", ((1_200, 1_000), (20_000, 10_000))
# The loads beside them: operation, level, route, limit and multiple.
CROWDED = [
    ("read", "one", "any", 100, 3),
    ("read", "quorum", "any", 100, 3),
    ("write", "quorum", "any", 100, 3),
]
LISTED = 10  # partitions that must be listed, but one
ZIPF_TABLE = "goodput.zipf"


# -- accuracy --------------------------------------------------------------------------------------

def case_of(kind):
    operation, level, route, most, multiple = kind
    return f"accuracy-{operation}-{level}-{route}-{most}-x{multiple}"


def batches(bench):
    """Combinations of operation, level, route, limit and multiple that run beside each other."""
    levels = bench.short(("quorum",), LEVELS)
    for route, most, multiple in itertools.product(ROUTES,
            bench.short((LOW, 100, 1000), (LOW, *EXACT)), bench.short((2, 100), (2, 10, 100))):
        if multiple == 100 and most * 10 > MOST:
            continue  # The same closed loop as 10 times the limit.
        beside = max(1, min(6, MOST // (most * multiple)))
        kinds = [
            (operation, level, route, most, multiple)
            for operation in ("read", "write")
            for level in levels
        ]
        for at in range(0, len(kinds), beside):
            yield kinds[at:at + beside]


def accuracy(bench, emit):
    server = Three("1G", shards=2)
    seconds, keys = bench.short(8, 30), itertools.count(1)
    try:
        server.start()
        create(server)
        fill(server, 10_000)
        for batch in batches(bench):
            measure(bench, emit, server, batch, keys, seconds)
        create(server, OTHERS)
        fill(server, max(count for count, _ in CROWDS), OTHERS)
        limit(server, OTHERS, reads=1, writes=1)
        for count, rate in CROWDS:
            plan = f"{rate}:{SKIPPED + seconds + 4}"
            others = Load(server, OTHERS, level="one", keys=count, plan=plan, flight=ATTACK_FLIGHT)
            measure(bench, emit, server, CROWDED, keys, seconds, f"-beside-{count}")
            others.report()
    finally:
        server.close()


def measure(bench, emit, server, batch, keys, seconds, beside=""):
    """Offers loads beside each other, and counts what is accepted of each."""
    most = batch[0][3]
    limit(server, reads=most, writes=most)
    # Each load has a key of its own, without a history.
    loads = [start(server, kind, next(keys), seconds) for kind in batch]
    for kind, load in zip(batch, loads):
        report = load.report()
        since, until = SKIPPED, SKIPPED + seconds
        accepted = sum(per_second(report, name, since, until) for name in ("good", "late"))
        emit(bench, server, case_of(kind) + beside, {
            "limit": most,
            "offered_of_limit": round(answered(report, since, until) / most, 2),
            "accepted_of_limit": round(accepted / most, 4),
            "failed": sum(report["failed"]),
            "codes": report["codes"],
        })


def start(server, kind, key, seconds):
    operation, level, route, most, multiple = kind
    rate = most * multiple
    plan = f"{rate if rate <= MOST else 0}:{SKIPPED + seconds + 1}"
    return Load(
        server,
        op=operation,
        level=level,
        route=route,
        first=key,
        plan=plan,
        flight=ATTACK_FLIGHT,
    )


# -- the hottest partitions ------------------------------------------------------------------------

def zipf(bench, emit):
    server = One("2G")
    keys, seconds = bench.short(100_000, 1_000_000), bench.short(12, 30)
    try:
        server.start()
        create(server, ZIPF_TABLE)
        fill(server, keys, ZIPF_TABLE)
        load = Load(server, ZIPF_TABLE, keys=keys, zipf=1.0, flight=FLIGHT, plan=f"0:{seconds}")
        load.wait_until(seconds - 1)
        answer = ask(server, "SELECT table_name, key, reads_per_second FROM system.hot_partitions")
        report = load.report()
        if answer.opcode == ERROR:
            return emit(bench, server, "zipf", {"skipped": answer.message})
        emit(bench, server, "zipf", compared(report, answer.rows(), seconds))
    finally:
        server.close()


def compared(report, listed, seconds):
    """The hottest keys by the client's count, and what the server lists of them."""
    true = sorted(
        ((count / seconds, key) for key, count in enumerate(report["head"])), reverse=True
    )[:LISTED]
    rates = {}
    for table, key, reads in listed:
        if table == ZIPF_TABLE.split(".")[1].encode() and key is not None:
            rates[struct.unpack(">q", key)[0]] = struct.unpack(">d", reads)[0]
    known = [(key, rate, rates[key]) for rate, key in true if key in rates]
    # One of the ten may be missing, or be wrong.
    errors = sorted(abs(theirs / rate - 1) for _, rate, theirs in known)[:LISTED - 1]
    return {
        "listed": len(known),
        "rate_error": round(errors[-1], 4) if errors else None,
        "true_and_listed": [(key, round(rate), round(theirs)) for key, rate, theirs in known],
        "rows": len(listed),
    }


# -- the verdict -----------------------------------------------------------------------------------

def verdict(bench):
    def ratios(limits):
        each = [
            figures
            for (_, case), figures in bench.cases.items()
            if case.startswith("accuracy-") and figures["limit"] in limits
        ]
        # Less than twice the limit was offered: the loader could not do more.
        return [
            figures["accepted_of_limit"] for figures in each if figures["offered_of_limit"] >= 1.95
        ]

    exact, low = ratios(EXACT), ratios((LOW,))
    get = lambda key: bench.get(("one", "zipf"), key)  # noqa: E731
    return [
        ("accepted_of_limit_least", min(exact, default=None), ">=", 0.9, None),
        ("accepted_of_limit_most", max(exact, default=None), "<=", 1.1, None),
        ("accuracy_cases", len(exact) or None, None, None, None),
        (f"accepted_of_limit_{LOW}_least", min(low, default=None), ">=", None, 0.8),
        (f"accepted_of_limit_{LOW}_most", max(low, default=None), "<=", None, 1.2),
        ("hottest_listed", get("listed"), ">=", LISTED - 1, None),
        ("hottest_rate_error", get("rate_error"), "<=", 0.2, None),
    ]
