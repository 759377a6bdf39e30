"""Tree search over an environment that can branch: every node of the tree is a saved machine.

The environment is a directory with a puzzle. Actions are shell commands, and a command of the machine tells the
distance to the goal. The search is best-first: it takes the most promising leaf, forks the machine of this leaf once
for each action, and keeps the forks as new leaves. It never repeats the actions that led to a node, so it also works
where actions are slow, or are different each time.

The same program searches over steps of an agent: let a model propose the actions, and a judge the value."""

import argparse
import heapq
import itertools
import time

from forkd import Sandbox

START, GOAL = 1, 77
ACTIONS = {"double": "$((2 * n))", "add 7": "$((n + 7))", "subtract 3": "$((n - 3))"}
STATE = "/srv/puzzle/n"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot")
parser.add_argument("--expansions", type=int, default=40, help="how many nodes the search may expand")
args = parser.parse_args()


def distance(n):
    """Less is better: how far n is from the goal or from a number that becomes the goal when it is doubled."""
    return min(abs(GOAL / 2**k - n) * 2**k / GOAL + k * 0.05 for k in range(12))


def act(child, action):
    """Takes an action on the machine, and returns the state that the machine then has."""
    command = f"n=$(cat {STATE}); echo {ACTIONS[action]} >{STATE}; cat {STATE}"
    return int(child.commands.run(command, timeout=120, check=True).stdout)


begin, expanded, machines, found = time.perf_counter(), 0, 1, None
order = itertools.count()  # decides between leaves of equal value
root = Sandbox.create(args.snapshot, ttl=3600)
leaves, seen = [(distance(START), next(order), root, START, [])], {START}
try:
    root.files.write(STATE, f"{START}\n")
    while leaves and found is None and expanded < args.expansions:
        _, _, machine, _, path = heapq.heappop(leaves)
        children = machine.fork(len(ACTIONS), ttl=3600)
        machine.kill()  # its state lives on in its children
        expanded, machines = expanded + 1, machines + len(children)
        action_of = dict(zip([c.id for c in children], ACTIONS, strict=True))
        states = children.map(lambda c, action_of=action_of: act(c, action_of[c.id]))
        for child, action, state in zip(children, ACTIONS, states, strict=True):
            if state in seen:
                child.kill()
                continue
            seen.add(state)
            heapq.heappush(leaves, (distance(state), next(order), child, state, [*path, action]))
            if state == GOAL:
                found = [*path, action], child.files.read(STATE).strip()
finally:
    for _, _, machine, _, _ in leaves:
        machine.kill()

seconds = time.perf_counter() - begin
print(f"expanded {expanded} nodes with {machines} machines in {seconds:.1f} s")
if found is None:
    raise SystemExit("FAILED: not found")
path, state = found
n = START
for action in path:
    n = {"double": 2 * n, "add 7": n + 7, "subtract 3": n - 3}[action]
print(f"{len(path)} actions: {', '.join(path)}")
print(f"the machine at the end of the path has {state}")
if not int(state) == n == GOAL:
    raise SystemExit("FAILED")
