"""Best of N with a judge: N agents solve a task in forks of one sandbox, and a judge grades each sandbox.

The judge runs hidden tests in the sandbox of each candidate, after the candidate has ended. So it grades files and
behaviour, not what a candidate says. The best sandbox continues, and the program exports what its candidate changed.

The candidates here are fixed. Replace candidate() by a call of your model, with the task and a temperature."""

import argparse
import json

from forkd import Sandbox, best_of

HOME = "/srv/task"
TASK = (
    "def dedupe(items):\n    raise NotImplementedError  # remove duplicates, keep the first of each, keep the order\n"
)
CANDIDATES = [
    "return list(set(items))",
    "return [x for i, x in enumerate(items) if x not in items[:i]]",
    "return sorted(set(items), key=items.index)",
    "return list(dict.fromkeys(items)",
]
HIDDEN = """
import json, time
passed = 0
try:
    from task import dedupe
    for given, expected in [([], []), ([3, 1, 3, 2, 1], [3, 1, 2]), ([5, 300, 5, 1], [5, 300, 1]), ([[1], [1]], [[1]])]:
        try:
            passed += dedupe(given) == expected
        except Exception:
            pass
except SyntaxError:
    passed = -1
print(json.dumps(passed))
"""

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
args = parser.parse_args()


def candidate(n):
    """The change that candidate n makes. A real one asks a model, and may use the sandbox to try things."""
    return TASK.split("\n")[0] + f"\n    {CANDIDATES[n]}\n"


def attempt(n):
    def run(child):
        child.files.write(f"{HOME}/task.py", candidate(n))
        return n

    return run


def judge(child, n):
    """The number of hidden tests that pass. The tests are written after the candidate has ended; None rejects it."""
    child.files.write(f"{HOME}/hidden.py", HIDDEN)
    result = child.commands.run(["python3", "-B", "hidden.py"], cwd=HOME, timeout=120, check=True)
    child.files.remove(f"{HOME}/hidden.py")
    passed = json.loads(result.stdout)
    return None if passed < 0 else passed


with Sandbox.create(args.snapshot, ttl=1800) as source:
    source.files.write(f"{HOME}/task.py", TASK)
    best = best_of(source, [attempt(n) for n in range(len(CANDIDATES))], judge)
    with best.sandbox as winner:
        for n, score in enumerate(best.scores):
            print(f"candidate {n}: {'rejected' if score is None else f'{score:.0f} of 4 hidden tests'}")
        source.files.write(f"{HOME}/task.py", winner.files.read(f"{HOME}/task.py"))
    print(f"candidate {best.index} wins: {source.files.read(f'{HOME}/task.py').splitlines()[1].strip()}")

if best.index != 1 or best.score != 4:
    raise SystemExit("FAILED")
