/**
 * Finds the files that a .dockerignore excludes from a build context. The rules are those of
 * Docker, whose code (github.com/moby/patternmatcher) translates each pattern to a regular
 * expression of Go. test/contract/ignore.yaml has examples, which the SDKs for Python and Go follow
 * too.
 *
 * RegExp backtracks, so it can take years for a pattern with twenty stars. Here these expressions
 * are matched in the same way as in Go: by an automaton that reads each character of a path once,
 * for the path and all its parents.
 */

const maxLine = 64 << 10; // bytes
const maxRepeat = 1000; // maximum repetition in a regular expression of Go

const maxParts = 1 << 18; // parts of an expression; a repetition counts as often as it repeats
const maxKept = 1 << 14; // parts and transitions of states that an automaton keeps

const space = /[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;
const escaped = ".+()$"; // characters that a pattern matches literally, and a regular expression does not
const classes: Readonly<Record<string, readonly string[]>> = {
  d: ["09"],
  w: ["09", "AZ", "__", "az"],
  s: ["\t\n", "\f\r", "  "],
};
const characters: Readonly<Record<string, string>> = { a: "\x07", f: "\f", n: "\n", r: "\r", t: "\t", v: "\v" };
const places: Readonly<Record<string, Place>> = { b: "b", B: "B", A: "^" };

/** The reason why a pattern is invalid. */
export class BadPattern extends Error {}

type Matches = (path: string) => boolean;

/** The patterns of a .dockerignore. */
export class Ignore {
  /** Some path below an excluded directory may still be in the context. */
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

  /** Whether a path of the context, with slashes, is excluded. */
  out(path: string): boolean {
    let left = false;
    for (const { exception, matches } of this.#patterns) {
      if (exception === left && matches(path)) {
        left = !exception;
      }
    }
    return left;
  }
}

function trimmed(text: string): string {
  let [from, to] = [0, text.length];
  while (from < to && space.test(text[from]!)) {
    from++;
  }
  while (from < to && space.test(text[to - 1]!)) {
    to--;
  }
  return text.slice(from, to);
}

/** The patterns of a file, in normalized form. */
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

/**
 * Returns a function that reports whether a pattern matches a path or one of its parents. The
 * pattern may begin with "!".
 */
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
      return (path) => path === meant || path.startsWith(`${meant}/`);
    }
    if (kind === "prefix") {
      const start = meant.slice(0, -2);
      return (path) => path.startsWith(start);
    }
    if (kind === "suffix") {
      const end = meant.slice(2); // the path a matches the end /a too
      return (path) => ends(path).some((to) => `/${path}`.endsWith(end, 1 + to));
    }
    const automaton = new Automaton(new Parser(source));
    return (path) => automaton.matches(path);
  } catch (error) {
    if (error instanceof BadPattern) {
      throw new BadPattern(`the pattern ${JSON.stringify(pattern)}: ${error.message}`);
    }
    throw error;
  }
}

/** The lengths of a path's parents and of the path. */
function ends(path: string): number[] {
  return [...path.matchAll(/\//g), { index: path.length }].map(({ index }) => index);
}

/** Refuses patterns that Go's path.Match refuses. */
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

/** The way in which a pattern is matched, and its regular expression in the syntax of Go. */
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

/** A set of characters: those of some ranges, or all others. A range is a string of its first and last character. */
class Chars {
  readonly #ranges: readonly (readonly [number, number])[];
  readonly #others: boolean;

  constructor(ranges: readonly string[], others = false) {
    this.#ranges = ranges.map((range) => {
      const [first, last] = Array.from(range, (c) => c.codePointAt(0)!);
      return [first!, last!];
    });
    this.#others = others;
  }

  has(c: string): boolean {
    const code = c.codePointAt(0)!;
    return this.#ranges.some(([first, last]) => first <= code && code <= last) !== this.#others;
  }
}

