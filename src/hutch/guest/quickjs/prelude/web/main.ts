/**
 * What the wrappers of abilities find besides: `fetch` and what belongs to it, `Buffer`, an empty
 * `process.env`. Runs once, for a memory image of its own, so that no other guest has any of it.
 */

import "../main.ts";
import "./headers.ts";
import "./request.ts";
import "./response.ts";
import "./fetch.ts";
import "./buffer.ts";
import "./digest.ts";
import "./process.ts";
import { explain } from "../../../tools.ts";
import { fail, succeed } from "../host.ts";
import { perform } from "./jobs.ts";

const { stringify } = JSON;

async function job(...args: Parameters<typeof perform>): Promise<void> {
  try {
    succeed(await perform(...args));
  } catch (error) {
    fail(stringify(explain(error)));
  }
}

// A wrapper is the secret of whoever wrote it: it cannot even tell itself.
Object.defineProperty(Function.prototype, "toString", {
  value: function toString(this: unknown) {
    if (typeof this !== "function") throw new TypeError("Function.prototype.toString: expected a function");
    return `function ${this.name}() { [native code] }`;
  },
  writable: true,
  configurable: true,
});
(globalThis as any).__hutch_entry.job = job;
