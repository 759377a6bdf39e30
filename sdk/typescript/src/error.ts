import type { CommandResult } from "./process.ts";
import type { Sandboxes } from "./sandboxes.ts";

/** The details of an error; see ForkdError. */
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
 * The base of all errors of this package. An unsuccessful answer of the daemon has the class of its
 * code, such as SandboxNotFoundError for `sandbox_not_found`.
 */
export class ForkdError extends Error {
  /** For programs: a code never changes its meaning. docs/errors.md lists all codes. */
  readonly code: string | undefined;
  /** The wrong field of the request, or the wrong parameter. */
  readonly field: string | undefined;
  /** What usually helps after an error with this code. */
  readonly fix: string | undefined;
  /** HTTP status; undefined if the daemon has not answered. */
  readonly status: number | undefined;
  /** The id of the request in the daemon's logs. */
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

/** An argument is wrong. No request was sent. `field` is the name of the parameter. */
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

/** A stream broke before its end, or was silent for longer than its idle limit. */
export class StreamBrokenError extends ForkdError {
  /** The process that the stream belongs to. It may still run. */
  readonly pid: number | undefined;

  constructor(message: string, details: { pid?: number | undefined; cause?: unknown } = {}) {
    super(message, { code: "stream_broken", cause: details.cause });
    this.pid = details.pid;
  }
}

/** A command with check did not exit with code 0. */
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

/** A step of a build failed. The next build reuses the steps before it. */
export class BuildFailed extends ForkdError {
  /** The name of the step, such as "[stage-0 2/3] RUN make". */
  readonly step: string;
  /** The number of the step, from 0. */
  readonly number: number;
  /** The end of the output of the step's command, at most 64 KiB. */
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

/** A process takes no more input, because it has closed its stdin or ended. */
export class InputClosedError extends ForkdError {
  constructor(pid: number, cause?: unknown) {
    super(`process ${pid} takes no more input`, { code: "input_closed", cause });
  }
}

/** Some children of a fork with allowPartial did not start. */
export class PartialForkError extends ForkdError {
  /** The children that have started and keep running. */
  readonly sandboxes: Sandboxes;
  /** The number of children that did not start. */
  readonly failed: number;

  constructor(sandboxes: Sandboxes, failed: number) {
    super(`${failed} of ${failed + sandboxes.length} children did not start; the others are in sandboxes`, {
      code: "partial_fork",
    });
    this.sandboxes = sandboxes;
    this.failed = failed;
  }
}
