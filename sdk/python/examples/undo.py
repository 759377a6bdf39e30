"""An agent's undo: a branch before every step, and a rollback after one that went wrong."""

from forkd import Sandbox

STEPS = ["echo step one", "echo step two", "exit 1", "echo step three"]

with Sandbox.create("python-numpy") as sandbox:
    for step in STEPS:
        before, _ = sandbox.branch()
        result = sandbox.commands.run(step)
        if result.ok:
            print(result.stdout, end="")
        else:
            done = sandbox.rollback(before)
            print(f"{step!r} failed: back at {'the branch' if done.rolled_back_to == before.tag else done}")
