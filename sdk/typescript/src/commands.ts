import { bodyOf, toBase64, type Data } from "./bytes.ts";
import { camel, type Camel } from "./case.ts";
import { checkEnv, checkFunction, checkInteger, checkOptions, checkPath, checkSeconds, checkString } from "./check.ts";
import { knowsE2B } from "./e2b.ts";
import { CommandFailed, InvalidArgumentError } from "./error.ts";
import type { components } from "./generated/api.ts";
import {
  checked,
  CommandHandle,
  feedProcess,
  follow,
  outputOptions,
  processPath,
  signalProcess,
  type CommandResult,
  type OutputOptions,
  type ProcessPlace,
} from "./process.ts";
import { callOptions, type CallOptions } from "./wire.ts";

/** A running process that was started by this API. */
export type ProcessInfo = Camel<components["schemas"]["Process"]>;

/** A command: a list is its exact arguments; a string is a command line for `/bin/sh -c`. */
export type Command = string | readonly string[];

/** How a process is started. */
export interface ProcessOptions extends CallOptions {
  env?: Record<string, string> | undefined;
  /** Directory in which the process runs; default: the user's home. */
  cwd?: string | undefined;
  user?: string | undefined;
}

/** Options of commands.run. */
export interface RunOptions<Output = string> extends ProcessOptions, OutputOptions<Output> {
  /** The command's input; default: none. */
  stdin?: Data | undefined;
  /** Seconds that the command may run, up to 3600; default 30. */
  timeout?: number | undefined;
  /** Fail with CommandFailed unless the exit code is 0. */
  check?: boolean | undefined;
}

/** Options of commands.start. */
export interface StartOptions<Output = string> extends ProcessOptions, OutputOptions<Output> {
  /**
   * true: the input is open for write. Data: the command's input is exactly this data. Default: the
   * input is empty.
   */
  stdin?: boolean | Data | undefined;
  /** Seconds that the command may run; default: unlimited. */
  timeout?: number | undefined;
}

const processOptions = ["env", "cwd", "user", "timeout", ...callOptions] as const;

/** Bytes of input that are sent with the request. More input is sent while the command runs. */
const inlineInput = 1 << 20;

/** The longest time that a command may run, in seconds. */
export const longest = 30 * 24 * 3600;

/** Commands of a sandbox. */
export class Commands {
  static {
    knowsE2B("Commands", this.prototype);
  }

  readonly #place: ProcessPlace;

  /** @internal */
  constructor(place: ProcessPlace) {
    this.#place = place;
  }

