/** Errors, repetitions and time limits, with a daemon that fails on request. */
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import {
  BusyError,
  Client,
  ConnectionFailedError,
  ForkdError,
  InvalidArgumentError,
  PartialForkError,
  Sandbox,
  SandboxNotFoundError,
  SnapshotNotFoundError,
  StreamBrokenError,
  TimeoutError,
  TooManyRequestsError,
  UnauthenticatedError,
} from "../src/index.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let client: Client;
let sandbox: Sandbox;

before(async () => {
  rig = await Rig.start("-keepalive", "200ms");
  client = new Client({ url: rig.url, token: rig.token });
  sandbox = await Sandbox.create(rig.snapshot, { client });
});

beforeEach(() => rig.fault({ clear: true }));

after(async () => {
  client.close();
  await rig.stop();
});

/** How often a request was made since the current test began. */
async function count(request: string): Promise<number> {
  return (await rig.state()).requests[request] ?? 0;
}

test("an answer is an error of its code's class, with all that is known", async () => {
  await assert.rejects(client.snapshots.get("none"), (error: SnapshotNotFoundError) => {
    assert.ok(error instanceof SnapshotNotFoundError && error instanceof ForkdError);
    assert.deepEqual([error.name, error.code, error.status], ["SnapshotNotFoundError", "snapshot_not_found", 404]);
    assert.match(error.fix!, /GET \/v1\/snapshots/);
    assert.match(error.requestId!, /^[0-9a-f]+$/);
    return /none/.test(error.message);
  });
  await assert.rejects(client.fork(rig.snapshot, 1, { labels: { "not a label": "x" } }), {
    code: "invalid_field",
    field: "labels",
  });
  await assert.rejects(Sandbox.connect("sb-none", { client }), SandboxNotFoundError);
  await assert.rejects(new Client({ url: rig.url, token: "wrong" }).version(), UnauthenticatedError);
});

test("wrong arguments fail before anything is sent, with the parameter's name", async () => {
  const before = (await rig.state()).total;
  const wrong: [string, () => unknown][] = [
    ["snapshot", () => client.fork("")],
    ["snapshot", () => client.fork("a/b")],
    ["snapshot", () => Sandbox.create("-x", { client })],
    ["n", () => client.fork("base", 0)],
    ["n", () => client.fork("base", 1001)],
    ["n", () => sandbox.branch(1.5)],
    ["labels.a", () => client.fork("base", 1, { labels: { a: 1 as unknown as string } })],
    ["ttl", () => client.fork("base", 1, { ttl: -1 })],
    ["envs", () => client.fork("base", 1, { envs: {} } as object)],
    ["mode", () => sandbox.fork(1, { mode: "fast" as "live" })],
    ["to", () => sandbox.rollback("")],
    ["child", () => sandbox.promote("")],
    ["mode", () => sandbox.promote("sb-1", { mode: "fast" as "live" })],
    ["commands", () => sandbox.tryAll([])],
    ["commands", () => sandbox.tryAll("true")],
    ["commands", () => sandbox.tryAll(["true", []])],
    ["n", () => sandbox.tryAll("true", { n: 65 })],
    ["judge", () => sandbox.tryAll(["true"], { judge: "" })],
    ["keep", () => sandbox.tryAll(["true"], { keep: "some" as "all" })],
    ["timeout", () => sandbox.tryAll(["true"], { timeout: 86401 })],
    ["source", () => sandbox.apply("")],
    ["paths", () => sandbox.apply("b", { paths: [""] })],
    ["prefer", () => sandbox.apply("b", { prefer: "ours" as "from" })],
    ["since", () => sandbox.diff("")],
    ["path", () => sandbox.diff(undefined, { path: "" })],
    ["maxFiles", () => sandbox.diff(undefined, { maxFiles: -1 })],
    ["since", () => sandbox.export("")],
    ["path", () => sandbox.export(undefined, { path: "" })],
    ["maxPatchBytes", () => sandbox.diff(undefined, { maxPatchBytes: 1 << 30 })],
    ["id", () => Sandbox.connect("")],
    ["cmd", () => sandbox.commands.run([])],
    ["cmd", () => sandbox.commands.run("")],
    ["cmd", () => sandbox.commands.run(["a", "b\0"])],
    ["timeoutMs", () => sandbox.commands.run("true", { timeoutMs: 5 } as object)],
    ["timeout", () => sandbox.commands.run("true", { timeout: 3601 })],
    ["env.A", () => sandbox.commands.run("true", { env: { A: null as unknown as string } })],
    ["env", () => sandbox.commands.run("true", { env: { "A=B": "x" } })],
    ["new", () => sandbox.files.rename("/a", "")],
    ["onStdout", () => sandbox.commands.run("true", { onStdout: "x" as unknown as () => void })],
    ["stdin", () => sandbox.commands.run("true", { stdin: 5 as unknown as string })],
    ["pid", () => sandbox.commands.kill(0)],
    ["cols", () => sandbox.pty.create({ cols: 0 })],
    ["path", () => sandbox.files.read("")],
    ["path", () => sandbox.files.write("a\0", "x")],
    ["format", () => sandbox.files.read("/x", { format: "json" as "text" })],
    ["depth", () => sandbox.files.list("/", { depth: 65 })],
    ["data", () => sandbox.files.write("/x", undefined as unknown as string)],
    ["language", () => sandbox.runCode("1", { language: "python", context: "x" })],
    ["code", () => sandbox.runCode(undefined as unknown as string)],
    ["port", () => sandbox.url(0)],
    ["force", () => client.snapshots.delete("x", { cascade: true, force: true })],
    ["url", () => new Client({ url: "localhost:1" })],
    ["url", () => new Client({ url: "ftp://x" })],
    ["url", () => new Client({ url: "http://user:secret@x" })],
    ["token", () => new Client({ url: rig.url, token: "a b" })],
    ["timeout", () => new Client({ url: rig.url, timeout: -1 })],
    ["ca", () => new Client({ url: "https://x", ca: "/no/such/file" })],
    ["domain", () => new Client({ domain: "x" } as object)],
  ];
  for (const [field, call] of wrong) {
    await assert.rejects(
      async () => call(),
      (error: InvalidArgumentError) => {
        assert.ok(error instanceof InvalidArgumentError, `${field}: ${error}`);
        assert.equal(error.field, field, error.message);
        return error.message.startsWith(`${field}: `);
      },
    );
  }
  assert.equal((await rig.state()).total, before);
});

