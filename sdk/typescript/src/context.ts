/** Directories of this host as build contexts: makes the archive of a build request. */
import { ForkdError, InvalidArgumentError } from "./error.ts";
import { BadPattern, Ignore } from "./ignore.ts";
import { builtin } from "./node.ts";
import { header, padding, type Entry } from "./tree.ts";

/** Bounds on a build. They equal the daemon's. */
export const maxDockerfile = 1 << 20; // bytes
const maxContent = 8 * 2 ** 30; // bytes of files
const maxEntries = 1 << 20;
const maxNames = 64 << 20; // bytes of names, and of targets of links
const maxParts = 255; // parts of a name
const maxIgnore = 1 << 20; // bytes of a .dockerignore

const block = 512;
const encoder = new TextEncoder();

type FS = typeof import("node:fs/promises");
type File = import("node:fs/promises").FileHandle;
type Info = import("node:fs").BigIntStats;

function modules(): { fs: FS; path: typeof import("node:path"); tmpdir: string } {
  const fs = builtin("node:fs/promises");
  const path = builtin("node:path");
  const os = builtin("node:os");
  if (fs === undefined || path === undefined || os === undefined) {
    throw new InvalidArgumentError("context", "this runtime has no files: use dockerfileText alone");
  }
  return { fs, path, tmpdir: os.tmpdir() };
}

function kindOf(info: Info): string {
  return info.isDirectory()
    ? "a directory"
    : info.isSymbolicLink()
      ? "a link"
      : info.isFIFO()
        ? "a pipe"
        : info.isSocket()
          ? "a socket"
          : "a device";
}

function codeOf(error: unknown): string | undefined {
  return (error as { code?: string } | undefined)?.code;
}

const noSuchLink = "the link leads to no file of the build context: put the file itself there";
const replaced = "it was replaced while the build context was read";

/**
 * A directory whose files a build may copy, with its Dockerfile and its .dockerignore.
 *
 * Files below the directory are not trusted: no path may lead out of it, and no pipe is read. A
 * Dockerfile outside of the directory was chosen by the caller, and is read without such checks.
 */
export class BuildContext {
  readonly name: string; // name of the Dockerfile, in errors
  text = "";
  readonly #directory: string;
  readonly #fs: FS;
  readonly #path: typeof import("node:path");
  #real = ""; // real path of the directory
  #ignore = new Ignore();

  private constructor(directory: string, name: string) {
    ({ fs: this.#fs, path: this.#path } = modules());
    this.#directory = directory;
    this.name = name;
  }

  static async open(directory: string, dockerfile?: string, text?: string): Promise<BuildContext> {
    const context = new BuildContext(directory, dockerfile ?? "Dockerfile");
    await context.#open(text);
    return context;
  }

  async #open(text: string | undefined): Promise<void> {
    try {
      this.#real = await this.#fs.realpath(this.#directory);
      await this.#fs.readdir(this.#real);
    } catch (cause) {
      throw new InvalidArgumentError("context", `${this.#directory}: ${codeOf(cause)}: want a directory of this host`);
    }
    let own = false;
    if (text === undefined) {
      const { name, inside } = this.#place(this.name);
      const data = await this.#read("dockerfile", name, inside, maxDockerfile, true);
      if (data === undefined) {
        throw new InvalidArgumentError("dockerfile", `${this.#shown(name)}: there is no such file`);
      }
      try {
        this.text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
      } catch {
        throw new InvalidArgumentError("dockerfile", `${this.#shown(name)}: it is not UTF-8: convert it`);
      }
      own = await this.#readIgnore(`${name}.dockerignore`, inside);
    } else {
      this.text = text;
    }
    if (!own) {
      await this.#readIgnore(".dockerignore", true);
    }
  }

  /** The name of a file of the context in errors. */
  #shown(name: string): string {
    return this.#path.isAbsolute(name) ? name : this.#path.join(this.#directory, name);
  }

  /**
   * The path of the Dockerfile, and whether it is in the context. A path outside is resolved by the
   * system.
   */
  #place(dockerfile: string): { name: string; inside: boolean } {
    const at = this.#path.resolve(this.#directory, dockerfile);
    const name = this.#path.relative(this.#path.resolve(this.#directory), at);
    const inside = name !== "" && name.split(this.#path.sep)[0] !== ".." && !this.#path.isAbsolute(name);
    return inside ? { name, inside } : { name: at, inside };
  }

