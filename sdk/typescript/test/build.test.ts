/** Builds from Dockerfiles: the archive, refused contexts, and the progress. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import fs from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { parse } from "yaml";
import { BuildContext } from "../src/context.ts";
import { Steps } from "../src/build.ts";
import { BadPattern, Ignore } from "../src/ignore.ts";
import {
  BadRequestError,
  BuildFailed,
  Client,
  InvalidArgumentError,
  Snapshot,
  SnapshotExistsError,
  StreamBrokenError,
  type BuildOptions,
  type BuildProgress,
} from "../src/index.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let client: Client;
const scratch = mkdtempSync(join(tmpdir(), "forkd-build-test-"));
before(async () => {
  rig = await Rig.start();
  client = new Client({ url: rig.url, token: rig.token });
});
after(async () => {
  client.close();
  rmSync(scratch, { recursive: true });
  await rig.stop();
});

interface Case {
  name: string;
  file: string;
  in?: string[];
  out?: string[];
  error?: boolean;
}

const cases = parse(readFileSync(new URL("../../../test/contract/ignore.yaml", import.meta.url), "utf8")) as Case[];
for (const { name, file, error, ...paths } of cases) {
  test(`.dockerignore: ${name}`, () => {
    const text = new TextEncoder().encode(file);
    if (error) {
      assert.throws(() => new Ignore(text), BadPattern);
      return;
    }
    const ignore = new Ignore(text);
    for (const path of [...(paths.in ?? []), ...(paths.out ?? [])]) {
      assert.equal(ignore.out(path), !(paths.in ?? []).includes(path), JSON.stringify(path));
    }
  });
}

test("a hostile .dockerignore takes little time", () => {
  const encoded = (text: string): Uint8Array => new TextEncoder().encode(text);
  const files: [string, string][] = [
    [`${"a*".repeat(1000)}b`, "a".repeat(2000)],
    [`${"**/a/".repeat(300)}b`, `${"a/".repeat(1000)}a`],
    [`${"x{1000}".repeat(200)}*b`, "x".repeat(2000)],
    [`${"x{2}".repeat(16000)}*`, "x"],
    [`x${" ".repeat(60000)}x\n`.repeat(16), "x"],
  ];
  const began = performance.now();
  for (const [file, path] of files) {
    assert.equal(new Ignore(encoded(file)).out(path), false);
  }
  const ignore = new Ignore(encoded(`*a${"?".repeat(12)}b`));
  for (let i = 0; i < 3000; i++) {
    ignore.out(i.toString(2).padStart(12, "0").replaceAll("0", "a").replaceAll("1", "c").repeat(3));
  }
  assert.ok(performance.now() - began < 30_000, `it took ${performance.now() - began} ms`);
  assert.throws(() => new Ignore(encoded(`${"x{1000}".repeat(300)}*`)), /it repeats too much/);
});

type Files = Record<string, string | ((path: string) => unknown)>;

/** A new directory with files. */
function made(files: Files): string {
  const directory = mkdtempSync(join(scratch, "d"));
  for (const [name, content] of Object.entries(files)) {
    const path = join(directory, name);
    mkdirSync(dirname(path), { recursive: true });
    if (typeof content === "string") {
      writeFileSync(path, content);
      chmodSync(path, 0o644);
    } else {
      content(path);
    }
  }
  return directory;
}

const link = (to: string) => (path: string) => symlinkSync(to, path);
const pipe = (path: string): unknown => execFileSync("mkfifo", [path]);

async function packed(directory: string, dockerfile?: string): Promise<Buffer> {
  const context = await BuildContext.open(directory, dockerfile);
  const parts: Uint8Array[] = [];
  for await (const part of context.pack({ tag: "x" })) {
    parts.push(part);
  }
  return Buffer.concat(parts);
}

/** GNU tar's listing of an archive: names and attributes. */
function entries(archive: Buffer): string[] {
  const list = execFileSync("tar", ["-tv", "--numeric-owner", "--quoting-style=literal"], { input: archive });
  return list
    .toString()
    .trimEnd()
    .split("\n")
    .slice(1)
    .map((line) => {
      const [, mode, owner, size, name] = /^(\S+) (\S+) +(\d+) \S+ \S+ context\/(.*)$/.exec(line)!;
      assert.equal(owner, "0/0");
      return `${mode} ${size} ${name}`;
    });
}

