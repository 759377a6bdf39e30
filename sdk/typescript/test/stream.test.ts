/** Streams whose lines do not end. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { StreamBrokenError } from "../src/index.ts";
import { lines } from "../src/stream.ts";

/** A body of the given parts. */
async function* body(parts: number, part: string): AsyncGenerator<Uint8Array> {
  for (let i = 0; i < parts; i++) {
    yield new TextEncoder().encode(part);
  }
}

test("a line has a bound, a stream has none", async () => {
  const part = "x".repeat(1 << 20);
  let read = 0;
  for await (const line of lines(body(80, part + "\n"), "the test")) {
    read += line.length;
  }
  assert.equal(read, 80 << 20);
  await assert.rejects(async () => {
    for await (const line of lines(body(80, part), "the test")) {
      assert.fail(`a line of ${line.length}`);
    }
  }, (e: unknown) => e instanceof StreamBrokenError && /more than 64 MiB/.test(e.message));
});
