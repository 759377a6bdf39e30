/**
 * What a .dockerignore leaves out of a build context. The rules are those of Docker, whose code
 * (github.com/moby/patternmatcher) makes a regular expression of Go of each pattern.
 * test/contract/ignore.yaml has examples, which the SDKs for Python and Go follow too.
 */

const maxLine = 64 << 10; // bytes
const maxRepeat = 1000; // that a regular expression of Go may ask for

const space = "[\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const outerSpace = new RegExp(`^${space}|${space}$`, "g");
const escaped = ".+()$"; // characters of a pattern that are themselves in its regular expression
const classes: Readonly<Record<string, string>> = { d: "0-9", w: "0-9A-Za-z_", s: "\\t\\n\\f\\r " };
const characters: Readonly<Record<string, string>> = { a: "\x07", f: "\f", n: "\n", r: "\r", t: "\t", v: "\v" };
const places: Readonly<Record<string, string>> = { b: "\\b", B: "\\B", A: "^", z: "$" };

/** Why a pattern is none. */
export class BadPattern extends Error {}

type Matches = (path: string) => boolean;

/** What the patterns of a .dockerignore leave out. */
export class Ignore {
  /** Something below a directory that is left out may be in the context all the same. */
  readonly exceptions: boolean;
  readonly #patterns: readonly { exception: boolean; matches: Matches }[];

  constructor(text: Uint8Array = new Uint8Array()) {
    this.#patterns = patterns(text)
      .map(trimmed)
      .filter((p) => p !== "")
      .map(clean)
      .map((p) => ({ exception: p.startsWith("!"), matches: matcher(p) }));
    this.exceptions = this.#patterns.some((p) => p.exception);
  }

  /** Whether a path of the context, with slashes, is left out. */
  out(path: string): boolean {
    if (this.#patterns.length === 0) {
      return false;
    }
    const parts = path.split("/");
    const all = [path, ...parts.slice(0, -1).map((_, i) => parts.slice(0, i + 1).join("/"))];
    let left = false;
    for (const { exception, matches } of this.#patterns) {
      if (exception === left && all.some(matches)) {
        left = !exception;
      }
    }
    return left;
  }
}

function trimmed(text: string): string {
  return text.replace(outerSpace, "");
}

