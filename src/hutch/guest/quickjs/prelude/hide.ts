/** Defines a global as the platform does: there, replaceable, and not listed. */
export function hide(name: string, value: unknown): void {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}
