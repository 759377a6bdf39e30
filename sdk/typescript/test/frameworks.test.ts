/**
 * The adapters for the packages `ai` and `bash-tool`, with these packages. Faked VMs have private files in /srv,
 * which branches keep. With FORKD_URL and COMPAT_TAG, the VMs are real.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { generateText, isStepCount, tool, jsonSchema, type Experimental_SandboxSession } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { createBashTool, type Sandbox as BashSandbox } from "bash-tool";
import { ForkdSession } from "../src/ai.ts";
import { bashToolSandbox } from "../src/bash-tool.ts";
import { Client, Sandbox } from "../src/index.ts";
import { Rig } from "./rig.ts";

const tag = process.env["FORKD_URL"] === undefined ? undefined : process.env["COMPAT_TAG"];
let rig: Rig | undefined;
let client: Client;
let sandbox: Sandbox;
let session: ForkdSession;

before(async () => {
  rig = tag === undefined ? await Rig.start("-private") : undefined;
  client = rig === undefined ? new Client() : new Client({ url: rig.url, token: rig.token });
  sandbox = await Sandbox.create(tag ?? rig!.snapshot, { client });
  session = await ForkdSession.create(sandbox, { cwd: "/srv", env: { BASE: "b" } });
});

after(async () => {
  await session?.end();
  client?.close();
  await rig?.stop();
});

test("a session is what the AI SDK takes", () => {
  const typed: Experimental_SandboxSession = session; // the compiler checks this
  assert.match(typed.description, /\/srv/);
});

test("ai: commands have the session's directory, environment and exit code", async () => {
  const got = await session.run({ command: 'pwd; echo "$BASE$MORE"; echo bad >&2; exit 3', env: { MORE: "m" } });
  assert.deepEqual(got, { exitCode: 3, stdout: "/srv\nbm\n", stderr: "bad\n" });
  await session.run({ command: "mkdir -p sub" });
  assert.equal((await session.run({ command: "pwd", workingDirectory: "sub" })).stdout, "/srv/sub\n");
  const quick = await ForkdSession.create(sandbox, { timeout: 1, branches: false });
  const late = await quick.run({ command: "echo out; sleep 60" });
  assert.equal(late.exitCode, 124);
  assert.equal(late.stdout, "out\n");
  assert.notEqual(late.stderr, "");
  await assert.rejects(session.run({ command: "sleep 60", abortSignal: AbortSignal.timeout(300) }), {
    name: "TimeoutError",
  });
});

test("ai: files are written, read, described, listed and deleted", async () => {
  const bytes = new Uint8Array([0, 255, 10, 13]);
  await session.writeBinaryFile({ path: "new/deep/bytes", content: bytes });
  assert.deepEqual(await session.readBinaryFile({ path: "/srv/new/deep/bytes" }), bytes);
  await session.writeTextFile({ path: "new/text", content: "one\ntwo\nthree" });
  assert.equal(await session.readTextFile({ path: "new/text" }), "one\ntwo\nthree");
  assert.equal(await session.readTextFile({ path: "new/text", startLine: 2, endLine: 2 }), "two\n");
  assert.equal(await session.readTextFile({ path: "new/text", startLine: 3, endLine: 9 }), "three");
  assert.equal(await session.readTextFile({ path: "new/deep/bytes", encoding: "latin1" }), "\0\u00ff\n\r");
  await session.writeFile({ path: "new/text", content: new Blob(["streamed"]).stream() });
  const stream = await session.readFile({ path: "new/text" });
  assert.equal(await new Response(stream as ReadableStream<Uint8Array<ArrayBuffer>>).text(), "streamed");
  for (const missing of [session.readFile, session.readBinaryFile, session.readTextFile, session.stat]) {
    assert.equal(await missing({ path: "no/such/file" }), null);
  }
  assert.equal(await session.listDirectory({ path: "no-such-directory" }), null);

  await session.run({ command: "cd new && ln -s text link && ln -s deep dirlink && ln -s nowhere broken" });
  assert.deepEqual(await session.stat({ path: "new/link" }), { type: "file", size: 8 });
  assert.equal((await session.stat({ path: "new/dirlink" }))?.type, "directory");
  assert.equal(await session.stat({ path: "new/broken" }), null);
  const list = (await session.listDirectory({ path: "new" }))!.sort((a, b) => a.name.localeCompare(b.name));
  assert.deepEqual(list, [
    { name: "broken", type: "symlink" },
    { name: "deep", type: "directory" },
    { name: "dirlink", type: "symlink" },
    { name: "link", type: "symlink" },
    { name: "text", type: "file" },
  ]);
  await assert.rejects(session.listDirectory({ path: "new/text" }), TypeError);

  assert.equal(await session.deleteFile({ path: "new/dirlink" }), true);
  assert.equal((await session.stat({ path: "new/deep" }))?.type, "directory"); // the target stays
  assert.equal(await session.deleteFile({ path: "new/broken" }), true);
  assert.equal(await session.deleteFile({ path: "new/broken" }), false);
  await assert.rejects(session.deleteFile({ path: "new/deep" }), TypeError);
  await assert.rejects(session.writeTextFile({ path: "new/deep", content: "" }));
  await assert.rejects(session.writeTextFile({ path: "new/text", content: "", encoding: "utf-16le" }), TypeError);
});

test("ai: processes stream, take input, and are killed", async () => {
  const cat = await session.spawn({ command: "cat; echo end >&2; exit 4", stdin: true });
  const writer = cat.stdin.getWriter();
  await writer.write(new TextEncoder().encode("in"));
  await writer.close();
  const read = (s: ReadableStream<Uint8Array>): Promise<string> =>
    new Response(s as ReadableStream<Uint8Array<ArrayBuffer>>).text();
  assert.deepEqual(await Promise.all([read(cat.stdout), read(cat.stderr), cat.wait()]), [
    "in",
    "end\n",
    { exitCode: 4 },
  ]);
  const none = await session.spawn({ command: "cat" }); // its input is empty
  assert.equal("stdin" in none, false);
  assert.deepEqual(await none.wait(), { exitCode: 0 });

  const long = await session.spawn({ command: "yes" }); // nobody reads its output
  await long.kill();
  await long.kill();
  assert.equal((await long.wait()).exitCode, 137);

  const stop = new AbortController();
  const aborted = await session.spawn({ command: "yes", abortSignal: stop.signal });
  stop.abort(new Error("enough"));
  await assert.rejects(async () => aborted.wait(), /enough/);
});

/** A model that calls the tool with each command, and then ends. */
function script(...commands: string[]): MockLanguageModelV4 {
  const left = [...commands];
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  };
  return new MockLanguageModelV4({
    doGenerate: async () => {
      const command = left.shift();
      return command === undefined
        ? { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop", raw: "stop" }, usage, warnings: [] }
        : {
            content: [
              { type: "tool-call", toolCallId: `call-${left.length}`, toolName: "bash", input: JSON.stringify({ command }) },
            ],
            finishReason: { unified: "tool-calls", raw: "tool-calls" },
            usage,
            warnings: [],
          };
    },
  });
}

