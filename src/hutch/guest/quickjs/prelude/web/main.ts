/**
 * Prelude for wrappers of abilities: adds `fetch` with its classes, `Buffer` and an empty `process.env`.
 * Has its own memory image, so that other guests do not have these globals.
 */

import "../main.ts";
import "./headers.ts";
import "./request.ts";
import "./response.ts";
import "./fetch.ts";
import "./buffer.ts";
import "./digest.ts";
import "./process.ts";
import { removeFiles } from "../../../files.ts";
import { describeError } from "../../../tools.ts";
import { fail, succeed } from "../host.ts";
import { runJob } from "./jobs.ts";

const { stringify } = JSON;

async function job(...args: Parameters<typeof runJob>): Promise<void> {
  try {
    succeed(await runJob(...args));
  } catch (error) {
    fail(stringify(describeError(error)));
  }
}

removeFiles();
// The source of a wrapper is secret, so its functions do not reveal it.
Object.defineProperty(Function.prototype, "toString", {
  value: function toString(this: unknown) {
    if (typeof this !== "function") throw new TypeError("Function.prototype.toString: expected a function");
    return `function ${this.name}() { [native code] }`;
  },
  writable: true,
  configurable: true,
});
(globalThis as any).__hutch_entry.job = job;