/** "^" is the beginning, "$" the end, "b" the beginning or the end of a word, "B" any other place, "" every place. */
type Place = "^" | "$" | "b" | "B" | "";

/** A part of an expression: a character, or a place between two. At "found" the expression ends. */
interface Part {
  readonly what: Chars | Place | "found";
  readonly loop?: boolean; // any number of these characters
  readonly skip?: number; // the expression may also continue after skipping this many parts
}

const word = new Chars(classes["w"]!);
const slash: Part = { what: new Chars(["//"]) };
const anything: Part = { what: new Chars(["\n\n"], true), loop: true, skip: 1 };
const found: Part = { what: "found" };

/** Parses a regular expression of Go that the function expression has made. Its parts are stored in order. */
class Parser {
  readonly parts: Part[] = [{ what: "^" }];
  readonly first = [0]; // indices of the parts with which alternatives begin
  readonly #source: readonly string[];
  readonly #end: number;
  #at = 1;
  #last: Part | undefined = this.parts[0]; // the part that a repetition would repeat; undefined: there is none

  constructor(source: string) {
    this.#source = Array.from(source);
    this.#end = this.#source.length - 1;
    while (this.#at < this.#end) {
      this.#one();
      if (this.parts.length > maxParts) {
        throw new BadPattern("it repeats too much");
      }
    }
    this.#add(0, { what: "$" }, found);
  }

  /** Adds the parts for the next length characters of the expression. */
  #add(length: number, ...parts: Part[]): void {
    this.#at += length;
    this.parts.push(...parts);
    this.#last = parts.length === 1 && parts[0] !== anything ? parts[0] : undefined;
  }

  #one(): void {
    const next = this.#source.slice(this.#at, Math.min(this.#at + 64, this.#end)).join("");
    const c = this.#source[this.#at]!;
    const times = /^\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}/.exec(next);
    if (next.startsWith("(.*/)?")) {
      this.#add(6, { what: "", skip: 3 }, anything, slash);
    } else if (next.startsWith(".*")) {
      this.#add(2, anything);
    } else if (c === "[") {
      this.#addClass();
    } else if (c === "*") {
      this.#repeat("*", 0, undefined);
    } else if (times !== null) {
      const least = Number(times[1]);
      const most = Number(times[3] || times[1]);
      if (!(least <= most && most <= maxRepeat)) {
        throw new BadPattern(`${times[0]}: it repeats something too often`);
      }
      this.#repeat(times[0], least, times[2] === "," ? undefined : most);
    } else if (c === "|") {
      this.#add(1, found);
      this.first.push(this.parts.length);
      this.#last = undefined;
    } else if (c === "^") {
      this.#add(1, { what: "^" });
    } else if (c === "\\") {
      this.#addEscaped(this.#source[this.#at + 1]!);
    } else {
      this.#add(1, { what: new Chars([c + c]) });
    }
  }

  /** Repeats the last part. A place has no length, so a place that must occur is kept once. */
  #repeat(text: string, least: number, most: number | undefined): void {
    const part = this.#last;
    if (part === undefined) {
      throw new BadPattern(`${text}: there is nothing to repeat before it`);
    }
    const { what } = part;
    const often = (n: number, of: Part): Part[] => Array.from({ length: n }, () => of);
    this.parts.pop();
    if (typeof what === "string") {
      this.#add(text.length, ...often(Math.min(least, 1), part));
    } else if (most === undefined) {
      this.#add(text.length, ...often(least, part), { what, loop: true, skip: 1 });
    } else {
      this.#add(text.length, ...often(least, part), ...often(most - least, { what, skip: 1 }));
    }
    this.#last = undefined;
  }

  #addEscaped(c: string): void {
    const lower = c.toLowerCase();
    if (Object.hasOwn(classes, lower)) {
      this.#add(2, { what: new Chars(classes[lower]!, c !== lower) });
    } else if (Object.hasOwn(places, c)) {
      this.#add(2, { what: places[c]! });
    } else {
      this.#add(2, { what: new Chars([meaning(c).repeat(2)]) });
    }
  }

  #addClass(): void {
    let at = this.#at + 1;
    const ranges: string[] = [];
    const others = this.#source[at] === "^";
    at += others ? 1 : 0;
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
        ranges.push(...classes[next]!);
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
      ranges.push(low + high);
    }
    this.#add(at + 1 - this.#at, { what: new Chars(ranges, others) });
  }
}

