/** Sandbox of the TypeScript package of forkd 0.5, with its behaviour. New code uses Sandbox. */
import {
  Controller,
  type BranchOptions05,
  type ControllerOptions,
  type ExecResult05,
  type SandboxInfo05,
  type SnapshotInfo05,
  type SpawnOptions05,
} from "./controller05.ts";

/** The result of `Sandbox.create({ snapshotTag })`. */
export class Sandbox05 {
  readonly id: string;
  readonly info: SandboxInfo05;
  readonly #controller: Controller;
  #killed = false;

  constructor(controller: Controller, info: SandboxInfo05) {
    this.#controller = controller;
    this.info = info;
    this.id = info.id;
  }

  static async create(options: SpawnOptions05 & ControllerOptions): Promise<Sandbox05> {
    const { baseUrl, token, timeoutMs, fetch, ...spawn } = options;
    const given = Object.entries({ baseUrl, token, timeoutMs, fetch }).filter(([, value]) => value !== undefined);
    const controller = new Controller(Object.fromEntries(given) as ControllerOptions);
    const [info] = await controller.spawnSandboxes({ ...spawn, n: 1 });
    if (info === undefined) {
      throw new Error("the daemon has made no sandbox");
    }
    return new Sandbox05(controller, info);
  }

  /** Makes a sandbox, calls f with it, and kills it. */
  static async with<T>(options: SpawnOptions05 & ControllerOptions, f: (sandbox: Sandbox05) => Promise<T>): Promise<T> {
    const sandbox = await Sandbox05.create(options);
    try {
      return await f(sandbox);
    } finally {
      await sandbox.kill();
    }
  }

  exec(args: string[], options: { timeoutSecs?: number } = {}): Promise<ExecResult05> {
    return this.#controller.execCommand(this.id, args, options);
  }

  /**
   * Returns the repr of an expression. If the code raises an exception, the call fails with that
   * exception.
   */
  async eval(code: string): Promise<unknown> {
    const { error, result } = await this.#controller.evalCode(this.id, code);
    if (error) {
      throw new Error(`eval error: ${error}`);
    }
    return result;
  }

  ping(): Promise<Record<string, unknown>> {
    return this.#controller.pingSandbox(this.id);
  }

  branch(options: BranchOptions05 = {}): Promise<SnapshotInfo05> {
    return this.#controller.branchSandbox(this.id, options);
  }

  /** Kills the sandbox. Calling it again is no error. */
  async kill(): Promise<void> {
    if (!this.#killed) {
      await this.#controller.killSandbox(this.id);
      this.#killed = true;
    }
  }
}
