/** `console`, whose lines become the execution's logs. */

import { methods } from "../../console.ts";
import { hide, rename } from "./hide.ts";
import { log as keep } from "./host.ts";

let full = false;

const all = methods((line) => full = keep(line.toWellFormed()) === 0, () => full);
for (const [name, method] of Object.entries(all)) rename(name, method);
hide("console", all);
