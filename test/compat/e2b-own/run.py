"""The live tests of sandboxes, sync and async, in the repository of E2B's SDK for Python; e2b-own@rig has those of
templates.

$E2B_OWN_TESTS selects tests, like pytest -k.
"""

from __future__ import annotations

import os
import subprocess
import sys

import owntests

SUITES = ("sync/api_sync", "sync/sandbox_sync", "async/api_async", "async/sandbox_async")
if owntests.FAKED:
    SUITES = ("sync/template_sync", "async/template_async")


def tests(source: str, there: str) -> str:
    """In the directory there, no other e2b can be imported."""
    tests, out = os.path.join(source, "packages", "python-sdk", "tests"), os.path.join(there, "results.xml")
    command = [os.path.join(sys.prefix, "bin", "pytest"), "-q", "-p", "no:cacheprovider", "-p", "hostnames",
               "-c", os.path.join(tests, "..", "pytest.ini"), "--timeout", str(owntests.LIMIT), "--tb", "short", "--junitxml", out, *(os.path.join(tests, s) for s in SUITES)]
    if "E2B_OWN_TESTS" in os.environ:
        command += ["-k", os.environ["E2B_OWN_TESTS"]]
    subprocess.run(command, cwd=there, env={**os.environ, **owntests.environment()})
    return out


owntests.run("the live tests of E2B's SDK for Python", tests)
