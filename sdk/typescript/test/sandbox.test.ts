/** What a sandbox can do, over a unix socket. */
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, readlinkSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import {
  bestOf,
  Client,
  CommandFailed,
  Sandbox,
  SandboxNotFoundError,
  type CommandHandle,
  type Event,
  type Result,
} from "../src/index.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let client: Client;
let sandbox: Sandbox;

before(async () => {
  rig = await Rig.start();
  client = new Client({ url: rig.socket });
  sandbox = await Sandbox.create(rig.snapshot, { client, labels: { job: "7" }, env: { FROM_FORK: "yes" } });
});

after(async () => {
  await sandbox.kill();
  client.close();
  await rig.stop();
});

test("a sandbox is made, found, listed and killed", async () => {
  assert.equal(await client.healthy(), true);
  assert.equal((await client.version()).api, "v1");
  const one = await Sandbox.create(rig.snapshot, { client, labels: { who: "me" }, ttl: 600, idleTimeout: 60 });
  assert.equal(one.info.state, "running");
  assert.equal(one.info.idleTimeoutSecs, 60);
  assert.ok(one.info.expiresAtUnix);
  assert.equal((await Sandbox.connect(one.id, { client })).id, one.id);
  assert.deepEqual(
    (await Sandbox.list({ client, labels: { who: "me" } })).map((s) => s.id),
    [one.id],
  );
  assert.deepEqual(
    (await client.sandboxes({ labels: ["who"] })).map((s) => s.id),
    [one.id],
  );
  assert.deepEqual(await one.setLabels({ who: null, job: "8" }), { job: "8" });
  assert.ok((await one.setTtl(3600)).expiresAtUnix! > Date.now() / 1000 + 3000);
  assert.equal((await one.setTtl(0)).expiresAtUnix, undefined);
  await assert.rejects(one.setTtl(undefined as unknown as number), { field: "ttl" });
  assert.equal(await one.kill(), true);
  assert.equal(await one.kill(), false);
  await assert.rejects(Sandbox.connect(one.id, { client }), SandboxNotFoundError);
});

test("a block kills its sandboxes", async () => {
  const children = await client.fork(rig.snapshot, 3);
  assert.equal(children.length, 3);
  assert.ok(Array.isArray(children.map((child) => child.id)) && children.figures!.forkWallMs >= 0);
  await children[Symbol.asyncDispose]();
  for (const { id } of children) {
    await assert.rejects(Sandbox.connect(id, { client }), SandboxNotFoundError);
  }
});

test("fork, branch and rollback", async () => {
  const children = await sandbox.fork(2, { labels: { of: "fork" } });
  assert.equal(children.length, 2);
  assert.ok(children.figures!.pauseMs! >= 0);
  const [snapshot, grandchildren] = await sandbox.branch(2, { tag: "ts-branch", mode: "live", labels: { turn: "1" } });
  assert.deepEqual((await client.snapshots.get("ts-branch")).info.labels, { turn: "1" });
  assert.equal((await sandbox.getInfo()).latestTag, "ts-branch");
  assert.equal(snapshot.tag, "ts-branch");
  assert.equal(grandchildren[0]!.info.snapshotTag, "ts-branch");
  assert.equal((await sandbox.rollback(snapshot)).rolledBackTo, "ts-branch");
  assert.equal((await sandbox.rollback()).rolledBackTo, "ts-branch");
  const [other, none] = await sandbox.branch();
  assert.equal(none.length, 0);
  const [more] = await other.fork();
  assert.equal(more!.info.snapshotTag, other.tag);
  assert.equal((await snapshot.getInfo()).tag, "ts-branch");
  await Promise.all([children.kill(), grandchildren.kill(), more!.kill()]);
});

test("an encrypted suspended state", async () => {
  const one = await Sandbox.create(rig.snapshot, { client });
  assert.equal((await one.suspend({ encrypt: true })).state, "suspended");
  const states = (await client.snapshots.list()).filter(({ tag }) => tag.startsWith(`suspended-${one.id}`));
  assert.deepEqual(
    states.map(({ info }) => info.encrypted),
    [true],
  );
  assert.equal((await one.resume()).state, "running");
  await one.kill();
});