test("a busy daemon is asked again, as late as it says", async () => {
  await rig.fault({ requests: { path: "^/v1/sandboxes$", status: 503, retry_after: 1 } });
  const began = performance.now();
  assert.ok((await client.sandboxes()).length >= 1);
  assert.ok(performance.now() - began >= 900);
  assert.equal(await count("GET /v1/sandboxes"), 2);
});

test("a fork is repeated under one key, and made once", async () => {
  await rig.fault({ requests: { path: "^/v1/forks$", status: 429, retry_after: 1 } });
  const before = (await rig.state()).vms;
  const children = await client.fork(rig.snapshot, 2);
  await rig.fault({ clear: true, requests: { path: "^/v1/forks$", after_bytes: 10 } }); // the answer is lost
  const more = await client.fork(rig.snapshot, 1);
  assert.equal(await count("POST /v1/forks"), 2);
  assert.equal((await rig.state()).vms, before + 3);
  await Promise.all([children.kill(), more.kill()]);
});

test("what is not idempotent is never repeated", async () => {
  await rig.fault({ requests: { path: "/exec$", status: 503, retry_after: 1 } });
  await assert.rejects(sandbox.commands.run("true"), BusyError);
  assert.equal(await count(`POST /v1/sandboxes/${sandbox.id}/exec`), 1);
  await rig.fault({ requests: { path: "/pause$", after_bytes: 0 } });
  await assert.rejects(sandbox.pause(), (error: ConnectionFailedError) => {
    assert.ok(error instanceof ConnectionFailedError);
    return error.happened === "unknown";
  });
  assert.equal(await count(`POST /v1/sandboxes/${sandbox.id}/pause`), 1);
  await sandbox.resume();
});

test("repetitions end: by their number, by the time limit, and with retries: 0", async () => {
  await rig.fault({ requests: { path: "^/v1/sandboxes$", status: 429, retry_after: 1, times: 3 } });
  await assert.rejects(
    client.sandboxes(),
    (error: TooManyRequestsError) => error instanceof TooManyRequestsError && error.retryAfter === 1,
  );
  assert.equal(await count("GET /v1/sandboxes"), 3);
  await rig.fault({ clear: true, requests: { path: "^/v1/sandboxes$", status: 503, retry_after: 30 } });
  await assert.rejects(client.sandboxes({ requestTimeout: 5 }), BusyError);
  await rig.fault({ clear: true, requests: { path: "^/v1/sandboxes$", status: 503, retry_after: 1 } });
  const once = new Client({ url: rig.url, token: rig.token, retries: 0 });
  await assert.rejects(once.sandboxes(), BusyError);
  once.close();
});

