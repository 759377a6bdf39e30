"""Tries three ways to solve a task at once, and lets a judge choose: the same answer from all, and the fastest.

Each way runs in a fork of one prepared sandbox. The sandbox of the winner is kept, and the others are killed."""

import argparse
import time

from forkd import Sandbox, best_of

HOME = "/srv/race"
N = 100_000
WAYS = {
    "loop": "total = 0\nfor i in range(1, n + 1):\n    total += i * i\n",
    "formula": "total = n * (n + 1) * (2 * n + 1) // 6\n",
    "recurrence": "total = square = 0\nfor i in range(n):\n    square += 2 * i + 1\n    total += square\n",
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--dry-run", action="store_true", help="accepted, because this example needs no model")
args = parser.parse_args()


def attempt(name):
    def run(child):
        child.files.write(f"{HOME}/solution.py", f"n = int(open('{HOME}/task').read())\n{WAYS[name]}print(total)\n")
        begin = time.perf_counter()
        result = child.commands.run(["python3", f"{HOME}/solution.py"], timeout=120, check=True)
        return int(result.stdout), time.perf_counter() - begin

    return run


with Sandbox.create(args.snapshot, ttl=1800) as source:
    source.files.write(f"{HOME}/task", str(N))
    print(f"task: the sum of the squares of 1 to {N}")
    best = best_of(source, [attempt(name) for name in WAYS], lambda child, result: -result[1])
    with best.sandbox as winner:
        for name, (answer, seconds) in zip(WAYS, best.results, strict=True):
            print(f"{name}: {answer} in {seconds * 1000:.0f} ms")
        agree = len({answer for answer, _ in best.results}) == 1
        kept = winner.files.read(f"{HOME}/solution.py")
        own = WAYS[list(WAYS)[best.index]] in kept
        print(f"judge: {'all answers are equal' if agree else 'the answers DIFFER'}")
        print(f"kept the sandbox of the fastest, which has its own solution: {'yes' if own else 'NO'}")
    untouched = not source.files.exists(f"{HOME}/solution.py")
    print(f"the source has no solution.py: {'yes' if untouched else 'NO'}")

if not agree or best.result[0] != N * (N + 1) * (2 * N + 1) // 6 or not own or not untouched:
    raise SystemExit("FAILED")
