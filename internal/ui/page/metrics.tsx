// The figures of a sandbox.
import { h, Fragment } from "preact";
import * as api from "./api";
import { Facts, sandboxFacts } from "./detail";
import { Calls } from "./dialog";
import { Chart, type History, useHistory } from "./history";
import { store } from "./store";
import { bytes } from "./text";
import type { Node } from "./tree";

interface Used {
  at_unix: number;
  cpus: number;
  memory_bytes: number;
  own_memory_bytes: number;
  read_bytes_per_second: number;
  written_bytes_per_second: number;
}

export function MetricsTab({ n }: { n: Node }) {
  const id = n.sandbox!.id;
  const [history, head] = useHistory<Used, History<Used>>(api.box(id, "/metrics"));
  const stats = store.stats.get(id);
  return (
    <Fragment>
      {head}
      <div class="cards">
        <Chart title="Memory" history={history} text={bytes} lines={[
          { name: "its own", colour: "--own", of: (p) => p.own_memory_bytes },
          { name: "with page cache", colour: "--accent", of: (p) => p.memory_bytes }]} />
        <Chart title="Processors in use" history={history} text={(v) => v.toFixed(2)} lines={[
          { name: "processors", colour: "--accent", of: (p) => p.cpus }]} />
        <Chart title="Disk, per second" history={history} text={bytes} lines={[
          { name: "read", colour: "--accent", of: (p) => p.read_bytes_per_second },
          { name: "written", colour: "--own", of: (p) => p.written_bytes_per_second }]} />
      </div>
      <Facts facts={[...sandboxFacts(n),
        ["Read from disk", stats?.usage && bytes(stats.usage.read_bytes)],
        ["Written to disk", stats?.usage && bytes(stats.usage.written_bytes)]]} />
      <Calls name="metrics" values={{ id }} />
    </Fragment>
  );
}
