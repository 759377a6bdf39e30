import { camel, snake, type Camel } from "./case.ts";
import { checkInteger, checkName, checkOptions, checkPath, checkSeconds, checkString, checkStrings, checkWord } from "./check.ts";
import {
  Client,
  forkOptions,
  tagOf,
  type ForkOptions,
  type Hooks,
  type Limits,
  type ListOptions,
  type NetworkPolicy,
  type UniqueMode,
} from "./client.ts";
import { Contexts, runCode, type CodeContext, type Execution, type RunCodeOptions } from "./code.ts";
import { Commands, type Command } from "./commands.ts";
import type { ControllerOptions, SpawnOptions05 } from "./controller05.ts";
import { knowsE2B, knowsE2BStatics } from "./e2b.ts";
import { Files } from "./files.ts";
import type { components } from "./generated/api.ts";
import { SandboxNotFoundError } from "./generated/errors.ts";
import { spanOf, type Metrics, type MetricsOptions } from "./metrics.ts";
import { PortConnection } from "./port.ts";
import { Pty } from "./pty.ts";
import { Sandbox05 } from "./sandbox05.ts";
import { Sandboxes } from "./sandboxes.ts";
import { Snapshot } from "./snapshots.ts";
import { streamOf } from "./transport.ts";
import { tryAll, tryBody, type Tries, type TryOptions } from "./try.ts";
import type { Effects } from "./volumes.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** Information about a sandbox. */
export type SandboxInfo = Camel<Schemas["SandboxInfo"]>;
/** The resources that a sandbox uses on its host. */
export type Stats = Camel<Schemas["Stats"]>;
/** The answer of a sandbox's agent. */
export type Pong = Camel<Schemas["Pong"]>;
/** Where a sandbox may connect to, and statistics of its connections. */
export type SandboxNetwork = Camel<Schemas["SandboxNetwork"]>;
/** Limits on a sandbox's use of its host, and its current use. */
export type SandboxLimits = Camel<Schemas["SandboxLimits"]>;
/** A sandbox after a rollback, and the duration of the rollback. */
export type RolledBack = Camel<Schemas["RolledBack"]>;
/** The changes that sandbox.apply has made, or would make. */
export type Applied = Camel<Schemas["Applied"]>;
/** A file that sandbox.apply changes, or that has a conflict. */
export type ApplyFile = Camel<Schemas["ApplyFile"]>;
/** The files that differ between two snapshots or sandboxes. */
export type Diff = Camel<Schemas["Diff"]>;
/** A path at which two snapshots or sandboxes differ. */
export type DiffFile = Camel<Schemas["DiffFile"]>;
/** How a running sandbox is branched; see docs/branching.md. */
export type BranchMode = "live" | "diff" | "full";

/** Options of calls that need no sandbox. */
export interface WithClient {
  /** Default: the client of the daemon that is found without options. */
  client?: Client | undefined;
}

/** Options of sandbox.export. */
export interface ExportOptions extends CallOptions {
  /** Absolute path of the only file or directory to export. */
  path?: string | undefined;
  /** Leave out files that an archive cannot have as they are. */
  partial?: boolean | undefined;
}
/** Options of sandbox.diff. */
export interface DiffOptions extends CallOptions {
  /** Compare only this file or directory. */
  path?: string | undefined;
  /** false: no patches of text files. */
  patch?: boolean | undefined;
  /** Further files are only counted. Default: 10,000; at most 20,000. */
  maxFiles?: number | undefined;
  /** Bytes of all patches. Default: 1 MiB; at most 4 MiB. */
  maxPatchBytes?: number | undefined;
}

/** Options of sandbox.apply. */
export interface ApplyOptions extends CallOptions {
  /** The snapshot that both sides come from. Default: their nearest common ancestor. */
  base?: string | Snapshot | undefined;
  /** Apply only these files and directories. */
  paths?: readonly string[] | undefined;
  /** At a conflict: "from" applies the change, "onto" keeps the file of the sandbox. */
  prefer?: "from" | "onto" | undefined;
  /** Only list the changes and conflicts. */
  dryRun?: boolean | undefined;
  /** Further files are only counted. Default: 1,000; at most 20,000. */
  maxFiles?: number | undefined;
}

