/** Sends logs and partial values of a streamed execution as calls of the host's tools. */

import { createToolFunction, type Emit } from "../tools.ts";
import type { Manifest } from "../wire.ts";

/** Name of the provider of the host's tools for events. The package cannot call these tools. */
const PROVIDER = "events";
/** Maximum number of values in transit. While there are this many, the generator is not advanced. */
const MAX_PENDING = 64;

export type Call = (input: string) => Promise<unknown>;

/** Returns functions that call the tools of one provider of the host. */
export function hostCalls(provider: string, providers: Manifest[], emit: Emit): Record<string, Call> {
  let count = 0;
  const calls: Record<string, Call> = {};
  for (const { name, tools } of providers) {
    for (const tool of Object.keys(tools)) {
      const number = count++;
      if (name === provider) calls[tool] = createToolFunction(`${name}.${tool}`, number, emit);
    }
  }
  return calls;
}

export class Events {
  #calls: Record<string, Call | undefined>;
  #pending = new Set<Promise<void>>();

  constructor(providers: Manifest[], emit: Emit) {
    this.#calls = hostCalls(PROVIDER, providers, emit);
  }

  log(line: string): void {
    this.#send("log", line);
  }

  async partial(json: string): Promise<void> {
    this.#send("partial", json);
    while (this.#pending.size >= MAX_PENDING) await Promise.race(this.#pending);
  }

  /** Resolves when the host has received all events. */
  async settled(): Promise<void> {
    await Promise.all(this.#pending);
  }

  #send(kind: "log" | "partial", text: string): void {
    const delivery = this.#calls[kind]?.(text).then(
      () => {
        this.#pending.delete(delivery!);
      },
      () => {
        // Stop sending events of this kind, because the next ones would fail too.
        this.#pending.delete(delivery!);
        this.#calls[kind] = undefined;
      },
    );
    if (delivery) this.#pending.add(delivery);
  }
}
