// A terminal that is attached to a process of a sandbox. Loaded when it is first needed.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { box, socket } from "./api";

export interface Shell {
  close(): void;
}

const kept = 64 * 1024; // bytes of output that are shown again after a reload

// open attaches a terminal in place to a process. ended is called when the process has ended.
export async function open(place: HTMLElement, id: string, pid: number, ended: () => void): Promise<Shell> {
  await style();
  const term = new Terminal({ cursorBlink: true, fontSize: 14, scrollback: 5000, screenReaderMode: false,
    fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    theme: { background: "#14161b", foreground: "#e6e8ee", cursor: "#8ab4ff", selectionBackground: "#3b4a6b" } });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(place);
  const key = `output ${id} ${pid}`;
  const old = sessionStorage.getItem(key);
  let output = new Uint8Array();
  let quiet = false; // old output may ask the terminal for answers, which the process must not get
  if (old !== null) {
    output = Uint8Array.from(atob(old), (c) => c.charCodeAt(0));
    quiet = true;
    term.write(output, () => {
      quiet = false;
    });
  }
  const ws = socket(box(id, `/processes/${pid}/attach`));
  const resize = () => {
    fit.fit();
    if (ws.readyState === WebSocket.OPEN) ws.send(JSON.stringify({ resize: { cols: term.cols, rows: term.rows } }));
  };
  const encoder = new TextEncoder();
  term.onData((data) => !quiet && ws.readyState === WebSocket.OPEN && ws.send(encoder.encode(data)));
  term.onBinary((data) => !quiet && ws.readyState === WebSocket.OPEN && ws.send(Uint8Array.from(data, (c) => c.charCodeAt(0))));
  ws.onopen = () => {
    resize();
    if (old === null) ws.send(encoder.encode("\n")); // the shell waits for this line
    term.focus();
  };
  ws.onmessage = ({ data }) => {
    if (typeof data === "string") {
      const message = JSON.parse(data) as { end?: unknown; error?: string };
      if (message.error !== undefined) term.write(`\r\n[${message.error.replace(/[^\P{Cc}]/gu, " ")}]\r\n`);
      if (message.end !== undefined) finish();
      return;
    }
    const bytes = new Uint8Array(data as ArrayBuffer, 1); // the first byte is the number of the stream
    const all = new Uint8Array(output.length + bytes.length);
    all.set(output);
    all.set(bytes, output.length);
    output = all.slice(-kept);
    term.write(bytes);
  };
  let closed = false;
  const finish = () => {
    sessionStorage.removeItem(key);
    if (!closed) ended();
  };
  ws.onclose = () => {
    if (!closed) term.write("\r\n[the connection has ended: choose the shell again]\r\n");
  };
  const keep = () => sessionStorage.setItem(key, btoa(Array.from(output, (b) => String.fromCharCode(b)).join("")));
  addEventListener("pagehide", keep);
  const observer = new ResizeObserver(resize);
  observer.observe(place);
  return {
    close() {
      closed = true;
      if (ws.readyState === WebSocket.OPEN) keep();
      removeEventListener("pagehide", keep);
      observer.disconnect();
      ws.close();
      term.dispose();
    },
  };
}

// style loads the style sheet of the terminal. The terminal also wants to create style elements, which
// the page's policy forbids. It gets other elements, whose text becomes a constructed style sheet.
async function style(): Promise<void> {
  if (document.getElementById("terminal-style") !== null) return;
  const link = document.createElement("link");
  link.id = "terminal-style";
  link.rel = "stylesheet";
  link.href = "terminal.css";
  const create = document.createElement.bind(document);
  document.createElement = ((name: string, options?: ElementCreationOptions) => {
    return name === "style" ? styled(create("template")) : create(name, options);
  }) as typeof document.createElement;
  await new Promise((done) => {
    link.onload = link.onerror = done;
    document.head.append(link);
  });
}

function styled(e: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(e, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  const remove = e.remove.bind(e);
  e.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    remove();
  };
  return e;
}