test("a daemon that is away: where it was looked for, and that nothing was sent", async () => {
  for (const url of ["unix:///nowhere/forkd.sock", "http://127.0.0.1:9"]) {
    const away = new Client({ url });
    await assert.rejects(away.fork("base"), (error: ConnectionFailedError) => {
      assert.ok(error instanceof ConnectionFailedError);
      assert.equal(error.happened, "no");
      return error.message.includes(url) && error.message.includes("nothing was sent");
    });
    assert.equal(await away.healthy(), false);
    away.close();
  }
});

test("a daemon that comes back is found again by what may be repeated", async () => {
  await rig.fault({ restart: { down_ms: 150 } });
  await new Promise((resolve) => setTimeout(resolve, 60));
  assert.ok((await client.sandboxes()).length >= 1);
  const children = await client.fork(rig.snapshot);
  assert.equal(await children[0]!.kill(), true);
});

test("a daemon restarted in the middle of a stream", async () => {
  const events = await client.events();
  const followed = (async () => {
    for await (const _ of events);
  })();
  followed.catch(() => undefined); // the test looks at the rejection below
  const handle = await sandbox.commands.start("sleep 20");
  const running = sandbox.runCode("import time; time.sleep(20)");
  running.catch(() => undefined);
  await new Promise((resolve) => setTimeout(resolve, 300));
  await rig.fault({ restart: { down_ms: 100 } });
  await assert.rejects(handle.wait(), (error: StreamBrokenError) => {
    assert.ok(error instanceof StreamBrokenError);
    return error.pid === handle.pid;
  });
  await assert.rejects(running, StreamBrokenError);
  await assert.rejects(followed, StreamBrokenError);
  assert.match(events.lastId!, /./);
  while (!(await client.healthy())) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
});

test("an answer that breaks off is a broken stream, at every byte", async () => {
  for (const after_bytes of [0, 1, 20, 40]) {
    await rig.fault({ clear: true, requests: { path: "/exec$", after_bytes } });
    await assert.rejects(
      sandbox.commands.run("echo hello"),
      (error) => error instanceof StreamBrokenError || error instanceof ConnectionFailedError,
    );
    await rig.fault({ clear: true, requests: { path: "/code$", after_bytes } });
    await assert.rejects(
      sandbox.runCode("1 + 1"),
      (error) => error instanceof StreamBrokenError || error instanceof ConnectionFailedError,
    );
  }
});

test("a signal gives up what it is given to, and nothing else", async () => {
  const reason = new Error("enough");
  const calls: ((signal: AbortSignal) => Promise<unknown>)[] = [
    (signal) => sandbox.commands.run("sleep 20", { signal }),
    (signal) => sandbox.runCode("import time; time.sleep(20)", { signal }),
    async (signal) => {
      for await (const _ of await client.events({ signal, sandbox: "sb-none" }));
    },
    async (signal) => {
      for await (const _ of await sandbox.files.watch(rig.tmp, { signal }));
    },
    async (signal) => (await sandbox.commands.start("sleep 20", { signal })).wait(),
    async (signal) => (await sandbox.commands.start("sleep 1")).wait({ signal }),
  ];
  for (const call of calls) {
    const controller = new AbortController();
    setTimeout(() => controller.abort(reason), 100);
    await assert.rejects(call(controller.signal), (error) => error === reason);
    await assert.rejects(call(AbortSignal.abort(reason)), (error) => error === reason);
  }
  assert.equal((await sandbox.commands.run("echo on")).stdout, "on\n");
});

test("a request has a time limit, after which it may have happened", async () => {
  await rig.fault({ requests: { path: "/ping$", after_bytes: 0, stall: true } });
  await assert.rejects(sandbox.ping({ requestTimeout: 0.3 }), (error: TimeoutError) => {
    assert.ok(error instanceof TimeoutError);
    return /no answer within 0.3 s; it may have been carried out/.test(error.message);
  });
});

test("a partial fork fails with the children that live", async () => {
  await rig.fault({ fail_children: 2 });
  const error: PartialForkError = await client.fork(rig.snapshot, 5, { allowPartial: true }).then(
    () => assert.fail("all were made"),
    (e: PartialForkError) => e,
  );
  assert.ok(error instanceof PartialForkError);
  assert.deepEqual([error.failed, error.sandboxes.length], [2, 3]);
  assert.equal((await error.sandboxes[0]!.commands.run("echo alive")).stdout, "alive\n");
  await error.sandboxes.kill();
  const before = (await rig.state()).vms;
  await rig.fault({ fail_children: 1 });
  await assert.rejects(client.fork(rig.snapshot, 3), ForkdError);
  assert.equal((await rig.state()).vms, before);
});

test("a closed client sends nothing", async () => {
  const closed = new Client({ url: rig.url, token: rig.token });
  await closed.version();
  await closed[Symbol.asyncDispose]();
  await assert.rejects(closed.version(), { code: "client_closed" });
});
