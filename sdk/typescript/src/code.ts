import { camel } from "./case.ts";
import { checkEnv, checkFunction, checkName, checkOptions, checkPath, checkSeconds, checkString } from "./check.ts";
import { InvalidArgumentError, StreamBrokenError } from "./error.ts";
import { errorOf } from "./problem.ts";
import type { OutputCallback } from "./process.ts";
import { finish, lines } from "./stream.ts";
import { callOptions, type CallOptions, type Wire } from "./wire.ts";
import type { components } from "./generated/api.ts";

type CodeEvent = components["schemas"]["CodeEvent"];

/** An interpreter with its own variables. The id of a default interpreter is its language. */
export interface CodeContext {
  readonly id: string;
  readonly language: string;
  /** Directory in which code runs. */
  readonly cwd: string;
}

/** An exception that code did not catch. */
export interface ExecutionError {
  readonly name: string;
  readonly value: string;
  readonly traceback: string;
}

/** A value that code has shown, in its available forms. Images and PDF are base64. */
export interface Result {
  /** true for the value of the last expression; other values were shown by display(). */
  readonly isMainResult: boolean;
  readonly text?: string;
  readonly html?: string;
  readonly markdown?: string;
  readonly svg?: string;
  readonly png?: string;
  readonly jpeg?: string;
  readonly pdf?: string;
  readonly latex?: string;
  readonly json?: unknown;
  readonly javascript?: string;
  /** Columns of a data frame. */
  readonly data?: Record<string, unknown>;
  /** The content of a figure: its axes and points. */
  readonly chart?: Record<string, unknown>;
  /** All forms, by media type. */
  readonly raw: Record<string, unknown>;
}

/** How code ended, with its output. */
export interface Execution {
  /** Text of the main result; undefined if the last statement has no value. */
  readonly text: string | undefined;
  readonly results: Result[];
  /** Output, in the pieces in which it arrived. */
  readonly logs: { readonly stdout: string[]; readonly stderr: string[] };
  /**
   * The exception of the code, or an error that says that its time ran out or its interpreter died;
   * undefined if the code ended by itself.
   */
  readonly error: ExecutionError | undefined;
  /** Number of runs in the interpreter so far, including this one. */
  readonly executionCount: number;
  readonly outcome: "finished" | "exception" | "timeout" | "died";
  /**
   * The variables are lost, because the interpreter died, or was killed because it did not stop.
   */
  readonly stateLost: boolean;
  /**
   * An output or the results had more than 64 MiB. The execution has the beginning of each output, and
   * the results for which there was room. A part of an output counts for at least 64 bytes, a result
   * for 1 KiB.
   */
  readonly truncated: boolean;
}

/** Options of runCode. */
export interface RunCodeOptions extends CallOptions {
  /** Default: python. Not together with context. */
  language?: string | undefined;
  /** Default: the default context of the language. */
  context?: CodeContext | string | undefined;
  onStdout?: OutputCallback | undefined;
  onStderr?: OutputCallback | undefined;
  onResult?: ((result: Result) => void | Promise<void>) | undefined;
  /** Seconds that the code may run, up to 3600; default 30. */
  timeout?: number | undefined;
  /** Environment variables, only for this call. */
  env?: Record<string, string> | undefined;
}

/** The fields of a Result by media type. */
const forms: Readonly<Record<string, keyof Result>> = {
  "text/plain": "text",
  "text/html": "html",
  "text/markdown": "markdown",
  "image/svg+xml": "svg",
  "image/png": "png",
  "image/jpeg": "jpeg",
  "application/pdf": "pdf",
  "text/latex": "latex",
  "application/json": "json",
  "application/javascript": "javascript",
  "e2b/data": "data",
  "e2b/chart": "chart",
};

/** Runs code. If the call is cancelled, the code is interrupted. */
export async function runCode(
  wire: Wire,
  sandbox: string,
  code: string,
  options: RunCodeOptions = {},
): Promise<Execution> {
  if (typeof code !== "string") {
    throw new InvalidArgumentError("code", `${String(code)}: want a string`);
  }
  checkOptions(options, "language", "context", "onStdout", "onStderr", "onResult", "timeout", "env", ...callOptions);
  const { language, context, onStdout, onStderr, onResult, timeout, env, signal } = options;
  if (language !== undefined && context !== undefined) {
    throw new InvalidArgumentError("language", "excludes context: a context has its language");
  }
  if (language !== undefined) {
    checkString("language", language);
  }
  checkSeconds("timeout", timeout, 3600);
  checkEnv(env);
  checkFunction("onStdout", onStdout);
  checkFunction("onStderr", onStderr);
  checkFunction("onResult", onResult);
  const contextId = context === undefined ? undefined : idOf(context);
  const answer = await wire.open("POST", `${sandbox}/code`, {
    json: { code, language, context_id: contextId, timeout_secs: timeout, env },
    options,
  });
  const events = lines(wire.idle(answer, "code", { signal }), "code");
  try {
    return await executed(events, options);
  } finally {
    finish(events);
  }
}

/** Bytes that an execution keeps of each output, and of the results; callbacks receive all. */
const maxKept = 64 << 20;

/** Bytes that a part of an output and a result count for at least, because each takes memory of its own. */
const leastPart = 64;
const leastResult = 1024;

const encoder = new TextEncoder();

/** The output and the results that an execution keeps. */
class Kept {
  readonly results: Result[] = [];
  readonly logs = { stdout: [] as string[], stderr: [] as string[] };
  truncated = false;
  readonly #room = { stdout: maxKept, stderr: maxKept, results: maxKept }; // bytes

