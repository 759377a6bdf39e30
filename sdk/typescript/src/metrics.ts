import type { Camel } from "./case.ts";
import { checkOptions, checkString, checkWord } from "./check.ts";
import type { components } from "./generated/api.ts";
import { callOptions, type CallOptions } from "./wire.ts";

type Schemas = components["schemas"];

/** The history of the resources that a sandbox used on its host. */
export type Metrics = Camel<Schemas["Metrics"]>;
/** The history of a daemon's host. */
export type HostMetrics = Camel<Schemas["HostMetrics"]>;

/** Which points of a history are requested. */
export interface MetricsOptions extends CallOptions {
  /** Only points from this time (RFC 3339, or a duration before now such as "10m"). */
  since?: string | undefined;
  /** Only points up to this time. */
  until?: string | undefined;
  /**
   * Points of seconds, of the last ten minutes, or of minutes, of the last day. Default: "second",
   * unless since is more than ten minutes ago.
   */
  step?: "second" | "minute" | undefined;
}

/** @internal The query of a request for a history. */
export function spanOf(options: MetricsOptions): Record<"since" | "until" | "step", string | undefined> {
  checkOptions(options, "since", "until", "step", ...callOptions);
  const { since, until, step } = options;
  if (since !== undefined) {
    checkString("since", since);
  }
  if (until !== undefined) {
    checkString("until", until);
  }
  checkWord("step", step, "second", "minute");
  return { since, until, step };
}
