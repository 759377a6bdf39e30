/**
 * Complaints about other SDKs that do not apply to this one. Each test is named after a complaint
 * about E2B's SDK, with the number of its issue if there is one.
 */
import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync } from "node:fs";
import { connect, createServer, type AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { Client, Sandbox, StreamBrokenError } from "../src/index.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let client: Client;
let sandbox: Sandbox;

before(async () => {
  rig = await Rig.start("-keepalive", "100ms", "-checked=false");
  client = new Client({ url: rig.socket });
  sandbox = await Sandbox.create(rig.snapshot, { client });
});

after(async () => {
  client.close();
  await rig.stop();
});

/** How many descriptors this process has open. */
function descriptors(): number {
  return readdirSync("/proc/self/fd").length;
}

async function settled(least: number): Promise<number> {
  for (let i = 0; i < 100 && descriptors() > least; i++) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return descriptors();
}

test("no descriptor is left after many sandboxes and clients (#1155)", async () => {
  const idle = new Client({ url: rig.socket });
  const before = await settled(0);
  for (let round = 0; round < 40; round++) {
    const children = await idle.fork(rig.snapshot, 10); // 400 sandboxes
    await children.kill();
  }
  for (let i = 0; i < 50; i++) {
    const one = new Client({ url: i % 2 ? rig.socket : rig.url, token: rig.token });
    const box = await Sandbox.create(rig.snapshot, { client: one });
    await box.commands.run("true");
    await box.kill();
    one.close();
  }
  idle.close();
  assert.ok((await settled(before)) <= before, `${before} descriptors before, ${descriptors()} after`);
});

test("200 streams at once, and requests beside them (#1418)", async () => {
  const boxes = await client.fork(rig.snapshot, 4);
  const streams = await Promise.all(
    Array.from({ length: 200 }, (_, i) => boxes[i % 4]!.commands.start(`read x; echo got $x`, { stdin: true })),
  );
  assert.equal((await boxes[0]!.commands.run("echo beside")).stdout, "beside\n");
  await Promise.all(streams.map((stream, i) => stream.write(`${i}\n`)));
  const ends = await Promise.all(streams.map((stream) => stream.wait()));
  ends.forEach((end, i) => assert.equal(end.stdout, `got ${i}\n`));
  await boxes.kill();
});

test("no stream hangs without an idle limit (#1128)", async () => {
  const impatient = new Client({ url: rig.url, token: rig.token, idleTimeout: 0.5 });
  const box = await Sandbox.connect(sandbox.id, { client: impatient });
  const silent: [string, () => Promise<unknown>][] = [
    ["/exec$", () => box.commands.run("sleep 10")],
    ["/code$", () => box.runCode("import time; time.sleep(10)")],
    [
      "/files/watch$",
      async () => {
        for await (const _ of await box.files.watch(rig.tmp));
      },
    ],
    [
      "/events$",
      async () => {
        for await (const _ of await impatient.events());
      },
    ],
  ];
  for (const [path, call] of silent) {
    await rig.fault({ requests: { path, after_bytes: 90, stall: true } });
    await assert.rejects(
      call(),
      (error) => error instanceof StreamBrokenError && /said nothing for 0.5 s/.test(error.message),
      path,
    );
  }
  impatient.close();
});

test("a silent command is no silent stream", async () => {
  const impatient = new Client({ url: rig.url, token: rig.token, idleTimeout: 0.5 });
  const box = await Sandbox.connect(sandbox.id, { client: impatient });
  assert.equal((await box.commands.run("sleep 1.5; echo done")).stdout, "done\n");
  assert.equal((await box.runCode("import time; time.sleep(1.5); 'done'")).text, "done");
  const events = await impatient.events({ sandbox: "sb-none" });
  setTimeout(() => events.stop(), 1500);
  for await (const _ of events);
  impatient.close();
});

test("output is never lossy: bytes are bytes, and no character is torn", async () => {
  const all = Uint8Array.from({ length: 256 }, (_, i) => i);
  const script = 'i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %o $i)"; i=$((i+1)); done';
  const bytes = await sandbox.commands.run(script, { text: false });
  assert.deepEqual(bytes.stdout, all);
  const text = await sandbox.commands.run(script);
  assert.deepEqual(text.stdoutBytes, all);
  const pieces: string[] = [];
  await sandbox.commands.run("printf '\\303'; sleep 0.3; printf '\\266\\360\\237'; sleep 0.3; printf '\\230\\200'", {
    onStdout: (piece) => void pieces.push(piece),
  });
  assert.equal(pieces.join(""), "ö😀");
  const large = await sandbox.commands.run("head -c 20000000 /dev/zero", { text: false });
  assert.equal(large.stdout.length, 20_000_000);
  assert.equal(large.truncated, false);
  const kept = await sandbox.commands.run("head -c 100000 /dev/zero", { text: false, maxOutput: 10 });
  assert.deepEqual([kept.stdout.length, kept.truncated], [10, true]);
});

test("input goes to a command in the foreground, small and large", async () => {
  assert.equal((await sandbox.commands.run(["wc", "-c"], { stdin: "four" })).stdout.trim(), "4");
  assert.equal(
    (await sandbox.commands.run(["wc", "-c"], { stdin: new Uint8Array(20_000_000) })).stdout.trim(),
    "20000000",
  );
  const stream = new Blob(["a".repeat(3_000_000)]).stream();
  assert.equal((await sandbox.commands.run(["wc", "-c"], { stdin: stream })).stdout.trim(), "3000000");
  assert.equal((await sandbox.commands.run(["head", "-c", "3"], { stdin: "x".repeat(10_000_000) })).stdout, "xxx");
  assert.equal((await sandbox.commands.run(["cat"])).stdout, "");
});

test("arguments are exact, and no login shell adds to the output", async () => {
  assert.equal((await sandbox.commands.run(["printf", "%s|", "a b", "$HOME", "*", ""])).stdout, "a b|$HOME|*||");
  assert.deepEqual(await sandbox.commands.run("true").then((r) => [r.stdout, r.stderr]), ["", ""]);
});

test("a connection is used again by what comes next", async () => {
  let connections = 0;
  const there = new URL(rig.url);
  const counting = createServer((socket) => {
    connections++;
    const on = connect(Number(there.port), there.hostname);
    socket.pipe(on).pipe(socket);
    socket.on("error", () => on.destroy());
    on.on("error", () => socket.destroy());
  }).listen(0, "127.0.0.1");
  await once(counting, "listening");
  const one = new Client({ url: `http://127.0.0.1:${(counting.address() as AddressInfo).port}`, token: rig.token });
  const box = await Sandbox.connect(sandbox.id, { client: one });
  for (let i = 0; i < 20; i++) {
    await box.commands.run("true");
    await box.runCode("1");
    await box.files.exists("/");
    await new Promise((resolve) => setTimeout(resolve, 10)); // the end of an answer is read in the background
  }
  assert.ok(connections <= 5, `${connections} connections for 61 requests, one after another`);
  one.close();
  counting.close();
});

test("a callback that fails ends what it listens to, with its error", async () => {
  const failing = (): never => {
    throw new RangeError("mine");
  };
  await assert.rejects(sandbox.commands.run("echo x; sleep 20", { onStdout: failing }), RangeError);
  await assert.rejects(sandbox.runCode("print(1)\nimport time; time.sleep(20)", { onStdout: failing }), RangeError);
  assert.equal((await sandbox.runCode("2")).text, "2");
});

test("a slow reader of a file loses nothing, and one that leaves holds nothing", async () => {
  const content = new Uint8Array(8_000_000).map((_, i) => i * 7);
  await sandbox.files.write(`${rig.tmp}/large`, content);
  const stream = await sandbox.files.read(`${rig.tmp}/large`, { format: "stream" });
  const reader = stream.getReader();
  await reader.read();
  await new Promise((resolve) => setTimeout(resolve, 300));
  await reader.cancel();
  assert.deepEqual(await sandbox.files.readBytes(`${rig.tmp}/large`), content);
  const before = await settled(0);
  assert.ok(before < 100);
});
