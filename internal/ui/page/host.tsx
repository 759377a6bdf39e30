// The page of the host: the daemon, its limits, and what happened lately.
import { h, Fragment } from "preact";
import * as api from "./api";
import { Facts } from "./detail";
import { Note, Problem, useLoad } from "./dialog";
import { Chart, type History, useHistory } from "./history";
import { useStore } from "./store";
import { bytes, plain } from "./text";

interface Ready {
  ready: boolean;
  pool_warm: boolean;
  pool_shells: number;
  pool_wanted: number;
  reason?: string;
}

interface HostPoint {
  at_unix: number;
  cpus: number;
  sandbox_cpus: number;
  available_bytes: number;
  tmpfs_bytes: number;
  own_memory_bytes: number;
  sandboxes: number;
  running: number;
  pool_shells: number;
  children_per_second: number;
  ready_ms?: number;
}

interface HostHistory extends History<HostPoint> {
  cpus: number;
  memory_bytes: number;
}

// HostCharts shows where the memory of the host is, and how busy the host is.
function HostCharts() {
  const [history, head] = useHistory<HostPoint, HostHistory>("v1/host/metrics");
  const all = history?.memory_bytes ?? 0;
  // The kernel counts files on tmpfs that a sandbox has written for a branch as the sandbox's page
  // cache, so they are not a part of own_memory_bytes.
  const others = (p: HostPoint) => Math.max(0, all - p.available_bytes - p.tmpfs_bytes - p.own_memory_bytes);
  const now = history?.points.at(-1);
  return (
    <Fragment>
      <h2>History</h2>
      {head}
      {now && (
        <Facts facts={[
          ["Memory in all", bytes(all)],
          ["… sandboxes' own", bytes(now.own_memory_bytes)],
          ["… files on tmpfs, such as hot snapshots", bytes(now.tmpfs_bytes)],
          ["… the rest of the system", bytes(others(now))],
          ["… available", bytes(now.available_bytes)],
        ]} />
      )}
      <div class="cards">
        <Chart title="Memory" history={history} text={bytes} lines={[
          { name: "sandboxes", colour: "--own", of: (p) => p.own_memory_bytes },
          { name: "on tmpfs", colour: "--snapshot", of: (p) => p.tmpfs_bytes },
          { name: "available", colour: "--green", of: (p) => p.available_bytes }]} />
        <Chart title="Processors in use" history={history} text={(v) => v.toFixed(2)} lines={[
          { name: "all processes", colour: "--accent", of: (p) => p.cpus },
          { name: "sandboxes", colour: "--own", of: (p) => p.sandbox_cpus }]} />
        <Chart title="Forks per minute" history={history} text={(v) => String(Math.round(v))} lines={[
          { name: "children", colour: "--accent", of: (p) => 60 * p.children_per_second }]} />
        <Chart title="Time until a child is ready" history={history} text={(v) => `${v.toFixed(1)} ms`} lines={[
          { name: "mean", colour: "--accent", of: (p) => p.ready_ms }]} />
        <Chart title="Sandboxes" history={history} text={(v) => String(Math.round(v))} lines={[
          { name: "running", colour: "--green", of: (p) => p.running },
          { name: "in all", colour: "--accent", of: (p) => p.sandboxes },
          { name: "in the pool", colour: "--own", of: (p) => p.pool_shells }]} />
      </div>
    </Fragment>
  );
}

interface Finding {
  check: string;
  verdict: "pass" | "warn" | "fail" | "skip";
  detail: string;
  fix?: { command: string };
}

// Findings shows the findings of 'forkd doctor' about the daemon's host.
function Findings() {
  const { value, problem, again } = useLoad(() => api.get<Finding[]>("doctor"), []);
  const bad = value?.filter((f) => f.verdict === "fail" || f.verdict === "warn") ?? [];
  const others = value?.filter((f) => !bad.includes(f)) ?? [];
  return (
    <Fragment>
      <Problem text={problem} />
      {value && bad.length === 0 && <Note>No check fails or warns.</Note>}
      <FindingTable findings={[...bad.filter((f) => f.verdict === "fail"), ...bad.filter((f) => f.verdict === "warn")]} />
      {others.length > 0 && (
        <details class="findings">
          <summary>{others.length} other checks</summary>
          <FindingTable findings={others} />
        </details>
      )}
      {value && <div class="actions"><button onClick={again}>Check again</button></div>}
    </Fragment>
  );
}

const FindingTable = ({ findings }: { findings: Finding[] }) => findings.length === 0 ? <Fragment /> : (
  <table>
    <thead><tr><th>Result</th><th>Check</th><th>Finding</th></tr></thead>
    <tbody>
      {findings.map((f) => (
        <tr>
          <td>{f.verdict}</td>
          <td>{f.check}</td>
          <td>{plain(f.detail)}{f.fix && <pre tabIndex={0} aria-label={`fix of ${f.check}`}>{plain(f.fix.command)}</pre>}</td>
        </tr>
      ))}
    </tbody>
  </table>
);

export function HostPage() {
  const s = useStore("any");
  const { value: ready, problem } = useLoad(() => api.get<Ready>("readyz"), [s.link]);
  const v = s.version;
  const states: Record<string, number> = {};
  for (const b of s.sandboxes.values()) states[b.state] = (states[b.state] ?? 0) + 1;
  const a = v?.admission;
  const lacking = api.lacking();
  return (
    <main class="page" id="main">
      <a class="back" href="#/">← Tree</a>
      <h1>Host</h1>
      <Problem text={problem} />
      {lacking.length > 0 && (
        <Note>The daemon is older than this page and does not know: {lacking.join(", ")}. Update the daemon.</Note>
      )}
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
      <HostCharts />
      <h2>Checks</h2>
      {s.doctor ? <Findings /> : v && <Note>Run <code>forkd doctor</code> on the daemon's host.</Note>}
    </main>
  );
}