/** Options of sandbox.branch. */
export interface BranchOptions extends CallOptions {
  /** Tag of the snapshot; by default the daemon chooses one. */
  tag?: string | undefined;
  mode?: BranchMode | undefined;
  /**
   * false: save only the disk, in a consistent state. Children boot from it, without the processes
   * that run now.
   */
  memory?: boolean | undefined;
  /** Labels of the snapshot. Its children do not inherit them. */
  labels?: Record<string, string> | undefined;
  /** true: encrypt the snapshot; always done if the sandbox runs from an encrypted one. */
  encrypt?: boolean | undefined;
  /** false: return as soon as the sandbox continues; a live branch is not complete then. */
  wait?: boolean | undefined;
}

/** Options of sandbox.logs. */
export interface LogOptions extends CallOptions {
  /** Only this number of last lines. */
  tail?: number | undefined;
  /** Only lines since this time (RFC 3339, or a duration before now such as "10m"). */
  since?: string | undefined;
}

/**
 * A virtual machine that can be forked, branched and rolled back while it runs. With `await using`,
 * it is killed at the end of the block.
 */
export class Sandbox implements AsyncDisposable {
  static {
    knowsE2B("Sandbox", this.prototype);
    knowsE2BStatics("Sandbox", this);
  }

  readonly id: string;
  /** The latest information about the sandbox; getInfo updates it. */
  info: SandboxInfo;
  readonly client: Client;
  readonly commands: Commands;
  readonly pty: Pty;
  readonly files: Files;
  /** Interpreters for runCode, with their own variables. */
  readonly contexts: Contexts;
  readonly network: SandboxSetting<SandboxNetwork, NetworkPolicy>;
  readonly limits: SandboxSetting<SandboxLimits, Limits>;
  readonly hooks: SandboxSetting<Hooks, Hooks>;