  /** Reads the patterns of the .dockerignore, and returns whether there is such a file. */
  async #readIgnore(name: string, inside: boolean): Promise<boolean> {
    const data = await this.#read("context", name, inside, maxIgnore, false);
    if (data === undefined) {
      return false;
    }
    try {
      this.#ignore = new Ignore(data);
    } catch (cause) {
      if (cause instanceof BadPattern) {
        throw new InvalidArgumentError("context", `${this.#shown(name)}: ${cause.message}`);
      }
      throw cause;
    }
    return true;
  }

  #flags(...names: ("O_NOFOLLOW" | "O_NONBLOCK")[]): number {
    const { constants } = this.#fs;
    return names.reduce((all, name) => all | (constants[name] ?? 0), constants.O_RDONLY);
  }

  /** The content of a file that is part of the request; undefined if it does not exist. */
  async #read(
    field: string,
    name: string,
    inside: boolean,
    most: number,
    chosen: boolean,
  ): Promise<Uint8Array | undefined> {
    const shown = this.#shown(name);
    let file: File;
    try {
      file = inside
        ? await this.#beneath(field, name)
        : await this.#fs.open(name, chosen ? this.#flags() : this.#flags("O_NONBLOCK"));
    } catch (cause) {
      if (codeOf(cause) === "ENOENT") {
        return undefined;
      }
      throw cause instanceof ForkdError ? cause : new InvalidArgumentError(field, `${shown}: ${codeOf(cause)}`);
    }
    try {
      const info = await file.stat({ bigint: true });
      if (!info.isFile() && (inside || !chosen || info.isDirectory())) {
        throw new InvalidArgumentError(field, `${shown}: it is ${kindOf(info)}: want a file`);
      }
      const data = new Uint8Array(most + 1);
      let size = 0;
      for (let read = 1; read > 0 && size <= most; size += read) {
        read = (await file.read(data, size, most + 1 - size)).bytesRead;
      }
      if (size > most) {
        throw new InvalidArgumentError(field, `${shown} has more than ${most} bytes`);
      }
      return data.subarray(0, size);
    } finally {
      await file.close();
    }
  }

  /** Opens a file below the context. Links may not lead out of it. */
  async #beneath(field: string, name: string): Promise<File> {
    const at = this.#path.join(this.#real, name);
    await this.#fs.lstat(at);
    let real: string;
    try {
      real = await this.#fs.realpath(at);
    } catch {
      real = "";
    }
    if (!real.startsWith(this.#real.replace(/\/?$/, this.#path.sep))) {
      throw new InvalidArgumentError(field, `${this.#shown(name)}: ${noSuchLink}`);
    }
    const info = await this.#fs.lstat(real, { bigint: true });
    if (!info.isFile()) {
      throw new InvalidArgumentError(field, `${this.#shown(name)}: it is ${kindOf(info)}: want a file`);
    }
    return this.#same(field, name, real, info);
  }

  /**
   * Opens the file that info describes. By now another file may have its name, and a directory
   * above may be a link. So the system is asked for the path of the opened file.
   */
  async #same(field: string, name: string, real: string, info: Info): Promise<File> {
    const wrong = new InvalidArgumentError(field, `${this.#shown(name)}: ${replaced}`);
    let file: File;
    try {
      file = await this.#fs.open(real, this.#flags("O_NOFOLLOW", "O_NONBLOCK"));
    } catch (cause) {
      const code = codeOf(cause);
      const gone = code === "ELOOP" || code === "ENOENT" || code === "ENXIO";
      throw gone ? wrong : new InvalidArgumentError(field, `${this.#shown(name)}: ${code}`);
    }
    try {
      const now = await file.stat({ bigint: true });
      const place = await this.#fs.readlink(`/proc/self/fd/${file.fd}`).catch(() => this.#fs.realpath(real));
      if (!now.isFile() || now.dev !== info.dev || now.ino !== info.ino || place !== real) {
        throw wrong;
      }
      return file;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** The archive of a build: the request, and the files of the context under their names. */
  async *pack(request: object): AsyncGenerator<Uint8Array> {
    yield* packedRequest(request);
    yield* this.#directoryOf("", { omitted: [], entries: 0, names: 0, content: 0 });
    yield new Uint8Array(2 * block);
  }

  #refused(name: string, why: string): InvalidArgumentError {
    return new InvalidArgumentError("context", `${this.#shown(name)}: ${why}`);
  }

  /** The content of a directory. Its name is empty or ends with a slash. */
  async *#directoryOf(prefix: string, packing: Packing): AsyncGenerator<Uint8Array> {
    const at = this.#path.join(this.#real, prefix);
    const names = (await this.#fs.readdir(at)).sort(byBytes);
    if ((await this.#fs.realpath(at)) !== at.replace(/(?<=.)[/\\]$/, "")) {
      throw this.#refused(prefix, replaced);
    }
    if (prefix.split("/").length > maxParts) {
      throw this.#refused(`${prefix.slice(0, 50)}…`, `its names have more than ${maxParts} parts`);
    }
    for (const last of names) {
      const name = prefix + last;
      const info = await this.#fs.lstat(this.#path.join(this.#real, name), { bigint: true }).catch((cause: unknown) => {
        throw this.#refused(name, last.includes("\ufffd") ? "its name is not UTF-8" : `${codeOf(cause)}`);
      });
      packing.omitted = packing.omitted.filter((dir) => name.startsWith(`${dir.name}/`));
      if (!this.#ignore.out(name)) {
        const above = packing.omitted; // omitted directories that have this file below them
        packing.omitted = [];
        for (const dir of above) {
          yield* this.#entry(dir.name, dir.info, packing);
        }
        yield* this.#entry(name, info, packing);
      } else if (info.isDirectory() && this.#ignore.exceptions) {
        packing.omitted.push({ name, info });
      } else {
        continue;
      }
      if (info.isDirectory()) {
        yield* this.#directoryOf(`${name}/`, packing);
      }
    }
  }

  async *#entry(name: string, info: Info, packing: Packing): AsyncGenerator<Uint8Array> {
    const real = this.#path.join(this.#real, name);
    const mode = Number(info.mode);
    const entry: Entry = {
      name: `context/${name}`,
      mode: mode & 0o777,
      seconds: Math.floor(Number(info.mtimeMs) / 1000),
      type: "0",
      size: 0,
      link: "",
    };
    if (info.isDirectory()) {
      yield* counted(packing, { ...entry, name: `${entry.name}/`, type: "5" });
    } else if (info.isSymbolicLink()) {
      yield* counted(packing, { ...entry, type: "2", link: await this.#fs.readlink(real) });
    } else if (info.isFile()) {
      const file = await this.#same("context", name, real, info);
      try {
        const size = Number(info.size);
        yield* counted(packing, { ...entry, mode: mode & 0o6777, size });
        for (let left = size; left > 0; ) {
          const { bytesRead, buffer } = await file.read(new Uint8Array(Math.min(left, 256 << 10)));
          if (bytesRead === 0) {
            throw this.#refused(name, "it became shorter while it was read");
          }
          left -= bytesRead;
          yield buffer.subarray(0, bytesRead);
        }
        yield new Uint8Array(padding(size));
      } finally {
        await file.close();
      }
    } else if (!info.isSocket()) {
      const only = "and a build context has files, directories and links only: name it in .dockerignore";
      throw this.#refused(name, `it is ${kindOf(info)}, ${only}`);
    }
  }
}

