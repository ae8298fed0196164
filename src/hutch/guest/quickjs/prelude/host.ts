/** The runner's functions, taken from the global object before guest code can see them there. */

export function take<F>(letter: string): F {
  const name = `__hutch_${letter}`;
  const value = (globalThis as any)[name];
  delete (globalThis as any)[name];
  return value;
}

export const toolCall = take<(call: number, tool: number, input: string) => void>("c");
/** Answers 0 when no further line will be kept. */
export const log = take<(line: string) => number>("l");
export const armTimer = take<(id: number, milliseconds: number, repeat: number) => void>("t");
export const disarmTimer = take<(id: number) => void>("k");
export const randomBytes = take<(count: number) => ArrayBuffer>("r");
export const url = take<(operation: string, href: string, argument: string) => string>("u");
export const encodeUtf8 = take<(text: string) => ArrayBuffer>("e");
export const decodeText = take<(bytes: ArrayBuffer, label: string, mode: number) => string>("d");
export const succeed = take<(result?: string) => void>("o");
export const fail = take<(fault: string) => void>("x");
