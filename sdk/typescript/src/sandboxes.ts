import type { Sandbox } from "./sandbox.ts";

/** Figures of a fork. */
export interface ForkFigures {
  /** Milliseconds from the request to the last child's answer. */
  readonly forkWallMs: number;
  /** Milliseconds that the forked sandbox stood still; undefined if it was forked from a snapshot. */
  readonly pauseMs?: number;
}

/** The children of a fork: an array. With `await using`, they are killed at the end of the block. */
export class Sandboxes extends Array<Sandbox> implements AsyncDisposable {
  readonly figures: ForkFigures | undefined;

  constructor(sandboxes: readonly Sandbox[], figures?: ForkFigures) {
    super();
    this.push(...sandboxes);
    Object.defineProperty(this, "figures", {
      value: figures && {
        forkWallMs: figures.forkWallMs,
        ...(figures.pauseMs !== undefined && { pauseMs: figures.pauseMs }),
      },
    });
  }

  /** What map, filter and the like return is an ordinary array. */
  static override get [Symbol.species](): ArrayConstructor {
    return Array;
  }

  /** Kills all of them. Those that are gone already are no error. */
  async kill(): Promise<void> {
    const outcomes = await Promise.allSettled([...this].map((sandbox) => sandbox.kill()));
    const failed = outcomes
      .filter((outcome) => outcome.status === "rejected")
      .map((outcome): unknown => outcome.reason);
    if (failed.length > 0) {
      throw failed.length === 1 ? failed[0] : new AggregateError(failed, `${failed.length} sandboxes were not killed`);
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }
}