test("what is packed", async () => {
  const directory = made({
    Dockerfile: "FROM x",
    "a.log": "1",
    "keep.log": "2",
    "sub/b.log": "3",
    "sub/c": "4",
    "out/big": "5",
    "out/deep/kept": "6",
    run: "7",
    link: link("/etc"),
    ".dockerignore": "**/*.log\n!keep.log\nout\n!out/deep/kept\n",
    "Dockerfile.dev": "FROM y",
    "Dockerfile.dev.dockerignore": "*\n!sub\n",
  });
  linkSync(join(directory, "sub/c"), join(directory, "same"));
  mkdirSync(join(directory, "d".repeat(90), "e".repeat(90)), { recursive: true });
  chmodSync(join(directory, "run"), 0o4711);
  chmodSync(join(directory, "out"), 0o750);
  const socket = createServer().listen(join(directory, "socket"));
  await new Promise((resolve) => socket.on("listening", resolve));
  const first = await packed(directory);
  socket.close();
  assert.deepEqual(entries(first), [
    "-rw-r--r-- 38 .dockerignore",
    "-rw-r--r-- 6 Dockerfile",
    "-rw-r--r-- 6 Dockerfile.dev",
    "-rw-r--r-- 7 Dockerfile.dev.dockerignore",
    `drwxr-xr-x 0 ${"d".repeat(90)}/`,
    `drwxr-xr-x 0 ${"d".repeat(90)}/${"e".repeat(90)}/`,
    "-rw-r--r-- 1 keep.log",
    "lrwxrwxrwx 0 link -> /etc",
    "drwxr-x--- 0 out/",
    "drwxr-xr-x 0 out/deep/",
    "-rw-r--r-- 1 out/deep/kept",
    "-rws--x--x 1 run",
    "-rw-r--r-- 1 same",
    "drwxr-xr-x 0 sub/",
    "-rw-r--r-- 1 sub/c",
  ]);
  assert.deepEqual(await packed(directory), first);
  assert.deepEqual(
    entries(await packed(directory, "Dockerfile.dev")).map((line) => line.split(" ").at(-1)),
    ["sub/", "sub/b.log", "sub/c"],
  );
});

const noLink = "the link leads to no file of the build context: put the file itself there";
const hostile: [want: string, files: Files][] = [
  [`dockerfile: DIR/Dockerfile: ${noLink}`, { Dockerfile: link("/etc/passwd") }],
  [`dockerfile: DIR/Dockerfile: ${noLink}`, { Dockerfile: link("../../../../etc/passwd") }],
  [`dockerfile: DIR/Dockerfile: ${noLink}`, { Dockerfile: link("Dockerfile") }],
  [`context: DIR/.dockerignore: ${noLink}`, { Dockerfile: "FROM x", ".dockerignore": link("/etc/passwd") }],
  [`context: DIR/.dockerignore: ${noLink}`, { Dockerfile: "FROM x", ".dockerignore": link("nothing") }],
  ["dockerfile: DIR/Dockerfile: it is a pipe: want a file", { Dockerfile: pipe }],
  ["context: DIR/.dockerignore: it is a pipe: want a file", { Dockerfile: "FROM x", ".dockerignore": pipe }],
  ["dockerfile: DIR/Dockerfile: it is a directory: want a file", { "Dockerfile/x": "" }],
  ["context: DIR/sub/p: it is a pipe, and a build context has", { Dockerfile: "FROM x", "sub/p": pipe }],
  ["dockerfile: DIR/Dockerfile: there is no such file", { x: "" }],
  ['context: DIR/.dockerignore: the pattern "[a-"', { Dockerfile: "FROM x", ".dockerignore": "b\n[a-\n" }],
  ["context: DIR/.dockerignore has more than 1048576", { Dockerfile: "F", ".dockerignore": "#".repeat(1048577) }],
  ["dockerfile: DIR/Dockerfile has more than 1048576", { Dockerfile: "#".repeat(1048577) }],
  [
    "dockerfile: DIR/Dockerfile: it is not UTF-8",
    { Dockerfile: (path) => writeFileSync(path, Buffer.from("FROM x\nRUN \xe9", "latin1")) },
  ],
  [
    "context: DIR/\ufffd: its name is not UTF-8",
    { Dockerfile: "FROM x", y: (path) => renameSync(made({ y: "" }) + "/y", Buffer.from(`${dirname(path)}/\xff`, "latin1")) },
  ],
];
for (const [want, files] of hostile) {
  test(`a hostile context: ${want}`, { timeout: 10_000 }, async () => {
    const directory = made(files);
    await assert.rejects(packed(directory), (error) => {
      assert.ok(error instanceof InvalidArgumentError);
      assert.equal(error.message.slice(0, want.length - 3 + directory.length), want.replace("DIR", directory));
      assert.equal(error.field, want.split(":")[0]);
      return true;
    });
  });
}

