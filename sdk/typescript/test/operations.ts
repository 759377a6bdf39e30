/** The operations of test/contract, as calls of this SDK. */
import {
  bestOf,
  Client,
  Sandbox,
  type CommandHandle,
  type CommandResult,
  type EventStream,
  type FileWatch,
  type PortConnection,
  type Snapshot,
} from "../src/index.ts";

type Arguments = Record<string, any>; // eslint-disable-line -- data of scenarios
type Call = (object: any, args: Arguments, client: Client) => unknown;

/**
 * An operation: the method as a user writes it, the names of its arguments, and its implementation.
 */
export type Operation = readonly [method: string, args: string, call: Call];

const forkArguments = "n labels env network limits ttl idle_timeout unique hostname_prefix allow_partial mode";
const processArguments = "cmd stdin env cwd user timeout";

/** The remaining arguments as options, with names in camelCase. */
function options(args: Arguments, ...without: string[]): any {
  return Object.fromEntries(
    Object.entries(args)
      .filter(([name]) => !without.includes(name))
      .map(([name, value]) => [camelName(name), inner(name, value)]),
  );
}

function inner(name: string, value: unknown): unknown {
  const nested = ["network", "limits", "before_branch", "after_fork", "before_suspend", "after_resume"];
  return nested.includes(name) ? options(value as Arguments) : value;
}

