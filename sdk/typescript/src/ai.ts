/**
 * Sandbox sessions for the AI SDK (the package `ai`, version 7), with a branch of the machine before
 * every step.
 *
 * @packageDocumentation
 */
import { NotFoundInSandboxError } from "./generated/errors.ts";
import { checkEnv, checkOptions, checkPath, checkSeconds } from "./check.ts";
import type { Sandbox } from "./sandbox.ts";
import type { Snapshot } from "./snapshots.ts";

/** How a session runs commands. */
export interface SessionOptions {
  /** Base of relative paths, and directory of commands. Default: the home of the user. */
  cwd?: string | undefined;
  user?: string | undefined;
  /** Environment of commands. */
  env?: Record<string, string> | undefined;
  /** Seconds that a command of run may take, up to 3600; default 1800. */
  timeout?: number | undefined;
  /** Whether prepareStep makes a branch; default true. */
  branches?: boolean | undefined;
}

/** A path of a session, and a signal that ends the request. */
export interface PathOptions {
  path: string;
  abortSignal?: AbortSignal | undefined;
}

/** What writeFile, writeBinaryFile and writeTextFile take. */
export interface WriteOptions<Content> extends PathOptions {
  content: Content;
}

/** What run and spawn take. */
export interface CommandOptions {
  command: string;
  workingDirectory?: string | undefined;
  env?: Record<string, string> | undefined;
  abortSignal?: AbortSignal | undefined;
}

/** A process of a session. It blocks while more than 1 MiB of its output has not been read. */
export interface SessionProcess {
  readonly pid: number;
  readonly stdout: ReadableStream<Uint8Array>;
  readonly stderr: ReadableStream<Uint8Array>;
  wait(): Promise<{ exitCode: number }>;
  kill(): Promise<void>;
}

/** A process whose input is open. */
export interface WritableSessionProcess extends SessionProcess {
  readonly stdin: WritableStream<Uint8Array>;
}

const sessionOptions = ["cwd", "user", "env", "timeout", "branches"] as const;

/** Bytes of unread stdout, and of unread stderr, that are held for a process of spawn. */
const heldOutput = 1 << 20;

/** Bytes of each output of a command of run; the rest is dropped. */
const maxOutput = 16 << 20;

/**
 * A sandbox as the AI SDK uses it: pass it as experimental_sandbox. With prepareStep, the session
 * saves the machine before every step. rollback and fork use these branches.
 */
export class ForkdSession {
  readonly sandbox: Sandbox;
  readonly description: string;
  /** The machine before each step. */
  readonly steps: Snapshot[] = [];
  readonly #base: string;
  readonly #options: SessionOptions;
  readonly #saved: Snapshot[] = []; // all branches made, in their order

  private constructor(sandbox: Sandbox, base: string, options: SessionOptions) {
    this.sandbox = sandbox;
    this.#base = base;
    this.#options = options;
    this.description =
      `Linux sandbox. Commands run in bash or sh${options.user === undefined ? "" : ` as ${options.user}`}, ` +
      `in the directory ${base}. Relative paths are below it.`;
  }

  /** Returns a session for a sandbox. */
  static async create(sandbox: Sandbox, options: SessionOptions = {}): Promise<ForkdSession> {
    checkOptions(options, ...sessionOptions);
    checkEnv(options.env);
    checkSeconds("timeout", options.timeout, 3600);
    if (options.cwd !== undefined) {
      checkPath("cwd", options.cwd);
    }
    const { cwd, user, env } = options;
    const { stdout } = await sandbox.commands.run(["pwd"], { cwd, user, env, check: true });
    return new ForkdSession(sandbox, stdout.replace(/\n$/, ""), options);
  }

  /**
   * Saves the machine before a step. Use it as prepareStep of generateText, streamText or an agent.
   * It is bound to its session.
   */
  readonly prepareStep = async (): Promise<{ experimental_sandbox: ForkdSession }> => {
    if (this.#options.branches ?? true) {
      const [snapshot] = await this.sandbox.branch();
      this.#saved.push(snapshot);
      this.steps.push(snapshot);
    }
    return { experimental_sandbox: this };
  };

