"""Drives forkd's MCP server as a desktop program would: list the tools, fork, run, branch, fan out, clean up.

It starts `forkd mcp` and speaks to it over standard input and output. If there is no program forkd in the path, or
with --http, it uses the daemon's own endpoint instead: FORKD_URL/mcp with FORKD_TOKEN."""

import argparse
import asyncio
import json
import os
import shutil
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

NOTE = "/srv/mcp-note"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--fanout", type=int, default=2)
parser.add_argument("--http", action="store_true", help="use the daemon's endpoint /mcp")
parser.add_argument("--dry-run", action="store_true", help="accepted, because this example needs no model")
args = parser.parse_args()


@asynccontextmanager
async def server():
    if shutil.which("forkd") and not args.http:
        async with Client(StdioServerParameters(command="forkd", args=["mcp"], env=dict(os.environ))) as client:
            yield client
        return
    url, headers = (
        os.environ["FORKD_URL"].rstrip("/") + "/mcp",
        {"Authorization": "Bearer " + os.environ["FORKD_TOKEN"]},
    )
    async with (
        httpx2.AsyncClient(headers=headers, timeout=300) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def main():
    async with server() as client:

        async def call(tool, **arguments):
            result = await client.call_tool(tool, arguments)
            text = "".join(c.text for c in result.content if c.type == "text")
            if result.is_error:
                raise SystemExit(f"{tool}: {text}")
            return result.structured_content or json.loads(text)

        names = {t.name for t in (await client.list_tools()).tools}
        there = names >= {"fork", "branch", "rollback"}
        print(f"the server has {len(names)} tools, with fork, branch and rollback: {'yes' if there else 'NO'}")
        made, tags = [], []
        try:
            [source] = [s["id"] for s in (await call("spawn_sandboxes", snapshot_tag=args.snapshot, n=1))["result"]]
            made.append(source)
            write = ["sh", "-c", f"echo first >{NOTE}; cat {NOTE}"]
            run = await call("exec_command", sandbox_id=source, args=write)
            print(f"exec_command: exit={run['exit_code']} {run['stdout'].strip()!r}")
            branch = await call("branch", sandbox_id=source, n=args.fanout)
            tags.append(branch["tag"])
            children = [s["sandbox_id"] for s in branch["sandboxes"]]
            made += children
            print(f"branch: pause_ms={branch['pause_ms']:.1f}, {len(children)} children")
            await call("write_file", sandbox_id=source, path=NOTE, content="second\n")

            async def note(sandbox):
                return (await call("read_file", sandbox_id=sandbox, path=NOTE))["content"].strip()

            seen = [await note(s) for s in (source, *children)]
            print(f"the source has {seen[0]!r}, the children have {', '.join(map(repr, seen[1:]))}")
            await call("rollback", sandbox_id=source, to=branch["tag"])
            back = await note(source)
            print(f"after the rollback, the source has {back!r}")
        finally:
            for sandbox in made:
                await call("kill_sandbox", sandbox_id=sandbox)
            for tag in tags:
                await call("delete_snapshot", tag=tag)
        print(f"cleaned up {len(made)} sandboxes and {len(tags)} snapshot")
    if not there or seen != ["second"] + ["first"] * args.fanout or back != "first":
        raise SystemExit("FAILED")


asyncio.run(main())
