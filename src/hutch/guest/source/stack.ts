/** Stack traces for guests, without frames of the runner and of Deno. */

const { apply } = Reflect;
const { defineProperty } = Object;
const { toString: describe } = Error.prototype;
const { replace } = String.prototype;
const encode = encodeURI, encodeAll = encodeURIComponent;

/** `hutch:` is the runner, `ext:` is Deno; the others are the main file of a script and the module of tools. */
const INTERNAL_FRAME = /^\s*at .*(?:\bhutch:|\bext:|\/\.hutch-main\.js:|\/runtime\/tools\.ts\?_t=)/;

export function withoutInternalFrames(stack: string): string {
  return stack.split("\n").filter((line) => !INTERNAL_FRAME.test(line)).join("\n");
}

/** V8's call site. */
interface Frame {
  getFileName(): string | null;
}

/** Describes a frame as Deno does, with the URL of its file. V8's text has the path instead. */
function describeFrame(frame: Frame): string {
  const text = `${frame}`, file = frame.getFileName();
  if (typeof file !== "string" || file[0] !== "/") return text;
  const url = `file://${apply(replace, encode(file), [/[?#]/g, encodeAll])}`;
  return apply(replace, text, [file, () => url]);
}

/**
 * Makes V8 format stack traces with `clean`. A guest may replace `Error.prepareStackTrace`, as in any V8
 * program.
 */
export function formatStacks(clean: (stack: string) => string = withoutInternalFrames): void {
  const value = (error: unknown, frames: Frame[]) => {
    let stack: string = apply(describe, error, []);
    try {
      for (let i = 0; i < frames.length; i++) stack += `\n    at ${describeFrame(frames[i])}`;
      return clean(stack);
    } catch {
      // The guest has replaced a built-in. Return the stack as far as it is built.
      return stack;
    }
  };
  defineProperty(Error, "prepareStackTrace", { value, writable: true, configurable: true });
}
