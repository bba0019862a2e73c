"""`tools/check-edges` on small workspaces: which imports it counts, and what fails."""

import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/check-edges"


class Workspace:
    """One crate, `one`, whose modules a test writes."""

    def __init__(self, root):
        self.root = root
        self.edges = "one\n"
        self.write("Cargo.toml", '[workspace]\nresolver = "3"\nmembers = ["one"]\n')
        self.write("one/Cargo.toml", '[package]\nname = "one"\nversion = "0.1.0"\n')
        self.write("one/src/lib.rs", "mod a;\nmod b;\nmod c;\n")
        for module in "abc":
            self.write(f"one/src/{module}.rs", "")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path):
        return (self.root / path).read_text()

    def check(self):
        """(whether the check passed, what it printed)."""
        self.write("tools/edges.txt", self.edges)
        command = [sys.executable, CHECK, "--root", self.root]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


def test_modules_in_order_pass(workspace):
    workspace.write("one/src/a.rs", "use crate::b::{self, B};\nuse crate::{b, c};\n")
    workspace.write("one/src/b.rs", "use super::c::C;\n")
    passed, text = workspace.check()
    assert passed, text
    assert "3 imports between modules" in text


@pytest.mark.parametrize(
    "back",
    [
        "use crate::a::A;",
        "pub(crate) use crate::{\n    c,\n    a::{self, A},\n};",
        "use super::a;",
        "fn f() { crate::a::g() }",
        "mod inner { use super::super::a::A; }",
        "use crate::A;",  # which lib.rs re-exports
    ],
)
def test_a_circle_fails_and_is_shown(workspace, back):
    workspace.write("one/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::{A, Other};\n")
    workspace.write("one/src/a.rs", "use crate::b::B;\n")
    workspace.write("one/src/b.rs", f"\n{back}\n")
    passed, text = workspace.check()
    assert not passed
    assert "a -> b (one/src/a.rs:1)" in text and "b -> a (one/src/b.rs:" in text


def test_a_folder_is_one_module(workspace):
    workspace.write("one/src/a.rs", "mod deep;\nuse crate::b::B;\n")
    workspace.write("one/src/a/deep.rs", "use super::other;\nuse crate::a::deeper;\n")
    assert workspace.check()[0]
    workspace.write("one/src/b.rs", "use crate::c::C;\n")
    workspace.write("one/src/c.rs", "mod deep;")
    workspace.write("one/src/c/deep/mod.rs", "use super::super::a::deep;\n")
    passed, text = workspace.check()
    assert not passed and "c -> a (one/src/c/deep/mod.rs:1)" in text


@pytest.mark.parametrize(
    "harmless",
    [
        "#[cfg(test)]\nmod tests { use crate::a::A; }",
        "#[cfg(test)]\nmod only_in_tests;",
        "#[cfg(all(test, unix))]\n#[allow(unused)]\nuse crate::a::A;",
        "//! [`crate::a`]\n/* crate::a::A */",
        'const TEXT: &str = "crate::a::A";\nconst RAW: &str = r#"use "crate::a::A";"#;',
        "mod inner { use super::a; }",
    ],
)
def test_tests_comments_and_literals_are_no_imports(workspace, harmless):
    workspace.write("one/src/a.rs", "use crate::b::B;\n")
    workspace.write("one/src/b.rs", harmless)
    if "only_in_tests" in harmless:
        workspace.write("one/src/b/only_in_tests.rs", "use crate::a::A;")
    workspace.write("one/src/b/tests.rs", "use crate::a::A;")
    workspace.write("one/src/b/tests/more.rs", "use crate::a::A;")
    passed, text = workspace.check()
    assert passed, text


def test_code_behind_tests_counts(workspace):
    workspace.write("one/src/a.rs", "use crate::b::B;\n")
    workspace.write("one/src/b.rs", "#[cfg(test)]\nfn f(x: [u8; 3]) { {} }\nuse crate::a::A;\n")
    assert not workspace.check()[0]


