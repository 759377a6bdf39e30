// The comparison of two nodes.
import { h, Fragment } from "preact";
import * as api from "./api";
import { Calls, Note, Problem, useLoad } from "./dialog";
import { bytes, plural } from "./text";

export function DiffPage({ from, to, names }: { from: string; to: string; names: [string, string] }) {
  const { value: diff, problem } = useLoad(
    () => api.call<api.Diff>("POST", "v1/diff", { from, to, patch: true, max_files: 2000 }), [from, to]);
  return (
    <main class="page" id="main">
      <a class="back" href="#/">← Tree</a>
      <h1>From {names[0]} to {names[1]}</h1>
      <Problem text={problem} />
      {diff === undefined && problem === "" && <Note>Comparing the files …</Note>}
      {diff !== undefined && (
        <Fragment>
          <p class="totals">
            <span class="added">{plural(diff.added, "file")} added</span>
            <span class="changed">{plural(diff.changed, "file")} changed</span>
            <span class="deleted">{plural(diff.deleted, "file")} deleted</span>
            {diff.memory_bytes !== undefined && <span>{bytes(diff.memory_bytes)} of memory at different places</span>}
          </p>
          {diff.files.length === 0 && <Note>Their files are the same.</Note>}
          {diff.files.map((f) => <FileDiff f={f} />)}
          {diff.omitted ? <Note>{plural(diff.omitted, "more file")} not shown.</Note> : null}
        </Fragment>
      )}
      <Calls name="diff" values={{ from, to, id: to }} />
    </main>
  );
}

function FileDiff({ f }: { f: api.DiffFile }) {
  const sizes = f.old && f.new ? `${bytes(f.old.size)} → ${bytes(f.new.size)}` : bytes((f.new ?? f.old)?.size ?? 0);
  const head = (
    <Fragment>
      <span class={`change ${f.change}`}>{f.change}</span>
      <code class="path">{f.path}</code>
      <span class="fill" />
      {f.lines_added !== undefined && <span class="added">+{f.lines_added}</span>}
      {f.lines_deleted !== undefined && <span class="deleted">−{f.lines_deleted}</span>}
      <span class="size">{sizes}</span>
    </Fragment>
  );
  if (f.patch === undefined || f.patch === "") {
    return <div class="file-diff">{head}{f.patch_omitted !== undefined && <small>{f.patch_omitted}</small>}</div>;
  }
  return (
    <details class="file-diff" open>
      <summary>{head}</summary>
      <pre tabIndex={0} aria-label={`patch of ${f.path}`}>
        {f.patch.split("\n").map((line) => (
          <span class={line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : line.startsWith("@@") ? "hunk" : ""}>
            {`${line}\n`}
          </span>
        ))}
      </pre>
    </details>
  );
}
