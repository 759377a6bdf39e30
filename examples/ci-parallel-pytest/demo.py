"""Runs a test suite in parallel: one worker for each part of the tests, forked from a sandbox that is ready to run.

The source sandbox installs the project and starts pytest once, so its files and pages are warm. The children each run
a share of the test files. No test sees the files of another worker."""

import argparse
import re
import time

from forkd import Sandbox

HOME = "/srv/suite"
FILES, TESTS = 6, 5
MODULE = "def test_{n}(): assert sum(range({n})) == {n} * ({n} - 1) // 2\n"
SHARED = """
import pathlib
def test_alone():  # fails if another worker uses the same directory
    path = pathlib.Path("/srv/suite/state")
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    assert len(path.read_text()) <= {share}
"""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--snapshot", default="coding-agent", help="tag of a snapshot with pytest")
parser.add_argument("--python", default="python3", help="the interpreter that has pytest, in the sandbox")
parser.add_argument("--workers", type=int, default=3)
parser.add_argument("--dry-run", action="store_true", help="accepted, because this example needs no model")
args = parser.parse_args()

names = [f"test_{i}.py" for i in range(FILES)]
shares = [names[i :: args.workers] for i in range(args.workers)]

with Sandbox.create(args.snapshot, ttl=1800) as source:
    for i, name in enumerate(names):
        tests = "".join(MODULE.format(n=i * TESTS + n) for n in range(TESTS - 1))
        source.files.write(f"{HOME}/{name}", tests + SHARED.format(share=max(map(len, shares))))
    run = [args.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    source.commands.run([*run, "--collect-only", "."], cwd=HOME, timeout=300, check=True)
    print(f"source: {FILES} files with {TESTS} tests each, collected once")
    begin = time.perf_counter()
    with source.fork(args.workers) as workers:
        print(f"forked {len(workers)} workers in {(time.perf_counter() - begin) * 1000:.0f} ms")
        share = dict(zip([w.id for w in workers], shares, strict=True))
        begin = time.perf_counter()
        results = workers.map(lambda w: w.commands.run([*run, *share[w.id]], cwd=HOME, timeout=300))
        passed = 0
        for number, result in enumerate(results):
            found = re.search(r"(\d+) passed", result.stdout)
            passed += int(found[1]) if found else 0
            print(f"worker {number}: {'PASS' if result.ok else 'FAIL'}, {found[0] if found else result.stdout}")
        print(f"{passed} of {FILES * TESTS} tests passed in {time.perf_counter() - begin:.1f} s")

if passed != FILES * TESTS or not all(r.ok for r in results):
    raise SystemExit("FAILED")
