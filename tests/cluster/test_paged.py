"""The checker of pages finds wrong pages. These tests need no nodes."""

import random

import pytest
from cluster.paged import Change, Model, Query, any_query, in_order_of_tokens

PARTITIONS = list(range(12))


@pytest.fixture(scope="module")
def models():
    """Three replicas that missed different changes."""
    rng, own = random.Random(3), [Model() for _ in range(3)]
    for number in range(1, 400):
        change = Change.any(rng, number, PARTITIONS, 30)
        for n, model in enumerate(own):
            if rng.random() < 0.9 or n == number % 3:
                model.apply(change)
    return own


def test_rows_of_one_replica_may_be_shown(models):
    rng = random.Random(5)
    for _ in range(500):
        query = any_query(rng, "t", PARTITIONS, 3, 30)
        for model in models:
            assert query.wrong_at_one(query.expected(model), models) is None, query.text


def test_lost_doubled_misplaced_and_invented_rows_are_found(models):
    scan = Query("a scan", (), in_order_of_tokens(PARTITIONS))
    rows = scan.expected(models[0])
    everywhere = [row for row in rows if all(row in scan.expected(model) for model in models)]
    at = rows.index(everywhere[len(everywhere) // 2])
    wrong = {
        "all replicas have": rows[:at] + rows[at + 1:],
        "out of order": rows[:at] + [rows[at]] + rows[at:],
        "is out": [rows[1], rows[0], *rows[2:]],
        "no replica has": rows[:at] + [(*rows[at][:2], rows[at][2], "made up")] + rows[at + 1:],
    }
    for why, shown in wrong.items():
        assert why in (scan.wrong_at_one(shown, models) or ""), why
    limited = Query("a few", (), scan.keys, limit=7)
    assert limited.wrong_at_one(rows[:7], models) is None and "8 rows" in limited.wrong_at_one(
        rows[:8], models
    )
    counted = Query("how many", (), scan.keys, shape="count")
    assert counted.wrong_at_one([(len(rows),)], models) is None and counted.wrong_at_one(
        [(10_000,)], models
    )
    groups = Query("groups", (), scan.keys, shape="groups")
    shown = groups.expected(models[1])
    assert groups.wrong_at_one(shown, models) is None
    assert groups.wrong_at_one(shown[:2] + shown[1:], models) and groups.wrong_at_one(
        shown[1:], models
    )
