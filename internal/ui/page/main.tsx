// The view: the tree with the selected node's details, and the pages below it.
import { h, Fragment, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type ActionName, begin, possible, titles } from "./actions";
import { byDaemon } from "./api";
import { Detail, hints } from "./detail";
import { type Action, Dialog, Note } from "./dialog";
import { DiffPage } from "./diff";
import { HostPage } from "./host";
import { Login, logOut } from "./login";
import { type Command, opens, Palette } from "./palette";
import { memoryOf, stateOf, Tree } from "./rows";
import { RunPage } from "./run";
import { SandboxPage, tabs } from "./sandbox";
import { type Link, store, useStore } from "./store";
import { bytes, plural } from "./text";
import { TimePage } from "./time";
import { flatten, labelsOf, nameOf, type Node, ownerWord, refOf, sandboxKey, snapshotKey } from "./tree";

function useHash(): string[] {
  const read = () => location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  const [parts, set] = useState(read);
  useEffect(() => {
    const change = () => set(read());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return parts;
}

const linkText: Record<Link, string> = { connecting: "connecting", live: "live", away: "daemon away, trying again",
  ended: "ended", login: "signed out" };

const themes = ["auto", "light", "dark"] as const;

function useTheme(): [string, () => void] {
  const [theme, set] = useState(localStorage.getItem("theme") ?? "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
  }, [theme]);
  const next = () => {
    const t = themes[(themes.indexOf(theme as "auto") + 1) % themes.length]!;
    localStorage.setItem("theme", t);
    set(t);
  };
  return [theme, next];
}

const states = ["running", "paused", "suspended", "exited", "snapshot"];

const maxWords = 100;

// searchWords returns labels and owners of the nodes for suggestions, without names.
function searchWords(nodes: Map<string, Node>): string[] {
  const pairs = new Set<string>();
  for (const n of nodes.values()) {
    if (n.owner) pairs.add(ownerWord(n.owner));
    for (const [name, value] of Object.entries(labelsOf(n))) if (name !== "name") pairs.add(`${name}=${value}`);
    if (pairs.size >= maxWords) break;
  }
  return [...pairs].sort();
}

function App() {
  const s = useStore("page");
  const { nodes, shape } = s.model;
  const [searches, setSearches] = useState(0);
  const words = useMemo(() => searchWords(nodes), [nodes, searches]);
  const parts = useHash();
  const [selected, select] = useState("");
  const [marked, setMarked] = useState<string[]>([]);
  const [closed, setClosed] = useState(new Set<string>());
  const [search, setSearch] = useState("");
  const [state, setState] = useState("");
  const [action, setAction] = useState<Action>();
  const [told, tell] = useState("");
  const [theme, nextTheme] = useTheme();
  const [commands, setCommands] = useState<Command[]>();
  const find = useRef<HTMLInputElement>(null);
  const focusTree = useRef(false); // the tree gets the focus when it is shown

  useEffect(() => {
    if (told === "") return;
    const timer = setTimeout(() => tell(""), 6000);
    return () => clearTimeout(timer);
  }, [told]);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || find.current === null) return;
      if ((e.target as HTMLElement).closest("input, textarea, select, dialog, .shell") !== null) return;
      e.preventDefault();
      find.current.focus();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);

  const act = (name: ActionName, n: Node, to?: string) => {
    if (name === "try") location.hash = `#/try/${encodeURIComponent(refOf(n))}`;
    else setAction({ ...begin(name, n, to), about: n.key });
  };
  const open = (n: Node) => {
    if (n.sandbox) location.hash = `#/sandbox/${encodeURIComponent(n.sandbox.id)}`;
    else act("fork", n);
  };
  const mark = (key: string) =>
    setMarked((old) => (old.includes(key) ? old.filter((k) => k !== key) : [...old, key].slice(-2)));
  const toggle = (key: string, on: boolean) => setClosed((old) => {
    const next = new Set(old);
    on ? next.delete(key) : next.add(key);
    return next;
  });

  const [page, a = "", b = ""] = parts;
  const node = page === "sandbox" || page === "try" ? nodes.get(sandboxKey(a)) : undefined;
  // goTo selects a node in the tree.
  const goTo = (n: Node) => {
    setSearch("");
    setState("");
    setClosed((old) => {
      const next = new Set(old);
      for (let up = n.parent; up !== undefined; up = up.parent) next.delete(up.key);
      return next;
    });
    select(n.key);
    location.hash = "#/";
    focusTree.current = true;
  };
  useEffect(() => {
    const tree = focusTree.current ? document.querySelector<HTMLElement>("[role=tree]") : null;
    if (tree === null) return;
    focusTree.current = false;
    tree.focus();
  });
  const chosen = node ?? (page === "" ? nodes.get(selected) : undefined);
  const commandsNow = (): Command[] => {
    const about = chosen ? nameOf(chosen) : "";
    const ofNode = chosen === undefined ? [] : possible(chosen).map((name) => (
      { title: titles[name], about, key: hints[name], run: () => act(name, chosen) }));
    const id = chosen?.sandbox?.id;
    const ofSandbox = id === undefined ? [] : tabs.map((tab) => (
      { title: `Open ${tab}`, about, run: () => { location.hash = `#/sandbox/${encodeURIComponent(id)}/${tab}`; } }));
    const refs = marked.map((key) => nodes.get(key)).filter((n) => n !== undefined);
    const compare = refs.length === 2 ? [{ title: "Compare", about: refs.map(nameOf).join(" and "),
      run: () => { location.hash = `#/diff/${refs.map((n) => encodeURIComponent(refOf(n))).join("/")}`; } }] : [];
    return [
      ...ofNode, ...ofSandbox, ...compare,
      { title: "Tree", about: "page", run: () => { location.hash = "#/"; } },
      { title: "Time line", about: "page", run: () => { location.hash = "#/time"; } },
      { title: "Host", about: "page", run: () => { location.hash = "#/host"; } },
      { title: "Change the theme", about: `now ${theme}`, run: nextTheme },
      ...[...nodes.values()].map((n) => (
        { title: nameOf(n), about: n.snapshot ? "snapshot" : `${stateOf(n)} ${refOf(n)}`, run: () => goTo(n) })),
    ];
  };
  const ready = s.loaded && s.link !== "ended" && s.link !== "login";
  const openPalette = useRef(() => {});
  openPalette.current = () => {
    if (ready && action === undefined && commands === undefined) setCommands(commandsNow());
  };
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (!opens(e)) return;
      e.preventDefault();
      openPalette.current();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  const byRef = (ref: string) => nodes.get(snapshotKey(ref)) ?? nodes.get(sandboxKey(ref));
  let content;
  if (s.link === "login") content = <Login />;
  else if (s.link === "ended") content = <Ended text={s.problem} />;
  else if (!s.loaded) content = <main class="page" id="main"><h1>forkd</h1><Note>{s.problem || "Connecting to the daemon …"}</Note></main>;
  else if (page === "host") content = <HostPage />;
  else if (page === "time") {
    content = <TimePage open={(key) => { const n = nodes.get(key); if (n?.sandbox) open(n); else if (n) goTo(n); }} />;
  } else if (page === "diff") {
    const names = [a, b].map((ref) => { const n = byRef(ref); return n ? nameOf(n) : ref; }) as [string, string];
    content = <DiffPage from={a} to={b} names={names} />;
  } else if (page === "sandbox" || page === "try") {
    content = node
      ? page === "try" ? <RunPage key={node.key} n={node} ask={setAction} /> : <SandboxPage n={node} tab={b} act={act} ask={setAction} />
      : <main class="page" id="main"><a class="back" href="#/">← Tree</a><h1>This sandbox is gone</h1><Note>It was deleted.</Note></main>;
  } else {
    content = <TreePage {...{ nodes, shape, selected, select, marked, mark, setMarked, closed, toggle, search, state, act, open }} />;
  }
  return (
    <Fragment>
      <a class="skip" href="#main">To the content</a>
      <header>
        <a class="logo" href="#/"><span class="mark-logo" aria-hidden="true" /> forkd</a>
        <input ref={find} type="search" placeholder="Search names, labels, owners" aria-label="Search" value={search}
          list="words" onFocus={() => setSearches((n) => n + 1)}
          onInput={(e) => { setSearch((e.target as HTMLInputElement).value); if (page) location.hash = "#/"; }} />
        <datalist id="words">{words.map((l) => <option value={l} />)}</datalist>
        <select aria-label="State" value={state}
          onChange={(e) => { setState((e.target as HTMLSelectElement).value); if (page) location.hash = "#/"; }}>
          <option value="">all states</option>
          {states.map((name) => <option value={name}>{name}</option>)}
        </select>
        <button class="tab" disabled={!ready} onClick={() => openPalette.current()}>Commands <kbd>Ctrl K</kbd></button>
        <span class="fill" />
        <span class={`link-state ${s.link}`} role="status">{linkText[s.link]}</span>
        <a href="#/time">Time line</a>
        <a href="#/host">Host</a>
        <button class="tab" onClick={nextTheme} aria-label={`Theme: ${theme}`} title={`Theme: ${theme}`}>
          {theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}
        </button>
        {byDaemon && s.link !== "login" && (
          <button class="tab" title={s.daemon} onClick={() => logOut().catch((e) => tell((e as Error).message))}>Sign out</button>
        )}
      </header>
      {s.link === "away" && s.loaded && <p class="banner" role="alert">The daemon does not answer: {s.problem}. The page shows its last known state.</p>}
      {content}
      {commands && <Palette commands={commands} close={(c) => { setCommands(undefined); if (c) setTimeout(c.run); }} />}
      {action && <Dialog action={action} close={(done) => { setAction(undefined); if (done) { tell(done); if (action.about) s.want(action.about); } }} />}
      <div class={`toast${told ? " on" : ""}`} role="status">{told}</div>
    </Fragment>
  );
}

