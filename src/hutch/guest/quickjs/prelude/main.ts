/**
 * What guest code finds inside QuickJS, and the functions by which the runner drives it.
 *
 * Runs once, before the memory image is taken. Guest code shares its realm: whatever it does to
 * built-ins spoils only its own run, because the runner checks all that leaves.
 */

import "./console.ts";
import "./crypto.ts";
import "./text.ts";
import "./url.ts";
import { due } from "./timers.ts";
import "./abort.ts";
import "./clone.ts";
import { toJson } from "../../json.ts";
import { explain, lend, settle as deliver } from "../../tools.ts";
import { hide } from "./hide.ts";
import { fail, succeed, toolCall } from "./host.ts";

const { parse, stringify } = JSON;

/** Calls the guest's function with the providers lent to it, and reports how it ended. */
async function run(fn: () => Promise<unknown>, providers: string, maxBytes: number): Promise<void> {
  lend(parse(providers), toolCall, maxBytes);
  try {
    succeed(toJson(await fn(), "The result", maxBytes));
  } catch (error) {
    fail(stringify(explain(error)));
  }
}

function settle(id: number, ok: number, text: string): void {
  deliver(id, ok === 1, text);
}

/** A timer is due. What its callback throws ends the execution, as it would end a process. */
function fire(id: number): void {
  try {
    due(id);
  } catch (error) {
    fail(stringify(explain(error)));
  }
}

hide("queueMicrotask", (callback: () => void) => {
  if (typeof callback !== "function") throw new TypeError("queueMicrotask: expected a function");
  Promise.resolve().then(callback);
});
(globalThis as any).__hutch_entry = { run, settle, fire };
