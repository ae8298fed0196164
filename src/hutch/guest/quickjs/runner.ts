/** The quickjs runner: many executions in one process, each in a VM of its own. */

import { after } from "../clock.ts";
import { Logs } from "../logs.ts";
import { prepareTransform, prepareWrapper } from "../forms.ts";
import { FILE, GuestSyntaxError, type Program } from "../program.ts";
import { prepare, prepareForDeno } from "../source.ts";
import {
  doneLine,
  type Execute,
  type Failure,
  type HostMessage,
  isJson,
  lendable,
  type Outcome,
  startedLine,
  targets,
  toolCallLine,
  type ToolResult,
  whatHas,
  type Wire,
} from "../wire.ts";
import { type Bell } from "./bell.ts";
import { decodeText, encodingOf, urlParts } from "./platform.ts";
import { Broken, type HostFunctions, type Image, Vm } from "./vm.ts";

const DEFAULT_MAX_RESULT = 8 * 1024 * 1024;
/** Of each prelude the letters of the functions that it finds, and the names of those that it gives. */
export const PRELUDES = {
  plain: { functions: "cltkruedox", entries: ["run", "settle", "fire"] },
  web: { functions: "cltkruedoxh", entries: ["run", "settle", "fire", "job"] },
};
/** A VM that grew by more is dropped rather than reset, so that its memory goes back to the system. */
const KEEP_GROWN = 8 * 1024 * 1024;
const KEEP_FREE = 64;
/** Dropped memory waits for V8's collector; past this much it is asked to come. */
const COLLECT_AFTER = 128 * 1024 * 1024;
/** What a guest's own end can be; the codes of errors that the host delivered come on top. */
const GUEST_CODES = new Set(["runtime_error", "serialization_error", "result_too_large"]);
const MAX_MESSAGE = 8_000;
/** Bytes of input in the open calls of one execution. */
const MAX_OPEN_BYTES = 32 * 1024 * 1024;
const HAS_COMPILER = "the deno engine compiles namespaces and decorators";
const EXHAUSTED = /^(out of memory|string too long)$/;
/** An error as text. */
const NAMED = /^(\w*Error): ([^]*)$/;

type Timer = ReturnType<typeof setTimeout>;

/** What every execution starts from; `web` has what the wrappers of abilities need besides. */
export type Images = Record<keyof typeof PRELUDES, Image>;

/** How an execution ended. */
type End = Pick<Outcome, "ok" | "result" | "error">;

interface Call {
  run: Run;
  number: number;
  size: number;
}

class Run {
  readonly logs: Logs;
  readonly startedAt = performance.now();
  readonly deadline: number;
  readonly timers = new Map<number, Timer>();
  readonly queue: [entry: string, args: () => number[]][] = [];
  readonly calls = new Set<string>();
  /** Codes of the errors that the host sent: a guest may end with one of them. */
  readonly delivered = new Set<string>();
  targets?: string[];
  openBytes = 0;
  busy = false;
  over = false;
  cancelled = false;

  constructor(readonly id: string, readonly request: Execute, readonly program: Program, readonly vm: Vm) {
    const { maxLogLines, maxLogChars, timeoutMs } = request.options;
    this.logs = new Logs(maxLogLines, maxLogChars);
    this.deadline = this.startedAt + timeoutMs;
  }

  readonly overdue = (now: number): boolean => this.over || this.cancelled || now >= this.deadline;
}

export class Runner {
  readonly #wire: Wire;
  readonly #module: WebAssembly.Module;
  readonly #images: Images;
  readonly #bell: Bell;
  readonly #functions: HostFunctions;
  readonly #runs = new Map<string, Run>();
  readonly #byVm = new Map<Vm, Run>();
  readonly #calls = new Map<string, Call>();
  readonly #free: Vm[] = [];
  #callCount = 0;
  #alarmAt = Infinity;
  #hasTimers = false;
  #dropped = 0;

