import { e2bNames, e2bStatics } from "./generated/e2b.ts";

/**
 * Has those members of a class that E2B's SDK calls otherwise say what they are called here: what is
 * read throws. They are in no type and in no list of what an object has.
 */
export function knowsE2B(kind: string, prototype: object): void {
  names(kind, e2bNames[kind]!, prototype, (of) => of !== prototype);
}

/** The same for what E2B's SDK calls on a class itself, with the id of a sandbox. */
export function knowsE2BStatics(kind: string, constructor: object): void {
  names(kind, e2bStatics[kind]!, constructor, () => true);
}

function names(kind: string, table: Readonly<Record<string, string>>, on: object, says: (of: unknown) => boolean): void {
  for (const [name, here] of Object.entries(table)) {
    Object.defineProperty(on, name, {
      configurable: true,
      get(this: unknown): undefined {
        if (says(this)) {
          throw new TypeError(`${kind} has no ${name}; here it is ${here}`);
        }
      },
    });
  }
}
