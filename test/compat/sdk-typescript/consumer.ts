// A program that names most exports of the package. It is compiled but not run.
import { bestOf, Client, Sandbox, SandboxNotFoundError, type CommandResult, type Execution } from "forkd";

const client = new Client({ url: "http://x" });
const sandbox: Sandbox = await Sandbox.create("a", {
  client,
  limits: { memoryMib: 512 },
  network: { mode: "allow", allow: ["pypi.org"] },
});
const result: CommandResult = await sandbox.commands.run("x");
const bytes: Uint8Array = (await sandbox.commands.run(["x"], { text: false })).stdout;
const execution: Execution = await sandbox.runCode("1");
const [snapshot, children] = await sandbox.branch(2);
for (const child of children) {
  console.log(child.id, snapshot.tag, result.stdout, bytes.length, execution.text);
  console.log(child.info.snapshotTag, child.info.labels?.["a"]);
}
for await (const event of await client.events({ labels: { a: "b" } })) {
  console.log(event.type, event.sandboxId);
}
const best = await bestOf(sandbox, ["a", "b"], (_, { ok, stdout }) => ok && Number(stdout));
console.log(best.result.exitCode, (await sandbox.network.get()).stats.upBytes);
const text: string = await sandbox.files.read("/a");
const content: Uint8Array = await sandbox.files.read("/a", { format: "bytes" });
try {
  await sandbox.kill();
} catch (error) {
  if (error instanceof SandboxNotFoundError) {
    console.log(error.code, error.fix, text, content);
  }
}
{
  await using other = await Sandbox.create("b");
  console.log(other.id);
}
