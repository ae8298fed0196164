/** Turns of a session. Each turn runs in the memory of the previous turn. */

import { NotJsonSafe, toJson } from "../../json.ts";
import {
  defineInputs,
  defineProviders,
  describeError,
  dropCalls,
  type Emit,
  type ProviderTools,
  settle,
} from "../../tools.ts";
import { removeFiles } from "../../files.ts";
import { resetConsole } from "./console.ts";
import { fail, isProxy, succeed, toolCall } from "./host.ts";
import { sizeOf } from "./size.ts";
import { SEND_POSITIONS, uncleanStack } from "./stack.ts";
import { dropTimers } from "./timers.ts";

const { parse, stringify } = JSON;
const { create, defineProperty, getOwnPropertyDescriptor, keys } = Object;
const { apply } = Reflect;
const { isArray } = Array;
const { includes, push } = Array.prototype;
const TypedArray = Object.getPrototypeOf(Uint8Array);
const CLASSES: [string, NewableFunction][] = [
  ["Map", Map],
  ["Set", Set],
  ["Date", Date],
  ["RegExp", RegExp],
  ["Promise", Promise],
  ["Error", Error],
  ["ArrayBuffer", ArrayBuffer],
  ["TypedArray", TypedArray],
];

/** Enumerable globals of QuickJS itself. */
const BUILT_IN = keys(globalThis);

type Define = (functions: [name: string, value: object][]) => void;

/** Positions of the current turn's tools by name. A guest may keep tool functions of earlier turns. */
let positions: Record<string, number> = create(null);
let turns = 0;

/** Runs the function of a turn and reports the outcome. */
export async function turn(
  fn: (define: Define) => Promise<unknown>,
  providers: string,
  maxBytes: number,
  flags: number,
  inputs?: string,
): Promise<void> {
  dropCalls();
  dropTimers();
  resetConsole();
  removeFiles();
  try {
    const options = { maxInputBytes: maxBytes, callStack: flags & SEND_POSITIONS ? uncleanStack : undefined };
    const tools: ProviderTools = parse(providers);
    // This throws if an earlier turn has made the names unchangeable.
    defineProviders(tools, emitter(tools), options);
    if (inputs) defineInputs(parse(inputs));
    succeed(toJson(await fn(defineFunctions), "The result", maxBytes));
  } catch (error) {
    fail(stringify(describeError(error)));
  }
}

/**
 * Returns a function that sends the calls of a turn's tools. If guest code calls a tool function of this turn
 * in a later turn, the call goes to the later turn's tool with the same name.
 */
function emitter(providers: ProviderTools): Emit {
  const names: string[] = [], current = ++turns;
  positions = create(null);
  for (let i = 0; i < providers.length; i++) {
    const [provider, tools, streaming = []] = providers[i];
    for (let j = 0; j < tools.length; j++) {
      // Mark streaming tools in their names, because the functions of streaming tools expect items.
      const name = `${provider}.${tools[j]}${apply(includes, streaming, [tools[j]]) ? " (stream)" : ""}`;
      positions[name] = names.length;
      apply(push, names, [name]);
    }
  }
  return (call, tool, input, stack) => {
    const position = current === turns ? tool : positions[names[tool]];
    if (position !== undefined) return toolCall(call, position, input, stack);
    const message = `${names[tool]} is not a tool of this turn`;
    settle(call, false, stringify({ __proto__: null, code: "tool_error", message }));
  };
}

function defineFunctions(functions: [name: string, value: object][]): void {
  for (let i = 0; i < functions.length; i++) {
    const [name, value] = functions[i];
    defineProperty(value, "name", { value: name, configurable: true });
    defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: true });
  }
}

/** Reports the names, types and approximate sizes of the session's variables. Runs no getters. */
export function variables(maxBytes: number): void {
  try {
    const found: object[] = [], names = keys(globalThis);
    for (let i = 0; i < names.length; i++) {
      const descriptor = getOwnPropertyDescriptor(globalThis, names[i]);
      if (!descriptor || !("value" in descriptor) || apply(includes, BUILT_IN, [names[i]])) continue;
      const { value } = descriptor;
      apply(push, found, [{ __proto__: null, name: names[i], type: typeName(value), bytes: sizeOf(value) }]);
    }
    const text = stringify(found);
    if (text.length > maxBytes) throw new NotJsonSafe("The session has too many variables");
    succeed(text);
  } catch (error) {
    fail(stringify(describeError(error)));
  }
}

function typeName(value: unknown): string {
  if (value === null) return "null";
  if (typeof value !== "object") return typeof value;
  if (isProxy(value) === 1) return "Proxy";
  if (isArray(value)) return "Array";
  for (let i = 0; i < CLASSES.length; i++) if (value instanceof CLASSES[i][1]) return CLASSES[i][0];
  return "object";
}
