"""Clients of the Model Context Protocol, against `forkd mcp` and /mcp of a daemon with fake VMs: the
package mcp of PyPI (version 2 or, as mcp@1.30, version 1), npm's packages, and the protocol's conformance
suite."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

import npm
import rig as fake
from report import Report, Tally, want

VERSION = importlib.metadata.version("mcp")
LINE = int(VERSION.split(".")[0])
NPM = ["@modelcontextprotocol/conformance@0.2.0-alpha.12", "@modelcontextprotocol/client@2.4.0", "@modelcontextprotocol/sdk@1.32.2",
       "@modelcontextprotocol/inspector@2.12.0"]
OLD = {"list_snapshots", "spawn_sandboxes", "branch_sandbox", "create_snapshot", "wait_for_text", "list_sandboxes", "get_sandbox",
       "kill_sandbox", "exec_command", "eval_code", "ping_sandbox"}

r = Report(f"mcp {VERSION} (PyPI)" + ("" if LINE == 1 else ", " + ", ".join(NPM) + " (npm)"), "faked")


# Names that differ between the two versions of the package.
if LINE == 1:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    @contextlib.asynccontextmanager
    async def over_stdio(env: dict[str, str], _mode: str):
        server = StdioServerParameters(command="forkd", args=["mcp"], env=env)
        async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
            await session.initialize()
            yield session

    @contextlib.asynccontextmanager
    async def over_http(url: str, token: str, _mode: str):
        async with streamablehttp_client(url + "/mcp", headers={"Authorization": "Bearer " + token}) as (reader, writer, _), \
                ClientSession(reader, writer) as session:
            await session.initialize()
            yield session

    MODES = ("initialize",)
else:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    @contextlib.asynccontextmanager
    async def over_stdio(env: dict[str, str], mode: str):
        async with Client(StdioServerParameters(command="forkd", args=["mcp"], env=env), mode=mode) as client:
            yield client

    @contextlib.asynccontextmanager
    async def over_http(url: str, token: str, mode: str):
        async with httpx2.AsyncClient(headers={"Authorization": "Bearer " + token}, timeout=60) as http, \
                Client(streamable_http_client(url + "/mcp", http_client=http), mode=mode) as client:
            yield client

    MODES = ("legacy", "auto", "2026-07-28")


def field(result: object, snake: str, camel: str) -> object:
    """A field, whose name differs between the two versions."""
    return getattr(result, snake if LINE > 1 else camel)


async def cases(client, tmp: str, progress: bool) -> None:
    """Uses tools and resources as a program for models does."""
    told: list[str] = []

    async def on_progress(_done: float, _total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def call(tool: str, **arguments) -> dict:
        got = await client.call_tool(tool, arguments, progress_callback=on_progress)
        want(not field(got, "is_error", "isError"), got)
        return field(got, "structured_content", "structuredContent")

    tools = {t.name: t for t in (await client.list_tools()).tools}
    want(OLD <= tools.keys() and len(tools) <= len(OLD) + 18, sorted(tools))
    want(all(field(t, "output_schema", "outputSchema") and t.annotations for t in tools.values()), "a tool without a schema of its results")

    box = (await call("spawn_sandboxes", snapshot_tag="base"))["result"][0]["id"]
    want(box in [s["id"] for s in (await call("list_sandboxes"))["result"]], "not listed")
    got = await call("exec_command", sandbox_id=box, args=["sh", "-c", "echo hi; exit 4"])
    want((got["stdout"], got["exit_code"]) == ("hi\n", 4), got)
    got = await call("run_code", sandbox_id=box, code="print('a'); 6 * 7")
    want((got["stdout"], got["results"][0]["text"]) == ("a\n", "42"), got)

    path = os.path.join(tmp, "sub", "é.txt")
    await call("write_file", sandbox_id=box, path=path, content="grüß\n")
    got = await call("read_file", sandbox_id=box, path=path)
    want((got["content"], got["encoding"]) == ("grüß\n", "utf8"), got)

    made = await call("branch", sandbox_id=box, n=2)
    want(len(made["sandboxes"]) == 2, made)
    want((await call("rollback", sandbox_id=box, to=made["tag"]))["rolled_back_to"] == made["tag"], "another state")

    told.clear()
    got = await call("fork_and_run", sandbox_id=box, commands=["exit 3", "echo 5", "echo 7"], score="echo $FORKD_ATTEMPT")
    want(got["winner"] == 3 and got["sandbox_id"] and [a.get("exit_code") for a in got["attempts"]] == [3, 0, 0], got)
    want(len(told) >= 4 or not progress, told)

    pid = (await call("start_command", sandbox_id=box, command="sleep 0.3; echo done"))["pid"]
    got = await call("wait_command", sandbox_id=box, pid=pid)
    want(got["exit_code"] == 0 and got["stdout"] == "done\n", got)

    resource = await client.read_resource(f"forkd://sandboxes/{box}")
    want(json.loads(resource.contents[0].text)["id"] == box, resource)

    got = await client.call_tool("get_sandbox", {"sandbox_id": "sb-none"})
    want(field(got, "is_error", "isError") and "404 sandbox_not_found" in got.content[0].text, got)
    want(got.meta["forkd/error"]["code"] == "sandbox_not_found", got.meta)

    for s in (await call("list_sandboxes"))["result"]:
        await call("kill_sandbox", sandbox_id=s["id"])
    want((await call("list_sandboxes"))["result"] == [], "some are left")


async def listens(client) -> None:
    """Checks that a client is notified of a change of a sandbox."""
    made = await client.call_tool("spawn_sandboxes", {"snapshot_tag": "base"})
    box = made.structured_content["result"][0]["id"]
    uri = f"forkd://sandboxes/{box}"
    async with client.listen(resource_subscriptions=[uri]) as changes:
        await client.call_tool("set_state", {"sandbox_id": box, "state": "paused"})
        event = await asyncio.wait_for(anext(changes), 30)
        want(event.uri == uri, event)
    await client.call_tool("kill_sandbox", {"sandbox_id": box})


async def in_python(rig: dict) -> None:
    env = {**os.environ, "FORKD_URL": rig["url"], "FORKD_TOKEN": rig["token"]}

    async def case(name: str, connect, use) -> None:
        async def run() -> None:
            async with connect as client:
                await use(client)

        failed = None
        try:
            await asyncio.wait_for(run(), 60)
        except Exception as e:
            failed = e

        def result() -> None:
            if failed is not None:
                raise failed

        r.case(name, result)

    for mode in MODES:
        with tempfile.TemporaryDirectory(dir=rig["tmp"]) as tmp:
            await case(f"tools over stdio, {mode}", over_stdio(env, mode), lambda c: cases(c, tmp, True))
            await case(f"tools over HTTP, {mode}", over_http(rig["url"], rig["token"], mode), lambda c: cases(c, tmp, True))
    if LINE > 1:
        await case("subscriptions/listen over stdio", over_stdio(env, "auto"), listens)
        await case("subscriptions/listen over HTTP", over_http(rig["url"], rig["token"], "auto"), listens)


# Scenarios of the conformance suite that apply to every server. The daemon passes them. The others call tools,
# prompts and resources of a server made for the suite; of the daemon, they judge only the form of messages.
WHOLE = {
    "2025-11-25": {"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"},
    "2026-07-28": {"server-stateless", "tools-list", "resources-list", "sep-2164-resource-not-found", "dns-rebinding-protection", "caching",
                   "http-header-validation", "server-sse-multiple-streams", "input-required-result-unsupported-methods"},
}
# The checks that a server made for the suite fails with the daemon's message handler, and the reasons.
SESSIONS = "without sessions a server of this revision cannot send requests to its client"
TASKS = "the extension for tasks is not offered"
LACKING = {
    "dns-rebinding-protection": "it is the daemon that looks at hosts and origins: see above",
    **dict.fromkeys(("tools-call-sampling", "tools-call-elicitation", "elicitation-sep1034-defaults", "elicitation-sep1330-enums"), SESSIONS),
    **{f"tasks-{name}": TASKS for name in ("lifecycle", "capability-negotiation", "wire-fields", "request-state-removal", "mrtr-input", "request-headers",
                                           "dispatch-and-envelope", "status-notifications", "required-task-error", "mrtr-composition")},
}


def excused(check: dict) -> bool:
    """Whether to ignore a check: one in a scenario of WHOLE that needs the suite's own server, or prompts."""
    message = check.get("errorMessage") or ""
    return message.startswith("Not testable") or check["id"] == "sep-2549-prompts-list-caching-hints"