  output(stream: "stdout" | "stderr", text: string): void {
    if (this.#fits(stream, Math.max(leastPart, encoder.encode(text).length))) {
      this.logs[stream].push(text);
    } else {
      this.#room[stream] = 0; // so that no later, shorter part is kept after a gap
    }
  }

  /** line is the message with the result. */
  result(result: Result, line: string): void {
    if (this.#fits("results", Math.max(leastResult, encoder.encode(line).length))) {
      this.results.push(result);
    }
  }

  #fits(name: "stdout" | "stderr" | "results", size: number): boolean {
    if (size > this.#room[name]) {
      this.truncated = true;
      return false;
    }
    this.#room[name] -= size;
    return true;
  }
}

/** Reads the events of code until its end. */
async function executed(events: AsyncGenerator<string>, options: RunCodeOptions): Promise<Execution> {
  const kept = new Kept();
  let error: ExecutionError | undefined;
  for (let next = await events.next(); !next.done; next = await events.next()) {
    const event = JSON.parse(next.value) as CodeEvent;
    try {
      if (event.stdout !== undefined) {
        kept.output("stdout", event.stdout);
        await options.onStdout?.(event.stdout);
      } else if (event.stderr !== undefined) {
        kept.output("stderr", event.stderr);
        await options.onStderr?.(event.stderr);
      } else if (event.result !== undefined) {
        const result = resultOf(event.result);
        kept.result(result, next.value);
        await options.onResult?.(result);
      }
    } catch (failure) {
      await events.return(undefined); // a callback has failed, so the code is interrupted
      throw failure;
    }
    if (event.exception !== undefined) {
      error = event.exception;
    } else if (event.error !== undefined) {
      throw errorOf(event);
    } else if (event.end !== undefined) {
      const { outcome, state_lost: stateLost, execution_count: executionCount } = event.end;
      const { results, logs, truncated } = kept;
      const text = results.find((result) => result.isMainResult)?.text;
      return {
        text,
        results,
        logs,
        error: error ?? errorOfOutcome(outcome, options.timeout ?? 30),
        executionCount,
        outcome,
        stateLost,
        truncated,
      };
    }
  }
  throw new StreamBrokenError("code: the stream broke off before the end of the code");
}

function errorOfOutcome(outcome: Execution["outcome"], seconds: number): ExecutionError | undefined {
  switch (outcome) {
    case "timeout":
      return { name: "TimeoutError", value: `the code ran for longer than ${seconds} s`, traceback: "" };
    case "died":
      return { name: "InterpreterDied", value: "the interpreter ended: its variables are lost", traceback: "" };
    default:
      return undefined;
  }
}

function resultOf({ main, data }: components["schemas"]["CodeResult"]): Result {
  const result: Record<string, unknown> = { isMainResult: main, raw: data };
  for (const [type, value] of Object.entries(data)) {
    const field = forms[type];
    if (field !== undefined) {
      result[field] = value;
    }
  }
  return result as unknown as Result;
}

function idOf(context: CodeContext | string): string {
  const id = typeof context === "object" && context !== null ? context.id : context;
  checkName("context", id);
  return id;
}

/** The interpreters of a sandbox. */
export class Contexts {
  readonly #wire: Wire;
  readonly #path: string; // path of the sandbox in the API

  /** @internal */
  constructor(wire: Wire, path: string) {
    this.#wire = wire;
    this.#path = path;
  }

  /** Starts an interpreter, by default of Python and in the user's home. */
  async create(options: CallOptions & { language?: string; cwd?: string } = {}): Promise<CodeContext> {
    checkOptions(options, "language", "cwd", ...callOptions);
    const { language, cwd } = options;
    if (language !== undefined) {
      checkString("language", language);
    }
    if (cwd !== undefined) {
      checkPath("cwd", cwd);
    }
    return camel(
      await this.#wire.call("POST", `${this.#path}/contexts`, { json: { language, cwd }, once: true, options }),
    ) as CodeContext;
  }

  /** Lists all interpreters. */
  async list(options?: CallOptions): Promise<CodeContext[]> {
    return camel(await this.#wire.call("GET", `${this.#path}/contexts`, { options })) as CodeContext[];
  }

  /**
   * Replaces an interpreter, by default that of Python. Running code ends, and the variables are
   * lost.
   */
  async restart(context?: CodeContext | string, options?: CallOptions): Promise<void> {
    await this.#wire.call("POST", `${this.#path}/eval/restart`, { json: which(context), options });
  }

  /**
   * Interrupts the code of an interpreter, like Ctrl-C. Returns false if no code runs. The code may
   * ignore the interrupt.
   */
  async interrupt(context?: CodeContext | string, options?: CallOptions): Promise<boolean> {
    const answer = await this.#wire.call("POST", `${this.#path}/eval/interrupt`, { json: which(context), options });
    return (answer as components["schemas"]["Interrupted"]).interrupted;
  }

  /** Ends an interpreter; false if it no longer existed. */
  remove(context: CodeContext | string, options?: CallOptions): Promise<boolean> {
    return this.#wire.gone(`${this.#path}/contexts/${encodeURIComponent(idOf(context))}`, "not_found_in_sandbox", {
      options,
    });
  }
}

function which(context: CodeContext | string | undefined): object {
  return context === undefined ? {} : { context_id: idOf(context) };
}
