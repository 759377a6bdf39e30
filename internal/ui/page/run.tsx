// The page that runs a command in forks of a sandbox, and shows the results side by side.
import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import * as api from "./api";
import { type Action, Calls, Note, Problem } from "./dialog";
import { Icon } from "./rows";
import { type Result, type Run, runs, start } from "./runs";
import { store, useStore } from "./store";
import { bytes, plural } from "./text";
import { nameOf, type Node, shortID } from "./tree";

export function RunPage({ n, ask }: { n: Node; ask: (a: Action) => void }) {
  useStore("any");
  const id = n.sandbox!.id;
  const run = runs.get(id);
  const [command, setCommand] = useState(run?.command ?? "");
  const [count, setCount] = useState(String(run?.n ?? 3));
  const submit = (e: Event) => {
    e.preventDefault();
    start(id, command, Number(count));
    store.changed("any");
  };
  const left = run?.state === "ended" ? run.forks.filter((fork) => store.sandboxes.has(fork)) : [];
  return (
    <main class="page" id="main">
      <a class="back" href="#/">← Tree</a>
      <h1><Icon n={n} /> Run in forks of {nameOf(n)}</h1>
      <p class="explain">
        Branches the sandbox once, and runs the command in forks of it, all from the same state. Then you keep one, let the
        sandbox go on as one, or keep none. The number of a fork is in <code>FORKD_TRY_INDEX</code>.
      </p>
      <form class="toolbar" onSubmit={submit}>
        <label for="command">Command</label>
        <input id="command" class="wide" type="text" required autocomplete="off" spellcheck={false} value={command}
          onInput={(e) => setCommand((e.target as HTMLInputElement).value)} />
        <label for="forks">Forks</label>
        <input id="forks" type="number" min="1" max="64" required value={count}
          onInput={(e) => setCount((e.target as HTMLInputElement).value)} />
        {run?.state === "running"
          ? <button type="button" onClick={run.stop}>Stop</button>
          : <button class="primary" disabled={n.sandbox!.state !== "running"}>Run</button>}
      </form>
      {run && <p class="totals" role="status">{summary(run)}</p>}
      <Problem text={run?.problem ?? ""} />
      {run?.state === "running" && <Note>The forks belong to this page until all have ended: none stays if you close it.</Note>}
      {left.length > 0 && (
        <div class="actions">
          <button class="danger-soft" onClick={() => ask(discard(left))}>Keep none</button>
          <span class="note">{plural(left.length, "fork")} left. Without a choice they stay, as sandboxes of the tree.</span>
        </div>
      )}
      <div class="forks">
        {run?.forks.map((fork, i) => (
          <Fork key={fork || i} id={id} fork={fork} index={i} result={run.results.get(i)} n={n} ask={ask} left={left} />
        ))}
      </div>
      <Calls name="try" values={{ id, n: Number(count), command }} />
    </main>
  );
}

function summary(run: Run): string {
  const ended = [...run.results.values()];
  const good = ended.filter((r) => r.exec?.exit_code === 0 && !r.exec.error).length;
  return `${ended.length} of ${plural(run.n, "fork")} ended, ${good} with exit code 0` +
    (run.pause === undefined ? "" : `; the sandbox paused for ${run.pause.toFixed(1)} ms`);
}

function how(r: Result): string {
  if (r.exec === undefined) return r.error ?? "no result";
  if (r.exec.timed_out) return "timed out";
  return r.exec.signal ? `killed by ${r.exec.signal}` : `exit code ${r.exec.exit_code}`;
}

function Fork({ id, fork, index, result, n, ask, left }: {
  id: string; fork: string; index: number; result?: Result; n: Node; ask: (a: Action) => void; left: string[];
}) {
  const stays = left.includes(fork);
  const good = result?.exec?.exit_code === 0 && !result.exec.error;
  return (
    <article class="card" aria-label={`fork ${index}`}>
      <h2>
        Fork {index} <span class={`state ${result === undefined ? "paused" : good ? "running" : "exited"}`}>
          {result === undefined ? "running" : how(result)}</span>
      </h2>
      {result && (
        <Fragment>
          <p class="explain">
            {(result.ms / 1000).toFixed(2)} s
            {result.memory_written_kib !== undefined && <span>, wrote {bytes(result.memory_written_kib * 1024)} of memory</span>}
            {result.disk_written_kib !== undefined && <span> and {bytes(result.disk_written_kib * 1024)} of disk</span>}
          </p>
          <pre class="output" tabIndex={0} aria-label={`output of fork ${index}`}>{result.output || "no output\n"}</pre>
        </Fragment>
      )}
      {stays && (
        <div class="actions">
          <a class="button" href={`#/diff/${encodeURIComponent(id)}/${encodeURIComponent(fork)}`}>What changed</a>
          <button onClick={() => ask(keep(fork, index, left))}>Keep only this</button>
          <button class="danger-soft" onClick={() => ask(promote(n, fork, index, left))}>Promote</button>
        </div>
      )}
    </article>
  );
}

// kill deletes forks. A fork that is gone already is no error.
async function kill(forks: string[]): Promise<void> {
  for (const fork of forks) {
    await api.call("DELETE", api.box(fork)).catch((e) => {
      if (!(e instanceof api.Failure && e.status === 404)) throw e;
    });
  }
}

function keep(fork: string, index: number, all: string[]): Action {
  const others = all.filter((o) => o !== fork);
  return {
    title: `Keep fork ${index}`,
    explain: `Keeps ${shortID(fork)} as a sandbox, and deletes ${plural(others.length, "other fork")}.`,
    button: "Keep", danger: others.length > 0, call: "killMany", values: () => ({ ids: others }),
    run: async () => {
      await kill(others);
      return `fork ${index} stays`;
    },
  };
}

function discard(all: string[]): Action {
  return {
    title: "Keep none", explain: `Deletes ${plural(all.length, "fork")} with memory and files. The sandbox is as it was.`,
    button: "Delete", danger: true, call: "killMany", values: () => ({ ids: all }),
    run: async () => {
      await kill(all);
      return `${plural(all.length, "fork")} deleted`;
    },
  };
}

function promote(n: Node, fork: string, index: number, all: string[]): Action {
  const id = n.sandbox!.id;
  return {
    title: `Promote fork ${index}`,
    explain: `${nameOf(n)} goes on as this fork is now. Its own state is lost, and all forks are deleted.`,
    button: "Promote", danger: true, call: "promote", values: () => ({ id, child: fork }),
    run: async () => {
      await api.call("POST", api.box(id, "/promote"), { from: fork });
      await kill(all);
      return `${nameOf(n)} goes on as fork ${index}`;
    },
  };
}