def said(check: dict) -> str:
    return f"{check['id']}: {check.get('errorMessage') or check['status'].lower()}"


def scenarios(there: str, env: dict[str, str], url: str, revision: str) -> dict[str, list[dict]]:
    """Runs the scenarios that a revision requires, and returns the checks of each."""
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(["node", os.path.join(there, "node_modules/@modelcontextprotocol/conformance/dist/index.js"), "server", "--url", url,
                        "--requirements", revision, "--timeout", "20000", "-o", out], env=env, stdout=subprocess.DEVNULL, check=False)
        found = {}
        for folder in sorted(os.listdir(out)):
            with open(os.path.join(out, folder, "checks.json")) as f:
                found[scenario_of(folder)] = json.load(f)
        return found


def conformance(there: str, env: dict[str, str], url: str, revision: str) -> None:
    """Tests the daemon with its own tools."""
    found = scenarios(there, env, url + "/mcp", revision)
    for scenario, checks in found.items():
        whole = scenario in WHOLE[revision]
        wrong = [said(c) for c in checks if c["status"] == "FAILURE" and (not excused(c) if whole else c["id"].startswith("wire-schema"))]
        if wrong or whole:
            r.add(f"conformance {revision}: {scenario}", "failed" if wrong else "passed", "; ".join(wrong) or None)
    missing = WHOLE[revision] - found.keys()
    r.add(f"conformance {revision}: every scenario was run, and all messages have the right form", "failed" if missing else "passed",
          f"not run: {sorted(missing)}" if missing else None)


