import type { Sandbox } from "./sandbox.ts";

/** Statistics of a fork. */
export interface ForkFigures {
  /** Milliseconds from the request to the last child's answer. */
  readonly forkWallMs: number;
  /**
   * Milliseconds that the forked sandbox was paused; undefined if the fork was made from a
   * snapshot.
   */
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

  /** The results of map, filter and similar methods are ordinary arrays. */
  static override get [Symbol.species](): ArrayConstructor {
    return Array;
  }

  /** Kills all sandboxes. It is no error if some of them no longer exist. */
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
