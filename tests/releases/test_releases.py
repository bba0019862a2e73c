"""Data directories that earlier releases wrote are opened, and answer what they answered then."""

import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import tarfile

import pytest
from database import connect
from launch import Node

HERE = pathlib.Path(__file__).resolve().parent
RELEASES = sorted(path.name.removesuffix(".tar.gz") for path in HERE.glob("*.tar.gz"))

loader = importlib.machinery.SourceFileLoader("make_release", str(HERE / "make"))
make_release = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_release", loader))
loader.exec_module(make_release)


def extracted(release, path):
    """The data directory of a release, and what it answers."""
    with tarfile.open(HERE / f"{release}.tar.gz") as archive:
        archive.extractall(path, filter="data")
    return path / "data", json.loads((HERE / f"{release}.json").read_text())


def test_there_is_one():
    assert "step-1" in RELEASES


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


def test_what_a_crash_of_step_1_left_unfinished_is_removed(tmp_path):
    """That release marked unfinished sstables only at their end. The first start removes them; a later start quarantines such files."""
    data, known = extracted("step-1", tmp_path)
    sealed = next(data.glob("data/old/many-*/me-*-big-TOC.txt"))
    beginning = sealed.name.removesuffix("TOC.txt")

    def leave_unfinished(generation):
        for component in ("Data.db", "Index.db", "Filter.db"):
            shutil.copy(sealed.with_name(beginning + component), sealed.with_name(f"me-{generation}-big-{component}"))

    node = Node(shards=2, memory="256M", data_dir=data, config=make_release.CONFIG)
    try:
        leave_unfinished(77)
        node.start()
        cluster, session = connect(node.address)
        assert make_release.answers(session) == known
        cluster.shutdown()
        quarantine = sealed.parent / "quarantine"
        assert not quarantine.exists(), list(quarantine.iterdir())
        assert not list(sealed.parent.glob("me-77-*"))
        assert node.stop() == 0
        leave_unfinished(78)
        node.start()
        assert len(list(quarantine.glob("me-78-*"))) == 3, "nothing of unknown origin is removed"
        assert node.stop() == 0
    finally:
        node.close()
