/** Defines globals for guests. */

const { defineProperty } = Object;

/** Defines a global like those of browsers: writable, configurable and not enumerable. */
export function defineGlobal(name: string, value: unknown): void {
  if (typeof value === "function") setName(name, value);
  defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

export function defineGlobalClass(name: string, value: NewableFunction): void {
  nameClass(name, value);
  defineGlobal(name, value);
}

/** Sets the name of a class, also for `Object.prototype.toString` of its instances. */
export function nameClass(name: string, value: NewableFunction): void {
  setName(name, value);
  defineProperty(value.prototype, Symbol.toStringTag, { value: name, configurable: true });
}

/** Restores the name of a function, which minification removes. */
export function setName<F extends object>(name: string, value: F): F {
  return defineProperty(value, "name", { value: name, configurable: true });
}
