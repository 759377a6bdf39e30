// The tree of snapshots and sandboxes, and its visible rows.
import type { Sandbox, Snapshot } from "./api";

export interface Node {
  key: string; // "s:" and the tag of a snapshot, or "b:" and the id of a sandbox
  snapshot?: Snapshot;
  sandbox?: Sandbox;
  owner?: string; // of the sandbox; missing if all sandboxes have the same owner
  parent?: Node;
  children: Node[];
}

export interface Row {
  node: Node;
  depth: number;
  position: number; // among its siblings, from 1
  siblings: number;
  open: boolean;
  lines: boolean[]; // for each ancestor's level: whether more siblings follow
}

export const snapshotKey = (tag: string) => `s:${tag}`;
export const sandboxKey = (id: string) => `b:${id}`;

// grow arranges snapshots and sandboxes like the command 'forkd tree': a sandbox is below the
// snapshot that it runs from, and a branch below its source or, if that is gone, the source's
// snapshot. Each occurs once, even if the lists contain cycles.
export function grow(snapshots: Map<string, Snapshot>, sandboxes: Map<string, Sandbox>): Map<string, Node> {
  const all = new Map<string, Node>();
  for (const s of snapshots.values()) all.set(snapshotKey(s.tag), { key: snapshotKey(s.tag), snapshot: s, children: [] });
  const owners = new Set<string>();
  for (const s of sandboxes.values()) if (s.owner) owners.add(s.owner);
  for (const s of sandboxes.values()) {
    const node: Node = { key: sandboxKey(s.id), sandbox: s, owner: owners.size > 1 ? s.owner : undefined, children: [] };
    all.set(node.key, node);
    attach(node, all.get(snapshotKey(s.snapshot_tag)));
  }
  for (const s of snapshots.values()) {
    const node = all.get(snapshotKey(s.tag))!;
    // A sandbox that was rolled back to its own branch is a descendant of that branch.
    for (const above of [sandboxKey(s.sandbox_id ?? ""), snapshotKey(s.branched_from ?? "")]) {
      if (attach(node, all.get(above))) break;
    }
  }
  for (const node of all.values()) {
    // The state of a suspended sandbox is a snapshot that users do not need.
    if (node.snapshot?.transient && node.children.length === 0) {
      all.delete(node.key);
      if (node.parent) node.parent.children = node.parent.children.filter((c) => c !== node);
    }
  }
  for (const node of all.values()) node.children.sort(byAge);
  return all;
}

// plant returns the node of a new sandbox. The node has the place among the children of another node
// that grow would give it: the sandbox is the youngest, or the clock was set back.
export function plant(s: Sandbox, owners: boolean, above?: Node): Node {
  const node: Node = { key: sandboxKey(s.id), sandbox: s, owner: owners ? s.owner : undefined, parent: above, children: [] };
  if (above === undefined) return node;
  const later = (c: Node) => byAge(c, node) > 0 || (byAge(c, node) === 0 && c.snapshot !== undefined);
  let at = above.children.length;
  while (at > 0 && later(above.children[at - 1]!)) at--;
  above.children.splice(at, 0, node);
  return node;
}

function attach(node: Node, to?: Node): boolean {
  for (let above = to; above !== undefined; above = above.parent) if (above === node) return false;
  if (to === undefined) return false;
  node.parent = to;
  to.children.push(node);
  return true;
}

const born = (n: Node) => (n.sandbox ?? n.snapshot)!.created_at_unix;
const byAge = (a: Node, b: Node) => born(a) - born(b); // the lists are in the order of creation

export const ownerWord = (owner: string) => `owner=${owner}`; // in a search
export const labelsOf = (n: Node) => (n.sandbox ?? n.snapshot)!.labels ?? {};
export const shortID = (id: string) => (id.length > 14 ? id.slice(0, 11) : id);
export const nameOf = (n: Node) => n.snapshot?.tag ?? (labelsOf(n)["name"] || shortID(n.sandbox!.id));
export const refOf = (n: Node) => n.snapshot?.tag ?? n.sandbox!.id;

// matches reports whether a node has all words of a search in its name, labels, owner or state.
export function matches(n: Node, words: string[]): boolean {
  const labels = Object.entries(labelsOf(n)).map(([name, value]) => `${name}=${value}`);
  const text = [refOf(n), n.sandbox?.state ?? n.snapshot!.status, n.sandbox?.workspace ?? "", ...labels].join("\n").toLowerCase();
  const owner = ownerWord(n.owner ?? "").toLowerCase();
  // An owner must be equal as a whole: its name may be a part of another name, and clients choose labels.
  return words.every((word) => (word.startsWith(ownerWord("")) ? word === owner : text.includes(word)));
}

// flatten returns the visible rows: the nodes that match a search and have a state, with their
// ancestors, and without nodes below closed ones. A search or a state opens all nodes. The state
// "snapshot" stands for all snapshots.
export function flatten(all: Map<string, Node>, closed: Set<string>, search: string, state = ""): Row[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  let wanted: Set<Node> | undefined;
  if (words.length > 0 || state !== "") {
    wanted = new Set();
    for (const n of all.values()) {
      if (!matches(n, words) || (state !== "" && (n.sandbox?.state ?? "snapshot") !== state)) continue;
      for (let up: Node | undefined = n; up !== undefined && !wanted.has(up); up = up.parent) wanted.add(up);
    }
  }
  const rows: Row[] = [];
  const shown = (list: Node[]) => (wanted ? list.filter((n) => wanted.has(n)) : list);
  const roots = [...all.values()].filter((n) => n.parent === undefined).sort(byAge);
  // A stack instead of recursion: a line of branches can be thousands of nodes deep.
  const stack: Row[] = [];
  const push = (list: Node[], depth: number, lines: boolean[]) => {
    for (let i = list.length - 1; i >= 0; i--) {
      const node = list[i]!;
      stack.push({ node, depth, position: i + 1, siblings: list.length, lines,
        open: wanted !== undefined || !closed.has(node.key) });
    }
  };
  push(shown(roots), 0, []);
  for (let row = stack.pop(); row !== undefined; row = stack.pop()) {
    rows.push(row);
    const below = row.open ? shown(row.node.children) : [];
    if (below.length === 0) continue;
    const more = row.position < row.siblings;
    push(below, row.depth + 1, row.lines.length < 24 ? [...row.lines, row.depth > 0 && more] : row.lines);
  }
  return rows;
}

// family returns all nodes of the tree that n is in.
export function family(n: Node): Node[] {
  while (n.parent !== undefined) n = n.parent;
  const all = [n];
  for (let i = 0; i < all.length; i++) all.push(...all[i]!.children);
  return all;
}

// hasRelative reports whether the tree of n has another sandbox. It usually looks at few nodes only.
export function hasRelative(n: Node): boolean {
  let root = n;
  while (root.parent !== undefined) root = root.parent;
  const next = [root];
  for (let node = next.pop(); node !== undefined; node = next.pop()) {
    if (node.sandbox && node !== n) return true;
    next.push(...node.children);
  }
  return false;
}

export function count(n: Node): { sandboxes: number; snapshots: number } {
  const below = [...n.children];
  const total = { sandboxes: 0, snapshots: 0 };
  for (let i = 0; i < below.length; i++) {
    below[i]!.sandbox ? total.sandboxes++ : total.snapshots++;
    for (const c of below[i]!.children) below.push(c);
  }
  return total;
}
