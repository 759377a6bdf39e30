import { bodyOf, fromBase64, type Data } from "./bytes.ts";
import { knowsE2B } from "./e2b.ts";
import { CommandFailed, ForkdError, InputClosedError, StreamBrokenError } from "./error.ts";
import { NotFoundInSandboxError, SandboxFailedError } from "./generated/errors.ts";
import type { components } from "./generated/api.ts";
import { checkInteger, checkString } from "./check.ts";
import { errorOf } from "./problem.ts";
import { finish, lines } from "./stream.ts";
import type { Answer } from "./transport.ts";
import { joined, type CallOptions, type Wire } from "./wire.ts";

type ExecEvent = components["schemas"]["ExecEvent"];

/** How a command ended. */
export type Outcome = "exited" | "signaled" | "timeout" | "not_found" | "not_executable";

/** The result of a command, with its output. */
export interface CommandResult<Output = string> {
  /**
   * The command's exit code, or the code that a shell would report: 124 for timeout, 127 for
   * not_found, 126 for not_executable, 128 + n for signal n.
   */
  readonly exitCode: number;
  readonly outcome: Outcome;
  /** The signal that killed the command, such as SIGKILL. */
  readonly signal: string | undefined;
  readonly timedOut: boolean;
  /** An output was longer than maxOutput, and the rest was dropped. */
  readonly truncated: boolean;
  /** The exit code is 0. */
  readonly ok: boolean;
  /** The reason why the command did not exit by itself, in words; undefined if it did. */
  readonly error: string | undefined;
  /** UTF-8 text, with U+FFFD for invalid bytes; bytes if the command was run with text: false. */
  readonly stdout: Output;
  readonly stderr: Output;
  /** The output byte for byte. */
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;
}

/** Receives output as it arrives. If it returns a promise, the command's output waits for it. */
export type OutputCallback<Output = string> = (output: Output) => void | Promise<void>;

/** Options for the output of a process. */
export interface OutputOptions<Output = string> {
  /** false: output is bytes. Default: true, it is text. */
  text?: boolean;
  onStdout?: OutputCallback<Output> | undefined;
  onStderr?: OutputCallback<Output> | undefined;
  /** Bytes of each output that the result keeps, from its beginning; default 64 MiB. Callbacks get all. */
  maxOutput?: number | undefined;
}

export const outputOptions = ["text", "onStdout", "onStderr", "maxOutput"] as const;

/** One output of a process: the part that is kept, and the callback. */
class Output<T> {
  truncated = false;
  readonly #parts: Uint8Array[] = [];
  #room: number;
  readonly #tell: OutputCallback<T> | undefined;
  readonly #decoder: TextDecoder | undefined;

  constructor(options: OutputOptions<T>, tell: OutputCallback<T> | undefined) {
    this.#room = options.maxOutput ?? 64 << 20;
    this.#tell = tell;
    this.#decoder = options.text === false ? undefined : new TextDecoder();
  }

