/** Packs and unpacks directories of this host as tar archives (POSIX pax). */
import { ForkdError, InvalidArgumentError } from "./error.ts";
import { builtin } from "./node.ts";

const block = 512;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a name may begin with U+FEFF

function modules(): { fs: typeof import("node:fs/promises"); path: typeof import("node:path") } {
  const fs = builtin("node:fs/promises");
  const path = builtin("node:path");
  if (fs === undefined || path === undefined) {
    throw new InvalidArgumentError("local", "this runtime has no files: use readTree and writeTree");
  }
  return { fs, path };
}

/** Packs the content of a directory: files, directories and symbolic links. */
export async function* packTree(root: string): AsyncGenerator<Uint8Array> {
  const { fs, path } = modules();
  async function* pack(directory: string, prefix: string): AsyncGenerator<Uint8Array> {
    const names = (await fs.readdir(directory)).sort();
    for (const name of names) {
      const at = path.join(directory, name);
      const info = await fs.lstat(at);
      const entry = { name: prefix + name, mode: info.mode & 0o7777, seconds: Math.floor(info.mtimeMs / 1000) };
      if (info.isDirectory()) {
        yield* header({ ...entry, name: `${entry.name}/`, type: "5", size: 0, link: "" });
        yield* pack(at, `${entry.name}/`);
      } else if (info.isSymbolicLink()) {
        yield* header({ ...entry, type: "2", size: 0, link: await fs.readlink(at) });
      } else if (info.isFile()) {
        yield* header({ ...entry, type: "0", size: info.size, link: "" });
        yield* content(at, info.size);
      } else {
        throw new InvalidArgumentError("local", `${at} is neither a file nor a directory nor a link`);
      }
    }
  }
  async function* content(at: string, size: number): AsyncGenerator<Uint8Array> {
    const file = await fs.open(at);
    try {
      let left = size;
      while (left > 0) {
        const { bytesRead, buffer } = await file.read(new Uint8Array(Math.min(left, 256 << 10)));
        if (bytesRead === 0) {
          throw new ForkdError(`${at} became shorter while it was read`);
        }
        left -= bytesRead;
        yield buffer.subarray(0, bytesRead);
      }
    } finally {
      await file.close();
    }
    yield new Uint8Array(padding(size));
  }
  yield* pack(root, "");
  yield new Uint8Array(2 * block);
}

export interface Entry {
  name: string;
  mode: number;
  seconds: number; // time of its last change, since 1970
  type: string;
  size: number;
  link: string;
}

export function padding(size: number): number {
  return (block - (size % block)) % block;
}

/** The header of an entry, preceded by an extended header if a field is too small. */
export function* header(entry: Entry): Generator<Uint8Array> {
  const more: [string, string][] = [];
  if (encoder.encode(entry.name).length > 100) {
    more.push(["path", entry.name]);
  }
  if (encoder.encode(entry.link).length > 100) {
    more.push(["linkpath", entry.link]);
  }
  if (entry.size >= 8 ** 11) {
    more.push(["size", String(entry.size)]);
  }
  if (more.length > 0) {
    const text = joinedBytes(more.map(([key, value]) => record(key, value)));
    yield plainHeader({ name: "pax", mode: 0o644, seconds: entry.seconds, type: "x", size: text.length, link: "" });
    yield text;
    yield new Uint8Array(padding(text.length));
  }
  yield plainHeader(entry);
}

/** A record "length key=value\n". The length includes its own digits. */
function record(key: string, value: string): Uint8Array {
  const rest = encoder.encode(` ${key}=${value}\n`);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) {
    length = String(length).length + rest.length;
  }
  return joinedBytes([encoder.encode(String(length)), rest]);
}

