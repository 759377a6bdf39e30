/** Pulls and pushes, against a server that answers as the daemon does. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { type AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import {
  Client,
  InvalidArgumentError,
  Snapshot,
  SnapshotExistsError,
  StreamBrokenError,
  type HubFile,
} from "../src/index.ts";

const files = [
  { name: "memory.layer.0", state: "pulling", bytes: 20, done: 9 },
  { name: "memory.layer.0", state: "pulled", bytes: 20, done: 20 },
];
const result = { digest: "sha256:0", bytes: 20, moved_bytes: 20, ms: 1.5, reference: "r.example/a@sha256:0" };
const asked: { path: string | undefined; body: unknown }[] = [];
let last: object[] = [];
const daemon = createServer((incoming, outgoing) => {
  let body = "";
  incoming.on("data", (part: Buffer) => (body += part.toString()));
  incoming.on("end", () => {
    asked.push({ path: incoming.url, body: JSON.parse(body) });
    outgoing.writeHead(200, { "content-type": "application/x-ndjson" });
    const lines = [{ keepalive: true }, ...files.map((file) => ({ file })), ...last];
    outgoing.end(lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  });
});
let client: Client;

before(async () => {
  await new Promise<void>((resolve) => daemon.listen(0, "127.0.0.1", resolve));
  client = new Client({ url: `http://127.0.0.1:${(daemon.address() as AddressInfo).port}`, token: "t" });
});

after(() => {
  client.close();
  daemon.closeAllConnections();
  daemon.close();
});

test("a pull reports its progress and returns the snapshot", async () => {
  last = [{ result: { ...result, snapshot: { tag: "numpy", dir: "/d" } } }];
  const seen: HubFile[] = [];
  const snapshot = await Snapshot.pull("r.example/a:1", {
    client,
    tag: "numpy",
    lazy: true,
    reuse: true,
    trust: "off",
    mirrors: ["m.example/a"],
    registryAuth: { "r.example": { username: "u", password: "p" } },
    onProgress: (file) => void seen.push(file),
  });
  assert.equal(snapshot.tag, "numpy");
  assert.equal(snapshot.pulled?.movedBytes, 20);
  assert.deepEqual(seen, files);
  assert.deepEqual(asked.pop(), {
    path: "/v1/pulls",
    body: {
      reference: "r.example/a:1",
      tag: "numpy",
      lazy: true,
      reuse: true,
      trust: "off",
      mirrors: ["m.example/a"],
      registry_auth: { "r.example": { username: "u", password: "p" } },
    },
  });
});

test("a push returns the reference with the digest", async () => {
  last = [{ result }];
  const pushed = await client.snapshots.push("numpy", "r.example/a:1", { recordHot: true });
  assert.equal(pushed.reference, result.reference);
  const path = "/v1/snapshots/numpy/push";
  assert.deepEqual(asked.pop(), { path, body: { reference: "r.example/a:1", record_hot: true } });
});

test("a failed or broken transfer is an error", async () => {
  last = [{ error: "it exists", code: "snapshot_exists", status: 409 }];
  await assert.rejects(client.snapshots.pull("r.example/a:1"), SnapshotExistsError);
  for (last of [[], [{ result }]]) {
    await assert.rejects(client.snapshots.pull("r.example/a:1"), StreamBrokenError);
  }
  const before = asked.length;
  for (const wrong of [{ trust: "no" }, { mirrors: "m.example/a" }, { mirrors: ["", "", "", "", ""] }, { tag: "A/B" }]) {
    await assert.rejects(client.snapshots.pull("r.example/a:1", wrong as object), InvalidArgumentError);
  }
  assert.equal(asked.length, before);
});
