import { findDaemon } from "./address.ts";
import { build, type BuildOptions } from "./build.ts";
import { camel, snake, type Camel } from "./case.ts";
import { checkEnv, checkInteger, checkName, checkOptions, checkSeconds, checkStrings, checkWord } from "./check.ts";
import { ConnectionFailedError, ForkdError, InvalidArgumentError, PartialForkError } from "./error.ts";
import { EventStream, type EventsOptions } from "./events.ts";
import type { components } from "./generated/api.ts";
import { spanOf, type HostMetrics, type MetricsOptions } from "./metrics.ts";
import { builtin, env } from "./node.ts";
import { Sandbox } from "./sandbox.ts";
import { Sandboxes } from "./sandboxes.ts";
import { Snapshots, type Snapshot } from "./snapshots.ts";
import { transportFor, type TLSOptions } from "./transport.ts";
import { callOptions, Wire, type CallOptions } from "./wire.ts";
import { holdOf, mountsOf, Volumes, type HoldEffects, type VolumeMounts } from "./volumes.ts";
import { Workspaces } from "./workspaces.ts";

type Schemas = components["schemas"];

/** Limits on a sandbox's use of its host; see docs/limits.md. A new value replaces all limits. */
export type Limits = Camel<Schemas["Limits"]>;
/** Where a sandbox may connect to; see docs/network.md. A new value replaces the whole policy. */
export type NetworkPolicy = Camel<Schemas["Network"]>;
/** Commands that run in a sandbox before or after some operations; see docs/hooks.md. */
export type Hooks = Camel<Schemas["Hooks"]>;
/** Versions and settings of a daemon. */
export type Version = Camel<Schemas["Version"]>;
/** "strict": a fork fails if programs in the sandboxes repeat random numbers. */
export type UniqueMode = Schemas["UniqueMode"];

/** How a client reaches its daemon. */
export interface ClientOptions {
  /**
   * unix:///path, http://host:port or https://host:port. Default: $FORKD_URL, else the daemon of the
   * running emulated host, else the local socket.
   */
  url?: string | undefined;
  /** Default: $FORKD_TOKEN. */
  token?: string | undefined;
  /** Authority of the daemon's certificate: PEM, or the path of a PEM file. Default: $FORKD_CA. */
  ca?: string | undefined;
  /**
   * Certificate of the client, and its key: PEM, or paths of PEM files. Default: $FORKD_CERT and
   * $FORKD_KEY.
   */
  cert?: string | undefined;
  key?: string | undefined;
  /**
   * Seconds to wait for an answer; default 60; 0: unlimited. Slow calls, such as a bake, wait
   * longer.
   */
  timeout?: number | undefined;
  /**
   * Seconds of silence after which a stream counts as broken; default 60; 0: never. The daemon
   * sends a message every 15 seconds.
   */
  idleTimeout?: number | undefined;
  /** How often a failed request is repeated, if repeating it does no harm; default 2. */
  retries?: number | undefined;
  /** Sends requests in place of node:http. Unix sockets and certificates need node:http. */
  fetch?: typeof fetch | undefined;
}

const clientOptions = ["url", "token", "ca", "cert", "key", "timeout", "idleTimeout", "retries", "fetch"] as const;

/** Options of a fork. */
export interface ForkOptions extends CallOptions {
  labels?: Record<string, string> | undefined;
  /** Environment variables of all programs in the children. */
  env?: Record<string, string> | undefined;
  limits?: Limits | undefined;
  network?: NetworkPolicy | undefined;
  hooks?: Hooks | undefined;
  /** Seconds after which a child is deleted; default: never. */
  ttl?: number | undefined;
  /**
   * Seconds without a request after which a child is suspended until the next request; default:
   * never.
   */
  idleTimeout?: number | undefined;
  unique?: UniqueMode | undefined;
  hostnamePrefix?: string | undefined;
  volumes?: VolumeMounts | undefined;
  holdEffects?: HoldEffects | undefined;
  /**
   * Keep the children that start even if others do not start. The fork then fails with a
   * PartialForkError, which contains the children that did.
   */
  allowPartial?: boolean | undefined;
}

