/** The quickjs runner: runs many executions in one process, each in its own VM. */

import { runAfter } from "../clock.ts";
import { GuestSyntaxError, type Program } from "../source/program.ts";
import {
  callTargets,
  doneLine,
  type Execute,
  type Extend,
  type Failure,
  type HostMessage,
  isFileTarget,
  isJson,
  logLine,
  type Outcome,
  providerTools,
  startedLine,
  type Suspend,
  suspendedLine,
  toolCallLine,
  type ToolItem,
  type ToolResult,
  type Wire,
} from "../wire.ts";
import { type WakeupFile } from "./wakeup.ts";
import { hostFunctions, type PRELUDES } from "./host_functions.ts";
import { byteLength, DEFAULT_MAX_RESULT, programOf, programResult, type Result } from "./programs.ts";
import { type HostFunctions, type Image, type Vm, VmError } from "./vm.ts";
import { interruptedAt, syntaxError, unknownTool, withHint } from "./failures.ts";
import { Run } from "./run.ts";
import { VmPool } from "./vm_pool.ts";
import { MemoryParts, sendMemory, type SuspendedState, type VmState } from "./suspension.ts";

/** Error codes that a guest may report itself, besides those of errors that the host sent to it. */
const GUEST_CODES = new Set(["runtime_error", "serialization_error", "result_too_large"]);
const MAX_MESSAGE = 8_000;
const TIMED_OUT = { code: "timeout", message: "Execution timed out" };
/** Maximum number of input bytes of all open calls of one execution. */
const MAX_OPEN_BYTES = 32 * 1024 * 1024;
const COMPILER_HINT = "the deno engine compiles namespaces and decorators";
/**
 * Matches QuickJS's messages about exhausted memory. QuickJS uses the last of these messages if it has no
 * memory left for another message.
 */
const OUT_OF_MEMORY = /^(out of memory|string too long|Invalid error message)$/;
/** Text of an error: name and message. */
const ERROR_TEXT = /^(\w*Error): ([^]*)$/;

/** Memory images that executions start from. `web` also contains the globals for wrappers of abilities. */
type Images = Record<keyof typeof PRELUDES, Image>;

interface Call {
  run: Run;
  number: number;
  size: number;
  /** Number of items that the guest has received. */
  items: number;
}

export class Runner {
  readonly #wire: Wire;
  readonly #images: Images;
  readonly #wakeup: WakeupFile;
  readonly #functions: HostFunctions;
  readonly #runs = new Map<string, Run>();
  readonly #byVm = new Map<Vm, Run>();
  readonly #calls = new Map<string, Call>();
  readonly #vms: VmPool;
  /** Memory that the host has sent for an `execute` that follows. */
  readonly #received = new MemoryParts();
  /**
   * Makes the ids of calls differ from those of other runners, because a suspended execution may continue in
   * another runner.
   */
  readonly #callPrefix = crypto.getRandomValues(new Uint8Array(6)).toHex();
  #callCount = 0;
  #alarmAt = Infinity;
  #hasTimers = false;

