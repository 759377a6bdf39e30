"""The adapters of the Python SDK (forkd.integrations) and the TypeScript SDK, each with the conformance suite of its
framework, in sandboxes forked from $COMPAT_TAG. Only frameworks that are installed are tested. The group adapters@rig runs those adapters whose
frameworks are small, with faked VMs: each sandbox has its own /srv, which branches keep. adapters@rig-all runs all of
them, with faked VMs that share the host's files. An adapter of OWN has an environment of its own and, if VMs are faked,
a daemon with a copy of the host's files.
COMPAT_ADAPTERS="smolagents langgraph" selects adapters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import rig
from pythons import interpreter
from report import AGE, Report, Tally

HERE = os.path.dirname(os.path.abspath(__file__))
SDK = os.path.join(os.getcwd(), "sdk/python")
SEVERAL = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=module"]
OPTIONS = {  # pytest's options, by adapter; the suite of Pydantic AI uses anyio's plugin
    "deepagents": SEVERAL,
    "harbor": SEVERAL,
    "inspect_ai": [*SEVERAL, "-o", "asyncio_default_test_loop_scope=module"],
    "jupyter": SEVERAL,
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
    "harbor": ("harbor", ""),
    "inspect_ai": ("inspect-ai", "inspect-ai"),
    "jupyter": ("jupyter-client", ""),
    "langgraph": ("langgraph", "langgraph-checkpoint-conformance"),
    "minisweagent": ("mini-swe-agent", ""),
    "openai_agents": ("openai-agents", ""),
    "pydantic_ai": ("pydantic-ai-slim", "pydantic-ai-slim"),
    "smolagents": ("smolagents", ""),
}
NEEDS = {
    "openai_agents": "agents",
    "deepagents": "langchain_tests",
    "jupyter": "jupyter_client",
    "langgraph": "langgraph.checkpoint.conformance",
}  # the module that an adapter's tests need, if it does not have the adapter's name
# Adapters with an environment of their own, of the packages in packages/NAME.txt, and the oldest Python for it.
OWN = {"harbor": (3, 12)} if AGE in ("", "rig-all") else {}
TYPESCRIPT = "typescript"  # all adapters of the TypeScript SDK
NAMES = [*OPTIONS, *([TYPESCRIPT] if AGE in ("", "rig") else [])]
CHOSEN = os.environ.get("COMPAT_ADAPTERS", "").split() or NAMES
if unknown := set(CHOSEN) - set(NAMES):
    sys.exit(f"COMPAT_ADAPTERS: no adapter {', '.join(unknown)}: want some of {' '.join(NAMES)}")
r = Report("forkd.integrations (sdk/python), forkd/ai and forkd/bash-tool (sdk/typescript)")


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is not installed
        return False


def run(*args: str, cwd: str = SDK, python: str = sys.executable) -> None:
    got = subprocess.run(
        [python, "-m", *args],
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


def environment(name: str) -> str:
    """Makes the environment of an adapter of OWN, and returns its interpreter."""
    there, packages = os.path.join(sys.prefix, "tools", name), os.path.join(HERE, "packages", name + ".txt")
    python, done = os.path.join(there, "bin/python"), os.path.join(there, "done")
    with open(packages) as f:
        wanted = interpreter(OWN[name]) + "\n" + f.read()
    if not os.path.exists(done) or open(done).read() != wanted:
        shutil.rmtree(there, ignore_errors=True)
        run("venv", there, python=interpreter(OWN[name]))
        run("pip", "install", "--quiet", "--disable-pip-version-check", "-r", packages, python=python)
        with open(done, "w") as f:
            f.write(wanted)
    run(*PIP, SDK, python=python)
    return python


def version_of(package: str, python: str) -> str:
    """The version of a package in an environment."""
    if python == sys.executable:
        return version(package)
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return subprocess.run([python, "-c", code, package], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def suite(name: str, report: str, python: str) -> None:
    """Runs the tests of an adapter. Each test is a case."""
    if os.path.exists(report):
        os.remove(report)
    args = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *OPTIONS[name], f"test_{name}.py"]
    code = subprocess.run([python, "-m", "pytest", *args], cwd=HERE).returncode
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
        by = f"{conformance} {version_of(conformance, python)}" if conformance else ""
        r.tool(name, version_of(package, python), tally, by)


def typescript() -> None:
    """Runs the tests of the TypeScript SDK with the packages of the frameworks. Each test is a case, whose name begins
    with that of its framework."""
    there = os.path.join(sys.prefix, "typescript")
    kept = os.path.join(there, "node_modules")
    env = {**os.environ, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"]}
    if "FORKD_RIG" in env:
        env["FORKD_RIGD"] = env["FORKD_RIG"]

    def install() -> None:
        source = os.path.join(os.getcwd(), "sdk/typescript")
        os.makedirs(there, exist_ok=True)
        for name in ("src", "test"):
            shutil.rmtree(os.path.join(there, name), ignore_errors=True)
            shutil.copytree(os.path.join(source, name), os.path.join(there, name))
        with open(os.path.join(source, "package.json")) as f:
            wanted = json.load(f)["devDependencies"]
        packages = [f"{name}@{wanted[name]}" for name in ("ai", "bash-tool")]
        done = os.path.join(there, "done")
        if not os.path.exists(done) or open(done).read() != str(packages):
            shutil.rmtree(kept, ignore_errors=True)
            with open(os.path.join(there, "package.json"), "w") as f:
                json.dump({"type": "module", "private": True}, f)
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts", *packages]
            subprocess.run(command, cwd=there, env=env, check=True)
            with open(done, "w") as f:
                f.write(str(packages))

    r.case("the packages of TypeScript are installed", install)
    command = ["node", "--test", "--test-reporter=tap", "test/frameworks.test.ts"]
    got = subprocess.run(command, cwd=there, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    tallies = {"ai": Tally(), "bash-tool": Tally()}
    for failed, case in re.findall(r"^(not )?ok \d+ - (.*?)(?: # .*)?$", got.stdout, re.MULTILINE):
        outcome = "failed" if failed else "passed"
        r.add(case, outcome)
        for package, tally in tallies.items():
            if case.startswith(package + ": "):
                tally.add(outcome)
    if got.returncode:
        print(got.stdout)
    reason = f"node ended with status {got.returncode}" if got.returncode else None
    r.add("typescript: the tests as a whole", "failed" if got.returncode else "passed", reason)
    for package, tally in tallies.items():
        if tally.total:
            with open(os.path.join(kept, package, "package.json")) as f:
                r.tool(package, json.load(f)["version"], tally)


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


def adapter(name: str, scratch: str, python: str = sys.executable) -> None:
    """Checks the types and the documentation of an adapter, and runs its tests."""
    mypy = partial(run, "mypy", "--cache-dir", scratch + "/mypy", f"src/forkd/integrations/{name}.py", python=python)
    pdoc = partial(run, "pdoc", "-o", scratch + "/reference", f"forkd.integrations.{name}", cwd=scratch, python=python)
    if not QUICK:
        r.case(f"{name}: mypy --strict", mypy)
        r.case(f"{name}: the reference is made", pdoc)
    suite(name, scratch + "/tests.xml", python)


@contextlib.contextmanager
def isolated(scratch: str) -> Iterator[None]:
    """Sets $FORKD_URL, unless it names a daemon with real VMs: then to that of a daemon with a copy of the host's
    files, in which each sandbox has its own /srv."""
    if not FAKED:
        yield
        return
    with tempfile.TemporaryDirectory(dir=scratch) as there, rig.isolated(there, "-private") as said:
        os.environ.update(FORKD_URL=said["url"], FORKD_TOKEN=said["token"], COMPAT_TAG=said["snapshot"])
        yield
    del os.environ["FORKD_URL"], os.environ["FORKD_TOKEN"]


def main(scratch: str) -> None:
    if FAKED:
        os.environ.pop("FORKD_URL", None)
        os.environ.update(FORKD_RIG=rig.build(scratch + "/rigd"))
        if AGE == "rig":
            os.environ["FORKD_RIG_PRIVATE"] = "yes"
    if set(CHOSEN) - set(OWN):
        r.case("the SDK is installed", lambda: run(*PIP, SDK))
    for name in CHOSEN:
        if name == TYPESCRIPT:
            typescript()
        elif name in OWN:
            if python := r.case(f"{name}: it can be installed", partial(environment, name)):
                with isolated(scratch):
                    adapter(name, scratch, python)
        elif installed(NEEDS.get(name, name)):
            adapter(name, scratch)


with tempfile.TemporaryDirectory() as scratch:
    main(scratch)
r.finish()
