import { e2bNames } from "./generated/e2b.ts";

/**
 * Has those members of a class that E2B's SDK calls otherwise say what they are called here: what is
 * read throws. They are in no type and in no list of what an object has.
 */
export function knowsE2B(kind: string, prototype: object): void {
  for (const [name, here] of Object.entries(e2bNames[kind]!)) {
    Object.defineProperty(prototype, name, {
      configurable: true,
      get(this: unknown): undefined {
        if (this !== prototype) {
          throw new TypeError(`${kind} has no ${name}; here it is ${here}`);
        }
      },
    });
  }
}
