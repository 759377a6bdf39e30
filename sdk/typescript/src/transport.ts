import type { Address } from "./address.ts";
import { InvalidArgumentError } from "./error.ts";
import { builtin } from "./node.ts";

export type Body = Uint8Array | AsyncIterable<Uint8Array>;

/** One HTTP request. */
export interface Request {
  method: string;
  path: string; // path and query of the API
  headers: Record<string, string>;
  body: Body | undefined;
  signal: AbortSignal;
  upgrade?: boolean; // the caller needs the connection itself; see Answer.socket
}

/** The answer to a request. Its body must be read to the end or cancelled. */
export interface Answer {
  status: number;
  header(name: string): string | undefined;
  body: AsyncIterable<Uint8Array>;
  cancel(): void;
  socket?: import("node:stream").Duplex; // with status 101: the rest of the connection
}

/** Carries requests to a daemon. */
export interface Transport {
  /** Sends a request. It fails with a SendError if there is no answer. */
  send(request: Request): Promise<Answer>;
  /** Closes idle connections; the others are closed when their request ends. */
  close(): void;
}

/** The error of a request that got no answer. */
export class SendError extends Error {
  /** False if the daemon cannot have seen any of the request. */
  readonly sent: boolean;

  constructor(sent: boolean, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause), { cause });
    this.sent = sent;
  }
}

/** TLS settings: PEM texts. */
export interface TLSOptions {
  ca?: string | undefined;
  cert?: string | undefined;
  key?: string | undefined;
}

/** Returns the transport for a daemon: node:http if it exists, else fetch. */
export function transportFor(address: Address, tls: TLSOptions, fetchOption: typeof fetch | undefined): Transport {
  if (fetchOption === undefined && builtin("node:http") !== undefined) {
    return new NodeTransport(address, tls);
  }
  if (address.socket !== undefined) {
    throw new InvalidArgumentError(
      "url",
      `${address.url}: fetch has no unix sockets; leave out the option fetch, or use TCP`,
    );
  }
  if (tls.ca !== undefined || tls.cert !== undefined) {
    throw new InvalidArgumentError("ca", "fetch takes no certificates; leave out the option fetch");
  }
  return new FetchTransport(address, fetchOption ?? globalThis.fetch);
}

/** Milliseconds after which an idle connection is closed. */
const idleConnection = 5_000;

/**
 * Sends requests by node:http, also over unix sockets. Unlike Node's fetch it accepts certificates,
 * has no time limit of its own, and its connections can be closed.
 */
export class NodeTransport implements Transport {
  readonly #address: Address;
  readonly #secure: boolean;
  readonly #request: typeof import("node:http").request;
  readonly #agent: import("node:http").Agent;
  readonly #tls: TLSOptions;

