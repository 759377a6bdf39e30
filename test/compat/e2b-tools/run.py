"""Tools that import E2B's SDK, unmodified, over TLS and host names: the table TOOLS below.

Each tool has an environment of its own. Packages of PyPI are those that were served on the day SERVED. Its cases are in
test_TOOL.py, or in TOOL.mjs. A case that fails for a reason of the tool or of E2B is a strict expected failure, and
counts as not applicable. Where a tool needs a model, a scripted one stands behind the tool's own interface.

$FORKD_URL and $FORKD_TOKEN name a daemon with real VMs. The group e2b-tools@rig runs the same cases with
test/contract/rigd instead, which $FORKD_RIG names if it is built already: VMs are faked, agents are real.
COMPAT_TOOLS="agno harbor" names some of the tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from functools import partial

import rig
from pythons import interpreter
from report import AGE, Report, Tally

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join(sys.prefix, "bin")
SERVED = "2026-11-28"
PYTEST = ("pytest==9.2.0", "pytest-asyncio==1.5.0")
ANY, NEW = (3, 11), (3, 12)  # the oldest Python of a tool
PYTHON = {
    "agno": ANY,
    "crewai_tools": ANY,
    "deepagents_code": ANY,
    "google_adk": ANY,
    "harbor": NEW,
    "inspect_sandboxes": NEW,
    "langchain_e2b": ANY,
    "openai_agents": ANY,
    "smolagents": ANY,
    "verifiers": ANY,
}
NPM = {
    "computesdk": ["@computesdk/e2b@1.7.52", "e2b@2.51.0"],
    "mastra": ["@mastra/core@1.71.0", "@mastra/e2b@0.8.0", "e2b@2.51.0"],
    "openai-agents-extensions": [
        "@openai/agents@0.20.0",
        "@openai/agents-extensions@0.18.0",
        "@e2b/code-interpreter@2.8.0",
        "e2b@2.51.0",
        "zod@4.6.7",
    ],
}
TOOLS = [*PYTHON, *NPM]
PACKAGE = {
    "computesdk": "@computesdk/e2b",
    "mastra": "@mastra/e2b",
    "openai-agents-extensions": "@openai/agents-extensions",
}
SUITES = {"inspect_sandboxes": "inspect-ai", "langchain_e2b": "langchain-tests"}  # the packages that have the tests
FAKED = AGE == "rig"
TEMPLATES = {"base": "e2b-base", "code-interpreter-v1": "e2b-codeinterpreter"}  # the SDKs' defaults, and their recipes
DOMAIN = "https://e2b.localhost:8443"  # that of test/compat/hostnames
REAL = {  # cases that need real VMs: with faked ones, they do not count
    "test_exec_as_user",
    "test_a_workspace_is_saved_and_restored[snapshot]",
    "snapshot: a workspace is saved and restored",
}
r = Report("tools that use E2B's SDK")


def output(*args: str) -> str:
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


# Environments.


def environment(tool: str) -> list[str]:
    """Installs a tool, and returns the command that runs its cases, without the options."""
    there = os.path.join(sys.prefix, "tools", tool)
    done, program = os.path.join(there, "done"), None
    if tool in NPM:
        wanted = NPM[tool]
    else:
        program = interpreter(PYTHON[tool])
        with open(os.path.join(HERE, "packages", tool + ".txt")) as f:
            wanted = [program, SERVED, *PYTEST, *f.read().split()]
    with contextlib.suppress(FileNotFoundError), open(done) as f:
        if f.read() == json.dumps(wanted):
            return command(tool, there)
    shutil.rmtree(there, ignore_errors=True)
    if program is None:
        os.makedirs(there)
        env = {**os.environ, "PATH": BIN + os.pathsep + os.environ["PATH"]}
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", there, *wanted], env=env, check=True
        )
    else:
        subprocess.run([f"{BIN}/uv", "venv", "--quiet", "--python", program, there], check=True)
        subprocess.run(
            [
                f"{BIN}/uv",
                "pip",
                "install",
                "--quiet",
                "--python",
                f"{there}/bin/python",
                "--exclude-newer",
                SERVED,
                *wanted[2:],
            ],
            check=True,
        )
    with open(done, "w") as f:
        json.dump(wanted, f)
    return command(tool, there)


def command(tool: str, there: str) -> list[str]:
    if tool not in NPM:
        return [
            f"{there}/bin/python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "-o",
            "asyncio_default_fixture_loop_scope=module",
            "-o",
            "asyncio_default_test_loop_scope=module",
            f"{HERE}/test_{tool}.py",
        ]
    for file in (f"{HERE}/{tool}.mjs", f"{HERE}/../cases.mjs"):
        shutil.copy(file, there)
    return [f"{BIN}/node", f"{there}/{tool}.mjs"]


# The daemon.


@contextlib.contextmanager
def daemon(scratch: str) -> Iterator[None]:
    """Sets $FORKD_URL and $FORKD_TOKEN, unless they name a daemon with real VMs already."""
    if not FAKED:
        yield
        return
    with rig.isolated(scratch, "-domain", DOMAIN) as said:
        os.environ.update(FORKD_URL=said["url"], FORKD_TOKEN=said["token"])
        yield


@contextlib.contextmanager
def templates() -> Iterator[None]:
    """Makes the SDKs' default templates, unless they exist, and removes them in the end."""
    missing = TEMPLATES.keys() - set(output("forkd", "images", "-q").split())
    for name in sorted(missing):
        parent = "base" if FAKED else os.environ.get("COMPAT_INTERPRETER_TAG", "") if name != "base" else ""
        if parent:
            box = output("forkd", "fork", parent)
            output("forkd", "branch", box, name)
            output("forkd", "rm", box)
        else:
            output("forkd", "build", TEMPLATES[name], "--tag", name, "--reuse", "--ready-timeout-secs", "1200")
    try:
        yield
    finally:
        left = [box["id"] for box in json.loads(output("forkd", "ls", "-o", "json")) if box["snapshot_tag"] in missing]
        if left:
            output("forkd", "rm", *left)
        for name in missing if not FAKED else ():
            output("forkd", "rmi", "--cascade", name)


