"""Fixtures of the tests of clusters."""

import pytest
from cluster.trio import Trio


@pytest.fixture
def trio(tmp_path):
    """Three nodes that are one cluster; with the ways to break it."""
    with Trio(tmp_path) as it:
        yield it


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Three nodes of a test file that leaves them as they are."""
    with Trio(tmp_path_factory.mktemp("quiet")) as it:
        yield it
