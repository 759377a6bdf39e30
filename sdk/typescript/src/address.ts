import { InvalidArgumentError } from "./error.ts";
import { builtin, env } from "./node.ts";

/** The address of a daemon. */
export interface Address {
  /** As given: unix:///path, http://host:port or https://host:port. */
  readonly url: string;
  /** The URL to which paths of the API are appended. */
  readonly base: string;
  /** Path of the unix socket; undefined for TCP. */
  readonly socket: string | undefined;
  readonly token: string | undefined;
}

const want = "want unix:///path, http://host:port or https://host:port";

/**
 * Returns the daemon's address: url if it is given, else $FORKD_URL, else that of the running
 * emulated host, else the local socket. The command line looks in the same places.
 */
export function findDaemon(url?: string, token?: string): Address {
  const named = url ?? env("FORKD_URL");
  if (named !== undefined) {
    return parseAddress(named, token ?? env("FORKD_TOKEN"), url === undefined ? "FORKD_URL" : "url");
  }
  const machine = runningMachine();
  if (machine !== undefined) {
    return parseAddress(machine.url, token ?? machine.token, "the emulated host's state.json");
  }
  return parseAddress(`unix://${localSocket()}`, token ?? env("FORKD_TOKEN"), "url");
}

/** Parses an address. Errors name source. */
export function parseAddress(text: string, token: string | undefined, source: string): Address {
  let parsed: URL;
  try {
    parsed = new URL(text);
  } catch {
    throw new InvalidArgumentError(source, `${JSON.stringify(text)}: ${want}`);
  }
  if (parsed.protocol === "unix:" && parsed.host === "" && parsed.pathname.length > 1) {
    return { url: text, base: "http://forkd", socket: decodeURIComponent(parsed.pathname), token };
  }
  if (
    (parsed.protocol !== "http:" && parsed.protocol !== "https:") ||
    parsed.host === "" ||
    parsed.search ||
    parsed.hash
  ) {
    throw new InvalidArgumentError(source, `${JSON.stringify(text)}: ${want}`);
  }
  if (parsed.username || parsed.password) {
    throw new InvalidArgumentError(source, "has a user: give the token as token, or as $FORKD_TOKEN");
  }
  const base = `${parsed.protocol}//${parsed.host}${parsed.pathname.replace(/\/+$/, "")}`;
  return { url: text, base, socket: undefined, token };
}

/** The socket of this user's daemon. For root, that is the system's daemon. */
function localSocket(): string {
  const os = builtin("node:os");
  const uid = os?.userInfo().uid;
  if (os === undefined || uid === undefined) {
    throw new InvalidArgumentError("url", "is not given, and there is no FORKD_URL: say where the daemon is");
  }
  let run = uid === 0 ? "/run" : env("XDG_RUNTIME_DIR");
  if (!run?.startsWith("/")) {
    run = `${env("TMPDIR") ?? "/tmp"}/forkd-run-${uid}`;
    checkOwner(run, uid);
  }
  checkOwner(`${run}/forkd`, uid);
  return `${run}/forkd/forkd.sock`;
}

/**
 * Refuses a directory that another user owns or may write to, because the socket in it may be
 * another user's.
 */
export function checkOwner(directory: string, uid: number): void {
  const fs = builtin("node:fs");
  let there;
  try {
    there = fs?.lstatSync(directory);
  } catch {
    return; // no daemon is there, which the first request reports
  }
  if (uid < 0 || there === undefined) {
    return; // Windows, where directories have no such owners
  }
  if (!there.isDirectory() || (there.uid !== uid && there.uid !== 0) || (there.mode & 0o022) !== 0) {
    throw new InvalidArgumentError(
      "url",
      `is not given, and ${directory} may be another user's, and so may the daemon: want a directory, no link, ` +
        `that user ${uid} or root owns, and that no group and no other user may write to. Remove it, and start ` +
        "the daemon again; or name the daemon's address as url, or by $FORKD_URL",
    );
  }
}

/** The directory of files that forkd can make again, including its emulated hosts. */
function cacheDirectory(): string | undefined {
  const own = env("FORKD_CACHE");
  if (own !== undefined) {
    if (!own.startsWith("/")) {
      throw new InvalidArgumentError("FORKD_CACHE", `${JSON.stringify(own)}: want an absolute path`);
    }
    return own;
  }
  const xdg = env("XDG_CACHE_HOME");
  if (xdg?.startsWith("/")) {
    return `${xdg}/forkd`;
  }
  const home = env("HOME");
  return home?.startsWith("/") ? `${home}/.cache/forkd` : undefined;
}

/** The part of an emulated host's state file that is needed here. */
interface MachineState {
  phase?: string;
  daemon_addr?: string;
  supervisor?: { pid?: number; start_time?: number };
}

/** The daemon of the emulated host $FORKD_MACHINE; undefined unless that host runs. */
function runningMachine(): { url: string; token: string | undefined } | undefined {
  const fs = builtin("node:fs");
  const cache = cacheDirectory();
  const name = env("FORKD_MACHINE") ?? "default";
  if (fs === undefined || cache === undefined || !/^[a-z0-9-]{1,32}$/.test(name)) {
    return undefined;
  }
  const directory = `${cache}/machine/${name}`;
  const read = (path: string): string | undefined => {
    try {
      return fs.readFileSync(path, "utf8");
    } catch {
      return undefined; // the file does not exist, or belongs to another user
    }
  };
  const text = read(`${directory}/state.json`);
  if (text === undefined) {
    return undefined;
  }
  const state = JSON.parse(text) as MachineState;
  if (state.phase !== "ready" || state.daemon_addr === undefined || !runs(read, state.supervisor)) {
    return undefined;
  }
  return { url: `http://${state.daemon_addr}`, token: read(`${directory}/daemon/token`)?.trim() };
}

/**
 * Reports whether the recorded process is still running. Another process may have its id by now.
 */
function runs(read: (path: string) => string | undefined, of: MachineState["supervisor"]): boolean {
  const stat = of?.pid === undefined ? undefined : read(`/proc/${of.pid}/stat`);
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ");
  return fields?.[19] === String(of?.start_time);
}
