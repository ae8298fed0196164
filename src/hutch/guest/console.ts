/** The methods of `console`, by one way to print a line: the same in both engines. */

import { toLog } from "./json.ts";

/** Taken before guest code can replace it. */
const { now } = Date;
const PLAIN = ["log", "info", "warn", "error", "debug", "trace"];

type Method = (...values: unknown[]) => void;

/** `isFull`: whether whatever is printed would be left out, and need not be made into text. */
export function methods(print: (line: string) => void, isFull: () => boolean): Record<string, Method> {
  const counts: Record<string, number> = { __proto__: null as any };
  const began: Record<string, number> = { __proto__: null as any };
  let indent = "";

  function say(...values: unknown[]): void {
    if (isFull()) return;
    let line = indent;
    for (let i = 0; i < values.length; i++) line += (i ? " " : "") + toLog(values[i]);
    print(line);
  }

  function group(...values: unknown[]): void {
    if (values.length) say(...values);
    indent += "  ";
  }

  function lap(label: unknown, values: unknown[]): void {
    const since = began[`${label}`];
    say(since === undefined ? `${label} was not begun` : `${label}: ${now() - since} ms`, ...values);
  }

  const all: Record<string, Method> = {
    assert(holds, ...values) {
      if (!holds) say("Assertion failed", ...values);
    },
    clear() {},
    count(label = "default") {
      const count = counts[`${label}`] = (counts[`${label}`] ?? 0) + 1;
      say(`${label}: ${count}`);
    },
    countReset(label = "default") {
      counts[`${label}`] = 0;
    },
    dir: (value) => say(value),
    group,
    groupCollapsed: (...values) => group(...values),
    groupEnd() {
      indent = indent.slice(2);
    },
    table: (value) => say(value),
    time(label = "default") {
      began[`${label}`] = now();
    },
    timeLog: (label = "default", ...values) => lap(label, values),
    timeEnd(label = "default") {
      lap(label, []);
      delete began[`${label}`];
    },
  };
  for (const name of PLAIN) all[name] = (...values) => say(...values);
  return all;
}
