"""Prints the changes in a directory while a command works there."""

from forkd import Sandbox

with Sandbox.create("python-numpy") as sandbox:
    home = sandbox.commands.run("mktemp -d").stdout.strip()
    with sandbox.files.watch(home) as changes:
        sandbox.commands.run("for f in one two; do echo $f >$f; done", cwd=home)
        seen = set()
        for change in changes:
            seen.add(change.name)
            if seen == {"one", "two"}:
                break
    print("changed:", ", ".join(sorted(seen)))
    sandbox.files.remove(home)
