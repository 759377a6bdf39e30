import { camel, type Camel } from "./case.ts";
import { checkInteger, checkOptions, checkStrings, checkWord } from "./check.ts";
import { labelsOf, tagOf, type Client, type ListOptions } from "./client.ts";
import { InvalidArgumentError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** Information about a volume. */
export type VolumeInfo = Camel<Schemas["VolumeInfo"]>;

/**
 * The volumes that a sandbox mounts, by path: {"/data": "data"} to write to the volume data, "data:ro" to
 * read it, or "data:copy" for a private copy. docs/volumes.md says which snapshots can mount them.
 */
export type VolumeMounts = Record<string, string>;

/**
 * Servers for which a sandbox's requests are held if they may change something there: a list of names, or
 * an object. See docs/network.md.
 */
export type HoldEffects = readonly string[] | Camel<Schemas["Hold"]>;

/** The held requests of a sandbox. */
export type Effects = Camel<Schemas["Effects"]>;

/** Options of a new volume. */
export interface VolumeOptions extends CallOptions {
  /** Size in MiB, from 16 to 1048576; default 1024. */
  sizeMib?: number | undefined;
  labels?: Record<string, string> | undefined;
}

/** The volumes of a daemon: disks with names, which outlive the sandboxes that mount them. */
export class Volumes {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /** Makes an empty volume. */
  async create(name: string, options: VolumeOptions = {}): Promise<VolumeInfo> {
    checkOptions(options, "sizeMib", "labels", ...callOptions);
    const { sizeMib, labels } = options;
    if (sizeMib !== undefined) checkInteger("sizeMib", sizeMib, 16, 1 << 20);
    checkStrings("labels", labels);
    const json = { name: tagOf(name, "name"), size_mib: sizeMib, labels };
    const info = await this.#client.wire.call("POST", "/v1/volumes", { json, once: true, options });
    return camel(info as Schemas["VolumeInfo"]);
  }

  /** Lists volumes by name. */
  async list(options: ListOptions = {}): Promise<VolumeInfo[]> {
    checkOptions(options, "labels", ...callOptions);
    const query = { label: labelsOf(options.labels) };
    const list = (await this.#client.wire.call("GET", "/v1/volumes", { query, options })) as Schemas["VolumeInfo"][];
    return list.map((info) => camel(info));
  }

  async get(name: string, options?: CallOptions): Promise<VolumeInfo> {
    return camel((await this.#client.wire.call("GET", pathOf(name), { options })) as Schemas["VolumeInfo"]);
  }

  /** Makes a second volume, named by `to`, with the same data. No sandbox may be writing to the first. */
  async snapshot(
    name: string,
    to: string,
    options: CallOptions & { labels?: Record<string, string> | undefined } = {},
  ): Promise<VolumeInfo> {
    checkOptions(options, "labels", ...callOptions);
    checkStrings("labels", options.labels);
    const json = { name: tagOf(to, "to"), labels: options.labels };
    const path = `${pathOf(name)}/snapshot`;
    const info = await this.#client.wire.call("POST", path, { json, once: true, options, seconds: 600 });
    return camel(info as Schemas["VolumeInfo"]);
  }

  /**
   * Mounts a volume in a running sandbox, which needs a free volume slot. Without a mode, the sandbox writes
   * to the volume; with "ro" it reads it, and with "copy" it has a private copy.
   */
  async attach(
    name: string,
    sandboxId: string,
    path: string,
    options: CallOptions & { mode?: "ro" | "copy" | undefined } = {},
  ): Promise<void> {
    checkOptions(options, "mode", ...callOptions);
    const mode = options.mode === undefined ? "" : `:${options.mode}`;
    const json = mountsOf({ [path]: `${name}${mode}` })?.[0];
    const call = `/v1/sandboxes/${tagOf(sandboxId, "sandboxId")}/volumes`;
    await this.#client.wire.call("POST", call, { json, options, seconds: 120 });
  }

  /**
   * Unmounts a volume in a running sandbox. The volume keeps its data. If a program uses the volume,
   * it stays mounted.
   */
  async detach(name: string, sandboxId: string, options?: CallOptions): Promise<void> {
    const path = `/v1/sandboxes/${tagOf(sandboxId, "sandboxId")}/volumes/${tagOf(name, "name")}`;
    await this.#client.wire.call("DELETE", path, { options, seconds: 120 });
  }

  /** Removes a volume and its data; false if it no longer existed. */
  delete(name: string, options?: CallOptions): Promise<boolean> {
    return this.#client.wire.gone(pathOf(name), "volume_not_found", { options, seconds: 120 });
  }
}

function pathOf(name: string): string {
  return `/v1/volumes/${tagOf(name, "name")}`;
}

/** Returns the volumes of a request. */
export function mountsOf(volumes: VolumeMounts | undefined): Schemas["VolumeMount"][] | undefined {
  checkStrings("volumes", volumes);
  return volumes === undefined
    ? undefined
    : Object.entries(volumes).map(([path, text]) => {
        const [name = "", mode, ...more] = text.split(":");
        checkWord("volumes", more.length > 0 ? text : mode, "ro", "copy");
        return { name: tagOf(name, "volumes"), path, ...(mode !== undefined && { mode: mode as "ro" | "copy" }) };
      });
}

/** Returns the hold of a request. */
export function holdOf(hold: HoldEffects | undefined): Schemas["Hold"] | undefined {
  if (hold === undefined) {
    return undefined;
  }
  const given = (Array.isArray(hold) ? { hosts: hold } : hold) as Camel<Schemas["Hold"]>;
  checkOptions(given, "hosts", "answer");
  const { hosts, answer } = given;
  checkWord("holdEffects.answer", answer, "refuse", "record", "wait");
  if (!Array.isArray(hosts) || !hosts.every((host) => typeof host === "string" && host !== "")) {
    throw new InvalidArgumentError("holdEffects", "want a list of names of servers, or an object with hosts");
  }
  return { hosts, ...(answer !== undefined && { answer }) };
}
