// What the time line shows: a lane for each sandbox, its events, and links from snapshots to their
// forks.
import type { Event, Sandbox } from "./api";
import type { Model } from "./model";
import { sandboxKey, shortID, snapshotKey } from "./tree";

// Times are in milliseconds since 1970.
export interface Lane {
  key: string; // of the node in the tree
  name: string;
  from: number;
  to?: number; // missing if it still exists
  last: number; // time of the latest event
  state: string;
}

export interface Point {
  id: string;
  at: number;
  lane: string; // key of the lane
  type: string; // as in events
  about: string; // what happened, in words
}

export interface Fork {
  from: string; // key of the snapshot's lane
  at: number;
  to: string; // key of the child's lane
  until: number;
}

export interface Chart {
  from: number;
  to: number;
  lanes: Lane[]; // in the order of their beginnings
  points: Point[]; // the newest first
  forks: Fork[];
  omitted: number; // lanes that are not shown
}

const maxLanes = 40;
const maxPoints = 200;

const laneOf = (key: string, name: string, from: number, state: string): Lane => ({ key, name, from, last: from, state });

// lanesOf returns the lanes of all sandboxes that the page knows, also of deleted ones, by key.
function lanesOf(model: Model, events: Event[]): Map<string, Lane> {
  const lanes = new Map<string, Lane>();
  for (const s of model.sandboxes.values()) {
    const key = sandboxKey(s.id);
    lanes.set(key, laneOf(key, s.labels?.["name"] || shortID(s.id), 1000 * s.created_at_unix, s.state));
  }
  for (const e of [...events].reverse()) {
    if (e.sandbox_id === undefined) continue;
    const key = sandboxKey(e.sandbox_id);
    const at = Date.parse(e.time);
    const lane = lanes.get(key) ?? laneOf(key, e.labels?.["name"] || shortID(e.sandbox_id), at, "deleted");
    lanes.set(key, lane);
    lane.last = Math.max(lane.last, at);
    if (e.type === "sandbox.deleted") [lane.to, lane.state] = [at, "deleted"];
  }
  return lanes;
}

// chart returns what happened in the given number of seconds before now. The events are sorted, the
// newest first. A host's clock may be ahead of the browser's clock.
export function chart(model: Model, events: Event[], seconds: number, now: number): Chart {
  const to = events.reduce((latest, e) => Math.max(latest, Date.parse(e.time) || 0), now);
  const from = to - 1000 * seconds;
  const lanes = lanesOf(model, events);
  const points: Point[] = [];
  // Only a snapshot whose sandbox has no lane has a lane of its own.
  const homeOf = (tag: string): string => {
    const source = sandboxKey(model.snapshots.get(tag)?.sandbox_id ?? "");
    return lanes.has(source) ? source : snapshotKey(tag);
  };
  const reported = new Set(events.map((e) => `${e.type} ${e.type.startsWith("snapshot.") ? e.snapshot_tag : e.sandbox_id}`));
  for (const s of model.snapshots.values()) {
    if (s.transient) continue;
    const lane = homeOf(s.tag);
    const at = 1000 * s.created_at_unix;
    if (lane === snapshotKey(s.tag)) lanes.set(lane, laneOf(lane, s.tag, at, "snapshot"));
    if (!reported.has(`snapshot.created ${s.tag}`)) points.push({ id: `created ${lane} ${s.tag}`, at, lane, type: "snapshot.created", about: s.tag });
  }
  for (const s of model.sandboxes.values()) {
    if (reported.has(`sandbox.created ${s.id}`)) continue;
    const lane = sandboxKey(s.id);
    points.push({ id: `created ${lane}`, at: 1000 * s.created_at_unix, lane, type: "sandbox.created", about: `from ${s.snapshot_tag}` });
  }
  for (const e of events) {
    const tag = e.snapshot_tag ?? "";
    const ofSnapshot = e.type.startsWith("snapshot.");
    const lane = ofSnapshot && e.sandbox_id === undefined ? homeOf(tag) : sandboxKey(e.sandbox_id ?? "");
    points.push({ id: e.id, at: Date.parse(e.time), lane, type: e.type,
      about: [ofSnapshot ? tag : e.type === "sandbox.created" && tag !== "" && `from ${tag}`, e.reason, e.detail].filter(Boolean).join(" · ") });
  }
  const shown = choose(lanes, from, model.sandboxes, homeOf);
  const forks: Fork[] = [];
  for (const s of model.sandboxes.values()) {
    const snapshot = model.snapshots.get(s.snapshot_tag);
    const child = shown.get(sandboxKey(s.id));
    const home = shown.get(homeOf(s.snapshot_tag));
    // A sandbox that was rolled back to a later branch is no fork of that branch.
    if (!snapshot || !child || !home || home === child || snapshot.created_at_unix > s.created_at_unix || child.from < from) continue;
    const at = home.state === "snapshot" ? child.from : 1000 * snapshot.created_at_unix;
    forks.push({ from: home.key, at: Math.max(from, at), to: child.key, until: child.from });
  }
  const inside = points.filter((p) => p.at >= from && (shown.has(p.lane) || !lanes.has(p.lane)));
  return {
    from, to, forks, points: inside.sort((a, b) => b.at - a.at).slice(0, maxPoints),
    lanes: [...shown.values()].sort((a, b) => a.from - b.from),
    omitted: [...lanes.values()].filter((l) => (l.to ?? to) >= from).length - shown.size,
  };
}

// choose returns the lanes to show, by key: those with the latest events, and those of the snapshots
// that they were forked from.
function choose(lanes: Map<string, Lane>, from: number, sandboxes: Map<string, Sandbox>, homeOf: (tag: string) => string): Map<string, Lane> {
  const shown = new Map<string, Lane>();
  const latest = [...lanes.values()].filter((l) => (l.to ?? Infinity) >= from).sort((a, b) => b.last - a.last);
  for (const lane of latest) {
    if (shown.size >= maxLanes) break;
    const home = lanes.get(homeOf(sandboxes.get(lane.key.slice(2))?.snapshot_tag ?? ""));
    shown.set(lane.key, lane);
    if (home !== undefined && lane.key.startsWith("b:")) shown.set(home.key, home);
  }
  return shown;
}
