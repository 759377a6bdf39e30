/**
 * Modules of Node, which Bun and Deno have too. They are loaded at run time, so that this package
 * also loads where they do not exist.
 */
interface Builtins {
  "node:fs/promises": typeof import("node:fs/promises");
  "node:fs": typeof import("node:fs");
  "node:http": typeof import("node:http");
  "node:https": typeof import("node:https");
  "node:os": typeof import("node:os");
  "node:path": typeof import("node:path");
}

/** Returns a module, or undefined if it does not exist. */
export function builtin<Name extends keyof Builtins>(name: Name): Builtins[Name] | undefined {
  const { process } = globalThis as { process?: { getBuiltinModule?: (name: string) => unknown } };
  return process?.getBuiltinModule?.(name) as Builtins[Name] | undefined;
}

/** Returns an environment variable; undefined if it is unset or empty. */
export function env(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}
