// The state of the daemon as the page knows it. The page lists everything when it is opened, and
// then follows the event stream, whose events have the records that they change. It reads only
// records that an event does not have.
import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { allSnapshots, everything, Model } from "./model";
import { sandboxKey, snapshotKey } from "./tree";

export type Link = "connecting" | "live" | "away" | "ended" | "login";

// A topic is what a component is drawn again for. It is the key of a node, or one of these:
// page:  the connection, or the shape of the tree
// stats: figures of sandboxes; at least at every statsInterval
// slow:  any record, at most at every slowInterval
// any:   everything
export type Topic = string;

const maxEvents = 200;
const maxArrived = 4096; // events that are kept while the page reads
const gather = 0.25; // seconds between writes of the stream, each of which costs the daemon more than an event
const statsInterval = 3000;
const statsAge = statsInterval / 1000; // seconds; pages that show the same sandboxes share the measurements
const fullEvery = 3; // intervals; the memory of a VMM process takes the daemon milliseconds to measure
const slowInterval = 250;
const maxMeasured = 48; // sandboxes that are measured in one interval …
const maxMeasuredAgain = 3; // … and those of them that had been measured before
const maxReads = 32; // records that are read one by one; instead of more, the page lists all
const readers = 4;
const readPause = 250; // after records were read …
const listPause = 1000; // … and after a list

const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

class Store {
  model = new Model();
  stats = new Map<string, api.Stats>(); // the latest measured last
  events: api.Event[] = []; // the newest first
  link: Link = "connecting";
  problem = "";
  loaded = false;
  version?: api.Version;
  daemon = "";
  doctor = false; // the view can check the daemon's host
  measured: string[] = []; // ids of sandboxes that are on the screen
  chosen = ""; // key of the node whose details are on the screen
  revision = 0;

  #listeners = new Map<Topic, Set<() => void>>();
  #topics = new Set<Topic>(); // to be drawn
  #queued = false;
  #arrangeAfter = 0; // time before which the tree is not arranged again
  #shape = 0; // as drawn last
  #slowTimer?: number;

  #stream?: AbortController;
  #place = ""; // in the event stream, for its continuation
  #last = ""; // id of the last event
  #stale = true; // list everything before the next stream is followed
  #connection = 0; // number of the connection
  #following = false; // events of the connection arrive
  #reading = 0; // connection of the running #readWanted, or 0
  #wanted = new Set<string>(); // records to read, as in Model.apply
  #arrived?: api.Event[]; // events since the reads under way began

  get sandboxes() {
    return this.model.sandboxes;
  }

  get snapshots() {
    return this.model.snapshots;
  }

  subscribe(topic: Topic, f: () => void): () => void {
    const all = this.#listeners.get(topic) ?? new Set();
    this.#listeners.set(topic, all.add(f));
    return () => {
      all.delete(f);
      if (all.size === 0 && this.#listeners.get(topic) === all) this.#listeners.delete(topic);
    };
  }

  // changed has the components of a topic drawn, at most once per frame.
  changed(topic: Topic) {
    this.revision++;
    this.#topics.add(topic);
    if (this.#queued) return;
    this.#queued = true;
    const draw = () => this.#draw();
    document.hidden ? setTimeout(draw, 100) : requestAnimationFrame(draw);
  }

  #draw() {
    this.#queued = false;
    const topics = this.#topics;
    this.#topics = new Set();
    const began = performance.now();
    if (this.model.reshaped && began >= this.#arrangeAfter) {
      this.model.arrange();
      // A large tree is arranged less often.
      const now = performance.now();
      this.#arrangeAfter = now + 4 * (now - began);
    }
    if (this.model.shape !== this.#shape) topics.add("page");
    this.#shape = this.model.shape;
    if (this.model.changed.size > 0) {
      for (const key of this.model.changed) topics.add(key as Topic);
      this.model.changed.clear();
      this.#slowTimer ??= setTimeout(() => {
        this.#slowTimer = undefined;
        this.#tell("slow");
      }, slowInterval);
    }
    topics.add("any");
    for (const topic of topics) this.#tell(topic);
    if (this.model.reshaped) this.changed("any");
  }

