"""An environment for reinforcement learning whose state is a machine.

The methods are those of Gymnasium's Env, and clone: reset rolls the machine back to a branch, and clone forks it with
its memory, so that search can try actions from any state. Nothing is booted and no command is repeated for either."""

from forkd import Sandbox

MAZE = "/srv/maze"
SIZE = 4
# A program of the machine is the game. It could as well be a repository with tests, or a browser.
GAME = f"""
import json, os, sys
path = "{MAZE}/state.json"
state = json.load(open(path)) if os.path.exists(path) else {{"x": 0, "y": 0, "steps": 0}}
dx, dy = {{"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}}[sys.argv[1]]
x, y = state["x"] + dx, state["y"] + dy
if 0 <= x < {SIZE} and 0 <= y < {SIZE} and (x, y) not in ((1, 1), (2, 1), (1, 3)):
    state["x"], state["y"] = x, y
state["steps"] += 1
json.dump(state, open(path, "w"))
print(json.dumps(state))
"""


class MachineEnv:
    """An episode on one machine. Each action is a word; the observation is the state that the machine tells."""

    actions = ("right", "left", "down", "up")
    max_steps = 30

    def __init__(self, snapshot):
        """Forks a machine and prepares it. The start of every episode is a branch of it."""
        self.machine = Sandbox.create(snapshot, ttl=3600)
        self.machine.files.write(f"{MAZE}/game.py", GAME)
        self._start, _ = self.machine.branch()

    def reset(self):
        """Rolls the machine back to the start."""
        self.machine.rollback(self._start)
        return {"x": 0, "y": 0, "steps": 0}, {}

    def step(self, action):
        """Takes an action. Returns observation, reward, terminated, truncated and info."""
        import json

        result = self.machine.commands.run(["python3", f"{MAZE}/game.py", action], timeout=60, check=True)
        seen = json.loads(result.stdout)
        done = (seen["x"], seen["y"]) == (SIZE - 1, SIZE - 1)
        return seen, 1.0 if done else -0.01, done, seen["steps"] >= self.max_steps, {}

    def clone(self, n=1):
        """Returns n environments that continue from the current state. Their reset is that of this one."""
        made = []
        for machine in self.machine.fork(n, ttl=3600):
            other = object.__new__(type(self))
            other.machine, other._start = machine, self._start
            made.append(other)
        return made

    def close(self):
        """Kills the machine. The branch stays, because clones can use it."""
        self.machine.kill()
