// Commands that run in forks of a sandbox. A run goes on while other pages of the view are shown.
import * as api from "./api";
import { store } from "./store";
import { plain } from "./text";
import { sandboxKey } from "./tree";

export interface Result {
  index: number;
  sandbox_id: string;
  exec?: { exit_code: number; signal?: string; timed_out: boolean; error?: string };
  error?: string;
  ms: number;
  private_kib?: number;
  memory_written_kib?: number;
  disk_written_kib?: number;
  output: string; // what the page shows of stdout and stderr
}

interface Event {
  started?: { sandboxes: string[]; pause_ms: number; fork_wall_ms: number };
  result?: Omit<Result, "output" | "exec"> & { exec?: Result["exec"] & { stdout: string; stderr: string } };
  end?: { kept: api.Sandbox[] };
  error?: string;
}

export interface Run {
  command: string;
  n: number;
  state: "running" | "ended" | "failed";
  problem: string;
  forks: string[]; // ids, in the order of the results
  pause?: number; // milliseconds
  results: Map<number, Result>;
  stop: () => void;
}

// runs has the last run of each sandbox, by id.
export const runs = new Map<string, Run>();

const maxOutput = 32 * 1024; // characters of one result that the page keeps
const maxRuns = 8;

export function start(id: string, command: string, n: number): void {
  const stream = new AbortController();
  const run: Run = { command, n, state: "running", problem: "", forks: [], results: new Map(), stop: () => stream.abort() };
  runs.delete(id);
  runs.set(id, run);
  for (const [old, r] of runs) if (runs.size > maxRuns && r.state !== "running") runs.delete(old);
  void follow(id, run, stream.signal).finally(() => store.changed("any"));
}

async function follow(id: string, run: Run, signal: AbortSignal): Promise<void> {
  try {
    const body = { n: run.n, args: ["/bin/sh", "-c", run.command], keep: "all" };
    await api.lines(await api.send("POST", api.box(id, "/try"), body, signal), (line) => {
      take(run, JSON.parse(line) as Event);
      store.changed("any");
    });
    if (run.state === "running") fail(run, "the daemon has ended the answer");
  } catch (e) {
    fail(run, signal.aborted ? "stopped: no fork stays" : String((e as Error).message ?? e));
  }
}

function fail(run: Run, problem: string) {
  run.state = "failed";
  run.problem = problem;
}

function take(run: Run, e: Event) {
  if (e.started) {
    run.forks = e.started.sandboxes;
    run.pause = e.started.pause_ms;
  } else if (e.result) {
    const { exec, ...rest } = e.result;
    const all = exec ? [exec.stdout, exec.stderr].filter(Boolean).join("\n") : "";
    const output = plain(all.slice(0, maxOutput)) + (all.length > maxOutput ? "\n…" : "");
    const end = exec && { exit_code: exec.exit_code, signal: exec.signal, timed_out: exec.timed_out, error: exec.error };
    run.results.set(rest.index, { ...rest, output, exec: end });
  } else if (e.end) {
    run.state = "ended";
    for (const s of e.end.kept) store.model.putSandbox(s);
    store.want(...e.end.kept.map((s) => sandboxKey(s.id))); // it can have been deleted since
    run.forks = run.forks.map((fork) => (e.end!.kept.some((s) => s.id === fork) ? fork : ""));
  } else if (e.error !== undefined) {
    fail(run, e.error);
  }
}
