import { e2bNames, e2bStatics } from "./generated/e2b.ts";

/**
 * For members that E2B's SDK names differently, makes reading the member throw an error that gives
 * the name here. The members are not in any type, and not in any list of an object's members.
 */
export function knowsE2B(kind: string, prototype: object): void {
  names(kind, e2bNames[kind]!, prototype, (of) => of !== prototype);
}

/** Does the same for static members of E2B's SDK, which have the id of a sandbox as a parameter. */
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
