// Texts: amounts, ages, and the calls that do the same as an action.
import calls from "./calls.json";

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function age(unix: number): string {
  const s = Math.max(0, Math.floor(Date.now() / 1000 - unix));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export const plural = (n: number, one: string, many = one + (/(s|x|ch)$/.test(one) ? "es" : "s")) =>
  `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// plain removes terminal sequences and control characters other than line breaks and tabs.
export const plain = (text: string) =>
  text.replace(/\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])/g, "").replace(/[^\P{Cc}\n\t]/gu, "");

export type CallName = keyof typeof calls;
export type Language = "cli" | "python" | "typescript";

// shellWord quotes a text for shells. A text of a guest may contain control characters, which act in
// terminals, or a backslash, which fish treats differently inside of quotes: for these it returns "".
const shellWord = (text: string) => {
  if (/[\\\p{C}\p{Zl}\p{Zp}]/u.test(text)) return "";
  return /^[\w./:=@,+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
};

export type Values = Record<string, string | number | string[]>;

// callText returns the command line or the code that does the same as an action of the page.
export function callText(name: CallName, language: Language, values: Values): string {
  const quote = (v: string | number | string[]): string => {
    if (language !== "cli") return JSON.stringify(v);
    if (Array.isArray(v)) return v.map(quote).join(" ");
    return typeof v === "number" ? String(v) : shellWord(v) || "…";
  };
  const line = calls[name][language].replace(/\{(\w+)\}/g, (all, key: string) => {
    const v = values[key];
    return v === undefined ? all : quote(v);
  });
  if (language === "cli") return line;
  const id = values["id"];
  const client = line.includes("client.");
  const many = line.includes("Sandbox.connect(id)");
  const open = {
    python: client ? "client = Client.default()" : `sandbox = Sandbox.connect(${quote(id ?? "")})`,
    typescript: client ? "const client = Client.default();" : `const sandbox = await Sandbox.connect(${quote(id ?? "")});`,
  };
  if (many) open[language] = "";
  const from = client ? "Client" : "Sandbox";
  const load = language === "python" ? `from forkd import ${from}` : `import { ${from} } from "forkd";`;
  return `${load}\n\n${open[language]}${many ? "" : "\n"}${line}${language === "typescript" ? ";" : ""}`;
}
