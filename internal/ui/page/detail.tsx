// The panel beside the tree, with the facts and actions of the selected node.
import { h, Fragment } from "preact";
import { type ActionName, possible, titles } from "./actions";
import { Calls } from "./dialog";
import { cpuOf, Icon, memoryOf, stateOf } from "./rows";
import { store, useChosen, useStore } from "./store";
import { age, bytes, plural } from "./text";
import { count, labelsOf, nameOf, type Node, refOf } from "./tree";

export const hints: Partial<Record<ActionName, string>> = {
  fork: "f", try: "t", branch: "b", rollback: "r", promote: "m", pause: "p", resume: "p", suspend: "s", label: "l", kill: "del", remove: "del",
};

export function Detail({ n, act, open }: { n: Node; act: (name: ActionName, n: Node) => void; open: (n: Node) => void }) {
  useStore(n.key, "stats");
  useChosen(n.key);
  const names = possible(n);
  const main = n.snapshot ? "fork" : "branch";
  return (
    <section class="detail" aria-label={`Details of ${nameOf(n)}`}>
      <h2><Icon n={n} /> <span class="name">{nameOf(n)}</span></h2>
      <p class="explain">{n.snapshot ? aboutSnapshot(n) : aboutSandbox(n)}</p>
      {n.sandbox && <Sharing n={n} />}
      <div class="actions">
        {n.sandbox && n.sandbox.state !== "exited" && (
          <button class="primary" onClick={() => open(n)}>Open <kbd>enter</kbd></button>
        )}
        {names.map((name) => (
          <button class={name === "kill" || name === "remove" ? "danger-soft" : name === main && !n.sandbox ? "primary" : ""}
            onClick={() => act(name, n)}>{titles[name]} <kbd>{hints[name]}</kbd></button>
        ))}
      </div>
      <Facts facts={n.snapshot ? snapshotFacts(n) : sandboxFacts(n)} />
      <Labels n={n} />
      {n.snapshot
        ? <Calls name="fork" values={{ tag: n.snapshot.tag, n: 1 }} />
        : <Calls name="shell" values={{ id: n.sandbox!.id }} />}
    </section>
  );
}

const aboutSnapshot = (n: Node) => {
  const { sandboxes } = count(n);
  const kind = n.snapshot!.sandbox_id !== undefined ? "A branch: a running sandbox, saved at one moment."
    : "A saved machine: its memory, files and running programs.";
  return <Fragment>{kind} {sandboxes === 0 ? "No sandbox runs from it." : `${plural(sandboxes, "sandbox")} below it share its memory.`}</Fragment>;
};

const aboutSandbox = (n: Node) => (
  <Fragment>A {n.sandbox!.state} copy of <b>{n.sandbox!.snapshot_tag}</b>: a machine of its own, with its own memory, files and programs.</Fragment>
);

// Sharing shows which part of a sandbox's memory is its own.
function Sharing({ n }: { n: Node }) {
  const m = memoryOf(n);
  if (m === undefined) return <Fragment />;
  return (
    <div class="sharing">
      <div class="meter wide" aria-hidden="true"><i style={{ width: `${Math.max(1, (100 * m.own) / m.all)}%` }} /></div>
      <div class="legend">
        <span class="own">{bytes(m.own * 1024)} its own</span>
        <span class="shared">{bytes((m.all - m.own) * 1024)} shared with {n.sandbox!.snapshot_tag}</span>
      </div>
    </div>
  );
}

type Fact = [name: string, value: string | undefined];

export function Facts({ facts }: { facts: Fact[] }) {
  return (
    <dl class="facts">
      {facts.filter(([, v]) => v !== undefined && v !== "").map(([name, v]) => (
        <Fragment><dt>{name}</dt><dd>{v}</dd></Fragment>
      ))}
    </dl>
  );
}

export function sandboxFacts(n: Node): Fact[] {
  const s = n.sandbox!;
  const stats = store.stats.get(s.id);
  return [
    ["State", stateOf(n)],
    ["Id", s.id],
    ["Owner", n.owner],
    ["Workspace", s.workspace],
    ["Age", age(s.created_at_unix)],
    ["Ready after", s.ready_ms === undefined ? undefined : `${s.ready_ms.toFixed(1)} ms`],
    ["Latest snapshot", s.latest_tag],
    ["Memory on this host", stats?.private_kib === undefined || stats.pss_kib === undefined ? undefined
      : `${bytes(stats.private_kib * 1024)} private, ${bytes(stats.pss_kib * 1024)} with its share`],
    ["Disk written since", stats?.disk_since_latest_kib === undefined ? undefined : bytes(stats.disk_since_latest_kib * 1024)],
    ["Processors in use", cpuOf(n)],
    ["Processor time", stats?.usage && `${stats.usage.cpu_seconds.toFixed(1)} s`],
    ["Network", s.network],
    ["Ended by", s.exit_detail ?? s.exit_reason],
    ["Deleted in", s.expires_at_unix === undefined ? undefined : `${Math.max(0, Math.round(s.expires_at_unix - Date.now() / 1000))} s`],
  ];
}

function snapshotFacts(n: Node): Fact[] {
  const s = n.snapshot!;
  return [
    ["Status", s.status === "ready" && s.persist_status === "failed" ? "in memory only" : (s.step ?? s.status)],
    ["Warning", s.warning],
    ["Age", age(s.created_at_unix)],
    ["Memory", s.mem_size_mib === undefined ? undefined : bytes(s.mem_size_mib * 2 ** 20)],
    ["Memory saved", s.dirty_bytes === undefined ? undefined : bytes(s.dirty_bytes)],
    ["Paused the sandbox for", s.pause_ms === undefined ? undefined : `${s.pause_ms.toFixed(1)} ms`],
    ["Branched from", s.sandbox_id ?? s.branched_from],
    ["Running from it", String(s.sandboxes)],
    ["Kind", s.disk_only ? "disk only" : s.built ? "result of a build" : undefined],
  ];
}

function Labels({ n }: { n: Node }) {
  const all = Object.entries(labelsOf(n));
  if (all.length === 0) return <Fragment />;
  return <p class="labels">{all.map(([name, value]) => <span class="chip">{`${name}=${value}`}</span>)}</p>;
}

export const titleOf = (n: Node) => `${n.snapshot ? "snapshot" : "sandbox"} ${refOf(n)}`;