export const forkOptions = [
  "labels",
  "env",
  "limits",
  "network",
  "hooks",
  "ttl",
  "idleTimeout",
  "unique",
  "hostnamePrefix",
  "allowPartial",
  "volumes",
  "holdEffects",
  ...callOptions,
] as const;

/** Labels that a sandbox must have: by name and value, or as a list of NAME and NAME=VALUE. */
export type LabelFilter = Record<string, string> | readonly string[];

/** Options of a list of sandboxes. */
export interface ListOptions extends CallOptions {
  labels?: LabelFilter | undefined;
}

/** Calls one daemon. It may be used concurrently. Close it, or use `await using`. */
export class Client implements AsyncDisposable {
  readonly snapshots: Snapshots;
  readonly volumes: Volumes;
  readonly workspaces: Workspaces;
  /** @internal */
  readonly wire: Wire;

  constructor(options: ClientOptions = {}) {
    checkOptions(options, ...clientOptions);
    const { url, token, timeout = 60, idleTimeout = 60, retries = 2 } = options;
    checkSeconds("timeout", timeout);
    checkSeconds("idleTimeout", idleTimeout);
    checkInteger("retries", retries, 0, 100);
    if (token !== undefined && (typeof token !== "string" || !/^[\x21-\x7e]+$/.test(token))) {
      throw new InvalidArgumentError("token", "want a string without spaces and control characters");
    }
    const address = findDaemon(url, token);
    const transport = transportFor(address, tlsOptions(options, address.base), options.fetch);
    this.wire = new Wire(address, transport, { timeout, idleTimeout, retries });
    this.snapshots = new Snapshots(this);
    this.volumes = new Volumes(this);
    this.workspaces = new Workspaces(this);
  }

  /** The default client of calls, for the daemon that is found without options. */
  static default(): Client {
    const place = ["FORKD_URL", "FORKD_TOKEN", "FORKD_CA", "FORKD_CERT", "FORKD_KEY"]
      .map((name) => env(name) ?? "")
      .join("\n");
    if (shared === undefined || shared.place !== place) {
      shared = { place, client: new Client() };
    }
    return shared.client;
  }

  /** The daemon's URL. */
  get url(): string {
    return this.wire.address.url;
  }

  /** Returns the daemon's version. */
  async version(options?: CallOptions): Promise<Version> {
    return camel((await this.wire.call("GET", "/version", { options })) as Schemas["Version"]);
  }

  /** Requests the history of the daemon's host: points of seconds, or of minutes. */
  async hostMetrics(options: MetricsOptions = {}): Promise<HostMetrics> {
    const answer = await this.wire.call("GET", "/v1/host/metrics", { query: spanOf(options), options });
    return camel(answer as Schemas["HostMetrics"]);
  }

  /** Reports whether the daemon serves. The call needs no token. */
  async healthy(options?: CallOptions): Promise<boolean> {
    try {
      return ((await this.wire.call("GET", "/healthz", { options })) as Schemas["Health"]).ok;
    } catch (error) {
      if (error instanceof ConnectionFailedError || (error instanceof ForkdError && error.status === 503)) {
        return false;
      }
      throw error;
    }
  }

  /** Forks n sandboxes from a snapshot: all or none, unless allowPartial is set. */
  async fork(snapshot: string | Snapshot, n = 1, options: ForkOptions = {}): Promise<Sandboxes> {
    const tag = tagOf(snapshot);
    checkOptions(options, ...forkOptions);
    return this.forkFrom({ snapshot_tag: tag }, n, options);
  }

  /** @internal */
  async forkFrom(source: object, n: number, options: ForkOptions): Promise<Sandboxes> {
    checkInteger("n", n, 1, 1000);
    checkFork(options);
    const { signal, requestTimeout, ttl, idleTimeout, volumes, holdEffects, ...rest } = options;
    const more = { volumes: mountsOf(volumes), hold_effects: holdOf(holdEffects) };
    const json = { ...source, n, ttl_secs: ttl, idle_timeout_secs: idleTimeout, ...more, ...(snake(rest) as object) };
    const forked = (await this.wire.call("POST", "/v1/forks", {
      json,
      once: true,
      options: { signal, requestTimeout },
      seconds: 120,
    })) as Schemas["Forked"];
    const sandboxes = new Sandboxes(
      forked.sandboxes.map((info) => new Sandbox(this, camel(info))),
      camel(forked),
    );
    if (forked.failed > 0) {
      throw new PartialForkError(sandboxes, forked.failed);
    }
    return sandboxes;
  }

