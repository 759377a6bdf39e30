"""What a .dockerignore leaves out of a build context.

The rules are those of Docker, whose code (github.com/moby/patternmatcher) makes a regular expression of Go of each
pattern. test/contract/ignore.yaml has examples, which the SDKs for TypeScript and Go follow too."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_LINE = 64 << 10  # bytes
MAX_REPEAT = 1000  # that a regular expression of Go may ask for

SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
    "\u205f\u3000"
)
ESCAPED = ".+()$"  # characters of a pattern that are themselves in its regular expression
CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}  # what a backslash makes of letters
CHARACTERS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
PLACES = {"b": r"(?a:\b)", "B": r"(?a:\B)", "A": r"\A", "z": r"\Z"}


class BadPattern(ValueError):
    """Why a pattern is none."""


class Ignore:
    """What the patterns of a .dockerignore leave out."""

    def __init__(self, text: bytes = b"") -> None:
        cleaned = (clean(p) for p in map(trimmed, patterns(text)) if p)
        self.patterns = [(p.startswith("!"), matcher(p)) for p in cleaned]
        self.exceptions = any(exception for exception, _ in self.patterns)
        """Something below a directory that is left out may be in the context all the same."""

    def out(self, path: str) -> bool:
        """Whether a path of the context, with slashes, is left out."""
        if not self.patterns:
            return False
        parts = path.split("/")
        places = [path, *("/".join(parts[: i + 1]) for i in range(len(parts) - 1))]
        left = False
        for exception, matches in self.patterns:
            if exception == left and any(map(matches, places)):
                left = not exception
        return left


def patterns(text: bytes) -> list[str]:
    """The patterns of a file, in their short form."""
    found = []
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if len(line) >= MAX_LINE:
            raise BadPattern(f"a line has more than {MAX_LINE} bytes")
        pattern = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        if pattern.startswith("#") or not (pattern := trimmed(pattern)):
            continue
        exception = pattern.startswith("!")
        if pattern := trimmed(pattern[exception:]):
            pattern = clean(pattern)
            if len(pattern) > 1:
                pattern = pattern.removeprefix("/")
        found.append("!" + pattern if exception else pattern)
    return found


def trimmed(text: str) -> str:
    return text.strip(SPACE)


def clean(path: str) -> str:
    """The shortest form of a path."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part == ".." and not path.startswith("/") or part not in ("", ".", ".."):
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a path is one that a pattern means, with or without an exclamation mark before it."""
    try:
        return _matcher(pattern.removeprefix("!"))
    except BadPattern as e:
        raise BadPattern(f"the pattern {pattern!r}: {e}") from None


def _matcher(pattern: str) -> Callable[[str], bool]:
    if not pattern:
        raise BadPattern("it is an exclamation mark and nothing else")
    check(pattern)
    kind, text = expression(pattern)
    if kind == "exact":
        return pattern.__eq__
    if kind == "prefix":
        start = pattern[:-2]
        return lambda path: path.startswith(start)
    if kind == "suffix":
        end = pattern[2:]
        return lambda path: path.endswith(end) or end[:1] == "/" and path == end[1:]
    search = re.compile(Translation(text).text).search
    return lambda path: search(path) is not None


def check(pattern: str) -> None:
    """Refuses what Go's path.Match does."""
    i = 0

    def character() -> None:
        nonlocal i
        if pattern[i : i + 1] in ("", "-", "]"):
            raise BadPattern("a class is empty, or a range has no end")
        i += 2 if pattern[i] == "\\" else 1
        if i >= len(pattern):
            raise BadPattern("a class has no end")

    while i < len(pattern):
        c, i = pattern[i], i + 1
        if c == "\\":
            if i == len(pattern):
                raise BadPattern("it ends with a backslash")
            i += 1
        elif c == "[":
            i += pattern[i : i + 1] == "^"
            ranges = 0
            while ranges == 0 or pattern[i] != "]":
                character()
                if pattern[i] == "-":
                    i += 1
                    character()
                ranges += 1
            i += 1


