import type { BuildOptions, BuildResult } from "./build.ts";
import { camel, snake, type Camel } from "./case.ts";
import { checkEnv, checkOptions, checkPath, checkSeconds, checkWord } from "./check.ts";
import { Client, tagOf, type ForkOptions, type Limits, type NetworkPolicy, type UniqueMode } from "./client.ts";
import { InvalidArgumentError, StreamBrokenError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { pull, push, type HubResult, type PullOptions, type PushOptions } from "./hub.ts";
import type { WithClient } from "./sandbox.ts";
import type { Sandboxes } from "./sandboxes.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** The information about a snapshot in a list. */
export type SnapshotInfo = Camel<Schemas["SnapshotInfo"]>;
/** All information about a snapshot. */
export type SnapshotDetail = Camel<Schemas["SnapshotInfoDetail"]>;
/** A new snapshot, and the durations of the steps that made it. */
export type Baked = Camel<Schemas["Baked"]>;

/** Options of a bake. Paths are on the daemon's host. */
export interface BakeOptions extends CallOptions {
  kernel: string;
  /** Raw root file system, which is never written. */
  rootfs: string;
  initrd?: string | undefined;
  memoryMib?: number | undefined;
  vcpus?: number | undefined;
  cpuTemplate?: "host" | "portable" | undefined;
  env?: Record<string, string> | undefined;
  /** Lines for /bin/sh that warm up the parent. */
  commands?: readonly string[] | undefined;
  /** Python code that warms up the parent's interpreter. */
  python?: string | undefined;
  network?: NetworkPolicy | undefined;
  limits?: Limits | undefined;
  unique?: UniqueMode | undefined;
  /** Seconds that the parent may take to get ready; default 300. */
  readyTimeout?: number | undefined;
  /** Seconds for each step of the warm-up; default 600. */
  warmupTimeout?: number | undefined;
}

const bakeOptions = [
  "kernel",
  "rootfs",
  "initrd",
  "memoryMib",
  "vcpus",
  "cpuTemplate",
  "env",
  "commands",
  "python",
  "network",
  "limits",
  "unique",
  "readyTimeout",
  "warmupTimeout",
  ...callOptions,
] as const;

/** A snapshot, from which sandboxes are forked. */
export class Snapshot {
  readonly tag: string;
  /** The information about the snapshot at the time when this object was made. */
  readonly info: SnapshotInfo;
  /** The result of the build that made the snapshot; undefined unless this program has built it. */
  built: BuildResult | undefined;
  /** The result of the pull that made the snapshot; undefined unless this program has pulled it. */
  pulled: HubResult | undefined;
  readonly #client: Client;

  /** @internal */
  constructor(client: Client, info: SnapshotInfo) {
    this.#client = client;
    this.tag = info.tag;
    this.info = info;
  }

  /** Builds a snapshot from a Dockerfile; see Client.build. */
  static build(options: BuildOptions & WithClient): Promise<Snapshot> {
    const { client = Client.default(), ...rest } = options ?? {};
    return client.build(rest);
  }

  /** Pulls a snapshot from a registry; see Snapshots.pull. */
  static pull(reference: string, options: PullOptions & WithClient = {}): Promise<Snapshot> {
    const { client = Client.default(), ...rest } = options;
    return client.snapshots.pull(reference, rest);
  }

  /** Writes the snapshot to a registry; see Snapshots.push. */
  push(reference: string, options: PushOptions = {}): Promise<HubResult> {
    return this.#client.snapshots.push(this, reference, options);
  }

  /** Forks n sandboxes from the snapshot. */
  fork(n = 1, options: ForkOptions = {}): Promise<Sandboxes> {
    return this.#client.fork(this, n, options);
  }

  /** Requests all current information about the snapshot. */
  getInfo(options?: CallOptions): Promise<SnapshotDetail> {
    return this.#client.snapshots.getInfo(this.tag, options);
  }

  /** Removes the snapshot; false if it no longer existed. */
  delete(options: DeleteOptions = {}): Promise<boolean> {
    return this.#client.snapshots.delete(this.tag, options);
  }
}

/** Options of a deletion. */
export interface DeleteOptions extends CallOptions {
  /** Also remove the snapshots that build on this one. */
  cascade?: boolean | undefined;
  /** Keep the snapshots that build on this one; they have their own links to the layers. */
  force?: boolean | undefined;
}

/** The snapshots of a daemon. */
export class Snapshots {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /** Lists all snapshots by tag. */
  async list(options?: CallOptions): Promise<Snapshot[]> {
    const list = (await this.#client.wire.call("GET", "/v1/snapshots", { options })) as Schemas["SnapshotInfo"][];
    return list.map((info) => new Snapshot(this.#client, camel(info)));
  }

  /** Returns a snapshot by its tag. */
  async get(tag: string, options?: CallOptions): Promise<Snapshot> {
    return new Snapshot(this.#client, await this.getInfo(tag, options));
  }

  /** Returns all information about a snapshot. */
  async getInfo(tag: string | Snapshot, options?: CallOptions): Promise<SnapshotDetail> {
    const path = `/v1/snapshots/${tagOf(tag, "tag")}/info`;
    return camel((await this.#client.wire.call("GET", path, { options })) as Schemas["SnapshotInfoDetail"]);
  }

  /** Removes a snapshot; false if it no longer existed. */
  async delete(tag: string | Snapshot, options: DeleteOptions = {}): Promise<boolean> {
    checkOptions(options, "cascade", "force", ...callOptions);
    const { cascade, force } = options;
    if (cascade && force) {
      throw new InvalidArgumentError("force", "excludes cascade");
    }
    return this.#client.wire.gone(`/v1/snapshots/${tagOf(tag, "tag")}`, "snapshot_not_found", {
      query: { cascade: cascade || undefined, force: force || undefined },
      options,
      seconds: 120,
    });
  }

  /**
   * Compares every file of a snapshot with its digest, and fails if one differs. Returns
   * the duration in milliseconds.
   */
  async verify(tag: string | Snapshot, options?: CallOptions): Promise<{ ok: boolean; verifyMs: number }> {
    const path = `/v1/snapshots/${tagOf(tag, "tag")}/verify`;
    return camel((await this.#client.wire.call("POST", path, { options, seconds: 600 })) as Schemas["Verified"]);
  }

  /** Makes a snapshot that has the same content and depends on no other snapshot. */
  async compact(tag: string | Snapshot, to: string, options?: CallOptions): Promise<Snapshot> {
    const path = `/v1/snapshots/${tagOf(tag, "tag")}/compact`;
    const json = { to: tagOf(to, "to") };
    const info = (await this.#client.wire.call("POST", path, {
      json,
      options,
      seconds: 600,
    })) as Schemas["SnapshotInfo"];
    return new Snapshot(this.#client, camel(info));
  }

  /** Pulls the snapshot at a reference in a registry, such as "ghcr.io/owner/python-numpy:1". */
  async pull(reference: string, options: PullOptions = {}): Promise<Snapshot> {
    const result = await pull(this.#client, reference, options);
    if (result.snapshot === undefined) {
      throw new StreamBrokenError("the result of the pull names no snapshot");
    }
    const snapshot = new Snapshot(this.#client, result.snapshot);
    snapshot.pulled = result;
    return snapshot;
  }

  /**
   * Writes a snapshot to a registry, as "ghcr.io/owner/python-numpy:1". The result has the reference
   * with the digest.
   */
  push(tag: string | Snapshot, reference: string, options: PushOptions = {}): Promise<HubResult> {
    return push(this.#client, tagOf(tag, "tag"), reference, options);
  }

  /**
   * Boots a parent, warms it up and makes a snapshot of it. The info of the snapshot has the
   * durations of these steps.
   */
  async bake(tag: string, options: BakeOptions): Promise<Snapshot & { info: Baked }> {
    checkOptions(options, ...bakeOptions);
    const { signal, requestTimeout, readyTimeout, warmupTimeout, memoryMib, commands, python, ...rest } = options;
    checkPath("kernel", rest.kernel);
    checkPath("rootfs", rest.rootfs);
    checkEnv(rest.env);
    checkWord("cpuTemplate", rest.cpuTemplate, "host", "portable");
    checkSeconds("readyTimeout", readyTimeout, 3600);
    checkSeconds("warmupTimeout", warmupTimeout, 3600);
    const json = {
      tag: tagOf(tag, "tag"),
      mem_size_mib: memoryMib,
      warmup: commands === undefined && python === undefined ? undefined : { commands, python },
      ready_timeout_secs: readyTimeout,
      warmup_timeout_secs: warmupTimeout,
      ...(snake(rest) as object),
    };
    const info = (await this.#client.wire.call("POST", "/v1/snapshots", {
      json,
      once: true,
      options: { signal, requestTimeout },
      seconds: 0,
    })) as Schemas["Baked"];
    return new Snapshot(this.#client, camel(info)) as Snapshot & { info: Baked };
  }
}
