// The page of the host: the daemon, its limits, and what happened lately.
import { h } from "preact";
import * as api from "./api";
import { Facts } from "./detail";
import { Note, Problem, useLoad } from "./dialog";
import { useStore } from "./store";
import { bytes, plain } from "./text";

interface Ready {
  ready: boolean;
  pool_warm: boolean;
  pool_shells: number;
  pool_wanted: number;
  reason?: string;
}

export function HostPage() {
  const s = useStore();
  const { value: ready, problem } = useLoad(() => api.get<Ready>("readyz"), [s.link]);
  const v = s.version;
  const states: Record<string, number> = {};
  for (const b of s.sandboxes.values()) states[b.state] = (states[b.state] ?? 0) + 1;
  const a = v?.admission;
  return (
    <main class="page" id="main">
      <a class="back" href="#/">← Tree</a>
      <h1>Host</h1>
      <Problem text={problem} />
      <div class="cards">
        <section class="card">
          <h2>Daemon</h2>
          <Facts facts={[
            ["Address", s.daemon],
            ["Version", v && `${v.version}, API ${v.api}`],
            ["Runs guests by", v?.no_kvm ? `nothing: ${v.no_kvm}` : v?.accel],
            ["Your rights", v?.scope],
            ["Limits missing", v?.limits_missing],
            ["Left alone", v?.left_alone?.join(", ")],
          ]} />
        </section>
        <section class="card">
          <h2>Capacity</h2>
          <Facts facts={[
            ["Memory of the host", v && bytes(v.host_memory_mib * 2 ** 20)],
            ["Kept free", a && bytes(a.memory_reserve_mib * 2 ** 20)],
            ["Disk kept free", a && bytes(a.disk_reserve_mib * 2 ** 20)],
            ["Sandboxes", Object.entries(states).map(([name, n]) => `${n} ${name}`).join(", ") || "none"],
            ["Most sandboxes", a && (a.max_sandboxes === 0 ? "no limit" : String(a.max_sandboxes))],
            ["vCPUs per CPU", a && (a.vcpu_overcommit === 0 ? "no limit" : String(a.vcpu_overcommit))],
            ["Pool", ready && `${ready.pool_shells} of ${ready.pool_wanted} machines wait for a fork`],
          ]} />
        </section>
      </div>
      <h2>Events</h2>
      {s.events.length === 0 && <Note>Nothing has happened since this page was opened.</Note>}
      <ol class="events" tabIndex={0} aria-label="Events, the newest first">
        {s.events.map((e) => (
          <li key={e.id}>
            <time>{new Date(e.time).toLocaleTimeString()}</time>
            <b>{e.type}</b>
            <span>{[e.sandbox_id, e.snapshot_tag, e.reason, plain(e.detail ?? "")].filter(Boolean).join(" · ")}</span>
          </li>
        ))}
      </ol>
    </main>
  );
}
