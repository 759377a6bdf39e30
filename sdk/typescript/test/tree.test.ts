/** An archive from a sandbox cannot write outside of the directory into which it is unpacked. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { camel, snake } from "../src/case.ts";
import { packTree, unpackTree } from "../src/tree.ts";

let directory: string;
let into: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forkd-tree-"));
  into = join(directory, "into");
});

afterEach(() => rmSync(directory, { recursive: true }));

interface Entry {
  name: string;
  type?: string; // of tar; 0 is a file
  link?: string;
  content?: string;
  mode?: number;
}

/** An archive made by Python, which does not check names. */
function archive(entries: Entry[], format = "PAX"): Uint8Array {
  const program = `
import io, json, sys, tarfile
out = io.BytesIO()
with tarfile.open(fileobj=out, mode="w", format=tarfile.${format}_FORMAT) as tar:
    for e in json.loads(sys.argv[1]):
        info = tarfile.TarInfo(e["name"])
        info.type = e.get("type", "0").encode()
        info.linkname = e.get("link", "")
        info.mode = e.get("mode", 0o644)
        data = e.get("content", "").encode()
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
sys.stdout.buffer.write(out.getvalue())`;
  return execFileSync("python3", ["-c", program, JSON.stringify(entries)]);
}

async function* inParts(bytes: Uint8Array, size = 700): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) {
    yield bytes.subarray(at, at + size);
  }
}

const unpack = (entries: Entry[], format?: string): Promise<void> =>
  unpackTree(inParts(archive(entries, format)), into);

test("what Python's tarfile packs is unpacked, in every format", async () => {
  const long = `${"d".repeat(90)}/${"n".repeat(120)}`;
  for (const format of ["PAX", "GNU", "USTAR"]) {
    const name = format === "USTAR" ? `${"d".repeat(90)}/${"n".repeat(90)}` : long;
    await unpack(
      [
        { name: "./" },
        { name: "./a/", type: "5" },
        { name, content: "x".repeat(5000) },
        { name: "short", content: "x".repeat(5000) },
        { name: "hard", type: "1", link: format === "USTAR" ? "short" : name },
        { name: "soft", type: "2", link: "a" },
      ],
      format,
    );
    assert.equal(readFileSync(join(into, name), "utf8"), "x".repeat(5000));
    assert.equal(readFileSync(join(into, "hard"), "utf8").length, 5000);
    assert.ok(lstatSync(join(into, "soft")).isSymbolicLink());
    rmSync(into, { recursive: true });
  }
});

test("the host's umask and its owner restrict the modes of an archive", async () => {
  const entries: Entry[] = [
    { name: "d", type: "5", mode: 0o777 },
    { name: "d/run", mode: 0o6777 },
    { name: "f", mode: 0o666 },
    { name: "odd", mode: 0o011 },
    { name: "own", type: "5", mode: 0o500 },
    { name: "own/f", mode: 0o400 },
  ];
  const wanted = {
    0o000: [0o755, 0o755, 0o644, 0o600, 0o700, 0o600],
    0o022: [0o755, 0o755, 0o644, 0o600, 0o700, 0o600],
    0o077: [0o700, 0o700, 0o600, 0o600, 0o700, 0o600],
  };
  const before = process.umask();
  try {
    for (const [mask, modes] of Object.entries(wanted)) {
      process.umask(Number(mask));
      await unpack(entries);
      assert.deepEqual(
        entries.map(({ name }) => lstatSync(join(into, name)).mode & 0o7777),
        modes,
        `umask ${mask}`,
      );
      rmSync(into, { recursive: true });
    }
  } finally {
    process.umask(before);
  }
});

test("what packTree packs, tar unpacks", async () => {
  const from = join(directory, "from");
  mkdirSync(join(from, "s".repeat(120), "deep"), { recursive: true });
  writeFileSync(join(from, "s".repeat(120), "deep", "ü"), "text");
  symlinkSync("t".repeat(150), join(from, "link"));
  const parts: Uint8Array[] = [];
  for await (const part of packTree(from)) {
    parts.push(part);
  }
  mkdirSync(into);
  execFileSync("tar", ["-x", "-C", into], { input: Buffer.concat(parts) });
  execFileSync("diff", ["-r", "--no-dereference", from, into]);
});

test("names that lead out are refused, and nothing is written there", async () => {
  for (const name of ["../out", "/out", "a/../../out", "a/./b", "a//b"]) {
    await assert.rejects(unpack([{ name, content: "x" }]), { code: "bad_archive" }, name);
  }
  await assert.rejects(unpack([{ name: "hard", type: "1", link: "../secret" }]), { code: "bad_archive" });
  assert.equal(existsSync(join(directory, "out")), false);
});

