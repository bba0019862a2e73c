"""Fixtures of the tests of clusters."""

import pytest
from cluster.trio import Trio


@pytest.fixture
def trio(tmp_path):
    """Three nodes of one cluster, with the ways to break it."""
    with Trio(tmp_path, address_change_delay_in_ms=5000) as it:
        yield it


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Three nodes for a test file that does not change them."""
    with Trio(tmp_path_factory.mktemp("quiet")) as it:
        yield it
