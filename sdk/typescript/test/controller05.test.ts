/** The classes of forkd 0.5's TypeScript package. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Controller, ControllerError, Sandbox } from "../src/index.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let controller: Controller;

before(async () => {
  rig = await Rig.start();
  controller = new Controller({ baseUrl: `${rig.url}/`, token: rig.token });
});

after(() => rig.stop());

test("every method", async () => {
  assert.equal(controller.baseUrl, rig.url);
  assert.ok((await controller.listSnapshots()).some(({ tag }) => tag === rig.snapshot));
  const [made] = await controller.spawnSandboxes({
    snapshotTag: rig.snapshot,
    n: 1,
    perChildNetns: true,
    memoryLimitMib: 400,
    prewarm: true,
    liveFork: true,
    hugepages: true,
  });
  const { id } = made!;
  assert.equal(made!.memory_limit_mib, 400);
  assert.ok((await controller.listSandboxes()).some((info) => info.id === id));
  assert.equal((await controller.getSandbox(id)).snapshot_tag, rig.snapshot);
  assert.equal((await controller.pingSandbox(id))["pong"], true);
  const { stdout, exit_code } = await controller.execCommand(id, ["sh", "-c", "echo a; exit 2"], { timeoutSecs: 20 });
  assert.deepEqual([stdout, exit_code], ["a\n", 2]);
  assert.equal((await controller.evalCode(id, "2 ** 10")).result, "1024");
  for (const options of [
    {},
    { tag: "c1", diff: true },
    { tag: "c2", measure_diff: true },
    { tag: "c3", mode: "full", wait: true },
  ] as const) {
    const info = await controller.branchSandbox(id, options);
    await controller.deleteSnapshot(info.tag);
  }
  await controller.killSandbox(id);
  await assert.rejects(controller.getSandbox(id), (error: ControllerError) => {
    assert.ok(error instanceof ControllerError);
    assert.equal((error.body as { code: string }).code, "sandbox_not_found");
    return error.status === 404 && error.url === `${rig.url}/v1/sandboxes/${id}`;
  });
});

test("a request has a time limit, and the environment the address", async () => {
  const slow: typeof fetch = (_, init) =>
    new Promise((_resolve, reject) => init!.signal!.addEventListener("abort", () => reject(new Error("aborted"))));
  await assert.rejects(new Controller({ timeoutMs: 10, fetch: slow }).listSnapshots(), /abort/);
  process.env["FORKD_URL"] = "http://from-env";
  assert.equal(new Controller().baseUrl, "http://from-env");
  delete process.env["FORKD_URL"];
  assert.equal(new Controller().baseUrl, "http://127.0.0.1:8889");
});

test("Sandbox.create and Sandbox.with of forkd 0.5", async () => {
  const options = { snapshotTag: rig.snapshot, baseUrl: rig.url, token: rig.token };
  const sandbox = await Sandbox.create(options);
  assert.equal(sandbox.info.snapshot_tag, rig.snapshot);
  assert.equal(await sandbox.eval("1 + 1"), "2");
  await assert.rejects(sandbox.eval("1 / 0"), /eval error: .*ZeroDivisionError/);
  assert.equal((await sandbox.ping())["pong"], true);
  const branch = await sandbox.branch({ tag: "with05" });
  assert.equal(branch.tag, "with05");
  await sandbox.kill();
  await sandbox.kill();
  const id = await Sandbox.with(options, async (one) => {
    assert.equal((await one.exec(["echo", "hi"])).stdout, "hi\n");
    return one.id;
  });
  await assert.rejects(controller.getSandbox(id), ControllerError);
});
