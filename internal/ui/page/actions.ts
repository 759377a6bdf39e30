// The actions that change snapshots and sandboxes.
import * as api from "./api";
import type { Action } from "./dialog";
import { store } from "./store";
import { family, hasRelative, nameOf, type Node, refOf, shortID } from "./tree";
import { plural } from "./text";

export type ActionName =
  | "fork" | "try" | "branch" | "rollback" | "promote" | "pause" | "resume" | "suspend" | "label" | "kill" | "remove";

export const titles: Record<ActionName, string> = {
  fork: "Fork", try: "Run in forks", branch: "Branch", rollback: "Roll back", promote: "Promote", pause: "Pause", resume: "Resume",
  suspend: "Suspend", label: "Name, labels", kill: "Kill", remove: "Delete",
};

// keys are the keys that start an action on the selected node.
export const keys: Record<string, ActionName> = {
  f: "fork", t: "try", b: "branch", r: "rollback", m: "promote", p: "pause", s: "suspend", l: "label", Delete: "kill",
};

// possible returns the actions that a node has in its state.
export function possible(n: Node): ActionName[] {
  const scope = store.version?.scope;
  if (scope === "read") return [];
  if (n.snapshot) return n.snapshot.status === "ready" ? ["fork", "remove"] : ["remove"];
  const merge: ActionName[] = hasRelative(n) ? ["promote"] : [];
  switch (n.sandbox!.state) {
    case "running":
      return ["fork", "try", "branch", "rollback", ...merge, "pause", "suspend", "label", "kill"];
    case "paused":
      return ["resume", "branch", "rollback", "label", "kill"];
    case "suspended":
      return ["resume", "label", "kill"];
    default:
      return ["label", "kill"];
  }
}

const post = (id: string, verb: string, body: unknown = {}) => api.call("POST", api.box(id, `/${verb}`), body);

// begin returns the dialog of an action. Only "try" has none: it has a page. The parameter to is the
// snapshot that a rollback suggests.
export function begin(name: Exclude<ActionName, "try">, n: Node, to?: string): Action {
  const id = refOf(n);
  const title = nameOf(n);
  const simple = (call: "pause" | "resume" | "suspend", explain: string, done: string): Action => ({
    title: `${titles[call]} ${title}`, explain, button: titles[call], call, values: () => ({ id }),
    run: async () => {
      await post(id, call);
      return `${title} is ${done}`;
    },
  });
  switch (name) {
    case "fork":
      return fork(n, id, title);
    case "branch":
      return {
        title: `Branch ${title}`,
        explain: "Saves the sandbox as a new snapshot while it keeps running: memory, files and processes. " +
          "You can fork the snapshot, or roll the sandbox back to it.",
        button: "Branch", call: "branch",
        fields: [{ name: "tag", label: "Name of the snapshot", value: freeTag(title),
          hint: "letters, digits and . _ -" }],
        values: ({ tag }) => ({ id, tag: tag! }),
        run: async ({ tag }) => {
          const s = await api.call<api.Snapshot>("POST", api.box(id, "/branch"), { tag });
          return `${s.tag} is saved${s.pause_ms === undefined ? "" : `; ${title} paused for ${s.pause_ms.toFixed(1)} ms`}`;
        },
      };
    case "rollback":
      return rollback(n, id, title, to);
    case "promote":
      return promote(n, id, title);
    case "pause":
      return simple("pause", "Stops the sandbox's processors. It keeps its memory, and can go on at once.", "paused");
    case "resume":
      return simple("resume", "Lets the sandbox go on exactly where it stopped.", "running");
    case "suspend":
      return simple("suspend", "Saves the sandbox to disk and frees its memory. Resume brings it back.", "suspended");
    case "label":
      return label(n, id, title);
    case "kill":
      return {
        title: `Kill ${title}`, explain: "Deletes the sandbox with its memory and files. Its branches stay.",
        button: "Kill", danger: true, call: "kill", values: () => ({ id }),
        run: async () => {
          await api.call("DELETE", api.box(id));
          return `${title} is deleted`;
        },
      };
    case "remove":
      return {
        title: `Delete ${title}`, explain: "Deletes the snapshot. Sandboxes cannot be forked from it any more.",
        button: "Delete", danger: true, call: "remove", values: () => ({ tag: id }),
        run: async () => {
          await api.call("DELETE", `v1/snapshots/${encodeURIComponent(id)}`);
          return `${title} is deleted`;
        },
      };
  }
}