@contextlib.contextmanager
def at_socket(path: str) -> Iterator[None]:
    """Makes the daemon available at a unix socket, which programs in other network namespaces can use."""
    host, _, port = os.environ["FORKD_URL"].removeprefix("http://").rstrip("/").rpartition(":")
    loop = asyncio.new_event_loop()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
            sink.write_eof()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            answers, requests = await asyncio.open_connection(host, port)
            with contextlib.closing(requests):
                await asyncio.gather(copy(reader, requests), copy(answers, writer))

    loop.run_until_complete(asyncio.start_unix_server(connected, path))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield


# The cases.


def counts(name: str) -> bool:
    return not (FAKED and name in REAL)


def of_pytest(tool: str, args: list[str], env: dict[str, str], report: str) -> Tally:
    code = subprocess.run([*args, f"--junitxml={report}"], cwd=HERE, env=env).returncode
    tally = Tally()
    for case in xml.parse(report).iter("testcase") if os.path.exists(report) else ():
        bad = next((e for e in case if e.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if bad is None else "not_applicable" if bad.tag == "skipped" else "failed"
        r.add(
            f"{tool}: {case.get('name')}",
            outcome,
            None if bad is None else bad.get("message"),
            float(case.get("time", 0)),
        )
        if counts(case.get("name")):
            tally.add(outcome)
    r.add(
        f"{tool}: the tests as a whole",
        "failed" if code else "passed",
        f"pytest ended with status {code}" if code else None,
    )
    return tally


def of_node(tool: str, args: list[str], env: dict[str, str]) -> Tally:
    tally = Tally()
    with subprocess.Popen(args, cwd=os.path.dirname(args[-1]), env=env, stdout=subprocess.PIPE, text=True) as node:
        for line in node.stdout:
            if not line.startswith('{"name"'):  # a message of the tool
                print(line, end="")
                continue
            case = json.loads(line)
            r.add(f"{tool}: {case['name']}", case["outcome"], case.get("reason"), case["seconds"])
            if counts(case["name"]):
                tally.add(case["outcome"])
    if node.returncode:
        r.add(f"{tool}: the cases as a whole", "failed", f"node ended with status {node.returncode}")
    return tally


def version(tool: str, package: str) -> str:
    """The version of a package in a tool's environment."""
    there = os.path.join(sys.prefix, "tools", tool)
    if tool in NPM:
        with open(f"{there}/node_modules/{package}/package.json") as f:
            return json.load(f)["version"]
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return output(f"{there}/bin/python", "-c", code, package)


def tell(tool: str, tally: Tally) -> None:
    """Reports the numbers of a tool."""
    suite = SUITES.get(tool, "")
    package = PACKAGE.get(tool, tool.replace("_", "-"))
    r.tool(tool, version(tool, package), tally, f"{suite} {version(tool, suite)}" if suite else "")


def main(scratch: str) -> None:
    chosen = os.environ.get("COMPAT_TOOLS", "").split() or TOOLS
    commands = {tool: r.case(f"{tool}: it can be installed", partial(environment, tool)) for tool in chosen}
    program, socket = os.path.join(scratch, "hostnames"), os.path.join(scratch, "daemon.sock")
    subprocess.run(["go", "build", "-o", program, "./test/compat/hostnames"], check=True)
    with daemon(scratch), templates(), at_socket(socket):
        env = {
            **os.environ,
            "E2B_API_KEY": "e2b_" + os.environ["FORKD_TOKEN"],
            "E2B_VALIDATE_API_KEY": "false",
            "COMPAT_FAKED": "yes" if FAKED else "",
            "PYTHONPYCACHEPREFIX": os.path.join(sys.prefix, "pycache"),
        }
        for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN", "FORKD_TOKEN", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        for tool, args in commands.items():
            if args is None:
                continue
            began = time.monotonic()
            args = [*rig.UNSHARE, "--net", sys.executable, f"{HERE}/inside.py", program, socket, *args]
            tally = of_node(tool, args, env) if tool in NPM else of_pytest(tool, args, env, f"{scratch}/{tool}.xml")
            print(f"{tool}: {tally.passed} of {tally.total} in {time.monotonic() - began:.0f} s", flush=True)
            tell(tool, tally)


with tempfile.TemporaryDirectory() as scratch:
    main(scratch)
r.finish()
