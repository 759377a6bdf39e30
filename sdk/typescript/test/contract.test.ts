/**
 * Runs the scenarios of test/contract, whose README explains them. The daemon has fake VMs, or is
 * the one at $FORKD_CONTRACT_URL ($FORKD_TOKEN, and $FORKD_CONTRACT_SNAPSHOT to fork from).
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { parse } from "yaml";
import { Client, Sandbox, Snapshot, Workspace } from "../src/index.ts";
import { camelName, operations } from "./operations.ts";
import { Rig } from "./rig.ts";

interface Step {
  do: string;
  of?: string;
  with?: Record<string, unknown>;
  save?: string;
  expect?: Record<string, unknown>;
  error?: Record<string, unknown>;
}

interface Scenario {
  name: string;
  needs?: "fake" | "vm";
  steps: Step[];
  finally?: Step[];
}

const contract = process.env["FORKD_CONTRACT"] ?? new URL("../../../test/contract", import.meta.url).pathname;
const real = process.env["FORKD_CONTRACT_URL"];
const scenarios = readdirSync(`${contract}/scenarios`)
  .sort()
  .flatMap((file) => parse(readFileSync(`${contract}/scenarios/${file}`, "utf8")) as Scenario[]);

let rig: Rig | undefined;
let client: Client;

before(async () => {
  rig = real === undefined ? await Rig.start() : undefined;
  client = rig === undefined ? new Client({ url: real }) : new Client({ url: rig.url, token: rig.token });
});

after(async () => {
  client.close();
  await rig?.stop();
});

test("operations.json has what the runner knows, and that is what test/contract lists", () => {
  const methods = Object.fromEntries(Object.entries(operations).map(([op, [method]]) => [op, method]));
  assert.deepEqual(JSON.parse(readFileSync(new URL("operations.json", import.meta.url), "utf8")), methods);
  const listed = parse(readFileSync(`${contract}/operations.yaml`, "utf8")) as { op: string; args?: string[] }[];
  assert.deepEqual(listed.map(({ op }) => op).sort(), Object.keys(operations).sort());
  for (const { op, args = [] } of listed) {
    const known = operations[op]![1].split(" ");
    assert.deepEqual(
      args.filter((arg) => !known.includes(arg)),
      [],
      op,
    );
  }
});

for (const scenario of scenarios) {
  const skip = (scenario.needs ?? "both") === (real === undefined ? "vm" : "fake");
  test(scenario.name, { skip: skip && `needs ${scenario.needs}`, timeout: 120_000 }, async () => {
    checkKeys(scenario, "name", "needs", "steps", "finally");
    const run = `ts${randomBytes(6).toString("hex")}`;
    const saved: Record<string, unknown> = {
      run,
      snapshot: rig?.snapshot ?? process.env["FORKD_CONTRACT_SNAPSHOT"],
      tmp: `${rig?.tmp ?? "/tmp"}/${run}`,
      url: rig?.url ?? real,
      token: rig?.token ?? process.env["FORKD_TOKEN"],
      file: rig?.file,
    };
    try {
      for (const step of scenario.steps) {
        await done(step, saved);
      }
    } finally {
      for (const step of scenario.finally ?? []) {
        await done(step, saved).catch(() => undefined); // errors do not matter here
      }
    }
  });
}

function checkKeys(map: object, ...known: string[]): void {
  for (const key of Object.keys(map)) {
    assert.ok(known.includes(key), `the runner does not know the key ${key}`);
  }
}

async function done(step: Step, saved: Record<string, unknown>): Promise<void> {
  checkKeys(step, "do", "of", "with", "save", "expect", "error");
  const what = JSON.stringify(step);
  const args = filled(step.with ?? {}, saved) as Record<string, unknown>;
  let result: unknown;
  if (step.error === undefined) {
    result = await call(step, args, saved);
  } else {
    result = await call(step, args, saved).then(
      () => assert.fail(`it did not fail: ${what}`),
      (error: unknown) => error,
    );
    const { class: name, ...rest } = step.error;
    for (const [path, wanted] of Object.entries({ ...rest, ...(name === undefined ? {} : { name }) })) {
      const local = path === "field" && name === "InvalidArgumentError" ? camelName(wanted as string) : wanted;
      meets(part(result, path), filled(local, saved), `${path} of ${String(result)} of ${what}`);
    }
  }
  for (const [path, wanted] of Object.entries(step.expect ?? {})) {
    const there = path === "." ? result : path.split(".").reduce(part, result);
    meets(there, filled(wanted, saved), `${path} of ${what}`);
  }
  if (step.save !== undefined) {
    saved[step.save] = result;
  }
}

/** Makes a directory on this host, which is removed at the end. */
function directory(files: Record<string, string | { link?: string }>): string {
  const made = mkdtempSync(join(tmpdir(), "forkd-contract"));
  process.on("exit", () => rmSync(made, { recursive: true }));
  for (const [name, content] of Object.entries(files)) {
    const path = join(made, name);
    mkdirSync(dirname(path), { recursive: true });
    if (typeof content === "string") {
      writeFileSync(path, content);
    } else if (content.link !== undefined) {
      symlinkSync(content.link, path);
    } else {
      execFileSync("mkfifo", [path]);
    }
  }
  return made;
}