test("pause, resume and suspend", async () => {
  const one = await Sandbox.create(rig.snapshot, { client });
  assert.equal((await one.pause()).state, "paused");
  assert.equal((await one.resume()).state, "running");
  assert.equal((await one.suspend()).state, "suspended");
  assert.equal((await one.resume()).state, "running");
  assert.equal((await one.getInfo()).state, "running");
  await one.kill();
});

test("settings and figures", async () => {
  assert.equal((await sandbox.network.set({ mode: "allow", allow: ["pypi.org"], allowEch: true })).allowEch, true);
  assert.deepEqual((await sandbox.network.get()).allow, ["pypi.org"]);
  assert.equal((await sandbox.limits.set({ memoryMib: 512, cpuWeight: 50 })).memoryMib, 512);
  assert.ok((await sandbox.limits.get()).usage.memoryBytes >= 0);
  assert.ok((await sandbox.stats()).pssKib > 0);
  assert.equal((await sandbox.ping()).pong, true);
  assert.equal(typeof (await sandbox.console()), "string");
  assert.equal(typeof (await sandbox.logs({ tail: 3 })), "string");
  assert.match(await sandbox.url(8000, { ttl: 60 }), /^https?:\/\/8000-/);
});

test("a command: exit code, outputs, environment, directory, input", async () => {
  const result = await sandbox.commands.run("echo $A $FROM_FORK; pwd; cat; echo no >&2; exit 3", {
    env: { A: "b" },
    cwd: "/usr",
    stdin: "in",
  });
  assert.deepEqual([result.exitCode, result.ok, result.outcome], [3, false, "exited"]);
  assert.equal(result.stdout, "b yes\n/usr\nin");
  assert.equal(result.stderr, "no\n");
  assert.equal((await sandbox.commands.run(["printf", "%s", "a  b; c"])).stdout, "a  b; c");
  assert.equal((await sandbox.commands.run(["no-such-program"])).outcome, "not_found");
  const slow = await sandbox.commands.run("sleep 20", { timeout: 0.2 });
  assert.deepEqual([slow.timedOut, slow.exitCode], [true, 124]);
});

test("a command with check fails with its result", async () => {
  await assert.rejects(sandbox.commands.run("echo why >&2; exit 2", { check: true }), (error: CommandFailed) => {
    assert.ok(error instanceof CommandFailed);
    assert.match(error.message, /exit code 2.*why/);
    return error.result.exitCode === 2;
  });
  assert.equal((await sandbox.commands.run("true", { check: true })).ok, true);
});

test("output comes while the command runs", async () => {
  const seen: string[] = [];
  const handle = await sandbox.commands.start("read x; echo $x; read y; echo $y >&2", {
    stdin: true,
    onStdout: (text) => void seen.push(text),
    onStderr: (text) => void seen.push(text),
  });
  await handle.write("one\n");
  while (seen.length === 0) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.deepEqual(seen, ["one\n"]);
  assert.ok((await sandbox.commands.list()).some(({ pid }) => pid === handle.pid));
  await handle.write("two\n");
  assert.equal((await handle.wait({ check: true })).stderr, "two\n");
  assert.equal(await handle.kill(), false);
});

test("a process is found again, fed, signalled and killed by its number", async () => {
  const first = await sandbox.commands.start(["cat"], { stdin: true });
  const again: CommandHandle = await sandbox.commands.connect(first.pid);
  await sandbox.commands.sendStdin(first.pid, "hello");
  await sandbox.commands.closeStdin(first.pid);
  assert.equal((await again.wait()).stdout, "hello");
  const sleeping = await sandbox.commands.start("trap 'exit 7' INT; while :; do sleep 0.05; done");
  await new Promise((resolve) => setTimeout(resolve, 300)); // until the shell has the trap
  assert.equal(await sleeping.signal("SIGINT"), true);
  assert.equal((await sleeping.wait()).exitCode, 7);
  const other = await sandbox.commands.start("sleep 50");
  assert.equal(await sandbox.commands.kill(other.pid), true);
  assert.equal((await other.wait()).signal, "SIGKILL");
  assert.equal(await sandbox.commands.kill(other.pid), false);
});