  /**
   * Builds a snapshot from a Dockerfile, as `forkd build` does. Steps of earlier builds are reused.
   * If a step fails, BuildFailed contains the end of its output. Cancelling this call ends the
   * build.
   */
  build(options: BuildOptions): Promise<Snapshot> {
    return build(this, options);
  }

  /** Lists sandboxes, oldest first. */
  async sandboxes(options: ListOptions = {}): Promise<Sandbox[]> {
    checkOptions(options, "labels", ...callOptions);
    const query = { label: labelsOf(options.labels) };
    const list = (await this.wire.call("GET", "/v1/sandboxes", { query, options })) as Schemas["SandboxInfo"][];
    return list.map((info) => new Sandbox(this, camel(info)));
  }

  /** Follows events of sandboxes and snapshots, from now on or after a given event. */
  events(options: EventsOptions = {}): Promise<EventStream> {
    return EventStream.open(this.wire, options);
  }

  /** Closes the client's connections. Later calls fail. */
  close(): void {
    this.wire.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }
}

let shared: { place: string; client: Client } | undefined;

/** Returns the tag of a snapshot, which is a Snapshot or the tag itself. */
export function tagOf(snapshot: string | Snapshot, parameter = "snapshot"): string {
  const tag = typeof snapshot === "object" && snapshot !== null ? snapshot.tag : snapshot;
  checkName(parameter, tag);
  if (!/^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/.test(tag)) {
    throw new InvalidArgumentError(
      parameter,
      `${JSON.stringify(tag)}: want up to 128 letters, digits, "_", "." and "-", the first no "." or "-"`,
    );
  }
  return tag;
}

export function labelsOf(filter: LabelFilter | undefined): string[] | undefined {
  if (filter === undefined) {
    return undefined;
  }
  const list = Array.isArray(filter)
    ? (filter as string[])
    : Object.entries(filter).map(([name, value]) => `${name}=${value}`);
  if (!list.every((label) => typeof label === "string" && label !== "")) {
    throw new InvalidArgumentError("labels", "want an object of strings, or a list of NAME and NAME=VALUE");
  }
  return list;
}

function checkFork(options: ForkOptions): void {
  checkStrings("labels", options.labels);
  checkEnv(options.env);
  checkSeconds("ttl", options.ttl);
  checkSeconds("idleTimeout", options.idleTimeout);
  checkSeconds("requestTimeout", options.requestTimeout);
  checkWord("unique", options.unique, "", "report", "strict");
}

/** The certificates from the options and the environment, for addresses that use TLS. */
function tlsOptions(options: ClientOptions, base: string): TLSOptions {
  const secure = base.startsWith("https:");
  const given = options.ca ?? options.cert ?? options.key;
  if (!secure) {
    if (given !== undefined) {
      throw new InvalidArgumentError("ca", "certificates are for https://… only");
    }
    return {};
  }
  const cert = options.cert ?? env("FORKD_CERT");
  const key = options.key ?? env("FORKD_KEY");
  if ((cert === undefined) !== (key === undefined)) {
    throw new InvalidArgumentError("cert", "want both cert and key, or neither");
  }
  return { ca: pem("ca", options.ca ?? env("FORKD_CA")), cert: pem("cert", cert), key: pem("key", key) };
}

/** Returns a PEM text. value is the text itself or the path of a file. */
function pem(parameter: string, value: string | undefined): string | undefined {
  if (value === undefined || value.includes("-----BEGIN")) {
    return value;
  }
  try {
    const text = builtin("node:fs")!.readFileSync(value, "utf8");
    if (text.includes("-----BEGIN")) {
      return text;
    }
  } catch (cause) {
    throw new InvalidArgumentError(parameter, `${value}: ${(cause as Error).message}`);
  }
  throw new InvalidArgumentError(parameter, `${value} has nothing in PEM`);
}
