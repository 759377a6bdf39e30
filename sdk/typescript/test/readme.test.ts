/** The programs of README.md run unchanged, on a Node with `await using`. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { e2bNames, e2bStatics } from "../src/generated/e2b.ts";
import { Client, Sandbox, Snapshot } from "../src/index.ts";
import { Rig } from "./rig.ts";

const package_ = new URL("..", import.meta.url).pathname;
const programs = [...readFileSync(join(package_, "README.md"), "utf8").matchAll(/^```js\n(.*?)^```$/gms)].map(
  (m) => m[1]!,
);
/** The output of each program over fake VMs, whose children do not have their parent's memory. */
const said = [/^hello 3\n42\n\[ .* \]\n$/, /^1 9\n$/, /^a\nb\n\nsandbox.deleted\n$/, /^step \d[^]*\nhere\n[^]*\nhere\n$/, /^list sandboxes/];

let rig: Rig;
let directory: string;

before(async () => {
  rig = await Rig.start();
  const client = new Client({ url: rig.url, token: rig.token });
  await client.build({ dockerfileText: `FROM ${rig.snapshot}\nENV MADE=here\n`, tag: "python-numpy" });
  client.close();
  directory = mkdtempSync(join(tmpdir(), "forkd-readme-"));
  mkdirSync(join(directory, "node_modules"));
  // The sources replace the package, which run.py of test/compat/sdk-typescript installs.
  const stand = join(directory, "node_modules", "forkd");
  mkdirSync(stand);
  writeFileSync(join(stand, "package.json"), JSON.stringify({ type: "module", exports: "./index.js" }));
  writeFileSync(join(stand, "index.js"), `export * from ${JSON.stringify(join(package_, "src", "index.ts"))};\n`);
});

after(async () => {
  rmSync(directory, { recursive: true });
  await rig.stop();
});

test("README.md has as many programs as are known here", () => assert.equal(programs.length, said.length));

const old = process.versions.node.startsWith("22.");
programs.forEach((program, i) => {
  test(
    `program ${i + 1}`,
    { skip: old && program.includes("await using") && "Node 22 has no await using" },
    async () => {
      const file = join(directory, `${i}.mjs`);
      writeFileSync(file, program);
      const env = { ...process.env, FORKD_URL: rig.url, FORKD_TOKEN: rig.token };
      const { stdout } = await promisify(execFile)(process.execPath, [file], { env });
      assert.match(stdout, said[i]!);
    },
  );
});

test("what docs/sdk.md has for those who come from E2B is there", async () => {
  const client = new Client({ url: rig.url, token: rig.token });
  const sandbox = await Sandbox.create(rig.snapshot, { client });
  const handle = await sandbox.commands.start(["sleep", "60"]);
  const places: Record<string, unknown> = { Sandbox, Snapshot, sandbox, handle, client };
  const document = readFileSync(join(package_, "../../docs/sdk.md"), "utf8");
  const rows = /<!-- e2b:(.*)<!-- end of e2b -->/s.exec(document)![1]!.trim().split("\n").slice(3);
  let methods = 0;
  for (const row of rows) {
    for (const [, path] of row.split("|")[4]!.matchAll(/`([\w.]+)(\([^`]*)?`/g)) {
      methods++;
      const there = path!.split(".").reduce((of, name) => (of as Record<string, unknown>)[name], places as unknown);
      assert.ok(typeof there === "function" || typeof there === "string", path);
    }
  }
  assert.ok(methods >= 40);
  const owners: Record<string, [object, string]> = {
    Sandbox: [sandbox, "sandbox"],
    Commands: [sandbox.commands, "sandbox.commands"],
    Pty: [sandbox.pty, "sandbox.pty"],
    CommandHandle: [handle, "handle"],
    Files: [sandbox.files, "sandbox.files"],
  };
  for (const [kind, names] of Object.entries(e2bNames)) {
    const [owner, place] = owners[kind]!;
    for (const [name, here] of Object.entries(names)) {
      const says = { name: "TypeError", message: `${kind} has no ${name}; here it is ${here}` };
      assert.throws(() => (owner as Record<string, unknown>)[name], says);
      const path = /^([\w.]+)\(/.exec(here)?.[1];
      if (path !== undefined) {
        const of = here.includes(" of the handle") ? "handle" : place;
        const root = path.startsWith("client.") ? "" : path.startsWith("commands.") ? "sandbox." : `${of}.`;
        const there = (root + path).split(".").reduce((of, part) => (of as Record<string, unknown>)[part], places as unknown);
        assert.equal(typeof there, "function", here);
      }
    }
    assert.equal((owner as Record<string, unknown>)["nonsense"], undefined);
    assert.deepEqual(Object.keys(owner).filter((name) => name in names), []);
  }
  for (const [name, here] of Object.entries(e2bStatics["Sandbox"]!)) {
    const says = { name: "TypeError", message: `Sandbox has no ${name}; here it is ${here}` };
    assert.throws(() => (Sandbox as unknown as Record<string, unknown>)[name], says);
    assert.ok(!Object.keys(Sandbox).includes(name));
  }
  assert.equal(typeof Sandbox.list, "function");
  assert.equal(sandbox.sandboxId, sandbox.id);
  assert.ok(await sandbox.isRunning());
  const context = await sandbox.createCodeContext({ language: "python" });
  assert.ok((await sandbox.listCodeContexts()).some(({ id }) => id === context.id));
  await sandbox.restartCodeContext(context);
  assert.ok(await sandbox.removeCodeContext(context));
  assert.equal((await sandbox.files.getInfo("/")).type, "directory");
  await handle.disconnect();
  const again = await sandbox.commands.connect(handle.pid);
  await again.kill();
  await again.wait();
  const cat = await sandbox.commands.start(["cat"], { stdin: true });
  await cat.sendStdin("hi");
  await cat.closeStdin();
  assert.equal((await cat.wait()).stdout, "hi");
  await sandbox.kill();
  assert.equal(await sandbox.isRunning(), false);
  client.close();
});
