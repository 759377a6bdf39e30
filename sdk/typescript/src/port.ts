import { bodyOf, type Data } from "./bytes.ts";
import { ForkdError } from "./error.ts";
import { collected, maxWhole } from "./wire.ts";

/** The raw connection to a port. */
export type Socket = import("node:stream").Duplex;

/** A TCP connection to a server in a sandbox. Each direction ends separately. */
export class PortConnection implements AsyncIterable<Uint8Array>, AsyncDisposable {
  readonly #socket: Socket;
  #error: Error | undefined;

  /** @internal */
  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("error", (error) => (this.#error = error));
  }

  /** Sends data. The promise resolves when the data has been passed to the connection. */
  async write(data: Data): Promise<void> {
    const body = bodyOf("data", data);
    for await (const part of body instanceof Uint8Array ? [body] : body) {
      await new Promise<void>((resolve, reject) =>
        this.#socket.write(part, (error) => (error ? reject(this.#failure(error)) : resolve())),
      );
    }
  }

  /** Ends the sending direction. The server may still answer. */
  async closeWrite(): Promise<void> {
    await new Promise<void>((resolve) => this.#socket.end(resolve));
  }

  /** The data that the server sends, until its end. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    try {
      for await (const part of this.#socket.iterator({ destroyOnReturn: false }) as AsyncIterable<Uint8Array>) {
        yield part;
      }
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** Reads all data that the server sends, until its end; at most 1 GiB. */
  async readAll(): Promise<Uint8Array> {
    return collected(this, maxWhole, "a loop over the connection reads the data in parts");
  }

  close(): void {
    this.#socket.destroy();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  #failure(error: unknown): ForkdError {
    const cause = this.#error ?? error;
    return new ForkdError(`the connection to the port broke: ${(cause as Error).message}`, {
      code: "connection_broken",
      cause,
    });
  }
}