/** The state of writing a context. */
interface Packing {
  omitted: { name: string; info: Info }[]; // omitted directories, each inside the previous one
  entries: number;
  names: number;
  content: number;
}

/** The header of an entry. It throws an error if the context exceeds the daemon's bounds. */
function* counted(packing: Packing, entry: Entry): Generator<Uint8Array> {
  packing.entries += 1;
  packing.content += entry.size;
  packing.names += encoder.encode(entry.name).length - "context/".length + encoder.encode(entry.link).length;
  for (const [n, most, what] of [
    [packing.entries, maxEntries, `${maxEntries} files`],
    [packing.content, maxContent, "8 GiB"],
    [packing.names, maxNames, "64 MiB of names and links"],
  ] as const) {
    if (n > most) {
      throw new InvalidArgumentError(
        "context",
        `the build context has more than ${what}: leave files out in .dockerignore`,
      );
    }
  }
  yield* header(entry);
}

function* packedRequest(request: object): Generator<Uint8Array> {
  const body = encoder.encode(JSON.stringify(request));
  yield* header({ name: "build.json", mode: 0o600, seconds: 0, type: "0", size: body.length, link: "" });
  yield body;
  yield new Uint8Array(padding(body.length));
}

/** The archive of a build without a context. */
export async function* packRequest(request: object): AsyncGenerator<Uint8Array> {
  yield* packedRequest(request);
  yield new Uint8Array(2 * block);
}

/** The order of Go and Python, which compares bytes of UTF-8. */
function byBytes(a: string, b: string): number {
  const [x, y] = [encoder.encode(a), encoder.encode(b)];
  const at = x.findIndex((byte, i) => byte !== y[i]);
  return at < 0 ? x.length - y.length : x[at]! - (y[at] ?? -1);
}

/** Writes parts to a file without a name, passes its content to use, and removes it. */
export async function spooled<T>(
  parts: AsyncIterable<Uint8Array>,
  use: (content: AsyncIterable<Uint8Array>) => Promise<T>,
): Promise<T> {
  const { fs, path, tmpdir } = modules();
  const directory = await fs.mkdtemp(path.join(tmpdir, "forkd-build-"));
  const remove = (): Promise<void> => fs.rm(directory, { recursive: true, force: true });
  try {
    const file = await fs.open(path.join(directory, "context.tar"), "wx+", 0o600);
    try {
      await remove().catch(() => undefined); // some systems can remove it only after closing it
      for await (const part of parts) {
        await file.writeFile(part);
      }
      return await use(contentOf(file));
    } finally {
      await file.close();
    }
  } finally {
    await remove();
  }
}

async function* contentOf(file: File): AsyncGenerator<Uint8Array> {
  for (let at = 0; ; ) {
    const { bytesRead, buffer } = await file.read(new Uint8Array(256 << 10), 0, 256 << 10, at);
    if (bytesRead === 0) {
      return;
    }
    at += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}
