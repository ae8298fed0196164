/** Puts what the prelude has before guests, under the names that platforms have for it. */

const { defineProperty } = Object;

/** Defines a global as the platform does: there, replaceable, and not listed. */
export function hide(name: string, value: unknown): void {
  if (typeof value === "function") rename(name, value);
  defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

/** The same for a class, whose instances then say what they are. */
export function hideClass(name: string, value: NewableFunction): void {
  entitle(name, value);
  hide(name, value);
}

/** Gives a class and its instances the name that guests know it by. */
export function entitle(name: string, value: NewableFunction): void {
  rename(name, value);
  defineProperty(value.prototype, Symbol.toStringTag, { value: name, configurable: true });
}

/** The bundle is minified: its functions have lost the names that they were written with. */
export function rename<F extends object>(name: string, value: F): F {
  return defineProperty(value, "name", { value: name, configurable: true });
}
