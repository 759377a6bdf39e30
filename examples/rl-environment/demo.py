"""Learns a maze by Q-learning in an environment whose state is a machine, and measures the environment.

First it measures steps, resets and clones. Then it trains with one machine, and shows the greedy policy. Last it uses
clones to look ahead: it takes the best of all actions in copies of the current state."""

import argparse
import random
import time

from environment import SIZE, MachineEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--episodes", type=int, default=12)
parser.add_argument("--measure", type=int, default=10, help="how many operations of each kind are measured")
args = parser.parse_args()


def measured(name, operation):
    begin = time.perf_counter()
    for _ in range(args.measure):
        operation()
    print(f"{name}: {args.measure / (time.perf_counter() - begin):.1f} per second")


def place(seen):
    return seen["x"], seen["y"]


env, chance, values = MachineEnv(args.snapshot), random.Random(7), {}
try:
    env.reset()
    measured("steps", lambda: env.step("right"))
    measured("resets", env.reset)
    measured("clones", lambda: env.clone()[0].close())

    steps = 0
    for _ in range(args.episodes):
        at, done = place(env.reset()[0]), False
        while not done:
            known = values.setdefault(at, dict.fromkeys(env.actions, 0.0))
            action = chance.choice(env.actions) if chance.random() < 0.3 else max(known, key=known.get)
            seen, reward, terminated, truncated, _info = env.step(action)
            after = 0.0 if terminated else max(values.setdefault(place(seen), dict.fromkeys(env.actions, 0.0)).values())
            known[action] += 0.5 * (reward + 0.95 * after - known[action])
            at, done, steps = place(seen), terminated or truncated, steps + 1
    print(f"trained with {args.episodes} episodes, {steps} steps")

    # Each reset must give the same state again, whatever was done before.
    env.reset()
    first, *_ = env.step("down")
    env.reset()
    again, *_ = env.step("down")
    print(f"a reset undoes all: {'yes' if first == again == {'x': 0, 'y': 1, 'steps': 1} else 'NO'}")

    # Look ahead: clones try every action from the current state, and the state itself does not change.
    env.reset()
    path = []
    while not path or place(seen) != (SIZE - 1, SIZE - 1):
        copies = env.clone(len(env.actions))
        tried = [copy.step(action)[0] for copy, action in zip(copies, env.actions, strict=True)]
        for copy in copies:
            copy.close()
        scores = [sum(place(t)) - 2 * path.count(place(t)) for t in tried]
        action = env.actions[scores.index(max(scores))]
        seen, *_ = env.step(action)
        path.append(place(seen))
        if len(path) > 2 * SIZE + 4:
            break
    print(f"with clones: {len(path)} steps to {path[-1]}; the machine itself took {seen['steps']}")
finally:
    env.close()
    env._start.delete(force=True)

if first != again or path[-1] != (SIZE - 1, SIZE - 1) or seen["steps"] != len(path):
    raise SystemExit("FAILED")
