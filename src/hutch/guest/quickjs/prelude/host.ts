/** The runner's functions, removed from the global object before guest code runs. */

export function takeHostFunction<F>(letter: string): F {
  const name = `__hutch_${letter}`;
  const value = (globalThis as any)[name];
  delete (globalThis as any)[name];
  return value;
}

export const toolCall = takeHostFunction<
  (call: number, tool: number, input: string, stack: string) => void
>("c");
/** Returns 0 if the line was dropped because the logs are full. */
export const log = takeHostFunction<(line: string) => number>("l");
export const startTimer = takeHostFunction<(id: number, milliseconds: number, repeat: number) => void>("t");
export const stopTimer = takeHostFunction<(id: number) => void>("k");
export const randomBytes = takeHostFunction<(count: number) => ArrayBuffer>("r");
export const url = takeHostFunction<(operation: string, href: string, argument: string) => string>("u");
export const encodeUtf8 = takeHostFunction<(text: string) => ArrayBuffer>("e");
export const decodeText = takeHostFunction<(bytes: ArrayBuffer, label: string, mode: number) => string>("d");
export const succeed = takeHostFunction<(result?: string) => void>("o");
export const fail = takeHostFunction<(error: string) => void>("x");
export const isProxy = takeHostFunction<(value: unknown) => number>("p");
/** Removes internal frames from a stack trace and maps positions to the guest's source. */
export const cleanStack = takeHostFunction<(stack: string) => string>("s");
export const byteLength = takeHostFunction<(text: string) => number>("b");