const Ended = ({ text }: { text: string }) => (
  <main class="page" id="main">
    <h1>The session has ended</h1>
    <Note>{text}</Note>
    <Note>Run <code>forkd ui</code> again, and open the address that it prints.</Note>
  </main>
);

interface TreePageProps {
  nodes: Map<string, Node>;
  shape: number; // changes with the tree
  selected: string;
  select: (key: string) => void;
  marked: string[];
  mark: (key: string) => void;
  setMarked: (keys: string[]) => void;
  closed: Set<string>;
  toggle: (key: string, open: boolean) => void;
  search: string;
  state: string; // nodes to show; empty: all
  act: (name: ActionName, n: Node, to?: string) => void;
  open: (n: Node) => void;
}

function TreePage(p: TreePageProps) {
  const filters = p.search.trim() !== "" || p.state !== "";
  const s = useStore(...(filters ? ["slow"] : []));
  const rows = useMemo(() => flatten(p.nodes, p.closed, p.search, p.state),
    [p.nodes, p.shape, p.closed, p.search, p.state, filters && s.revision]);
  const node = p.nodes.get(p.selected);
  useEffect(() => {
    if (node === undefined && rows.length > 0) p.select((rows.find((r) => r.node.sandbox) ?? rows[0]!).node.key);
  }, [node, rows]);
  if (p.nodes.size === 0) return <Empty />;
  return (
    <main class="split" id="main">
      <div class="left">
        <h1 class="hidden">Snapshots and sandboxes</h1>
        <Intro />
        <Summary nodes={p.nodes} />
        {rows.length === 0 && <Note>Nothing matches the search and the state.</Note>}
        <div class="table">
          <div class="row head" aria-hidden="true">
            <span class="name">Snapshots and their forks</span><span class="fill" />
            <span class="state-cell">State</span><span class="memory">Memory</span><span class="disk" title="Written on disk since the latest snapshot">Disk</span>
            <span class="cpu" title="100 % is one processor">CPU</span><span class="age">Age</span>
            <span class="compare-head" title="Mark two to compare them">⇄</span>
          </div>
          <Tree rows={rows} {...p} enter={p.open} />
        </div>
        <p class="keys" aria-hidden="true">
          <kbd>↑</kbd><kbd>↓</kbd> choose <kbd>←</kbd><kbd>→</kbd> fold <kbd>f</kbd> fork <kbd>b</kbd> branch <kbd>r</kbd> roll back{" "}
          <kbd>space</kbd> mark two to compare <kbd>/</kbd> search
        </p>
        <Compare marked={p.marked.map((key) => p.nodes.get(key)).filter((n) => n !== undefined)} clear={() => p.setMarked([])} />
      </div>
      {node && <Detail n={node} act={p.act} open={p.open} />}
    </main>
  );
}

