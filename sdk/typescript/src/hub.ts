/** Snapshots that move between the daemon and registries. */
import { registryAuthOf, type RegistryAuth } from "./build.ts";
import { camel, type Camel } from "./case.ts";
import { checkFunction, checkOptions, checkString, checkWord } from "./check.ts";
import { tagOf, type Client } from "./client.ts";
import { InvalidArgumentError, StreamBrokenError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { errorOf } from "./problem.ts";
import { finish, lines } from "./stream.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** A file of a snapshot that moves, and what has happened to it. */
export type HubFile = Camel<Schemas["HubFile"]>;
/** The result of a pull or a push. */
export type HubResult = Camel<Schemas["HubResult"]>;

interface MoveOptions extends CallOptions {
  /** Credentials for registries, by host such as "ghcr.io". The daemon keeps them for this request only. */
  registryAuth?: Record<string, RegistryAuth> | undefined;
  /** Called with each change of a file. If it returns a promise, the transfer waits for it. */
  onProgress?: ((file: HubFile) => unknown) | undefined;
}

/** Options of a pull. */
export interface PullOptions extends MoveOptions {
  /** Tag of the new snapshot; default: that of the pushed snapshot. */
  tag?: string | undefined;
  /** true: return when the snapshot can be forked, before all of it has arrived. */
  lazy?: boolean | undefined;
  /** true: return the snapshot that an earlier pull has made from the same artifact. */
  reuse?: boolean | undefined;
  /** What happens without a trusted signature; default: the daemon's policy. */
  trust?: "require" | "warn" | "off" | undefined;
  /** Up to four repositories with the same files. */
  mirrors?: readonly string[] | undefined;
}

/** Options of a push. */
export interface PushOptions extends MoveOptions {
  /** true: the daemon runs the snapshot twice, and adds a list of what its first forks need. */
  recordHot?: boolean | undefined;
}

const moveOptions = ["registryAuth", "onProgress", ...callOptions] as const;
const maxMirrors = 4;
// The time limit of a silent stream: the daemon sends nothing while it checks a reference and its signatures.
const silentSeconds = 600;

/** Pulls the snapshot at a reference. */
export async function pull(client: Client, reference: string, options: PullOptions): Promise<HubResult> {
  checkOptions(options, "tag", "lazy", "reuse", "trust", "mirrors", ...moveOptions);
  const { tag, lazy, reuse, trust, mirrors = [] } = options;
  checkString("reference", reference);
  checkWord("trust", trust, "require", "warn", "off");
  if (!Array.isArray(mirrors) || mirrors.length > maxMirrors) {
    throw new InvalidArgumentError("mirrors", `want a list of at most ${maxMirrors} repositories`);
  }
  mirrors.forEach((mirror) => checkString("mirrors", mirror));
  const json = {
    reference,
    tag: tag === undefined ? undefined : tagOf(tag, "tag"),
    lazy: lazy || undefined,
    reuse: reuse || undefined,
    trust,
    mirrors: mirrors.length > 0 ? mirrors : undefined,
    registry_auth: registryAuthOf(options.registryAuth),
  };
  return move(client, "/v1/pulls", json, options);
}

/** Writes a snapshot to a registry. */
export async function push(client: Client, tag: string, reference: string, options: PushOptions): Promise<HubResult> {
  checkOptions(options, "recordHot", ...moveOptions);
  checkString("reference", reference);
  const json = {
    reference,
    record_hot: options.recordHot || undefined,
    registry_auth: registryAuthOf(options.registryAuth),
  };
  return move(client, `/v1/snapshots/${tag}/push`, json, options);
}

/** Sends a request, and follows its progress until its result. */
async function move(client: Client, path: string, json: unknown, options: MoveOptions): Promise<HubResult> {
  const { onProgress, signal, requestTimeout } = options;
  checkFunction("onProgress", onProgress);
  const answer = await client.wire.open("POST", path, {
    json,
    headers: { accept: "application/x-ndjson" },
    options: { signal, requestTimeout },
    seconds: silentSeconds,
  });
  const events = lines(client.wire.idle(answer, path, { signal }), path);
  for await (const line of events) {
    const event = JSON.parse(line) as Schemas["HubEvent"];
    if (event.result !== undefined) {
      finish(events);
      return camel(event.result);
    }
    if (event.error !== undefined) {
      throw errorOf({ error: event.error, code: event.code, status: event.status });
    }
    if (event.file !== undefined) {
      await onProgress?.(camel(event.file));
    }
  }
  throw new StreamBrokenError(`${path}: the stream broke off before its result`);
}
