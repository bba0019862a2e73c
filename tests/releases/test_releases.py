"""Data directories that earlier releases wrote are opened, and answer what they answered then."""

import importlib.machinery
import importlib.util
import json
import pathlib
import tarfile

import pytest
from database import connect
from launch import Node

HERE = pathlib.Path(__file__).resolve().parent
RELEASES = sorted(path.name.removesuffix(".tar.gz") for path in HERE.glob("*.tar.gz"))

loader = importlib.machinery.SourceFileLoader("make_release", str(HERE / "make"))
make_release = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("make_release", loader)
)
loader.exec_module(make_release)


def extracted(release, path):
    """The data directory of a release, and what it answers."""
    with tarfile.open(HERE / f"{release}.tar.gz") as archive:
        archive.extractall(path, filter="data")
    return path / "data", json.loads((HERE / f"{release}.json").read_text())


def test_there_is_one():
    assert "0.1.0" in RELEASES


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("release", RELEASES)
def test_opens(release, shards, tmp_path):
    data, known = extracted(release, tmp_path)
    node = Node(shards=shards, memory="256M", data_dir=data, config=make_release.CONFIG)
    try:
        for _ in range(2):
            node.start()
            cluster, session = connect(node.address)
            assert make_release.answers(session) == known
            cluster.shutdown()
            assert node.stop() == 0
    finally:
        node.close()
