/** Controller of the TypeScript package of forkd 0.5, with its behaviour. New code uses Client. */
import { env } from "./node.ts";
import { partsOf } from "./transport.ts";
import { collected, maxAnswer } from "./wire.ts";

/** A snapshot, as forkd 0.5 describes it. Names are those of the API. */
export interface SnapshotInfo05 {
  tag: string;
  dir: string;
  created_at_unix: number;
  branched_from?: string;
  pause_ms?: number;
  diff_ms?: number;
  diff_physical_bytes?: number;
  diff_logical_bytes?: number;
  status?: string;
  bootable?: boolean;
}

/** A sandbox, as forkd 0.5 describes it. */
export interface SandboxInfo05 {
  id: string;
  snapshot_tag: string;
  netns?: string | null;
  guest_addr: string;
  created_at_unix: number;
  pid?: number | null;
  memory_limit_mib?: number | null;
  has_branched?: boolean;
  branch_count?: number;
  last_branch_memory_path?: string | null;
}

export interface BranchOptions05 {
  tag?: string;
  mode?: "live" | "diff" | "full";
  diff?: boolean;
  measure_diff?: boolean;
  wait?: boolean;
}

export interface ExecResult05 {
  stdout: string;
  stderr: string;
  exit_code: number;
}

export interface EvalResult05 {
  result?: unknown;
  error?: string | null;
  exit_code: number;
}

export interface SpawnOptions05 {
  snapshotTag: string;
  n?: number;
  perChildNetns?: boolean;
  memoryLimitMib?: number;
  prewarm?: boolean;
  liveFork?: boolean;
  hugepages?: boolean;
}

export interface ControllerOptions {
  /** Default: $FORKD_URL, else http://127.0.0.1:8889. */
  baseUrl?: string;
  /** Default: $FORKD_TOKEN. */
  token?: string;
  /** Milliseconds that a request may take; default 60000. */
  timeoutMs?: number;
  fetch?: typeof fetch;
}

/** An answer without a successful status. */
export class ControllerError extends Error {
  readonly status: number;
  /** The answer: decoded JSON, or else text. */
  readonly body: unknown;
  readonly url: string;

  constructor(status: number, body: unknown, url: string) {
    super(`controller ${url}: HTTP ${status}: ${typeof body === "string" ? body : JSON.stringify(body)}`);
    this.name = "ControllerError";
    this.status = status;
    this.body = body;
    this.url = url;
  }
}

/** Calls a daemon like forkd 0.5 did: by fetch, over TCP. */
export class Controller {
  readonly baseUrl: string;
  readonly token: string | undefined;
  readonly timeoutMs: number;
  readonly #fetch: typeof fetch;

  constructor(options: ControllerOptions = {}) {
    this.baseUrl = (options.baseUrl ?? env("FORKD_URL") ?? "http://127.0.0.1:8889").replace(/\/+$/, "");
    this.token = options.token ?? env("FORKD_TOKEN");
    this.timeoutMs = options.timeoutMs ?? 60_000;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  listSnapshots(): Promise<SnapshotInfo05[]> {
    return this.#call("GET", "/v1/snapshots");
  }

  async deleteSnapshot(tag: string): Promise<void> {
    await this.#call("DELETE", `/v1/snapshots/${encodeURIComponent(tag)}`);
  }

  spawnSandboxes(options: SpawnOptions05): Promise<SandboxInfo05[]> {
    return this.#call("POST", "/v1/sandboxes", {
      snapshot_tag: options.snapshotTag,
      n: options.n ?? 1,
      per_child_netns: options.perChildNetns ?? false,
      memory_limit_mib: options.memoryLimitMib,
      prewarm: options.prewarm,
      live_fork: options.liveFork,
      hugepages: options.hugepages,
    });
  }

  listSandboxes(): Promise<SandboxInfo05[]> {
    return this.#call("GET", "/v1/sandboxes");
  }

  getSandbox(id: string): Promise<SandboxInfo05> {
    return this.#call("GET", `/v1/sandboxes/${encodeURIComponent(id)}`);
  }

  async killSandbox(id: string): Promise<void> {
    await this.#call("DELETE", `/v1/sandboxes/${encodeURIComponent(id)}`);
  }

  branchSandbox(id: string, options: BranchOptions05 = {}): Promise<SnapshotInfo05> {
    return this.#call("POST", `/v1/sandboxes/${encodeURIComponent(id)}/branch`, {
      tag: options.tag,
      mode: options.mode,
      diff: options.diff || undefined,
      measure_diff: options.measure_diff || undefined,
      wait: options.wait,
    });
  }

  execCommand(id: string, args: string[], options: { timeoutSecs?: number } = {}): Promise<ExecResult05> {
    return this.#call("POST", `/v1/sandboxes/${encodeURIComponent(id)}/exec`, {
      args,
      timeout_secs: options.timeoutSecs ?? 30,
    });
  }

  evalCode(id: string, code: string): Promise<EvalResult05> {
    return this.#call("POST", `/v1/sandboxes/${encodeURIComponent(id)}/eval`, { code });
  }

  pingSandbox(id: string): Promise<Record<string, unknown>> {
    return this.#call("POST", `/v1/sandboxes/${encodeURIComponent(id)}/ping`);
  }

  async #call<T>(method: string, path: string, body?: object): Promise<T> {
    const url = this.baseUrl + path;
    const headers: Record<string, string> = {};
    if (body !== undefined) {
      headers["content-type"] = "application/json";
    }
    if (this.token) {
      headers["authorization"] = `Bearer ${this.token}`;
    }
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(), this.timeoutMs);
    try {
      const sent = body === undefined ? {} : { body: JSON.stringify(body) };
      const answer = await this.#fetch(url, { method, headers, ...sent, signal: limit.signal, redirect: "error" });
      const bytes = answer.body === null ? new Uint8Array() : await collected(partsOf(answer.body), maxAnswer);
      const text = new TextDecoder().decode(bytes);
      if (!answer.ok) {
        throw new ControllerError(answer.status, parsed(text), url);
      }
      return (text === "" ? null : JSON.parse(text)) as T;
    } finally {
      clearTimeout(timer);
    }
  }
}

function parsed(text: string): unknown {
  try {
    return text === "" ? {} : (JSON.parse(text) as unknown);
  } catch {
    return text;
  }
}