/** The state of an automaton after a character of a path. */
class State {
  readonly next = new Map<string, State>(); // the following states, by the next character; "": the end
  readonly parts: readonly number[]; // parts of the expression that may match next
  readonly word: boolean | undefined; // whether the character belongs to a word; undefined at the beginning

  constructor(parts: readonly number[] = [], word?: boolean) {
    this.parts = parts;
    this.word = word;
  }
}

const yes = new State(); // the result is certain, whatever characters follow
const no = new State();

/**
 * Finds an expression in paths. A character takes at most as many steps as the expression has
 * parts. It takes only one step if the automaton has been in the same state before.
 */
class Automaton {
  readonly #parts: readonly Part[];
  readonly #first: readonly number[];
  readonly #later: readonly number[]; // alternatives that may begin anywhere
  readonly #states = new Map<string, State>();
  #begin: State;
  #kept = 0;

  constructor({ parts, first }: Parser) {
    this.#parts = parts;
    this.#first = first;
    this.#later = first.filter((i) => parts[i]!.what !== "^");
    this.#begin = new State(first);
  }

  /** Whether the expression is in a path or in one of its parents. */
  matches(path: string): boolean {
    let state = this.#begin;
    for (const c of path) {
      if (c === "/" && this.#then(state, "") === yes) {
        return true;
      }
      state = this.#then(state, c);
      if (state === yes || state === no) {
        return state === yes;
      }
    }
    return this.#then(state, "") === yes;
  }

  /** The state that follows a state after a character, or at the end of the path. */
  #then(state: State, c: string): State {
    let then = state.next.get(c);
    if (then === undefined) {
      if (this.#kept > maxKept) {
        this.#states.clear();
        this.#begin = new State(this.#first);
        this.#kept = 0;
      }
      then = this.#found(state, c);
      state.next.set(c, then);
      this.#kept++;
    }
    return then;
  }

  #found(state: State, c: string): State {
    const inWord = c !== "" && word.has(c);
    const edge = inWord !== (state.word ?? false);
    const here = { "": true, "^": state.word === undefined, $: c === "", b: edge, B: !edge };
    const todo = new Set(state.parts); // parts are added to the set while the loop reads it
    const after = new Set(this.#later);
    for (const i of todo) {
      const { what, loop, skip } = this.#parts[i]!;
      if (skip !== undefined) {
        todo.add(i + skip);
      }
      if (what instanceof Chars) {
        if (c !== "" && what.has(c)) {
          after.add(loop ? i : i + 1);
        }
      } else if (what === "found") {
        return yes;
      } else if (here[what]) {
        todo.add(i + 1);
      }
    }
    if (c === "" || after.size === 0) {
      return no;
    }
    const parts = [...after].sort((a, b) => a - b);
    const key = `${inWord} ${parts.join(" ")}`;
    let then = this.#states.get(key);
    if (then === undefined) {
      then = new State(parts, inWord);
      this.#states.set(key, then);
      this.#kept += parts.length;
    }
    return then;
  }
}

/** The character that a backslash and another character stand for. */
function meaning(c: string): string {
  if (Object.hasOwn(characters, c)) {
    return characters[c]!;
  }
  if (c.codePointAt(0)! > 127 || /[0-9A-Za-z]/.test(c)) {
    throw new BadPattern(`\\${c}: a backslash has no meaning there`);
  }
  return c;
}
