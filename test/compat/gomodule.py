"""The module of a user of the Go client: an empty directory that requires this repository's module by a
replace directive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

from report import Report

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MODULE = "github.com/forkd/forkd"
ENV = {**os.environ, "GOWORK": "off", "GOFLAGS": "", "CGO_ENABLED": "0"}


def go(cwd: str, *args: str, limit: float = 600, **env: str) -> str:
    """Runs the go command, which must succeed, and returns its standard output."""
    got = subprocess.run(["go", *args], cwd=cwd, env={**ENV, **env}, capture_output=True, text=True, timeout=limit, check=False)
    if got.returncode:
        raise AssertionError(f"go {' '.join(args[:2])} ended with status {got.returncode}\n{(got.stdout + got.stderr)[-4000:]}")
    return got.stdout


def make(there: str, *files: str) -> None:
    """Makes the module, with copies of files."""
    shutil.rmtree(there, ignore_errors=True)
    os.makedirs(there)
    for file in files:
        shutil.copy(os.path.join(ROOT, file), there)
    go(there, "mod", "init", "example.com/user")
    go(there, "mod", "edit", f"-require={MODULE}@v0.0.0", f"-replace={MODULE}@v0.0.0={ROOT}")
    go(there, "mod", "tidy")


def tests(r: Report, what: str, there: str, skipped: bool = True, **env: str) -> None:
    """Runs the tests of the module. Each test without subtests is a case. If skipped is false, a test that
    skips itself is not."""
    said = subprocess.run(["go", "test", "-count=1", "-json", "."], cwd=there, env={**ENV, **env}, stdout=subprocess.PIPE, text=True,
                          timeout=900, check=False)
    ended, output = {}, {}
    for line in said.stdout.splitlines():
        event = json.loads(line)
        test = event.get("Test", "")
        if event["Action"] == "output":
            output[test] = output.get(test, "") + event["Output"]
        elif event["Action"] in ("pass", "fail", "skip"):
            ended[test] = event
    outcomes = {"pass": "passed", "fail": "failed", "skip": "not_applicable"}
    for test, event in ended.items():
        if test and not any(other.startswith(test + "/") for other in ended):
            said_of_it = "\n".join(line.strip() for line in output.get(test, "").splitlines() if not line.strip().startswith(("===", "---")))
            if event["Action"] == "skip" and not skipped:
                continue
            r.add(f"{what}: {test.rpartition('/')[2].replace('_', ' ')}", outcomes[event["Action"]],
                  said_of_it[-1500:] if event["Action"] != "pass" else None, event.get("Elapsed", 0))
    if said.returncode or not ended:
        r.add(f"{what} as a whole", "failed", f"go test ended with status {said.returncode}: {output.get('', '')[-2000:]}")
