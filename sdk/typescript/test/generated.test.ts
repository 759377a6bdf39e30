/** The generated files are up to date with the documents of the API. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { generated } from "../scripts/generate.ts";
import * as forkd from "../src/index.ts";

const read = (path: string): string => readFileSync(new URL(path, import.meta.url), "utf8");

test("src/generated is what scripts/generate.ts makes", async () => {
  for (const [name, text] of Object.entries(await generated())) {
    assert.equal(read(`../src/generated/${name}`), text, `src/generated/${name}: run npm run generate`);
  }
});

test("every code of docs/errors.md has a class that is exported", () => {
  const codes = [...read("../../../docs/errors.md").matchAll(/^\| <a id="(\w+)">/gm)].map((m) => m[1]!);
  assert.deepEqual(Object.keys(forkd.errorClasses), codes);
  for (const [code, Class] of Object.entries(forkd.errorClasses)) {
    const name = `${code
      .split("_")
      .map((word) => word[0]!.toUpperCase() + word.slice(1))
      .join("")}Error`;
    assert.equal(Class.name, name);
    assert.equal((forkd as unknown as Record<string, unknown>)[name], Class);
    assert.ok(new Class("x") instanceof forkd.ForkdError);
  }
});

test("the version is that of package.json", () => {
  assert.equal(forkd.version, (JSON.parse(read("../package.json")) as { version: string }).version);
});