  #tell(topic: Topic) {
    this.#listeners.get(topic)?.forEach((f) => f());
  }

  start() {
    void this.#follow();
    void this.#measure();
    // A hidden page needs no events. Each stream occupies one of the few connections that a browser
    // opens to a server.
    document.addEventListener("visibilitychange", () => {
      this.#stale = true;
      if (document.hidden) this.#stream?.abort();
      else if (this.link !== "ended" && this.link !== "login") void this.#follow();
    });
  }

  async #follow() {
    this.#stream?.abort();
    const stream = (this.#stream = new AbortController());
    for (let wait = 500; !stream.signal.aborted; wait = Math.min(wait * 2, 5000)) {
      this.#connection++;
      this.#following = false;
      try {
        const after = this.#stale ? "" : `&after=${encodeURIComponent(this.#place)}`;
        const answer = await api.send("GET", `v1/events?records=true&gather_secs=${gather}${after}`, undefined, stream.signal);
        wait = 500;
        if (this.#stale) {
          this.#wanted.clear();
          await this.#list(true, true, stream.signal);
          this.#stale = false;
          this.loaded = true;
        }
        this.#following = true;
        this.#set("live", "");
        if (this.version === undefined) await this.#describe();
        this.want();
        let place = "";
        await api.lines(answer, (line) => {
          if (line.startsWith("id: ")) place = line.slice(4);
          else if (line.startsWith("data: ")) this.#event(JSON.parse(line.slice(6)) as api.Event);
          // The stream can be cut between an id and its event, so the id counts only when both are there.
          else if (line === "" && place !== "") this.#place = place;
        });
        this.#set("away", "the stream of events has ended");
      } catch (e) {
        if (stream.signal.aborted) return;
        const failure = e instanceof api.Failure ? e : undefined;
        if (failure?.code === "want_token") {
          this.#set("login", failure.message);
          return;
        }
        if (failure?.code === "no_session" || (failure?.status === 0 && !api.byDaemon)) {
          this.#set("ended", failure.message);
          return;
        }
        this.#set("away", String((e as Error).message ?? e));
      }
      await sleep(wait);
    }
  }

  #set(link: Link, problem: string) {
    this.link = link;
    this.problem = problem;
    this.changed("page");
  }

  async #describe() {
    [this.version, { name: this.daemon, doctor: this.doctor }] = await Promise.all([
      api.get<api.Version>("version"),
      api.get<{ name: string; doctor: boolean }>("daemon"),
    ]);
    this.changed("page");
  }

  #event(e: api.Event) {
    const isNew = e.type === "missed" || isAfter(e.id, this.#last);
    this.#last = e.id;
    if (!isNew) {
      this.want(everything); // an old event could undo a newer one
      return;
    }
    this.events.unshift(e);
    this.events.length = Math.min(this.events.length, maxEvents);
    if (this.#arrived !== undefined) {
      if (this.#arrived.length < maxArrived) this.#arrived.push(e);
      else this.#wanted.add(everything);
    }
    this.#apply(e);
  }

  #apply(e: api.Event) {
    this.want(...this.model.apply(e));
    if (e.type.endsWith(".deleted")) this.#wanted.delete(keyOf(e));
    if (e.type === "sandbox.deleted") this.stats.delete(e.sandbox_id ?? "");
    this.changed("any");
  }

  // want has records read, as soon as the connection and the pauses permit. The names are those of
  // Model.apply.
  want(...names: string[]) {
    for (const name of names) this.#wanted.add(name);
    if (this.#wanted.size > 0 && this.#following && this.#reading !== this.#connection) void this.#readWanted();
  }

  async #readWanted() {
    const connection = (this.#reading = this.#connection);
    const signal = this.#stream!.signal;
    while (this.#wanted.size > 0 && connection === this.#connection) {
      const names = this.#wanted;
      this.#wanted = new Set();
      const all = names.has(everything);
      const sandboxes = all || count(names, "b:") > maxReads;
      const snapshots = all || names.has(allSnapshots) || count(names, "s:") > maxReads;
      const began = performance.now();
      const arrived: api.Event[] = (this.#arrived = []);
      let failed = false;
      try {
        if (sandboxes || snapshots) {
          await this.#list(sandboxes, snapshots, signal);
          arrived.forEach((e) => this.#apply(e)); // the lists may be older than these events
        }
      } catch {
        names.forEach((name) => this.#wanted.add(name));
        failed = true;
      }
      const single = [...names].filter((n) => (n.startsWith("b:") && !sandboxes) || (n.startsWith("s:") && !snapshots));
      const read = async () => {
        for (let key = single.pop(); key !== undefined && !failed; key = single.pop()) {
          try {
            await this.#readOne(key, arrived, signal);
          } catch {
            this.#wanted.add(key.startsWith("s:") ? allSnapshots : everything);
            single.forEach((rest) => this.#wanted.add(rest));
            failed = true;
          }
        }
      };
      await Promise.all(Array.from({ length: readers }, read));
      if (connection === this.#connection) this.#arrived = undefined;
      const took = performance.now() - began;
      await sleep((sandboxes || snapshots || failed ? listPause : readPause) + 4 * took);
      if (failed) break; // the stream reports a lost connection, and #measure tries again
    }
    if (this.#reading === connection) this.#reading = 0;
  }

  // #list lists sandboxes, snapshots, or both. It drops lists that come after the end of its
  // connection.
  async #list(sandboxes: boolean, snapshots: boolean, signal: AbortSignal) {
    const connection = this.#connection;
    const [boxes, saved] = await Promise.all([
      sandboxes ? api.list<api.Sandbox>("v1/sandboxes", signal) : undefined,
      snapshots ? api.list<api.Snapshot>("v1/snapshots", signal) : undefined,
    ]);
    if (connection !== this.#connection) throw new Error("the connection has ended");
    if (boxes !== undefined) this.model.replaceSandboxes(boxes);
    for (const id of this.stats.keys()) if (!this.sandboxes.has(id)) this.stats.delete(id);
    if (saved !== undefined) this.model.replaceSnapshots(saved);
    this.changed("page");
  }

  async #readOne(key: string, arrived: api.Event[], signal: AbortSignal) {
    const connection = this.#connection;
    const name = key.slice(2);
    const isSandbox = key === sandboxKey(name);
    let put = () => this.model.remove(key);
    try {
      if (isSandbox) {
        const s = await api.get<api.Sandbox>(api.box(name), signal);
        put = () => this.model.putSandbox(s);
      } else {
        const s = await api.get<api.Snapshot>(`v1/snapshots/${encodeURIComponent(name)}/info`, signal);
        put = () => this.model.putSnapshot(s);
      }
    } catch (e) {
      if (!(e instanceof api.Failure && e.status === 404)) throw e;
    }
    if (connection !== this.#connection) throw new Error("the connection has ended");
    put();
    // The record may be older than these events.
    arrived.filter((e) => keyOf(e) === key).forEach((e) => this.#apply(e));
    this.changed("any");
  }

  // #measure reads the figures of sandboxes on the screen. It also reads records that change
  // without events.
  async #measure() {
    for (let turn = 0, full = ""; ; turn++) {
      if (!document.hidden && this.link === "live") {
        const queue = this.#toMeasure();
        const whole = this.chosen !== full || turn % fullEvery === 0 ? this.chosen : "";
        full = this.chosen;
        await Promise.all(Array.from({ length: 3 }, async () => {
          for (let id = queue.pop(); id !== undefined; id = queue.pop()) await this.#measureOne(id, sandboxKey(id) === whole);
        }));
        this.want(...this.#unsettled());
        this.changed("stats");
      }
      await sleep(this.stats.size === 0 ? 500 : statsInterval);
    }
  }

  #toMeasure(): string[] {
    const live = new Set(this.measured.filter((id) => ["running", "paused"].includes(this.sandboxes.get(id)?.state ?? "")));
    const chosen = this.chosen === sandboxKey(this.chosen.slice(2)) ? this.chosen.slice(2) : "";
    const again = [...this.stats.keys()].filter((id) => live.has(id) && id !== chosen).slice(0, maxMeasuredAgain);
    const first = [...live].filter((id) => id === chosen || !this.stats.has(id));
    return [...again, ...first.slice(0, maxMeasured)].reverse();
  }

  // #measureOne reads the figures of a sandbox: all of them, or those that the row shows.
  async #measureOne(id: string, all: boolean) {
    const before = this.stats.get(id);
    try {
      const read = (what: string, age: number) => api.get<api.Stats>(api.box(id, `/${what}?max_age_secs=${age}`));
      const now = all || api.lacks("written") ? await read("stats", fullEvery * statsAge)
        : { ...before, ...await read("written", statsAge) };
      this.stats.delete(id); // the order of the map is the order of measurements
      if (this.sandboxes.has(id)) this.stats.set(id, now);
    } catch {
      this.stats.delete(id); // it has just ended, or hangs
      if (before !== undefined) this.want(sandboxKey(id));
    }
  }

  // #unsettled returns names of records that change without events, as in Model.apply.
  #unsettled(): string[] {
    const names: string[] = [];
    const key = this.chosen;
    if (this.sandboxes.has(key.slice(2)) && key.startsWith("b:")) names.push(key);
    if (this.snapshots.get(key.slice(2))?.status === "ready" && key.startsWith("s:")) names.push(key);
    for (const s of this.sandboxes.values()) {
      if (s.not_answering && names.length < maxReads / 2) names.push(sandboxKey(s.id));
    }
    for (const s of this.snapshots.values()) {
      if (s.status !== "writing") continue;
      names.push(allSnapshots);
      break;
    }
    return names;
  }
}

// keyOf returns the key of the node that an event is about.
const keyOf = (e: api.Event) =>
  e.type.startsWith("snapshot.") ? snapshotKey(e.snapshot_tag ?? "") : sandboxKey(e.sandbox_id ?? "");

const count = (names: Set<string>, prefix: string) => [...names].filter((n) => n.startsWith(prefix)).length;

// isAfter reports whether an event has a higher number than an earlier one. Events of another daemon
// count from 1 again.
function isAfter(id: string, before: string): boolean {
  const [epoch, number] = id.split("-");
  const [epochBefore, numberBefore] = before.split("-");
  return epoch !== epochBefore || Number(number) > Number(numberBefore);
}

export const store = new Store();

// useStore draws a component again when one of the topics changes.
export function useStore(...topics: Topic[]): Store {
  const [, set] = useState(0);
  const drawn = store.revision;
  useEffect(() => {
    const draw = () => set((n) => n + 1);
    if (store.revision !== drawn) draw();
    const ends = topics.map((topic) => store.subscribe(topic, draw));
    return () => ends.forEach((end) => end());
  }, [topics.join("\n")]);
  return store;
}

// useChosen marks a node as the one whose details are on the screen.
export function useChosen(key: string) {
  useEffect(() => {
    store.chosen = key;
    return () => {
      if (store.chosen === key) store.chosen = "";
    };
  }, [key]);
}
