import { bodyOf, type Data } from "./bytes.ts";
import { camel, type Camel } from "./case.ts";
import { checkInteger, checkOptions, checkPath, checkString, checkWord } from "./check.ts";
import { knowsE2B } from "./e2b.ts";
import { StreamBrokenError } from "./error.ts";
import type { components } from "./generated/api.ts";
import { ConflictError, NotFoundInSandboxError } from "./generated/errors.ts";
import { errorOf } from "./problem.ts";
import { serverSentEvents } from "./stream.ts";
import { packTree, unpackTree } from "./tree.ts";
import { streamOf, type Answer } from "./transport.ts";
import { callOptions, collected, maxWhole, type CallOptions, type Wire } from "./wire.ts";

/** A file, a directory or a link. */
export type FileInfo = Camel<components["schemas"]["File"]>;

/** A change below a watched directory. */
export interface FileChange {
  type: "create" | "write" | "remove" | "rename" | "chmod";
  /** Relative to the watched directory. */
  name: string;
}

/** Options of calls about files. */
export interface FileOptions extends CallOptions {
  /** User in the sandbox: owner of new files, and of the home for relative paths. */
  user?: string | undefined;
}

/** Options of files.read. */
export interface ReadOptions extends FileOptions {
  /** Form of the content; default "text", which is UTF-8. */
  format?: "text" | "bytes" | "blob" | "stream" | undefined;
}

/** Files of a sandbox. Paths are absolute, or relative to the user's home. */
export class Files {
  static {
    knowsE2B("Files", this.prototype);
  }

  readonly #wire: Wire;
  readonly #path: string; // path of the sandbox in the API

  /** @internal */
  constructor(wire: Wire, path: string) {
    this.#wire = wire;
    this.#path = path;
  }

  /** Reads a file, as text or in the given format; except as a stream, at most 1 GiB. */
  read(path: string, options?: FileOptions & { format?: "text" }): Promise<string>;
  read(path: string, options: FileOptions & { format: "bytes" }): Promise<Uint8Array>;
  read(path: string, options: FileOptions & { format: "blob" }): Promise<Blob>;
  read(path: string, options: FileOptions & { format: "stream" }): Promise<ReadableStream<Uint8Array>>;
  async read(
    path: string,
    options: ReadOptions = {},
  ): Promise<string | Uint8Array | Blob | ReadableStream<Uint8Array>> {
    checkPath("path", path);
    checkOptions(options, "user", "format", ...callOptions);
    checkWord("format", options.format, "text", "bytes", "blob", "stream");
    const answer = await this.#open("GET", "/files", path, options);
    const parts = this.#wire.idle(answer, `read ${path}`, { signal: options.signal });
    if (options.format === "stream") {
      return streamOf(parts);
    }
    const bytes = await collected(parts, maxWhole, 'the format "stream" reads the file in parts');
    switch (options.format) {
      case "bytes":
        return bytes;
      case "blob":
        return new Blob([bytes as Uint8Array<ArrayBuffer>]);
      default:
        return new TextDecoder().decode(bytes);
    }
  }

  /** Reads a file of at most 1 GiB as bytes. */
  readBytes(path: string, options: FileOptions = {}): Promise<Uint8Array> {
    return this.read(path, { ...options, format: "bytes" });
  }

