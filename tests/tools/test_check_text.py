"""`tools/check-text` on a small tree: what it finds, and that its list only shrinks."""

import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/check-text"
LONG = "x " * 51  # 101 columns without the last space


class Tree:
    def __init__(self, root):
        self.root = root
        self.write("README.md", "# A title\n")
        self.write("crates/one/src/lib.rs", "//! One.\n")
        self.write("crates/one/src/part/deep.rs", "//! Deep.\n")
        self.write("tests/all.py", "")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path):
        return (self.root / path).read_text()

    def check(self, *options):
        """(whether the check passed, what it printed)."""
        command = [sys.executable, CHECK, "--root", self.root, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path)
    passed, text = tree.check()
    assert passed, text
    return tree


def test_a_file_needs_a_header(tree):
    tree.write("crates/one/src/lib.rs", "fn f() {}\n")
    passed, text = tree.check()
    assert not passed and "crates/one/src/lib.rs:1: no `//!` header" in text


@pytest.mark.parametrize(
    "reference",
    [
        "`crates/one/src/lib.rs`",
        "`one/src/part`",
        "`one/part/deep.rs` and `one/part`",
        "`part/deep.rs`, `deep.rs`, `one/part/deep`",
        "`one/src/{lib,part/deep}.rs`",
        "`tests/all.py` and `one/lib.rs::f`",
        "`one/src/*.rs` and `tests/all.py --option`",
        "`/one/lib.rs`, `a/b`, `one::lib`, `one/...`, `data/<table>/x`",
        "[a](README.md) [b](#a-title) [c](README.md#a-title) [d](https://example.invalid/x.md)",
        "```\n`one/gone.rs`\n```",
    ],
)
def test_references_that_lead_somewhere(tree, reference):
    tree.write("README.md", f"# A title\n\n{reference}\n")
    passed, text = tree.check()
    assert passed, text


@pytest.mark.parametrize(
    "reference, told",
    [
        ("`crates/one/src/gone.rs`", "crates/one/src/gone.rs"),
        ("`one/gone`", "one/gone"),
        ("`one/src/{lib,gone}.rs`", "one/src/gone.rs"),
        ("`part/gone`", "part/gone"),
        ("`gone.rs`", "gone.rs"),
        ("`eep.rs`", "eep.rs"),
        ("`tests/gone.py --option`", "tests/gone.py"),
        ("(docs/gone.md)", "docs/gone.md"),
        ("[a](gone.md)", "gone.md"),
        ("[a](README.md#gone)", "no #gone"),
    ],
)
def test_references_that_lead_nowhere(tree, reference, told):
    tree.write("README.md", f"# A title\n\n{reference}\n")
    passed, text = tree.check()
    assert not passed and "README.md:3" in text and told in text


@pytest.mark.parametrize(
    "name, exists",
    [
        ("`Part::take`, `Part::LIMIT`, `Part::Small`, `Part::take(x)`, `one::Part`", True),
        ("`Take::all`, `Whole::field`, `Part::all`", True),
        ("`Part::gone`", False),
        ("`Other::take`", False),
        ("`Whole::take`", False),
        ("`one::Gone`", False),
    ],
)
def test_names_of_the_source_in_the_architecture(tree, name, exists):
    source = (
        "//! One. `Part::gone` and Other.\npub enum Part {\n    Small,\n}\n"
        "impl Part {\n    const LIMIT: u8 = 1;\n    pub fn take(self) {}\n}\n"
        "impl<T> Take<T> for Part {\n    fn all() {}\n}\npub trait Take<T> {\n    fn all();\n}\n"
        "pub struct Whole {\n    pub field: u8,\n}\nimpl Whole {}\n"
    )
    tree.write("crates/one/src/lib.rs", source)
    tree.write("ARCHITECTURE.md", f"{name}\n")
    passed, text = tree.check()
    assert passed == exists, text
    assert exists or f"ARCHITECTURE.md:1: {name} is not in the source" in text


def test_long_comments_and_prose_fail_and_long_code_does_not(tree):
    tree.write("crates/one/src/lib.rs", f'//! One.\nconst TEXT: &str = "{LONG}// {LONG}";\n')
    assert tree.check()[0]
    tree.write("crates/one/src/lib.rs", f"//! One.\n/*\n{LONG}y\n*/\n// {LONG}y\n")
    tree.write("README.md", f"{LONG}y\n{'x' * 120}\n")
    passed, text = tree.check()
    assert not passed
    assert "crates/one/src/lib.rs: 2 lines beyond 100 columns: 3, 5" in text
    assert "README.md: 1 lines beyond 100 columns" in text


def test_long_lines_of_python(tree):
    long, row = f"x = '{'y' * 96}'\n", f"{LONG}y\n"
    data = f'text = """\n{row}"""\n'
    tree.write("tests/all.py", f"x = '{'y' * 94}'\n{data}f(f{data[7:]})\n")
    tree.write("tests/cql/test_surface.py", long)
    passed, text = tree.check()
    assert passed, text
    tree.write("tests/all.py", f'"""One.\n\n{row}"""\n{long}x = (\n    {long[4:]})\n# {LONG}y\n')
    passed, text = tree.check()
    assert not passed and "tests/all.py: 4 lines beyond 100 columns: 3, 5, 7, 9" in text, text


