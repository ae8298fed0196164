/**
 * Prelude: defines the globals of guest code inside QuickJS and the functions that the runner calls.
 *
 * Runs once, before the memory image is captured. Guest code shares the realm and can replace built-ins, but
 * that affects only its own run, because the runner checks everything that leaves the VM.
 */

import "./console.ts";
import "./crypto.ts";
import "./text.ts";
import "./url.ts";
import { fireTimer } from "./timers.ts";
import "./abort.ts";
import "./clone.ts";
import { provideByteLength, toJson } from "../../json.ts";
import {
  addItem,
  defineInputs,
  defineProviders,
  describeError,
  provideProxyCheck,
  settle as settleCall,
} from "../../tools.ts";
import { defineFiles, filesWritten, provideFiles, removeFiles } from "../../files.ts";
import { defineGlobal } from "./define.ts";
import { rawStack, SEND_POSITIONS, uncleanStack } from "./stack.ts";
import { byteLength, fail, isProxy, log, succeed, toolCall } from "./host.ts";
import { turn, variables } from "./turn.ts";

const { parse, stringify } = JSON;

provideProxyCheck((value) => isProxy(value) === 1);
provideByteLength(byteLength);

/** Bit of `flags`. If it is set, the guest has `files`. */
const HAS_FILES = 2;

/**
 * Runs the guest's function with its providers and reports the outcome. `inputs` and `files` are JSON, or empty
 * if there are none.
 */
async function run(
  fn: () => Promise<unknown>,
  providers: string,
  maxBytes: number,
  flags: number,
  inputs?: string,
  files?: string,
): Promise<void> {
  if (!(flags & HAS_FILES)) removeFiles();
  const callStack = flags & SEND_POSITIONS ? uncleanStack : undefined;
  const firstTool = defineProviders(parse(providers), toolCall, { maxInputBytes: maxBytes, callStack });
  if (flags & HAS_FILES) {
    provideFiles(files ? parse(files) : [], { emit: toolCall, firstTool, log, maxBytes });
  }
  if (inputs) defineInputs(parse(inputs));
  let result: string | undefined, failure: string | undefined;
  try {
    result = toJson(await fn(), "The result", maxBytes);
  } catch (error) {
    failure = stringify(describeError(error));
  }
  const writing = filesWritten();
  if (writing) await writing;
  if (failure === undefined) succeed(result);
  else fail(failure);
}

function settle(id: number, ok: number, text: string): void {
  settleCall(id, ok === 1, text);
}

/** Runs the callback of a timer. An uncaught error ends the execution. */
function fire(id: number): void {
  try {
    fireTimer(id);
  } catch (error) {
    fail(stringify(describeError(error)));
  }
}

// Define these globals once here. Defining them for each execution would take longer than the rest of a short
// execution.
defineFiles();
defineGlobal("queueMicrotask", (callback: () => void) => {
  if (typeof callback !== "function") throw new TypeError("queueMicrotask: expected a function");
  Promise.resolve().then(callback);
});
(globalThis as any).__hutch_entry = {
  run,
  turn,
  variables,
  settle,
  item: addItem,
  fire,
  stack: rawStack,
};
