/** The programs of README.md run as they stand, on a Node that has `await using`. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { Client } from "../src/index.ts";
import { Rig } from "./rig.ts";

const package_ = new URL("..", import.meta.url).pathname;
const programs = [...readFileSync(join(package_, "README.md"), "utf8").matchAll(/^```js\n(.*?)^```$/gms)].map(
  (m) => m[1]!,
);
/** What each of them prints, over faked VMs: children have no memory of their parent's there. */
const said = [/^hello 3\n42\n\[ .* \]\n$/, /^1 9\n$/, /^a\nb\n\nsandbox.deleted\n$/, /^list sandboxes/];

let rig: Rig;
let directory: string;

before(async () => {
  rig = await Rig.start();
  const client = new Client({ url: rig.url, token: rig.token });
  const [sandbox] = await client.fork(rig.snapshot);
  await sandbox!.branch(0, { tag: "python-numpy" });
  await sandbox!.kill();
  client.close();
  directory = mkdtempSync(join(tmpdir(), "forkd-readme-"));
  mkdirSync(join(directory, "node_modules"));
  // The sources stand in for the package, which run.py of test/compat/sdk-typescript installs.
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
