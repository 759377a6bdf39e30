/**
 * A sandbox for the package `bash-tool`.
 *
 * @packageDocumentation
 */
import { checkEnv, checkOptions, checkSeconds } from "./check.ts";
import type { Sandbox } from "./sandbox.ts";

/** How commands run. */
export interface BashToolOptions {
  user?: string | undefined;
  /** Environment of commands. */
  env?: Record<string, string> | undefined;
  /** Seconds that a command may take, up to 3600; default 1800. */
  timeout?: number | undefined;
}

/** The interface of bash-tool's `sandbox` option. */
export interface BashToolSandbox {
  executeCommand(command: string): Promise<{ stdout: string; stderr: string; exitCode: number }>;
  readFile(path: string): Promise<string>;
  writeFiles(files: { path: string; content: string | Uint8Array }[]): Promise<void>;
}

/** Bytes of each output of a command; the rest is dropped. */
const maxOutput = 16 << 20;

/**
 * Returns a value for the option `sandbox` of createBashTool. Commands need bash in the image. If a
 * command times out, its exit code is 124, and stderr has the reason.
 */
export function bashToolSandbox(sandbox: Sandbox, options: BashToolOptions = {}): BashToolSandbox {
  checkOptions(options, "user", "env", "timeout");
  checkEnv(options.env);
  checkSeconds("timeout", options.timeout, 3600);
  const { user, env, timeout = 1800 } = options;
  return {
    async executeCommand(command) {
      const result = await sandbox.commands.run(["bash", "-c", command], { user, env, timeout, maxOutput });
      const { exitCode, stdout, stderr, error } = result;
      return { exitCode, stdout, stderr: error === undefined ? stderr : `${stderr}${error}\n` };
    },
    readFile: (path) => sandbox.files.read(path, { user }),
    async writeFiles(files) {
      for (const { path, content } of files) {
        await sandbox.files.write(path, content, { user });
      }
    },
  };
}