  constructor(wire: Wire, module: WebAssembly.Module, images: Images, bell: Bell) {
    this.#wire = wire;
    this.#bell = bell;
    this.#module = module;
    this.#images = images;
    const run = (vm: Vm) => this.#byVm.get(vm)!;
    this.#functions = {
      c: (vm, [number, tool, input]) => {
        this.#toolCall(run(vm), vm.toNumber(number), vm.toNumber(tool), vm.toText(input));
        return vm.undefined();
      },
      l: (vm, [line]) => vm.number(run(vm).logs.add(vm.toText(line)) ? 1 : 0),
      t: (vm, [id, delay, repeat]) => {
        this.#arm(run(vm), vm.toNumber(id), vm.toNumber(delay), vm.toNumber(repeat) === 1);
        return vm.undefined();
      },
      k: (vm, [id]) => {
        this.#disarm(run(vm), vm.toNumber(id));
        return vm.undefined();
      },
      r: (vm, [length]) => vm.arrayBuffer(crypto.getRandomValues(new Uint8Array(vm.toNumber(length)))),
      u: (vm, [operation, href, argument]) =>
        vm.string(urlParts(vm.toText(operation), vm.toText(href), vm.toText(argument))),
      e: (vm, [text]) => vm.arrayBuffer(new TextEncoder().encode(vm.toText(text))),
      d: (vm, [bytes, label, mode]) => {
        const how = vm.toNumber(mode), name = vm.toText(label);
        return vm.string(how < 0 ? encodingOf(name) : decodeText(vm.toBytes(bytes), name, how));
      },
      o: (vm, args) => {
        // A built-in that takes long asks for no time.
        if (run(vm).overdue(performance.now())) this.#timeOut(run(vm));
        else this.#succeed(run(vm), args.length && !vm.isUndefined(args[0]) ? vm.toText(args[0]) : undefined);
        return vm.undefined();
      },
      x: (vm, [failure]) => {
        if (run(vm).overdue(performance.now())) this.#timeOut(run(vm));
        else this.#report(run(vm), JSON.parse(vm.toText(failure)));
        return vm.undefined();
      },
      h: (vm, [call, algorithm, bytes]) => {
        this.#digest(run(vm), vm.toNumber(call), vm.toText(algorithm), vm.toBytes(bytes).slice());
        return vm.undefined();
      },
    };
    this.#free.push(this.#make(images.plain));
  }

  #make(image: Image): Vm {
    const vm = new Vm(this.#module, image, this.#functions);
    vm.reset();
    return vm;
  }

  /** A VM that starts from `image`; one that is free and started from the other has to be reset once more. */
  #take(image: Image): Vm {
    if (this.#free.length === 0) return this.#make(image);
    const at = this.#free.findLastIndex((vm) => vm.image === image);
    if (at >= 0) return this.#free.splice(at, 1)[0];
    const vm = this.#free.pop()!;
    vm.reset(image);
    return vm;
  }

  receive(message: HostMessage): void {
    if (message.type === "execute") this.#execute(message);
    else if (message.type === "tool_result") this.#toolResult(message);
    else if (message.type === "cancel") this.#cancel(message.id);
  }

  #execute(request: Execute): void {
    const { id } = request;
    const at = performance.now();
    this.#wire.send(startedLine(id));
    // Now: of a guest that blocks us all, the host must know that it is the one.
    this.#wire.flush();
    try {
      const program = programOf(request);
      if (request.job?.form === "prepare") this.#answer(id, prepared(request, program), at);
      else this.#start(request, program);
    } catch (error) {
      const { message } = error as Error;
      const failure = error instanceof GuestSyntaxError
        ? { code: "runtime_error", message: error.hinted(HAS_COMPILER), name: "SyntaxError", ...error.at }
        : { code: "internal_error", message: `The runner could not begin: ${message}` };
      this.#answer(id, { ok: false, error: failure }, at);
    }
  }

  #start(request: Execute, program: Program): void {
    const { id, options, providers, job } = request;
    const run = new Run(id, request, program, this.#take(job ? this.#images.web : this.#images.plain));
    const { vm } = run;
    this.#runs.set(id, run);
    this.#byVm.set(vm, run);
    vm.limit(options.memoryLimitBytes);
    this.#setAlarm(run.deadline);
    const lent = JSON.stringify(lendable(providers));
    this.#enter(run, job ? "job" : "run", () => {
      const fn = vm.evaluate(program.code, FILE);
      if (vm.isException(fn)) throw refusal(vm, vm.exception());
      const tools = vm.string(lent), most = vm.number(options.maxResultBytes ?? DEFAULT_MAX_RESULT);
      return job ? [vm.string(job.form), fn, tools, vm.string(job.input), most] : [fn, tools, most];
    });
  }

  /** For what never was in a VM. */
  #answer(id: string, end: End, at: number): void {
    this.#wire.send(doneLine(id, { ...end, logs: [], logsTruncated: false, durationMs: elapsed(at) }));
  }

  /** A VM is entered once at a time: while its stack is suspended, what comes waits in its queue. */
  #enter(run: Run, entry: string, args: () => number[]): void {
    run.queue.push([entry, args]);
    if (!run.busy) this.#pump(run);
  }

  async #pump(run: Run): Promise<void> {
    run.busy = true;
    let sound = true;
    try {
      while (run.queue.length > 0 && !run.over) {
        const [entry, args] = run.queue.shift()!;
        if (!await run.vm.call(run.vm.image.entry[entry], args(), run.overdue)) this.#stopped(run);
      }
      // QuickJS can be too exhausted even to say so.
      if (!run.over && run.vm.faults > 0 && run.calls.size + run.timers.size === 0) this.#exhausted(run);
    } catch (error) {
      sound = false;
      this.#broke(run, error as Error);
    }
    run.busy = false;
    if (run.over) this.#release(run, sound);
    else if (run.calls.size > 0 && this.#runs.size === 1) this.#bell.watch(this.#wire.heard);
  }

  /** QuickJS ended with an exception that guest code could not catch. */
  #stopped(run: Run): void {
    if (run.over) return;
    if (run.overdue(performance.now())) this.#timeOut(run);
    else if (run.vm.faults > 0) this.#exhausted(run);
    else this.#fail(run, { code: "runtime_error", message: "QuickJS stopped the execution" });
  }

  #broke(run: Run, error: Error): void {
    if (run.vm.faults > 0) return this.#exhausted(run);
    if (error instanceof RangeError) {
      return this.#fail(run, { code: "runtime_error", message: error.message, name: "RangeError" });
    }
    if (error instanceof Broken) {
      if (EXHAUSTED.test(error.message)) return this.#exhausted(run);
      const [, name, message = error.message] = NAMED.exec(error.message) ?? [];
      return this.#fail(run, { code: "runtime_error", message, name, stack: error.stack });
    }
    this.#fail(run, { code: "internal_error", message: `QuickJS broke off: ${error.message}` });
  }

  #succeed(run: Run, result: string | undefined): void {
    const most = run.request.options.maxResultBytes ?? DEFAULT_MAX_RESULT;
    if (result === undefined) this.#finish(run, true);
    else if (!isJson(result)) {
      this.#fail(run, {
        code: "serialization_error",
        message: "The result is not JSON, or nests too deeply",
      });
    } else if (byteLength(result, most) > most) {
      const message = `The result is too large: its JSON text has more than ${most} bytes`;
      this.#fail(run, { code: "result_too_large", message });
    } else this.#finish(run, true, result);
  }

  /** What the guest's side says of its own end: only what it can know of is believed. */
  #report(run: Run, fault: Record<string, unknown> | null): void {
    const text = (value: unknown, most: number) => typeof value === "string" ? value.slice(0, most) : "";
    const said = text(fault?.code, 100);
    const code = GUEST_CODES.has(said) || run.delivered.has(said) ? said : "runtime_error";
    const name = text(fault?.name, 100), message = hinted(name, text(fault?.message, MAX_MESSAGE));
    this.#fail(run, { code, message, ...(name ? { name } : {}), stack: text(fault?.stack, MAX_MESSAGE) });
  }

  #fail(run: Run, fault: Failure & { stack?: string }): void {
    const { code, message, name, stack } = fault;
    const engineSaid = name === "InternalError" ? EXHAUSTED.test(message) : message === "null";
    if (engineSaid && run.vm.faults > 0) return this.#exhausted(run);
    const at = run.program.lineOf(stack);
    const named = message === "not a function" ? unknownTool(run.request, at.line) ?? message : message;
    this.#finish(run, false, undefined, { code, message: named, ...(name ? { name } : {}), ...at });
  }

  #exhausted(run: Run): void {
    const mebibytes = Math.round(run.request.options.memoryLimitBytes / 2 ** 20 * 10) / 10;
    const message = `Execution exceeded its memory limit of ${mebibytes} MiB`;
    this.#finish(run, false, undefined, { code: "memory_limit", message });
  }

  #timeOut(run: Run): void {
    this.#finish(run, false, undefined, { code: "timeout", message: "Execution timed out" });
  }

  #finish(run: Run, ok: boolean, result?: string, error?: Failure): void {
    if (run.over) return;
    run.over = true;
    for (const timer of run.timers.values()) clearTimeout(timer);
    for (const call of run.calls) this.#calls.delete(call);
    const { lines: logs, truncated: logsTruncated } = run.logs;
    const durationMs = elapsed(run.startedAt);
    this.#wire.send(doneLine(run.id, { ok, result, error, logs, logsTruncated, durationMs }));
    this.#runs.delete(run.id);
    if (!run.busy) this.#release(run, true);
  }

  #release(run: Run, sound: boolean): void {
    const { vm } = run;
    if (!this.#byVm.delete(vm)) return;
    const { grown } = vm;
    if (sound && grown <= KEEP_GROWN && this.#free.length < KEEP_FREE) {
      vm.reset();
      this.#free.push(vm);
      return;
    }
    this.#dropped += vm.image.heap.length + grown;
    if (this.#dropped > COLLECT_AFTER) {
      this.#dropped = 0;
      (globalThis as { gc?: () => void }).gc?.();
    }
  }

  /** One alarm for all deadlines: most executions end long before theirs, and timers cost. */
  #setAlarm(deadline: number): void {
    if (deadline >= this.#alarmAt) return;
    this.#alarmAt = deadline;
    // An earlier one that was set for later cannot be taken back.
    after(Math.ceil(Math.max(0, deadline - performance.now())), () => {
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

  /** The time is over, or the host asked. A suspended guest learns it at its next interrupt. */
  #stop(run: Run): void {
    run.cancelled = true;
    this.#timeOut(run);
  }

  #cancel(id: string): void {
    const run = this.#runs.get(id);
    if (run) return this.#stop(run);
    // Over already, but the host has not understood it: it must not take us for dead.
    const error = { code: "timeout", message: "Execution timed out" };
    this.#answer(id, { ok: false, error }, performance.now());
  }

  #toolCall(run: Run, number: number, tool: number, input: string): void {
    run.targets ??= targets(run.request.providers);
    const target = run.targets[tool];
    if (run.over || target === undefined) return;
    const most = run.request.options.maxResultBytes ?? DEFAULT_MAX_RESULT, size = byteLength(input, most);
    if (size > most || run.openBytes + size > MAX_OPEN_BYTES || !isJson(input)) {
      const what = size > most
        ? `its JSON text has more than ${most} bytes`
        : "too much is on its way already";
      const error = JSON.stringify({
        code: "serialization_error",
        message: `The input is too large: ${what}`,
      });
      return this.#settle(run, number, false, error);
    }
    run.openBytes += size;
    const callId = `c${++this.#callCount}`;
    run.calls.add(callId);
    this.#calls.set(callId, { run, number, size });
    this.#wire.send(toolCallLine(run.id, callId, target, input));
  }

  #toolResult(message: ToolResult): void {
    const call = this.#calls.get(message.callId);
    if (!call) return;
    const { run, number, size } = call;
    this.#calls.delete(message.callId);
    run.calls.delete(message.callId);
    run.openBytes -= size;
    if (message.error) run.delivered.add(message.error.code);
    this.#settle(
      run,
      number,
      message.ok,
      JSON.stringify(message.ok ? message.result ?? null : message.error),
    );
  }

  #digest(run: Run, number: number, algorithm: string, bytes: Uint8Array<ArrayBuffer>): void {
    crypto.subtle.digest(algorithm, bytes).then((digest) => {
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

  #arm(run: Run, id: number, delay: number, repeat: boolean): void {
    if (run.over) return;
    if (!this.#hasTimers) {
      // The first one loads Node's timers: that shall not be the guest's time, between this timer and the next.
      this.#hasTimers = true;
      clearTimeout(setTimeout(() => {}, 0));
      run.vm.renewSlice();
    }
    const due = () => {
      if (!repeat) run.timers.delete(id);
      // A guest that is slower than its interval gets no backlog of ticks.
      if (!repeat || run.queue.length < 1024) this.#enter(run, "fire", () => [run.vm.number(id)]);
    };
    run.timers.set(id, repeat ? setInterval(due, delay) : setTimeout(due, delay));
  }

  #disarm(run: Run, id: number): void {
    clearTimeout(run.timers.get(id));
    run.timers.delete(id);
  }
}

