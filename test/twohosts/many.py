"""Creates many sandboxes with E2B's SDK, unmodified, and runs a command in each: many.py TEMPLATE NUMBER.

Prints "created" when all sandboxes have kept their own number, and waits for the end of standard input. Then it reads the
numbers again and kills the sandboxes.
"""

import sys

from e2b import Sandbox

template, number = sys.argv[1], int(sys.argv[2])


def check(sandbox: Sandbox, i: int) -> None:
    out = sandbox.commands.run("cat /tmp/own; python3 -c 'print(6 * 7)'", user="root", timeout=300).stdout
    assert out == f"{i}\n42\n", (sandbox.sandbox_id, out)


sandboxes = [Sandbox.create(template, timeout=3600, request_timeout=300) for _ in range(number)]
try:
    for i, sandbox in enumerate(sandboxes):
        sandbox.files.write("/tmp/own", f"{i}\n", user="root", request_timeout=300)
        check(sandbox, i)
    print("created", flush=True)
    sys.stdin.read()
    for i, sandbox in enumerate(sandboxes):
        check(sandbox, i)
finally:
    for sandbox in sandboxes:
        sandbox.kill(request_timeout=300)