test("links within the context, and Dockerfiles that were chosen", async () => {
  const directory = made({
    "context/Dockerfile": link("docker/link"),
    "context/docker/link": link("../docker/./real"),
    "context/docker/real": "FROM inside",
    other: "FROM outside",
  });
  for (const [dockerfile, text] of [
    [undefined, "FROM inside"],
    ["docker/real", "FROM inside"],
    ["../other", "FROM outside"],
  ]) {
    assert.equal((await BuildContext.open(join(directory, "context"), dockerfile)).text, text);
  }
});

test("a file that is replaced after a look at it is not read", async () => {
  const real = fs.lstat;
  const ways: Record<string, (a: string) => void> = {
    link: (a) => (unlinkSync(a), symlinkSync("secret", a)),
    outside: (a) => (unlinkSync(a), symlinkSync("/etc/passwd", a)),
    pipe: (a) => (unlinkSync(a), pipe(a)),
    file: (a) => renameSync(join(dirname(a), "../secret"), a),
    "directory above": (a) => (renameSync(dirname(a), `${dirname(a)}2`), symlinkSync("sub2", dirname(a))),
  };
  try {
    for (const [name, way] of Object.entries(ways)) {
      const directory = made({ Dockerfile: "FROM x", "sub/a": "1", secret: "2" });
      fs.lstat = (async (path: string, options: object) => {
        const info = await real(path, options);
        if (path === join(directory, "sub/a")) {
          way(path);
        }
        return info;
      }) as typeof fs.lstat;
      await assert.rejects(packed(directory), /^InvalidArgumentError: context: .*\/sub\/a: it was replaced/, name);
    }
  } finally {
    fs.lstat = real;
  }
});

test("a context has the bounds of the daemon, and no file is left", async () => {
  const left = (): string[] => readdirSync(tmpdir()).filter((name) => name.startsWith("forkd-build-") && !scratch.endsWith(name));
  const before = left();
  const directory = made({ Dockerfile: "FROM x", huge: "" });
  truncateSync(join(directory, "huge"), 9 * 2 ** 30);
  await assert.rejects(client.build({ context: directory, tag: "x" }), /more than 8 GiB: leave files out in .dockerignore/);
  assert.deepEqual(left(), before);
});

test("what failed first, and the end of its output", () => {
  const steps = new Steps();
  steps.add({ type: "plan", steps: ["[a 1/2] FROM x", "[a 2/2] RUN make"], notes: [] });
  for (let n = 0; n < 10_000; n++) {
    steps.add({ type: "output", number: 1, line: `line ${n} ${"x".repeat(88)}` });
  }
  steps.add({ type: "output", number: 1, line: "last" });
  for (const number of [1, 0]) {
    steps.add({ type: "step", number, state: "failed" });
  }
  const cause = new BadRequestError("exit status 3", { code: "bad_request", status: 400 });
  const error = steps.error(cause);
  assert.ok(error instanceof BuildFailed);
  assert.deepEqual([error.number, error.step, error.code, error.status], [1, "[a 2/2] RUN make", "build_failed", 400]);
  assert.ok(error.output.length > 60_000 && error.output.length <= 65_536 && error.output.endsWith("x\nlast"));
  assert.ok(error.message.startsWith("exit status 3\nline ") && error.message.length < 3000);
  assert.equal(error.cause, cause);
});

