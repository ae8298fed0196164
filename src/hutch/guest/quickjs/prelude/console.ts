/** `console`, whose lines become the execution's logs. */

import { toLog } from "../../json.ts";
import { hide, rename } from "./hide.ts";
import { log as keep } from "./host.ts";

let full = false;

function log(values: unknown[]): void {
  if (full) return;
  let line = "";
  for (let i = 0; i < values.length; i++) line += (i ? " " : "") + toLog(values[i]);
  full = keep(line.toWellFormed()) === 0;
}

const methods = ["log", "info", "warn", "error", "debug", "trace"].map(
  (name) => [name, rename(name, (...values: unknown[]) => log(values))],
);
hide("console", Object.fromEntries(methods));
