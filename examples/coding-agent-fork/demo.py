"""Forks a coding agent that has a large working tree, and lets each copy make another change.

The source sandbox has a project and 50 MiB of data. Three children fork from it while it runs. The program checks that
all four have the same data, and that no sandbox sees the change of another."""

import argparse
import re
import time

from forkd import Sandbox

MIB = 50
HOME = "/srv/project"
STRATEGIES = ["return sum(xs)", "return math.fsum(xs)", "return functools.reduce(lambda a, b: a + b, xs, 0)"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--dry-run", action="store_true", help="accepted, because this example needs no model")
args = parser.parse_args()


def md5(sandbox):
    return sandbox.commands.run(f"md5sum {HOME}/blob", timeout=300, check=True).stdout.split()[0]


with Sandbox.create(args.snapshot, ttl=1800) as source:
    source.files.write(
        f"{HOME}/total.py", "import functools\nimport math\n\n\ndef total(xs):\n    raise NotImplementedError\n"
    )
    source.commands.run(f"head -c {MIB}M /dev/urandom >{HOME}/blob", timeout=300, check=True)
    print(f"source: {HOME} has {MIB} MiB of data")
    begin = time.perf_counter()
    with source.fork(len(STRATEGIES)) as children:
        print(f"forked {len(children)} children in {(time.perf_counter() - begin) * 1000:.0f} ms")
        sums = [md5(s) for s in (source, *children)]
        print(f"md5 of the data is equal in {len(sums)} of {len(sums)} sandboxes" if len(set(sums)) == 1 else sums)

        def edit(child):
            text = child.files.read(f"{HOME}/total.py")
            line = STRATEGIES[[c.id for c in children].index(child.id)]
            child.files.write(f"{HOME}/total.py", text.replace("raise NotImplementedError", line))
            check = "from total import total; print(total([1, 2, 3.5]))"
            return child.commands.run(["python3", "-c", check], cwd=HOME, timeout=120, check=True).stdout.strip()

        results = children.map(edit)
        edits = children.map(lambda c: re.findall("    (.*)\n", c.files.read(f"{HOME}/total.py"))[0])
        for edited, result in zip(edits, results, strict=True):
            print(f"child: {edited!r} gives {result}")
        own = source.files.read(f"{HOME}/total.py")
        isolated = edits == STRATEGIES and "NotImplementedError" in own
        print(f"edits are isolated: {'yes' if isolated else 'NO'}")

if len(set(sums)) != 1 or not isolated or set(results) != {"6.5"}:
    raise SystemExit("FAILED")