  /** Writes a file of at most 1 GiB completely or not at all, and makes its directories. */
  async write(path: string, data: Data, options: FileOptions = {}): Promise<void> {
    checkPath("path", path);
    checkOptions(options, "user", ...callOptions);
    await this.#wire.call("PUT", `${this.#path}/files`, {
      query: { path, username: options.user },
      body: bodyOf("data", data),
      headers: { "content-type": "application/octet-stream" },
      options,
    });
  }

  /** Lists a directory. depth is from 1 (only the directory) to 64. */
  async list(path: string, options: FileOptions & { depth?: number } = {}): Promise<FileInfo[]> {
    checkPath("path", path);
    checkOptions(options, "user", "depth", ...callOptions);
    if (options.depth !== undefined) {
      checkInteger("depth", options.depth, 1, 64);
    }
    const query = { path, username: options.user, depth: options.depth };
    return camel(
      (await this.#wire.call("GET", `${this.#path}/files/list`, { query, options })) as components["schemas"]["File"][],
    );
  }

  /** Describes a file, a directory or a link. */
  async stat(path: string, options: FileOptions = {}): Promise<FileInfo> {
    checkPath("path", path);
    checkOptions(options, "user", ...callOptions);
    const query = { path, username: options.user };
    return camel(
      (await this.#wire.call("GET", `${this.#path}/files/stat`, { query, options })) as components["schemas"]["File"],
    );
  }

  /** E2B's name for stat. */
  getInfo(path: string, options: FileOptions = {}): Promise<FileInfo> {
    return this.stat(path, options);
  }

  /** Reports whether a path exists. */
  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundInSandboxError) {
        return false;
      }
      throw error;
    }
  }

  /** Makes a directory and its parents; false if the directory existed. */
  async makeDir(path: string, options: FileOptions = {}): Promise<boolean> {
    checkPath("path", path);
    checkOptions(options, "user", ...callOptions);
    try {
      await this.#wire.call("POST", `${this.#path}/files/mkdir`, { json: { path, username: options.user }, options });
      return true;
    } catch (error) {
      if (error instanceof ConflictError && (await this.stat(path, options)).type === "directory") {
        return false;
      }
      throw error;
    }
  }

  /**
   * Moves a file or a directory to another path, and makes the parents of that path. An existing
   * file is replaced.
   */
  async rename(old: string, to: string, options: FileOptions = {}): Promise<FileInfo> {
    checkPath("old", old);
    checkPath("new", to);
    checkOptions(options, "user", ...callOptions);
    const json = { from: old, to, username: options.user };
    return camel(
      (await this.#wire.call("POST", `${this.#path}/files/move`, { json, options })) as components["schemas"]["File"],
    );
  }

  /** Removes a file, or a directory with everything in it. A missing path is not an error. */
  async remove(path: string, options: FileOptions = {}): Promise<void> {
    checkPath("path", path);
    checkOptions(options, "user", ...callOptions);
    await this.#wire.call("DELETE", `${this.#path}/files`, { query: { path, username: options.user }, options });
  }

  /** Watches a directory. Every change after this returns is reported. */
  async watch(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<FileWatch> {
    checkPath("path", path);
    checkOptions(options, "user", "recursive", ...callOptions);
    const answer = await this.#wire.open("GET", `${this.#path}/files/watch`, {
      query: { path, username: options.user, recursive: options.recursive || undefined },
      headers: { accept: "text/event-stream" },
      options,
    });
    const what = `watch ${path}`;
    const events = serverSentEvents(this.#wire.idle(answer, what, { signal: options.signal }), what);
    const changes = changesOf(events, what);
    await changes.next(); // "begun"
    return new FileWatch(answer, changes);
  }

  /**
   * Copies a directory into the directory `to` of this host, and makes `to` if it is missing. Nothing
   * is written outside of `to`. A `to` that is a symbolic link is refused, because an earlier copy
   * may have made the link. If `to` ends in a /, the directory behind the link is used. The umask of
   * this process restricts the modes of files, and only their owner may write to them. Without `to`,
   * it returns a tar archive. The sandbox makes the archive, so do not trust it.
   */
  readTree(path: string, to: string, options?: FileOptions): Promise<void>;
  readTree(path: string, to?: undefined, options?: FileOptions): Promise<ReadableStream<Uint8Array>>;
  async readTree(path: string, to?: string, options: FileOptions = {}): Promise<ReadableStream<Uint8Array> | void> {
    if (to !== undefined) {
      checkPath("to", to);
    }
    const archive = await this.#tree(path, options);
    return to === undefined ? streamOf(archive) : unpackTree(archive, to);
  }

  /**
   * Copies the content of a directory of this host, or of a tar archive, into a directory of the
   * sandbox. That directory is made if it is missing. Existing files with the same names are
   * replaced; other files stay.
   */
  async writeTree(path: string, source: Data, options: FileOptions = {}): Promise<void> {
    checkPath("path", path);
    checkOptions(options, "user", ...callOptions);
    if (typeof source === "string") {
      checkPath("source", source);
    }
    await this.#wire.call("PUT", `${this.#path}/archive`, {
      query: { path, username: options.user },
      body: typeof source === "string" ? packTree(source) : bodyOf("source", source),
      headers: { "content-type": "application/x-tar" },
      options,
    });
  }

  async #tree(path: string, options: FileOptions): Promise<AsyncIterable<Uint8Array>> {
    checkPath("path", path);
    checkOptions(options, "user", ...callOptions);
    const answer = await this.#open("GET", "/archive", path, options);
    return this.#wire.idle(answer, `read the tree ${path}`, { signal: options.signal });
  }

  #open(method: string, route: string, path: string, options: FileOptions): Promise<Answer> {
    if (options.user !== undefined) {
      checkString("user", options.user);
    }
    return this.#wire.open(method, this.#path + route, { query: { path, username: options.user }, options });
  }
}

/** The changes in a directory, for `for await`. Leaving the loop ends the watch. */
export class FileWatch implements AsyncIterable<FileChange>, AsyncDisposable {
  readonly #answer: Answer;
  readonly #changes: AsyncGenerator<FileChange>;
  #stopped = false;

  /** @internal */
  constructor(answer: Answer, changes: AsyncGenerator<FileChange>) {
    this.#answer = answer;
    this.#changes = changes;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange> {
    try {
      yield* this.#changes;
    } catch (error) {
      if (!this.#stopped) {
        throw error;
      }
    }
  }

  /** Ends the watch and the loop that waits for it. */
  stop(): void {
    this.#stopped = true;
    this.#answer.cancel();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.stop();
    return Promise.resolve();
  }
}

/** The changes of a watch. The first one reports that the watch has begun. */
async function* changesOf(
  events: AsyncIterable<{ data: string | undefined }>,
  what: string,
): AsyncGenerator<FileChange> {
  for await (const { data } of events) {
    if (data === undefined) {
      continue;
    }
    const change = JSON.parse(data) as components["schemas"]["FileChange"];
    if (change.problem !== undefined) {
      throw errorOf(change.problem);
    }
    yield { type: change.type as FileChange["type"], name: change.name ?? "" };
  }
  throw new StreamBrokenError(`${what}: the stream broke off`);
}