/** The patterns of a file, in their short form. */
function patterns(text: Uint8Array): string[] {
  const found: string[] = [];
  const lines = new TextDecoder().decode(text).split("\n"); // without a byte order mark
  for (const line of lines) {
    if (line.length * 3 >= maxLine && new TextEncoder().encode(line).length >= maxLine) {
      throw new BadPattern(`a line has more than ${maxLine} bytes`);
    }
    let pattern = trimmed(line);
    if (line.startsWith("#") || pattern === "") {
      continue;
    }
    const exception = pattern.startsWith("!");
    pattern = exception ? trimmed(pattern.slice(1)) : pattern;
    if (pattern !== "") {
      pattern = clean(pattern);
      pattern = pattern.length > 1 ? pattern.replace(/^\//, "") : pattern;
    }
    found.push(exception ? `!${pattern}` : pattern);
  }
  return found;
}

/** The shortest form of a path. */
function clean(path: string): string {
  const rooted = path.startsWith("/");
  const parts: string[] = [];
  for (const part of path.split("/")) {
    if (part === ".." && parts.length > 0 && parts.at(-1) !== "..") {
      parts.pop();
    } else if (part === ".." ? !rooted : part !== "" && part !== ".") {
      parts.push(part);
    }
  }
  return (rooted ? "/" : "") + parts.join("/") || ".";
}

/** Whether a path is one that a pattern means, with or without an exclamation mark before it. */
function matcher(pattern: string): Matches {
  const meant = pattern.replace(/^!/, "");
  try {
    if (meant === "") {
      throw new BadPattern("it is an exclamation mark and nothing else");
    }
    const chars = Array.from(meant);
    check(chars);
    const { kind, source } = expression(chars);
    if (kind === "exact") {
      return (path) => path === meant;
    }
    if (kind === "prefix") {
      const start = meant.slice(0, -2);
      return (path) => path.startsWith(start);
    }
    if (kind === "suffix") {
      const end = meant.slice(2);
      return (path) => path.endsWith(end) || (end.startsWith("/") && path === end.slice(1));
    }
    const translated = new RegExp(new Translation(source).text, "u");
    return (path) => translated.test(path);
  } catch (error) {
    if (error instanceof BadPattern) {
      throw new BadPattern(`the pattern ${JSON.stringify(pattern)}: ${error.message}`);
    }
    throw error;
  }
}

/** Refuses what Go's path.Match does. */
function check(chars: readonly string[]): void {
  let i = 0;
  const character = (): void => {
    if (chars[i] === undefined || chars[i] === "-" || chars[i] === "]") {
      throw new BadPattern("a class is empty, or a range has no end");
    }
    i += chars[i] === "\\" ? 2 : 1;
    if (i >= chars.length) {
      throw new BadPattern("a class has no end");
    }
  };
  while (i < chars.length) {
    const c = chars[i++];
    if (c === "\\") {
      if (i === chars.length) {
        throw new BadPattern("it ends with a backslash");
      }
      i++;
    } else if (c === "[") {
      i += chars[i] === "^" ? 1 : 0;
      for (let ranges = 0; ranges === 0 || chars[i] !== "]"; ranges++) {
        character();
        if (chars[i] === "-") {
          i++;
          character();
        }
      }
      i++;
    }
  }
}

/** How a pattern is matched, and its regular expression in the syntax of Go. */
function expression(chars: readonly string[]): { kind: "exact" | "prefix" | "suffix" | "expression"; source: string } {
  let kind: "exact" | "prefix" | "suffix" | "expression" = "exact";
  let source = "^";
  for (let i = 0, first = true; i < chars.length; first = false) {
    const c = chars[i++]!;
    if (c === "*" && chars[i] === "*") {
      i++;
      i += chars[i] === "/" ? 1 : 0;
      if (i < chars.length) {
        source += "(.*/)?";
        kind = "expression";
      } else if (kind === "exact") {
        kind = "prefix";
      } else {
        source += ".*";
        kind = "expression";
      }
      kind = first ? "suffix" : kind;
    } else if (c === "*" || c === "?") {
      source += c === "*" ? "[^/]*" : "[^/]";
      kind = "expression";
    } else if (escaped.includes(c)) {
      source += `\\${c}`;
    } else if (c === "\\") {
      source += c + chars[i++]!;
      kind = "expression";
    } else {
      source += c;
      kind = c === "[" || c === "]" ? "expression" : kind;
    }
  }
  return { kind, source: `${source}$` };
}

function literal(c: string): string {
  return `\\u{${c.codePointAt(0)!.toString(16)}}`;
}

/** A regular expression of Go, made by expression, in the syntax of JavaScript with the flag u. */
class Translation {
  text = "^";
  readonly #source: readonly string[];
  readonly #end: number;
  #at = 1;
  #last: string | undefined = "^"; // what may be repeated

  constructor(source: string) {
    this.#source = Array.from(source);
    this.#end = this.#source.length - 1;
    while (this.#at < this.#end) {
      this.#one();
    }
    this.text += "$";
  }

  #add(text: string, length: number, again = true): void {
    this.text += text;
    this.#at += length;
    this.#last = again ? text : undefined;
  }

  #one(): void {
    const rest = this.#source.slice(this.#at, this.#end).join("");
    const c = this.#source[this.#at]!;
    const times = /^\{([0-9]+)(,([0-9]*))?\}/.exec(rest);
    if (rest.startsWith("(.*/)?")) {
      this.#add("(?:[^\\n]*/)?", 6, false);
    } else if (rest.startsWith(".*")) {
      this.#add("[^\\n]*", 2, false);
    } else if (c === "[") {
      this.#addClass();
    } else if (c === "*") {
      this.#repeat("*", 1, 0);
    } else if (times !== null) {
      const least = Number(times[1]);
      const most = Number(times[3] || times[1]);
      if (!(least <= most && most <= maxRepeat)) {
        throw new BadPattern(`${times[0]}: it repeats something too often`);
      }
      this.#repeat(times[0], times[0].length, least);
    } else if (c === "|") {
      this.#add(c, 1, false);
    } else if (c === "^") {
      this.#add(c, 1);
    } else if (c === "\\") {
      this.#addEscaped(this.#source[this.#at + 1]!);
    } else {
      this.#add(literal(c), 1);
    }
  }

  /** Repeats what is last. A place is the same place however often it is asked for. */
  #repeat(text: string, length: number, least: number): void {
    const last = this.#last;
    if (last === undefined) {
      throw new BadPattern(`${text}: there is nothing to repeat before it`);
    }
    const place = Object.values(places).includes(last);
    if (place && least === 0) {
      this.text = this.text.slice(0, -last.length);
    }
    this.#add(place ? "" : text, length, false);
  }

  #addEscaped(c: string): void {
    const lower = c.toLowerCase();
    if (Object.hasOwn(classes, lower)) {
      this.#add(`[${c === lower ? "" : "^"}${classes[lower]}]`, 2);
    } else if (Object.hasOwn(places, c)) {
      this.#add(places[c]!, 2);
    } else {
      this.#add(literal(meaning(c)), 2);
    }
  }

  #addClass(): void {
    let at = this.#at + 1;
    let out = "[";
    if (this.#source[at] === "^") {
      at++;
      out += "^";
    }
    const character = (): string => {
      if (at >= this.#end) {
        throw new BadPattern("a class has no end");
      }
      const c = this.#source[at++]!;
      return c === "\\" && at < this.#end ? meaning(this.#source[at++]!) : c;
    };
    for (let first = true; first || at >= this.#end || this.#source[at] !== "]"; first = false) {
      if (this.#source[at] === "[" && this.#source[at + 1] === ":") {
        throw new BadPattern("a class has no names such as [:alpha:]");
      }
      const next = this.#source[at + 1] ?? "";
      if (this.#source[at] === "\\" && Object.hasOwn(classes, next)) {
        out += classes[next];
        at += 2;
        continue;
      }
      const low = character();
      let high = low;
      if (this.#source[at] === "-" && at + 1 < this.#end && this.#source[at + 1] !== "]") {
        at++;
        high = character();
      }
      if (high.codePointAt(0)! < low.codePointAt(0)!) {
        throw new BadPattern(`${low}-${high}: a range is backwards`);
      }
      out += `${literal(low)}-${literal(high)}`;
    }
    this.#add(`${out}]`, at + 1 - this.#at);
  }
}

/** The character that a backslash makes of another. */
function meaning(c: string): string {
  if (Object.hasOwn(characters, c)) {
    return characters[c]!;
  }
  if (c.codePointAt(0)! > 127 || /[0-9A-Za-z]/.test(c)) {
    throw new BadPattern(`\\${c}: a backslash has no meaning there`);
  }
  return c;
}