function programOf({ code, job }: Execute): Program {
  if (job?.form === "prepare") return prepareForDeno(code);
  if (job?.form === "wrapper") return prepareWrapper(code);
  return job?.form === "transform" ? prepareTransform(code) : prepare(code);
}

function prepared({ options }: Execute, program: Program): End {
  const result = JSON.stringify(program.data()), most = options.maxResultBytes ?? DEFAULT_MAX_RESULT;
  if (byteLength(result, most) <= most) return { ok: true, result };
  const message = `The program is too large: its JSON text has more than ${most} bytes`;
  return { ok: false, error: { code: "result_too_large", message } };
}

/** QuickJS says what it cannot do, and not who can. */
function hinted(name: string, message: string): string {
  if (name !== "ReferenceError" || !message.startsWith("could not load module ")) return message;
  return `${message}: this engine has no modules; the deno engine has those of node:`;
}

/** QuickJS does not say what is no function. Where the line calls a tool that is not there, that is what. */
function unknownTool({ code, providers }: Execute, line = 0): string | undefined {
  const text = code.split("\n", line)[line - 1] ?? "";
  for (const { name, tools } of providers) {
    const calls = text.matchAll(
      new RegExp(`(?<![\\w$.])${name.replaceAll("$", "\\$")}\\.([\\w$]+)\\s*\\(`, "g"),
    );
    for (const [, tool] of calls) {
      if (Object.hasOwn(tools, tool)) continue;
      return `${name}.${tool} is not a function; ${whatHas(name, Object.keys(tools))}`;
    }
  }
}

/** What QuickJS says against source that acorn has taken; no guest code has run yet. */
function refusal(vm: Vm, error: number): Broken {
  return Object.assign(new Broken(vm.toText(error)), { stack: vm.toText(vm.property(error, "stack")) });
}

/** The bytes of a text in UTF-8; exact only where it can matter. */
function byteLength(text: string, most: number): number {
  return 3 * text.length <= most ? text.length : new TextEncoder().encode(text).length;
}

function elapsed(since: number): number {
  return Math.round((performance.now() - since) * 1000) / 1000;
}
