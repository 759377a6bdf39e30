/** Other transports: TLS with certificates on both sides, and fetch. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { createServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { TLSSocket } from "node:tls";
import {
  Client,
  ConnectionFailedError,
  InvalidArgumentError,
  NoSuchRouteError,
  Sandbox,
  StreamBrokenError,
} from "../src/index.ts";
import { Rig } from "./rig.ts";

let rig: Rig;
let directory: string;
let server: Server;
let url: string;
let authorized = false;
const pem = (name: string): string => join(directory, `${name}.pem`);

/** Makes a key and a certificate. The authority signs it, unless it is the authority itself. */
function certificate(name: string, subject: string): void {
  const openssl = (...args: string[]): unknown => execFileSync("openssl", args, { cwd: directory, stdio: "ignore" });
  const key = [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
    "-keyout",
    `${name}-key.pem`,
    "-subj",
    `/CN=${subject}`,
  ];
  if (name === "ca") {
    openssl("req", "-x509", ...key, "-days", "2", "-out", "ca.pem");
    return;
  }
  openssl("req", "-new", ...key, "-out", `${name}.csr`);
  writeFileSync(join(directory, `${name}.ext`), "subjectAltName=DNS:localhost,IP:127.0.0.1\n");
  openssl(
    "x509",
    "-req",
    "-in",
    `${name}.csr`,
    "-CA",
    "ca.pem",
    "-CAkey",
    "ca-key.pem",
    "-CAcreateserial",
    "-days",
    "2",
    "-extfile",
    `${name}.ext`,
    "-out",
    `${name}.pem`,
  );
}

before(async () => {
  rig = await Rig.start();
  directory = mkdtempSync(join(tmpdir(), "forkd-tls-"));
  certificate("ca", "authority");
  certificate("server", "localhost");
  certificate("client", "somebody");
  const options = {
    key: readFileSync(pem("server-key")),
    cert: readFileSync(pem("server")),
    ca: readFileSync(pem("ca")),
    requestCert: true,
    rejectUnauthorized: false,
  };
  server = createServer(options, (incoming, outgoing) => {
    authorized = (incoming.socket as TLSSocket).authorized;
    const there = new URL(rig.url);
    const { method = "GET", headers, url: path = "/" } = incoming;
    const forwarded = request(
      { host: there.hostname, port: there.port, method, headers, path: path.replace(/^\/base/, "") },
      (answer) => {
        outgoing.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(outgoing);
      },
    );
    incoming.pipe(forwarded);
    outgoing.on("close", () => forwarded.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `https://127.0.0.1:${(server.address() as AddressInfo).port}/base/`;
});

after(async () => {
  server.closeAllConnections();
  server.close();
  rmSync(directory, { recursive: true });
  await rig.stop();
});

async function works(client: Client): Promise<void> {
  const sandbox = await Sandbox.create(rig.snapshot, { client });
  assert.equal((await sandbox.commands.run("cat", { stdin: "through" })).stdout, "through");
  await sandbox.files.write(`${rig.tmp}/t`, new Blob(["x".repeat(1_000_000)]).stream());
  assert.equal((await sandbox.files.readBytes(`${rig.tmp}/t`)).length, 1_000_000);
  assert.equal((await sandbox.runCode("6 * 7")).text, "42");
  const signal = AbortSignal.timeout(300);
  await assert.rejects(sandbox.commands.run("sleep 20", { signal }), { name: "TimeoutError" });
  const events = await client.events({ sandbox: sandbox.id });
  await sandbox.kill();
  for await (const event of events) {
    assert.equal(event.type, "sandbox.deleted");
    break;
  }
}

test("TLS, with the daemon's authority and a certificate of the client", async () => {
  const { token } = rig;
  const client = new Client({
    url,
    token,
    ca: pem("ca"),
    cert: readFileSync(pem("client"), "utf8"),
    key: pem("client-key"),
  });
  await works(client);
  assert.equal(authorized, true);
  client.close();
});

test("a daemon with another authority's certificate is told nothing", async () => {
  const client = new Client({ url, token: rig.token });
  await assert.rejects(
    client.version(),
    (error: ConnectionFailedError) => error instanceof ConnectionFailedError && error.happened === "no",
  );
  client.close();
  process.env["FORKD_CA"] = pem("ca");
  const trusting = new Client({ url, token: rig.token });
  assert.equal((await trusting.version()).api, "v1");
  trusting.close();
  delete process.env["FORKD_CA"];
  assert.throws(() => new Client({ url, cert: pem("client") }), { field: "cert" });
  assert.throws(() => new Client({ url: rig.url, ca: pem("ca") }), { field: "ca" });
  assert.throws(() => new Client({ url, ca: join(directory, "server.ext") }), { field: "ca" });
});

test("fetch in place of node:http", async () => {
  const client = new Client({ url: rig.url, token: rig.token, fetch });
  await works(client);
  const sandbox = await Sandbox.create(rig.snapshot, { client });
  await rig.fault({ requests: { path: "/exec$", after_bytes: 30 } });
  await assert.rejects(sandbox.commands.run("echo hello"), StreamBrokenError);
  await assert.rejects(sandbox.connectPort(80), { field: "port" });
  await sandbox.kill();
  const gone = createServer().listen(0);
  const { port } = gone.address() as AddressInfo;
  await new Promise((resolve) => gone.close(resolve));
  await assert.rejects(
    new Client({ url: `http://127.0.0.1:${port}`, fetch }).version(),
    (error: ConnectionFailedError) => error.happened === "no",
  );
  assert.throws(() => new Client({ url: rig.socket, fetch }), InvalidArgumentError);
});

test("a daemon that is too old says so", async () => {
  const old: typeof fetch = () =>
    Promise.resolve(Response.json({ error: "POST /v1/x: no such route", code: "no_such_route" }, { status: 404 }));
  const error = await new Client({ url: rig.url, fetch: old }).version().catch((e: unknown) => e as Error);
  assert.ok(error instanceof NoSuchRouteError && /older than this package/.test(error.message));
  const proxy: typeof fetch = () => Promise.resolve(new Response("<h1>Bad gateway</h1>", { status: 502 }));
  await assert.rejects(
    new Client({ url: rig.url, fetch: proxy }).version(),
    /502: not an answer of a forkd daemon: "<h1>Bad gateway/,
  );
});
