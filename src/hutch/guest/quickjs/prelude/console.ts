/** `console`, which writes the execution's logs. */

import { consoleMethods } from "../../console.ts";
import { defineGlobal, setName } from "./define.ts";
import { log } from "./host.ts";

let isFull = false;

const methods = consoleMethods((line) => isFull = log(line.toWellFormed()) === 0, () => isFull);
for (const [name, method] of Object.entries(methods)) setName(name, method);
defineGlobal("console", methods);

/** Resets the flag that the logs are full, because each turn of a session has its own logs. */
export function resetConsole(): void {
  isFull = false;
}