test("a handle's block kills what it started, and leaves what it connected to", async () => {
  const started = await sandbox.commands.start("sleep 50");
  const connected = await sandbox.commands.connect(started.pid);
  await connected[Symbol.asyncDispose]();
  const running = async (): Promise<boolean> => (await sandbox.commands.list()).some(({ pid }) => pid === started.pid);
  assert.equal(await running(), true);
  await started[Symbol.asyncDispose]();
  for (let i = 0; i < 200 && (await running()); i++) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.equal(await running(), false);
});

test("a process that was detached goes on", async () => {
  const handle = await sandbox.commands.start("read x; exit 4", { stdin: true });
  await handle.detach();
  await assert.rejects(handle.wait(), { code: "detached" });
  const left = await sandbox.commands.connect(handle.pid);
  await left.detach();
  await assert.rejects(left.wait(), { code: "detached" });
  const again = await sandbox.commands.connect(handle.pid);
  await again.write("x\n");
  assert.equal((await again.wait()).exitCode, 4);
});

test("a terminal", async () => {
  const shown: Uint8Array[] = [];
  const pty = await sandbox.pty.create({
    cols: 100,
    rows: 30,
    cmd: ["/bin/sh"],
    onData: (data) => void shown.push(data),
  });
  await pty.write("stty size\n");
  while (!Buffer.concat(shown).includes("30 100")) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await pty.resize(60, 20);
  await pty.write("stty size; exit 5\n");
  const end = await pty.wait();
  const text = Buffer.concat(shown).toString();
  assert.match(text, /30 100[\s\S]*20 60/);
  assert.equal(end.exitCode, 5);
});

test("code: results, output, errors, contexts", async () => {
  const said: string[] = [];
  const shown: Result[] = [];
  const run = await sandbox.runCode("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 22", {
    onStdout: (text) => void said.push(text),
    onStderr: (text) => void said.push(text),
    onResult: (result) => void shown.push(result),
  });
  assert.equal(run.text, "42");
  assert.deepEqual([run.logs.stdout.join(""), run.logs.stderr.join("")], ["out\n", "err\n"]);
  assert.deepEqual(said.sort(), ["err\n", "out\n"]);
  assert.deepEqual([shown.length, shown[0]!.isMainResult, shown[0]!.text], [1, true, "42"]);
  assert.equal(run.outcome, "finished");
  const failed = await sandbox.runCode("1 / 0");
  assert.deepEqual(
    [failed.error!.name, failed.error!.value, failed.outcome],
    ["ZeroDivisionError", "division by zero", "exception"],
  );
  assert.match(failed.error!.traceback, /1 \/ 0/);
  const html = await sandbox.runCode("class A:\n  def _repr_html_(self): return '<b>a</b>'\nA()");
  assert.equal(html.results[0]!.html, "<b>a</b>");
  assert.equal((await sandbox.runCode("import os; os.environ['A']", { env: { A: "b" } })).text, "b");
  const slow = await sandbox.runCode("while True: pass", { timeout: 0.5 });
  assert.equal(slow.outcome, "timeout");
  assert.ok(slow.error);
  const context = await sandbox.contexts.create({ cwd: "/usr" });
  assert.equal((await sandbox.runCode("y = 1\nimport os\nos.getcwd()", { context })).text, "/usr");
  assert.equal((await sandbox.runCode("y", { context: context.id })).text, "1");
  assert.equal((await sandbox.runCode("y")).error!.name, "NameError");
  assert.equal(await sandbox.contexts.interrupt(context), false);
  await sandbox.contexts.restart(context);
  assert.equal((await sandbox.runCode("y", { context })).error!.name, "NameError");
  assert.ok((await sandbox.contexts.list()).some(({ id }) => id === context.id));
  assert.equal(await sandbox.contexts.remove(context), true);
  assert.equal(await sandbox.contexts.remove(context), false);
});

