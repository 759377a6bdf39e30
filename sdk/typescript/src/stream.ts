import { StreamBrokenError } from "./error.ts";

const maxLine = 64 << 20; // characters; a daemon sends no longer line

/**
 * The lines of a body, without their ends. A last line without an end means that the stream is
 * broken.
 */
export async function* lines(body: AsyncIterable<Uint8Array>, what: string): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let pieces: string[] = [];
  let size = 0; // of pieces
  for await (const part of body) {
    const found = decoder.decode(part, { stream: true }).split("\n");
    for (const end of found.slice(0, -1)) {
      pieces.push(end);
      yield pieces.join("");
      pieces = [];
      size = 0;
    }
    pieces.push(found.at(-1)!);
    size += found.at(-1)!.length;
    if (size > maxLine) {
      throw new StreamBrokenError(`${what}: a line of the daemon has more than 64 MiB`);
    }
  }
  if (pieces.join("") !== "") {
    throw new StreamBrokenError(`${what}: the stream ends in the middle of a message`);
  }
}

/** One server-sent event. An event without data only shows that the stream is alive. */
export interface ServerSentEvent {
  id: string | undefined;
  data: string | undefined;
}

/** The events of a body. */
export async function* serverSentEvents(
  body: AsyncIterable<Uint8Array>,
  what: string,
): AsyncGenerator<ServerSentEvent> {
  let event: ServerSentEvent = { id: undefined, data: undefined };
  for await (const line of lines(body, what)) {
    if (line === "") {
      yield event;
      event = { id: undefined, data: undefined };
    } else if (line.startsWith("id: ")) {
      event.id = line.slice(4);
    } else if (line.startsWith("data: ")) {
      event.data = line.slice(6); // the daemon writes one such line per event
    }
  }
}

/** Reads the rest of a stream after its last message, so that its connection can be used again. */
export function finish(events: AsyncGenerator<unknown>): void {
  events.next().then(
    () => events.return(undefined),
    () => undefined,
  );
}