// Compare shows the marked nodes, and leads to their comparison.
function Compare({ marked, clear }: { marked: Node[]; clear: () => void }) {
  useStore(...marked.map((n) => n.key));
  if (marked.length === 0) return <Fragment />;
  return (
    <div class="compare" role="region" aria-label="Comparison">
      {marked.length === 1
        ? <span>Mark a second one to compare it with <b>{nameOf(marked[0]!)}</b>.</span>
        : <a class="button primary" href={`#/diff/${marked.map((n) => encodeURIComponent(refOf(n))).join("/")}`}>
            Compare {nameOf(marked[0]!)} with {nameOf(marked[1]!)}
          </a>}
      <button onClick={clear}>Clear</button>
    </div>
  );
}

// Intro explains the tree to people who see it for the first time.
function Intro() {
  const [hidden, hide] = useState(localStorage.getItem("intro") === "hidden");
  if (hidden) return <Fragment />;
  const close = () => {
    localStorage.setItem("intro", "hidden");
    hide(true);
  };
  return (
    <section class="intro" aria-label="What this shows">
      <ol>
        <li>
          <span class="icon snapshot" aria-hidden="true" />
          <div><b>Snapshot</b><span>A machine, saved while its programs run.</span></div>
        </li>
        <li>
          <span class="icon sandbox running" aria-hidden="true" />
          <div><b>Fork</b><span>Running copies of it, in milliseconds. They share its memory until they write.</span></div>
        </li>
        <li>
          <span class="icon snapshot branch" aria-hidden="true" />
          <div><b>Branch</b><span>A copy, saved again while it runs. Fork it, or roll back to it.</span></div>
        </li>
      </ol>
      <button class="tab" onClick={close} aria-label="Hide the explanation">×</button>
    </section>
  );
}