test("files", async () => {
  const at = join(rig.tmp, "files");
  await sandbox.files.write(`${at}/a/b.txt`, "hällo");
  assert.equal(await sandbox.files.read(`${at}/a/b.txt`), "hällo");
  assert.deepEqual(await sandbox.files.readBytes(`${at}/a/b.txt`), new TextEncoder().encode("hällo"));
  assert.equal(await (await sandbox.files.read(`${at}/a/b.txt`, { format: "blob" })).text(), "hällo");
  const stream = await sandbox.files.read(`${at}/a/b.txt`, { format: "stream" });
  assert.equal(await new Response(stream).text(), "hällo");
  await sandbox.files.write(`${at}/blob`, new Blob(["x", "y"]));
  await sandbox.files.write(`${at}/stream`, new Response("z".repeat(100_000)).body!);
  assert.equal((await sandbox.files.stat(`${at}/stream`)).size, 100_000);
  assert.deepEqual(
    (await sandbox.files.list(at, { depth: 2 })).map(({ name, type }) => [name, type]),
    [
      ["a", "directory"],
      ["b.txt", "file"],
      ["blob", "file"],
      ["stream", "file"],
    ],
  );
  assert.equal(await sandbox.files.makeDir(`${at}/new/dir`), true);
  assert.equal(await sandbox.files.makeDir(`${at}/new/dir`), false);
  assert.equal((await sandbox.files.rename(`${at}/blob`, `${at}/moved/blob`)).path, `${at}/moved/blob`);
  assert.equal(await sandbox.files.exists(`${at}/blob`), false);
  await sandbox.files.remove(at);
  await sandbox.files.remove(at);
  assert.equal(await sandbox.files.exists(at), false);
});

test("a watch tells changes until it is left", async () => {
  const at = join(rig.tmp, "watched");
  mkdirSync(at);
  const watch = await sandbox.files.watch(at, { recursive: true });
  writeFileSync(join(at, "new"), "x");
  for await (const change of watch) {
    assert.deepEqual(change, { type: "create", name: "new" });
    break;
  }
  const other = await sandbox.files.watch(at);
  setTimeout(() => other.stop(), 20);
  for await (const _ of other) {
    assert.fail("nothing has changed");
  }
});

test("directories there and back", async () => {
  const from = join(rig.tmp, "from");
  const long = "n".repeat(120);
  mkdirSync(join(from, "sub"), { recursive: true });
  writeFileSync(join(from, "sub", long), "long", { mode: 0o755 });
  writeFileSync(join(from, "sub", "ü.txt"), Buffer.alloc(70_000, 7));
  writeFileSync(join(from, "empty"), "");
  symlinkSync("sub/ü.txt", join(from, "link"));
  await sandbox.files.writeTree(join(rig.tmp, "there"), from);
  assert.equal(await sandbox.files.read(join(rig.tmp, "there/sub", long)), "long");
  const back = join(rig.tmp, "back");
  await sandbox.files.readTree(join(rig.tmp, "there"), back);
  assert.equal(readFileSync(join(back, "sub", long), "utf8"), "long");
  assert.equal(statSync(join(back, "sub", long)).mode & 0o777, 0o755);
  assert.deepEqual(readFileSync(join(back, "sub", "ü.txt")), Buffer.alloc(70_000, 7));
  assert.equal(readlinkSync(join(back, "link")), "sub/ü.txt");
  assert.equal(statSync(join(back, "empty")).size, 0);
  const archive = await sandbox.files.readTree(join(rig.tmp, "there"));
  await sandbox.files.writeTree(join(rig.tmp, "copy"), archive);
  assert.equal(await sandbox.files.read(join(rig.tmp, "copy/sub", long)), "long");
});

