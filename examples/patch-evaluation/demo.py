"""An evaluation like SWE-bench's: one warm repository, many patches, their tests in parallel, a table.

The source sandbox has the repository, and has run its tests once. Each patch is applied in a fork of it. Then the
evaluation replaces the tests in the fork by its own, and runs them. A patch resolves the task if the tests that failed
before now pass, and the tests that passed before still pass.

The patches here are fixed. Replace PATCHES by the patches of your model."""

import argparse
import difflib
import re
import time

from forkd import Sandbox

HOME = "/srv/repository"
SOURCE = {
    "text.py": '''def words(text):
    """The words of a text, in lower case."""
    return text.split(" ")


def title(text):
    return " ".join(word.capitalize() for word in words(text))
''',
    "count.py": '''from text import words


def count(text):
    found = {}
    for word in words(text):
        found[word] = found.get(word, 0) + 1
    return found
''',
}
TESTS = """import unittest

from count import count
from text import title, words


class Tests(unittest.TestCase):
    def test_case(self):
        self.assertEqual(words("A b"), ["a", "b"])

    def test_count(self):
        self.assertEqual(count("a b a"), {"a": 2, "b": 1})

    def test_lines(self):
        self.assertEqual(words("a\\nb  c"), ["a", "b", "c"])

    def test_title(self):
        self.assertEqual(title("the end"), "The End")
"""
BODY = 'return text.split(" ")'
PATCHES = {  # what each patch writes instead of the body of words()
    "gold": "return text.lower().split()",
    "half": "return text.split()",
    "breaks another": "return text.upper().lower().split()[:2]",
    "never ends": "while text:\n        pass",
    "does not apply": "return text.lower().split()",
    "cheats": BODY,
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python and git")
parser.add_argument("--timeout", type=int, default=60, help="seconds for the tests of a patch")
args = parser.parse_args()


def diff(path, old, new):
    """A patch as git writes it."""
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)


def patch(name):
    old = SOURCE["text.py"]
    if name == "cheats":  # it empties the tests
        return diff("test_all.py", TESTS, "")
    if name == "does not apply":
        old = old.replace("lower case", "any case")
    return diff("text.py", old, old.replace(BODY, PATCHES[name]))


def run_tests(sandbox):
    """The tests that pass, and those that do not. Both are None if the tests do not end."""
    sandbox.files.write(f"{HOME}/test_all.py", TESTS)
    command = ["python3", "-B", "-m", "unittest", "-v", "test_all"]
    result = sandbox.commands.run(command, cwd=HOME, timeout=args.timeout)
    if result.timed_out:
        return None, None
    verdicts = dict(re.findall(r"^(test_\w+) .* \.\.\. (\w+)$", result.stderr, re.M))
    passed = {test for test, verdict in verdicts.items() if verdict == "ok"}
    return passed, set(re.findall(r"def (test_\w+)", TESTS)) - passed


def evaluate(sandbox, name):
    """A row of the table."""
    sandbox.files.write("/srv/change.patch", patch(name))
    if not sandbox.commands.run(["git", "apply", "/srv/change.patch"], cwd=HOME, timeout=120).ok:
        return "no", "", "", "error"
    passed, failed = run_tests(sandbox)
    if passed is None:
        return "yes", "", "", "timeout"
    fixed, broken = passed & failed_before, failed & passed_before
    verdict = "resolved" if fixed == failed_before and not broken else "unresolved"
    return "yes", f"{len(fixed)} of {len(failed_before)}", str(len(broken)), verdict


with Sandbox.create(args.snapshot, ttl=1800) as source:
    for path, text in {**SOURCE, "test_all.py": TESTS}.items():
        source.files.write(f"{HOME}/{path}", text)
    source.commands.run(["git", "init", "-q", "."], cwd=HOME, timeout=120, check=True)
    passed_before, failed_before = run_tests(source)
    print(f"before: {len(passed_before)} tests pass, {len(failed_before)} fail")
    begin = time.perf_counter()
    with source.fork(len(PATCHES)) as sandboxes:
        forked = time.perf_counter()
        name_of = dict(zip([s.id for s in sandboxes], PATCHES, strict=True))
        rows = sandboxes.map(lambda s: evaluate(s, name_of[s.id]))
        done = time.perf_counter()

print(f"{'patch':<16}{'applies':<9}{'fixed':<8}{'broken':<8}verdict")
for name, (applies, fixed, broken, verdict) in zip(PATCHES, rows, strict=True):
    print(f"{name:<16}{applies:<9}{fixed:<8}{broken:<8}{verdict}")
print(f"{len(rows)} forks in {(forked - begin) * 1000:.0f} ms")
print(f"all tests in {done - forked:.1f} s")

expected = ["resolved", "unresolved", "unresolved", "timeout", "error", "unresolved"]
if [row[-1] for row in rows] != expected:
    raise SystemExit("FAILED")