test("links are no way out, in any order", async () => {
  const secret = join(directory, "secret");
  mkdirSync(secret);
  writeFileSync(join(secret, "file"), "kept");
  for (const link of [secret, "inside"]) {
    const out = { name: "a", type: "2", link };
    for (const entry of [
      { name: "a/file", content: "overwritten" },
      { name: "a/file", type: "2", link: "x" },
      { name: "b", type: "1", link: "a/file" },
    ]) {
      await assert.rejects(unpack([out, entry]), { code: "bad_archive" });
      rmSync(into, { recursive: true });
    }
  }
  mkdirSync(into);
  symlinkSync(secret, join(into, "a")); // a link that existed before
  await assert.rejects(unpack([{ name: "a/file", content: "overwritten" }]), { code: "bad_archive" });
  await assert.rejects(
    unpack([
      { name: "a", type: "5" },
      { name: "a/file", content: "overwritten" },
    ]),
    { code: "bad_archive" },
  );
  assert.equal(readFileSync(join(secret, "file"), "utf8"), "kept");
});

test("a link is no target", async () => {
  const home = join(directory, "home");
  mkdirSync(home);
  const bytes = archive([{ name: "f", content: "x" }]);
  for (const target of ["home", "home/new"]) {
    symlinkSync(target, into);
    await assert.rejects(unpackTree(inParts(bytes), into), { name: "InvalidArgumentError", message: /symbolic link/ });
    rmSync(into);
  }
  assert.deepEqual(readdirSync(home), []);
  symlinkSync("home", into);
  await unpackTree(inParts(bytes), `${into}/`);
  assert.equal(readFileSync(join(home, "f"), "utf8"), "x");
});

test("links of an earlier archive lead nowhere", async () => {
  await assert.rejects(unpack([{ name: "d/proj", type: "2", link: "/etc" }]), { code: "bad_archive" });
  for (const link of ["..", "../x", "a/../../x", "a/b/../../../x", "./a/../x"]) {
    await assert.rejects(unpack([{ name: "proj", type: "2", link }]), { code: "bad_archive" }, link);
    await assert.rejects(unpack([{ name: "d/proj", type: "2", link: `../${link}` }]), { code: "bad_archive" }, link);
  }
  assert.deepEqual(readdirSync(into), ["d"]);
  assert.deepEqual(readdirSync(join(into, "d")), []);
  await unpack([
    { name: "d/e/up", type: "2", link: ".././../f" },
    { name: "f", content: "x" },
  ]);
  assert.equal(readFileSync(join(into, "d/e/up"), "utf8"), "x");
});

test("a directory is not removed for something else", async () => {
  mkdirSync(join(into, "d"), { recursive: true });
  writeFileSync(join(into, "d", "mine"), "kept");
  for (const entry of [
    { name: "d", content: "x" },
    { name: "d", type: "2", link: "x" },
  ]) {
    await assert.rejects(unpack([entry]), { code: "bad_archive" });
    assert.equal(readFileSync(join(into, "d", "mine"), "utf8"), "kept");
  }
  await unpack([{ name: "f", content: "1" }]);
  await unpack([{ name: "f", content: "2" }]);
  await unpack([{ name: "f", type: "2", link: "d" }]);
  assert.ok(lstatSync(join(into, "f")).isSymbolicLink());
});

test("names that lead out on Windows are refused there", async () => {
  for (const entry of [
    { name: "..\\out", content: "x" },
    { name: "C:out", content: "x" },
    { name: "file:stream", content: "x" },
    { name: "l", type: "2", link: "..\\out" },
    { name: "l", type: "1", link: "C:out" },
  ]) {
    const bytes = archive([entry]);
    await assert.rejects(unpackTree(inParts(bytes), into, { platform: "win32" }), { code: "bad_archive" });
  }
  await unpack([{ name: "a\\b:c", content: "x" }]);
  assert.equal(readFileSync(join(into, "a\\b:c"), "utf8"), "x");
});

/** An entry with an arbitrary header, which no library would write. */
function raw(name: string, type: string, content: string, size = content.length): Buffer {
  const block = Buffer.alloc(512 + Math.ceil(content.length / 512) * 512);
  block.write(name, 0);
  block.write(`${size.toString(8).padStart(11, "0")}\0`, 124);
  block.write(type, 156);
  block.write("ustar\x0000", 257);
  block.write(content, 512, "latin1");
  return block;
}