  /**
   * Runs a command and waits for its end. An exit code other than 0 is no error, unless check is
   * set.
   */
  run(cmd: Command, options: RunOptions<Uint8Array> & { text: false }): Promise<CommandResult<Uint8Array>>;
  run(cmd: Command, options?: RunOptions & { text?: true }): Promise<CommandResult>;
  async run<T>(cmd: Command, options: RunOptions<T> = {}): Promise<CommandResult<T>> {
    const args = argsOf(cmd);
    checkOptions(options, ...processOptions, ...outputOptions, "stdin", "check");
    checkProcess(options, 3600);
    const input = options.stdin === undefined ? undefined : bodyOf("stdin", options.stdin);
    const inline = input instanceof Uint8Array && input.length <= inlineInput;
    const running = await this.#exec(
      args,
      options,
      inline ? { stdin: toBase64(input) } : { open_stdin: input !== undefined },
    );
    if (!(running instanceof CommandHandle)) {
      return checked(running, options.check);
    }
    if (input !== undefined && !inline) {
      // The command may end before it has read all input. Its result then says how it ended.
      feedProcess(this.#place, running.pid, input, true, { signal: options.signal, requestTimeout: 0 }).catch(
        () => undefined,
      );
    }
    return running.wait({ check: options.check ?? false });
  }

  /**
   * Starts a command and returns a handle. The command is killed when the connection ends, unless
   * it was detached.
   */
  start(cmd: Command, options: StartOptions<Uint8Array> & { text: false }): Promise<CommandHandle<Uint8Array>>;
  start(cmd: Command, options?: StartOptions & { text?: true }): Promise<CommandHandle>;
  async start<T>(cmd: Command, options: StartOptions<T> = {}): Promise<CommandHandle<T>> {
    const args = argsOf(cmd);
    checkOptions(options, ...processOptions, ...outputOptions, "stdin");
    checkProcess(options, longest);
    const { stdin = false } = options;
    const input = typeof stdin === "boolean" ? undefined : bodyOf("stdin", stdin);
    const handle = started(
      await this.#exec(args, options, { open_stdin: stdin !== false, timeout_secs: options.timeout ?? longest }),
    );
    if (input !== undefined) {
      handle
        .write(input)
        .then(() => handle.closeStdin())
        .catch(() => undefined); // the command's result says how it ended
    }
    return handle;
  }

  /** Follows a running process from now on. The process continues when the connection ends. */
  connect(
    pid: number,
    options: CallOptions & OutputOptions<Uint8Array> & { text: false },
  ): Promise<CommandHandle<Uint8Array>>;
  connect(pid: number, options?: CallOptions & OutputOptions & { text?: true }): Promise<CommandHandle>;
  async connect<T>(pid: number, options: CallOptions & OutputOptions<T> = {}): Promise<CommandHandle<T>> {
    checkOptions(options, ...callOptions, ...outputOptions);
    const path = processPath(this.#place, pid, "attach");
    const answer = await this.#place.wire.open("GET", path, { headers: { accept: ndjson }, options });
    return started(await follow(this.#place, answer, `attach to process ${pid}`, false, options));
  }

  /** Lists the running processes that this API has started, oldest first. */
  async list(options?: CallOptions): Promise<ProcessInfo[]> {
    const list = await this.#place.wire.call("GET", `${this.#place.sandbox}/processes`, { options });
    return camel(list as components["schemas"]["Process"][]);
  }

  /** Kills a process and its group; false if there is no such process. */
  kill(pid: number, options?: CallOptions): Promise<boolean> {
    return signalProcess(this.#place, pid, "SIGKILL", options);
  }

  /** Sends a signal, such as "SIGINT", to a process and its group; false if there is no such process. */
  signal(pid: number, name: string, options?: CallOptions): Promise<boolean> {
    return signalProcess(this.#place, pid, name, options);
  }

  /** Sends input to a process. */
  sendStdin(pid: number, data: Data, options?: CallOptions): Promise<void> {
    return feedProcess(this.#place, pid, data, false, options);
  }

  /** Ends the input of a process. */
  closeStdin(pid: number, options?: CallOptions): Promise<void> {
    return feedProcess(this.#place, pid, undefined, true, options);
  }

  async #exec<T>(
    args: readonly string[],
    options: ProcessOptions & OutputOptions<T> & { timeout?: number | undefined },
    more: object,
  ): Promise<CommandHandle<T> | CommandResult<T>> {
    return execute(this.#place, args, options, more);
  }
}

const ndjson = "application/x-ndjson";

/** Runs a command, and follows it. */
export async function execute<T>(
  place: ProcessPlace,
  args: readonly string[],
  options: ProcessOptions & OutputOptions<T> & { timeout?: number | undefined },
  more: object,
): Promise<CommandHandle<T> | CommandResult<T>> {
  const { env, cwd, user, timeout } = options;
  const answer = await place.wire.open("POST", `${place.sandbox}/exec`, {
    json: { args, env, cwd, user, timeout_secs: timeout, ...more },
    headers: { accept: ndjson },
    options,
  });
  return follow(place, answer, `exec of ${args[0]}`, true, options);
}

/**
 * Returns the handle of a process. If the process could not be started, it fails with the reason.
 */
export function started<T>(process: CommandHandle<T> | CommandResult<T>): CommandHandle<T> {
  if (process instanceof CommandHandle) {
    return process;
  }
  throw new CommandFailed(process);
}

export function checkProcess(
  options: ProcessOptions & OutputOptions<never> & { timeout?: number | undefined },
  longest: number,
): void {
  checkEnv(options.env);
  checkSeconds("timeout", options.timeout, longest);
  checkSeconds("requestTimeout", options.requestTimeout);
  checkFunction("onStdout", options.onStdout);
  checkFunction("onStderr", options.onStderr);
  if (options.cwd !== undefined) {
    checkPath("cwd", options.cwd);
  }
  if (options.user !== undefined) {
    checkString("user", options.user);
  }
  if (options.maxOutput !== undefined) {
    checkInteger("maxOutput", options.maxOutput, 0, Number.MAX_SAFE_INTEGER);
  }
}

/** Returns the arguments of a command. */
export function argsOf(cmd: Command): readonly string[] {
  if (typeof cmd === "string") {
    checkPath("cmd", cmd);
    return ["/bin/sh", "-c", cmd];
  }
  if (!Array.isArray(cmd) || cmd.length === 0 || cmd[0] === "") {
    throw new InvalidArgumentError(
      "cmd",
      `${JSON.stringify(cmd)}: want a string for /bin/sh, or a list with the program and its arguments`,
    );
  }
  for (const [i, arg] of (cmd as unknown[]).entries()) {
    if (typeof arg !== "string" || arg.includes("\0")) {
      throw new InvalidArgumentError("cmd", `argument ${i}, ${JSON.stringify(arg)}: want a string without NUL bytes`);
    }
  }
  return cmd as readonly string[];
}
