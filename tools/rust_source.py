"""Reads Rust source for the checks of this folder: comments, literals, test code, functions, paths.

It is not a parser. It blanks out comments and literals (every character but a line break becomes a
space, so positions stay), and finds items by their brackets.
"""

import bisect
import re

_PART = re.compile(
    r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?<!\w) [bc]? r (?P<hashes>\#*) " .*? " (?P=hashes)   # raw strings
  | [bc]? " (?: \\. | [^"\\] )* "
  | b? ' (?: \\ (?: x[0-9a-fA-F]{2} | u\{[^}]*\} | . ) | [^'\\] ) '
    """,
    re.VERBOSE | re.DOTALL,
)
_NOT_A_LINE_BREAK = re.compile(r"[^\n]")
_TEST_ATTRIBUTE = re.compile(r"#!?\[\s*cfg\s*\(\s*(?:test\b|all\s*\(\s*test\b)")
_ATTRIBUTE = re.compile(r"\s*#\s*\[")
_BRACKET = re.compile(r"[()\[\]{};]")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_MODULE = re.compile(r"\bmod\s+(\w+)\s*([;{])")
_FUNCTION = re.compile(r"\bfn\s+(\w+)")
_PATH = re.compile(r"(?<![\w:$])((?:crate|super|self)\s*::)")
_WORD = re.compile(r"\s*(?:r#)?(\w+|\*)")
_COLONS = re.compile(r"\s*::\s*")
_TREE = re.compile(r"[{},]")


def _spaces(text):
    return " " * len(text) if "\n" not in text else _NOT_A_LINE_BREAK.sub(" ", text)


def blank(text):
    """The text with spaces for all comments and literals."""
    return _PART.sub(lambda part: _spaces(part[0]), text)


def comments(text):
    """(position, text) of every comment."""
    return [(part.start(), part[0]) for part in _PART.finditer(text) if part["comment"]]


class Lines:
    """Which line a position is on, from 1."""

    def __init__(self, text):
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def of(self, position):
        return bisect.bisect_right(self.starts, position)


def item_end(code, position):
    """Behind the item that begins at `position`: its block's closing bracket or its semicolon."""
    depth = 0
    for bracket in _BRACKET.finditer(code, position):
        kind = bracket[0]
        if kind in _OPENING:
            depth += 1
        elif kind in _CLOSING:
            depth -= 1
            if depth == 0 and kind == "}":
                return bracket.end()
            if depth < 0:
                return bracket.start()  # the last field or variant of a list
        elif depth == 0:
            return bracket.end()
    return len(code)


def _attribute_end(code, position):
    depth = 0
    for bracket in _BRACKET.finditer(code, position):
        if bracket[0] in _OPENING:
            depth += 1
        elif bracket[0] in _CLOSING:
            depth -= 1
            if depth == 0:
                return bracket.end()
    return len(code)


def without_tests(code):
    """(blanked code without items under `#[cfg(test)]`, the modules that these items declare)."""
    pieces, modules, at = [], set(), 0
    for found in _TEST_ATTRIBUTE.finditer(code):
        if found.start() < at:
            continue
        if found[0].startswith("#!"):
            return "", modules  # the entire file
        start = _attribute_end(code, found.start())
        while (more := _ATTRIBUTE.match(code, start)) is not None:
            start = _attribute_end(code, more.end() - 1)
        end = item_end(code, start)
        declared = _MODULE.search(code, start, end)
        if declared and declared[2] == ";":
            modules.add(declared[1])
        pieces += [code[at : found.start()], _spaces(code[found.start() : end])]
        at = end
    return "".join([*pieces, code[at:]]), modules


def inline_modules(code):
    """(start, end, name) of the modules whose body is in this file."""
    return [
        (found.start(), item_end(code, found.start()), found[1])
        for found in _MODULE.finditer(code)
        if found[2] == "{"
    ]


def functions(code):
    """(name, start, end) of every function with a body."""
    found = []
    for function in _FUNCTION.finditer(code):
        end = item_end(code, function.start())
        if code[end - 1] == "}":
            found.append((function[1], function.start(), end))
    return found


def paths(code, module):
    """(position, path) of what the code of `module` (a list of names) names within its crate.

    A path is a list of names from the crate's root, cut behind the first name that is no `super` or
    `self`: enough to find the module of the root that it leads to.
    """
    inside = inline_modules(code)
    for found in _PATH.finditer(code):
        here = [*module, *(name for start, end, name in inside if start < found.start() < end)]
        for path in _resolved(code, found.start(), here):
            yield found.start(), path


def _resolved(code, position, base):
    """The paths that begin at `position`: one, or one for each branch of `{...}`."""
    word = _WORD.match(code, position)
    if word is None:
        for branch in _branches(code, position):
            yield from _resolved(code, branch, base)
        return
    name = word[1]
    if name in ("crate", "super", "self"):
        base = {"crate": [], "super": base[:-1], "self": base}[name]
        colons = _COLONS.match(code, word.end())
        if colons:
            yield from _resolved(code, colons.end(), base)
        else:
            yield base
    else:
        yield [*base, name]


def _branches(code, position):
    """Where the branches of the use tree `{...}` at `position` begin."""
    depth = 0
    for found in _TREE.finditer(code, position):
        if found[0] == "}":
            depth -= 1
            if depth == 0:
                return
            continue
        depth += found[0] == "{"
        if depth == 1:
            yield found.end()
