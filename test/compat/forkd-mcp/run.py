"""The MCP server forkd-mcp 0.2.1, and `forkd mcp`, used like a client of the protocol over standard streams."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import httpx
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from report import TAG, Report, want

r = Report("forkd-mcp 0.2.1 (PyPI), and forkd mcp")
used: set[str] = set()
SERVERS = {
    "forkd-mcp": (os.path.join(os.path.dirname(sys.executable), "forkd-mcp"), []),
    "forkd mcp": ("forkd", ["mcp"]),
}
BAKED = "compat-mcp"


def clean(tag: str) -> None:
    """Removes a snapshot. There is no tool for that."""
    token = {"Authorization": "Bearer " + os.environ["FORKD_TOKEN"]}
    status = httpx.delete(f"{os.environ['FORKD_URL']}/v1/snapshots/{tag}", headers=token, timeout=300).status_code
    want(status in (204, 404), f"removing {tag}: {status}")


async def main(which: str) -> set[str]:
    """Calls every tool of one of the servers in the way of forkd-mcp, and returns the names of the server's tools."""
    command, args = SERVERS[which]
    server = StdioServerParameters(command=command, args=args, env={**os.environ, "FORKD_HTTP_TIMEOUT": "300"})
    clean(BAKED)
    async with stdio_client(server, errlog=open(os.devnull, "w")) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        names = {t.name for t in (await session.list_tools()).tools}

        async def call(tool: str, **arguments) -> object:
            used.add(tool)
            got = await session.call_tool(tool, arguments)
            text = "".join(c.text for c in got.content)
            want(not got.isError, text)
            if got.structuredContent is None:
                return json.loads(text)
            result = got.structuredContent
            return result["result"] if isinstance(result.get("result"), list) else result  # lists are wrapped

        async def fails(tool: str, with_text: str, **arguments) -> None:
            got = await session.call_tool(tool, arguments)
            want(got.isError and with_text in got.content[0].text, got)

        async def case(name: str, coroutine) -> object:
            """Report.case for a coroutine."""
            name = f"{which}: {name}"
            try:
                result = await coroutine
            except Exception as e:
                def again(e=e):
                    raise e
                return r.case(name, again)
            return r.case(name, lambda: result)

        async def spawned() -> str:
            made = await call("spawn_sandboxes", snapshot_tag=TAG, n=1, prewarm=True, live_fork=True)
            want(len(made) == 1 and made[0]["memory_limit_mib"] == 256, made)
            return made[0]["id"]

        async def execs() -> None:
            got = await call("exec_command", sandbox_id=box, args=["sh", "-c", "echo READY >/root/log; echo hi; exit 4"])
            want((got["stdout"], got["stderr"], got["exit_code"]) == ("hi\n", "", 4), got)

        async def waits() -> None:
            got = await call("wait_for_text", sandbox_id=box, path="/root/log", marker="READY", timeout_secs=60)
            want(got["found"] is True, got)
            got = await call("wait_for_text", sandbox_id=box, path="/root/log", marker="NEVER", timeout_secs=1)
            want(got["found"] is False and got["last_excerpt"] == "READY\n", got)

        async def evals() -> None:
            got = await call("eval_code", sandbox_id=box, code="6 * 7")
            want(got["result"] == "42", got)

        async def branches() -> None:
            for options in ({}, {"diff": True}, {"measure_diff": True}, {"mode": "full"}, {"mode": "live", "wait": False},
                            {"mode": "full", "wait": False}):
                got = await call("branch_sandbox", sandbox_id=box, **options)
                made = await call("spawn_sandboxes", snapshot_tag=got["tag"])
                await call("kill_sandbox", sandbox_id=made[0]["id"])
                clean(got["tag"])

        async def creates() -> None:
            # The tool sends no initrd, so the daemon makes one for the kernel.
            got = await call("create_snapshot", tag=BAKED, kernel=os.environ["COMPAT_KERNEL"],
                             rootfs=os.environ["COMPAT_ROOTFS"], rw=True, boot_wait_secs=5)
            want(got["status"] == "ready" and got["bootable"], got)
            made = await call("spawn_sandboxes", snapshot_tag=BAKED)
            got = await call("exec_command", sandbox_id=made[0]["id"], args=["cat", "/proc/1/comm"], timeout_secs=60)
            want(got["exit_code"] == 0, got)
            await call("kill_sandbox", sandbox_id=made[0]["id"])
            clean(BAKED)

        async def listed() -> None:
            want(box in [s["id"] for s in await call("list_sandboxes")], "not listed")
            want((await call("get_sandbox", sandbox_id=box))["id"] == box, "another sandbox")

        async def kills() -> None:
            want(await call("kill_sandbox", sandbox_id=box) == {"id": box, "killed": True}, "not killed")
            await fails("get_sandbox", "404", sandbox_id=box)

        async def snapshots() -> None:
            want(TAG in [s["tag"] for s in await call("list_snapshots")], "not listed")

        async def pings() -> None:
            want((await call("ping_sandbox", sandbox_id=box))["pong"] is True, "no pong")

        await case("list_snapshots", snapshots())
        box = await case("spawn_sandboxes", spawned())
        await case("list_sandboxes, get_sandbox", listed())
        await case("ping_sandbox", pings())
        await case("exec_command", execs())
        await case("wait_for_text", waits())
        await case("eval_code", evals())
        await case("branch_sandbox, every mode, and forks of the branches", branches())
        await case("create_snapshot", creates())
        await case("kill_sandbox", kills())
        return names


published = asyncio.run(main("forkd-mcp"))
r.covered("tool", published, used)
missing = published - asyncio.run(main("forkd mcp"))
r.add("forkd mcp has every tool of forkd-mcp", "failed" if missing else "passed", f"missing: {sorted(missing)}" if missing else None)
r.finish()