// Summary shows how much memory forks share.
function Summary({ nodes }: { nodes: Map<string, Node> }) {
  useStore("stats");
  let own = 0, all = 0, measured = 0, sandboxes = 0;
  for (const n of nodes.values()) {
    if (!n.sandbox) continue;
    sandboxes++;
    const m = memoryOf(n);
    if (m === undefined) continue;
    measured++;
    own += m.own;
    all += m.all;
  }
  const some = measured < sandboxes ? ` (${measured} measured)` : "";
  return (
    <section class="summary" aria-label="Summary">
      <p><b>{plural(sandboxes, "sandbox")}</b> from <b>{plural(nodes.size - sandboxes, "snapshot")}</b></p>
      {measured > 0 && (
        <p class="saving">
          <span class="meter wide" aria-hidden="true"><i style={{ width: `${Math.max(1, (100 * own) / all)}%` }} /></span>
          <span><b>{bytes(own * 1024)}</b> written of <b>{bytes(all * 1024)}</b> memory{some}; the rest is shared</span>
        </p>
      )}
    </section>
  );
}

const Empty = () => (
  <main class="page" id="main">
    <h1>Nothing here yet</h1>
    <Note>Build a first snapshot in a terminal. It appears here by itself.</Note>
    <pre tabIndex={0} aria-label="command">forkd build base</pre>
  </main>
);

render(<App />, document.getElementById("app")!);
store.start();
