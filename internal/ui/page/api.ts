// Requests to the REST API, through the server of the view. Paths are relative to the page.

// byDaemon is true if the daemon itself serves the page, and not 'forkd ui'.
export const byDaemon = location.pathname.startsWith("/ui/");

export interface Sandbox {
  id: string;
  snapshot_tag: string;
  created_at_unix: number;
  state: string;
  hostname: string;
  network: string;
  labels?: Record<string, string>;
  latest_tag?: string;
  owner?: string;
  workspace?: string;
  exit_reason?: string;
  exit_detail?: string;
  disk_full?: boolean;
  not_answering?: boolean;
  expires_at_unix?: number;
  ready_ms?: number;
}

export interface Snapshot {
  tag: string;
  created_at_unix: number;
  status: string;
  step?: string;
  sandboxes: number;
  branched_from?: string;
  sandbox_id?: string;
  mem_size_mib?: number;
  dirty_bytes?: number;
  pause_ms?: number;
  mode?: string;
  persist_status: string;
  warning?: string;
  labels?: Record<string, string>;
  disk_only?: boolean;
  built?: boolean;
  transient?: boolean;
}

export interface Stats {
  pss_kib?: number; // this and the next are not measured for every sandbox
  private_kib?: number;
  guest_dirty_kib: number;
  disk_since_latest_kib?: number;
  usage?: { cpu_seconds: number; read_bytes: number; written_bytes: number; cpus?: number };
}

export interface Event {
  id: string;
  time: string;
  type: string;
  sandbox_id?: string;
  snapshot_tag?: string;
  labels?: Record<string, string>;
  reason?: string;
  detail?: string;
  sandbox?: Sandbox; // records, with the query parameter of the same name
  snapshot?: Snapshot;
}

export interface Version {
  version: string;
  api: string;
  accel: string;
  scope?: string;
  host_memory_mib: number;
  no_kvm?: string;
  limits_missing?: string;
  admission: { max_sandboxes: number; vcpu_overcommit: number; memory_reserve_mib: number; disk_reserve_mib: number };
  left_alone?: string[];
}

export interface Process {
  pid: number;
  args: string[];
  cwd?: string;
}

export interface File {
  name: string;
  path: string;
  type: string;
  size: number;
  permissions: string;
  owner: string;
  modified: string;
  symlink_target?: string;
}

export interface Diff {
  from: string;
  to: string;
  files: DiffFile[];
  added: number;
  changed: number;
  deleted: number;
  omitted?: number;
  memory_bytes?: number;
}

export interface DiffFile {
  path: string;
  change: string;
  lines_added?: number;
  lines_deleted?: number;
  patch?: string;
  patch_omitted?: string;
  old?: { size: number };
  new?: { size: number };
}

export interface CodeEvent {
  stdout?: string;
  stderr?: string;
  result?: { main: boolean; data: Record<string, unknown> };
  exception?: { name: string; value: string; traceback: string };
  end?: { outcome: string };
  error?: string;
}

// Failure is an answer other than success.
export class Failure extends Error {
  constructor(readonly status: number, readonly code: string, message: string) {
    super(message);
  }
}

// missing has the query parameters and the ends of paths that the daemon does not know, because
// 'forkd ui' may be newer than its daemon.
const missing = new Set<string>();

export const lacks = (what: string) => missing.has(what);
export const lacking = () => [...missing].sort();

// spare has parameters that only save the daemon work.
const spare = ["gather_secs", "max_age_secs", "records"];

// known returns a path without parameters that the daemon does not know.
function known(path: string): string {
  const [route = "", query] = path.split("?");
  const kept = (query ?? "").split("&").filter((pair) => pair !== "" && !missing.has(pair.split("=")[0]!));
  return kept.length === 0 ? route : `${route}?${kept.join("&")}`;
}

export async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { "Forkd-View": "1" };
  let content: BodyInit | undefined;
  if (body instanceof Blob) {
    content = body;
  } else if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    content = JSON.stringify(body);
  }
  let answer: Response;
  try {
    answer = await fetch(known(path), { method, headers, body: content, signal });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new Failure(0, "view_away", byDaemon ? "no answer" : "'forkd ui' does not answer any more: start it again");
  }
  if (answer.ok) return answer;
  let problem: { code?: string; detail?: string; fix?: string } = {};
  try {
    problem = (await answer.json()) ?? {};
  } catch {
    // not a problem of the API
  }
  const detail = problem.detail ?? `status ${answer.status}`;
  const unknown = spare.find((name) => detail.startsWith(`${name}: unknown query parameter`));
  if (answer.status === 400 && unknown !== undefined && !missing.has(unknown)) {
    missing.add(unknown);
    return send(method, path, body, signal);
  }
  if (problem.code !== "no_such_route") throw new Failure(answer.status, problem.code ?? "", detail);
  missing.add(path.split("?")[0]!.split("/").pop()!);
  throw new Failure(answer.status, problem.code, `${detail}: the daemon is older than this page: update it`);
}

export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const text = await (await send(method, path, body, signal)).text();
  return (text === "" ? {} : JSON.parse(text)) as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => call<T>("GET", path, undefined, signal);

// list returns all pages of a list.
export async function list<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const all: T[] = [];
  for (let next: string | undefined = `${path}?limit=1000`; next !== undefined; ) {
    const answer: Response = await send("GET", next, undefined, signal);
    all.push(...((await answer.json()) as T[]));
    const link = /<\/([^>]*)>;\s*rel="?next/.exec(answer.headers.get("Link") ?? "");
    next = link?.[1];
  }
  return all;
}

// lines calls f with each line of a streamed answer.
export async function lines(answer: Response, f: (line: string) => void): Promise<void> {
  await chunks(answer, (text, rest) => {
    const parts = (rest + text).split("\n");
    const last = parts.pop()!;
    parts.forEach(f);
    return last;
  });
}

async function chunks(answer: Response, f: (text: string, rest: string) => string): Promise<void> {
  const reader = answer.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest = f(decoder.decode(value, { stream: true }), rest);
  }
}

// follow calls f with the text of a streamed answer until it ends.
export async function follow(path: string, signal: AbortSignal, f: (text: string) => void): Promise<void> {
  await chunks(await send("GET", path, undefined, signal), (text) => {
    f(text);
    return "";
  });
}

export const box = (id: string, rest = "") => `v1/sandboxes/${encodeURIComponent(id)}${rest}`;

export function socket(path: string): WebSocket {
  const url = new URL(path, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const ws = new WebSocket(url);
  ws.binaryType = "arraybuffer";
  return ws;
}