  constructor(wire: Wire, module: WebAssembly.Module, images: Images, wakeup: WakeupFile) {
    this.#wire = wire;
    this.#wakeup = wakeup;
    this.#images = images;
    this.#functions = hostFunctions((vm) => this.#byVm.get(vm)!, {
      toolCall: this.#toolCall.bind(this),
      log: this.#log.bind(this),
      startTimer: this.#startTimer.bind(this),
      stopTimer: this.#stopTimer.bind(this),
      succeed: this.#succeed.bind(this),
      report: this.#report.bind(this),
      timeOut: this.#timeOut.bind(this),
      digest: this.#digest.bind(this),
    });
    this.#vms = new VmPool(module, this.#functions, images.plain);
  }

  receive(message: HostMessage): void {
    if (message.type === "execute") this.#execute(message);
    else if (message.type === "tool_result") this.#toolResult(message);
    else if (message.type === "tool_item") this.#toolItem(message);
    else if (message.type === "cancel") this.#cancel(message.id);
    else if (message.type === "suspend") this.#suspend(message);
    else if (message.type === "memory") this.#received.add(message);
    else if (message.type === "extend") this.#extend(message);
  }

  #execute(request: Execute): void {
    const { id } = request;
    const startedAt = performance.now();
    this.#wire.send(startedLine(id));
    // Write `started` now. If the guest blocks the process, the host must know which execution caused it.
    this.#wire.flush();
    try {
      const program = programOf(request);
      if (request.job?.form === "prepare") this.#sendDone(id, programResult(request, program), startedAt);
      else if (request.state) this.#continue(request, program, request.state);
      else this.#start(request, program);
    } catch (error) {
      const { message } = error as Error;
      const failure = error instanceof GuestSyntaxError
        ? { code: "runtime_error", message: error.withHint(COMPILER_HINT), name: "SyntaxError", ...error.at }
        : { code: "internal_error", message: `The runner could not start the execution: ${message}` };
      this.#sendDone(id, { ok: false, error: failure }, startedAt);
    }
  }

  #add(run: Run): void {
    const { vm, request: { options } } = run;
    this.#runs.set(run.id, run);
    this.#byVm.set(vm, run);
    vm.limit(options.memoryLimitBytes);
    this.#setAlarm(run.deadline);
  }

  #start(request: Execute, program: Program): void {
    const { id, options, providers, job, turn } = request;
    const run = new Run(id, request, program, this.#vms.take(this.#images[job ? "web" : "plain"]));
    const { vm } = run, maxResultBytes = options.maxResultBytes ?? DEFAULT_MAX_RESULT;
    this.#add(run);
    if (turn?.vm && !this.#restore(run, turn.vm)) return;
    if (turn?.form === "variables") return this.#enter(run, "variables", () => [vm.number(maxResultBytes)]);
    const toolNames = JSON.stringify(providerTools(providers));
    const inputs = request.inputs && JSON.stringify(request.inputs);
    const files = options.files?.length ? JSON.stringify(options.files) : "";
    const flags = (options.sendCallLines ? 1 : 0) | (options.files ? 2 : 0);
    this.#enter(run, job ? "job" : turn ? "turn" : "run", () => {
      const fn = vm.evaluate(program.code, program.file);
      if (vm.isException(fn)) throw syntaxError(vm, vm.exception());
      const tools = vm.string(toolNames), maxBytes = vm.number(maxResultBytes);
      if (job) return [vm.string(job.form), fn, tools, vm.string(job.input), maxBytes];
      const args = [fn, tools, maxBytes, vm.number(flags)];
      return inputs || files ? [...args, vm.string(inputs ?? ""), vm.string(files)] : args;
    });
  }

  /** Continues an execution that was suspended, perhaps in another runner. */
  #continue(request: Execute, program: Program, state: SuspendedState): void {
    const { id, job } = request;
    const run = new Run(id, request, program, this.#vms.take(this.#images[job ? "web" : "plain"]), state);
    this.#add(run);
    if (!this.#restore(run, state.memory)) return;
    for (const [callId, number, size] of state.calls) this.#openCall(run, callId, number, size);
    for (const [timer, left, interval] of state.timers) this.#schedule(run, timer, left, interval);
  }

  /** Restores the memory that the host has sent. If that fails, ends the execution and returns false. */
  #restore(run: Run, state: VmState): boolean {
    try {
      run.vm.restore({ ...state, words: this.#received.take(run.id) });
      return true;
    } catch (error) {
      this.#crashed(run, error as Error);
      return false;
    }
  }

  #suspend({ id, maxBytes }: Suspend): void {
    const run = this.#runs.get(id);
    if (!run) return;
    run.suspendBelow = maxBytes;
    // Count the received items from 0 again, because the host also counts only the items that it sends after
    // `suspend`.
    for (const call of run.calls) this.#calls.get(call)!.items = 0;
    if (!run.busy) this.#trySuspend(run);
  }

  /**
   * If an execution only waits for calls or timers, sends its state to the host and ends the execution here.
   */
  #trySuspend(run: Run): void {
    const { id, vm, suspendBelow } = run;
    if (!run.isWaiting) return;
    run.suspendBelow = 0;
    const saved = vm.save(suspendBelow);
    if (typeof saved === "number") {
      this.#wire.send(suspendedLine(id, { tooLarge: saved }));
      return;
    }
    const { words, ...memory } = saved;
    sendMemory(this.#wire, id, words);
    this.#wire.send(suspendedLine(id, { state: run.state(memory, this.#openCalls(run)) }));
    run.over = true;
    this.#drop(run);
  }

  #openCalls(run: Run): SuspendedState["calls"] {
    return [...run.calls].map((callId) => {
      const { number, size, items } = this.#calls.get(callId)!;
      return [callId, number, size, items];
    });
  }

  #log(run: Run, line: string): boolean {
    const isAdded = run.logs.add(line);
    if (isAdded && run.request.options.streamLogs) this.#wire.send(logLine(run.id, run.logs.lines.at(-1)!));
    return isAdded;
  }

  /** Ends an execution that has no VM. */
  #sendDone(id: string, result: Result, startedAt: number): void {
    const durationMs = elapsed(startedAt);
    this.#wire.send(doneLine(id, { ...result, logs: [], logsTruncated: false, durationMs }));
  }

  /** Calls a function of the prelude, or queues the call while the VM is running or suspended. */
  #enter(run: Run, entry: string, args: () => number[]): void {
    run.queue.push([entry, args]);
    if (!run.busy) this.#pump(run);
  }

  async #pump(run: Run): Promise<void> {
    run.busy = true;
    let isIntact = true;
    try {
      while (run.queue.length > 0 && !run.over && !run.cancelled && !run.returned) {
        const [entry, args] = run.queue.shift()!;
        if (!await run.vm.call(run.vm.image.entry[entry], args(), run.isOverdue)) this.#stopped(run);
      }
      if (run.cancelled) this.#timeOut(run);
      // Report exhausted memory here, because QuickJS may lack the memory to report it.
      if (!run.over && run.vm.faults > 0 && run.calls.size + run.timers.size === 0) this.#exhausted(run);
    } catch (error) {
      isIntact = false;
      this.#crashed(run, error as Error);
    }
    run.busy = false;
    if (run.returned && !run.over) this.#endTurn(run, run.returned.result);
    if (run.suspendBelow > 0 && !run.over) this.#trySuspend(run);
    if (run.over) this.#release(run, isIntact);
    else if (run.calls.size > 0 && this.#runs.size === 1) this.#wakeup.poll(this.#wire.linesReceived);
  }

  /** Handles an exception that guest code could not catch. */
  #stopped(run: Run): void {
    if (run.over) return;
    if (run.isOverdue(performance.now())) this.#timeOut(run, interruptedAt(run));
    else if (run.vm.faults > 0) this.#exhausted(run);
    else this.#fail(run, { code: "runtime_error", message: "QuickJS stopped the execution" });
  }

  #crashed(run: Run, error: Error): void {
    if (run.vm.faults > 0) return this.#exhausted(run);
    if (error instanceof RangeError) {
      return this.#fail(run, { code: "runtime_error", message: error.message, name: "RangeError" });
    }
    if (error instanceof VmError) {
      if (OUT_OF_MEMORY.test(error.message)) return this.#exhausted(run);
      const [, name, message = error.message] = ERROR_TEXT.exec(error.message) ?? [];
      return this.#fail(run, { code: "runtime_error", message, name, stack: error.stack });
    }
    this.#fail(run, { code: "internal_error", message: `QuickJS crashed: ${error.message}` });
  }

  #succeed(run: Run, result: string | undefined): void {
    const maxBytes = run.request.options.maxResultBytes ?? DEFAULT_MAX_RESULT;
    if (result === undefined) this.#finish(run, true);
    else if (!isJson(result)) {
      this.#fail(run, {
        code: "serialization_error",
        message: "The result is not JSON, or nests too deeply",
      });
    } else if (byteLength(result, maxBytes) > maxBytes) {
      const message = `The result is too large: its JSON text has more than ${maxBytes} bytes`;
      this.#fail(run, { code: "result_too_large", message });
    } else this.#finish(run, true, result);
  }

  /** Fails with an error that the guest's realm reported, after checking every field. */
  #report(run: Run, error: Record<string, unknown> | null): void {
    const text = (value: unknown, maxChars: number) =>
      typeof value === "string" ? value.slice(0, maxChars) : "";
    const claimed = text(error?.code, 100);
    const code = GUEST_CODES.has(claimed) || run.hostErrorCodes.has(claimed) ? claimed : "runtime_error";
    const name = text(error?.name, 100), message = withHint(name, text(error?.message, MAX_MESSAGE));
    this.#fail(run, { code, message, ...(name ? { name } : {}), stack: text(error?.stack, MAX_MESSAGE) });
  }

  #fail(run: Run, error: Failure & { stack?: string }): void {
    const { code, message, name, stack } = error;
    const isOutOfMemory = name === "InternalError" ? OUT_OF_MEMORY.test(message) : message === "null";
    if (isOutOfMemory && run.vm.faults > 0) return this.#exhausted(run);
    const at = run.program.locateStack(stack), frames = run.program.describeStack(stack);
    const explained = message === "not a function" ? unknownTool(run.request, at.line) ?? message : message;
    this.#finish(run, false, undefined, { code, message: explained, name, ...at, stack: frames });
  }

  #exhausted(run: Run): void {
    const mebibytes = Math.round(run.request.options.memoryLimitBytes / 2 ** 20 * 10) / 10;
    const message = `Execution exceeded its memory limit of ${mebibytes} MiB`;
    this.#finish(run, false, undefined, { code: "memory_limit", message });
  }

  #timeOut(run: Run, stack = ""): void {
    const at = run.program.locateStack(stack), frames = run.program.describeStack(stack);
    this.#finish(run, false, undefined, { ...TIMED_OUT, ...at, stack: frames });
  }

  /** Ends a turn of a session and sends the session's memory. */
  #endTurn(run: Run, result?: string): void {
    const { form, maxBytes } = run.request.turn!;
    if (form === "variables") return this.#end(run, { ok: true, result });
    const saved = run.vm.save(maxBytes);
    if (typeof saved === "number") {
      const message = `The memory of the session has ${saved} bytes; the limit is ${maxBytes}` +
        " (setting max_checkpoint_bytes)";
      return this.#end(run, { ok: false, error: { code: "memory_limit", message } });
    }
    const { words, ...vm } = saved;
    sendMemory(this.#wire, run.id, words);
    this.#end(run, { ok: true, result, vm });
  }

  #finish(run: Run, ok: boolean, result?: string, error?: Failure): void {
    if (run.over) return;
    if (ok && run.request.turn) run.returned ??= { result };
    else this.#end(run, { ok, result, error });
  }

  #end(run: Run, outcome: Pick<Outcome, "ok" | "result" | "error" | "vm">): void {
    run.over = true;
    const { lines: logs, truncated: logsTruncated } = run.logs;
    const durationMs = elapsed(run.startedAt);
    const { openCalls } = run;
    this.#wire.send(doneLine(run.id, { ...outcome, logs, logsTruncated, durationMs, openCalls }));
    this.#drop(run);
  }

  /** Removes an execution that is over. */
  #drop(run: Run): void {
    run.stopTimers();
    for (const call of run.calls) this.#calls.delete(call);
    this.#runs.delete(run.id);
    if (!run.busy) this.#release(run, true);
  }

  #release(run: Run, isIntact: boolean): void {
    const { vm } = run;
    if (!this.#byVm.delete(vm)) return;
    this.#vms.release(vm, isIntact);
  }

  /**
   * Sets the one timer for all deadlines. Timers are expensive, and most executions end long before their
   * deadline.
   */
  #setAlarm(deadline: number): void {
    if (deadline >= this.#alarmAt) return;
    this.#alarmAt = deadline;
    // An earlier timer for a later deadline cannot be cancelled. The check in the callback ignores it.
    runAfter(Math.ceil(Math.max(0, deadline - performance.now())), () => {
      if (this.#alarmAt === deadline) this.#alarm();
    });
  }

  #alarm(): void {
    this.#alarmAt = Infinity;
    const now = performance.now();
    for (const run of [...this.#runs.values()]) if (run.deadline <= now) this.#stop(run);
    let next = Infinity;
    for (const run of this.#runs.values()) next = Math.min(next, run.deadline);
    if (next < Infinity) this.#setAlarm(next);
  }

  /** Ends an execution by timeout or `cancel`. Interrupts a suspended guest to find its position. */
  #stop(run: Run): void {
    run.cancelled = true;
    if (run.busy) run.vm.wake();
    else this.#timeOut(run);
  }

  #extend({ id, ms }: Extend): void {
    const run = this.#runs.get(id);
    if (!run) return;
    run.deadline += ms;
    this.#setAlarm(run.deadline);
  }

  #cancel(id: string): void {
    const run = this.#runs.get(id);
    if (run) return this.#stop(run);
    this.#received.take(id);
    // Reply although the execution has ended: the host has not processed the `done` of the execution yet, and
    // would kill a runner that does not reply to `cancel`.
    this.#sendDone(id, { ok: false, error: TIMED_OUT }, performance.now());
  }

  #toolCall(run: Run, number: number, tool: number, input: string, stack?: string): void {
    run.targets ??= callTargets(run.request.providers, run.request.options.files);
    const target = run.targets[tool];
    if (run.over || run.returned || target === undefined) return;
    const maxBytes = run.request.options.maxResultBytes ?? DEFAULT_MAX_RESULT;
    const size = byteLength(input, maxBytes);
    if (size > maxBytes || run.openBytes + size > MAX_OPEN_BYTES || !isJson(input)) {
      const reason = size > maxBytes
        ? `its JSON text has more than ${maxBytes} bytes`
        : "the inputs of open calls already take too much memory";
      const error = JSON.stringify({
        code: "serialization_error",
        message: `The input is too large: ${reason}`,
      });
      return this.#settle(run, number, false, error);
    }
    const callId = `${this.#callPrefix}-${++this.#callCount}`;
    this.#openCall(run, callId, number, size);
    if (isFileTarget(target)) run.fileCalls.add(callId);
    // Clean the stack of a turn first, because its frames have the turn's own file name.
    const { line } = run.program.locateStack(
      stack && run.request.turn ? run.program.cleanStack(stack) : stack,
    );
    this.#wire.send(toolCallLine(run.id, callId, target, input, line));
  }

  #openCall(run: Run, callId: string, number: number, size: number): void {
    run.openBytes += size;
    run.calls.add(callId);
    this.#calls.set(callId, { run, number, size, items: 0 });
  }

  #toolItem({ callId, item }: ToolItem): void {
    const call = this.#calls.get(callId);
    if (!call) return;
    call.items++;
    const { run: { vm }, number } = call, text = JSON.stringify(item ?? null);
    this.#enter(call.run, "item", () => [vm.number(number), vm.string(text)]);
  }

  #toolResult(message: ToolResult): void {
    const call = this.#calls.get(message.callId);
    if (!call) return;
    const { run, number, size } = call;
    this.#calls.delete(message.callId);
    run.calls.delete(message.callId);
    run.fileCalls.delete(message.callId);
    run.openBytes -= size;
    if (message.error) run.hostErrorCodes.add(message.error.code);
    this.#settle(
      run,
      number,
      message.ok,
      JSON.stringify(message.ok ? message.result ?? null : message.error),
    );
  }

  #digest(run: Run, number: number, algorithm: string, bytes: Uint8Array<ArrayBuffer>): void {
    run.digests++;
    crypto.subtle.digest(algorithm, bytes).finally(() => run.digests--).then((digest) => {
      if (!run.over) this.#settle(run, number, true, JSON.stringify(new Uint8Array(digest).toHex()));
    }, ({ message }) => {
      const error = JSON.stringify({ code: "runtime_error", message });
      if (!run.over) this.#settle(run, number, false, error);
    });
  }

  #settle(run: Run, number: number, ok: boolean, text: string): void {
    const { vm } = run;
    this.#enter(run, "settle", () => [vm.number(number), vm.number(ok ? 1 : 0), vm.string(text)]);
  }

  #startTimer(run: Run, id: number, delay: number, repeat: boolean): void {
    if (run.over || run.returned) return;
    if (!this.#hasTimers) {
      // Load Node's timers here and renew the slice, so that loading them does not count as the guest's time.
      this.#hasTimers = true;
      clearTimeout(setTimeout(() => {}, 0));
      run.vm.renewSlice();
    }
    this.#schedule(run, id, delay, repeat ? delay : 0);
  }

  #schedule(run: Run, id: number, delay: number, interval: number): void {
    const onTime = () => {
      if (interval > 0) this.#schedule(run, id, interval, interval);
      else run.timers.delete(id);
      // Drop ticks of a guest that is slower than its interval.
      if (interval === 0 || run.queue.length < 1024) this.#enter(run, "fire", () => [run.vm.number(id)]);
    };
    run.timers.set(id, { handle: setTimeout(onTime, delay), dueAt: performance.now() + delay, interval });
  }

  #stopTimer(run: Run, id: number): void {
    clearTimeout(run.timers.get(id)?.handle);
    run.timers.delete(id);
  }
}

function elapsed(since: number): number {
  return Math.round((performance.now() - since) * 1000) / 1000;
}
