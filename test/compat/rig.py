"""The fake daemon of test/contract, for groups that need no VMs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def build(path: str) -> str:
    subprocess.run(["go", "build", "-o", path, "./test/contract/rigd"], cwd=ROOT, check=True)
    return path


@contextlib.contextmanager
def daemon(program: str, *options: str) -> Iterator[dict]:
    """Runs the fake daemon, and returns its description of itself. In the end it fails if any traffic did
    not conform to api/openapi.yaml."""
    with subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()  # makes it exit
            status = process.wait()
        if status != 0:
            raise AssertionError(f"the daemon ended with status {status}: traffic was not as api/openapi.yaml has it, or worse")
