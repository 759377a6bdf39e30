// The page of the time line: a drawing, and the same events as a list for keyboards and screen readers.
import { h, Fragment } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Note } from "./dialog";
import { store } from "./store";
import { plain, plural } from "./text";
import { type Chart, chart, type Lane, type Point } from "./timeline";

const spans = { "1 minute": 60, "10 minutes": 600, "1 hour": 3600, "1 day": 86_400 } as const;
type Span = keyof typeof spans;

const laneHeight = 26;
const edge = 8; // free space on both sides of the drawing
const redraw = 1000; // milliseconds; the drawing reads all nodes

export function TimePage({ open }: { open: (key: string) => void }) {
  const [span, setSpan] = useState<Span>("10 minutes");
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), redraw);
    return () => clearInterval(timer);
  }, []);
  const [chosen, choose] = useState("");
  const c = useMemo(() => chart(store.model, store.events, spans[span], now), [span, now]);
  const names = new Map(c.lanes.map((l) => [l.key, l.name]));
  const at = c.points.findIndex((p) => p.id === chosen);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => document.getElementById(`point-${at}`)?.scrollIntoView({ block: "nearest" }), [chosen]);
  const key = (e: KeyboardEvent) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const go = (i: number) => choose(c.points[Math.max(0, Math.min(c.points.length - 1, i))]?.id ?? "");
    const inLane = (step: number) => {
      for (let i = at + step; c.points[i] !== undefined; i += step) if (c.points[i]!.lane === c.points[at]?.lane) return go(i);
    };
    if (e.key === "ArrowDown") go(at + 1);
    else if (e.key === "ArrowUp") go(at - 1);
    else if (e.key === "Home") go(0);
    else if (e.key === "End") go(c.points.length - 1);
    else if (e.key === "ArrowLeft") inLane(1); // earlier
    else if (e.key === "ArrowRight") inLane(-1);
    else if (e.key === "Enter" && at >= 0) open(c.points[at]!.lane);
    else return;
    e.preventDefault();
  };
  return (
    <main class="page" id="main">
      <a class="back" href="#/">← Tree</a>
      <h1>Time line</h1>
      <div class="toolbar">
        {(Object.keys(spans) as Span[]).map((s) => (
          <button class="tab" aria-pressed={s === span} onClick={() => setSpan(s)}>{s}</button>
        ))}
        <small>Events since this page was opened, and the times at which sandboxes and snapshots were created.</small>
      </div>
      {c.lanes.length === 0 && <Note>There was no sandbox in this time.</Note>}
      {c.lanes.length > 0 && (
        <Drawing c={c} chosen={chosen} choose={(id) => { choose(id); list.current?.focus(); }} open={open} />
      )}
      {c.omitted > 0 && <Note>{plural(c.omitted, "other lane")} without newer events.</Note>}
      <h2>Events</h2>
      {c.points.length === 0 && <Note>Nothing happened in this time.</Note>}
      {c.points.length > 0 && (
        <Fragment>
          <ul class="events" role="listbox" tabIndex={0} ref={list} aria-label="Events, the newest first" onKeyDown={key}
            aria-activedescendant={at >= 0 ? `point-${at}` : undefined}>
            {c.points.map((p, i) => (
              <li key={p.id} id={`point-${i}`} role="option" aria-selected={i === at} onClick={() => choose(p.id)}
                onDblClick={() => open(p.lane)}>
                <time>{new Date(p.at).toLocaleTimeString()}</time>
                <b>{p.type}</b>
                <span>{[names.get(p.lane), plain(p.about)].filter(Boolean).join(" · ")}</span>
              </li>
            ))}
          </ul>
          <p class="keys" aria-hidden="true">
            <kbd>↑</kbd><kbd>↓</kbd> choose an event <kbd>←</kbd><kbd>→</kbd> earlier and later in its lane <kbd>enter</kbd> open
          </p>
        </Fragment>
      )}
    </main>
  );
}

// Drawing is hidden from screen readers, because the list has the same events.
function Drawing({ c, chosen, choose, open }: {
  c: Chart; chosen: string; choose: (id: string) => void; open: (key: string) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => box.current && setWidth(Math.max(100, box.current.clientWidth)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  const x = (at: number) => edge + (Math.max(0, Math.min(1, (at - c.from) / (c.to - c.from))) * (width - 2 * edge));
  const rows = new Map(c.lanes.map((l, i) => [l.key, i]));
  const y = (lane: string) => (rows.get(lane)! + 0.5) * laneHeight;
  const height = c.lanes.length * laneHeight;
  const label = `${plural(c.lanes.length, "lane")}, ${plural(c.forks.length, "fork")} and ${plural(c.points.length, "event")}. The list below has the events.`;
  return (
    <div class="lanes" role="img" aria-label={label} tabIndex={0}>
      <div class="lane-names">
        {c.lanes.map((l) => <div key={l.key} title={l.name} onClick={() => open(l.key)}>{l.name}</div>)}
        <div />
      </div>
      <div class="lane-box" ref={box}>
        <svg width={width} height={height + laneHeight} aria-hidden="true">
          {ticks(c).map(([at, text]) => (
            <g class="tick">
              <line x1={x(at)} x2={x(at)} y1={0} y2={height} />
              <text x={x(at)} y={height + 17} text-anchor={at === c.to ? "end" : at === c.from ? "start" : "middle"}>{text}</text>
            </g>
          ))}
          {c.lanes.map((l: Lane) => (
            <rect key={l.key} class={`lane ${l.state}`} x={x(l.from)} y={y(l.key) - 2} height={4} width={Math.max(2, x(l.to ?? c.to) - x(l.from))} />
          ))}
          {c.forks.map((f) => (
            <path key={`${f.from} ${f.to}`} class="link" d={curve(x(f.at), y(f.from), x(f.until), y(f.to))} />
          ))}
          {c.points.filter((p) => rows.has(p.lane)).map((p) => (
            <Mark key={p.id} p={p} x={x(p.at)} y={y(p.lane)} chosen={p.id === chosen} choose={choose} />
          ))}
        </svg>
      </div>
    </div>
  );
}

const curve = (x1: number, y1: number, x2: number, y2: number) => `M${x1} ${y1}C${x2} ${y1} ${x1} ${y2} ${x2} ${y2}`;

// Mark draws a snapshot as a diamond, and other events as circles.
function Mark({ p, x, y, chosen, choose }: { p: Point; x: number; y: number; chosen: boolean; choose: (id: string) => void }) {
  const r = chosen ? 8 : 5;
  const [about, what = ""] = p.type.split(".");
  const looks = { class: `point ${about} ${what}${chosen ? " chosen" : ""}`, onClick: () => choose(p.id) };
  const title = <title>{`${new Date(p.at).toLocaleTimeString()} ${p.type} ${plain(p.about)}`}</title>;
  return about === "snapshot" ? <path {...looks} d={`M${x - r} ${y}l${r} ${-r}l${r} ${r}l${-r} ${r}z`}>{title}</path>
    : <circle {...looks} cx={x} cy={y} r={r}>{title}</circle>;
}

function ticks(c: Chart): [at: number, text: string][] {
  const n = 4;
  return Array.from({ length: n + 1 }, (_, i) => {
    const at = i === n ? c.to : c.from + (i * (c.to - c.from)) / n;
    return [at, i === n ? "now" : new Date(at).toLocaleTimeString()];
  });
}