test("ai: every step of an agent has a branch, to go back to or to fork", async () => {
  const bash = tool({
    description: "Runs a command",
    inputSchema: jsonSchema<{ command: string }>({ type: "object", properties: { command: { type: "string" } } }),
    execute: ({ command }, { experimental_sandbox }) => experimental_sandbox!.run({ command }),
  });
  await session.run({ command: "rm -f log" });
  const { text, steps } = await generateText({
    model: script("echo one >>log", "echo two >>log"),
    tools: { bash },
    prompt: "go",
    stopWhen: isStepCount(5),
    experimental_sandbox: session,
    prepareStep: session.prepareStep,
  });
  assert.equal(text, "done");
  assert.equal(steps.length, 3);
  assert.equal(session.steps.length, 3); // before both commands, and before the answer
  const log = async (s: ForkdSession): Promise<string | null> => s.readTextFile({ path: "log" });
  assert.equal(await log(session), "one\ntwo\n");

  const forks = await session.fork(2, 1); // before the second command
  await forks[0]!.run({ command: "echo other >>log" });
  assert.deepEqual(await Promise.all(forks.map(log)), ["one\nother\n", "one\n"]);
  assert.equal(await log(session), "one\ntwo\n");
  await Promise.all(forks.map((fork) => fork.end()));

  await session.rollback(1);
  assert.equal(await log(session), "one\n");
  assert.equal(session.steps.length, 2);
  await session.rollback(0);
  assert.equal(await log(session), null);
  await assert.rejects(session.rollback(1), RangeError);
});

test("ai: end deletes the branches of a session", async () => {
  const own = await ForkdSession.create(await Sandbox.create(tag ?? rig!.snapshot, { client }), { cwd: "/srv" });
  await own.prepareStep();
  await own.prepareStep();
  const made = own.steps.map((snapshot) => snapshot.tag);
  const tags = async (): Promise<string[]> => (await client.snapshots.list()).map((snapshot) => snapshot.tag);
  const there = await tags();
  assert.ok(made.every((name) => there.includes(name)));
  await own.end();
  const left = await tags();
  assert.ok(!made.some((name) => left.includes(name)));
});

test("bash-tool: its tools run commands, and read and write files", async () => {
  const adapted: BashSandbox = bashToolSandbox(sandbox, { env: { BASE: "b" } });
  const { tools } = await createBashTool({
    sandbox: adapted,
    destination: "/srv/tool",
    files: { "src/a.txt": "hello\n" },
    promptOptions: { toolPrompt: "" },
  });
  const context = { toolCallId: "1", messages: [], context: {} } as never;
  const ran = await tools.bash.execute!({ command: "pwd; cat src/a.txt; echo $BASE; exit 5" }, context);
  assert.deepEqual({ ...ran }, { stdout: "/srv/tool\nhello\nb\n", stderr: "", exitCode: 5 });
  await tools.writeFile.execute!({ path: "b/c.txt", content: "grüß" }, context);
  const file = await tools.readFile.execute!({ path: "b/c.txt" }, context);
  assert.deepEqual({ ...file }, { content: "grüß" });
  await assert.rejects(adapted.readFile("/srv/tool/none"));
  const late = await bashToolSandbox(sandbox, { timeout: 1 }).executeCommand("echo out; sleep 60");
  assert.deepEqual([late.stdout, late.exitCode, late.stderr !== ""], ["out\n", 124, true]);
});

test("bash-tool: an agent works through it", async () => {
  const { tools } = await createBashTool({
    sandbox: bashToolSandbox(sandbox),
    destination: "/srv",
    promptOptions: { toolPrompt: "" },
  });
  const model = script("echo agent >/srv/made", "cat /srv/made");
  const { steps } = await generateText({ model, tools: { bash: tools.bash }, prompt: "go", stopWhen: isStepCount(5) });
  assert.match(JSON.stringify(steps[1]!.toolResults), /agent\\n/);
});
