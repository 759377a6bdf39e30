// The snapshots and sandboxes that the page knows. Lists and single records of the daemon fill the
// model, and events change it.
import type { Event, Sandbox, Snapshot } from "./api";
import { grow, type Node, plant, sandboxKey, snapshotKey } from "./tree";

// Names for what the page must read from the daemon. The other names are keys of nodes.
export const everything = "all";
export const allSnapshots = "snapshots";

// states has the events that are a new state of a sandbox.
const states = new Set(["running", "paused", "suspended", "restoring", "exited"]);

export class Model {
  sandboxes = new Map<string, Sandbox>();
  snapshots = new Map<string, Snapshot>();
  nodes = new Map<string, Node>(); // the tree, without changes that arrange has not made yet
  shape = 0; // number of changes of the tree
  changed = new Set<string>(); // keys of nodes that have changed; the page removes them
  reshaped = false; // arrange has work

  #missing = new Set<string>(); // tags that sandboxes name, and that the daemon does not have
  #owners = new Map<string, number>(); // number of sandboxes in the tree, by owner

  // apply changes the model by an event. It returns the names of records that the event does not
  // have, and that the page must read.
  apply(e: Event): string[] {
    const [about, what = ""] = e.type.split(".");
    if (about === "sandbox" && e.sandbox_id !== undefined) return this.#applySandbox(e, e.sandbox_id, what);
    if (about === "snapshot" && e.snapshot_tag !== undefined) return this.#applySnapshot(e, e.snapshot_tag, what);
    return e.type === "missed" ? [everything] : [];
  }

  #applySandbox(e: Event, id: string, what: string): string[] {
    if (what === "deleted") {
      this.remove(sandboxKey(id));
      return [];
    }
    const read: string[] = [];
    const tag = e.sandbox?.snapshot_tag ?? e.snapshot_tag;
    // Suspended states are snapshots without events.
    if (tag !== undefined && !this.snapshots.has(tag) && !this.#missing.has(tag)) read.push(snapshotKey(tag));
    if (e.sandbox?.id === id) {
      this.putSandbox(e.sandbox);
      return read;
    }
    const old = this.sandboxes.get(id);
    if (old === undefined) return [...read, sandboxKey(id)];
    const now: Sandbox = { ...old, labels: e.labels, snapshot_tag: tag ?? old.snapshot_tag };
    if (states.has(what)) {
      now.state = what;
      now.exit_reason = what === "exited" ? e.reason : undefined;
      now.exit_detail = what === "exited" ? e.detail : undefined;
      now.disk_full = what === "paused" && e.reason === "disk_full";
      // A rollback and a promotion also change fields that the event does not have.
      if (old.state === "restoring" && what === "running") read.push(sandboxKey(id));
    }
    this.putSandbox(now);
    return read;
  }

