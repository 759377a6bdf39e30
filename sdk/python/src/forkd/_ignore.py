"""Finds the files that a .dockerignore excludes from a build context.

The rules are those of Docker, whose code (github.com/moby/patternmatcher) translates each pattern to a
regular expression of Go. test/contract/ignore.yaml has examples, which the SDKs for TypeScript and Go follow
too.

The module re backtracks, so it can take years for a pattern with twenty stars. Here these expressions are
matched in the same way as in Go: by an automaton that reads each character of a path once, for the path and
all its parents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

MAX_LINE = 64 << 10  # bytes
MAX_REPEAT = 1000  # maximum repetition in a regular expression of Go
MAX_PARTS = 1 << 18  # parts of an expression; a repetition counts as often as it repeats
MAX_KEPT = 1 << 14  # parts and transitions of states that an automaton keeps

SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
    "\u205f\u3000"
)
ESCAPED = ".+()$"  # characters that a pattern matches literally, and a regular expression does not
# The classes of characters that a backslash and a letter stand for.
CLASSES = {"d": ["09"], "w": ["09", "AZ", "__", "az"], "s": ["\t\n", "\f\r", "  "]}
CHARACTERS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
PLACES = {"b": "b", "B": "B", "A": "^"}  # see Part
TIMES = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}")


class BadPattern(ValueError):
    """The reason why a pattern is invalid."""


class Ignore:
    """The patterns of a .dockerignore."""

    def __init__(self, text: bytes = b"") -> None:
        cleaned = (clean(p) for p in map(trimmed, patterns(text)) if p)
        self.patterns = [(p.startswith("!"), matcher(p)) for p in cleaned]
        self.exceptions = any(exception for exception, _ in self.patterns)
        """Some path below an excluded directory may still be in the context."""

    def out(self, path: str) -> bool:
        """Whether a path of the context, with slashes, is excluded."""
        left = False
        for exception, matches in self.patterns:
            if exception == left and matches(path):
                left = not exception
        return left


def patterns(text: bytes) -> list[str]:
    """The patterns of a file, in normalized form."""
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
    """A function that reports whether a pattern matches a path or one of its parents.

    The pattern may begin with "!".
    """
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
        return lambda path: path == pattern or path.startswith(pattern + "/")
    if kind == "prefix":
        start = pattern[:-2]
        return lambda path: path.startswith(start)
    if kind == "suffix":
        end = pattern[2:]  # the path a matches the end /a too
        return lambda path: any(("/" + path).endswith(end, 0, 1 + to) for to in ends(path))
    return Automaton(Parser(text)).matches


def ends(path: str) -> Iterator[int]:
    """The lengths of a path's parents and of the path."""
    to = path.find("/")
    while to >= 0:
        yield to
        to = path.find("/", to + 1)
    yield len(path)


def check(pattern: str) -> None:
    """Refuses patterns that Go's path.Match refuses."""
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
    """The way in which a pattern is matched, and its regular expression in the syntax of Go."""
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


class Chars(NamedTuple):
    """A set of characters: those of some ranges, or all others. A range is a string of its first and last character."""

    ranges: tuple[str, ...]
    others: bool = False

    def has(self, c: str) -> bool:
        return any(r[0] <= c <= r[1] for r in self.ranges) != self.others


class Part(NamedTuple):
    """A part of an expression: a character, or a place between two. "^" is the beginning, "$" the end, "b" the
    beginning or the end of a word, "B" any other place, and "" every place. At "found" the expression ends."""

    what: Chars | str
    loop: bool = False
    """Whether the part matches any number of these characters."""
    skip: int = 0
    """The number of parts, from this one on, that may be skipped; 0: none."""


WORD = Chars(tuple(CLASSES["w"]))
SLASH = Part(Chars(("//",)))
ANY = Part(Chars(("\n\n",), others=True), loop=True, skip=1)
FOUND = Part("found")


