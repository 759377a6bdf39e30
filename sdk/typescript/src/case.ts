/** The camelCase form of a name in the API, such as snapshotTag for snapshot_tag. */
export type CamelName<S> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<CamelName<Tail>>}` : S;

/** A message of the API with its names in camelCase. */
export type Camel<T> = T extends readonly (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? { [Key in keyof T as CamelName<Key>]: Camel<T[Key]> }
    : T;

/** Fields with maps, whose keys are not names of the API. */
const maps = new Set(["labels", "env", "refused"]);

/** Returns a message of the API with its names in camelCase. */
export function camel<T>(message: T): Camel<T> {
  return renamed(message, (name) => name.replace(/(?<=.)_([a-z0-9])/g, (_, c: string) => c.toUpperCase())) as Camel<T>;
}

/** Reverses camel. Undefined fields are omitted. */
export function snake(message: unknown): unknown {
  return renamed(message, (name) => name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`));
}

function renamed(value: unknown, rename: (name: string) => string): unknown {
  if (Array.isArray(value)) {
    return value.map((item) => renamed(item, rename));
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const result: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(value)) {
    if (field !== undefined) {
      result[rename(name)] = maps.has(name) ? field : renamed(field, rename);
    }
  }
  return result;
}
