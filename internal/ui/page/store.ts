// The state of the daemon as the page knows it: lists, kept current by the event stream.
import { useEffect, useState } from "preact/hooks";
import * as api from "./api";

export type Link = "connecting" | "live" | "away" | "ended" | "login";

const maxEvents = 200;
const statsInterval = 3000;
const maxMeasured = 48; // sandboxes that are measured in one interval

class Store {
  sandboxes = new Map<string, api.Sandbox>();
  snapshots = new Map<string, api.Snapshot>();
  stats = new Map<string, api.Stats>();
  events: api.Event[] = []; // the newest first
  link: Link = "connecting";
  problem = "";
  loaded = false;
  version?: api.Version;
  daemon = "";
  measured: string[] = []; // ids of sandboxes that are on the screen
  revision = 0;

  #listeners = new Set<() => void>();
  #stream?: AbortController;
  #listing = false;
  #again = false;
  #queued = false;

  subscribe(f: () => void): () => void {
    this.#listeners.add(f);
    return () => this.#listeners.delete(f);
  }

  // changed tells the components, once per frame.
  changed() {
    this.revision++;
    if (this.#queued) return;
    this.#queued = true;
    const tell = () => {
      this.#queued = false;
      this.#listeners.forEach((f) => f());
    };
    document.hidden ? setTimeout(tell, 100) : requestAnimationFrame(tell);
  }

  start() {
    void this.#follow();
    void this.#measure();
    // A hidden page needs no events. Each stream occupies one of the few connections that a browser
    // opens to a server.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#stream?.abort();
      else if (this.link !== "ended" && this.link !== "login") void this.#follow();
    });
  }

  async #follow() {
    this.#stream?.abort();
    const stream = (this.#stream = new AbortController());
    for (let wait = 500; !stream.signal.aborted; wait = Math.min(wait * 2, 5000)) {
      try {
        const answer = await api.send("GET", "v1/events", undefined, stream.signal);
        wait = 500;
        await this.refresh();
        this.#set("live", "");
        if (this.version === undefined) await this.#describe();
        await api.lines(answer, (line) => {
          if (line.startsWith("data: ")) this.#event(JSON.parse(line.slice(6)) as api.Event);
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
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  #set(link: Link, problem: string) {
    this.link = link;
    this.problem = problem;
    this.changed();
  }

  async #describe() {
    [this.version, { name: this.daemon }] = await Promise.all([
      api.get<api.Version>("version"),
      api.get<{ name: string }>("daemon"),
    ]);
    this.changed();
  }

  #event(e: api.Event) {
    this.events = [e, ...this.events].slice(0, maxEvents);
    if (e.type === "sandbox.deleted" && e.sandbox_id !== undefined) {
      this.sandboxes.delete(e.sandbox_id);
      this.stats.delete(e.sandbox_id);
    } else if (e.type === "snapshot.deleted" && e.snapshot_tag !== undefined) {
      this.snapshots.delete(e.snapshot_tag);
    }
    this.changed();
    void this.refresh();
  }

  // refresh lists everything again. Calls while a list is under way cause one more.
  async refresh(): Promise<void> {
    if (this.#listing) {
      this.#again = true;
      return;
    }
    this.#listing = true;
    try {
      const began = performance.now();
      const [sandboxes, snapshots] = await Promise.all([
        api.list<api.Sandbox>("v1/sandboxes"),
        api.list<api.Snapshot>("v1/snapshots"),
      ]);
      this.sandboxes = new Map(sandboxes.map((s) => [s.id, s]));
      this.snapshots = new Map(snapshots.map((s) => [s.tag, s]));
      this.loaded = true;
      this.changed();
      // Long lists are fetched less often.
      await new Promise((done) => setTimeout(done, 100 + 4 * (performance.now() - began)));
    } finally {
      this.#listing = false;
    }
    if (this.#again) {
      this.#again = false;
      void this.refresh().catch(() => {}); // the event stream reports a lost connection
    }
  }

  async #measure() {
    for (;;) {
      if (!document.hidden && this.link === "live") {
        const live = this.measured.filter((id) => ["running", "paused"].includes(this.sandboxes.get(id)?.state ?? ""));
        const queue = live.slice(0, maxMeasured);
        await Promise.all(
          [0, 1, 2].map(async () => {
            for (let id = queue.pop(); id !== undefined; id = queue.pop()) {
              try {
                this.stats.set(id, await api.get<api.Stats>(api.box(id, "/stats")));
              } catch {
                this.stats.delete(id); // it has just ended
              }
            }
          }),
        );
        if (live.length > 0) this.changed();
      }
      await new Promise((done) => setTimeout(done, this.stats.size === 0 ? 500 : statsInterval));
    }
  }
}

export const store = new Store();

// useStore makes a component follow the store.
export function useStore(): Store {
  const [, set] = useState(store.revision);
  useEffect(() => {
    const follow = () => set(store.revision);
    follow(); // the store may have changed since the component was drawn
    return store.subscribe(follow);
  }, []);
  return store;
}