  #applySnapshot(e: Event, tag: string, what: string): string[] {
    const old = this.snapshots.get(tag);
    switch (what) {
      case "deleted": {
        this.remove(snapshotKey(tag));
        for (const s of this.sandboxes.values()) {
          if (s.latest_tag === tag) this.putSandbox({ ...s, latest_tag: undefined });
        }
        return [...this.snapshots.values()].filter((s) => s.branched_from === tag).map((s) => snapshotKey(s.tag));
      }
      case "persisted":
        if (old === undefined) return [snapshotKey(tag)];
        this.putSnapshot({ ...old, persist_status: "done" });
        return [];
      case "failed":
        return [allSnapshots]; // a failed branch has no record of its own
    }
    this.#missing.delete(tag);
    const read: string[] = [];
    if (e.snapshot?.tag === tag) this.putSnapshot(e.snapshot);
    else read.push(snapshotKey(tag));
    const source = e.sandbox_id ?? "";
    if (e.sandbox !== undefined && e.sandbox.id === source) this.putSandbox(e.sandbox);
    else if (this.sandboxes.has(source)) read.push(sandboxKey(source));
    return read;
  }

  putSandbox(s: Sandbox) {
    const old = this.sandboxes.get(s.id);
    const node = this.nodes.get(sandboxKey(s.id));
    this.sandboxes.set(s.id, s);
    if (node !== undefined) node.sandbox = s;
    if (node === undefined) this.reshaped ||= !this.#place(s);
    else if (old?.snapshot_tag !== s.snapshot_tag || old.created_at_unix !== s.created_at_unix ||
      old.owner !== s.owner) this.reshaped = true;
    this.changed.add(sandboxKey(s.id));
  }

  putSnapshot(s: Snapshot) {
    const old = this.snapshots.get(s.tag);
    const node = this.nodes.get(snapshotKey(s.tag));
    this.snapshots.set(s.tag, s);
    if (node !== undefined) node.snapshot = s;
    if (node === undefined || old?.sandbox_id !== s.sandbox_id || old?.branched_from !== s.branched_from ||
      old?.created_at_unix !== s.created_at_unix || old?.transient !== s.transient) this.reshaped = true;
    this.changed.add(snapshotKey(s.tag));
  }

  // remove removes a node that the daemon does not have.
  remove(key: string) {
    const name = key.slice(2);
    const known = key === sandboxKey(name) ? this.sandboxes.delete(name) : this.snapshots.delete(name);
    if (key === snapshotKey(name)) {
      if (this.#missing.size >= maxMissing) this.#missing.clear();
      this.#missing.add(name);
    }
    if (!known) return;
    this.reshaped ||= !this.#unplace(key);
    this.changed.add(key);
  }

  replaceSandboxes(list: Sandbox[]) {
    this.sandboxes = new Map(list.map((s) => [s.id, s]));
    this.reshaped = true;
  }

  replaceSnapshots(list: Snapshot[]) {
    this.snapshots = new Map(list.map((s) => [s.tag, s]));
    this.#missing.clear();
    this.reshaped = true;
  }

  // arrange makes the tree anew. It takes a long time for a large tree, so new and deleted sandboxes
  // usually change the tree without it.
  arrange() {
    this.nodes = grow(this.snapshots, this.sandboxes);
    this.#owners.clear();
    for (const s of this.sandboxes.values()) this.#count(s, 1);
    this.reshaped = false;
    this.shape++;
  }

  // #place adds a new sandbox to the tree, as arrange would do. It returns false if other nodes would
  // also change.
  #place(s: Sandbox): boolean {
    const above = this.nodes.get(snapshotKey(s.snapshot_tag));
    const waits = above === undefined && this.snapshots.has(s.snapshot_tag); // the tree hides unused transient snapshots
    if (this.reshaped || waits || (s.owner && !this.#owners.has(s.owner))) return false;
    for (const branch of this.snapshots.values()) if (branch.sandbox_id === s.id) return false;
    this.nodes.set(sandboxKey(s.id), plant(s, this.#owners.size > 1, above));
    this.#count(s, 1);
    this.shape++;
    return true;
  }

  // #unplace removes a node from the tree, as arrange would do. It returns false if other nodes would
  // also change.
  #unplace(key: string): boolean {
    const node = this.nodes.get(key);
    const s = node?.sandbox;
    if (this.reshaped || node === undefined || s === undefined || node.children.length > 0) return false;
    if ((s.owner && this.#owners.get(s.owner) === 1) || (node.parent?.snapshot?.transient && node.parent.children.length === 1)) return false;
    if (node.parent !== undefined) node.parent.children = node.parent.children.filter((c) => c !== node);
    this.nodes.delete(key);
    this.#count(s, -1);
    this.shape++;
    return true;
  }

  #count({ owner }: Sandbox, change: number) {
    if (owner) this.#owners.set(owner, (this.#owners.get(owner) ?? 0) + change);
  }
}

const maxMissing = 1000;
