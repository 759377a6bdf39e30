// Made by scripts/generate.ts from sdk/e2b.json; do not edit.

/** Members of classes of E2B's SDK, and what they are here. */
export const e2bNames: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  Sandbox: {
    getHost: "url(port)",
    setTimeout: "setTtl(seconds)",
    getMetrics: "stats()",
    createSnapshot: "branch()",
    listSnapshots: "client.snapshots.list()",
    deleteSnapshot: "client.snapshots.delete(tag)",
    betaPause: "pause(), or suspend() to free its memory",
    updateNetwork: "network.set(policy)",
    downloadUrl: "files.read(path)",
    uploadUrl: "files.write(path, data)",
    getMcpUrl: "the tools of `forkd mcp`, see docs/mcp.md",
    git: 'commands.run(["git", …])',
  },
  Commands: {
    streamInput: "start(cmd, { stdin: true }), and write(data) of its handle",
  },
  Pty: {
    sendInput: "sendStdin(data) of the handle",
    sendStdin: "sendStdin(data) of the handle",
    resize: "resize(cols, rows) of the handle",
    kill: "kill() of the handle, or commands.kill(pid)",
    connect: "commands.connect(pid)",
  },
  CommandHandle: {
    stdout: "stdout of what wait() returns",
    stderr: "stderr of what wait() returns",
    exitCode: "exitCode of what wait() returns",
  },
  Files: {
    watchDir: "watch(path)",
    writeFiles: "write(path, data) or writeTree(path, source)",
  },
};

/** Calls of such a class itself. */
export const e2bStatics: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  Sandbox: {
    kill: "(await Sandbox.connect(id)).kill()",
    getInfo: "(await Sandbox.connect(id)).getInfo()",
    setTimeout: "(await Sandbox.connect(id)).setTtl(seconds)",
    getMetrics: "(await Sandbox.connect(id)).stats()",
    pause: "(await Sandbox.connect(id)).suspend()",
    resume: "(await Sandbox.connect(id)).resume()",
    betaPause: "(await Sandbox.connect(id)).suspend()",
    betaCreate: "Sandbox.create(snapshot)",
    createSnapshot: "(await Sandbox.connect(id)).branch(0, { tag })",
    listSnapshots: "client.snapshots.list()",
    deleteSnapshot: "client.snapshots.delete(tag)",
  },
};

/** Options that E2B's SDK and others have, and what they are here. */
export const e2bOptions: Readonly<Record<string, string>> = {
  envs: "env",
  envVars: "env",
  metadata: "labels",
  query: "labels: { name: value }",
  template: "the first argument, the tag of a snapshot",
  snapshotTag: "the first argument",
  sandboxId: "the first argument, its id",
  timeout: "ttl of a sandbox, or requestTimeout of a request",
  timeoutMs: "timeout of a command, or ttl of a sandbox, in seconds",
  requestTimeoutMs: "requestTimeout, in seconds",
  lifecycle: "idleTimeout, after which it is suspended",
  autoPause: "idleTimeout, after which it is suspended",
  allowInternetAccess: 'network: "none"',
  apiKey: "token",
  apiUrl: "url",
  domain: "url",
  background: "start() instead of run()",
  onError: "error of what runCode returns",
  onData: "onData of pty.create",
  onEvent: "the changes, to iterate over",
  size: "cols and rows",
  oldPath: "the first argument",
  newPath: "the second argument",
  count: "the first argument, n",
};
