"""The adapters of the Python SDK (forkd.integrations), each with the conformance suite of its framework, in sandboxes
forked from $COMPAT_TAG. Only frameworks that are installed are tested. The group adapters@rig runs those adapters whose
frameworks are small, with faked VMs: each sandbox has its own /srv, which branches keep. adapters@rig-all runs all of
them, with faked VMs that share the host's files.
COMPAT_ADAPTERS="smolagents langgraph" selects adapters."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import rig
from report import AGE, Report, Tally

HERE = os.path.dirname(os.path.abspath(__file__))
SDK = os.path.join(os.getcwd(), "sdk/python")
SEVERAL = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=module"]
OPTIONS = {  # pytest's options, by adapter; the suite of Pydantic AI uses anyio's plugin
    "deepagents": SEVERAL,
    "inspect_ai": [*SEVERAL, "-o", "asyncio_default_test_loop_scope=module"],
    "langgraph": SEVERAL,
    "minisweagent": [],
    "openai_agents": [*SEVERAL, "-o", "asyncio_default_test_loop_scope=module"],
    "pydantic_ai": [],
    "smolagents": [],
}
FAKED = AGE.startswith("rig")
QUICK = "COMPAT_QUICK" in os.environ
PACKAGES = {  # the package of PyPI that an adapter is for, and that of the framework's suite; without one, our tests count
    "deepagents": ("deepagents", "langchain-tests"),
    "inspect_ai": ("inspect-ai", "inspect-ai"),
    "langgraph": ("langgraph", "langgraph-checkpoint-conformance"),
    "minisweagent": ("mini-swe-agent", ""),
    "openai_agents": ("openai-agents", ""),
    "pydantic_ai": ("pydantic-ai-slim", "pydantic-ai-slim"),
    "smolagents": ("smolagents", ""),
}
NEEDS = {
    "openai_agents": "agents",
    "deepagents": "langchain_tests",
    "langgraph": "langgraph.checkpoint.conformance",
}  # the module that an adapter's tests need, if it does not have the adapter's name
CHOSEN = os.environ.get("COMPAT_ADAPTERS", "").split() or list(OPTIONS)
if unknown := set(CHOSEN) - set(OPTIONS):
    sys.exit(f"COMPAT_ADAPTERS: no adapter {', '.join(unknown)}: want some of {' '.join(OPTIONS)}")
r = Report("forkd.integrations (sdk/python)")


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is not installed
        return False


def run(*args: str, cwd: str = SDK) -> None:
    got = subprocess.run(
        [sys.executable, "-m", *args],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if got.returncode:
        raise RuntimeError(f"{args[0]} ended with status {got.returncode}\n{got.stdout}")


def of_suite(case: xml.Element) -> bool:
    """Whether a test belongs to the framework's suite."""
    name = case.get("name", "")
    if name.startswith("test_suite[") or "TestSuite" in case.get("classname", ""):
        return True
    return installed("inspect_ai") and name in import_module("inspect_ai.util._sandbox.self_check").__all__


def suite(name: str, report: str) -> None:
    """Runs the tests of an adapter. Each test is a case."""
    if os.path.exists(report):
        os.remove(report)
    args = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *OPTIONS[name], f"test_{name}.py"]
    code = subprocess.run([sys.executable, "-m", "pytest", *args], cwd=HERE).returncode
    tally = Tally()
    package, conformance = PACKAGES[name]
    for case in xml.parse(report).iter("testcase") if os.path.exists(report) else []:
        bad = next((e for e in case if e.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if bad is None else "not_applicable" if bad.tag == "skipped" else "failed"
        reason, title = None if bad is None else bad.get("message"), f"{name}: {case.get('name')}"
        if not conformance or of_suite(case):
            title = f"{name}: suite: {case.get('name')}" if conformance else title
            if "emulated host" in (reason or ""):
                tally.not_run += 1
            elif bad is None or bad.get("type") != "pytest.skip":
                tally.add(outcome)
        r.add(title, outcome, reason, float(case.get("time", 0)))
    reason = f"pytest ended with status {code}" if code else None
    r.add(f"{name}: the tests as a whole", "failed" if code else "passed", reason)
    if tally.total:
        r.tool(name, version(package), tally, f"{conformance} {version(conformance)}" if conformance else "")


# The frameworks take minutes to install. As the SDK is not among their requirements, they stay when it changes.
PIP = [
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--no-deps",
    "--no-build-isolation",
    "--force-reinstall",
]

with tempfile.TemporaryDirectory() as scratch:
    if FAKED:
        os.environ.pop("FORKD_URL", None)
        os.environ.update(FORKD_RIG=rig.build(scratch + "/rigd"))
        if AGE == "rig":
            os.environ["FORKD_RIG_PRIVATE"] = "yes"
    r.case("the SDK is installed", lambda: run(*PIP, SDK))
    for name in CHOSEN:
        if installed(NEEDS.get(name, name)):
            mypy = partial(run, "mypy", "--cache-dir", scratch + "/mypy", f"src/forkd/integrations/{name}.py")
            pdoc = partial(run, "pdoc", "-o", scratch + "/reference", f"forkd.integrations.{name}", cwd=scratch)
            if not QUICK:
                r.case(f"{name}: mypy --strict", mypy)
                r.case(f"{name}: the reference is made", pdoc)
            suite(name, scratch + "/tests.xml")
r.finish()