test("names, headers, entries and bytes have bounds", async () => {
  const end = Buffer.alloc(1024);
  const rejected = (blocks: Buffer[], message: RegExp, options = {}): Promise<void> =>
    assert.rejects(unpackTree(inParts(Buffer.concat([...blocks, end])), into, options), (error: Error) => {
      assert.equal((error as { code?: string }).code, "bad_archive");
      assert.match(error.message, message);
      return true;
    });
  for (const name of ["p".repeat(256), "d/".repeat(256) + "f", "abc/".repeat(1100) + "f"]) {
    await rejected([raw("L", "L", name), raw("f", "0", "")], /too long/);
    await rejected([raw("K", "K", name), raw("l", "2", "")], /too long/);
  }
  await rejected([raw("x", "x", "9 path=a\n"), raw("x", "x", "9 path=b\n"), raw("f", "0", "")], /more than one/);
  await rejected([raw("L", "L", "a"), raw("L", "L", "b"), raw("f", "0", "")], /more than one/);
  await rejected([raw("x", "x", "11 size=-1\n"), raw("f", "0", "")], /proper size/);
  await rejected([raw("x", "x", "10 size=x\n"), raw("f", "0", "")], /proper size/);
  await rejected([raw("x", "x", "22 size=9000000000000\n"), raw("f", "0", "")], /64 GiB/);
  await rejected([raw("a", "5", ""), raw("b", "5", ""), raw("c", "5", "")], /entries/, { entries: 2 });
  assert.equal(existsSync(join(into, "f")), false);
});

test("names do not fill the memory", async () => {
  const end = Buffer.alloc(1024);
  for (const type of ["1", "2"]) {
    const blocks = Array.from({ length: 20 }, (_, n) => raw(`${n % 10}`.repeat(60), type, ""));
    const whole = Buffer.concat([...blocks, end]);
    await assert.rejects(unpackTree(inParts(whole), into, { names: 1000 }), {
      code: "bad_archive",
      message: "the names of the archive's links have more than 1000 bytes",
    });
  }
  const files = Array.from({ length: 20 }, (_, n) => raw(`f${n}`.repeat(20), "0", ""));
  await unpackTree(inParts(Buffer.concat([...files, end])), into, { names: 1000 });
});

test("a name does not keep its header in memory", async () => {
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc") as () => void;
  const used = (): number => {
    gc();
    const { heapUsed, external } = process.memoryUsage(); // Node keeps long strings outside of the heap
    return heapUsed + external;
  };
  const before = used();
  let kept = 0;
  const name = (n: number): string => `\ufeff-a-name-of-a-link-${n}`;
  async function* links(): AsyncGenerator<Uint8Array> {
    for (let n = 0; n < 128; n++) {
      const padded = Buffer.alloc(1 << 20);
      padded.write(name(n));
      yield raw("L", "L", padded.toString("latin1"));
      yield raw("K", "K", "target");
      yield raw("l", "2", "");
    }
    kept = used() - before;
    yield Buffer.alloc(1024);
  }
  await unpackTree(links(), into);
  assert.ok(kept < 64 << 20, `${kept} bytes are kept`);
  assert.equal(readlinkSync(join(into, name(127))), "target");
});

test("an archive that is cut off fails", async () => {
  const whole = archive([{ name: "f", content: "x".repeat(3000) }]);
  for (const length of [100, 512, 1000, 3000]) {
    await assert.rejects(unpackTree(inParts(whole.subarray(0, length)), into), /the archive ends/);
  }
});

test("a stream that goes on after the end of its archive is left", async () => {
  let [after, ended] = [0, false];
  async function* endless(): AsyncGenerator<Uint8Array> {
    try {
      yield archive([{ name: "f", content: "kept" }]);
      for (; after < 64 << 20; after += 64 << 10) {
        yield new Uint8Array(64 << 10);
      }
    } finally {
      ended = true;
    }
  }
  await unpackTree(endless(), into);
  assert.equal(readFileSync(join(into, "f"), "utf8"), "kept");
  assert.ok(after <= 2 << 20, `${after} bytes were read after the end`);
  assert.ok(ended, "the stream was not given back");
});

test("names of the API become camelCase and come back, keys of maps do not", () => {
  const message = {
    snapshot_tag: "a",
    io_bytes_per_second: 1,
    list: [{ exit_code: 0 }],
    labels: { a_b: "c_d" },
    env: { MY_VAR: "x" },
    nothing: null,
  };
  const mine = {
    snapshotTag: "a",
    ioBytesPerSecond: 1,
    list: [{ exitCode: 0 }],
    labels: { a_b: "c_d" },
    env: { MY_VAR: "x" },
    nothing: null,
  };
  assert.deepEqual(camel(message), mine);
  assert.deepEqual(snake({ ...mine, absent: undefined }), message);
});