const text = "FROM x";
const wrong: [field: string, options: BuildOptions][] = [
  ["context", {}],
  ["context", { context: "/no/such/directory", tag: "x" }],
  ["context", { context: 7 as never, tag: "x" }],
  ["tag", { dockerfileText: text }],
  ["tag", { dockerfileText: text, tag: "" }],
  ["dockerfile", { context: tmpdir(), tag: "x", dockerfile: "no-such-file" }],
  ["dockerfileText", { dockerfileText: text, dockerfile: "x", tag: "x" }],
  ["dockerfileText", { dockerfileText: " \n", tag: "x" }],
  ["dockerfileText", { dockerfileText: "#".repeat(1048577), tag: "x" }],
  ["target", { dockerfileText: text, tag: "x", target: "" }],
  ["buildArgs.A", { dockerfileText: text, tag: "x", buildArgs: { A: 1 as never } }],
  ["secrets", { dockerfileText: text, tag: "x", secrets: { a: 1 as never } }],
  ["secrets", { dockerfileText: text, tag: "x", secrets: { a: new Uint8Array(512_001) } }],
  ["vcpus", { dockerfileText: text, tag: "x", vcpus: 0 }],
  ["onProgress", { dockerfileText: text, tag: "x", onProgress: 1 as never }],
  ["nocache", { dockerfileText: text, tag: "x", nocache: true } as BuildOptions],
];
test("wrong arguments are refused before a request", async () => {
  const { total } = await rig.state();
  for (const [field, options] of wrong) {
    await assert.rejects(async () => client.build(options), { name: "InvalidArgumentError", field }, field);
  }
  assert.equal((await rig.state()).total, total);
});

test("a build", async () => {
  const work = join(rig.tmp, "built");
  const directory = made({
    Dockerfile:
      `FROM ${rig.snapshot} AS one\nARG WORD=none\nWORKDIR ${work}\nCOPY . .\n` +
      "RUN echo $WORD $(cat in) >out; cat out\nFROM one AS two\nRUN exit 7\n",
    ".dockerignore": "*\n!in\n",
    ".env": "secret",
    in: "there",
  });
  const told: BuildProgress[] = [];
  const options = {
    context: directory,
    tag: "app",
    target: "one",
    buildArgs: { WORD: "hello" },
    secrets: { unused: "x" },
  };
  const snapshot = await client.build({ ...options, onProgress: (event) => void told.push(event) });
  assert.equal(snapshot.info.tag, "app");
  const [box] = await snapshot.fork();
  assert.equal((await box!.commands.run(["ls", "-A", work])).stdout, "in\nout\n");
  await box!.kill();
  assert.equal(told[0]?.type === "plan" && told[0].steps.length, 5);
  assert.deepEqual(
    told.filter((event) => event.type === "output"),
    [{ type: "output", number: 3, line: "hello there" }],
  );
  assert.equal(told.findLast((event) => event.type === "step")?.state, "done");
  const again = await Snapshot.build({ ...options, client });
  assert.deepEqual([again.built?.run, again.built?.cached], [0, 5]);
  await assert.rejects(client.build({ ...options, buildArgs: {}, replace: false }), SnapshotExistsError);
  await assert.rejects(client.build({ context: directory, tag: "two" }), (error) => {
    assert.ok(error instanceof BuildFailed);
    assert.equal(error.step, "[two 2/2] RUN exit 7");
    assert.match(error.message, /^Dockerfile:7: \[two 2\/2\] RUN exit 7: exit status 7/);
    return true;
  });
  await assert.rejects(
    client.build({ dockerfileText: "NOPE", tag: "x" }),
    (error) => error instanceof BadRequestError && /Dockerfile:1: unknown instruction: NOPE/.test(error.message),
  );
  await again.delete();
  assert.ok(existsSync(work));
});

test("a build ends with its caller", async () => {
  const slow = { dockerfileText: `FROM ${rig.snapshot}\nRUN sleep 600\n`, tag: "ended" };
  const failure = new Error("of the callback");
  const fail = (): never => {
    throw failure;
  };
  await assert.rejects(client.build({ ...slow, onProgress: fail }), failure);
  const controller = new AbortController();
  const abort = (event: BuildProgress): void => {
    if (event.type === "step" && event.state === "started") {
      controller.abort(failure);
    }
  };
  await assert.rejects(client.build({ ...slow, tag: "ended2", signal: controller.signal, onProgress: abort }), failure);
  for (let i = 0; i < 200 && (await client.sandboxes()).length > 0; i++) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.deepEqual(await client.sandboxes(), []);
});

test("a daemon that goes away", async () => {
  await rig.fault({ requests: { path: "^/v1/builds$", after_bytes: 150 } });
  const options = { dockerfileText: `FROM ${rig.snapshot}\nRUN true\n`, tag: "broken" };
  await assert.rejects(client.build(options), StreamBrokenError);
});
