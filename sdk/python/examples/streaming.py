"""Prints output as it arrives, sends further input, and uses a terminal."""

from forkd import Sandbox

with Sandbox.create("python-numpy") as sandbox:
    sandbox.commands.run("for i in 1 2 3; do echo line $i; sleep 0.1; done", on_stdout=lambda part: print(part, end=""))

    with sandbox.commands.start(["tr", "a-z", "A-Z"], stdin=True) as handle:
        handle.write("typed later\n")
        handle.close_stdin()
        print(handle.wait().stdout, end="")

    with sandbox.pty.create(
        cols=100, rows=30, cmd=["sh", "-c", "stty size; read answer; echo got $answer"]
    ) as terminal:
        terminal.write("yes\n")
        print(terminal.wait().stdout.decode().splitlines()[-1])