def test_a_named_circle_passes_and_needs_a_reason(workspace):
    workspace.write("one/src/a.rs", "use crate::b::B;\n")
    workspace.write("one/src/b.rs", "use crate::a::A;\n")
    workspace.edges = "one\ncircle one: b -> a\n    # for a reason\n"
    passed, text = workspace.check()
    assert passed, text
    workspace.edges = "one\ncircle one: b -> a\n"
    passed, text = workspace.check()
    assert not passed and "needs a reason" in text
    workspace.edges = "one\ncircle one: b a\n    # for a reason\n"
    passed, text = workspace.check()
    assert not passed and "not of the form" in text


@pytest.mark.parametrize(
    "reason, told",
    [
        ("A `Long` keeps `b` and `Long::part_of`.", None),
        ("A `Gone` keeps it.", "edges.txt:2: `Gone` is not in the source of one"),
        ("A `Long::gone` keeps it.", "`gone` is not in the source of one"),
        ("It is in a comment: `Told`.", "`Told` is not in the source of one"),
        ("It is a part_of another.", "part_of is a name of the source, write `part_of`"),
        ("A LongName keeps it.", "LongName is a name of the source"),
    ],
)
def test_names_in_reasons_exist(workspace, reason, told):
    workspace.write("one/src/a.rs", "use crate::b::B;\nstruct Long;\n// Told\n")
    workspace.write("one/src/b.rs", "use crate::a::A;\nfn part_of() {}\n")
    workspace.edges = f"one\ncircle one: b -> a\n    # {reason}\n"
    passed, text = workspace.check()
    assert passed == (told is None) and (told or "") in text, text


def test_edges_that_close_no_circle_must_not_be_named(workspace):
    workspace.write("one/src/a.rs", "use crate::b::B;\n")
    workspace.write("one/src/b.rs", "use crate::c::C;\n")
    workspace.edges = "one\ncircle one: a -> b c  # a reason\ncircle two: a -> b  # a reason\n"
    passed, text = workspace.check()
    assert not passed
    assert "a -> b is named, but closes no circle" in text
    assert "a -> c is named, but is no import" in text
    assert "circle two: no such crate" in text


def test_the_crate_itself_may_be_in_a_circle(workspace):
    workspace.write("one/src/lib.rs", "mod a;\nmod b;\nmod c;\nfn f() { a::run() }\nfn g() {}\n")
    workspace.write("one/src/a.rs", "use crate::g;\n")
    passed, text = workspace.check()
    assert not passed and "a -> crate" in text
    workspace.edges = "one\ncircle one: a -> crate  # a reason\n"
    assert workspace.check()[0]


def test_dependencies_between_crates_need_an_edge(workspace):
    workspace.write("Cargo.toml", '[workspace]\nresolver = "3"\nmembers = ["one", "two"]\n')
    manifest = workspace.read("one/Cargo.toml").replace("one", "two")
    workspace.write("two/Cargo.toml", manifest + '[dependencies]\none = { path = "../one" }\n')
    workspace.write("two/src/lib.rs", "")
    workspace.edges = "one\ntwo: one\n"
    assert workspace.check()[0]
    workspace.edges = "one\ntwo\n"
    passed, text = workspace.check()
    assert not passed and "two -> one: not allowed" in text
    workspace.edges = "one\ntwo:\n    one\n"
    assert workspace.check()[0]
    workspace.edges = "circle one: a -> b  # a reason\n    one\n"
    passed, text = workspace.check()
    assert not passed and "edges.txt:2: continues no line" in text
    workspace.edges = "two: one\nthree\n"
    passed, text = workspace.check()
    assert not passed and "one: not in tools/edges.txt" in text and "three: in tools" in text


def test_a_crate_for_tests_is_for_development_dependencies(workspace):
    workspace.write("Cargo.toml", '[workspace]\nresolver = "3"\nmembers = ["one", "two"]\n')
    manifest = workspace.read("one/Cargo.toml").replace("one", "two")
    workspace.write("two/src/lib.rs", "")
    workspace.edges = "one\ntwo\nfor tests: one\n"
    for kind, allowed in {"dev-dependencies": True, "dependencies": False}.items():
        workspace.write("two/Cargo.toml", f'{manifest}[{kind}]\none = {{ path = "../one" }}\n')
        passed, text = workspace.check()
        assert passed == allowed and ("two -> one: not allowed" in text) != allowed, text