  /** @internal */
  constructor(client: Client, info: SandboxInfo) {
    checkName("id", info.id);
    this.client = client;
    this.id = info.id;
    this.info = info;
    const place = { wire: client.wire, sandbox: this.#path("") };
    this.commands = new Commands(place);
    this.pty = new Pty(place);
    this.files = new Files(client.wire, place.sandbox);
    this.network = new SandboxSetting(client, this.#path("/network"));
    this.limits = new SandboxSetting(client, this.#path("/limits"));
    this.hooks = new SandboxSetting(client, this.#path("/hooks"));
    this.contexts = new Contexts(client.wire, place.sandbox);
  }

  /**
   * Forks one sandbox from a snapshot. If it is called with an object, as in forkd 0.5, it returns
   * the Sandbox of that version.
   */
  static create(snapshot: string | Snapshot, options?: ForkOptions & WithClient): Promise<Sandbox>;
  static create(options: SpawnOptions05 & ControllerOptions): Promise<Sandbox05>;
  static async create(
    snapshot: string | Snapshot | (SpawnOptions05 & ControllerOptions),
    options: ForkOptions & WithClient = {},
  ): Promise<Sandbox | Sandbox05> {
    if (typeof snapshot === "object" && snapshot !== null && "snapshotTag" in snapshot) {
      return Sandbox05.create(snapshot);
    }
    checkOptions(options, "client", ...forkOptions);
    const { client = Client.default(), ...fork } = options;
    const [sandbox] = await client.fork(snapshot, 1, fork);
    return sandbox!;
  }

  /**
   * As in forkd 0.5: makes a sandbox, calls f with it, and kills it. New code uses `await using`.
   */
  static with<T>(options: SpawnOptions05 & ControllerOptions, f: (sandbox: Sandbox05) => Promise<T>): Promise<T> {
    return Sandbox05.with(options, f);
  }

  /** Returns an existing sandbox. */
  static async connect(id: string, options: WithClient & CallOptions = {}): Promise<Sandbox> {
    checkName("id", id);
    checkOptions(options, "client", ...callOptions);
    const { client = Client.default(), ...call } = options;
    const info = (await client.wire.call("GET", `/v1/sandboxes/${encodeURIComponent(id)}`, {
      options: call,
    })) as Schemas["SandboxInfo"];
    return new Sandbox(client, camel(info));
  }

  /** Lists sandboxes, oldest first. */
  static list(options: ListOptions & WithClient = {}): Promise<Sandbox[]> {
    const { client = Client.default(), ...list } = options;
    return client.sandboxes(list);
  }

  /** Requests the current information about the sandbox. */
  async getInfo(options?: CallOptions): Promise<SandboxInfo> {
    return this.#changed("GET", "", undefined, options);
  }

  /** Requests the resources that the sandbox uses. */
  async stats(options?: CallOptions): Promise<Stats> {
    return camel((await this.client.wire.call("GET", this.#path("/stats"), { options })) as Schemas["Stats"]);
  }

  /** Requests the history of the resources that the sandbox used: points of seconds, or of minutes. */
  async metrics(options: MetricsOptions = {}): Promise<Metrics> {
    const answer = await this.client.wire.call("GET", this.#path("/metrics"), { query: spanOf(options), options });
    return camel(answer as Schemas["Metrics"]);
  }

  /** Sends a request to the sandbox's agent. */
  async ping(options?: CallOptions): Promise<Pong> {
    return camel((await this.client.wire.call("POST", this.#path("/ping"), { options })) as Schemas["Pong"]);
  }

  /** Kills and removes the sandbox; false if it no longer existed. */
  kill(options?: CallOptions): Promise<boolean> {
    return this.client.wire.gone(this.#path(""), "sandbox_not_found", { options });
  }

  /** Sets labels, and removes those that are null; other labels stay. */
  async setLabels(labels: Record<string, string | null>, options?: CallOptions): Promise<Record<string, string>> {
    return (await this.#changed("PATCH", "/labels", labels, options)).labels ?? {};
  }

  /**
   * Makes the daemon delete the sandbox ttl seconds from now, in place of a time that was set
   * before; 0: never. expiresAtUnix of the result is the time of the deletion.
   */
  async setTtl(ttl: number, options?: CallOptions): Promise<SandboxInfo> {
    checkSeconds("ttl", ttl ?? NaN, 365 * 24 * 3600);
    return this.#changed("PUT", "/ttl", { ttl_secs: ttl }, options);
  }

  /** Forks n children that continue from the current state. The sandbox keeps running. */
  async fork(n = 1, options: ForkOptions & { mode?: BranchMode | undefined } = {}): Promise<Sandboxes> {
    checkOptions(options, "mode", ...forkOptions);
    checkWord("mode", options.mode, "live", "diff", "full");
    const { mode, ...fork } = options;
    return this.client.forkFrom({ source_id: this.id, mode }, n, fork);
  }

  /**
   * Makes a snapshot of the running sandbox, and n children of the snapshot: `const [snapshot,
   * children] = await sandbox.branch(2)`.
   */
  async branch(n = 0, options: BranchOptions = {}): Promise<[Snapshot, Sandboxes]> {
    checkInteger("n", n, 0, 1000);
    checkOptions(options, "tag", "mode", "memory", "labels", "encrypt", "wait", ...callOptions);
    checkStrings("labels", options.labels);
    checkWord("mode", options.mode, "live", "diff", "full");
    const tag = options.tag === undefined ? undefined : tagOf(options.tag, "tag");
    const { mode, memory, labels, wait } = options;
    const json = { tag, mode, memory, labels, wait, encrypt: options.encrypt || undefined };
    const info = await this.client.wire.call("POST", this.#path("/branch"), {
      json,
      once: true,
      options,
      seconds: 600,
    });
    const snapshot = new Snapshot(this.client, camel(info as Schemas["SnapshotInfo"]));
    const { signal, requestTimeout } = options;
    return [snapshot, n === 0 ? new Sandboxes([]) : await snapshot.fork(n, { signal, requestTimeout })];
  }

  /**
   * Rolls the sandbox back in place. The snapshot must come from the same parent as the sandbox: a
   * branch of the sandbox or of its children, or an ancestor of such a branch. By default, it is
   * the snapshot that the sandbox runs from.
   */
  async rollback(to?: string | Snapshot, options: CallOptions & { unique?: UniqueMode } = {}): Promise<RolledBack> {
    checkOptions(options, "unique", ...callOptions);
    const json = { to: to === undefined ? undefined : tagOf(to, "to"), unique: options.unique };
    return (await this.#changed("POST", "/rollback", json, options)) as RolledBack;
  }

  /**
   * Gives this sandbox the memory, files and processes that child has now. This sandbox keeps its
   * own id, labels and network; its own state is lost, unless it is branched first. Both sandboxes
   * must come from the same parent, and child continues. tag keeps the snapshot of child that this
   * call makes.
   */
  async promote(
    child: string | Sandbox,
    options: CallOptions & { tag?: string | undefined; mode?: BranchMode | undefined; unique?: UniqueMode } = {},
  ): Promise<RolledBack> {
    checkOptions(options, "tag", "mode", "unique", ...callOptions);
    checkWord("mode", options.mode, "live", "diff", "full");
    const from = typeof child === "string" ? child : child.id;
    checkName("child", from);
    const tag = options.tag === undefined ? undefined : tagOf(options.tag, "tag");
    const json = { from, tag, mode: options.mode, unique: options.unique };
    return (await this.#changed("POST", "/promote", json, options)) as RolledBack;
  }

  /**
   * Makes the file changes of source, a snapshot or sandbox of the same family, in this running sandbox: all
   * of them or none. The changes are those since base, by default the nearest common ancestor of both. A file
   * that both have changed in different ways is a conflict: nothing is applied then (ApplyConflictError),
   * unless prefer is set.
   */
  async apply(source: string | Snapshot | Sandbox, options: ApplyOptions = {}): Promise<Applied> {
    checkOptions(options, "base", "paths", "prefer", "dryRun", "maxFiles", ...callOptions);
    const from = source instanceof Sandbox ? source.id : tagOf(source, "source");
    const { paths, prefer, dryRun, maxFiles } = options;
    const base = options.base === undefined ? undefined : tagOf(options.base, "base");
    for (const path of paths ?? []) checkPath("paths", path);
    checkWord("prefer", prefer, "from", "onto");
    if (maxFiles !== undefined) checkInteger("maxFiles", maxFiles, 0, 20_000);
    const json = { from, base, paths, prefer, dry_run: dryRun, max_files: maxFiles };
    const answer = await this.client.wire.call("POST", this.#path("/apply"), { json, options, seconds: 900 });
    return camel(answer as Schemas["Applied"]);
  }

  /**
   * Branches the sandbox once, forks children of the branch, and runs a command in each child. commands is a
   * list with one command for each child or, with n, one command for n children. If this call is cancelled
   * or fails, if its connection breaks, or if the daemon dies, no child stays, and the sandbox is unchanged.
   * The variable FORKD_TRY_INDEX in the environment of a command is the child's number.
   */
  async tryAll(commands: Command | readonly Command[], options: TryOptions = {}): Promise<Tries> {
    const { results, end } = await tryAll(this.client.wire, this.#path(""), tryBody(commands, options), options);
    if (end.promoted !== undefined) {
      this.info = camel(end.promoted);
    }
    return {
      results,
      winner: results.find(({ index }) => index === end.winner),
      sandboxes: new Sandboxes(end.kept.map((info) => new Sandbox(this.client, camel(info)))),
    };
  }

  /**
   * Returns the files of the sandbox that differ from those of another snapshot or sandbox of its family,
   * and the size of the memory that may differ. By default the other side is the snapshot that the sandbox
   * runs from. Apply patches with git apply. Other programs may let a patch change .git/hooks, and then a
   * sandbox can run programs on this host.
   */
  async diff(since?: string | Snapshot | Sandbox, options: DiffOptions = {}): Promise<Diff> {
    checkOptions(options, "path", "patch", "maxFiles", "maxPatchBytes", ...callOptions);
    const from = since instanceof Sandbox ? since.id : since === undefined ? undefined : tagOf(since, "since");
    const { path, patch, maxFiles, maxPatchBytes } = options;
    if (path !== undefined) checkPath("path", path);
    if (maxFiles !== undefined) checkInteger("maxFiles", maxFiles, 0, 20_000);
    if (maxPatchBytes !== undefined) checkInteger("maxPatchBytes", maxPatchBytes, 0, 4 << 20);
    const json = { from, to: this.id, path, patch, max_files: maxFiles, max_patch_bytes: maxPatchBytes };
    return camel((await this.client.wire.call("POST", "/v1/diff", { json, options, seconds: 900 })) as Schemas["Diff"]);
  }

  /**
   * Returns a tar archive of the files of the sandbox that differ from those of another snapshot or sandbox
   * of its family. By default the other side is the snapshot that the sandbox runs from. An empty file
   * .wh.NAME stands for a deleted file NAME. The sandbox determines the content, so unpack it with care. A
   * file that an archive cannot have as it is, such as a damaged one, is an error, unless partial is set.
   */
  async export(since?: string | Snapshot | Sandbox, options: ExportOptions = {}): Promise<ReadableStream<Uint8Array>> {
    checkOptions(options, "path", "partial", ...callOptions);
    const from = since instanceof Sandbox ? since.id : since === undefined ? undefined : tagOf(since, "since");
    const { path, partial } = options;
    if (path !== undefined) checkPath("path", path);
    const json = { from, to: this.id, path, partial };
    const { wire } = this.client;
    const answer = await wire.open("POST", "/v1/export", { json, options, seconds: 900 });
    return streamOf(wire.idle(answer, `the export of ${this.id}`, { signal: options.signal }));
  }

  /** Returns the held requests to servers, and the hold. */
  async effects(options?: CallOptions): Promise<Effects> {
    const path = this.#path("/effects");
    return camel((await this.client.wire.call("GET", path, { options })) as Schemas["Effects"]);
  }

  /** Ends the hold: waiting requests are sent. Returns the requests that were held until then. */
  async releaseEffects(options?: CallOptions): Promise<Effects> {
    const path = this.#path("/effects/release");
    return camel((await this.client.wire.call("POST", path, { json: {}, options })) as Schemas["Effects"]);
  }

  /** Pauses the sandbox. */
  pause(options?: CallOptions): Promise<SandboxInfo> {
    return this.#changed("POST", "/pause", {}, options);
  }

  /** Continues after a pause, or restores the sandbox after a suspension. */
  async resume(options: CallOptions & { unique?: UniqueMode } = {}): Promise<SandboxInfo> {
    checkOptions(options, "unique", ...callOptions);
    return this.#changed("POST", "/resume", { unique: options.unique }, options);
  }

  /**
   * Saves the sandbox to disk and frees its memory. With `encrypt` the saved state is encrypted, as it
   * always is if the sandbox runs from an encrypted snapshot.
   */
  suspend(options: CallOptions & { encrypt?: boolean | undefined } = {}): Promise<SandboxInfo> {
    checkOptions(options, "encrypt", ...callOptions);
    return this.#changed("POST", "/suspend", { encrypt: options.encrypt || undefined }, options, 600);
  }

  /** Runs code in a warm interpreter and returns its results, its output and its exception. */
  runCode(code: string, options?: RunCodeOptions): Promise<Execution> {
    return runCode(this.client.wire, this.#path(""), code, options);
  }

  /** E2B's name for id. */
  get sandboxId(): string {
    return this.id;
  }

  /** Reports whether the sandbox exists and is neither paused, suspended nor ended. */
  async isRunning(options?: CallOptions): Promise<boolean> {
    try {
      return (await this.getInfo(options)).state === "running";
    } catch (error) {
      if (error instanceof SandboxNotFoundError) {
        return false;
      }
      throw error;
    }
  }

  /** E2B's name for contexts.create. */
  createCodeContext(options?: CallOptions & { language?: string; cwd?: string }): Promise<CodeContext> {
    return this.contexts.create(options);
  }

  /** E2B's name for contexts.list. */
  listCodeContexts(options?: CallOptions): Promise<CodeContext[]> {
    return this.contexts.list(options);
  }

  /** E2B's name for contexts.restart. */
  restartCodeContext(context: CodeContext | string, options?: CallOptions): Promise<void> {
    return this.contexts.restart(context, options);
  }

  /** E2B's name for contexts.remove. */
  removeCodeContext(context: CodeContext | string, options?: CallOptions): Promise<boolean> {
    return this.contexts.remove(context, options);
  }

  /**
   * Returns a URL that gives its holder access to an HTTP server in the sandbox, for ttl seconds
   * (by default an hour).
   */
  async url(port: number, options: CallOptions & { ttl?: number } = {}): Promise<string> {
    checkInteger("port", port, 1, 65535);
    checkOptions(options, "ttl", ...callOptions);
    checkSeconds("ttl", options.ttl, 30 * 24 * 3600);
    const made = await this.client.wire.call("POST", this.#path(`/ports/${port}/url`), {
      json: { ttl_secs: options.ttl },
      options,
    });
    return (made as Schemas["PortURL"]).url;
  }

  /** Connects to a TCP server on the sandbox's loopback address. */
  async connectPort(port: number, options: CallOptions = {}): Promise<PortConnection> {
    checkInteger("port", port, 1, 65535);
    const answer = await this.client.wire.open("GET", this.#path(`/tcp/${port}`), { upgrade: true, options });
    return new PortConnection(answer.socket!);
  }

  /** Returns the last 64 KiB of the serial console. */
  async console(options?: CallOptions): Promise<string> {
    return this.#text("/console", {}, options);
  }

  /** Returns the last lines of the serial console. */
  async logs(options: LogOptions = {}): Promise<string> {
    checkLogs(options);
    return this.#text("/logs", { tail: options.tail, since: options.since }, options);
  }

  /**
   * The last lines of the serial console, and new lines until the sandbox ends; for `for await`.
   */
  async followLogs(options: LogOptions = {}): Promise<AsyncIterable<string>> {
    checkLogs(options);
    const { tail, since, signal } = options;
    const answer = await this.client.wire.open("GET", this.#path("/logs"), {
      query: { follow: true, tail, since },
      options,
    });
    const what = `logs of ${this.id}`;
    return linesOf(this.client.wire.idle(answer, what, { signal, seconds: 0 })); // a console may be silent for long
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill().then(() => undefined);
  }

  #path(call: string): string {
    return `/v1/sandboxes/${encodeURIComponent(this.id)}${call}`;
  }

  /** Sends a request whose answer describes the sandbox, and stores the description. */
  async #changed(
    method: string,
    call: string,
    json: unknown,
    options?: CallOptions,
    seconds = 120,
  ): Promise<SandboxInfo> {
    const info = await this.client.wire.call(method, this.#path(call), { json, options, seconds });
    return (this.info = camel(info as Schemas["SandboxInfo"]));
  }

  async #text(
    call: string,
    query: Record<string, string | number | undefined>,
    options?: CallOptions,
  ): Promise<string> {
    const answer = await this.client.wire.open("GET", this.#path(call), { query, options });
    const decoder = new TextDecoder();
    let text = "";
    for await (const part of this.client.wire.idle(answer, `console of ${this.id}`, { signal: options?.signal })) {
      text += decoder.decode(part, { stream: true });
    }
    return text + decoder.decode();
  }
}

/** A setting of a sandbox, which is always replaced as a whole. */
export class SandboxSetting<Current, Setting> {
  readonly #client: Client;
  readonly #path: string;

  /** @internal */
  constructor(client: Client, path: string) {
    this.#client = client;
    this.#path = path;
  }

  /** Returns the setting, and statistics of its use. */
  async get(options?: CallOptions): Promise<Current> {
    return camel(await this.#client.wire.call("GET", this.#path, { options })) as Current;
  }

  /** Replaces the setting. The new setting applies when this call returns. */
  async set(setting: Setting, options?: CallOptions): Promise<Current> {
    return camel(await this.#client.wire.call("PUT", this.#path, { json: snake(setting), options })) as Current;
  }
}

function checkLogs(options: LogOptions): void {
  checkOptions(options, "tail", "since", ...callOptions);
  if (options.tail !== undefined) {
    checkInteger("tail", options.tail, 0, 10 ** 9);
  }
  if (options.since !== undefined) {
    checkString("since", options.since);
  }
}

/** The lines of a console. The last line may be incomplete. */
async function* linesOf(body: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const part of body) {
    const found = (rest + decoder.decode(part, { stream: true })).split("\n");
    rest = found.pop()!;
    yield* found;
  }
  if (rest !== "") {
    yield rest;
  }
}
