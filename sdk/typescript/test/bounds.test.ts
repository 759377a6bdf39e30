/** Answers that do not end. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, Controller, ForkdError, Sandbox } from "../src/index.ts";

const part = new Uint8Array(16 << 20);

/** A daemon with one sandbox, whose other answers do not end. */
const endless: typeof fetch = async (url) => {
  if (/\/v1\/sandboxes\/sb-1$/.test(String(url))) {
    return Response.json({ id: "sb-1", snapshot_tag: "base", state: "running" });
  }
  return new Response(new ReadableStream({ pull: (controller) => controller.enqueue(part) }));
};

test("an execution keeps 64 MiB of each output and of the results", async () => {
  const events = function* (): Generator<object> {
    yield { stdout: "fits" };
    for (let n = 0; n < 100; n++) {
      yield { stdout: "x".repeat(1 << 20) };
      yield { stderr: "x".repeat(1 << 20) };
    }
    yield { stdout: "late" };
    for (const length of [30 << 20, 30 << 20, 30 << 20, 10]) {
      yield { result: { main: length === 10, data: { "text/plain": "y".repeat(length) } } };
    }
    yield { end: { outcome: "finished", state_lost: false, execution_count: 1 } };
  };
  const noisy: typeof fetch = async (url) => {
    if (!/\/code$/.test(String(url))) {
      return endless(url);
    }
    const lines = events();
    const pull = (controller: ReadableStreamDefaultController): void => {
      const { value, done } = lines.next();
      done ? controller.close() : controller.enqueue(new TextEncoder().encode(`${JSON.stringify(value)}\n`));
    };
    return new Response(new ReadableStream({ pull }));
  };
  const client = new Client({ url: "http://127.0.0.1:1", token: "t", fetch: noisy });
  const sandbox = await Sandbox.connect("sb-1", { client });
  let printed = 0;
  const execution = await sandbox.runCode("x", { onStdout: (text) => void (printed += text.length) });
  const sizes = [execution.logs.stdout, execution.logs.stderr].map((parts) => parts.join("").length);
  assert.deepEqual(sizes, [(63 << 20) + 4, 64 << 20]);
  assert.equal(printed, (100 << 20) + 8);
  assert.ok(execution.truncated && !execution.logs.stdout.includes("late"));
  assert.deepEqual([execution.results.length, execution.text], [3, "y".repeat(10)]);
  client.close();
});

const tooLarge = (size: string) => (error: unknown) =>
  error instanceof ForkdError && error.code === "bad_answer" && error.message.includes(`more than ${size}`);

test("an answer is read up to 256 MiB, and a file up to 1 GiB", async () => {
  const url = "http://127.0.0.1:1";
  const client = new Client({ url, token: "t", fetch: endless });
  await assert.rejects(client.sandboxes(), tooLarge("256 MiB"));
  const controller = new Controller({ baseUrl: url, token: "t", fetch: endless });
  await assert.rejects(controller.listSandboxes(), tooLarge("256 MiB"));
  const sandbox = await Sandbox.connect("sb-1", { client });
  for (const format of ["text", "bytes", "blob"] as const) {
    await assert.rejects(
      sandbox.files.read("/f", { format } as { format: "text" }),
      (error: ForkdError) => tooLarge("1024 MiB")(error) && error.fix!.includes('"stream"'),
    );
  }
  let size = 0;
  for await (const some of await sandbox.files.read("/f", { format: "stream" })) {
    if ((size += some.length) > 1.5 * 2 ** 30) {
      break;
    }
  }
  client.close();
});
