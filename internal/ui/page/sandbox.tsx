// The page of one sandbox.
import { h, Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type ActionName, possible, titles } from "./actions";
import * as api from "./api";
import { CodeTab } from "./code";
import { type Action, Calls, Note, Problem, useLoad } from "./dialog";
import { FilesTab } from "./files";
import { MetricsTab } from "./metrics";
import { NetworkTab } from "./network";
import { Icon, State } from "./rows";
import { store, useChosen, useStore } from "./store";
import { plain } from "./text";
import { nameOf, type Node } from "./tree";
import type { Shell } from "./terminal";

export const tabs = ["terminal", "code", "files", "processes", "console", "network", "ports", "metrics"] as const;
type Tab = (typeof tabs)[number];

export function SandboxPage({ n, tab, act, ask }: {
  n: Node; tab: string; act: (name: ActionName, n: Node) => void; ask: (a: Action) => void;
}) {
  useStore(n.key, "stats");
  useChosen(n.key);
  const id = n.sandbox!.id;
  const now = (tabs as readonly string[]).includes(tab) ? (tab as Tab) : "terminal";
  const on = n.sandbox!.state === "running";
  useEffect(() => {
    store.measured = [id];
  });
  const keys = (e: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (step === undefined) return;
    const next = tabs[(tabs.indexOf(now) + step + tabs.length) % tabs.length]!;
    location.hash = `#/sandbox/${id}/${next}`;
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <main class="page sandbox-page" id="main">
      <div class="title">
        <a class="back" href="#/">← Tree</a>
        <h1><Icon n={n} /> {nameOf(n)}</h1>
        <State n={n} />
        <span class="fill" />
        <div class="actions">
          {possible(n).map((name) => (
            <button class={name === "kill" ? "danger-soft" : ""} onClick={() => act(name, n)}>{titles[name]}</button>
          ))}
        </div>
      </div>
      <div class="tabs" role="tablist" aria-label="Parts of the sandbox" onKeyDown={keys}>
        {tabs.map((t) => (
          <a role="tab" id={`tab-${t}`} aria-selected={t === now} tabIndex={t === now ? 0 : -1} aria-controls="panel"
            href={`#/sandbox/${id}/${t}`}>{t}</a>
        ))}
      </div>
      <div class={`panel of-${now}`} role="tabpanel" id="panel" aria-labelledby={`tab-${now}`} key={`${id}/${now}`}>
        {!on && !["console", "network", "metrics"].includes(now)
          ? <Note>The sandbox is {n.sandbox!.state}. It must run for this.</Note>
          : <Panel tab={now} n={n} ask={ask} />}
      </div>
    </main>
  );
}

function Panel({ tab, n, ask }: { tab: Tab; n: Node; ask: (a: Action) => void }) {
  const id = n.sandbox!.id;
  switch (tab) {
    case "terminal":
      return <TerminalTab id={id} />;
    case "code":
      return <CodeTab id={id} />;
    case "files":
      return <FilesTab id={id} />;
    case "processes":
      return <ProcessesTab id={id} />;
    case "console":
      return <ConsoleTab id={id} />;
    case "network":
      return <NetworkTab n={n} ask={ask} />;
    case "ports":
      return <PortsTab id={id} />;
    case "metrics":
      return <MetricsTab n={n} />;
  }
}

// marker is the last argument of shells that the view has started. It makes them known to any page.
const marker = "forkd-view";
const shellScript = 'read -r _; if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l';

const shellsOf = async (id: string) =>
  (await api.get<api.Process[]>(api.box(id, "/processes"))).filter((p) => p.args.at(-1) === marker).map((p) => p.pid);

function TerminalTab({ id }: { id: string }) {
  const { value: pids, problem, again } = useLoad(() => shellsOf(id), [id]);
  const [pid, setPid] = useState(() => Number(sessionStorage.getItem(`shell ${id}`)) || 0);
  const [failed, setFailed] = useState("");
  const choose = (n: number) => {
    sessionStorage.setItem(`shell ${id}`, String(n));
    setPid(n);
  };
  const create = async () => {
    setFailed("");
    try {
      // The shell runs detached, so it outlives this page. It waits for a line until it is attached to.
      const started = await api.call<{ pid: number }>("POST", api.box(id, "/exec"),
        { args: ["sh", "-c", shellScript, marker], tty: { cols: 80, rows: 24 }, detach: true });
      choose(started.pid);
      again();
    } catch (e) {
      setFailed((e as Error).message);
    }
  };
  const known = pids?.includes(pid) ? pid : undefined;
  const created = useRef(false); // a guest whose shells end at once must not make the page start shells without end
  useEffect(() => {
    if (pids === undefined || known !== undefined) return;
    if (pids.length > 0) choose(pids[0]!);
    else if (!created.current) {
      created.current = true;
      void create();
    }
  }, [pids]);
  return (
    <Fragment>
      <div class="toolbar">
        {pids?.map((p) => (
          <button class="tab" aria-pressed={p === pid} onClick={() => choose(p)}>shell {p}</button>
        ))}
        <button class="tab" onClick={create}>+ new shell</button>
        <span class="fill" />
        <small>Shells keep running when you close this page.</small>
      </div>
      <Problem text={problem || failed} />
      {known !== undefined && <TerminalBox key={known} id={id} pid={known} ended={again} />}
      <Calls name="shell" values={{ id }} />
    </Fragment>
  );
}

