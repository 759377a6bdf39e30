"""Measures how much a Python process grows for each of N sandboxes that it holds: held.py forkd|e2b TAG N.

Each sandbox has run a command. Prints KiB of resident memory per sandbox.
"""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

SDK, TAG, N = sys.argv[1], sys.argv[2], int(sys.argv[3])
if SDK == "forkd":
    from forkd import Sandbox
else:
    from e2b_code_interpreter import Sandbox


def resident() -> int:
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def one(_: int) -> Sandbox:
    made = Sandbox.create(TAG)
    assert made.commands.run("echo hi").stdout == "hi\n"
    return made


with ThreadPoolExecutor(8) as pool:
    first = list(pool.map(one, range(8)))  # makes the threads, and the objects that all sandboxes share
    before = resident()
    made = list(pool.map(one, range(N)))
    print((resident() - before) / N)
    list(pool.map(lambda s: s.kill(), first + made))
