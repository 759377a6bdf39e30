/** Builds from Dockerfiles. */
import { toBase64 } from "./bytes.ts";
import { camel, type Camel } from "./case.ts";
import { checkFunction, checkInteger, checkOptions, checkPath, checkString, checkStrings } from "./check.ts";
import { tagOf, type Client } from "./client.ts";
import { BuildContext, maxDockerfile, packRequest, spooled } from "./context.ts";
import { BuildFailed, InvalidArgumentError, StreamBrokenError, type ForkdError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { builtin } from "./node.ts";
import { errorOf } from "./problem.ts";
import { Snapshot } from "./snapshots.ts";
import { finish, lines } from "./stream.ts";
import type { Answer } from "./transport.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** The progress of a build: first the plan, then steps and their output, by number. */
export type BuildProgress =
  | ({ type: "plan" } & Camel<Schemas["BuildPlan"]>)
  | ({ type: "step" } & Camel<Schemas["BuildStep"]>)
  | ({ type: "output" } & Camel<Schemas["BuildOutput"]>);

/** The result of a build. */
export type BuildResult = Camel<Schemas["BuildResult"]>;

/** Credentials for a registry: a username with a password, or one token. */
export interface RegistryAuth {
  username?: string | undefined;
  password?: string | undefined;
  identityToken?: string | undefined;
  registryToken?: string | undefined;
}

/** Options of a build; docs/build.md lists the supported instructions. */
export interface BuildOptions extends CallOptions {
  /** Directory whose files the build may copy, except those that its .dockerignore excludes. */
  context?: string | undefined;
  /** Tag of the snapshot; default: the name of the directory. */
  tag?: string | undefined;
  /** Path of the Dockerfile, relative to context; default "Dockerfile". */
  dockerfile?: string | undefined;
  /** Text of a Dockerfile instead, which needs no context. */
  dockerfileText?: string | undefined;
  /** Stage to build; default: the last. */
  target?: string | undefined;
  /** Values of ARG instructions. */
  buildArgs?: Record<string, string> | undefined;
  /** Secrets by id, for commands with RUN --mount=type=secret. */
  secrets?: Record<string, string | Uint8Array> | undefined;
  /** Credentials for registries of images, by host such as "ghcr.io". The daemon keeps them for this build only. */
  registryAuth?: Record<string, RegistryAuth> | undefined;
  /** Run all steps again, even if their snapshots exist. */
  noCache?: boolean | undefined;
  /** false: an existing snapshot with the tag is an error. */
  replace?: boolean | undefined;
  /** The size of a VM that boots from an image. */
  vcpus?: number | undefined;
  memoryMib?: number | undefined;
  diskMib?: number | undefined;
  /** If it returns a promise, the build waits for it. */
  onProgress?: ((event: BuildProgress) => unknown) | undefined;
}

export const buildOptions = [
  "context",
  "tag",
  "dockerfile",
  "dockerfileText",
  "target",
  "buildArgs",
  "secrets",
  "registryAuth",
  "noCache",
  "replace",
  "vcpus",
  "memoryMib",
  "diskMib",
  "onProgress",
  ...callOptions,
] as const;

const maxSecrets = 64;
const maxSecret = 500 << 10; // bytes
const maxOutput = 64 << 10; // characters of a step's output that are kept for its error
const maxSteps = 64; // steps that write output at the same time
// The time limit of a silent stream: the daemon sends nothing while it asks registries for the plan.
const planSeconds = 600;

/** Builds a snapshot; see Client.build. The archive is written to a file before it is sent. */
export async function build(client: Client, options: BuildOptions): Promise<Snapshot> {
  checkOptions(options, ...buildOptions);
  const { context, dockerfile, dockerfileText, target, buildArgs, noCache, replace = true, onProgress } = options;
  const { vcpus, memoryMib, diskMib, signal, requestTimeout } = options;
  checkBuild(options);
  const tag = options.tag ?? nameOf(context);
  tagOf(tag, "tag");
  const files = context === undefined ? undefined : await BuildContext.open(context, dockerfile, dockerfileText);
  const text = files?.text ?? dockerfileText!;
  if (text.trim() === "") {
    throw new InvalidArgumentError(dockerfileText === undefined ? "dockerfile" : "dockerfileText", "it is empty");
  }
  const request = {
    tag,
    dockerfile: text,
    name: files?.name,
    replace: replace || undefined,
    target,
    args: buildArgs,
    no_cache: noCache || undefined,
    secrets: secretsOf(options.secrets),
    registry_auth: registryAuthOf(options.registryAuth),
    vcpus,
    memory_mib: memoryMib,
    disk_mib: diskMib,
  };
  const send = async (body: AsyncIterable<Uint8Array>): Promise<BuildResult> => {
    const answer = await client.wire.open("POST", "/v1/builds", {
      body,
      headers: { "content-type": "application/x-tar", accept: "application/x-ndjson" },
      options: { signal, requestTimeout },
      seconds: planSeconds,
    });
    return follow(client, answer, onProgress, signal);
  };
  const made = await (files === undefined ? send(packRequest(request)) : spooled(files.pack(request), send));
  const snapshot = new Snapshot(client, await client.snapshots.getInfo(made.tag, { signal }));
  snapshot.built = made;
  return snapshot;
}

function checkBuild(options: BuildOptions): void {
  const { context, dockerfile, dockerfileText, target, buildArgs, onProgress } = options;
  if (context === undefined && dockerfileText === undefined) {
    throw new InvalidArgumentError("context", "want a directory with a Dockerfile, or dockerfileText");
  }
  if (dockerfile !== undefined && dockerfileText !== undefined) {
    throw new InvalidArgumentError("dockerfileText", "dockerfile or dockerfileText, not both");
  }
  for (const [name, value] of Object.entries({ context, dockerfile })) {
    if (value !== undefined) {
      checkPath(name, value);
    }
  }
  for (const [name, value] of Object.entries({ dockerfileText, target })) {
    if (value !== undefined) {
      checkString(name, value);
    }
  }
  if (dockerfileText !== undefined && new TextEncoder().encode(dockerfileText).length > maxDockerfile) {
    throw new InvalidArgumentError("dockerfileText", `it has more than ${maxDockerfile} bytes`);
  }
  checkStrings("buildArgs", buildArgs);
  checkFunction("onProgress", onProgress);
  for (const [name, least, most] of [
    ["vcpus", 1, 4096],
    ["memoryMib", 64, 1 << 30],
    ["diskMib", 1, 1 << 20],
  ] as const) {
    if (options[name] !== undefined) {
      checkInteger(name, options[name], least, most);
    }
  }
}

/** The name of a directory, which is the default tag. */
function nameOf(directory: string | undefined): string {
  const path = builtin("node:path");
  const name = directory === undefined || path === undefined ? "" : path.basename(path.resolve(directory)).toLowerCase();
  if (!/^[a-z0-9_][a-z0-9._-]{0,127}$/.test(name)) {
    const why = directory === undefined ? "want a tag" : `the name of the directory is none: ${JSON.stringify(name)}`;
    throw new InvalidArgumentError("tag", why);
  }
  return name;
}

/** Secrets in the form of the request. */
function secretsOf(secrets: BuildOptions["secrets"]): Record<string, string> | undefined {
  if (secrets === undefined) {
    return undefined;
  }
  if (typeof secrets !== "object" || secrets === null || Object.keys(secrets).length > maxSecrets) {
    throw new InvalidArgumentError("secrets", `want an object with at most ${maxSecrets} ids`);
  }
  const found: [string, string][] = [];
  for (const [id, secret] of Object.entries(secrets)) {
    const data = typeof secret === "string" ? new TextEncoder().encode(secret) : secret;
    if (id === "" || !(data instanceof Uint8Array) || data.length > maxSecret) {
      const want = `want an id, and text or bytes of at most ${maxSecret} bytes`;
      throw new InvalidArgumentError("secrets", `${JSON.stringify(id)}: ${want}`);
    }
    found.push([id, toBase64(data)]);
  }
  return Object.fromEntries(found);
}

/** Credentials for registries as the request has them. */
export function registryAuthOf(auths: BuildOptions["registryAuth"]): Schemas["BuildRequest"]["registry_auth"] {
  if (auths === undefined) {
    return undefined;
  }
  const found: [string, Schemas["RegistryAuth"]][] = [];
  for (const [host, auth] of Object.entries(auths)) {
    const { username, password, identityToken, registryToken } = auth;
    const sent: Schemas["RegistryAuth"] = {};
    const fields = { username, password, identity_token: identityToken, registry_token: registryToken };
    for (const [name, text] of Object.entries(fields)) {
      if (text !== undefined && typeof text !== "string") {
        throw new InvalidArgumentError(`registryAuth[${JSON.stringify(host)}].${name}`, "want a string");
      }
      if (text !== undefined) {
        sent[name as keyof typeof sent] = text;
      }
    }
    found.push([host, sent]);
  }
  return Object.fromEntries(found);
}

/** Follows a build up to its result. */
async function follow(
  client: Client,
  answer: Answer,
  onProgress: BuildOptions["onProgress"],
  signal: AbortSignal | undefined,
): Promise<BuildResult> {
  const steps = new Steps();
  const events = lines(client.wire.idle(answer, "build", { signal }), "build");
  for await (const line of events) {
    const event = JSON.parse(line) as Schemas["BuildEvent"];
    if (event.result !== undefined) {
      finish(events);
      return camel(event.result);
    }
    if (event.error !== undefined) {
      throw steps.error(errorOf({ error: event.error, code: event.code, status: event.status }));
    }
    const told = toldOf(event);
    if (told !== undefined) {
      steps.add(told);
      await onProgress?.(told);
    }
  }
  throw new StreamBrokenError("build: the stream broke off before the result of the build");
}

function toldOf(event: Schemas["BuildEvent"]): BuildProgress | undefined {
  if (event.plan !== undefined) {
    return { type: "plan", ...camel(event.plan) };
  }
  if (event.step !== undefined) {
    return { type: "step", ...camel(event.step) };
  }
  return event.output === undefined ? undefined : { type: "output", ...camel(event.output) };
}

/** The progress of a build's steps. */
export class Steps {
  #names: readonly string[] = [];
  readonly #output = new Map<number, { lines: string[]; size: number }>(); // output of running steps
  #failed: { number: number; output: string } | undefined; // the step whose failure ended the others

  add(event: BuildProgress): void {
    if (event.type === "plan") {
      this.#names = event.steps;
    } else if (event.type === "output") {
      const ending = this.#output.get(event.number) ?? { lines: [], size: 0 };
      if (this.#output.size < maxSteps || this.#output.has(event.number)) {
        this.#output.set(event.number, ending);
      }
      ending.lines.push(event.line.slice(-maxOutput));
      ending.size += ending.lines.at(-1)!.length + 1;
      if (ending.size > 2 * maxOutput) {
        cut(ending);
      }
    } else if (event.state === "failed") {
      const ending = this.#output.get(event.number) ?? { lines: [], size: 0 };
      cut(ending);
      this.#failed ??= { number: event.number, output: ending.lines.join("\n") };
    } else if (event.state !== "started") {
      this.#output.delete(event.number);
    }
  }

  /** The error of a failed build, from the daemon's error. */
  error(why: ForkdError): ForkdError {
    if (this.#failed === undefined) {
      return why;
    }
    const { number, output } = this.#failed;
    return new BuildFailed(why, this.#names[number] ?? `step ${number}`, number, output);
  }
}

/** Drops the first lines of an output that is too long. */
function cut(ending: { lines: string[]; size: number }): void {
  let drop = 0;
  while (ending.size > maxOutput + 1) {
    ending.size -= ending.lines[drop++]!.length + 1;
  }
  ending.lines.splice(0, drop);
}
