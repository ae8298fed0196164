/** The methods of `console`, based on a function that prints a line. All engines use this module. */

import { toLog } from "./json.ts";

/** Captures the function here, before guest code can replace it. */
const { now } = Date;
const PLAIN = ["log", "info", "warn", "error", "debug", "trace"];

type Method = (...values: unknown[]) => void;

/** While `isFull` returns true, values are not formatted, because the line would be dropped. */
export function consoleMethods(print: (line: string) => void, isFull: () => boolean): Record<string, Method> {
  const counts: Record<string, number> = { __proto__: null as any };
  const startTimes: Record<string, number> = { __proto__: null as any };
  let indent = "";

  function printValues(...values: unknown[]): void {
    if (isFull()) return;
    let line = indent;
    for (let i = 0; i < values.length; i++) line += (i ? " " : "") + toLog(values[i]);
    print(line);
  }

  function group(...values: unknown[]): void {
    if (values.length) printValues(...values);
    indent += "  ";
  }

  function printElapsed(label: unknown, values: unknown[]): void {
    const since = startTimes[`${label}`];
    printValues(
      since === undefined ? `Timer '${label}' does not exist` : `${label}: ${now() - since} ms`,
      ...values,
    );
  }

  const all: Record<string, Method> = {
    assert(holds, ...values) {
      if (!holds) printValues("Assertion failed", ...values);
    },
    clear() {},
    count(label = "default") {
      const count = counts[`${label}`] = (counts[`${label}`] ?? 0) + 1;
      printValues(`${label}: ${count}`);
    },
    countReset(label = "default") {
      counts[`${label}`] = 0;
    },
    dir: (value) => printValues(value),
    group,
    groupCollapsed: (...values) => group(...values),
    groupEnd() {
      indent = indent.slice(2);
    },
    table: (value) => printValues(value),
    time(label = "default") {
      startTimes[`${label}`] = now();
    },
    timeLog: (label = "default", ...values) => printElapsed(label, values),
    timeEnd(label = "default") {
      printElapsed(label, []);
      delete startTimes[`${label}`];
    },
  };
  for (const name of PLAIN) all[name] = (...values) => printValues(...values);
  return all;
}
