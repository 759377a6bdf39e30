import type { CommandResult } from "./process.ts";
import type { Sandboxes } from "./sandboxes.ts";

/** What is known of an error; see ForkdError. */
export interface ErrorDetails {
  code?: string | undefined;
  field?: string | undefined;
  fix?: string | undefined;
  status?: number | undefined;
  requestId?: string | undefined;
  retryAfter?: number | undefined;
  cause?: unknown;
}

/**
 * The base of every error of this package. An answer of the daemon that is not a success has the
 * class of its code, such as SandboxNotFoundError for `sandbox_not_found`.
 */
export class ForkdError extends Error {
  /** For programs: it never changes its meaning. docs/errors.md has all of them. */
  readonly code: string | undefined;
  /** The field of the request, or the parameter, that is wrong. */
  readonly field: string | undefined;
  /** What helps against most errors of the code. */
  readonly fix: string | undefined;
  /** HTTP status; undefined if the daemon has not answered. */
  readonly status: number | undefined;
  /** Names the request in the daemon's logs. */
  readonly requestId: string | undefined;
  /** Seconds after which the same request may succeed by itself; undefined if it will not. */
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.code = details.code;
    this.field = details.field;
    this.fix = details.fix;
    this.status = details.status;
    this.requestId = details.requestId;
    this.retryAfter = details.retryAfter;
  }
}

/** An argument is wrong. Nothing was sent; `field` is the name of the parameter. */
export class InvalidArgumentError extends ForkdError {
  constructor(field: string, problem: string) {
    super(`${field}: ${problem}`, { field, code: "invalid_argument" });
  }
}

/**
 * The daemon does not answer. `happened` is "no" if nothing was sent, and "unknown" if the daemon
 * may have carried the request out.
 */
export class ConnectionFailedError extends ForkdError {
  readonly happened: "no" | "unknown";

  constructor(message: string, happened: "no" | "unknown", cause?: unknown) {
    super(message, { code: "connection_failed", cause });
    this.happened = happened;
  }
}

/** A stream was cut before its end, or said nothing for longer than its idle limit. */
export class StreamBrokenError extends ForkdError {
  /** The process that the stream was of. It may still run. */
  readonly pid: number | undefined;

  constructor(message: string, details: { pid?: number | undefined; cause?: unknown } = {}) {
    super(message, { code: "stream_broken", cause: details.cause });
    this.pid = details.pid;
  }
}

/** A command was run with check, and did not exit with code 0. */
export class CommandFailed extends ForkdError {
  readonly result: CommandResult<unknown>;

  constructor(result: CommandResult<unknown>) {
    const said = new TextDecoder().decode(result.stderrBytes).trimEnd().slice(-500);
    super(
      `the command failed with exit code ${result.exitCode} (${result.error ?? result.outcome})` +
        (said === "" ? "" : `: ${said}`),
      {
        code: "command_failed",
      },
    );
    this.result = result;
  }
}

/** A step of a build failed. Steps that were done before are not done again by the next build. */
export class BuildFailed extends ForkdError {
  /** Its name, such as "[stage-0 2/3] RUN make". */
  readonly step: string;
  /** Its number, from 0. */
  readonly number: number;
  /** The end of what its command wrote, at most 64 KiB. */
  readonly output: string;

  constructor(cause: ForkdError, step: string, number: number, output: string) {
    const last = output.split("\n").slice(-20).join("\n");
    super(cause.message + (last === "" ? "" : `\n${last}`), {
      code: "build_failed",
      status: cause.status,
      field: cause.field,
      cause,
    });
    this.step = step;
    this.number = number;
    this.output = output;
  }
}

/** Input was sent to a process that takes no more: it has closed its stdin, or ended. */
export class InputClosedError extends ForkdError {
  constructor(pid: number, cause?: unknown) {
    super(`process ${pid} takes no more input`, { code: "input_closed", cause });
  }
}

/** Some children of a fork with allowPartial did not start. */
export class PartialForkError extends ForkdError {
  /** Those that did, and run. */
  readonly sandboxes: Sandboxes;
  /** How many did not. */
  readonly failed: number;

  constructor(sandboxes: Sandboxes, failed: number) {
    super(`${failed} of ${failed + sandboxes.length} children did not start; the others are in sandboxes`, {
      code: "partial_fork",
    });
    this.sandboxes = sandboxes;
    this.failed = failed;
  }
}