function joinedBytes(parts: Uint8Array[]): Uint8Array {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

function plainHeader(entry: Entry): Uint8Array {
  const bytes = new Uint8Array(block);
  const put = (at: number, width: number, text: string): void => bytes.set(encoder.encode(text).subarray(0, width), at);
  const octal = (at: number, width: number, n: number): void => put(at, width, n.toString(8).padStart(width - 1, "0"));
  put(0, 100, entry.name);
  octal(100, 8, entry.mode);
  octal(108, 8, 0); // owner 0: the program that unpacks the archive chooses the owner
  octal(116, 8, 0);
  octal(124, 12, entry.size < 8 ** 11 ? entry.size : 0);
  octal(136, 12, Math.max(entry.seconds, 0));
  put(148, 8, "        ");
  put(156, 1, entry.type);
  put(157, 100, entry.link);
  put(257, 8, "ustar\x0000");
  octal(
    148,
    7,
    bytes.reduce((sum, byte) => sum + byte, 0),
  );
  return bytes;
}

/**
 * Unpacks an archive into a directory. The archive is not trusted: its names must stay in the
 * directory, nothing is written through a link, and links are made last. An earlier archive may have
 * made links in a parent of the directory, so no link may lead out of the directory, whatever later
 * archives make there.
 */
export async function unpackTree(
  parts: AsyncIterable<Uint8Array>,
  root: string,
  {
    platform = builtin("node:os")?.platform(),
    entries = maxEntries,
    names = maxKept,
  }: { platform?: string; entries?: number; names?: number } = {},
): Promise<void> {
  const { fs, path } = modules();
  let bytes = maxBytes;
  const links: { type: string; name: string; target: string }[] = [];
  let kept = 0; // bytes of the names and targets in links
  const keep = (text: string): string => {
    const copy = encoder.encode(text);
    kept += copy.length;
    if (kept > names) {
      throw unsafe(`the names of the archive's links have more than ${names} bytes`);
    }
    return decoder.decode(copy); // otherwise the whole header may stay in memory, because text can be a part of it
  };
  const reader = new Reader(parts);
  try {
    const before = await fs.lstat(root).catch(() => undefined);
    if (before?.isSymbolicLink()) {
      throw new InvalidArgumentError(
        "to",
        `${root} is a symbolic link, and nothing is written through one: remove it, or name the directory itself` +
          " (a directory behind a link: give the link a / at its end)",
      );
    }
    await fs.mkdir(root, { recursive: true });
    for (let entry = await reader.next(); entry !== undefined; entry = await reader.next()) {
      entries -= 1;
      bytes -= entry.size;
      if (entries < 0 || bytes < 0) {
        throw unsafe("the archive has too many entries, or more than 64 GiB of content");
      }
      checkName(entry.name, platform);
      checkName(entry.link, platform);
      const name = entry.name.replace(/^(\.\/)+/, "").replace(/\/+$/, "");
      if (name === "" || name === ".") {
        continue;
      }
      if (name.split("/").some((part) => part === "" || part === "." || part === "..")) {
        throw unsafe(`the archive has an entry outside of its directory: ${JSON.stringify(entry.name)}`);
      }
      const at = await placeFor(fs, path, root, name);
      if (entry.type === "5") {
        await makeDirectory(fs, at, (entry.mode & 0o755) | 0o700);
      } else if (entry.type === "0") {
        await makeRoom(fs, at);
        await writeFile(fs, at, entry, reader);
      } else if (entry.type === "1" || entry.type === "2") {
        if (entry.type === "2" && leadsOut(name, entry.link)) {
          throw unsafe(`the link ${JSON.stringify(name)} leads out of the directory: ${JSON.stringify(entry.link)}`);
        }
        links.push({ type: entry.type, name: keep(name), target: keep(entry.link) });
      }
    }
    for (const { type, name, target } of links) {
      const at = await placeFor(fs, path, root, name); // again, because a parent may be a link by now
      await makeRoom(fs, at);
      if (type === "2") {
        await fs.symlink(target, at);
      } else {
        await fs.link(await linked(fs, path, root, target), at);
      }
    }
  } finally {
    await reader.end();
  }
}

type FS = typeof import("node:fs/promises");
type Path = typeof import("node:path");

function unsafe(message: string): ForkdError {
  return new ForkdError(message, { code: "bad_archive" });
}

/** Refuses a name that no file system can have, or that means something else on Windows. */
function checkName(name: string, platform: string | undefined): void {
  const length = (text: string): number => encoder.encode(text).length;
  const parts = name.split("/");
  if (length(name) > maxName || parts.length > maxParts || parts.some((part) => length(part) > maxPart)) {
    throw unsafe(`the archive has a name that is too long: ${JSON.stringify(name.slice(0, 50))}…`);
  }
  if (name.includes("\0") || (platform === "win32" && /[\\:]/.test(name))) {
    throw unsafe(`the archive has a name that no file of this host may have: ${JSON.stringify(name)}`);
  }
}

/**
 * Reports whether a symbolic link may lead out of the directory, now or after later archives. ".."
 * must not follow a name: a later archive can make the name a link, and then ".." leads elsewhere. At
 * the beginning, ".." leads to the directories that hold the link, which stay.
 */
function leadsOut(name: string, target: string): boolean {
  let above = name.split("/").length - 1; // directories between the link and the root
  let names = false;
  for (const part of target.split("/")) {
    if (part === ".." && (names || above-- === 0)) {
      return true;
    }
    names ||= part !== "" && part !== "." && part !== "..";
  }
  return target.startsWith("/");
}

/**
 * Removes a file or a link whose place a new entry takes. It does not replace a directory, which is
 * an error.
 */
async function makeRoom(fs: FS, at: string): Promise<void> {
  const info = await fs.lstat(at).catch(() => undefined);
  if (info?.isDirectory()) {
    throw unsafe(`${at} is a directory, and something else in the archive: remove it first`);
  }
  if (info !== undefined) {
    await fs.unlink(at);
  }
}

/** Makes the parents of an entry and returns its path. It refuses a parent that is a link. */
async function placeFor(fs: FS, path: Path, root: string, name: string): Promise<string> {
  const parts = name.split("/");
  let at = root;
  for (const part of parts.slice(0, -1)) {
    at = path.join(at, part);
    await makeDirectory(fs, at);
  }
  return path.join(at, parts.at(-1)!);
}

/** Makes a directory. The host's umask restricts its mode. An existing directory keeps its mode. */
async function makeDirectory(fs: FS, at: string, mode = 0o777): Promise<void> {
  const info = await fs.lstat(at).catch(() => undefined);
  if (info?.isSymbolicLink()) {
    throw unsafe(`${at} is a link: the archive would be unpacked where it leads`);
  }
  if (info?.isDirectory() !== true) {
    await fs.mkdir(at, mode);
  }
}

/** Returns the target of a hard link: a file of the archive in the directory. */
async function linked(fs: FS, path: Path, root: string, name: string): Promise<string> {
  const parts = name.replace(/^(\.\/)+/, "").split("/");
  if (parts.some((part) => part === "" || part === "." || part === "..")) {
    throw unsafe(`the archive has a link outside of its directory: ${JSON.stringify(name)}`);
  }
  const at = await placeFor(fs, path, root, parts.join("/"));
  if ((await fs.lstat(at)).isFile()) {
    return at;
  }
  throw unsafe(`the archive has a link to something else than a file: ${JSON.stringify(name)}`);
}

/**
 * Writes a file. The sandbox chooses the mode, so only the owner may write to the file, it is
 * executable only if its owner may execute it, and the host's umask restricts its mode further.
 */
async function writeFile(fs: FS, at: string, entry: Entry, reader: Reader): Promise<void> {
  const mode = entry.mode & (entry.mode & 0o100 ? 0o755 : 0o644);
  const file = await fs.open(at, "wx", mode | 0o600);
  try {
    for await (const part of reader.content()) {
      await file.writeFile(part);
    }
    await file.utimes(entry.seconds, entry.seconds);
  } finally {
    await file.close();
  }
}

/** The longest extended header that is read, in bytes. */
const longestExtension = 1 << 20;

/** The maximum number of bytes that are read after the end of an archive. */
const longestEnd = 1 << 20;

/** Bytes of the names and targets that are kept until the end of an archive. */
const maxKept = 128 << 20;

/** Bounds on an archive and on the names in it. They equal the daemon's. */
const maxBytes = 64 * 2 ** 30; // bytes of content
const maxEntries = 4 << 20;
const maxName = 4096; // bytes
const maxPart = 255; // bytes
const maxParts = 256; // a name may end with a slash

/** Reads the entries of an archive. */
class Reader {
  readonly #parts: AsyncIterator<Uint8Array>;
  #rest: Uint8Array = new Uint8Array();
  #left = 0; // bytes of the current entry's content
  #pad = 0;

  constructor(parts: AsyncIterable<Uint8Array>) {
    this.#parts = parts[Symbol.asyncIterator]();
  }

  async end(): Promise<void> {
    await this.#parts.return?.();
  }

  /** Returns the next entry; undefined at the end of the archive. */
  async next(): Promise<Entry | undefined> {
    for await (const _ of this.content()) {
      // skips the rest of the previous entry
    }
    const extended: Extension = {};
    const kinds = new Set<string>(); // of extended headers that this entry had
    for (;;) {
      const bytes = await this.#exactly(block);
      if (bytes.every((byte) => byte === 0)) {
        await this.#drain();
        return undefined;
      }
      const entry = entryOf(bytes);
      if (entry.type === "x" || entry.type === "L" || entry.type === "K") {
        if (!(entry.size >= 0 && entry.size <= longestExtension)) {
          throw unsafe("the archive has a header that is too long");
        }
        if (kinds.has(entry.type)) {
          throw unsafe("the archive has more than one extended header of a kind for an entry");
        }
        kinds.add(entry.type);
        const text = decoder.decode(await this.#exactly(entry.size));
        await this.#exactly(padding(entry.size));
        if (entry.type === "x") {
          Object.assign(extended, recordsOf(text));
        } else {
          extended[entry.type === "L" ? "path" : "linkpath"] = text.replace(/\0+$/, "");
        }
        continue;
      }
      entry.name = extended.path ?? entry.name;
      entry.link = extended.linkpath ?? entry.link;
      entry.size = extended.size === undefined ? entry.size : Number(extended.size);
      if (!Number.isInteger(entry.size) || entry.size < 0) {
        throw unsafe(`the archive has an entry without a proper size: ${JSON.stringify(entry.name.slice(0, 50))}`);
      }
      this.#left = entry.size;
      this.#pad = padding(entry.size);
      return entry;
    }
  }

  /** Reads the padding at the end of an archive. If the stream continues, the rest is not read. */
  async #drain(): Promise<void> {
    for (let left = longestEnd; left > 0; ) {
      const part = await this.#some(left);
      if (part.length === 0) {
        return;
      }
      left -= part.length;
    }
  }

  /** The content of the current entry. */
  async *content(): AsyncGenerator<Uint8Array> {
    while (this.#left > 0) {
      const part = await this.#some(this.#left);
      if (part.length === 0) {
        throw new ForkdError("the archive ends in the middle of a file");
      }
      this.#left -= part.length;
      yield part;
    }
    const pad = this.#pad;
    this.#pad = 0;
    await this.#exactly(pad);
  }

  /** Returns at most n bytes; none at the end of the stream. */
  async #some(most: number): Promise<Uint8Array> {
    while (this.#rest.length === 0) {
      const next = await this.#parts.next();
      if (next.done) {
        return this.#rest;
      }
      this.#rest = next.value;
    }
    const part = this.#rest.subarray(0, most);
    this.#rest = this.#rest.subarray(part.length);
    return part;
  }

  async #exactly(size: number): Promise<Uint8Array> {
    const bytes = new Uint8Array(size);
    for (let at = 0; at < size; ) {
      const part = await this.#some(size - at);
      if (part.length === 0) {
        throw new ForkdError("the archive ends before its end");
      }
      bytes.set(part, at);
      at += part.length;
    }
    return bytes;
  }
}