async function call(step: Step, args: Record<string, unknown>, saved: Record<string, unknown>): Promise<unknown> {
  switch (step.do) {
    case "rig.faults":
      return rig!.fault(args);
    case "rig.state":
      return rig!.state();
    case "directory":
      return directory(args["files"] as Record<string, string | { link?: string }>);
    case "number":
      return Number(String(args["text"]).trim());
    case "sleep":
      return new Promise((resolve) => setTimeout(resolve, Number(args["seconds"]) * 1000));
  }
  const operation = operations[step.do];
  assert.ok(operation, `the runner does not know the operation ${step.do}`);
  const [, names, run] = operation;
  checkKeys(args, ...names.split(" "));
  const of = step.of === undefined ? client : filled(step.of, saved);
  return run(of, args, of instanceof Client ? of : client);
}

/** A value of a scenario in which variables are replaced and bytes are decoded. */
function filled(value: unknown, saved: Record<string, unknown>): unknown {
  if (typeof value === "string") {
    const whole = /^\$\{([^}]*)\}$/.exec(value);
    const look = (path: string): unknown => {
      const [name, ...parts] = path.split(".");
      assert.ok(name! in saved, `nothing was saved as ${name}`);
      return parts.reduce(part, saved[name!]);
    };
    return whole ? look(whole[1]!) : value.replace(/\$\{([^}]*)\}/g, (_, path: string) => String(look(path)));
  }
  if (Array.isArray(value)) {
    return value.map((item) => filled(item, saved));
  }
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) {
    return value;
  }
  const keys = Object.keys(value);
  if (keys.length === 1 && keys[0] === "base64") {
    return new Uint8Array(Buffer.from((value as { base64: string }).base64, "base64"));
  }
  return Object.fromEntries(Object.entries(value).map(([key, field]) => [key, filled(field, saved)]));
}

/** A part of a result. Names are in snake_case, and -1 is the last element of a list. */
function part(of: unknown, name: string): unknown {
  if (Array.isArray(of)) {
    return of.at(Number(name));
  }
  if (typeof of !== "object" || of === null) {
    return undefined;
  }
  const map = of as Record<string, unknown>;
  const found = map[name] ?? map[camelName(name)];
  const described = of instanceof Sandbox || of instanceof Snapshot || of instanceof Workspace;
  return found === undefined && described ? (of.info as unknown as Record<string, unknown>)[camelName(name)] : found;
}

function meets(there: unknown, wanted: unknown, what: string): void {
  const keys = typeof wanted === "object" && wanted !== null && !Array.isArray(wanted) ? Object.keys(wanted) : [];
  const value = keys.length === 1 ? (wanted as Record<string, unknown>)[keys[0]!] : undefined;
  switch (keys.length === 1 ? keys[0] : undefined) {
    case "matches":
      return assert.match(String(there), new RegExp(value as string), what);
    case "type":
      return assert.equal(typeOf(there), value, what);
    case "length":
      return assert.equal((there as unknown[] | undefined)?.length, value, what);
    case "contains":
      return assert.ok(
        typeof there === "string"
          ? there.includes(value as string)
          : (there as unknown[]).some((item) => equal(item, value)),
        what,
      );
    case "not":
      return assert.throws(() => meets(there, value, what), what);
    default:
      assert.deepEqual(plain(there), plain(wanted), what);
  }
}

function equal(a: unknown, b: unknown): boolean {
  try {
    assert.deepEqual(plain(a), plain(b));
    return true;
  } catch {
    return false;
  }
}

/** Converts absent values to null, and all kinds of bytes to one. */
function plain(value: unknown): unknown {
  return value === undefined ? null : value instanceof Uint8Array ? [...value] : value;
}

function typeOf(value: unknown): string {
  if (value === undefined || value === null) {
    return "null";
  }
  return value instanceof Uint8Array ? "bytes" : Array.isArray(value) ? "list" : typeof value;
}