function fork(n: Node, id: string, title: string): Action {
  const from = n.snapshot ? { snapshot_tag: id } : { source_id: id };
  return {
    title: `Fork ${title}`,
    explain: n.snapshot
      ? "Starts new sandboxes as copies of this snapshot. They do not boot, and share its memory until they write."
      : "Starts new sandboxes that continue from this sandbox's current state: memory, files and processes.",
    button: "Fork", call: n.snapshot ? "fork" : "forkSandbox",
    fields: [{ name: "n", label: "How many", value: "1", kind: "number" }],
    values: (f) => ({ tag: id, id, n: Number(f["n"]) }),
    run: async (f) => {
      const done = await api.call<{ sandboxes: unknown[]; fork_wall_ms: number }>("POST", "v1/forks",
        { ...from, n: Number(f["n"]) });
      return `${plural(done.sandboxes.length, "sandbox")} in ${done.fork_wall_ms.toFixed(0)} ms`;
    },
  };
}

// pointsOf returns the snapshots that a sandbox can be rolled back to, with texts: those of its
// family, the nearest ancestors first.
export function pointsOf(n: Node): [tag: string, text: string][] {
  const points: [string, string][] = [];
  for (let up = n.parent; up !== undefined; up = up.parent) {
    if (up.snapshot) points.push([up.snapshot.tag, `${up.snapshot.tag} (origin)`]);
  }
  for (const o of family(n)) {
    const tag = o.snapshot?.tag;
    if (tag !== undefined && !points.some(([t]) => t === tag)) {
      points.unshift([tag, o.parent === n ? `${tag} (its branch)` : tag]);
    }
  }
  return points;
}

function rollback(n: Node, id: string, title: string, to?: string): Action {
  const choices = pointsOf(n);
  return {
    title: `Roll back ${title}`,
    explain: "Puts the sandbox back to a snapshot. It keeps its id; its current memory, files and processes are lost.",
    button: "Roll back", danger: true, call: "rollback",
    fields: [{ name: "to", label: "Snapshot", value: to ?? n.sandbox!.latest_tag ?? choices[0]?.[0] ?? "", kind: "choice",
      choices }],
    values: (f) => ({ id, tag: f["to"]! }),
    run: async (f) => {
      await post(id, "rollback", { to: f["to"] });
      return `${title} is back at ${f["to"]}`;
    },
  };
}

function promote(n: Node, id: string, title: string): Action {
  const others = family(n).filter((o) => o.sandbox?.state === "running" && o !== n);
  return {
    title: `Promote into ${title}`,
    explain: "Lets this sandbox go on as another one of its family is now. Its own state is lost; the other keeps running.",
    button: "Promote", danger: true, call: "promote",
    fields: [{ name: "from", label: "Continue as", value: others[0]?.sandbox!.id ?? "", kind: "choice",
      choices: others.slice(0, 500).map((o) => [o.sandbox!.id, nameOf(o)]) }],
    values: (f) => ({ id, child: f["from"]! }),
    run: async (f) => {
      await post(id, "promote", { from: f["from"] });
      return `${title} goes on as ${shortID(f["from"]!)}`;
    },
  };
}

function label(n: Node, id: string, title: string): Action {
  const now = n.sandbox!.labels ?? {};
  return {
    title: `Labels of ${title}`,
    explain: "The label name is shown in the tree instead of the id.",
    button: "Set", call: "label",
    fields: [
      { name: "label", label: "Label", value: "name", hint: "such as name, job or owner" },
      { name: "value", label: "Value", value: now["name"] ?? "", optional: true, hint: "empty: remove the label" },
    ],
    values: (f) => ({ id, label: f["label"]!, value: f["value"]! }),
    run: async (f) => {
      await api.call("PATCH", api.box(id, "/labels"), { [f["label"]!]: f["value"] === "" ? null : f["value"] });
      return f["value"] === "" ? `the label ${f["label"]} is removed` : `${f["label"]} is ${f["value"]}`;
    },
  };
}

function freeTag(name: string): string {
  const stem = name.replace(/[^A-Za-z0-9._-]/g, "-").replace(/^[^A-Za-z0-9_]+/, "").slice(0, 100) || "branch";
  for (let i = 1; ; i++) if (!store.snapshots.has(`${stem}-${i}`)) return `${stem}-${i}`;
}
