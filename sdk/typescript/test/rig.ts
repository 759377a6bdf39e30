/** A daemon for tests: the real API over faked VMs; see test/contract/rigd. */
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export class Rig {
  readonly url: string;
  readonly socket: string;
  readonly token: string;
  readonly snapshot: string;
  /** A directory that sandboxes see too, because their file system is that of this host. */
  readonly tmp: string;
  /** A file that can be baked. */
  readonly file: string;
  readonly pid: number;
  readonly #process: ChildProcess;

  private constructor(process: ChildProcess, line: string) {
    const said = JSON.parse(line) as {
      url: string;
      socket: string;
      token: string;
      snapshot: string;
      tmp: string;
      file: string;
      pid: number;
    };
    this.url = said.url;
    this.socket = said.socket;
    this.token = said.token;
    this.snapshot = said.snapshot;
    this.tmp = said.tmp;
    this.file = said.file;
    this.pid = said.pid;
    this.#process = process;
  }

  /** Starts the program $FORKD_RIGD, or one that it builds. */
  static async start(...args: string[]): Promise<Rig> {
    const program = process.env["FORKD_RIGD"] ?? build();
    const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
    for await (const line of createInterface({ input: child.stdout })) {
      return new Rig(child, line);
    }
    throw new Error(`${program} has ended before it was ready`);
  }

  /** Requests a fault; see test/contract/rigd. */
  async fault(fault: object): Promise<void> {
    const answer = await fetch(`${this.url}/_rig/faults`, { method: "POST", body: JSON.stringify(fault) });
    if (!answer.ok) {
      throw new Error(await answer.text());
    }
  }

  async state(): Promise<{ vms: number; connections: number; total: number; requests: Record<string, number> }> {
    return (await fetch(`${this.url}/_rig/state`, { headers: { connection: "close" } })).json() as never;
  }

  /** Stops the daemon, and reports whether all traffic conformed to the document of the API. */
  async stop(): Promise<void> {
    const ended = new Promise<number | null>((resolve) => this.#process.on("exit", resolve));
    this.#process.stdin!.end();
    const code = await ended;
    if (code !== 0) {
      throw new Error(`rigd ended with status ${code}`);
    }
  }
}

/** Builds the program. With FORKD_RIGD, a run of several test files is faster. */
function build(): string {
  const directory = mkdtempSync(join(tmpdir(), "forkd-rigd-"));
  process.on("exit", () => rmSync(directory, { recursive: true }));
  const program = join(directory, "rigd");
  execFileSync("go", ["build", "-o", program, "./test/contract/rigd"], {
    cwd: new URL("../../..", import.meta.url),
    stdio: "inherit",
  });
  return program;
}
