import { ForkdError } from "./error.ts";
import { errorClasses } from "./generated/errors.ts";
import type { Answer } from "./transport.ts";
import { version } from "./version.ts";

/** Codes that replace unknown codes, by status. */
const codeOfStatus: Readonly<Record<number, string>> = {
  400: "bad_request",
  401: "unauthenticated",
  403: "forbidden",
  405: "method_not_allowed",
  409: "conflict",
  413: "body_too_large",
  422: "idempotency_key_reused",
  426: "upgrade_required",
  429: "too_many_requests",
  500: "internal",
  502: "sandbox_failed",
  503: "busy",
  504: "timeout",
  507: "no_space",
};

/** The fields of an error of the API, in an answer or at the end of a stream. */
export interface Problem {
  error?: string | undefined;
  code?: string | undefined;
  field?: string | undefined;
  fix?: string | undefined;
  status?: number | undefined;
}

/**
 * Returns the error for a problem. The code determines its class; if the code is unknown, the
 * status does.
 */
export function errorOf(problem: Problem, requestId?: string, retryAfter?: number): ForkdError {
  const { error, code, field, fix, status } = problem;
  const byCode = code === undefined ? undefined : errorClasses[code];
  const Class = byCode ?? errorClasses[codeOfStatus[status ?? 0] ?? ""] ?? ForkdError;
  return new Class(error ?? `HTTP status ${status}`, { code, field, fix, status, requestId, retryAfter });
}

/** Reads an unsuccessful answer. */
export async function answeredError(answer: Answer): Promise<ForkdError> {
  const text = await textOf(answer);
  const requestId = answer.header("x-request-id");
  const seconds = Number(answer.header("retry-after"));
  let problem: Problem;
  try {
    problem = JSON.parse(text) as Problem;
    if (typeof problem.error !== "string") {
      throw new TypeError("no problem");
    }
  } catch {
    const begin = JSON.stringify(text.trim().slice(0, 200));
    return new ForkdError(`HTTP status ${answer.status}: not an answer of a forkd daemon: ${begin}`, {
      status: answer.status,
      requestId,
    });
  }
  if (problem.code === "no_such_route") {
    problem.error += ": the daemon may be older than this package, whose version is " + version;
  }
  return errorOf({ ...problem, status: answer.status }, requestId, seconds > 0 ? seconds : undefined);
}

/** Reads the text of an answer. If reading fails, it returns the part that was read. */
async function textOf(answer: Answer): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  try {
    for await (const part of answer.body) {
      text += decoder.decode(part, { stream: true });
      if (text.length > 1 << 20) {
        break;
      }
    }
  } catch {
    // a part of the error suffices
  }
  answer.cancel();
  return text + decoder.decode();
}