  /** Rolls the machine back to the moment before a step, and forgets later branches. Steps count from 0. */
  async rollback(step: number): Promise<void> {
    await this.sandbox.rollback(this.#step(step));
    this.steps.length = step + 1;
  }

  /** Returns n sessions that go on from the moment before a step, or from now. */
  async fork(n = 1, step?: number): Promise<ForkdSession[]> {
    const made = await (step === undefined ? this.sandbox.fork(n) : this.#step(step).fork(n));
    return [...made].map((sandbox) => new ForkdSession(sandbox, this.#base, this.#options));
  }

  /**
   * Kills the sandbox and deletes its branches. A branch that a fork needs stays, so end the forks
   * first.
   */
  async end(): Promise<void> {
    await this.sandbox.kill();
    for (const snapshot of this.#saved.splice(0).reverse()) {
      await snapshot.delete().catch(() => undefined); // a branch needs the branches before it
    }
    this.steps.length = 0;
  }

  /** Reads a file as a stream; null if it does not exist. */
  readonly readFile = ({ path, abortSignal }: PathOptions): Promise<ReadableStream<Uint8Array> | null> =>
    ifThere(this.sandbox.files.read(this.#at(path), { ...this.#who(abortSignal), format: "stream" }));

  /** Reads a file of at most 1 GiB; null if it does not exist. */
  readonly readBinaryFile = ({ path, abortSignal }: PathOptions): Promise<Uint8Array | null> =>
    ifThere(this.sandbox.files.readBytes(this.#at(path), this.#who(abortSignal)));

  /** Reads text or some of its lines, from 1; null if the file does not exist. */
  readonly readTextFile = async (
    options: PathOptions & {
      encoding?: string | undefined;
      startLine?: number | undefined;
      endLine?: number | undefined;
    },
  ): Promise<string | null> => {
    const { encoding = "utf-8", startLine = 1, endLine = Infinity } = options;
    const decoder = new TextDecoder(encoding); // fails before the request if the encoding is unknown
    const bytes = await this.readBinaryFile(options);
    if (bytes === null) {
      return null;
    }
    const text = decoder.decode(bytes);
    if (startLine <= 1 && endLine === Infinity) {
      return text;
    }
    const lines = text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
    return lines.slice(Math.max(startLine, 1) - 1, Math.max(endLine, 0)).join("");
  };

  /** Writes a file and makes its directories. */
  readonly writeFile = (options: WriteOptions<ReadableStream<Uint8Array>>): Promise<void> => this.#write(options);

  /** Writes a file and makes its directories. */
  readonly writeBinaryFile = (options: WriteOptions<Uint8Array>): Promise<void> => this.#write(options);

  /** Writes UTF-8 text and makes the file's directories. Other encodings are refused. */
  readonly writeTextFile = async (
    options: WriteOptions<string> & { encoding?: string | undefined },
  ): Promise<void> => {
    if (new TextDecoder(options.encoding ?? "utf-8").encoding !== "utf-8") {
      throw new TypeError(`encoding ${options.encoding}: only UTF-8 text can be written: use writeBinaryFile`);
    }
    await this.#write(options);
  };

  /** Describes a file; null if it does not exist. Links are followed. */
  readonly stat = async ({
    path,
    abortSignal,
  }: PathOptions): Promise<{ type: "file" | "directory" | "other"; size: number } | null> => {
    let info = await ifThere(this.sandbox.files.stat(this.#at(path), this.#who(abortSignal)));
    if (info?.symlinkTarget !== undefined) {
      info = await ifThere(this.sandbox.files.stat(info.symlinkTarget, this.#who(abortSignal)));
    }
    // A broken link counts as missing.
    return info === null || info.type === "symlink" ? null : { type: info.type, size: info.size };
  };

  /** Lists a directory; null if it does not exist. */
  readonly listDirectory = async ({
    path,
    abortSignal,
  }: PathOptions): Promise<{ name: string; type: "file" | "directory" | "symlink" | "other" }[] | null> => {
    const found = await this.stat({ path, abortSignal });
    if (found !== null && found.type !== "directory") {
      throw new TypeError(`${path}: not a directory`);
    }
    const list = await ifThere(this.sandbox.files.list(this.#at(path), this.#who(abortSignal)));
    return list && list.map(({ name, type, symlinkTarget }) => ({ name, type: symlinkTarget ? "symlink" : type }));
  };

  /** Deletes a file or a link; false if it does not exist. */
  readonly deleteFile = async ({ path, abortSignal }: PathOptions): Promise<boolean> => {
    const info = await ifThere(this.sandbox.files.stat(this.#at(path), this.#who(abortSignal)));
    if (info === null) {
      return false;
    }
    if (info.type === "directory" && info.symlinkTarget === undefined) {
      throw new TypeError(`${path}: a directory`);
    }
    await this.sandbox.files.remove(this.#at(path), this.#who(abortSignal));
    return true;
  };

  /** Runs a command. If it times out, the exit code is 124, and stderr has the reason. */
  readonly run = async (options: CommandOptions): Promise<{ exitCode: number; stdout: string; stderr: string }> => {
    const { exitCode, stdout, stderr, timedOut, error } = await this.sandbox.commands.run(argv(options.command), {
      ...this.#command(options),
      timeout: this.#options.timeout ?? 1800,
      maxOutput,
    });
    return { exitCode, stdout, stderr: timedOut ? `${stderr}${error}\n` : stderr };
  };

  /** Starts a process. abortSignal kills it, and wait then rejects with the reason. */
  readonly spawn = (async (
    options: CommandOptions & { stdin?: boolean | undefined },
  ): Promise<SessionProcess | WritableSessionProcess> => {
    const stdout = new Pipe();
    const stderr = new Pipe();
    const handle = await this.sandbox.commands.start(argv(options.command), {
      ...this.#command(options),
      stdin: options.stdin ?? false,
      text: false,
      maxOutput: 0,
      onStdout: stdout.add,
      onStderr: stderr.add,
    });
    const end = handle.wait().then(
      ({ exitCode }) => {
        stdout.close();
        stderr.close();
        return { exitCode };
      },
      (error: unknown) => {
        const reason: unknown = options.abortSignal?.aborted ? options.abortSignal.reason : error;
        stdout.fail(reason);
        stderr.fail(reason);
        throw reason;
      },
    );
    end.catch(() => undefined); // ignore a rejection that no code awaits
    const drop = (): void => {
      stdout.drop();
      stderr.drop();
    };
    options.abortSignal?.addEventListener("abort", drop, { once: true });
    const process: SessionProcess = {
      pid: handle.pid,
      stdout: stdout.stream,
      stderr: stderr.stream,
      wait: () => end,
      kill: async () => {
        drop();
        await handle.kill();
      },
    };
    if (options.stdin !== true) {
      return process;
    }
    const stdin = new WritableStream<Uint8Array>({
      write: (data) => handle.write(data),
      close: () => handle.closeStdin(),
      abort: () => handle.closeStdin(),
    });
    return { ...process, stdin };
  }) as {
    (options: CommandOptions & { stdin: true }): Promise<WritableSessionProcess>;
    (options: CommandOptions & { stdin?: false }): Promise<SessionProcess>;
    (options: CommandOptions & { stdin?: boolean }): Promise<SessionProcess | WritableSessionProcess>;
  };

  #step(step: number): Snapshot {
    const snapshot = this.steps[step];
    if (snapshot === undefined) {
      throw new RangeError(`step ${step}: there are ${this.steps.length} branches of steps`);
    }
    return snapshot;
  }

  #at(path: string): string {
    checkPath("path", path);
    return path.startsWith("/") ? path : `${this.#base === "/" ? "" : this.#base}/${path}`;
  }

  #who(signal: AbortSignal | undefined): { user: string | undefined; signal: AbortSignal | undefined } {
    return { user: this.#options.user, signal };
  }

  #command({ workingDirectory, env, abortSignal }: CommandOptions): {
    cwd: string;
    user: string | undefined;
    env: Record<string, string>;
    signal: AbortSignal | undefined;
  } {
    return {
      cwd: workingDirectory === undefined ? this.#base : this.#at(workingDirectory),
      env: { ...this.#options.env, ...env },
      ...this.#who(abortSignal),
    };
  }

  async #write({ path, content, abortSignal }: WriteOptions<string | Uint8Array | ReadableStream<Uint8Array>>) {
    await this.sandbox.files.write(this.#at(path), content, this.#who(abortSignal));
  }
}

/** Models write commands for bash. Small images have only sh. */
function argv(command: string): string[] {
  return ["/bin/sh", "-c", 'if command -v bash >/dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi', "sh", command];
}

/** Returns null if the error is that a file does not exist. */
async function ifThere<T>(answer: Promise<T>): Promise<T | null> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof NotFoundInSandboxError) {
      return null;
    }
    throw error;
  }
}

/** An output of a process. Its producer waits while the reader is more than heldOutput bytes behind. */
class Pipe {
  readonly stream: ReadableStream<Uint8Array>;
  #controller!: ReadableStreamDefaultController<Uint8Array>;
  #room: PromiseWithResolvers<void> | undefined;
  #done = false;
  #dropped = false;

  constructor() {
    this.stream = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        pull: () => this.#room?.resolve(),
        cancel: () => {
          this.#done = true;
          this.drop();
        },
      },
      { highWaterMark: heldOutput, size: (part) => part?.byteLength ?? 0 },
    );
  }

  readonly add = async (part: Uint8Array): Promise<void> => {
    if (this.#done || this.#dropped) {
      return;
    }
    this.#controller.enqueue(part);
    if ((this.#controller.desiredSize ?? 1) <= 0) {
      this.#room = Promise.withResolvers<void>();
      await this.#room.promise;
    }
  };

  close(): void {
    if (!this.#done) {
      this.#done = true;
      this.#controller.close();
    }
  }

  fail(reason: unknown): void {
    if (!this.#done) {
      this.#done = true;
      this.#controller.error(reason);
    }
  }

  /** Discards the remaining output, so that the process can end. */
  drop(): void {
    this.#dropped = true;
    this.#room?.resolve();
  }
}
