import { fromBase64 } from "./bytes.ts";
import { camel } from "./case.ts";
import { checkFunction, checkInteger, checkOptions, checkStrings, checkWord } from "./check.ts";
import { argsOf, checkProcess, type Command, type ProcessOptions } from "./commands.ts";
import { InvalidArgumentError, StreamBrokenError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { errorOf } from "./problem.ts";
import type { CommandResult } from "./process.ts";
import type { Sandboxes } from "./sandboxes.ts";
import { finish, lines } from "./stream.ts";
import { holdOf, type HoldEffects } from "./volumes.ts";
import { callOptions, type Wire } from "./wire.ts";

type Schemas = components["schemas"];

/** Options of sandbox.tryAll. */
export interface TryOptions extends ProcessOptions {
  /** Number of children that run the command, up to 64. Default: the commands are a list, one for each child. */
  n?: number | undefined;
  /**
   * A command that runs in each child after the child's own command. The last line of its stdout is the score, a
   * number.
   */
  judge?: Command | undefined;
  /**
   * The children that stay: "first" is the first child whose command exits with 0, which stops the other
   * commands; "best" is the child with the highest score. Default: "best" with a judge, otherwise "first"
   * with promote, otherwise "none".
   */
  keep?: "all" | "first" | "best" | "none" | undefined;
  /** Promote the winner into the sandbox. No child stays then. */
  promote?: boolean | undefined;
  /** The mode of the branches. */
  mode?: "live" | "diff" | "full" | undefined;
  /** Seconds for each command and judge, up to 86400; default 600. */
  timeout?: number | undefined;
  /** Labels of the children. */
  labels?: Record<string, string> | undefined;
  /** Holds back requests of the children; see ForkOptions. */
  holdEffects?: HoldEffects | undefined;
  /** Receives each result as it arrives. */
  onResult?: ((result: ChildResult) => void | Promise<void>) | undefined;
}

/** What a child of a try has done. */
export interface ChildResult {
  /** The number of the child, from 0. */
  readonly index: number;
  readonly sandboxId: string;
  /** How the command ended, with the first 256 KiB of each output; undefined if that is unknown. */
  readonly command: CommandResult | undefined;
  /** The command exited with 0. */
  readonly ok: boolean;
  /** The command was stopped, because another child had succeeded first. */
  readonly stopped: boolean;
  /** Why it is unknown how the command ended. */
  readonly error: string | undefined;
  /** The run time of the command, in milliseconds. */
  readonly ms: number;
  /** The memory that only this child uses, after the command. */
  readonly privateKib: number | undefined;
  /** The guest memory that the child has written since the branch. */
  readonly memoryWrittenKib: number | undefined;
  /** The disk that the child has written since the branch. */
  readonly diskWrittenKib: number | undefined;
  /** The score of the judge. */
  readonly score: number | undefined;
  /** Why the judge gave no score. */
  readonly judgeError: string | undefined;
}

/** The results of sandbox.tryAll. */
export interface Tries {
  /** The results of the children, in the order of the commands. */
  readonly results: readonly ChildResult[];
  /** The result of the first or the best child; undefined if there is none. */
  readonly winner: ChildResult | undefined;
  /** The children that stay. The caller uses or kills them. */
  readonly sandboxes: Sandboxes;
}

/** The last line of a try. */
export type TryEnd = Schemas["TryEnd"];

const most = 64; // children

/** Returns the request of a try. */
export function tryBody(commands: Command | readonly Command[], options: TryOptions): object {
  const names = ["n", "judge", "keep", "promote", "mode", "env", "cwd", "user", "timeout", "labels", "onResult", "holdEffects"];
  checkOptions(options, ...names, ...callOptions);
  checkWord("keep", options.keep, "all", "first", "best", "none");
  checkWord("mode", options.mode, "live", "diff", "full");
  checkProcess(options, 86400);
  checkStrings("labels", options.labels);
  checkFunction("onResult", options.onResult);
  const { n, judge, keep, promote, mode, env, cwd, user, timeout, labels } = options;
  const rest = { keep, promote, mode, env, cwd, user, timeout_secs: timeout, labels, hold_effects: holdOf(options.holdEffects) };
  const more = { ...rest, judge: judge === undefined ? undefined : argsFor("judge", judge) };
  if (n !== undefined) {
    checkInteger("n", n, 1, most);
    return { ...more, n, args: argsFor("commands", commands as Command) };
  }
  if (!Array.isArray(commands) || commands.length === 0 || commands.length > most) {
    throw new InvalidArgumentError("commands", `want a list of 1 to ${most} commands; or one command, and n`);
  }
  return { ...more, each: (commands as Command[]).map((command) => argsFor("commands", command)) };
}

/** The arguments of a command. Errors name the parameter. */
function argsFor(parameter: string, command: Command): readonly string[] {
  try {
    return argsOf(command);
  } catch (error) {
    throw error instanceof InvalidArgumentError
      ? new InvalidArgumentError(parameter, error.message.replace(/^cmd: /, ""))
      : error;
  }
}

/**
 * Sends a try, and returns its results and its last line. If the call is aborted before it returns,
 * no child stays.
 */
export async function tryAll(
  wire: Wire,
  sandbox: string,
  body: object,
  options: TryOptions,
): Promise<{ results: ChildResult[]; end: TryEnd }> {
  const answer = await wire.open("POST", `${sandbox}/try`, {
    json: body,
    headers: { accept: "application/x-ndjson" },
    options,
    seconds: 600, // the daemon sends nothing while it branches and forks
  });
  const events = lines(wire.idle(answer, "try", { signal: options.signal }), "try");
  const results: ChildResult[] = [];
  try {
    for (let next = await events.next(); !next.done; next = await events.next()) {
      const event = JSON.parse(next.value) as Schemas["TryEvent"];
      if (event.error !== undefined) {
        throw errorOf(event);
      }
      if (event.end !== undefined) {
        finish(events);
        return { results: results.filter(Boolean), end: event.end };
      }
      if (event.result !== undefined) {
        const result = resultOf(event.result);
        results[result.index] = result;
        await options.onResult?.(result);
      }
    }
  } catch (failure) {
    await events.return(undefined); // the daemon then kills the children
    throw failure;
  }
  throw new StreamBrokenError("try: the stream broke off before its end");
}

function resultOf({ exec, ...message }: Schemas["TryResult"]): ChildResult {
  const fields = camel(message);
  const command = exec === undefined ? undefined : commandOf(exec);
  return {
    index: fields.index,
    sandboxId: fields.sandboxId,
    command,
    ok: command?.ok ?? false,
    stopped: fields.stopped ?? false,
    error: fields.error,
    ms: fields.ms,
    privateKib: fields.privateKib,
    memoryWrittenKib: fields.memoryWrittenKib,
    diskWrittenKib: fields.diskWrittenKib,
    score: fields.score,
    judgeError: fields.judgeError,
  };
}

function commandOf(exec: Schemas["ExecResult"]): CommandResult {
  const bytes = (text: string, base64: string | undefined): Uint8Array =>
    base64 === undefined ? new TextEncoder().encode(text) : fromBase64(base64);
  const stdoutBytes = bytes(exec.stdout, exec.stdout_base64);
  const stderrBytes = bytes(exec.stderr, exec.stderr_base64);
  const decoder = new TextDecoder();
  return {
    exitCode: exec.exit_code,
    outcome: exec.outcome,
    signal: exec.signal,
    timedOut: exec.timed_out,
    truncated: exec.stdout_truncated || exec.stderr_truncated,
    ok: exec.exit_code === 0 && exec.outcome === "exited",
    error: exec.error,
    stdout: decoder.decode(stdoutBytes),
    stderr: decoder.decode(stderrBytes),
    stdoutBytes,
    stderrBytes,
  };
}
