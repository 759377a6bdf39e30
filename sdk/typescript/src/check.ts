import { InvalidArgumentError } from "./error.ts";
import { e2bOptions } from "./generated/e2b.ts";

/** Refuses unknown options, because a misspelled one must not mean the default. */
export function checkOptions(options: object | undefined, ...names: string[]): void {
  if (options !== undefined && (typeof options !== "object" || options === null)) {
    throw new InvalidArgumentError("options", `${show(options)}: want an object`);
  }
  for (const name of Object.keys(options ?? {})) {
    if (!names.includes(name)) {
      const other = Object.hasOwn(e2bOptions, name) ? e2bOptions[name] : undefined;
      throw new InvalidArgumentError(name, `there is no such option: want ${other ?? [...names].sort().join(", ")}`);
    }
  }
}

/**
 * Refuses values that are not names in a path of the API. An empty one would name another object.
 */
export function checkName(parameter: string, value: unknown): asserts value is string {
  if (typeof value !== "string" || value === "" || value === "." || value === "..") {
    throw new InvalidArgumentError(parameter, `${show(value)}: want the name or id as a string that is not empty`);
  }
}

export function checkString(parameter: string, value: unknown): asserts value is string {
  if (typeof value !== "string" || value === "") {
    throw new InvalidArgumentError(parameter, `${show(value)}: want a string that is not empty`);
  }
}

/** Refuses paths that no file can have. */
export function checkPath(parameter: string, value: unknown): asserts value is string {
  checkString(parameter, value);
  if (value.includes("\0")) {
    throw new InvalidArgumentError(parameter, "contains a NUL byte");
  }
}

export function checkInteger(parameter: string, value: unknown, least: number, most: number): asserts value is number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw new InvalidArgumentError(parameter, `${show(value)}: want a whole number from ${least} to ${most}`);
  }
}

/** Refuses values that are not times in seconds. undefined is allowed. */
export function checkSeconds(parameter: string, value: unknown, most = Number.MAX_SAFE_INTEGER): void {
  if (value !== undefined && (typeof value !== "number" || !(value >= 0) || value > most)) {
    const bound = most === Number.MAX_SAFE_INTEGER ? "0 or more" : `0 to ${most}`;
    throw new InvalidArgumentError(parameter, `${show(value)}: want seconds, ${bound}`);
  }
}

/** Refuses values that are not maps of strings, such as env and labels. undefined is allowed. */
export function checkStrings(parameter: string, value: unknown): void {
  if (value === undefined) {
    return;
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InvalidArgumentError(parameter, `${show(value)}: want an object with strings`);
  }
  for (const [name, text] of Object.entries(value)) {
    if (typeof text !== "string") {
      throw new InvalidArgumentError(`${parameter}.${name}`, `${show(text)}: want a string`);
    }
  }
}

/** Refuses values that an environment cannot contain. undefined is allowed. */
export function checkEnv(value: unknown): void {
  checkStrings("env", value);
  for (const [name, text] of Object.entries((value ?? {}) as Record<string, string>)) {
    if (!/^[^=\0]+$/.test(name) || text.includes("\0")) {
      throw new InvalidArgumentError("env", `${show(name)}: want a name without "=", and no NUL bytes`);
    }
  }
}

/** Refuses words that are not in the list. undefined is allowed. */
export function checkWord(parameter: string, value: unknown, ...words: string[]): void {
  if (value !== undefined && !words.includes(value as string)) {
    throw new InvalidArgumentError(parameter, `${show(value)}: want ${words.map((w) => `"${w}"`).join(" or ")}`);
  }
}

export function checkFunction(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") {
    throw new InvalidArgumentError(parameter, `${show(value)}: want a function`);
  }
}

function show(value: unknown): string {
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}