class Parser:
    """Parses a regular expression of Go that the function expression has made. Its parts are stored in order."""

    def __init__(self, source: str) -> None:
        self.source, self.at, self.end = source, 1, len(source) - 1
        self.parts = [Part("^")]
        self.first = [0]  # indices of the parts with which alternatives begin
        self.last: Part | None = self.parts[0]  # the part that a repetition would repeat; None: there is none
        while self.at < self.end:
            self.one()
            if len(self.parts) > MAX_PARTS:
                raise BadPattern("it repeats too much")
        self.add(0, Part("$"), FOUND)

    def add(self, length: int, *parts: Part) -> None:
        """Adds the parts for the next length characters of the expression."""
        self.at += length
        self.parts += parts
        self.last = parts[0] if len(parts) == 1 and parts[0] is not ANY else None

    def one(self) -> None:
        source, c = self.source, self.source[self.at]
        if source.startswith("(.*/)?", self.at):
            self.add(6, Part("", skip=3), ANY, SLASH)
        elif source.startswith(".*", self.at):
            self.add(2, ANY)
        elif c == "[":
            self.add_class()
        elif c == "*":
            self.repeat("*", 0, None)
        elif c == "{" and (times := TIMES.match(source, self.at, self.end)):
            least, most = int(times[1]), int(times[3] or times[1])
            if not least <= most <= MAX_REPEAT:
                raise BadPattern(f"{times[0]}: it repeats something too often")
            self.repeat(times[0], least, None if times[2] == "," else most)
        elif c == "|":
            self.add(1, FOUND)
            self.first.append(len(self.parts))
            self.last = None
        elif c == "^":
            self.add(1, Part("^"))
        elif c == "\\":
            self.add_escaped(source[self.at + 1])
        else:
            self.add(1, Part(Chars((c + c,))))

    def repeat(self, text: str, least: int, most: int | None) -> None:
        """Repeats the last part. A place has no length, so a place that must occur is kept once."""
        part = self.last
        if part is None:
            raise BadPattern(f"{text}: there is nothing to repeat before it")
        self.parts.pop()
        if isinstance(part.what, str):
            more = [part] * min(least, 1)
        elif most is None:
            more = [part] * least + [Part(part.what, loop=True, skip=1)]
        else:
            more = [part] * least + [Part(part.what, skip=1)] * (most - least)
        self.add(len(text), *more)
        self.last = None

    def add_escaped(self, c: str) -> None:
        if c.lower() in CLASSES:
            self.add(2, Part(Chars(tuple(CLASSES[c.lower()]), others=c.isupper())))
        elif c in PLACES:
            self.add(2, Part(PLACES[c]))
        else:
            self.add(2, Part(Chars((self.escaped(c) * 2,))))

    def escaped(self, c: str) -> str:
        """The character that a backslash and c stand for."""
        if not c.isascii() or c.isalnum() and c not in CHARACTERS:
            raise BadPattern(f"\\{c}: a backslash has no meaning there")
        return CHARACTERS.get(c, c)

    def add_class(self) -> None:
        at, ranges = self.at + 1, list[str]()
        others = self.source[at] == "^"
        at += others
        end, first = self.end, True

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
                ranges += CLASSES[self.source[at + 1]]
                at += 2
                continue
            low = high = character()
            if self.source[at : at + 1] == "-" and self.source[at + 1] != "]" and at + 1 < end:
                at += 1
                high = character()
            if high < low:
                raise BadPattern(f"{low}-{high}: a range is backwards")
            ranges.append(low + high)
        self.add(at + 1 - self.at, Part(Chars(tuple(ranges), others)))


class State:
    """The state of an automaton after a character of a path."""

    def __init__(self, parts: frozenset[int] = frozenset(), word: bool | None = None) -> None:
        self.parts = parts  # parts of the expression that may match next
        self.word = word  # whether the character belongs to a word; None: at the beginning of the path
        self.next: dict[str, State] = {}  # the following states, by the next character, or "" for the end of the path


YES, NO = State(), State()  # the result is certain, whatever characters follow


class Automaton:
    """Finds an expression in paths. A character takes at most as many steps as the expression has parts. It
    takes only one step if the automaton has been in the same state before."""

    def __init__(self, parser: Parser) -> None:
        self.parts, self.first = parser.parts, frozenset(parser.first)
        self.later = frozenset(i for i in self.first if self.parts[i] != Part("^"))  # they may begin anywhere
        self.forget()

    def forget(self) -> None:
        self.begin, self.kept = State(self.first), 0
        self.states: dict[tuple[frozenset[int], bool], State] = {}

    def matches(self, path: str) -> bool:
        """Whether the expression is in a path or in one of its parents."""
        state = self.begin
        for c in path:
            if c == "/" and self.then(state, "") is YES:
                return True
            state = state.next.get(c) or self.then(state, c)
            if state is YES or state is NO:
                return state is YES
        return self.then(state, "") is YES

    def then(self, state: State, c: str) -> State:
        """The state that follows a state after a character, or at the end of the path."""
        if c not in state.next:
            if self.kept > MAX_KEPT:
                self.forget()
            state.next[c] = self.found(state, c)
            self.kept += 1
        return state.next[c]

    def found(self, state: State, c: str) -> State:
        word = c != "" and WORD.has(c)
        edge = word != bool(state.word)
        here = {"": True, "^": state.word is None, "$": c == "", "b": edge, "B": not edge}
        todo, seen, after = list(state.parts), set(state.parts), set(self.later)
        for i in todo:
            what, loop, skip = self.parts[i]
            ahead = [i + skip] if skip else []
            if isinstance(what, Chars):
                if c and what.has(c):
                    after.add(i if loop else i + 1)
            elif what == "found":
                return YES
            elif here[what]:
                ahead.append(i + 1)
            todo += (n for n in ahead if n not in seen)
            seen.update(ahead)
        if c == "" or not after:
            return NO
        key = frozenset(after), word
        if key not in self.states:
            self.states[key] = State(*key)
            self.kept += len(after)
        return self.states[key]
