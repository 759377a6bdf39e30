// The tree: one line for each snapshot and sandbox. Only lines on the screen are in the document.
import { h, Fragment } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type ActionName, keys, pointsOf, possible } from "./actions";
import { store, useStore } from "./store";
import { age, bytes, plural } from "./text";
import { count, labelsOf, nameOf, type Node, type Row } from "./tree";

export const rowHeight = 40;
const indent = 24;
const overscan = 8;

export interface TreeProps {
  rows: Row[];
  nodes: Map<string, Node>;
  selected: string;
  marked: string[];
  select: (key: string) => void;
  mark: (key: string) => void;
  toggle: (key: string, open: boolean) => void;
  enter: (n: Node) => void;
  act: (name: ActionName, n: Node, to?: string) => void;
}

// Dragged is a sandbox that is being dragged, with the tags of the snapshots that it can be dropped
// on. What other pages and programs drag is never one.
interface Dragged {
  node: Node;
  to: Set<string>;
}

export function Tree(p: TreeProps) {
  useStore("stats");
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const look = () => {
    if (box.current === null) return;
    const { scrollTop: top, clientHeight: height } = box.current;
    setView((old) => (old.top === top && old.height === height ? old : { top, height }));
  };
  useLayoutEffect(look, []);
  useEffect(() => {
    const observer = new ResizeObserver(look);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  const [dragged, drag] = useState<Dragged>();
  const at = p.rows.findIndex((r) => r.node.key === p.selected);
  useEffect(() => {
    if (at < 0) return;
    const e = box.current!;
    if (at * rowHeight < e.scrollTop) e.scrollTop = at * rowHeight;
    else if ((at + 1) * rowHeight > e.scrollTop + e.clientHeight) e.scrollTop = (at + 1) * rowHeight - e.clientHeight;
  }, [p.selected]);

  const first = Math.max(0, Math.floor(view.top / rowHeight) - overscan);
  const last = Math.min(p.rows.length, Math.ceil((view.top + view.height) / rowHeight) + overscan);
  const shown = p.rows.slice(first, last);
  store.measured = shown.flatMap((r) => (r.node.sandbox ? [r.node.sandbox.id] : []));

  const key = (e: KeyboardEvent) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const row = p.rows[at];
    const go = (i: number) => p.rows.length > 0 && p.select(p.rows[Math.max(0, Math.min(p.rows.length - 1, i))]!.node.key);
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const name = keys[e.key] ?? keys[e.key.toLowerCase()];
    if (e.key === "ArrowDown") go(at + 1);
    else if (e.key === "ArrowUp") go(at < 0 ? 0 : at - 1);
    else if (e.key === "PageDown") go(at + page);
    else if (e.key === "PageUp") go(at - page);
    else if (e.key === "Home") go(0);
    else if (e.key === "End") go(p.rows.length - 1);
    else if (row === undefined) return;
    else if (e.key === "ArrowRight") {
      if (!row.open) p.toggle(row.node.key, true);
      else if (row.node.children.length > 0) go(at + 1);
    } else if (e.key === "ArrowLeft") {
      if (row.open && row.node.children.length > 0) p.toggle(row.node.key, false);
      else if (row.node.parent) p.select(row.node.parent.key);
    } else if (e.key === "Enter") p.enter(row.node);
    else if (e.key === " ") p.mark(row.node.key);
    else if (name !== undefined) {
      const fits = possible(row.node);
      const turned = name === "pause" || name === "suspend" ? ([name, "resume"] as const) : name === "kill" ? (["kill", "remove"] as const) : [name];
      const which = turned.find((a) => fits.includes(a));
      if (which === undefined) return;
      p.act(which, row.node);
    } else return;
    e.preventDefault();
  };

  return (
    <div class="tree" role="tree" aria-label="Snapshots and sandboxes" aria-multiselectable="true" tabIndex={0} ref={box}
      onScroll={look} onKeyDown={key} aria-activedescendant={at >= first && at < last ? `row-${at}` : undefined}>
      <div class="rows" role="none" style={{ height: `${p.rows.length * rowHeight}px` }}>
        {shown.map((row, i) => (
          <Line key={row.node.key} row={row} index={first + i} selected={row.node.key === p.selected}
            marked={p.marked.includes(row.node.key)} tree={p} dragged={dragged} drag={drag} />
        ))}
      </div>
    </div>
  );
}

function Line({ row, index, selected, marked, tree: { select, mark, toggle, enter, act }, dragged, drag }: {
  row: Row; index: number; selected: boolean; marked: boolean; tree: TreeProps; dragged?: Dragged;
  drag: (d?: Dragged) => void;
}) {
  const n = row.node;
  useStore(n.key);
  const target = dragged !== undefined && n.snapshot !== undefined && dragged.to.has(n.snapshot.tag);
  const [over, setOver] = useState(false);
  const drop = (e: DragEvent) => {
    if (!target) return;
    e.preventDefault();
    setOver(false);
    act("rollback", dragged.node, n.snapshot!.tag);
  };
  const shift = Math.min(row.depth, 24) * indent;
  const fold = n.children.length > 0;
  return (
    <div class={`row${selected ? " selected" : ""}${marked ? " marked" : ""}${target ? " target" : ""}${target && over ? " over" : ""}`}
      role="treeitem" id={`row-${index}`}
      aria-level={row.depth + 1} aria-posinset={row.position} aria-setsize={row.siblings} aria-selected={selected}
      aria-expanded={fold ? row.open : undefined}
      style={{ transform: `translateY(${index * rowHeight}px)` }}
      onClick={() => select(n.key)} onDblClick={() => enter(n)}
      draggable={n.sandbox !== undefined && possible(n).includes("rollback")}
      onDragStart={(e) => {
        e.dataTransfer!.setData("text/plain", nameOf(n)); // Firefox drags nothing without data
        drag({ node: n, to: new Set(pointsOf(n).map(([tag]) => tag)) });
      }}
      onDragEnd={() => drag(undefined)}
      onDragOver={(e) => { if (target) { e.preventDefault(); setOver(true); } }} onDragLeave={() => setOver(false)} onDrop={drop}>
      <span class="gutter" aria-hidden="true" style={{ width: `${shift + 22}px` }}>
        {row.lines.map((more, i) => more && i > 0 && <i class="bar" style={{ left: `${(i - 1) * indent + 11}px` }} />)}
        {row.depth > 0 && (
          <i class={`elbow${row.position === row.siblings ? " last" : ""}`} style={{ left: `${shift - indent + 11}px` }} />
        )}
        {fold && (
          <b class="fold" onClick={(e) => { e.stopPropagation(); toggle(n.key, !row.open); }}>{row.open ? "▾" : "▸"}</b>
        )}
      </span>
      <Icon n={n} />
      <span class="name">{nameOf(n)}</span>
      {chips(n)}
      <span class="fill" />
      {!row.open && fold && <span class="chip">{below(n)}</span>}
      <span class="state-cell"><State n={n} /></span>
      <Memory n={n} />
      <Load n={n} />
      <span class="age">{age((n.sandbox ?? n.snapshot)!.created_at_unix)}</span>
      <span class={`mark${marked ? " on" : ""}`} aria-hidden="true" title="Mark for a comparison (space)"
        onClick={(e) => { e.stopPropagation(); mark(n.key); }} />
    </div>
  );
}

export const Icon = ({ n }: { n: Node }) => (
  <span class={n.snapshot ? "icon snapshot" : `icon sandbox ${n.sandbox!.state}`} aria-hidden="true" />
);

function chips(n: Node) {
  const all = Object.entries(labelsOf(n)).filter(([name]) => name !== "name");
  const shown = all.slice(0, 2).map(([name, value]) => <span class="chip">{`${name}=${value}`}</span>);
  if (n.sandbox?.workspace) shown.unshift(<span class="chip">{n.sandbox.workspace}</span>);
  if (n.owner) shown.unshift(<span class="chip owner" title={`Owner: ${n.owner}`}>{n.owner}</span>);
  return shown;
}

function below(n: Node): string {
  const { sandboxes, snapshots } = count(n);
  return [sandboxes > 0 && plural(sandboxes, "sandbox"), snapshots > 0 && plural(snapshots, "snapshot")]
    .filter(Boolean).join(", ");
}

export function State({ n }: { n: Node }) {
  const text = stateOf(n);
  return <span class={`state ${n.sandbox?.state ?? n.snapshot!.status}`}>{text}</span>;
}

export function stateOf(n: Node): string {
  if (n.snapshot) return n.snapshot.status === "ready" ? "snapshot" : (n.snapshot.step ?? n.snapshot.status);
  const s = n.sandbox!;
  if (s.not_answering) return "not answering";
  if (s.disk_full) return "disk full";
  return s.state === "exited" && s.exit_reason ? `exited: ${s.exit_reason}` : s.state;
}

// memoryOf returns a sandbox's memory in KiB: all of it, and the part that it has written itself.
export function memoryOf(n: Node): { own: number; all: number } | undefined {
  const stats = n.sandbox && store.stats.get(n.sandbox.id);
  const all = (n.parent?.snapshot?.mem_size_mib ?? 0) * 1024;
  if (!stats || all === 0) return undefined;
  return { own: Math.min(stats.guest_dirty_kib, all), all };
}

// cpuOf returns the part of a processor that a sandbox uses, as text.
export function cpuOf(n: Node): string | undefined {
  const cpus = n.sandbox && store.stats.get(n.sandbox.id)?.usage?.cpus;
  return cpus === undefined ? undefined : `${(100 * cpus).toFixed(cpus < 0.1 ? 1 : 0)} %`;
}

// Load shows what a sandbox has written on disk, and its use of processors. The hidden words are for
// screen readers, which do not read the column headers here.
function Load({ n }: { n: Node }) {
  const disk = n.sandbox && store.stats.get(n.sandbox.id)?.disk_since_latest_kib;
  const cpu = cpuOf(n);
  return (
    <Fragment>
      <span class="disk">{disk !== undefined && <Fragment><span class="hidden">disk </span>{bytes(disk * 1024)}</Fragment>}</span>
      <span class="cpu">{cpu !== undefined && <Fragment><span class="hidden">CPU </span>{cpu}</Fragment>}</span>
    </Fragment>
  );
}

function Memory({ n }: { n: Node }) {
  if (n.snapshot) {
    const s = n.snapshot;
    const size = s.sandbox_id !== undefined && s.dirty_bytes !== undefined ? `+ ${bytes(s.dirty_bytes)}`
      : s.mem_size_mib !== undefined ? bytes(s.mem_size_mib * 2 ** 20) : "";
    return <span class="memory"><span class="amount">{size}</span></span>;
  }
  const m = memoryOf(n);
  if (m === undefined) return <span class="memory" />;
  return (
    <span class="memory" title={`${bytes(m.own * 1024)} of its own; shares ${bytes((m.all - m.own) * 1024)} with its snapshot`}>
      <span class="meter" aria-hidden="true"><i style={{ width: `${Math.max(2, (100 * m.own) / m.all)}%` }} /></span>
      <span class="amount">{bytes(m.own * 1024)}</span>
    </span>
  );
}
