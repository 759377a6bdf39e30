// The command palette: a list of actions, nodes and pages that a search narrows.
import { h } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

export interface Command {
  title: string;
  about?: string; // shown beside the title, and searched too
  key?: string;
  run: () => void;
}

const maxShown = 50;

// find returns the commands that have all words of a search: first those whose title begins with the
// search, otherwise in their order.
export function find(commands: Command[], texts: string[], search: string): Command[] {
  const typed = search.trim().toLowerCase();
  const words = typed.split(/\s+/).filter(Boolean);
  const first: Command[] = [];
  const rest: Command[] = [];
  commands.forEach((c, i) => {
    const text = texts[i]!;
    if (words.every((w) => text.includes(w))) (typed !== "" && text.startsWith(typed) ? first : rest).push(c);
  });
  return [...first, ...rest];
}

export function Palette({ commands, close }: { commands: Command[]; close: (chosen?: Command) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const list = useRef<HTMLUListElement>(null);
  const [search, setSearch] = useState("");
  const [at, setAt] = useState(0);
  const texts = useMemo(() => commands.map((c) => `${c.title} ${c.about ?? ""}`.toLowerCase()), [commands]);
  const found = useMemo(() => find(commands, texts, search), [commands, texts, search]);
  const shown = found.slice(0, maxShown);
  const chosen = Math.min(at, shown.length - 1);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    return () => before?.focus?.();
  }, []);
  useEffect(() => list.current?.children[chosen]?.scrollIntoView({ block: "nearest" }), [chosen]);
  const key = (e: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[e.key];
    if (step !== undefined) setAt(Math.max(0, Math.min(shown.length - 1, chosen + step)));
    else if (e.key === "Enter") {
      if (shown[chosen] !== undefined) close(shown[chosen]);
    } else return;
    e.preventDefault();
  };
  return (
    <dialog class="palette" ref={dialog} aria-label="Commands" onCancel={() => close()} onClose={() => close()}>
      <input role="combobox" aria-label="Search commands and names" aria-expanded="true" aria-autocomplete="list"
        aria-controls="palette-list" aria-activedescendant={chosen >= 0 ? `command-${chosen}` : undefined}
        autocomplete="off" spellcheck={false} placeholder="Search commands and names" value={search} onKeyDown={key}
        onInput={(e) => { setSearch((e.target as HTMLInputElement).value); setAt(0); }} />
      <ul role="listbox" id="palette-list" aria-label="Commands" ref={list}>
        {shown.map((c, i) => (
          <li role="option" id={`command-${i}`} aria-selected={i === chosen} onClick={() => close(c)}>
            <span class="name">{c.title}</span>
            {c.about !== undefined && <small>{c.about}</small>}
            <span class="fill" />
            {c.key !== undefined && <kbd>{c.key}</kbd>}
          </li>
        ))}
      </ul>
      <p class="note" role="status">
        {found.length === 0 ? "Nothing matches." : found.length > maxShown ? `${maxShown} of ${found.length.toLocaleString("en")} shown` : ""}
      </p>
    </dialog>
  );
}

// opens reports whether a key opens the palette. In a terminal, Ctrl-K belongs to the shell.
export const opens = (e: KeyboardEvent) =>
  e.key.toLowerCase() === "k" && !e.altKey && !e.shiftKey &&
  (e.metaKey || (e.ctrlKey && (e.target as HTMLElement).closest(".shell") === null));
