/** Volumes, and requests of sandboxes that are held back. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  Client,
  InvalidArgumentError,
  NoVolumeSlotsError,
  Sandbox,
  VolumeExistsError,
  VolumeNotFoundError,
  type HoldEffects,
  type VolumeMounts,
} from "../src/index.ts";
import { holdOf, mountsOf } from "../src/volumes.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let client: Client;

before(async () => {
  rig = await Rig.start();
  client = new Client({ url: rig.socket });
});

after(async () => {
  client.close();
  await rig.stop();
});

test("volumes are made, listed, copied and removed", async () => {
  const made = await client.volumes.create("ts.data", { sizeMib: 16, labels: { job: "7" } });
  assert.equal(made.sizeBytes, 16 << 20);
  assert.equal((await client.volumes.get("ts.data")).id, made.id);
  const copy = await client.volumes.snapshot("ts.data", "ts.copy", { labels: { job: "8" } });
  assert.notEqual(copy.id, made.id);
  const names = async (labels?: Record<string, string>) => (await client.volumes.list({ labels })).map((v) => v.name);
  assert.deepEqual(await names(), ["ts.copy", "ts.data"]);
  assert.deepEqual(await names({ job: "7" }), ["ts.data"]);
  await assert.rejects(client.volumes.create("ts.data"), VolumeExistsError);
  assert.equal(await client.volumes.delete("ts.data"), true);
  assert.equal(await client.volumes.delete("ts.copy"), true);
  assert.equal(await client.volumes.delete("ts.copy"), false);
  await assert.rejects(client.volumes.get("ts.data"), VolumeNotFoundError);
});

test("the daemon receives the volumes of a fork", async () => {
  await client.volumes.create("ts.mounted", { sizeMib: 16 });
  const volumes = { "/data": "ts.mounted:ro" };
  // The snapshot has no slots, and the daemon looks for the volume first.
  await assert.rejects(client.fork(rig.snapshot, 1, { volumes }), NoVolumeSlotsError);
  await assert.rejects(Sandbox.create(rig.snapshot, { client, volumes }), NoVolumeSlotsError);
  await assert.rejects(client.fork(rig.snapshot, 1, { volumes: { "/data": "ts.none" } }), VolumeNotFoundError);
  const [child] = await client.fork(rig.snapshot, 1);
  await assert.rejects(client.volumes.attach("ts.mounted", child!.id, "/data", { mode: "ro" }), NoVolumeSlotsError);
  await assert.rejects(client.volumes.attach("ts.none", child!.id, "/data"), VolumeNotFoundError);
  await assert.rejects(client.volumes.detach("ts.mounted", child!.id), VolumeNotFoundError);
  await child!.kill();
  await client.volumes.delete("ts.mounted");
});

test("a request names volumes and held servers", () => {
  assert.equal(mountsOf(undefined), undefined);
  assert.deepEqual(mountsOf({ "/a": "data", "/b": "other:ro", "/c": "x:copy" }), [
    { name: "data", path: "/a", mode: undefined },
    { name: "other", path: "/b", mode: "ro" },
    { name: "x", path: "/c", mode: "copy" },
  ]);
  assert.deepEqual(holdOf(["a.example"]), { hosts: ["a.example"], answer: undefined });
  for (const wrong of [["data:/a"], { "/a": "data:rw" }, { "/a": "a/b" }, { "/a": "x:ro:ro" }, { "/a": 7 }, { "/a": "" }]) {
    assert.throws(() => mountsOf(wrong as unknown as VolumeMounts), InvalidArgumentError, JSON.stringify(wrong));
  }
  for (const wrong of ["a.example", { hosts: "a" }, { hosts: ["a"], reply: "record" }, { hosts: ["a"], answer: "no" }, [""]]) {
    assert.throws(() => holdOf(wrong as unknown as HoldEffects), InvalidArgumentError, JSON.stringify(wrong));
  }
});

test("requests are held back until they are released", async () => {
  const holdEffects: HoldEffects = { hosts: ["api.example"], answer: "record" };
  const sandbox = await Sandbox.create(rig.snapshot, { client, holdEffects });
  try {
    assert.deepEqual((await sandbox.effects()).hold, { hosts: ["api.example"], answer: "record" });
    assert.equal((await sandbox.releaseEffects()).hold, undefined);
    assert.deepEqual(await sandbox.effects().then((e) => [e.hold, e.effects]), [undefined, []]);
    await assert.rejects(sandbox.tryAll(["true"], { holdEffects: ["10.1.2.3/8"] }), { field: "hold_effects.hosts[0]" });
  } finally {
    await sandbox.kill();
  }
});
