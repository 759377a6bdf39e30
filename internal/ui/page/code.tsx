// Running code in the warm interpreter of a sandbox, with rich results.
import { h, Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "./api";
import { Calls, Problem } from "./dialog";
import { plain } from "./text";

interface Output {
  kind: "stdout" | "stderr" | "result" | "error";
  text: string;
  data?: Record<string, unknown>;
}

const maxOutputs = 500;

export function CodeTab({ id }: { id: string }) {
  const [code, setCode] = useState("import platform\nplatform.platform()");
  const [outputs, setOutputs] = useState<Output[]>([]);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const add = (o: Output) =>
    setOutputs((old) => {
      const last = old.at(-1);
      if (last && last.kind === o.kind && o.kind !== "result") {
        return [...old.slice(0, -1), { ...last, text: (last.text + o.text).slice(-200_000) }];
      }
      return [...old, o].slice(-maxOutputs);
    });
  const run = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setOutputs([]);
    setProblem("");
    try {
      await api.lines(await api.send("POST", api.box(id, "/code"), { code }), (line) => {
        if (line !== "") show(JSON.parse(line) as api.CodeEvent, add);
      });
    } catch (e) {
      setProblem((e as Error).message);
    }
    setBusy(false);
  };
  return (
    <Fragment>
      <form onSubmit={run} class="code-form">
        <label for="code">Code; variables stay for the next run</label>
        <textarea id="code" rows={8} spellcheck={false} value={code}
          onInput={(e) => setCode((e.target as HTMLTextAreaElement).value)}
          onKeyDown={(e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) void run(e); }} />
        <button class="primary" disabled={busy}>{busy ? "running …" : "Run"} <kbd>ctrl enter</kbd></button>
      </form>
      <Problem text={problem} />
      <div class="outputs" role="log" aria-label="Output">
        {outputs.map((o) => o.data
          ? <Result data={o.data} />
          : <pre class={o.kind} tabIndex={0} aria-label={o.kind}>{o.text}</pre>)}
      </div>
      <Calls name="code" values={{ id, code }} />
    </Fragment>
  );
}

function show(e: api.CodeEvent, add: (o: Output) => void) {
  if (e.stdout !== undefined) add({ kind: "stdout", text: plain(e.stdout) });
  if (e.stderr !== undefined) add({ kind: "stderr", text: plain(e.stderr) });
  if (e.result !== undefined) add({ kind: "result", text: "", data: e.result.data });
  if (e.exception !== undefined) add({ kind: "error", text: plain(e.exception.traceback || `${e.exception.name}: ${e.exception.value}`) });
  if (e.error !== undefined) add({ kind: "error", text: plain(e.error) });
  if (e.end !== undefined && !["finished", "exception"].includes(e.end.outcome)) add({ kind: "error", text: `outcome: ${e.end.outcome}` });
}

const images = ["image/png", "image/jpeg", "image/svg+xml"];

// Result shows the richest form of a value that is safe to show.
function Result({ data }: { data: Record<string, unknown> }) {
  const text = (name: string) => (typeof data[name] === "string" ? (data[name] as string) : undefined);
  const image = images.find((name) => text(name) !== undefined);
  if (image !== undefined) {
    const content = text(image)!.replaceAll("\n", "");
    const src = image === "image/svg+xml" ? `data:${image},${encodeURIComponent(text(image)!)}` : `data:${image};base64,${content}`;
    return <img class="result" src={src} alt={text("text/plain") ?? "a figure"} />;
  }
  const html = text("text/html");
  if (html !== undefined) return <Frame html={html} />;
  const json = data["application/json"];
  const shown = json !== undefined ? JSON.stringify(json, null, 2) : (text("text/plain") ?? Object.keys(data).join(", "));
  return <pre class="result" tabIndex={0} aria-label="result">{plain(shown)}</pre>;
}

interface Policies {
  createPolicy(name: string, rules: { createHTML: (s: string) => string }): { createHTML(s: string): string };
}

// The only policy that makes markup of text. Its results are used only for frames without any
// permission, whose documents have no access to this page and run no scripts.
const policy = (window as unknown as { trustedTypes?: Policies }).trustedTypes?.createPolicy("forkd-frame", { createHTML: (s) => s });

function Frame({ html }: { html: string }) {
  const box = useRef<HTMLIFrameElement>(null);
  useEffect(() => {
    const document = `<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light">${html}`;
    box.current!.srcdoc = (policy ? policy.createHTML(document) : document) as string;
  }, [html]);
  return <iframe class="result" title="result" sandbox="" ref={box} />;
}
