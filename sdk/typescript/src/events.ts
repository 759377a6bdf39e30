import { camel, type Camel } from "./case.ts";
import { checkOptions, checkString } from "./check.ts";
import { labelsOf, type LabelFilter } from "./client.ts";
import { StreamBrokenError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { serverSentEvents } from "./stream.ts";
import type { Answer } from "./transport.ts";
import { callOptions, type CallOptions, type Wire } from "./wire.ts";

/** An event of a sandbox or a snapshot. One of type "missed" replaces events that were lost. */
export type Event = Camel<components["schemas"]["Event"]>;

/** Selects events. */
export interface EventsOptions extends CallOptions {
  /** Id of a sandbox, or several; default: all. */
  sandbox?: string | readonly string[] | undefined;
  labels?: LabelFilter | undefined;
  /** Id of the event after which to begin; default: from now on. */
  after?: string | undefined;
  /** Whether events of new objects have the present record, in `sandbox` or `snapshot`. Default: false. */
  records?: boolean | undefined;
}

/** Events, for `for await`. Leaving the loop ends the stream. */
export class EventStream implements AsyncIterable<Event>, AsyncDisposable {
  /**
   * The value of `after` with which another stream continues here. It also advances if no events
   * arrive.
   */
  lastId: string | undefined;
  readonly #answer: Answer;
  readonly #parts: AsyncIterable<Uint8Array>;
  #stopped = false;

  private constructor(answer: Answer, parts: AsyncIterable<Uint8Array>, after: string | undefined) {
    this.#answer = answer;
    this.#parts = parts;
    this.lastId = after;
  }

  /** @internal */
  static async open(wire: Wire, options: EventsOptions): Promise<EventStream> {
    checkOptions(options, "sandbox", "labels", "after", "records", ...callOptions);
    const { sandbox, labels, after, records, signal } = options;
    const ids = typeof sandbox === "string" ? [sandbox] : sandbox;
    ids?.forEach((id) => checkString("sandbox", id));
    const answer = await wire.open("GET", "/v1/events", {
      query: { sandbox: ids, label: labelsOf(labels), after, records },
      headers: { accept: "text/event-stream" },
      options,
    });
    return new EventStream(answer, wire.idle(answer, "events", { signal }), after);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event> {
    try {
      for await (const { id, data } of serverSentEvents(this.#parts, "events")) {
        this.lastId = id ?? this.lastId;
        if (data !== undefined) {
          yield camel(JSON.parse(data) as components["schemas"]["Event"]);
        }
      }
      throw new StreamBrokenError("events: the stream broke off; go on with after, and lastId of this one");
    } catch (error) {
      if (!this.#stopped) {
        throw error;
      }
    }
  }

  /** Ends the stream and the loop that waits for it. */
  stop(): void {
    this.#stopped = true;
    this.#answer.cancel();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.stop();
    return Promise.resolve();
  }
}
