"""Monte Carlo tree search over a machine that can go back: every node of the tree is a branch of one machine.

An iteration rolls the machine back to a node, takes a new action, and branches the machine: the branch is a new node.
Then the machine takes random actions up to the end of the episode, and the reward at the end counts for all nodes on
the path. The actions that led to a node are never repeated, so they may be slow or random.

The environment here is a number in a file, and the actions are shell commands. It could as well be a repository with
tests, whose reward is the share that passes. A model can replace the random choice of actions."""

import argparse
import math
import random
import time

from forkd import Sandbox

START, GOAL, LENGTH = 1, 44, 6  # an episode has at most LENGTH actions
ACTIONS = {"double": "$((2 * n))", "add 7": "$((n + 7))", "subtract 3": "$((n - 3))"}
STATE = "/srv/mcts/n"
CURIOSITY = 1.0  # how much the search prefers nodes that it has rarely visited

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot")
parser.add_argument("--iterations", type=int, default=60)
parser.add_argument("--seed", type=int, default=2)
args = parser.parse_args()
choose = random.Random(args.seed).choice


class Node:
    """A saved state of the machine."""

    def __init__(self, snapshot, path=(), parent=None):
        self.snapshot, self.path, self.parent = snapshot, path, parent
        self.children, self.visits, self.total = {}, 0, 0.0

    def promise(self):
        """The upper confidence bound of this node's reward."""
        return self.total / self.visits + CURIOSITY * math.sqrt(math.log(self.parent.visits) / self.visits)


def act(machine, actions):
    """Takes actions until the goal is reached. Returns the state that the machine then has."""
    steps = [f'n=$(cat {STATE}); [ "$n" = {GOAL} ] || echo {ACTIONS[action]} >{STATE}' for action in actions]
    return int(machine.commands.run("; ".join([*steps, f"cat {STATE}"]), timeout=120, check=True).stdout)


def iteration(root, machine):
    """Returns the reward, and the number of actions that the machine has taken."""
    node, taken = root, 0
    while len(node.children) == len(ACTIONS):
        node = max(node.children.values(), key=Node.promise)
    machine.rollback(node.snapshot)
    if len(node.path) < LENGTH:
        action = next(a for a in ACTIONS if a not in node.children)
        act(machine, [action])
        child = Node(machine.branch()[0], (*node.path, action), node)
        node.children[action], node, taken = child, child, 1
    rest = [choose(list(ACTIONS)) for _ in range(LENGTH - len(node.path))]
    reward = 1 / (1 + abs(GOAL - act(machine, rest)) / 10)
    while node:
        node.visits, node.total, node = node.visits + 1, node.total + reward, node.parent
    return reward, taken + len(rest)


begin, actions, reward, count = time.perf_counter(), 0, 0.0, 0
with Sandbox.create(args.snapshot, ttl=3600) as machine:
    machine.files.write(STATE, f"{START}\n")
    root = Node(machine.branch()[0])
    try:
        while reward < 1 and count < args.iterations:
            reward, taken = iteration(root, machine)
            count, actions = count + 1, actions + taken
        seconds = time.perf_counter() - begin
        for action, node in root.children.items():
            print(f"{action}: {node.visits} visits, mean reward {node.total / node.visits:.2f}")
        print(f"{count} iterations with {actions} actions and {count} rollbacks in {seconds:.1f} s")
        state = machine.files.read(STATE).strip()
        print(f"the machine has {state}")
    finally:
        machine.kill()
        root.snapshot.delete(cascade=True)

if reward < 1 or int(state) != GOAL:
    raise SystemExit("FAILED: not found")
