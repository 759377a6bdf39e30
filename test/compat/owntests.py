"""The common parts of the groups that run the live tests in E2B's own repository.

Neither the packages of PyPI nor those of npm contain tests, so $E2B_SOURCE must be a checkout of
https://github.com/e2b-dev/E2B. Its tests run against a published package, not against the checkout. They
use the template `base`, which is a snapshot of e2b-own/recipe.yaml while they run. The table below lists
the tests that cannot pass here.

Groups with @rig run the tests of templates instead. These tests use images of a public registry, so VMs and the registry
are faked: an image has the files of this host. Agents are real, and run the steps of the templates.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as xml
from contextlib import contextmanager

import hostnames
import rig
from report import AGE, NotApplicable, Report

FAKED = AGE == "rig"
IMAGES = "e2bdev/base ubuntu:22.04"  # those of E2B's tests of templates
UNFINISHED = "an unfinished test"  # has no name in pytest's results
LIMIT = 300  # seconds that one test may take on an emulated host

# Patterns of test names, the reason why such a test does not count as a failure of this server, and the text that
# must appear if the failure may be one of the server.
ELSEWHERE = [
    (r"filesystem_only|filesystem-only", "memory: false is refused: docs/e2b.md"),
    (r"mcp.gateway", "mcp is refused: docs/e2b.md"),
    (r"mask_request_host|maskRequestHost|egress_proxy|transform|httpbin", "rules, egressProxy and maskRequestHost are refused: docs/e2b.md"),
    (r"allow_takes_precedence|allow takes precedence", "in forkd a denial wins: docs/e2b.md"),
    (r"watch_iterated|watch_recursive_directory_changes", "counts the chmod of a new file, which appears whole here: docs/e2b.md"),
    (r"stable_host_routing|normalizes_unset_tokens", "has no server: it is about E2B's own addresses, or keys"),
    (r"count lower than 1", "has no server: newer packages do not check that themselves, and the test's key is made up"),
    (r"keep_memory_none_defaults", "the boot id changes with every resume: docs/uniqueness.md"),
    (r"volume", "one sandbox writes to a volume, and each request for its files boots a VM: docs/e2b.md"),
    (r"test_stacktrace|stacktrace.test.ts", "has no server: it replaces functions of the version of the package beside it"),
    (r"user_that_does_not_exist|user that does not exist", "expects E2B's own words; forkd's error names the account too", "failed to run command"),
]
if FAKED:
    ELSEWHERE.append((r"make_symlink|makeSymlink", "the guests share their files, so the link is there already", "exit status 1"))
if "COMPAT_EMULATED" in os.environ:
    ELSEWHERE += [
        (r"public_traffic|traffic access token|works without token|wakes_on_http|with http server",
         "gives Python 3 to 5 s in which to serve: an emulated host takes longer", "502"),
        (r"wakes_on_http", "pauses after 3 s: an emulated host takes longer to start its command", "SandboxNotRunningException"),
        (r"completed long running process", "gives a shell and its `sleep 2` 2 s: an emulated host takes longer", "false to be true"),
        (r"too short timeout iterating", "gives a command 2 s to start: an emulated host takes longer", "deadline_exceeded"),
        (r"connect_to_pty|pty connect", "gives a shell 0.3 s for its answer: an emulated host takes longer", "'bar'"),
    ]
ONLINE = r"internet.access.(enabled|default)|(allow|deny).specific.ip|update_network|IP after update|replaces all egress"


def online(sandbox: str) -> bool:
    """Whether a sandbox reaches the internet, with name resolution and genuine TLS. A proxy may answer
    every connection in place of the real server."""
    ask = ["curl", "--fail", "--silent", "--show-error", "--max-time", "20", "--output", "/dev/null", "https://example.com"]
    return subprocess.run(["forkd", "exec", sandbox, "--", *ask]).returncode == 0


def environment() -> dict[str, str]:
    """The environment that gives the tests the daemon's addresses. Some tests also use
    https://PORT-ID.DOMAIN. Afterwards npm cannot install anything."""
    hostnames.begin()
    return {"E2B_VALIDATE_API_KEY": "false", "E2B_API_KEY": os.environ["FORKD_TOKEN"], "E2B_API_URL": os.environ["FORKD_URL"],
            "E2B_SANDBOX_URL": os.environ["FORKD_URL"], **{name: os.environ[name] for name in hostnames.SETS}}


@contextmanager
def faked():
    """Sets $FORKD_URL and $FORKD_TOKEN to those of a fake daemon."""
    with tempfile.TemporaryDirectory() as scratch, rig.isolated(scratch, "-images", IMAGES) as said:
        os.environ.update(FORKD_URL=said["url"], FORKD_TOKEN=said["token"])
        yield


@contextmanager
def template():
    """Provides the template `base` while the tests run. It must not exist before."""
    parent = forkd("fork", os.environ["COMPAT_OWN_TAG"])
    try:
        forkd("branch", parent, "base")
        if not online(parent):
            ELSEWHERE.append((ONLINE, "needs the internet, which sandboxes do not reach here"))
    finally:
        forkd("rm", parent)
    try:
        yield
    finally:
        left = [box["id"] for box in json.loads(forkd("ls", "-o", "json")) if box["snapshot_tag"] == "base"]
        if left:
            forkd("rm", *left)
        forkd("rmi", "base")


def forkd(*args: str) -> str:
    return subprocess.run(["forkd", *args], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run(client: str, tests_of) -> None:
    """Exits with the results of the tests.

    tests_of(source, directory) runs the checkout's tests in a new directory, and returns the path of their
    results in JUnit's format."""
    r = Report(client)
    source = os.environ.get("E2B_SOURCE")
    if source is None:
        r.case("all tests", absent)
        r.finish()
    summary: dict[str, list[str]] = {}
    with faked() if FAKED else template(), tempfile.TemporaryDirectory() as there:
        for case in xml.parse(tests_of(source, there)).iter("testcase"):
            if case.find("skipped") is not None and "E2B_OWN_TESTS" in os.environ:
                continue  # vitest reports tests that were not selected in this way
            name, what, reason, seconds = outcome(case)
            r.add(name, what, reason, seconds)
            summary.setdefault(case.get("classname") or UNFINISHED, []).append(what)
    for name, outcomes in sorted(summary.items()):
        print(f"{name:70} {outcomes.count('passed'):4} passed {outcomes.count('failed'):4} failed {outcomes.count('not_applicable'):4} not applicable")
    r.finish()


def absent() -> None:
    raise NotApplicable("E2B_SOURCE is not set: it is a checkout of https://github.com/e2b-dev/E2B")


def outcome(case: xml.Element) -> tuple[str, str, str | None, float]:
    if case.get("name") is None:
        return UNFINISHED, "failed", "the tests were interrupted: those after it have not run", 0
    name, seconds = f"{case.get('classname')}.{case.get('name')}", float(case.get("time", "0"))
    bad = next((e for e in case if e.tag in ("failure", "error")), None)
    if bad is not None:
        said = (bad.get("message") or "")[:300]
        reason = next((reason for pattern, reason, *words in ELSEWHERE
                       if re.search(pattern, name, re.IGNORECASE) and all(w in said for w in words)), None)
        return name, "not_applicable" if reason else "failed", reason or said, seconds
    skipped = case.find("skipped")
    if skipped is not None:
        return name, "not_applicable", skipped.get("message") or "skipped by the test itself", seconds
    return name, "passed", None, seconds