def expression(pattern: str) -> tuple[str, str]:
    """How a pattern is matched, and its regular expression in the syntax of Go."""
    kind, out, i, first = "exact", "^", 0, True
    while i < len(pattern):
        c, i = pattern[i], i + 1
        if c == "*" and pattern[i : i + 1] == "*":
            i += 1
            i += pattern[i : i + 1] == "/"
            if i < len(pattern):
                out += "(.*/)?"
                kind = "expression"
            elif kind == "exact":
                kind = "prefix"
            else:
                out += ".*"
                kind = "expression"
            if first:
                kind = "suffix"
        elif c in "*?":
            out += "[^/]*" if c == "*" else "[^/]"
            kind = "expression"
        elif c in ESCAPED:
            out += "\\" + c
        elif c == "\\":
            out += c + pattern[i]
            i += 1
            kind = "expression"
        else:
            out += c
            if c in "[]":
                kind = "expression"
        first = False
    return kind, out + "$"


def literal(c: str) -> str:
    return f"\\U{ord(c):08x}"


class Translation:
    """A regular expression of Go, made by expression, in the syntax of Python."""

    def __init__(self, source: str) -> None:
        self.source, self.at, self.text = source, 1, "^"
        self.last: str | None = "^"  # what may be repeated; None: nothing
        while self.at < len(source) - 1:
            self.one()
        self.text += r"\Z"

    def add(self, text: str, length: int, again: bool = True) -> None:
        self.text, self.at, self.last = self.text + text, self.at + length, text if again else None

    def one(self) -> None:
        rest, c = self.source[self.at : -1], self.source[self.at]
        if rest.startswith("(.*/)?"):
            self.add(r"(?:[^\n]*/)?", 6, again=False)
        elif rest.startswith(".*"):
            self.add(r"[^\n]*", 2, again=False)
        elif c == "[":
            self.add_class()
        elif c == "*":
            self.repeat("*", 1)
        elif c == "{" and (times := re.match(r"\{([0-9]+)(,([0-9]*))?\}", rest)):
            least, most = int(times[1]), int(times[3] or times[1])
            if not least <= most <= MAX_REPEAT:
                raise BadPattern(f"{times[0]}: it repeats something too often")
            self.repeat(times[0], len(times[0]), least)
        elif c == "|":
            self.add(c, 1, again=False)
        elif c == "^":
            self.add(c, 1)
        elif c == "\\":
            self.add_escaped(rest[1])
        else:
            self.add(literal(c), 1)

    def repeat(self, text: str, length: int, least: int = 0) -> None:
        """Repeats what is last. A place is the same place however often it is asked for."""
        if self.last is None:
            raise BadPattern(f"{text}: there is nothing to repeat before it")
        if self.last == "^" or self.last in PLACES.values():
            self.text = self.text.removesuffix("" if least else self.last)
            text = ""
        self.add(text, length, again=False)

    def add_escaped(self, c: str) -> None:
        if c.lower() in CLASSES:
            self.add(f"[{'^' if c.isupper() else ''}{CLASSES[c.lower()]}]", 2)
        elif c in PLACES:
            self.add(PLACES[c], 2)
        else:
            self.add(literal(self.escaped(c)), 2)

    def escaped(self, c: str) -> str:
        """The character that a backslash makes of another."""
        if not c.isascii() or c.isalnum() and c not in CHARACTERS:
            raise BadPattern(f"\\{c}: a backslash has no meaning there")
        return CHARACTERS.get(c, c)

    def add_class(self) -> None:
        at = self.at + 1
        out = "[^" if self.source[at] == "^" else "["
        at += self.source[at] == "^"
        end, first = len(self.source) - 1, True

        def character() -> str:
            nonlocal at
            if at >= end:
                raise BadPattern("a class has no end")
            c, at = self.source[at], at + 1
            if c == "\\" and at < end:
                c, at = self.escaped(self.source[at]), at + 1
            return c

        while first or at >= end or self.source[at] != "]":
            first = False
            if self.source[at : at + 2] == "[:":
                raise BadPattern("a class has no names such as [:alpha:]")
            if self.source[at] == "\\" and self.source[at + 1] in CLASSES:
                out, at = out + CLASSES[self.source[at + 1]], at + 2
                continue
            low = high = character()
            if self.source[at : at + 1] == "-" and self.source[at + 1] != "]" and at + 1 < end:
                at += 1
                high = character()
            if high < low:
                raise BadPattern(f"{low}-{high}: a range is backwards")
            out += f"{literal(low)}-{literal(high)}"
        self.add(out + "]", at + 1 - self.at)