function TerminalBox({ id, pid, ended }: { id: string; pid: number; ended: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let shell: Shell | undefined;
    let gone = false;
    void (async () => {
      try {
        // The terminal is large, so it is a file of its own.
        const { open } = (await import("./terminal.js" as string)) as typeof import("./terminal");
        if (!gone) shell = await open(box.current!, id, pid, ended);
      } catch (e) {
        setProblem((e as Error).message);
      }
    })();
    return () => {
      gone = true;
      shell?.close();
    };
  }, []);
  return (
    <Fragment>
      <Problem text={problem} />
      <div class="shell" ref={box} />
    </Fragment>
  );
}

function ProcessesTab({ id }: { id: string }) {
  const { value, problem, again, poll } = useLoad(() => api.get<api.Process[]>(api.box(id, "/processes")), [id]);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && poll(), 3000);
    return () => clearInterval(timer);
  }, [id]);
  const signal = async (pid: number, name: string) => {
    try {
      await api.call("POST", api.box(id, `/processes/${pid}/signal`), { signal: name });
      setFailed("");
      again();
    } catch (e) {
      setFailed((e as Error).message);
    }
  };
  return (
    <Fragment>
      <Problem text={problem || failed} />
      {value?.length === 0 && <Note>No command is running. Programs that run since before the fork are not listed here.</Note>}
      {value !== undefined && value.length > 0 && (
        <table>
          <thead><tr><th>Process</th><th>Command</th><th>Directory</th><th>Signal</th></tr></thead>
          <tbody>
            {value.map((p) => (
              <tr key={p.pid}>
                <td>{p.pid}</td>
                <td><code>{plain(p.args.join(" "))}</code></td>
                <td>{p.cwd}</td>
                <td>
                  {["INT", "TERM", "KILL"].map((name) => (
                    <button class="tab" aria-label={`${name} to process ${p.pid}`} onClick={() => signal(p.pid, name)}>{name}</button>
                  ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Calls name="processes" values={{ id }} />
    </Fragment>
  );
}

const maxConsole = 256 * 1024;

function ConsoleTab({ id }: { id: string }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const stream = new AbortController();
    api.follow(api.box(id, "/logs?follow=true&tail=500"), stream.signal, (more) => {
      setText((old) => (old + plain(more.replaceAll("\r\n", "\n"))).slice(-maxConsole));
    }).catch((e) => !stream.signal.aborted && setProblem((e as Error).message));
    return () => stream.abort();
  }, [id]);
  useEffect(() => box.current?.scrollTo(0, box.current.scrollHeight), [text]);
  return (
    <Fragment>
      <Problem text={problem} />
      <pre class="output" ref={box} tabIndex={0} aria-label="Console">{text || "No output yet.\n"}</pre>
      <Calls name="console" values={{ id }} />
    </Fragment>
  );
}

function PortsTab({ id }: { id: string }) {
  const [port, setPort] = useState("8000");
  const [links, setLinks] = useState<{ port: string; url: string }[]>([]);
  const [problem, setProblem] = useState("");
  const create = async (e: Event) => {
    e.preventDefault();
    try {
      const { url } = await api.call<{ url: string }>("POST", api.box(id, `/ports/${Number(port)}/url`), {});
      if (!/^https?:\/\//.test(url)) throw new Error("the daemon's answer is no address of a web page");
      setLinks([{ port, url }, ...links]);
      setProblem("");
    } catch (e) {
      setProblem((e as Error).message);
    }
  };
  return (
    <Fragment>
      <p class="explain">A link to a server in the sandbox, for anyone who has it, for one hour. The server must listen on 127.0.0.1 or on all addresses.</p>
      <form class="toolbar" onSubmit={create}>
        <label for="port">Port</label>
        <input id="port" type="number" min="1" max="65535" required value={port}
          onInput={(e) => setPort((e.target as HTMLInputElement).value)} />
        <button class="primary">Create a link</button>
      </form>
      <Problem text={problem} />
      <ul class="links">
        {links.map((l) => <li>{l.port}: <a href={l.url} target="_blank" rel="noopener noreferrer">{l.url}</a></li>)}
      </ul>
      <Calls name="url" values={{ id, port: Number(port) }} />
    </Fragment>
  );
}
