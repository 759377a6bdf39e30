// The clients of npm's packages @modelcontextprotocol/client (line 2) and @modelcontextprotocol/sdk (line 1), over
// standard streams and over HTTP. Prints a line of JSON for each case.

import assert from "node:assert/strict";
import { Client as Client2, StreamableHTTPClientTransport as Http2 } from "@modelcontextprotocol/client";
import { StdioClientTransport as Stdio2 } from "@modelcontextprotocol/client/stdio";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as Stdio1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { FORKD_URL: url, FORKD_TOKEN: token } = process.env;
const stdio = { command: "forkd", args: ["mcp"], env: process.env, stderr: "inherit" };
const headers = { requestInit: { headers: { Authorization: `Bearer ${token}` } } };

async function use(client, transport) {
  await client.connect(transport);
  try {
    const { tools } = await client.listTools();
    assert.ok(tools.some((t) => t.name === "fork_and_run" && t.outputSchema && t.annotations));
    const call = async (name, args) => {
      const got = await client.callTool({ name, arguments: args });
      assert.ok(!got.isError, JSON.stringify(got));
      return got.structuredContent;
    };
    const id = (await call("spawn_sandboxes", { snapshot_tag: "base" })).result[0].id;
    const ran = await call("exec_command", { sandbox_id: id, args: ["sh", "-c", "echo hi; exit 4"] });
    assert.deepEqual([ran.stdout, ran.exit_code], ["hi\n", 4]);
    const tried = await call("fork_and_run", { sandbox_id: id, commands: ["exit 1", "echo ok"] });
    assert.equal(tried.winner, 2);
    const { contents } = await client.readResource({ uri: `forkd://sandboxes/${id}` });
    assert.equal(JSON.parse(contents[0].text).id, id);
    const wrong = await client.callTool({ name: "get_sandbox", arguments: { sandbox_id: "sb-none" } });
    assert.ok(wrong.isError && wrong.content[0].text.includes("404 sandbox_not_found"));
    for (const sandbox of (await call("list_sandboxes", {})).result) await call("kill_sandbox", { sandbox_id: sandbox.id });
  } finally {
    await client.close();
  }
}

const info = { name: "compat", version: "1" };
const endpoint = () => new URL(`${url}/mcp`);
for (const [name, run] of [
  ["client 2.4.0 (npm) over stdio", () => use(new Client2(info), new Stdio2(stdio))],
  ["client 2.4.0 (npm) over HTTP", () => use(new Client2(info), new Http2(endpoint(), headers))],
  ["sdk 1.32.2 (npm) over stdio", () => use(new Client1(info), new Stdio1(stdio))],
  ["sdk 1.32.2 (npm) over HTTP", () => use(new Client1(info), new Http1(endpoint(), headers))],
]) {
  let outcome = "passed";
  let reason;
  try {
    await run();
  } catch (e) {
    outcome = "failed";
    reason = `${e?.stack ?? e}`;
  }
  console.log(JSON.stringify({ name, outcome, reason }));
}