def fixtures(there: str, env: dict[str, str], url: str, revision: str) -> None:
    """Tests the daemon's message handler, with the tools, prompts and resources that the suite calls."""
    found = scenarios(there, env, url, revision)
    for scenario, checks in found.items():
        wrong = [said(c) for c in checks if c["status"] == "FAILURE"]
        passed = any(c["status"] == "SUCCESS" for c in checks)
        name = f"conformance {revision}, with fixtures: {scenario}"
        if not wrong and passed:
            r.add(name, "failed" if scenario in LACKING else "passed", "it passes, so remove it from LACKING" if scenario in LACKING else None)
        elif scenario in LACKING or not wrong and scenario in ("server-session-lifecycle", "server-sse-multiple-streams"):
            r.add(name, "not_applicable", LACKING.get(scenario, "the suite leaves it out of a server without sessions"))
        else:
            r.add(name, "failed", "; ".join(wrong) or "it proved nothing")
    r.add(f"conformance {revision}, with fixtures: all is there", "passed" if len(found) >= 30 else "failed", f"{len(found)} scenarios")


@contextlib.contextmanager
def suites_server(tmp: str):
    """The server of Go's SDK for the suite, with the daemon's message handler instead of its own."""
    sdk = subprocess.run(["go", "list", "-m", "-f", "{{.Dir}}", "github.com/modelcontextprotocol/go-sdk"], cwd=fake.ROOT, check=True,
                         stdout=subprocess.PIPE, text=True).stdout.strip()
    with open(os.path.join(sdk, "conformance/everything-server/main.go")) as f:
        text = f.read()
    for old, new in ((r"mcp\.NewStreamableHTTPHandler\((func\(\*http\.Request\) \*mcp\.Server \{.*?\}), &mcp\.StreamableHTTPOptions\{.*?\}\)",
                      r"mcphttp.Served(\1, time.Second)"),
                     (r"\tstateless = [^\n]*\n", ""),
                     (r"import \(\n", 'import (\n\t"github.com/forkd/forkd/internal/daemon/mcphttp"\n')):
        text, n = re.subn(old, new, text, count=1, flags=re.DOTALL)
        want(n == 1, f"the server of Go's SDK has another form: {old} is not there")
    main, overlay, program = (os.path.join(tmp, name) for name in ("main.go", "overlay.json", "server"))
    with open(main, "w") as f:
        f.write(text)
    with open(overlay, "w") as f:  # for the compiler a file of this module, which may import internal packages
        json.dump({"Replace": {os.path.join(fake.ROOT, "test/compat/mcp/server/main.go"): main}}, f)
    subprocess.run(["go", "build", "-overlay", overlay, "-o", program, "./test/compat/mcp/server"], cwd=fake.ROOT, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1:%d" % free.getsockname()[1]
    with subprocess.Popen([program, "-http", address], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError), socket.create_connection(address.rsplit(":", 1)):
                    break
                time.sleep(0.1)
            yield "http://" + address
        finally:
            process.terminate()


def scenario_of(folder: str) -> str:
    """The name of a scenario. The name of its folder ends with the time."""
    return folder.removeprefix("server-").rsplit("-", 6)[0]


def in_javascript(there: str, env: dict[str, str], rig: dict) -> None:
    with open(os.path.join(os.path.dirname(__file__), "clients.mjs")) as f, open(os.path.join(there, "clients.mjs"), "w") as copy:
        copy.write(f.read())
    node = subprocess.run(["node", "clients.mjs"], cwd=there, stdout=subprocess.PIPE, text=True, timeout=120, check=False,
                          env={**env, "FORKD_URL": rig["url"], "FORKD_TOKEN": rig["token"]})
    for line in node.stdout.splitlines():
        case = json.loads(line)
        r.add(case["name"], case["outcome"], case.get("reason"))
    if node.returncode != 0:
        r.add("the clients of npm", "failed", f"node ended with status {node.returncode}")


def inspector(there: str, env: dict[str, str], rig: dict) -> None:
    """Uses the protocol's inspector as a command line. Each call is a separate client."""
    program = [os.path.join(there, "node_modules/.bin/mcp-inspector"), "--cli"]
    with tempfile.TemporaryDirectory() as home:
        def inspect(*args: str) -> dict:
            got = subprocess.run([*program, *args], env={**env, "HOME": home}, capture_output=True, text=True, timeout=60, check=False)
            want(got.returncode == 0, got.stderr)
            return json.loads(got.stdout)

        stdio = ["forkd", "mcp", "-e", "FORKD_URL=" + rig["url"], "-e", "FORKD_TOKEN=" + rig["token"]]
        http = [rig["url"] + "/mcp", "--header", "Authorization: Bearer " + rig["token"]]

        def uses(server: list[str]) -> None:
            want(OLD <= {t["name"] for t in inspect(*server, "--method", "tools/list")["tools"]}, "a tool is missing")
            made = inspect(*server, "--method", "tools/call", "--tool-name", "spawn_sandboxes", "--tool-arg", "snapshot_tag=base")
            box = made["structuredContent"]["result"][0]["id"]
            want(box in inspect(*server, "--method", "resources/read", "--uri", "forkd://sandboxes")["contents"][0]["text"], "not there")
            want(inspect(*server, "--method", "tools/call", "--tool-name", "kill_sandbox", "--tool-arg", "sandbox_id=" + box)
                 ["structuredContent"]["killed"], "not killed")

        r.case("inspector over stdio", lambda: uses(stdio))
        r.case("inspector over HTTP", lambda: uses(http))


@contextlib.contextmanager
def told(name: str, version: str, suite: str = ""):
    """Reports the cases inside as the numbers of a client."""
    first, tally = len(r.cases), Tally()
    yield
    for case in r.cases[first:]:
        tally.add(case["outcome"])
    r.tool(name, version, tally, suite)


def main() -> None:
    package = {name: version for name, version in (p.rsplit("@", 1) for p in NPM)}
    clients = ("@modelcontextprotocol/client", "@modelcontextprotocol/sdk", "@modelcontextprotocol/inspector")
    suite = "@modelcontextprotocol/conformance " + package["@modelcontextprotocol/conformance"]
    with tempfile.TemporaryDirectory() as tmp:
        program = fake.build(os.path.join(tmp, "rigd"))
        with fake.daemon(program, "-keepalive", "1s") as rig:
            with told("mcp", VERSION):
                asyncio.run(in_python(rig))
            if LINE > 1:
                there, env = npm.install(NPM, dict(os.environ))
                with told("clients", ", ".join(package[name] for name in clients[:2])):
                    in_javascript(there, env, rig)
                with told("inspector", package[clients[2]]):
                    inspector(there, env, rig)
        if LINE > 1:
            with fake.daemon(program, "-open", "-keepalive", "1s") as rig:
                for revision in WHOLE:
                    conformance(there, env, rig["url"], revision)
            with suites_server(tmp) as url:
                for revision in WHOLE:
                    with told(revision, revision, suite):
                        fixtures(there, env, url, revision)


r.case("the daemon's traffic is as documented", main)
r.finish()