function entryOf(bytes: Uint8Array): Entry {
  const text = (at: number, width: number): string =>
    decoder.decode(bytes.subarray(at, at + width)).replace(/\0.*$/s, "");
  const number = (at: number, width: number): number => {
    if (bytes[at]! & 0x80) {
      return bytes.subarray(at + 1, at + width).reduce((n, byte) => n * 256 + byte, 0); // GNU's binary form
    }
    return Number.parseInt(text(at, width).trim() || "0", 8);
  };
  const prefix = text(257, 5) === "ustar" ? text(345, 155) : "";
  const name = text(0, 100);
  return {
    name: prefix === "" ? name : `${prefix}/${name}`,
    mode: number(100, 8),
    size: number(124, 12),
    seconds: number(136, 12),
    type: text(156, 1) || "0",
    link: text(157, 100),
  };
}

/** The stored fields of extended headers. */
interface Extension {
  path?: string;
  linkpath?: string;
  size?: string;
}

/** The records of an extended header that are used here. */
function recordsOf(text: string): Extension {
  const found: Extension = {};
  const bytes = encoder.encode(text);
  for (let at = 0; at < bytes.length; ) {
    const length = Number.parseInt(decoder.decode(bytes.subarray(at, at + 20)), 10);
    if (!(length > 0)) {
      break;
    }
    const line = decoder.decode(bytes.subarray(at, at + length - 1));
    const equals = line.indexOf("=");
    const key = line.slice(line.indexOf(" ") + 1, equals);
    if (key === "path" || key === "linkpath" || key === "size") {
      found[key] = line.slice(equals + 1);
    }
    at += length;
  }
  return found;
}