test("events tell what happens", async () => {
  const events = await client.events({ labels: { event: "yes" } });
  const one = await Sandbox.create(rig.snapshot, { client, labels: { event: "yes" } });
  await one.kill();
  const seen: Event[] = [];
  for await (const event of events) {
    seen.push(event);
    if (event.type === "sandbox.deleted") {
      break;
    }
  }
  assert.equal(seen[0]!.type, "sandbox.created");
  assert.equal(seen[0]!.sandboxId, one.id);
  const after = await client.events({ after: seen[0]!.id, sandbox: one.id });
  for await (const event of after) {
    assert.notEqual(event.id, seen[0]!.id);
    break;
  }
  const two = await Sandbox.create(rig.snapshot, { client, labels: { event: "record" } });
  const records = await client.events({ after: seen.at(-1)!.id, sandbox: two.id, records: true });
  for await (const event of records) {
    assert.deepEqual(event.sandbox?.labels, { event: "record" });
    break;
  }
  await two.kill();
});

test("snapshots", async () => {
  assert.ok((await client.snapshots.list()).some(({ tag }) => tag === rig.snapshot));
  const [snapshot] = await sandbox.branch(0, { tag: "ts-snap" });
  for (let i = 0; i < 200 && (await client.snapshots.get("ts-snap")).info.persistStatus === "pending"; i++) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.equal((await client.snapshots.verify("ts-snap")).ok, true);
  const compact = await client.snapshots.compact(snapshot, "ts-compact");
  assert.equal(compact.tag, "ts-compact");
  assert.equal(await compact.delete(), true);
  assert.equal(await compact.delete(), false);
  const { kernel, rootfs } = { kernel: join(rig.tmp, "part"), rootfs: join(rig.tmp, "part") };
  writeFileSync(kernel, Buffer.alloc(4096));
  const baked = await client.snapshots.bake("ts-baked", { kernel, rootfs, initrd: kernel, memoryMib: 128, vcpus: 1 });
  assert.ok(baked.info.bootMs >= 0);
  assert.equal(await client.snapshots.delete("ts-baked", { force: true }), true);
});

test("workspaces", async () => {
  const workspace = await client.workspaces.create("ts-work", rig.snapshot, { labels: { a: "b" } });
  assert.equal(workspace.info.status, "running");
  assert.equal((await workspace.sandbox()).info.workspace, "ts-work");
  assert.equal((await workspace.suspend()).status, "suspended");
  await assert.rejects(workspace.sandbox(), /suspended: resume it first/);
  assert.equal((await workspace.resume()).status, "running");
  assert.deepEqual(
    (await client.workspaces.list()).map(({ name }) => name),
    ["ts-work"],
  );
  assert.equal((await client.workspaces.get("ts-work")).name, "ts-work");
  assert.equal(await workspace.delete(), true);
  assert.equal(await workspace.delete(), false);
});

test("the best of several attempts lives, the others do not", async () => {
  const best = await bestOf(
    sandbox,
    ["echo 1", "echo 333", "exit 1", "echo 22"],
    (_, { ok, stdout }) => ok && Number(stdout),
  );
  assert.deepEqual([best.index, best.score, best.result.stdout], [1, 333, "333\n"]);
  assert.deepEqual(best.scores, [1, 333, undefined, 22]);
  assert.equal((await best.sandbox.getInfo()).state, "running");
  const before = (await rig.state()).vms;
  await best.sandbox.kill();
  const by = await bestOf(
    sandbox,
    [async (child) => (await child.commands.run("echo 5")).stdout, () => "6"],
    (_, text) => Number(text),
  );
  assert.equal(by.result, "6");
  assert.equal(await by.sandbox.kill(), true);
  await assert.rejects(
    bestOf(sandbox, ["true"], () => false),
    AggregateError,
  );
  assert.equal((await rig.state()).vms, before - 1);
});
