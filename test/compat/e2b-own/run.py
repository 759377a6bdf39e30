"""The live tests that E2B's SDK for Python has in its repository: those of sandboxes, sync and async.

Neither the packages of PyPI nor those of npm contain tests, so $E2B_SOURCE has to be a checkout of
https://github.com/e2b-dev/E2B. They are run against the package e2b of requirements.txt, not against
the checkout. What cannot hold here is told from what fails by the table below, test by test.
$E2B_OWN_TESTS chooses among them, as pytest -k does.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

from e2b import Sandbox
from report import TAG, NotApplicable, Report

SUITES = ("sync/api_sync", "sync/sandbox_sync", "async/api_async", "async/sandbox_async")

# Patterns of test names, and why such a test is no failure of this server.
ELSEWHERE = [
    (r"filesystem_only", "memory: false is refused: docs/e2b.md"),
    (r"mcp_gateway", "mcp is refused: docs/e2b.md"),
    (r"mask_request_host|egress_proxy|transform", "rules, egressProxy and maskRequestHost are refused: docs/e2b.md"),
    (r"allow_takes_precedence", "in forkd a denial wins: docs/e2b.md"),
    (r"watch_iterated|watch_recursive_directory_changes", "counts the chmod of a new file, which appears whole here: docs/e2b.md"),
    (r"stable_host_routing|normalizes_unset_tokens", "has no server: it is about E2B's own addresses, or keys"),
    (r"volume", "forkd has no volumes: docs/e2b.md"),
]
if "E2B_DOMAIN" not in os.environ:
    ELSEWHERE.append((r"ping_server|auto_resume_wakes_on_http|public_traffic", "asks https://PORT-ID.DOMAIN: needs E2B_DOMAIN, see e2btls"))


def online() -> bool:
    try:
        socket.create_connection(("1.1.1.1", 443), 5).close()
        return True
    except OSError:
        return False


if not online():
    ELSEWHERE.append((r"internet_access|test_network\.", "needs the internet"))


def reason_for(name: str) -> str | None:
    return next((reason for pattern, reason in ELSEWHERE if re.search(pattern, name)), None)


def results(source: str) -> list[tuple[str, str, str | None, float]]:
    """Runs the tests; returns name, outcome, reason and seconds of each."""
    env = {**os.environ, "E2B_VALIDATE_API_KEY": "false"}
    env.setdefault("E2B_API_KEY", os.environ["FORKD_TOKEN"])
    if "E2B_DOMAIN" not in env:
        env.update(E2B_API_URL=os.environ["FORKD_URL"], E2B_SANDBOX_URL=os.environ["FORKD_URL"])
    tests = os.path.join(source, "packages", "python-sdk", "tests")
    with tempfile.TemporaryDirectory() as there:  # where no other e2b can be imported
        out = os.path.join(there, "results.xml")
        command = [os.path.join(sys.prefix, "bin", "pytest"), "-q", "-p", "no:cacheprovider", "-c", os.path.join(tests, "..", "pytest.ini"),
                   "--timeout", "300", "--tb", "short", "--junitxml", out, *(os.path.join(tests, s) for s in SUITES)]
        if "E2B_OWN_TESTS" in os.environ:
            command += ["-k", os.environ["E2B_OWN_TESTS"]]
        subprocess.run(command, cwd=there, env=env)
        cases = list(xml.parse(out).iter("testcase"))
    return [outcome(case) for case in cases]


def outcome(case: xml.Element) -> tuple[str, str, str | None, float]:
    name, seconds = f"{case.get('classname')}.{case.get('name')}", float(case.get("time", "0"))
    bad = next((e for e in case if e.tag in ("failure", "error")), None)
    if bad is not None:
        reason = reason_for(name)
        return name, "not_applicable" if reason else "failed", reason or (bad.get("message") or "")[:300], seconds
    skipped = case.find("skipped")
    if skipped is not None:
        return name, "not_applicable", skipped.get("message"), seconds
    return name, "passed", None, seconds


def absent() -> None:
    raise NotApplicable("E2B_SOURCE is not set: it is a checkout of https://github.com/e2b-dev/E2B")


r = Report("the live tests of E2B's SDK for Python")
source = os.environ.get("E2B_SOURCE")
if source is None:
    r.case("all tests", absent)
    r.finish()
access = {"api_key": os.environ.get("E2B_API_KEY", os.environ["FORKD_TOKEN"]), "api_url": os.environ["FORKD_URL"], "validate_api_key": False}
parent = Sandbox.create(TAG, timeout=600, request_timeout=120, **access)
own = parent.create_snapshot("base").snapshot_id  # the template that the tests ask for
parent.kill()
try:
    groups: dict[str, list[str]] = {}
    for name, what, reason, seconds in results(source):
        r.add(name, what, reason, seconds)
        groups.setdefault(name.rsplit(".", 1)[0], []).append(what)
finally:
    Sandbox.delete_snapshot(own, **access)
for group, outcomes in sorted(groups.items()):
    print(f"{group:70} {outcomes.count('passed'):4} passed {outcomes.count('failed'):4} failed {outcomes.count('not_applicable'):4} not applicable")
r.finish()
