import { camel, snake, type Camel } from "./case.ts";
import { checkEnv, checkOptions, checkSeconds, checkStrings } from "./check.ts";
import { tagOf, type Client, type Limits, type NetworkPolicy } from "./client.ts";
import { ForkdError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { Sandbox } from "./sandbox.ts";
import type { Snapshot } from "./snapshots.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** Information about a workspace. */
export type WorkspaceInfo = Camel<Schemas["WorkspaceInfo"]>;

/** Options of a new workspace. */
export interface WorkspaceOptions extends CallOptions {
  labels?: Record<string, string> | undefined;
  env?: Record<string, string> | undefined;
  limits?: Limits | undefined;
  network?: NetworkPolicy | undefined;
  /**
   * Seconds without a request after which the sandbox is suspended until the next request; default:
   * never.
   */
  idleTimeout?: number | undefined;
}

/** A sandbox with a name, which survives suspensions. */
export class Workspace {
  readonly name: string;
  /** The latest information about the workspace. */
  info: WorkspaceInfo;
  readonly #client: Client;

  /** @internal */
  constructor(client: Client, info: WorkspaceInfo) {
    this.#client = client;
    this.name = info.name;
    this.info = info;
  }

  /** Returns the workspace's sandbox, which must be running. */
  async sandbox(options?: CallOptions): Promise<Sandbox> {
    await this.getInfo(options);
    if (this.info.liveSandboxId === undefined) {
      throw new ForkdError(`workspace ${this.name} is ${this.info.status}: resume it first`, { code: "sandbox_state" });
    }
    return Sandbox.connect(this.info.liveSandboxId, { client: this.#client, ...options });
  }

  async getInfo(options?: CallOptions): Promise<WorkspaceInfo> {
    return (this.info = (await this.#client.workspaces.get(this.name, options)).info);
  }

  /** Saves the workspace's sandbox to disk and frees its memory. */
  async suspend(options?: CallOptions): Promise<WorkspaceInfo> {
    return (this.info = (await this.#client.workspaces.suspend(this.name, options)).info);
  }

  /** Restores the workspace's sandbox. */
  async resume(options?: CallOptions): Promise<WorkspaceInfo> {
    return (this.info = (await this.#client.workspaces.resume(this.name, options)).info);
  }

  /** Removes the workspace and its sandbox; false if it no longer existed. */
  delete(options?: CallOptions): Promise<boolean> {
    return this.#client.workspaces.delete(this.name, options);
  }
}

/** The workspaces of a daemon. */
export class Workspaces {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /** Starts a sandbox from a snapshot, with a name. */
  async create(name: string, snapshot: string | Snapshot, options: WorkspaceOptions = {}): Promise<Workspace> {
    checkOptions(options, "labels", "env", "limits", "network", "idleTimeout", ...callOptions);
    const { signal, requestTimeout, idleTimeout, ...rest } = options;
    checkStrings("labels", rest.labels);
    checkEnv(rest.env);
    checkSeconds("idleTimeout", idleTimeout);
    const json = {
      name: tagOf(name, "name"),
      snapshot_tag: tagOf(snapshot),
      idle_timeout_secs: idleTimeout,
      ...(snake(rest) as object),
    };
    return this.#workspace(
      await this.#client.wire.call("POST", "/v1/workspaces", {
        json,
        once: true,
        options: { signal, requestTimeout },
        seconds: 120,
      }),
    );
  }

  /** Lists all workspaces by name. */
  async list(options?: CallOptions): Promise<Workspace[]> {
    const list = (await this.#client.wire.call("GET", "/v1/workspaces", { options })) as unknown[];
    return list.map((info) => this.#workspace(info));
  }

  async get(name: string, options?: CallOptions): Promise<Workspace> {
    return this.#workspace(await this.#client.wire.call("GET", pathOf(name), { options }));
  }

  /** Saves the sandbox of a workspace to disk and frees its memory. */
  async suspend(name: string, options?: CallOptions): Promise<Workspace> {
    return this.#workspace(
      await this.#client.wire.call("POST", `${pathOf(name)}/suspend`, { json: {}, options, seconds: 600 }),
    );
  }

  /** Restores the sandbox of a workspace. */
  async resume(name: string, options?: CallOptions): Promise<Workspace> {
    return this.#workspace(
      await this.#client.wire.call("POST", `${pathOf(name)}/resume`, { json: {}, options, seconds: 120 }),
    );
  }

  /** Removes a workspace and its sandbox; false if it no longer existed. */
  delete(name: string, options?: CallOptions): Promise<boolean> {
    return this.#client.wire.gone(pathOf(name), "workspace_not_found", { options, seconds: 120 });
  }

  #workspace(info: unknown): Workspace {
    return new Workspace(this.#client, camel(info as Schemas["WorkspaceInfo"]));
  }
}

function pathOf(name: string): string {
  return `/v1/workspaces/${tagOf(name, "name")}`;
}