  async add(part: Uint8Array): Promise<void> {
    if (part.length > this.#room) {
      this.truncated = true;
    }
    const kept = part.subarray(0, this.#room);
    if (kept.length > 0) {
      this.#parts.push(kept);
      this.#room -= kept.length;
    }
    if (this.#tell !== undefined) {
      const output = this.#decoder === undefined ? part : this.#decoder.decode(part, { stream: true });
      if (output.length > 0) {
        await this.#tell(output as T);
      }
    }
  }

  /** Passes on an unfinished character at the end, and returns all output that was kept. */
  async end(): Promise<Uint8Array> {
    const rest = this.#decoder?.decode() ?? "";
    if (rest !== "" && this.#tell !== undefined) {
      await this.#tell(rest as T);
    }
    return joined(this.#parts);
  }
}

/** Where requests about a sandbox's processes are sent. */
export interface ProcessPlace {
  wire: Wire;
  sandbox: string; // path of the sandbox in the API
}

/** Returns the path of a process in the API. */
export function processPath(place: ProcessPlace, pid: number, call: string): string {
  checkInteger("pid", pid, 1, 2 ** 31 - 1);
  return `${place.sandbox}/processes/${pid}/${call}`;
}

/** Sends a signal to a process and its group; false if there is no such process. */
export async function signalProcess(
  place: ProcessPlace,
  pid: number,
  signal: string,
  options?: CallOptions,
): Promise<boolean> {
  checkString("signal", signal);
  try {
    await place.wire.call("POST", processPath(place, pid, "signal"), { json: { signal }, options });
    return true;
  } catch (error) {
    if (error instanceof NotFoundInSandboxError) {
      return false;
    }
    throw error;
  }
}

/** Sends input to a process, and ends the input if close is set. */
export async function feedProcess(
  place: ProcessPlace,
  pid: number,
  data: Data | undefined,
  close: boolean,
  options?: CallOptions,
): Promise<void> {
  await place.wire.call("POST", processPath(place, pid, "stdin"), {
    ...(data === undefined ? {} : { body: bodyOf("data", data) }),
    query: { close: close || undefined },
    headers: { "content-type": "application/octet-stream" },
    options,
  });
}

/**
 * A process that runs in the background. Its output is read all the time and passed to the
 * callbacks. With `await using`, a process that was started is killed at the end of the block.
 */
export class CommandHandle<T = string> {
  static {
    knowsE2B("CommandHandle", this.prototype);
  }

  readonly pid: number;
  readonly #place: ProcessPlace;
  readonly #answer: Answer;
  readonly #owned: boolean; // whether the process is killed when the connection ends
  readonly #end: Promise<CommandResult<T>>;
  #input: Promise<unknown> = Promise.resolve();
  #left = false;

  /** @internal */
  constructor(place: ProcessPlace, answer: Answer, pid: number, owned: boolean, end: Promise<CommandResult<T>>) {
    this.#place = place;
    this.#answer = answer;
    this.#owned = owned;
    this.pid = pid;
    this.#end = end;
    end.catch(() => undefined); // a rejection is ignored if no code waits
  }

  /**
   * Waits for the end of the process. With check, it fails with CommandFailed unless the exit code
   * is 0. The signal cancels only the waiting; the process continues.
   */
  async wait(options: { check?: boolean; signal?: AbortSignal } = {}): Promise<CommandResult<T>> {
    const { promise: aborted, reject } = Promise.withResolvers<never>();
    const abort = (): void => reject(options.signal!.reason);
    options.signal?.throwIfAborted();
    options.signal?.addEventListener("abort", abort);
    try {
      return checked(await Promise.race([this.#end, aborted]), options.check);
    } catch (error) {
      if (this.#left && error instanceof StreamBrokenError) {
        throw new ForkdError(`process ${this.pid} was left by this handle`, { code: "detached" });
      }
      throw error;
    } finally {
      options.signal?.removeEventListener("abort", abort);
    }
  }

  /**
   * Sends input. The promise resolves when the process has taken it. Inputs keep their order. It
   * fails with InputClosedError if the process takes no more input or has ended.
   */
  async write(data: Data, options?: CallOptions): Promise<void> {
    try {
      await this.#feed(data, false, options);
    } catch (error) {
      throw takesNone(error) ? new InputClosedError(this.pid, error) : error;
    }
  }

  /** E2B's name for write. */
  sendStdin(data: Data, options?: CallOptions): Promise<void> {
    return this.write(data, options);
  }

  /** Ends the input. A terminal receives Ctrl-D. */
  async closeStdin(options?: CallOptions): Promise<void> {
    try {
      await this.#feed(undefined, true, options);
    } catch (error) {
      if (!takesNone(error)) {
        throw error;
      }
    }
  }

  #feed(data: Data | undefined, close: boolean, options?: CallOptions): Promise<void> {
    const fed = this.#input.catch(() => undefined).then(() => feedProcess(this.#place, this.pid, data, close, options));
    this.#input = fed;
    return fed;
  }

  /** Sends a signal, such as "SIGINT", to the process and its group; false if it has ended. */
  signal(name: string, options?: CallOptions): Promise<boolean> {
    return signalProcess(this.#place, this.pid, name, options);
  }

  /** Kills the process and its group; false if it has ended. */
  kill(options?: CallOptions): Promise<boolean> {
    return this.signal("SIGKILL", options);
  }

  /** Sets the size of the process's terminal. */
  async resize(cols: number, rows: number, options?: CallOptions): Promise<void> {
    checkInteger("cols", cols, 1, 65535);
    checkInteger("rows", rows, 1, 65535);
    await this.#place.wire.call("POST", processPath(this.#place, this.pid, "resize"), {
      json: { cols, rows },
      options,
    });
  }

  /**
   * Lets a process continue without this handle. commands.connect follows it again. wait then
   * fails.
   */
  async detach(options?: CallOptions): Promise<void> {
    if (this.#owned) {
      await this.#place.wire.call("POST", processPath(this.#place, this.pid, "detach"), { options });
      this.#left = true;
    }
    await this[Symbol.asyncDispose]();
  }

  /** E2B's name for detach. */
  disconnect(options?: CallOptions): Promise<void> {
    return this.detach(options);
  }

  /**
   * Closes the connection. This kills a process that this program has started. A process to which
   * it has connected continues.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#left) {
      this.#left = true;
      this.#answer.cancel();
    }
    await this.#end.catch(() => undefined);
  }
}

/** Errors of the sandbox's kernel and agent about input that no process reads any more. */
const nobodyReads = /broken pipe|input\/output error|no open stdin|already closed/;

/**
 * Reports whether an error means that a process takes no input, because the process has ended or
 * closed its stdin.
 */
function takesNone(error: unknown): boolean {
  return (
    error instanceof NotFoundInSandboxError || (error instanceof SandboxFailedError && nobodyReads.test(error.message))
  );
}

/** Fails with CommandFailed if check is set and the command has failed. */
export function checked<Result extends CommandResult<unknown>>(result: Result, check: boolean | undefined): Result {
  if (check && !result.ok) {
    throw new CommandFailed(result);
  }
  return result;
}

/**
 * Follows a process until it has started, and returns its handle. If it did not start, it returns
 * the process's end.
 */
export async function follow<T>(
  place: ProcessPlace,
  answer: Answer,
  what: string,
  owned: boolean,
  options: OutputOptions<T> & { signal?: AbortSignal | undefined },
): Promise<CommandHandle<T> | CommandResult<T>> {
  const stdout = new Output(options, options.onStdout);
  const stderr = new Output(options, options.onStderr);
  const known: { signal?: AbortSignal | undefined; pid?: number } = { signal: options.signal };
  const events = eventsOf(place.wire.idle(answer, what, known), what);
  const first = await events.next();
  const pid = first.value?.started?.pid;
  const rest = async (): Promise<CommandResult<T>> => {
    for (let next = first; !next.done; next = await events.next()) {
      const event = next.value;
      if (event.end !== undefined) {
        finish(events);
        return resultOf(event.end, options.text, stdout, stderr);
      }
      if (event.detached) {
        await events.return(undefined);
        throw new ForkdError(`process ${pid} was detached, and goes on`, { code: "detached" });
      }
      if (event.error !== undefined) {
        await events.return(undefined);
        throw errorOf(event);
      }
      for (const [output, text, base64] of [
        [stdout, event.stdout, event.stdout_base64],
        [stderr, event.stderr, event.stderr_base64],
      ] as const) {
        if (text !== undefined || base64 !== undefined) {
          await output
            .add(text === undefined ? fromBase64(base64!) : new TextEncoder().encode(text))
            .catch(async (error: unknown) => {
              await events.return(undefined); // a callback has failed
              throw error;
            });
        }
      }
    }
    throw new StreamBrokenError(`${what}: the stream broke off before the end of the process`, { pid });
  };
  if (pid === undefined) {
    return rest();
  }
  known.pid = pid;
  return new CommandHandle(place, answer, pid, owned, rest());
}

async function* eventsOf(body: AsyncIterable<Uint8Array>, what: string): AsyncGenerator<ExecEvent, undefined> {
  for await (const line of lines(body, what)) {
    yield JSON.parse(line) as ExecEvent;
  }
}

async function resultOf<T>(
  end: components["schemas"]["ExecEnd"],
  text: boolean | undefined,
  out: Output<T>,
  err: Output<T>,
): Promise<CommandResult<T>> {
  const stdoutBytes = await out.end();
  const stderrBytes = await err.end();
  const shown = (bytes: Uint8Array): T => (text === false ? bytes : new TextDecoder().decode(bytes)) as T;
  return {
    exitCode: end.exit_code,
    outcome: end.outcome,
    signal: end.signal,
    timedOut: end.timed_out,
    truncated: out.truncated || err.truncated,
    ok: end.exit_code === 0 && end.outcome === "exited",
    error: end.error,
    stdout: shown(stdoutBytes),
    stderr: shown(stderrBytes),
    stdoutBytes,
    stderrBytes,
  };
}
