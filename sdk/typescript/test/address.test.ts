/** How the SDK finds the daemon. */
import assert from "node:assert/strict";
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { checkOwner, findDaemon } from "../src/address.ts";
import { Client } from "../src/index.ts";

const names = ["FORKD_URL", "FORKD_TOKEN", "FORKD_MACHINE", "FORKD_CACHE", "XDG_RUNTIME_DIR", "TMPDIR"];
const saved = names.map((name) => process.env[name]);
let cache: string;

beforeEach(() => {
  names.forEach((name) => delete process.env[name]);
  cache = mkdtempSync(join(tmpdir(), "forkd-ts-"));
  process.env["FORKD_CACHE"] = cache;
});

afterEach(() => {
  rmSync(cache, { recursive: true });
  names.forEach((name, i) => (saved[i] === undefined ? delete process.env[name] : (process.env[name] = saved[i])));
});

/** Writes the state of an emulated host whose supervisor is this process. */
function machine(name: string, phase: string, start: string): void {
  const directory = join(cache, "machine", name);
  mkdirSync(join(directory, "daemon"), { recursive: true });
  const state = { phase, daemon_addr: "127.0.0.1:4711", supervisor: { pid: process.pid, start_time: Number(start) } };
  writeFileSync(join(directory, "state.json"), JSON.stringify(state));
  writeFileSync(join(directory, "daemon", "token"), "secret\n");
}

function startTime(): string {
  const stat = readFileSync("/proc/self/stat", "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]!;
}

test("what is given comes first, then the environment", () => {
  process.env["FORKD_URL"] = "http://env:1/base/";
  process.env["FORKD_TOKEN"] = "t";
  assert.deepEqual(findDaemon("https://given:2"), {
    url: "https://given:2",
    base: "https://given:2",
    socket: undefined,
    token: "t",
  });
  assert.deepEqual(findDaemon(undefined, "own"), {
    url: "http://env:1/base/",
    base: "http://env:1/base",
    socket: undefined,
    token: "own",
  });
  process.env["FORKD_URL"] = "nonsense";
  assert.throws(() => findDaemon(), /^InvalidArgumentError: FORKD_URL: "nonsense": want unix:/);
});

test("then the emulated host that runs, with its token", () => {
  machine("default", "ready", startTime());
  machine("other", "ready", startTime());
  assert.deepEqual(findDaemon(), {
    url: "http://127.0.0.1:4711",
    base: "http://127.0.0.1:4711",
    socket: undefined,
    token: "secret",
  });
  process.env["FORKD_MACHINE"] = "other";
  assert.equal(findDaemon().token, "secret");
});

test("the directory of the default socket is this user's, or root's", () => {
  const uid = userInfo().uid;
  const directory = join(cache, "forkd");
  checkOwner(directory, uid); // nothing is there yet
  mkdirSync(directory);
  checkOwner(directory, uid);
  const refused = (): void => {
    const want = { name: "InvalidArgumentError", message: /another user's.*Remove it/ };
    assert.throws(() => checkOwner(directory, uid), want);
    if (uid !== 0) {
      process.env["XDG_RUNTIME_DIR"] = cache;
      assert.throws(() => findDaemon(), want);
    }
  };
  for (const mode of [0o775, 0o757]) {
    chmodSync(directory, mode);
    refused();
  }
  chmodSync(directory, 0o755);
  if (uid === 0) {
    chownSync(directory, 1000, 0);
    checkOwner(directory, 1000);
    refused();
  }
  renameSync(directory, join(cache, "moved"));
  symlinkSync(join(cache, "moved"), directory);
  refused();
});

test("not one that has stopped, or whose supervisor is another process by now", () => {
  const socket = userInfo().uid === 0 ? "/run/forkd/forkd.sock" : `/tmp/forkd-run-${userInfo().uid}/forkd/forkd.sock`;
  machine("default", "stopped", startTime());
  assert.equal(findDaemon().socket, socket);
  machine("default", "ready", "1");
  assert.equal(findDaemon().socket, socket);
});

test("the shared client is of the daemon that the environment names", () => {
  process.env["FORKD_URL"] = "http://one:1";
  const one = Client.default();
  assert.equal(Client.default(), one);
  process.env["FORKD_URL"] = "http://two:2";
  assert.equal(Client.default().url, "http://two:2");
  one.close();
});