export function camelName(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** Collects the output of a command from callbacks, as text. */
async function run(box: Sandbox, args: Arguments): Promise<unknown> {
  const seen = { stdout: "", stderr: "" };
  const result = await box.commands.run(args["cmd"], {
    ...options(args, "cmd"),
    onStdout: (text: string) => void (seen.stdout += text),
    onStderr: (text: string) => void (seen.stderr += text),
  });
  return { ...result, seen };
}

/** A build, and the progress that its callback has received. */
async function built(client: Client, args: Arguments): Promise<unknown> {
  const seen = { steps: [] as string[], states: [] as (string | undefined)[], output: "" };
  const snapshot = await client.build({
    ...options(args),
    onProgress: (event) => {
      if (event.type === "plan") {
        seen.steps = event.steps;
      } else if (event.type === "step") {
        seen.states[event.number] = event.state;
      } else {
        seen.output += `${event.line}\n`;
      }
    },
  });
  return { snapshot, cached: snapshot.built!.cached, run: snapshot.built!.run, seen };
}

async function runCode(box: Sandbox, { code, ...args }: Arguments): Promise<unknown> {
  const seen = { stdout: "", stderr: "", results: 0 };
  const { logs, ...execution } = await box.runCode(code, {
    ...options(args),
    onStdout: (text) => void (seen.stdout += text),
    onStderr: (text) => void (seen.stderr += text),
    onResult: () => void seen.results++,
  });
  return { ...execution, stdout: logs.stdout.join(""), stderr: logs.stderr.join(""), seen };
}

async function wait(handle: CommandHandle | CommandHandle<Uint8Array>): Promise<unknown> {
  const { stdoutBytes, stderrBytes, ...result } = await handle.wait();
  const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
  return { ...result, stdout: text(stdoutBytes), stderr: text(stderrBytes), stdoutBytes, stderrBytes };
}

/** A stream from which a scenario takes one element after another. */
class Following<T extends object> {
  readonly stream: AsyncIterable<T> & { stop(): void };
  readonly #items: AsyncIterator<T>;

  constructor(stream: AsyncIterable<T> & { stop(): void }) {
    this.stream = stream;
    this.#items = stream[Symbol.asyncIterator]();
  }

  async next(wanted: Arguments): Promise<T> {
    for (;;) {
      const { done, value } = await this.#items.next();
      if (done) {
        throw new Error("the stream has ended");
      }
      if (Object.entries(options(wanted)).every(([name, field]) => (value as Arguments)[name] === field)) {
        return value as T;
      }
    }
  }
}

async function best(box: Sandbox, { attempts }: Arguments): Promise<unknown> {
  return bestOf(box, attempts, (_, result: CommandResult) => (result.ok ? Number(result.stdout) : undefined));
}

export const operations: Readonly<Record<string, Operation>> = {
  "client.new": ["new Client", "url token timeout retries", (_, args) => new Client(options(args))],
  "client.version": ["client.version", "", (client: Client) => client.version()],
  "client.host_metrics": ["client.hostMetrics", "since until step", (client: Client, args) => client.hostMetrics(args)],
  "client.healthy": ["client.healthy", "", (client: Client) => client.healthy()],
  "client.close": ["client.close", "", (client: Client) => client.close()],
  "client.fork": [
    "client.fork",
    `snapshot ${forkArguments}`,
    (client: Client, args) => client.fork(args["snapshot"], args["n"], options(args, "snapshot", "n")),
  ],
  "client.build": [
    "client.build, Snapshot.build",
    "context tag dockerfile dockerfile_text target build_args secrets no_cache replace",
    built,
  ],
  "client.sandboxes": ["client.sandboxes", "labels", (client: Client, args) => client.sandboxes(args)],
  "client.events": [
    "client.events",
    "sandbox labels after",
    async (client: Client, args) => new Following(await client.events(args)),
  ],
  "events.next": [
    "for await (const event of events)",
    "type sandbox_id",
    (events: Following<object>, args) => events.next(args),
  ],
  "events.close": ["events.stop", "", (events: Following<object>) => (events.stream as EventStream).stop()],

  "sandbox.create": [
    "Sandbox.create",
    `snapshot ${forkArguments}`,
    (_, args, client) => Sandbox.create(args["snapshot"], { client, ...options(args, "snapshot") }),
  ],
  "sandbox.connect": ["Sandbox.connect", "id", (_, { id }, client) => Sandbox.connect(id, { client })],
  "sandbox.list": ["Sandbox.list", "labels", (of, args, client) => Sandbox.list({ client: of ?? client, ...args })],
  "sandbox.info": ["sandbox.getInfo", "", (box: Sandbox) => box.getInfo()],
  "sandbox.stats": ["sandbox.stats", "", (box: Sandbox) => box.stats()],
  "sandbox.metrics": ["sandbox.metrics", "since until step", (box: Sandbox, args) => box.metrics(args)],
  "sandbox.ping": ["sandbox.ping", "", (box: Sandbox) => box.ping()],
  "sandbox.kill": ["sandbox.kill", "", (box: Sandbox) => box.kill()],
  "sandbox.set_labels": ["sandbox.setLabels", "labels", (box: Sandbox, { labels }) => box.setLabels(labels)],
  "sandbox.set_ttl": ["sandbox.setTtl", "ttl", (box: Sandbox, { ttl }) => box.setTtl(ttl)],
  "sandbox.fork": ["sandbox.fork", forkArguments, (box: Sandbox, args) => box.fork(args["n"], options(args, "n"))],
  "sandbox.branch": [
    "sandbox.branch",
    "n tag mode memory wait",
    async (box: Sandbox, args) => {
      const [snapshot, sandboxes] = await box.branch(args["n"], options(args, "n"));
      return { snapshot, sandboxes };
    },
  ],
  "sandbox.rollback": [
    "sandbox.rollback",
    "to unique",
    (box: Sandbox, args) => box.rollback(args["to"], options(args, "to")),
  ],
  "sandbox.promote": [
    "sandbox.promote",
    "child tag mode unique",
    (box: Sandbox, args) => box.promote(args["child"], options(args, "child")),
  ],
  "sandbox.try_all": [
    "sandbox.tryAll",
    "commands n judge keep promote mode env cwd user timeout labels",
    (box: Sandbox, args) => box.tryAll(args["commands"], options(args, "commands")),
  ],
  "sandbox.apply": [
    "sandbox.apply",
    "source base paths prefer dry_run max_files",
    (box: Sandbox, args) => box.apply(args["source"], options(args, "source")),
  ],
  "sandbox.diff": [
    "sandbox.diff",
    "since path patch max_files max_patch_bytes",
    (box: Sandbox, args) => box.diff(args["since"], options(args, "since")),
  ],
  "sandbox.export": [
    "sandbox.export",
    "since path partial",
    async (box: Sandbox, args) =>
      new Uint8Array(await new Response(await box.export(args["since"], options(args, "since"))).arrayBuffer()),
  ],
  "sandbox.pause": ["sandbox.pause", "", (box: Sandbox) => box.pause()],
  "sandbox.resume": ["sandbox.resume", "unique", (box: Sandbox, args) => box.resume(args)],
  "sandbox.suspend": ["sandbox.suspend", "", (box: Sandbox) => box.suspend()],
  "sandbox.console": ["sandbox.console", "", (box: Sandbox) => box.console()],
  "sandbox.logs": ["sandbox.logs", "tail since", (box: Sandbox, args) => box.logs(args)],
  "sandbox.url": ["sandbox.url", "port ttl", (box: Sandbox, { port, ...rest }) => box.url(port, rest)],
  "sandbox.connect_port": ["sandbox.connectPort", "port", (box: Sandbox, { port }) => box.connectPort(port)],
  "connection.write": ["connection.write", "data", (connection: PortConnection, { data }) => connection.write(data)],
  "connection.close_write": ["connection.closeWrite", "", (connection: PortConnection) => connection.closeWrite()],
  "connection.read_all": ["connection.readAll", "", (connection: PortConnection) => connection.readAll()],
  "connection.close": ["connection.close", "", (connection: PortConnection) => connection.close()],

  "sandbox.run_code": ["sandbox.runCode", "code language context env timeout", runCode],
  "sandbox.contexts.create": [
    "sandbox.contexts.create",
    "language cwd",
    (box: Sandbox, args) => box.contexts.create(args),
  ],
  "sandbox.contexts.list": ["sandbox.contexts.list", "", (box: Sandbox) => box.contexts.list()],
  "sandbox.contexts.restart": [
    "sandbox.contexts.restart",
    "context",
    (box: Sandbox, { context }) => box.contexts.restart(context),
  ],
  "sandbox.contexts.interrupt": [
    "sandbox.contexts.interrupt",
    "context",
    (box: Sandbox, { context }) => box.contexts.interrupt(context),
  ],
  "sandbox.contexts.remove": [
    "sandbox.contexts.remove",
    "context",
    (box: Sandbox, { context }) => box.contexts.remove(context),
  ],

  "sandbox.commands.run": ["sandbox.commands.run", `${processArguments} check`, run],
  "sandbox.commands.start": [
    "sandbox.commands.start",
    processArguments,
    (box: Sandbox, args) => box.commands.start(args["cmd"], options(args, "cmd")),
  ],
  "sandbox.commands.connect": ["sandbox.commands.connect", "pid", (box: Sandbox, { pid }) => box.commands.connect(pid)],
  "sandbox.commands.list": ["sandbox.commands.list", "", (box: Sandbox) => box.commands.list()],
  "sandbox.commands.signal": [
    "sandbox.commands.signal",
    "pid name",
    (box: Sandbox, { pid, name }) => box.commands.signal(pid, name),
  ],
  "sandbox.commands.kill": ["sandbox.commands.kill", "pid", (box: Sandbox, { pid }) => box.commands.kill(pid)],
  "sandbox.commands.send_stdin": [
    "sandbox.commands.sendStdin",
    "pid data close",
    async (box: Sandbox, { pid, data, close }) => {
      await box.commands.sendStdin(pid, data);
      if (close) {
        await box.commands.closeStdin(pid);
      }
    },
  ],
  "sandbox.pty.create": [
    "sandbox.pty.create",
    "cols rows cmd env cwd user timeout",
    (box: Sandbox, args) => box.pty.create(args),
  ],
  "command.wait": ["command.wait", "", wait],
  "command.write": ["command.write", "data", (handle: CommandHandle, { data }) => handle.write(data)],
  "command.close_stdin": ["command.closeStdin", "", (handle: CommandHandle) => handle.closeStdin()],
  "command.signal": ["command.signal", "name", (handle: CommandHandle, { name }) => handle.signal(name)],
  "command.kill": ["command.kill", "", (handle: CommandHandle) => handle.kill()],
  "command.resize": [
    "command.resize",
    "cols rows",
    (handle: CommandHandle, { cols, rows }) => handle.resize(cols, rows),
  ],
  "command.detach": ["command.detach", "", (handle: CommandHandle) => handle.detach()],

  "sandbox.files.read": [
    "sandbox.files.read",
    "path user",
    (box: Sandbox, { path, ...rest }) => box.files.read(path, rest),
  ],
  "sandbox.files.read_bytes": [
    "sandbox.files.readBytes",
    "path user",
    (box: Sandbox, { path, ...rest }) => box.files.readBytes(path, rest),
  ],
  "sandbox.files.write": [
    "sandbox.files.write",
    "path data user",
    (box: Sandbox, { path, data, ...rest }) => box.files.write(path, data, rest),
  ],
  "sandbox.files.list": [
    "sandbox.files.list",
    "path depth user",
    (box: Sandbox, { path, ...rest }) => box.files.list(path, rest),
  ],
  "sandbox.files.stat": [
    "sandbox.files.stat",
    "path user",
    (box: Sandbox, { path, ...rest }) => box.files.stat(path, rest),
  ],
  "sandbox.files.exists": [
    "sandbox.files.exists",
    "path user",
    (box: Sandbox, { path, ...rest }) => box.files.exists(path, rest),
  ],
  "sandbox.files.make_dir": [
    "sandbox.files.makeDir",
    "path user",
    (box: Sandbox, { path, ...rest }) => box.files.makeDir(path, rest),
  ],
  "sandbox.files.rename": [
    "sandbox.files.rename",
    "old new user",
    (box: Sandbox, args) => box.files.rename(args["old"], args["new"], options(args, "old", "new")),
  ],
  "sandbox.files.remove": [
    "sandbox.files.remove",
    "path user",
    (box: Sandbox, { path, ...rest }) => box.files.remove(path, rest),
  ],
  "sandbox.files.watch": [
    "sandbox.files.watch",
    "path recursive user",
    async (box: Sandbox, { path, ...rest }) => new Following(await box.files.watch(path, rest)),
  ],
  "watch.next": [
    "for await (const change of watch)",
    "type name",
    (watch: Following<object>, args) => watch.next(args),
  ],
  "watch.close": ["watch.stop", "", (watch: Following<object>) => (watch.stream as FileWatch).stop()],
  "sandbox.files.read_tree": [
    "sandbox.files.readTree",
    "path user",
    async (box: Sandbox, { path, ...rest }) =>
      new Uint8Array(await new Response(await box.files.readTree(path, undefined, rest)).arrayBuffer()),
  ],
  "sandbox.files.write_tree": [
    "sandbox.files.writeTree",
    "path source user",
    (box: Sandbox, { path, source, ...rest }) => box.files.writeTree(path, source, rest),
  ],

  "sandbox.network.get": ["sandbox.network.get", "", (box: Sandbox) => box.network.get()],
  "sandbox.network.set": [
    "sandbox.network.set",
    "mode allow deny allow_ech limits secrets",
    (box: Sandbox, args) => box.network.set(options(args)),
  ],
  "sandbox.limits.get": ["sandbox.limits.get", "", (box: Sandbox) => box.limits.get()],
  "sandbox.limits.set": [
    "sandbox.limits.set",
    "memory_mib swap_mib cpus cpu_weight io_bytes_per_second io_ops_per_second",
    (box: Sandbox, args) => box.limits.set(options(args)),
  ],
  "sandbox.hooks.get": ["sandbox.hooks.get", "", (box: Sandbox) => box.hooks.get()],
  "sandbox.hooks.set": [
    "sandbox.hooks.set",
    "before_branch after_fork before_suspend after_resume",
    (box: Sandbox, args) => box.hooks.set(options(args)),
  ],

  "snapshots.list": ["client.snapshots.list", "", (client: Client) => client.snapshots.list()],
  "snapshots.get": ["client.snapshots.get", "tag", (client: Client, { tag }) => client.snapshots.get(tag)],
  "snapshots.info": ["client.snapshots.getInfo", "tag", (client: Client, { tag }) => client.snapshots.getInfo(tag)],
  "snapshots.delete": [
    "client.snapshots.delete",
    "tag cascade force",
    (client: Client, { tag, ...rest }) => client.snapshots.delete(tag, rest),
  ],
  "snapshots.verify": ["client.snapshots.verify", "tag", (client: Client, { tag }) => client.snapshots.verify(tag)],
  "snapshots.compact": [
    "client.snapshots.compact",
    "tag to",
    (client: Client, { tag, to }) => client.snapshots.compact(tag, to),
  ],
  "snapshots.bake": [
    "client.snapshots.bake",
    "tag kernel initrd rootfs memory_mib vcpus",
    (client: Client, args) => client.snapshots.bake(args["tag"], options(args, "tag")),
  ],
  "snapshot.fork": [
    "snapshot.fork",
    "n labels",
    (snapshot: Snapshot, args) => snapshot.fork(args["n"], options(args, "n")),
  ],

  "workspaces.create": [
    "client.workspaces.create",
    "name snapshot labels env network limits idle_timeout",
    (client: Client, args) =>
      client.workspaces.create(args["name"], args["snapshot"], options(args, "name", "snapshot")),
  ],
  "workspaces.list": ["client.workspaces.list", "", (client: Client) => client.workspaces.list()],
  "workspaces.get": ["client.workspaces.get", "name", (client: Client, { name }) => client.workspaces.get(name)],
  "workspaces.suspend": [
    "client.workspaces.suspend",
    "name",
    (client: Client, { name }) => client.workspaces.suspend(name),
  ],
  "workspaces.resume": [
    "client.workspaces.resume",
    "name",
    (client: Client, { name }) => client.workspaces.resume(name),
  ],
  "workspaces.delete": [
    "client.workspaces.delete",
    "name",
    (client: Client, { name }) => client.workspaces.delete(name),
  ],

  best_of: ["bestOf", "attempts", best],
};
