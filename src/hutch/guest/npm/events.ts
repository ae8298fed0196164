/** What a stream hears of an execution while it runs: calls of the host's tools that nobody waits for. */

import { type Emit, proxy } from "../tools.ts";
import type { Manifest } from "../wire.ts";

/** The provider that listens. It is lent to the runner, not to the package. */
const PROVIDER = "events";
/** Values on their way, beyond which a generator is not asked for the next one. */
const MAX_OPEN = 64;

type Call = (input: string) => Promise<unknown>;

export class Events {
  #calls: Record<string, Call | undefined>;
  #open = new Set<Promise<void>>();

  constructor(providers: Manifest[], emit: Emit) {
    let count = 0;
    const calls: [string, Call][] = [];
    for (const { name, tools } of providers) {
      for (const tool of Object.keys(tools)) {
        const number = count++;
        if (name === PROVIDER) calls.push([tool, proxy(`${name}.${tool}`, number, emit)]);
      }
    }
    this.#calls = Object.fromEntries(calls);
  }

  log(line: string): void {
    this.#tell("log", line);
  }

  /** Tells a value by its JSON text. */
  async partial(json: string): Promise<void> {
    this.#tell("partial", json);
    while (this.#open.size >= MAX_OPEN) await Promise.race(this.#open);
  }

  /** When everything that was told has arrived. */
  async settled(): Promise<void> {
    await Promise.all(this.#open);
  }

  #tell(kind: "log" | "partial", text: string): void {
    const told = this.#calls[kind]?.(text).then(
      () => {
        this.#open.delete(told!);
      },
      () => {
        // Whoever refused one would refuse the rest.
        this.#open.delete(told!);
        this.#calls[kind] = undefined;
      },
    );
    if (told) this.#open.add(told);
  }
}
