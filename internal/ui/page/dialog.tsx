// Dialogs of actions, and small shared components.
import { h, Fragment, type ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Failure } from "./api";
import { type CallName, callText, type Language, type Values } from "./text";

export interface Field {
  name: string;
  label: string;
  value: string;
  kind?: "number" | "text" | "choice";
  choices?: [value: string, text: string][];
  optional?: boolean;
  hint?: string;
}

export interface Action {
  about?: string; // key of the node that it changes
  title: string;
  explain: ComponentChildren;
  button: string;
  danger?: boolean;
  fields?: Field[];
  call: CallName;
  values: (fields: Record<string, string>) => Values;
  run: (fields: Record<string, string>) => Promise<string>; // returns what was done, in words
}

// Calls shows the command line and the code that do the same as an action.
export function Calls({ name, values }: { name: CallName; values: Values }) {
  const [language, set] = useState<Language>((localStorage.getItem("language") as Language) || "cli");
  const choose = (l: Language) => {
    localStorage.setItem("language", l);
    set(l);
  };
  const names: [Language, string][] = [["cli", "Shell"], ["python", "Python"], ["typescript", "TypeScript"]];
  const text = callText(name, language, values);
  return (
    <div class="calls">
      <div class="calls-head">
        <span>The same from</span>
        {names.map(([l, title]) => (
          <button type="button" class="tab" aria-pressed={l === language} onClick={() => choose(l)}>{title}</button>
        ))}
        <Copy text={text} />
      </div>
      <pre tabIndex={0} aria-label="code">{text}</pre>
    </div>
  );
}

function Copy({ text }: { text: string }) {
  const [done, set] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return <button type="button" class="tab copy" onClick={copy}>{done ? "copied" : "copy"}</button>;
}

export function Dialog({ action, close }: { action: Action; close: (done?: string) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [fields, setFields] = useState(() => Object.fromEntries((action.fields ?? []).map((f) => [f.name, f.value])));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const title = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    const field = dialog.current!.querySelector<HTMLElement>("input, select") ??
      dialog.current!.querySelector<HTMLElement>(action.danger ? ".buttons button" : "[type=submit]");
    field?.focus();
    if (field instanceof HTMLInputElement) field.select();
    return () => before?.focus?.();
  }, []);
  const submit = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      close(await action.run(fields));
    } catch (e) {
      setProblem(e instanceof Failure ? e.message : String(e));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} aria-labelledby={title} onCancel={() => close()} onClose={() => close()}>
      <form onSubmit={submit}>
        <h2 id={title}>{action.title}</h2>
        <p class="explain">{action.explain}</p>
        {(action.fields ?? []).map((f) => (
          <FieldInput field={f} value={fields[f.name]!} set={(v) => setFields({ ...fields, [f.name]: v })} />
        ))}
        <Calls name={action.call} values={action.values(fields)} />
        {problem !== "" && <p class="problem" role="alert">{problem}</p>}
        <div class="buttons">
          <button type="button" onClick={() => close()}>Cancel</button>
          <button type="submit" class={action.danger ? "danger" : "primary"} disabled={busy}>
            {busy ? "…" : action.button}
          </button>
        </div>
      </form>
    </dialog>
  );
}

function FieldInput({ field, value, set }: { field: Field; value: string; set: (v: string) => void }) {
  const id = useId();
  const change = (e: Event) => set((e.target as HTMLInputElement).value);
  return (
    <div class="field">
      <label for={id}>{field.label}</label>
      {field.kind === "choice" ? (
        <select id={id} value={value} onChange={change}>
          {field.choices!.map(([v, text]) => <option value={v} selected={v === value}>{text}</option>)}
        </select>
      ) : field.kind === "number" ? (
        <input id={id} type="number" min="1" max="1000" value={value} required onInput={change} />
      ) : (
        <input id={id} type="text" value={value} required={!field.optional} autocomplete="off" spellcheck={false}
          onInput={change} />
      )}
      {field.hint !== undefined && <small>{field.hint}</small>}
    </div>
  );
}

// Text shows a short explanation instead of content.
export const Note = ({ children }: { children?: ComponentChildren }) => <p class="note">{children}</p>;

// useLoad shows the result of load. again loads again at once; poll does so unless an answer is awaited.
export function useLoad<T>(load: () => Promise<T>, keys: unknown[]): {
  value?: T;
  problem: string;
  again: () => void;
  poll: () => void;
} {
  const [state, set] = useState<{ value?: T; problem: string }>({ problem: "" });
  const [turn, setTurn] = useState(0);
  const awaited = useRef(0); // answers
  useEffect(() => {
    let gone = false;
    awaited.current++;
    load().finally(() => awaited.current--).then(
      (value) => !gone && set({ value, problem: "" }),
      (e) => !gone && set((old) => ({ value: old.value, problem: String((e as Error).message ?? e) })),
    );
    return () => {
      gone = true;
    };
  }, [...keys, turn]);
  const again = () => setTurn((n) => n + 1);
  return { ...state, again, poll: () => awaited.current === 0 && again() };
}

export const Problem = ({ text }: { text: string }) =>
  text === "" ? <Fragment /> : <p class="problem" role="alert">{text}</p>;
