import type { Address } from "./address.ts";
import { ConnectionFailedError, ForkdError, StreamBrokenError } from "./error.ts";
import { TimeoutError } from "./generated/errors.ts";
import { builtin } from "./node.ts";
import { answeredError } from "./problem.ts";
import { SendError, type Answer, type Body, type Transport } from "./transport.ts";
import { version } from "./version.ts";

/** Options of every call. */
export interface CallOptions {
  /** Cancels the call, which then fails with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Seconds to wait for the daemon's answer; 0: without a limit. Default: the client's timeout. */
  requestTimeout?: number | undefined;
}

/** Names of the options of every call. */
export const callOptions = ["signal", "requestTimeout"] as const;

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** A request to the API. */
export interface Call {
  query?: Query;
  json?: unknown; // body, sent as JSON
  body?: Body; // body, in place of json
  headers?: Record<string, string>;
  once?: boolean; // send an Idempotency-Key, so that it can be repeated
  options?: CallOptions | undefined;
  upgrade?: boolean;
  seconds?: number; // the time limit is at least this; 0: unlimited
}

/** Settings of a client that apply to every request. */
export interface WireSettings {
  timeout: number; // seconds; 0: no limit
  idleTimeout: number; // seconds of silence that break a stream; 0: no limit
  retries: number;
}

/** Bytes of an answer that is no file. */
export const maxAnswer = 256 << 20;

/** Bytes of a file, or of the data of a port, that is read as a whole. */
export const maxWhole = 1 << 30;

/** Milliseconds before the first repetition. The delay doubles with each further one. */
const firstPause = 100;

/** Size above which an upload is sent in parts, and the size of the parts, in bytes. */
const partSize = 256 << 10;

/**
 * Sends requests to one daemon. It adds its token, time limits and repetitions, and maps errors by
 * their code.
 */
export class Wire {
  readonly address: Address;
  readonly settings: WireSettings;
  readonly #transport: Transport;
  #closed = false;

  constructor(address: Address, transport: Transport, settings: WireSettings) {
    this.address = address;
    this.#transport = transport;
    this.settings = settings;
  }

