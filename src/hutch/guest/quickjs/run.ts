/** One execution in the quickjs runner. */

import { Logs } from "../logs.ts";
import { type Program } from "../source/program.ts";
import { type Execute } from "../wire.ts";
import { type SuspendedState } from "./suspension.ts";
import { type Vm } from "./vm.ts";

interface Timer {
  handle: ReturnType<typeof setTimeout>;
  dueAt: number;
  /** 0 for a timer that fires once. */
  interval: number;
}

export class Run {
  readonly logs: Logs;
  readonly startedAt: number;
  deadline: number;
  readonly timers = new Map<number, Timer>();
  readonly queue: [entry: string, args: () => number[]][] = [];
  readonly calls = new Set<string>();
  /** Codes of errors that the host sent to the guest. The guest may fail with the same codes. */
  readonly hostErrorCodes: Set<string>;
  /**
   * Open calls of `files`. The host answers these calls immediately, so the execution is not suspended before
   * the answers have arrived.
   */
  readonly fileCalls = new Set<string>();
  targets?: string[];
  openBytes = 0;
  /**
   * Number of digests that are being computed. The execution is not suspended meanwhile, because their
   * results are not part of the VM's memory yet.
   */
  digests = 0;
  busy = false;
  over = false;
  cancelled = false;
  /**
   * Outcome of a turn whose function has returned. The turn ends when all jobs that it has started have run.
   */
  returned?: { result?: string };
  /** Maximum size of the memory's difference if the host has asked to suspend the execution, otherwise 0. */
  suspendBelow = 0;

  /** `state` is the state of the suspended execution to continue. */
  constructor(
    readonly id: string,
    readonly request: Execute,
    readonly program: Program,
    readonly vm: Vm,
    state?: SuspendedState,
  ) {
    const { maxLogLines, maxLogChars, timeoutMs } = request.options;
    this.logs = new Logs(maxLogLines, maxLogChars);
    for (const line of state?.logs ?? []) this.logs.add(line);
    if (state?.logsTruncated) this.logs.truncated = true;
    this.hostErrorCodes = new Set(state?.errorCodes);
    this.startedAt = performance.now() - (state?.elapsedMs ?? 0);
    this.deadline = this.startedAt + timeoutMs;
  }

  readonly isOverdue = (now: number): boolean => this.over || this.cancelled || now >= this.deadline;

  /** True if the guest only waits for calls or timers. */
  get isWaiting(): boolean {
    const isIdle = !this.busy && !this.over && this.queue.length === 0;
    return isIdle && this.digests === 0 && this.fileCalls.size === 0 &&
      this.calls.size + this.timers.size > 0;
  }

  /** Number of tool calls whose results the guest has not received. */
  get openCalls(): number {
    let count = this.calls.size - this.fileCalls.size;
    for (const [entry] of this.queue) if (entry === "settle") count++;
    return count;
  }

  state(memory: SuspendedState["memory"], calls: SuspendedState["calls"]): SuspendedState {
    const now = performance.now();
    return {
      memory,
      calls,
      timers: [...this.timers].map(([id, { dueAt, interval }]) => [id, Math.max(0, dueAt - now), interval]),
      logs: this.logs.lines,
      logsTruncated: this.logs.truncated,
      errorCodes: [...this.hostErrorCodes],
      elapsedMs: now - this.startedAt,
    };
  }

  stopTimers(): void {
    for (const { handle } of this.timers.values()) clearTimeout(handle);
  }
}
