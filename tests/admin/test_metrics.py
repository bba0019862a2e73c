"""`docs/metrics.md` lists the metrics that a node exports, with their types."""

import pathlib
import re

import pytest
from launch import Node

pytestmark = pytest.mark.node

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics.md"


def test_the_page_and_the_node_agree():
    page = re.findall(
        r"^- `(scylla_[a-z0-9_]+)` \((counter|gauge|histogram)\b", PAGE.read_text(), re.M
    )
    with Node(shards=1, memory="256M") as node:
        exported = dict(re.findall(r"^# TYPE (\S+) (\S+)$", node.metrics(), re.M))
    documented = dict(page)
    assert len(page) == len(documented), "the page lists a metric twice"
    assert len(exported) > 150
    assert sorted(exported.keys() - documented.keys()) == [], "the page lacks metrics of the node"
    assert (
        sorted(documented.keys() - exported.keys()) == []
    ), "the page lists metrics that the node does not export"
    assert documented == exported, "types differ"
