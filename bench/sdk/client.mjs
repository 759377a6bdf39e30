// The TypeScript SDK for bench/sdk. Each line of input is one piece of work. The answer to it has
// the seconds that the work took, and the seconds of CPU time. The answer to "held N" is KiB per
// sandbox.
import { rmSync } from "node:fs";
import { createInterface } from "node:readline";
import { Sandbox } from "../../sdk/typescript/src/index.ts";

const [tag, path] = process.argv.slice(2);
const large = new Uint8Array(100 << 20).fill(7);
let box;

async function started() {
  const made = await Sandbox.create(tag);
  const { stdout } = await made.commands.run("echo hi");
  if (stdout !== "hi\n") throw new Error(`echo said ${stdout}`);
  return made;
}

const works = {
  create: async () => void (box = await started()),
  command: () => box.commands.run("echo hi"),
  code: () => box.runCode("1+1"),
  up: () => box.files.write(path, large),
  down: async () => {
    if ((await box.files.readBytes(path)).length !== large.length) throw new Error("a part of the file is missing");
  },
  kill: () => {
    rmSync(path, { force: true });
    return box.kill();
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [work, n] = line.split(" ");
  const [began, cpu] = [performance.now(), process.cpuUsage()];
  const tell = () => {
    const { user, system } = process.cpuUsage(cpu);
    console.log((performance.now() - began) / 1000, (user + system) / 1e6);
  };
  if (work === "many") {
    const made = await Promise.all(Array.from({ length: Number(n) }, started));
    tell();
    await Promise.all(made.map((one) => one.kill()));
    continue;
  }
  if (work === "held") { // growth of this process for each sandbox that it holds, in KiB
    const first = await started(); // makes the objects that all sandboxes share
    const before = process.memoryUsage.rss();
    const made = [];
    for (let i = 0; i < Number(n); i++) made.push(await started());
    console.log((process.memoryUsage.rss() - before) / 1024 / Number(n));
    await Promise.all([first, ...made].map((one) => one.kill()));
    continue;
  }
  await works[work]();
  tell();
}
