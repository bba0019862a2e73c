"""What bench/goodput makes of the loader's reports, and of `system.hot_partitions`."""

import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench")]

import attacks  # noqa: E402
import limits  # noqa: E402


def test_rates_are_of_the_time_asked_for():
    report = {
        "bucket_ms": 100,
        "good": [9] * 10 + [1] * 10,
        "late": [0] * 20,
        "refused": [2] * 20,
        "failed": [0] * 20,
    }
    assert attacks.per_second(report, "good", 1, 2) == pytest.approx(10)
    assert attacks.answered(report, 0, 2) == pytest.approx((90 + 10 + 40) / 2)


def listed(key, rate, table=b"zipf"):
    return [table, struct.pack(">q", key), struct.pack(">d", rate)]


def test_one_of_the_hottest_keys_may_be_missing_or_wrong():
    report = {"head": [1000 - 10 * key for key in range(20)]}
    rows = [listed(key, (1000 - 10 * key) / 10 * 1.1) for key in range(9)] + [
        listed(9, 5.0, b"other"),
        [b"zipf", None, b""],
    ]
    found = limits.compared(report, rows, 10)
    assert (found["listed"], found["rate_error"]) == (9, pytest.approx(0.1))
    # The tenth is far off: the nine others count.
    assert limits.compared(report, rows + [listed(9, 5.0)], 10)["rate_error"] == pytest.approx(0.1)
    assert limits.compared(report, [listed(key, 1.0) for key in range(9)], 10)["rate_error"] > 0.9
    assert limits.compared(report, [], 10)["rate_error"] is None


class Bench:
    cases = {("three", "accuracy-a"): {"limit": 100, "offered_of_limit": 2.0,
        "accepted_of_limit": 0.97},
             ("three", "accuracy-b"): {"limit": 1000, "offered_of_limit": 50.0,
                 "accepted_of_limit": 1.2},
             ("three", "accuracy-c"): {"limit": 10_000, "offered_of_limit": 1.5,
                 "accepted_of_limit": 1.4},
             ("three", "accuracy-d"): {"limit": 10, "offered_of_limit": 2.0,
                 "accepted_of_limit": 0.5}}

    def get(self, *_):
        return None


def test_the_worst_limit_decides():
    found = {name: value for name, value, *_ in limits.verdict(Bench())}
    assert (
        found["accepted_of_limit_least"],
        found["accepted_of_limit_most"],
        found["accuracy_cases"],
    ) == (0.97, 1.2, 2)
    assert found["accepted_of_limit_10_least"] == 0.5