  /** Sends a request and returns the answer's JSON; undefined without a body. */
  async call(method: string, path: string, call: Call = {}): Promise<unknown> {
    return this.#within(method, path, call, async (answer) => {
      const text = new TextDecoder().decode(await collected(answer.body, maxAnswer));
      try {
        return text === "" ? undefined : (JSON.parse(text) as unknown);
      } catch (cause) {
        throw new ForkdError(`${method} ${path}: the answer is not JSON`, { status: answer.status, cause });
      }
    });
  }

  /** Deletes an object. Returns false if the object did not exist, which the error code says. */
  async gone(path: string, code: string, call: Call = {}): Promise<boolean> {
    try {
      await this.call("DELETE", path, call);
      return true;
    } catch (error) {
      if (error instanceof ForkdError && error.code === code) {
        return false;
      }
      throw error;
    }
  }

  /** Sends a request and returns the answer. Read the answer's body with idle. */
  open(method: string, path: string, call: Call = {}): Promise<Answer> {
    return this.#within(method, path, call, (answer) => Promise.resolve(answer));
  }

  close(): void {
    this.#closed = true;
    this.#transport.close();
  }

  /** Repeats a request while that is permitted and useful, and passes its answer to take. */
  async #within<T>(method: string, path: string, call: Call, take: (answer: Answer) => Promise<T>): Promise<T> {
    const limit = new Limit(this.#seconds(call), call.options?.signal);
    const headers = this.#headers(call);
    const repeatable = method === "GET" || call.once === true;
    for (let attempt = 0; ; attempt++) {
      let pause = firstPause * 2 ** attempt;
      let failure: unknown;
      try {
        const answer = await this.#attempt(method, path, call, headers, limit);
        if (answer.status < 300) {
          return await take(answer);
        }
        const error = await answeredError(answer);
        if (error.retryAfter === undefined || (error.status !== 429 && error.status !== 503)) {
          throw error;
        }
        failure = error;
        pause = error.retryAfter * 1000;
      } catch (error) {
        failure = this.#explain(error, `${method} ${path}`, limit);
        if (!(failure instanceof ConnectionFailedError)) {
          throw failure;
        }
      } finally {
        limit.stop();
      }
      if (!repeatable || attempt >= this.settings.retries || !(await limit.pause(pause))) {
        throw failure;
      }
    }
  }

  async #attempt(
    method: string,
    path: string,
    call: Call,
    headers: Record<string, string>,
    limit: Limit,
  ): Promise<Answer> {
    if (this.#closed) {
      throw new ForkdError("the client is closed", { code: "client_closed" });
    }
    limit.start();
    let body = call.body;
    if (call.json !== undefined) {
      body = new TextEncoder().encode(JSON.stringify(call.json));
    } else if (body !== undefined && (!(body instanceof Uint8Array) || body.length > partSize)) {
      body = moving(body, limit);
    }
    return this.#transport.send({
      method,
      path: path + queryOf(call.query),
      headers,
      body,
      signal: limit.signal,
      upgrade: call.upgrade ?? false,
    });
  }

  #seconds(call: Call): number {
    const own = call.options?.requestTimeout;
    if (own !== undefined || call.seconds === undefined || this.settings.timeout === 0) {
      return own ?? this.settings.timeout;
    }
    return call.seconds === 0 ? 0 : Math.max(call.seconds, this.settings.timeout);
  }

  #headers(call: Call): Record<string, string> {
    const headers: Record<string, string> = { ...call.headers };
    if (builtin("node:http") !== undefined) {
      headers["user-agent"] = `forkd-client-typescript/${version}`; // in browsers, their own name stays
    }
    if (this.address.token !== undefined) {
      headers["authorization"] = `Bearer ${this.address.token}`;
    }
    if (call.json !== undefined) {
      headers["content-type"] = "application/json";
    }
    if (call.upgrade) {
      Object.assign(headers, { connection: "Upgrade", upgrade: "tcp" });
    }
    if (call.once) {
      headers["idempotency-key"] = crypto.randomUUID();
    }
    return headers;
  }

  /** Returns the error that the caller gets for a failure. */
  #explain(error: unknown, what: string, limit: Limit): unknown {
    limit.caller?.throwIfAborted();
    if (limit.exceeded) {
      const text = `${what}: no answer within ${limit.seconds} s; it may have been carried out`;
      return new TimeoutError(text, { code: "timeout", fix: "give it more time: requestTimeout" });
    }
    if (error instanceof SendError) {
      const { url } = this.address;
      const detail = (error.message || (error.cause as { code?: string } | undefined)?.code) ?? "no connection";
      return error.sent
        ? new ConnectionFailedError(
            `${what}: the connection to the daemon at ${url} broke before it had answered (${detail}); ` +
              "it may have been carried out",
            "unknown",
            error.cause,
          )
        : new ConnectionFailedError(
            `${what}: no forkd daemon answers at ${url} (${detail}); nothing was sent. Start one with ` +
              "'forkd daemon', or say where it is: url, or FORKD_URL",
            "no",
            error.cause,
          );
    }
    if (error instanceof ForkdError) {
      return error;
    }
    if (error instanceof Error && (error as { code?: string }).code === "ECONNRESET") {
      return new ConnectionFailedError(
        `${what}: the answer of the daemon broke off; it may have been carried out`,
        "unknown",
        error,
      );
    }
    return error;
  }

  /**
   * The parts of a stream's body. It fails with a StreamBrokenError if the stream breaks, or is
   * silent for longer than the idle limit. Leaving the loop ends the stream.
   */
  async *idle(
    answer: Answer,
    what: string,
    options: { signal?: AbortSignal | undefined; seconds?: number; pid?: number } = {},
  ): AsyncGenerator<Uint8Array> {
    const { signal } = options;
    const seconds = options.seconds ?? this.settings.idleTimeout;
    let silent = false;
    const abort = (): void => answer.cancel();
    signal?.addEventListener("abort", abort);
    const parts = answer.body[Symbol.asyncIterator]();
    try {
      for (;;) {
        signal?.throwIfAborted();
        const timer = seconds > 0 && setTimeout(() => ((silent = true), answer.cancel()), seconds * 1000);
        const next = await parts.next().finally(() => timer && clearTimeout(timer));
        if (next.done) {
          break;
        }
        yield next.value;
      }
    } catch (cause) {
      signal?.throwIfAborted();
      if (!silent) {
        throw new StreamBrokenError(`${what}: the stream broke off`, { pid: options.pid, cause });
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      answer.cancel();
    }
    signal?.throwIfAborted();
    if (silent) {
      throw new StreamBrokenError(`${what}: the stream said nothing for ${seconds} s (idleTimeout)`, {
        pid: options.pid,
      });
    }
  }
}

