"""Creates many sandboxes with E2B's SDK, unmodified, and runs commands in each: many.py TEMPLATE NUMBER.

Each sandbox keeps its number in a file and in the memory of a process. When all are checked, the program prints
"created" and waits for the end of standard input. Then it checks the numbers again and kills the sandboxes.
"""

import sys

from e2b import Sandbox


def start(sandbox: Sandbox, i: int) -> None:
    sandbox.files.write("/tmp/own", f"{i}\n", user="root", request_timeout=300)
    process = f"n={i}; while sleep 0.2; do echo $n >/tmp/next; mv /tmp/next /tmp/memory; done"
    sandbox.commands.run(process, background=True, user="root", timeout=0, request_timeout=300)


def check(sandbox: Sandbox, i: int) -> None:
    command = "rm -f /tmp/memory; until [ -s /tmp/memory ]; do sleep 0.1; done; cat /tmp/memory /tmp/own"
    out = sandbox.commands.run(command, user="root", timeout=300, request_timeout=300).stdout
    assert out == f"{i}\n{i}\n", (sandbox.sandbox_id, out)


template, number = sys.argv[1], int(sys.argv[2])
sandboxes = [Sandbox.create(template, timeout=3600, request_timeout=300) for _ in range(number)]
for i, sandbox in enumerate(sandboxes):
    start(sandbox, i)
    check(sandbox, i)
print("created", flush=True)
sys.stdin.read()
for i, sandbox in enumerate(sandboxes):
    check(sandbox, i)
    sandbox.kill(request_timeout=300)