def test_long_lines_of_scripts(tree):
    python, bash = "#!/usr/bin/env python3\n", "#!/usr/bin/env bash\n"
    data = f'text = """\n{LONG}y\n"""\n'
    tree.write("bench/one", python + data)
    tree.write("tests/corpus/input", f"{LONG}y\n")
    passed, text = tree.check()
    assert passed, text
    tree.write("bench/one", f"{python}{data}# {LONG}y\n")
    tree.write(".ci/run", f"{bash}# {LONG}y\n")
    passed, text = tree.check()
    assert not passed and "bench/one: 1 lines beyond 100 columns: 5" in text, text
    assert ".ci/run: 1 lines beyond 100 columns: 2" in text, text


@pytest.mark.parametrize(
    "path, text, told",
    [
        ("one/src/lib.rs", "//! One.\nfn who_is_late() {}\n", "2: who_is_late: name the machine"),
        ("one/src/lib.rs", "//! One.\nfn it_asks_nobody() {}\n", "2: it_asks_nobody: name"),
        ("one/src/lib.rs", "//! One.\nfn the_whole_is_read() {}\n", None),
        ("one/tests/all.py", "def test" "_it_says_who_reads():\n", "1: test_it_says_who"),
        ("one/tests/all.py", "def somebody():\n", None),
        ("one/src/lib.rs", "//! It.\n\n/// For\n/// whoever asks.\nfn a() {}\n", "4: whoever"),
        ("one/src/lib.rs", "//! It.\n\nconst USER: &str = \"somebody\";\n", None),
        ("one/tests/all.py", "# Nobody asks.\n", "all.py:1: Nobody"),
        ("one/tests/all.py", "USER = 'nobody'\n", None),
        ("one/README.md", "It waits for somebody.\n", "README.md:1: somebody"),
        ("one/src/lib.rs", "//! The meta" "data\n//! are old.\n", "1: metadata is singular"),
        ("one/README.md", "The meta" "data have it.\n", "1: metadata is singular"),
        ("one/README.md", "The metadata has it.\n", None),
    ],
)
def test_words(tree, path, text, told):
    tree.write(f"crates/{path}", text)
    passed, printed = tree.check()
    assert passed == (told is None) and (told or "") in printed, printed


def long_function(name, lines):
    return f"fn {name}() {{\n" + "    f();\n" * (lines - 2) + "}\n"


def test_long_functions_and_files_need_an_exception(tree):
    tree.write("crates/one/src/lib.rs", "//! One.\n" + long_function("f", 100))
    tree.write("crates/one/src/part/deep.rs", "//! Deep.\n" + "//\n" * 599)
    passed, text = tree.check()
    assert passed, text
    tree.write("crates/one/src/lib.rs", "//! One.\n" + long_function("f", 101))
    tree.write("crates/one/src/part/deep.rs", "//! Deep.\n" + "//\n" * 600)
    passed, text = tree.check()
    assert not passed
    assert "crates/one/src/lib.rs: function f has 101 lines, more than 100" in text
    assert "crates/one/src/part/deep.rs: has 601 lines, more than 600" in text
    listed = "function crates/one/src/lib.rs f 101\nfile crates/one/src/part/deep.rs 601\n"
    tree.write("tools/text-exceptions.txt", listed)
    passed, text = tree.check()
    assert not passed and text.count("needs a reason") == 2
    tree.write("tools/text-exceptions.txt", listed.replace("1\n", "1\n    # a reason\n"))
    passed, text = tree.check()
    assert passed, text


def test_exceptions_only_shrink_and_follow_files_that_moved(tree):
    old = "# A head.\n\nfunction crates/one/src/gone.rs f 105\n    # a reason\n"
    tree.write("tools/text-exceptions.txt", old)
    tree.write("crates/one/src/lib.rs", "//! One.\n" + long_function("f", 103))
    passed, text = tree.check()
    assert not passed and "function crates/one/src/gone.rs f: 0 now, not 105" in text
    passed, text = tree.check("--update")
    assert passed, text
    new = "# A head.\n\nfunction crates/one/src/lib.rs f 103\n    # a reason\n"
    assert tree.read("tools/text-exceptions.txt") == new
    tree.write("crates/one/src/lib.rs", "//! One.\n" + long_function("f", 104))
    passed, text = tree.check("--update")
    assert not passed and "function f has 104 lines, more than 103" in text
    assert tree.read("tools/text-exceptions.txt") == new


@pytest.mark.parametrize("name", ["facts/a.md", "words.md", "issue 12", "Step 7", "shared/x"])
def test_comments_must_not_name_what_is_outside(tree, name):
    tree.write("crates/one/src/lib.rs", f'//! One.\nconst TEXT: &str = "{name}";\n')
    assert tree.check()[0]
    tree.write("crates/one/src/lib.rs", f"//! One.\n// See {name}\n")
    passed, text = tree.check()
    assert not passed and f"crates/one/src/lib.rs:2: {name} is outside" in text
    tree.write("tools/text-exceptions.txt", f"outside {name} 1\n    # a reason\n")
    passed, text = tree.check()
    assert passed, text


def test_comments_may_name_documents_of_the_repository(tree):
    tree.write("crates/one/src/lib.rs", "//! One (docs/one.md).\n")
    assert not tree.check()[0]
    tree.write("docs/one.md", "")
    assert tree.check()[0]