/** The parts of a body. The request's time limit restarts with each part. */
async function* moving(body: Body, limit: Limit): AsyncGenerator<Uint8Array> {
  if (body instanceof Uint8Array) {
    for (let at = 0; at < body.length; at += partSize) {
      limit.extend();
      yield body.subarray(at, at + partSize);
    }
  } else {
    for await (const part of body) {
      limit.extend();
      yield part;
    }
  }
  limit.extend();
}

/** The time limit of a request, and the signal of its caller. */
class Limit {
  readonly seconds: number;
  readonly caller: AbortSignal | undefined;
  exceeded = false;
  readonly #controller = new AbortController();
  readonly #end: number; // end of all attempts
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #abort = (): void => this.#controller.abort();

  constructor(seconds: number, caller: AbortSignal | undefined) {
    caller?.throwIfAborted();
    this.seconds = seconds;
    this.caller = caller;
    this.#end = seconds > 0 ? performance.now() + seconds * 1000 : Infinity;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Starts the time of an attempt. */
  start(): void {
    this.stop();
    this.caller?.addEventListener("abort", this.#abort);
    if (this.seconds > 0) {
      this.#timer = setTimeout(() => ((this.exceeded = true), this.#abort()), this.seconds * 1000);
    }
  }

  /** Restarts the time of the attempt if it still runs. */
  extend(): void {
    if (this.#timer !== undefined) {
      this.start();
    }
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.caller?.removeEventListener("abort", this.#abort);
  }

  /** Waits. If there is not enough time left, it returns false at once. */
  async pause(ms: number): Promise<boolean> {
    if (performance.now() + ms >= this.#end) {
      return false;
    }
    await new Promise<void>((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        this.caller?.removeEventListener("abort", end);
        resolve();
      };
      const timer = setTimeout(end, ms);
      this.caller?.addEventListener("abort", end);
    });
    this.caller?.throwIfAborted();
    return true;
  }
}

/** Reads all parts, which may have at most `most` bytes. fix says what helps if there are more. */
export async function collected(
  body: AsyncIterable<Uint8Array>,
  most: number,
  fix?: string,
): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of body) {
    parts.push(part);
    size += part.length;
    if (size > most) {
      const message = `the answer has more than ${most >> 20} MiB` + (fix ? `: ${fix}` : "");
      throw new ForkdError(message, { code: "bad_answer", fix });
    }
  }
  return joined(parts);
}

/** Joins the parts into a new array, because the memory of parts may be reused. */
export function joined(parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function queryOf(query: Query | undefined): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const each of Array.isArray(value) ? (value as string[]) : [value]) {
      if (each !== undefined) {
        pairs.append(name, String(each));
      }
    }
  }
  const text = pairs.toString();
  return text === "" ? "" : `?${text}`;
}
