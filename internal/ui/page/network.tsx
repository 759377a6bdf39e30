// The network policy of a sandbox, its traffic, and the destinations that were refused.
import { h, Fragment } from "preact";
import { useEffect } from "preact/hooks";
import { possible } from "./actions";
import * as api from "./api";
import { Facts } from "./detail";
import { type Action, Calls, Note, Problem, useLoad } from "./dialog";
import { bytes, plain } from "./text";
import { nameOf, type Node } from "./tree";

interface Network {
  mode: string;
  allow?: string[];
  deny?: string[];
  allow_ech?: boolean;
  limits?: { bytes_per_second?: number; packets_per_second?: number; connections?: number };
  secrets?: { host: string; header: string }[];
  stats: {
    open: number; connections: number; up_bytes: number; down_bytes: number; dns_queries: number; dropped: number;
    refused?: Record<string, number>;
    open_connections?: {
      protocol: string; address: string; name?: string; up_bytes: number; down_bytes: number; began_unix: number; last_unix: number;
    }[];
    recent_allowed?: {
      protocol: string; address: string; name?: string; up_bytes: number; down_bytes: number; count: number; last_unix: number;
    }[];
    recent?: { protocol: string; address?: string; name?: string; why: string; fix?: string; count: number; last_unix: number }[];
  };
}

const interval = 3000;

export function NetworkTab({ n, ask }: { n: Node; ask: (a: Action) => void }) {
  const id = n.sandbox!.id;
  const { value, problem, poll } = useLoad(() => api.get<Network>(api.box(id, "/network")), [id]);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && poll(), interval);
    return () => clearInterval(timer);
  }, [id]);
  if (value === undefined) return <Problem text={problem} />;
  const { stats, limits = {} } = value;
  // An older daemon has no lists of open and allowed connections.
  const { recent = [], recent_allowed: allowed = [], open_connections: open = [] } = stats;
  // The dialog sets only a mode and rules, so it must not replace a policy that has more.
  const simple = !value.allow_ech && !value.secrets?.length && Object.keys(limits).length === 0;
  return (
    <Fragment>
      <Problem text={problem} />
      <Facts facts={[
        ["Policy", `${value.mode}: ${meanings[value.mode] ?? ""}`],
        ["Allowed", value.allow?.join(" ")],
        ["Denied", value.deny?.join(" ")],
        ["Encrypted server names", value.allow_ech ? "allowed" : undefined],
        ["Limits", Object.entries(limits).map(([name, v]) => `${v} ${name.replaceAll("_", " ")}`).join(", ")],
        ["Secrets for", value.secrets?.map((s) => `${s.host} (${s.header})`).join(", ")],
        ["Connections", `${stats.open} now, ${stats.connections} ended`],
        ["Sent and received", `${bytes(stats.up_bytes)}, ${bytes(stats.down_bytes)}`],
        ["Names asked", String(stats.dns_queries)],
        ["Refused", Object.entries(stats.refused ?? {}).map(([reason, count]) => `${count} ${reason}`).join(", ") || "nothing"],
      ]} />
      {possible(n).length > 0 && (
        <div class="actions">
          {simple ? <button onClick={() => ask(change(n, value))}>Change the policy</button>
            : <Note>This policy has limits, secrets or encrypted names: change it with <code>forkd net set</code>.</Note>}
        </div>
      )}
      {open.length > 0 && (
        <table>
          <thead><tr><th>Open since</th><th>Destination</th><th>Sent</th><th>Received</th><th>Latest data</th></tr></thead>
          <tbody>
            {open.map((c) => (
              <tr>
                <td>{new Date(1000 * c.began_unix).toLocaleTimeString()}</td>
                <td>{c.protocol} {plain(c.name ?? "")} {c.address}</td>
                <td>{bytes(c.up_bytes)}</td>
                <td>{bytes(c.down_bytes)}</td>
                <td>{new Date(1000 * c.last_unix).toLocaleTimeString()}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {open.length > 0 && stats.open > open.length && <Note>{stats.open - open.length} more are open.</Note>}
      {allowed.length > 0 && (
        <table>
          <thead><tr><th>Last allowed</th><th>Destination</th><th>Sent</th><th>Received</th><th>Times</th></tr></thead>
          <tbody>
            {allowed.map((a) => (
              <tr>
                <td>{new Date(1000 * a.last_unix).toLocaleTimeString()}</td>
                <td>{a.protocol} {plain(a.name ?? "")} {a.address}</td>
                <td>{bytes(a.up_bytes)}</td>
                <td>{bytes(a.down_bytes)}</td>
                <td>{a.count}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {recent.length > 0 && (
        <table>
          <thead><tr><th>Last refused</th><th>Destination</th><th>Why</th><th>Times</th></tr></thead>
          <tbody>
            {recent.map((r) => (
              <tr>
                <td>{new Date(1000 * r.last_unix).toLocaleTimeString()}</td>
                <td>{r.protocol} {plain(r.name ?? "")} {r.address}</td>
                <td>{r.why}{r.fix !== undefined && <small>: {plain(r.fix)}</small>}</td>
                <td>{r.count}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Calls name="network" values={{ id }} />
    </Fragment>
  );
}

const meanings: Record<string, string> = {
  none: "no connections",
  public: "the internet, no private networks",
  allow: "only what is allowed below",
  open: "all destinations except this host",
};

const wordsOf = (text: string) => text.split(/[\s,]+/).filter(Boolean);

function change(n: Node, now: Network): Action {
  const id = n.sandbox!.id;
  const policy = (f: Record<string, string>) => ({ mode: f["mode"]!, allow: wordsOf(f["allow"]!), deny: wordsOf(f["deny"]!) });
  return {
    title: `Network of ${nameOf(n)}`,
    explain: "Replaces the policy at once. Connections that the new policy denies are reset.",
    button: "Set", call: "setNetwork",
    fields: [
      { name: "mode", label: "Policy", value: now.mode, kind: "choice",
        choices: Object.entries(meanings).map(([mode, text]) => [mode, `${mode}: ${text}`]) },
      { name: "allow", label: "Allowed", value: now.allow?.join(" ") ?? "", optional: true,
        hint: "names, addresses and networks, such as pypi.org *.pythonhosted.org 10.1.2.3:5432" },
      { name: "deny", label: "Denied", value: now.deny?.join(" ") ?? "", optional: true, hint: "denied in every mode" },
    ],
    values: (f) => {
      const { mode, allow, deny } = policy(f);
      const flags = ["--net", mode, ...allow.flatMap((a) => ["--allow", a]), ...deny.flatMap((d) => ["--deny", d])];
      return { id, mode, allow, deny, flags };
    },
    run: async (f) => {
      await api.call("PUT", api.box(id, "/network"), policy(f));
      return `the network of ${nameOf(n)} is ${f["mode"]}`;
    },
  };
}