  constructor(address: Address, tls: TLSOptions) {
    this.#address = address;
    this.#secure = address.base.startsWith("https:");
    const module = builtin(this.#secure ? "node:https" : "node:http")!;
    this.#request = module.request as typeof import("node:http").request;
    this.#tls = Object.fromEntries(Object.entries(tls).filter(([, pem]) => pem !== undefined));
    this.#agent = new module.Agent({ keepAlive: true, timeout: idleConnection, ...this.#tls });
  }

  send(request: Request): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    const target = new URL(this.#address.base);
    const out = this.#request({
      agent: request.upgrade ? false : this.#agent,
      ...(request.upgrade && this.#tls),
      method: request.method,
      path: (target.pathname === "/" ? "" : target.pathname) + request.path,
      headers: { host: target.host, ...request.headers },
      ...(this.#address.socket === undefined
        ? { host: target.hostname.replace(/^\[|\]$/g, ""), port: target.port || undefined }
        : { socketPath: this.#address.socket }),
    });
    let sent = false;
    out.on("socket", (socket) => {
      if (socket.connecting) {
        socket.once(this.#secure ? "secureConnect" : "connect", () => (sent = true));
      } else {
        sent = true; // the connection had been used before, so the daemon may have seen the request
      }
    });
    const abort = (): void => void out.destroy(new Error("aborted"));
    const done = (): void => request.signal.removeEventListener("abort", abort);
    request.signal.addEventListener("abort", abort);
    out.on("error", (cause) => {
      done();
      reject(new SendError(sent, cause));
    });
    out.on("response", (message) => {
      message.once("close", done);
      resolve({
        status: message.statusCode!,
        header: (name) => single(message.headers[name.toLowerCase()]),
        body: message,
        cancel: () => void message.destroy(),
      });
    });
    out.on("upgrade", (message, socket, head) => {
      done();
      socket.setTimeout(0);
      socket.unshift(head);
      resolve({
        status: message.statusCode!,
        header: () => undefined,
        body: message,
        cancel: () => void socket.destroy(),
        socket,
      });
    });
    void write(out, request.body).catch((cause: unknown) => {
      out.destroy(cause instanceof Error ? cause : new Error(String(cause)));
      reject(cause);
    });
    if (request.signal.aborted) {
      abort();
    }
    return promise;
  }

  close(): void {
    this.#agent.destroy();
  }
}

function single(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header.join(", ") : header;
}

/** Writes a body at the speed of the connection. It stops if the connection has ended. */
async function write(out: import("node:http").ClientRequest, body: Body | undefined): Promise<void> {
  if (body === undefined || body instanceof Uint8Array) {
    out.end(body);
    return;
  }
  for await (const part of body) {
    if (out.destroyed) {
      return;
    }
    if (!out.write(part)) {
      await new Promise<void>((resolve) => {
        const go = (): void => {
          out.off("drain", go).off("close", go);
          resolve();
        };
        out.on("drain", go).on("close", go);
      });
    }
  }
  out.end();
}

/** Sends requests by fetch. */
export class FetchTransport implements Transport {
  readonly #address: Address;
  readonly #fetch: typeof fetch;

  constructor(address: Address, by: typeof fetch) {
    this.#address = address;
    this.#fetch = by;
  }

  async send(request: Request): Promise<Answer> {
    if (request.upgrade) {
      throw new InvalidArgumentError(
        "port",
        "fetch has no connections to ports: leave out the option fetch, or use url",
      );
    }
    const { method, headers, body } = request;
    const ended = new AbortController(); // a body cannot be cancelled while it is read
    const signal = AbortSignal.any([request.signal, ended.signal]);
    const init: RequestInit & { duplex?: "half" } = { method, headers, signal, redirect: "error" };
    if (body !== undefined) {
      init.body = body instanceof Uint8Array ? (body as Uint8Array<ArrayBuffer>) : streamOf(body);
      init.duplex = "half";
    }
    let response: Response;
    try {
      response = await this.#fetch(this.#address.base + request.path, init);
    } catch (cause) {
      throw new SendError(!unreached(cause), cause);
    }
    return {
      status: response.status,
      header: (name) => response.headers.get(name) ?? undefined,
      body: response.body === null ? nothing() : partsOf(response.body),
      cancel: () => ended.abort(),
    };
  }

  close(): void {
    // Nothing to do: the runtime owns the connections and closes them.
  }
}

/** Reports whether fetch failed before anything was sent. */
function unreached(error: unknown): boolean {
  const codes =
    /ECONNREFUSED|ENOENT|EACCES|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ConnectionRefused|FailedToOpenSocket/;
  for (let e: unknown = error; e instanceof Error; e = e.cause) {
    if (codes.test(`${(e as { code?: string }).code}`)) {
      return true;
    }
  }
  return false;
}

async function* nothing(): AsyncIterable<Uint8Array> {}

/** The parts of a stream, for a loop. Leaving the loop cancels the stream. */
export async function* partsOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined); // ignored: the stream has ended, or the loop has the same error
  }
}

/** Converts parts to a stream. Cancelling the stream ends the loop that makes the parts. */
export function streamOf(parts: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const each = parts[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await each.next();
      if (done) {
        controller.close();
      } else {
        controller.enqueue(value);
      }
    },
    async cancel(reason) {
      await each.return?.(reason);
    },
  });
}
