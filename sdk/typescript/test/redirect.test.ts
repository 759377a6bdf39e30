/** A redirect does not send the token or the request to another server. */
import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import { type AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { Client, Controller } from "../src/index.ts";

let status = 307;
const asked: string[] = [];
const other = createServer((incoming, outgoing) => {
  asked.push(`${incoming.method} ${incoming.url} ${incoming.headers.authorization}`);
  outgoing.end("[]");
});
const daemon = createServer((_, outgoing) => {
  outgoing.writeHead(status, { location: `${urlOf(other)}/internal` }).end();
});

function urlOf(server: Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

before(async () => {
  for (const server of [other, daemon]) {
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  }
});

after(() => {
  for (const server of [other, daemon]) {
    server.closeAllConnections();
    server.close();
  }
});

test("redirects are not followed", async () => {
  const url = urlOf(daemon);
  const token = "a-token";
  const controller = new Controller({ baseUrl: url, token });
  const clients = [new Client({ url, token }), new Client({ url, token, fetch })];
  for (status of [301, 302, 303, 307, 308]) {
    for (const client of clients) {
      await assert.rejects(client.sandboxes());
      await assert.rejects(client.fork("base", 1));
    }
    await assert.rejects(controller.listSandboxes());
    await assert.rejects(controller.spawnSandboxes({ snapshotTag: "base" }));
  }
  clients.forEach((client) => client.close());
  assert.deepEqual(asked, []);
});
