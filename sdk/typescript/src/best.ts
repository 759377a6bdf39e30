import { InvalidArgumentError } from "./error.ts";
import type { ForkOptions } from "./client.ts";
import type { CommandResult } from "./process.ts";
import type { Sandbox } from "./sandbox.ts";

/** One attempt: a command as for commands.run, or a function that is called with the child. */
export type Attempt<T = CommandResult> = string | readonly string[] | ((child: Sandbox) => T | Promise<T>);

/** Returns the score of an attempt; undefined, null or false reject the attempt. */
export type Judge<T = CommandResult> = (child: Sandbox, result: T) => Score | Promise<Score>;

export type Score = number | boolean | null | undefined;

/** The best of several attempts. */
export interface Best<T> {
  /** The child with the best attempt. It keeps running, for the caller to use or kill. */
  readonly sandbox: Sandbox;
  /** The result of the best attempt: for a command, the command's result. */
  readonly result: T;
  readonly score: number;
  /** The index of the best attempt. */
  readonly index: number;
  /** The result of every attempt, or its error. */
  readonly results: readonly (T | Error)[];
  readonly scores: readonly (number | undefined)[];
}

/**
 * Forks a child of a sandbox for every attempt, runs the attempts concurrently and judges each in
 * its child. Then it keeps the child with the highest score and kills the others. An attempt that
 * fails, or that has no score, is rejected. If all are rejected, all children are killed, and an
 * AggregateError gives the reasons.
 */
export async function bestOf<T = CommandResult>(
  sandbox: Sandbox,
  attempts: readonly Attempt<T>[],
  judge: Judge<T>,
  options: ForkOptions = {},
): Promise<Best<T>> {
  if (!Array.isArray(attempts) || attempts.length === 0) {
    throw new InvalidArgumentError("attempts", "want a list of commands or functions that is not empty");
  }
  if (typeof judge !== "function") {
    throw new InvalidArgumentError("judge", "want a function of a child and the result of its attempt");
  }
  const children = await sandbox.fork(attempts.length, options);
  let kept: number | undefined;
  try {
    const tried = await Promise.all(children.map((child, i) => attempt(child, attempts[i]!, judge, options.signal)));
    const scores = tried.map(({ score }) => score);
    const highest = Math.max(...scores.map((score) => score ?? -Infinity));
    const index = scores.findIndex((score) => score !== undefined && score === highest);
    const results = tried.map(({ result }) => result);
    if (index < 0) {
      options.signal?.throwIfAborted();
      throw new AggregateError(
        results.filter((result) => result instanceof Error),
        `none of ${children.length} attempts is any good`,
      );
    }
    kept = index;
    return { sandbox: children[index]!, result: results[index] as T, score: highest, index, results, scores };
  } finally {
    await Promise.all(children.filter((_, i) => i !== kept).map((child) => child.kill()));
  }
}

async function attempt<T>(
  child: Sandbox,
  how: Attempt<T>,
  judge: Judge<T>,
  signal?: AbortSignal,
): Promise<{ result: T | Error; score: number | undefined }> {
  try {
    const result = typeof how === "function" ? await how(child) : ((await child.commands.run(how, { signal })) as T);
    const score = await judge(child, result);
    return {
      result,
      score:
        score === null || score === undefined || score === false || Number.isNaN(score) ? undefined : Number(score),
    };
  } catch (error) {
    return { result: error instanceof Error ? error : new Error(String(error)), score: undefined };
  }
}
