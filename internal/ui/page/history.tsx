// Charts of a history that the daemon keeps.
import { h, Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "./api";
import type { Drawing, Line } from "./charts";
import { Note, Problem } from "./dialog";

export interface Point {
  at_unix: number;
}

export interface History<P extends Point> {
  began_at_unix: number;
  step_secs: number;
  points: P[];
}

const spans = { "10m": "10 minutes", "24h": "24 hours" } as const;
type Span = keyof typeof spans;

// every returns how often a history is loaded, in milliseconds.
const every = (span: Span) => (span === "10m" ? 3000 : 60_000);

// useHistory loads a history while the page is shown. It also returns what chooses the time.
export function useHistory<P extends Point, H extends History<P>>(path: string): [H | undefined, h.JSX.Element] {
  const [span, choose] = useState<Span>("10m");
  const [value, set] = useState<H>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let gone = false;
    const load = async () => {
      if (document.hidden) return;
      try {
        const got = await api.get<H>(`${path}?since=${span}`);
        if (gone) return;
        set(got);
        setProblem("");
      } catch (e) {
        if (!gone) setProblem((e as Error).message);
      }
    };
    void load();
    const timer = setInterval(load, every(span));
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [path, span]);
  const head = (
    <Fragment>
      <div class="toolbar">
        {Object.entries(spans).map(([key, name]) => (
          <button class="tab" aria-pressed={key === span} onClick={() => choose(key as Span)}>{name}</button>
        ))}
        <small>{value && `since ${new Date(1000 * value.began_at_unix).toLocaleString()}, when the daemon was started`}</small>
      </div>
      <Problem text={problem} />
      {value?.points.length === 0 && <Note>There are no figures of this time yet.</Note>}
    </Fragment>
  );
  return [value, head];
}

interface ChartProps<P extends Point> {
  title: string;
  history: History<P> | undefined;
  lines: (Line & { of: (p: P) => number | undefined })[];
  text: (v: number) => string;
}

// Chart draws lines of a history. What it shows is also in its label, for people who do not see it.
export function Chart<P extends Point>({ title, history, lines, text }: ChartProps<P>) {
  const place = useRef<HTMLDivElement>(null);
  const drawing = useRef<Drawing>();
  const [problem, setProblem] = useState("");
  const [ready, setReady] = useState(false);
  const values = lines.map((l) => (history?.points ?? []).map((p) => l.of(p) ?? null));
  useEffect(() => {
    let gone = false;
    void (async () => {
      try {
        const { draw } = (await import("./charts.js" as string)) as typeof import("./charts");
        if (gone) return;
        const made = await draw(place.current!, lines, text);
        if (gone) return made.close();
        drawing.current = made;
        setReady(true);
      } catch (e) {
        setProblem((e as Error).message);
      }
    })();
    return () => {
      gone = true;
      drawing.current?.close();
    };
  }, []);
  useEffect(() => {
    if (history) drawing.current?.set(...withGaps(history, values));
  }, [ready, history]);
  const now = lines.map((l, i) => [l.name, values[i]!.at(-1)] as const);
  const shown = (v: number | null | undefined) => (v == null ? "none" : text(v));
  const most = Math.max(0, ...values.flat().map((v) => v ?? 0));
  return (
    <section class="card chart">
      <h2>{title}</h2>
      <p class="now">{now.map(([name, v]) => <span>{shown(v)}{lines.length > 1 && <small> {name}</small>}</span>)}</p>
      <Problem text={problem} />
      <div ref={place} role="img" aria-label={`${title}. Now: ${now.map(([name, v]) => `${name} ${shown(v)}`).join(", ")}. Highest: ${text(most)}.`} />
    </section>
  );
}

// withGaps adds a point without values where points are missing, so that the line is interrupted.
function withGaps(history: History<Point>, values: (number | null)[][]): [number[], (number | null)[][]] {
  const times: number[] = [];
  const out: (number | null)[][] = values.map(() => []);
  history.points.forEach((p, i) => {
    const last = times.at(-1);
    if (last !== undefined && p.at_unix - last > 15 * history.step_secs) {
      times.push(last + history.step_secs);
      out.forEach((o) => o.push(null));
    }
    times.push(p.at_unix);
    out.forEach((o, k) => o.push(values[k]![i]!));
  });
  return [times, out];
}
