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
