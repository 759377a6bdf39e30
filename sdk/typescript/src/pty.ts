import { checkFunction, checkInteger, checkOptions } from "./check.ts";
import { argsOf, checkProcess, execute, longest, started, type Command, type ProcessOptions } from "./commands.ts";
import { knowsE2B } from "./e2b.ts";
import { type CommandHandle, type OutputCallback, type ProcessPlace } from "./process.ts";
import { callOptions } from "./wire.ts";

/** Options of pty.create. */
export interface PtyOptions extends ProcessOptions {
  /** Size of the terminal in characters; default 80 by 24. */
  cols?: number | undefined;
  rows?: number | undefined;
  /** The command; default: a login shell, bash if the image has it. */
  cmd?: Command | undefined;
  /** Receives the terminal's output as it arrives. */
  onData?: OutputCallback<Uint8Array> | undefined;
  /** Seconds that the command may run; default: unlimited. */
  timeout?: number | undefined;
}

const loginShell = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l"];

/** Terminals of a sandbox. */
export class Pty {
  static {
    knowsE2B("Pty", this.prototype);
  }

  readonly #place: ProcessPlace;

  /** @internal */
  constructor(place: ProcessPlace) {
    this.#place = place;
  }

  /**
   * Starts a command with a terminal. All its output is stdout, as bytes. The result keeps the
   * first 1 MiB.
   */
  async create(options: PtyOptions = {}): Promise<CommandHandle<Uint8Array>> {
    checkOptions(options, "cols", "rows", "cmd", "onData", "env", "cwd", "user", "timeout", ...callOptions);
    const { cols = 80, rows = 24, cmd = loginShell, onData, ...rest } = options;
    checkInteger("cols", cols, 1, 65535);
    checkInteger("rows", rows, 1, 65535);
    checkFunction("onData", onData);
    const args = argsOf(cmd);
    checkProcess(rest, longest);
    const output = { text: false, onStdout: onData, maxOutput: 1 << 20, ...rest };
    return started(
      await execute<Uint8Array>(this.#place, args, output, {
        tty: { cols, rows },
        timeout_secs: rest.timeout ?? longest,
      }),
    );
  }
}
