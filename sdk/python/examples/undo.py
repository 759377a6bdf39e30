"""Undoes steps of an agent: it branches before every step, and rolls back after a step that went wrong."""

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
