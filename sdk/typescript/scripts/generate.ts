/**
 * Generates src/generated from the documents of the API: the types of its messages from
 * api/openapi.yaml, a class for every error code from docs/errors.md, and names that differ in
 * E2B's SDK from sdk/e2b.json. test/generated.test.ts checks that the committed files are up to
 * date.
 */
import { readFileSync, writeFileSync } from "node:fs";
import openapi, { astToString } from "openapi-typescript";
import ts from "typescript";

const here = new URL("../src/generated/", import.meta.url);
const repository = new URL("../../../", import.meta.url);

/** The wanted content of src/generated: texts by file name. */
export async function generated(): Promise<Record<string, string>> {
  return { "api.ts": await apiTypes(), "errors.ts": errorClasses(), "e2b.ts": e2bNames() };
}

async function apiTypes(): Promise<string> {
  const tree = await openapi(new URL("api/openapi.yaml", repository), { defaultNonNullable: false });
  const messages = tree.filter((node) => ts.isInterfaceDeclaration(node) && node.name.text === "components");
  return `// Made by scripts/generate.ts from api/openapi.yaml; do not edit.\n\n${astToString(messages)}`;
}

interface Code {
  code: string;
  status: string;
  meaning: string;
}

/** The rows of the table of codes in docs/errors.md. */
function codes(): Code[] {
  const text = readFileSync(new URL("docs/errors.md", repository), "utf8");
  const row = /^\| <a id="(\w+)"><\/a>`\w+` \| (\d+) \|[^|]*\| ([^|]+) \|/gm;
  const found = [...text.matchAll(row)].map((m) => ({ code: m[1]!, status: m[2]!, meaning: m[3]!.trim() }));
  if (found.length < 40) {
    throw new Error(`docs/errors.md: the table has ${found.length} codes: its form has changed`);
  }
  return found;
}

function className(code: string): string {
  return `${code.replace(/(^|_)([a-z])/g, (_, __, letter: string) => letter.toUpperCase())}Error`;
}

function errorClasses(): string {
  const all = codes();
  const classes = all.map(
    ({ code, status, meaning }) =>
      `/** ${meaning} (${status}, \`${code}\`). */\nexport class ${className(code)} extends ForkdError {}\n`,
  );
  const rows = all.map(({ code }) => `  ${code}: ${className(code)},\n`);
  return [
    "// Made by scripts/generate.ts from docs/errors.md; do not edit.\n",
    'import { ForkdError } from "../error.ts";\n',
    ...classes,
    "/** The class of every code. */",
    `export const errorClasses: Readonly<Record<string, typeof ForkdError>> = {\n${rows.join("")}};\n`,
  ].join("\n");
}

type Names = Record<string, string | (string | null)[]>;

/** The names of TypeScript in a table of sdk/e2b.json, as lines of an object. */
function rows(table: Names, indent: string): string {
  const camel = (text: string): string => text.replace(/(?<=[a-z])_([a-z])/g, (_, c: string) => c.toUpperCase());
  let text = "";
  for (const [name, here] of Object.entries(table)) {
    const there = typeof here === "string" ? camel(here) : here[1];
    if (typeof there === "string") {
      text += `${indent}${camel(name)}: ${there.includes('"') ? `'${there}'` : `"${there}"`},\n`;
    }
  }
  return text;
}

function e2bNames(): string {
  const { attributes, statics, parameters } = JSON.parse(readFileSync(new URL("sdk/e2b.json", repository), "utf8")) as {
    attributes: Record<string, Names>;
    statics: Record<string, Names>;
    parameters: Names;
  };
  const classes = (table: Record<string, Names>): string =>
    Object.entries(table)
      .map(([kind, names]) => `  ${kind}: {\n${rows(names, "    ")}  },\n`)
      .join("");
  const type = "Readonly<Record<string, Readonly<Record<string, string>>>>";
  return [
    "// Made by scripts/generate.ts from sdk/e2b.json; do not edit.\n",
    "/** Members of classes of E2B's SDK, and what they are here. */",
    `export const e2bNames: ${type} = {\n${classes(attributes)}};\n`,
    "/** Calls of such a class itself. */",
    `export const e2bStatics: ${type} = {\n${classes(statics)}};\n`,
    "/** Options that E2B's SDK and others have, and what they are here. */",
    `export const e2bOptions: Readonly<Record<string, string>> = {\n${rows(parameters, "  ")}};\n`,
  ].join("\n");
}

if (import.meta.main) {
  for (const [name, text] of Object.entries(await generated())) {
    writeFileSync(new URL(name, here), text);
  }
}
