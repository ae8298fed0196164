/**
 * A QuickJS VM in WebAssembly that is created from a memory image, reset to it in place, and preemptible.
 *
 * Uses quickjs-wasi's raw exports. A *box* is the address of a JSValue in the VM's memory. Guest code runs
 * through JSPI (`WebAssembly.promising`): at the end of its time slice, the interrupt hook suspends the VM's
 * stack, and the process serves other executions before it resumes the guest.
 */

import { applyDifference, encodeDifference } from "./memory_difference.ts";

const PAGE = 65536;
/** Offset of the xorshift64* state in quickjs-wasi 3.6.2's JSContext; `checkRandom` checks it. */
const RANDOM_STATE = 280;
/**
 * Size of QuickJS's stack. It is enough for about 1,000 nested calls of plain functions. V8 stops deeper
 * native recursion, and that ends the run.
 */
const STACK_BYTES = 262_144;
const SLICE_MS = 5;
/**
 * Maximum number of times that QuickJS may run out of memory. A guest may catch such an error and continue,
 * but not forever. QuickJS also reports no error if it lacks memory for a job, so a guest that only creates
 * jobs would never stop.
 */
const MAX_FAULTS = 1_000;
/**
 * A C function that calls no other function may use this much of the stack without moving the stack pointer.
 */
const RED_ZONE_BYTES = 128;
/** Size of the area for a call's arguments; its last word receives lengths. */
export const SCRATCH_BYTES = 64;
/**
 * Maximum length of a text that is encoded directly into QuickJS's memory, in a buffer that is long enough
 * for any characters. For such short texts, creating a separate array would take longer than encoding.
 */
const MAX_SHORT_CHARS = 1_000;
/** Flag of `qjs_compile`: the bytecode does not contain the source. */
const STRIP_SOURCE = 1 << 4;

interface Exports {
  memory: WebAssembly.Memory;
  __stack_pointer: WebAssembly.Global;
  hutch_pages: WebAssembly.Global;
  hutch_max_pages: WebAssembly.Global;
  hutch_faults: WebAssembly.Global;
  hutch_lowest_stack: WebAssembly.Global;
  hutch_drive(fn: number, self: number, argc: number, argv: number): number;
  _initialize(): void;
  qjs_init(): number;
  qjs_set_interrupt_handler(on: number): void;
  qjs_set_max_stack_size(bytes: number): void;
  qjs_eval(code: number, length: number, file: number, flags: number): number;
  qjs_compile(code: number, length: number, file: number, flags: number, strip: number, out: number): number;
  qjs_eval_bytecode(bytes: number, length: number): number;
  qjs_call(fn: number, self: number, argc: number, argv: number): number;
  qjs_is_exception(box: number): number;
  qjs_get_exception(): number;
  qjs_get_global(): number;
  qjs_get_undefined(): number;
  qjs_get_prop_string(object: number, name: number): number;
  qjs_set_prop_string(object: number, name: number, value: number): number;
  qjs_new_host_function(name: number, length: number, flags: number): number;
  qjs_new_string(text: number, length: number): number;
  qjs_new_number(value: number): number;
  qjs_new_array_buffer(bytes: number, length: number): number;
  qjs_get_array_buffer(box: number, lengthOut: number): number;
  qjs_get_float64(box: number): number;
  qjs_get_string_len(box: number, lengthOut: number): number;
  qjs_free_cstring(text: number): void;
  qjs_free_value(box: number): void;
  qjs_is_undefined(box: number): number;
  qjs_is_string(box: number): number;
  qjs_is_proxy(box: number): number;
  qjs_get_context_ptr(): number;
  wasm_malloc(bytes: number): number;
  wasm_free(address: number): void;
}

/** Functions for the prelude, by letter. Arguments and results are boxes (addresses of JSValues). */
export type HostFunctions = Record<string, (vm: Vm, args: number[]) => number>;

/** Returns true if the guest's time is up. Called between slices and while the guest runs. */
type DeadlineCheck = (now: number) => boolean;

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const never: DeadlineCheck = () => false;
// deno-lint-ignore no-explicit-any
const { Suspending, promising } = WebAssembly as any;

/** Functions that continue the VMs whose slice is over, in the order in which they are called. */
const suspended: ((value: number) => void)[] = [];
let isTurnScheduled = false;

/**
 * Waits until the event loop has read messages and all VMs that were suspended earlier had a slice.
 *
 * Deno polls its sockets only when nothing else is due. So each turn of the event loop runs one slice, and
 * the timer for the next turn starts when that slice is over. If each VM had its own timer, several busy
 * guests would keep the runner from reading messages for a second.
 */
function nextTurn(onSuspend: (resume: (value: number) => void) => void): Promise<number> {
  return new Promise((resolve) => {
    suspended.push(resolve);
    onSuspend(resolve);
    scheduleTurn();
  });
}

function scheduleTurn(): void {
  if (isTurnScheduled || suspended.length === 0) return;
  isTurnScheduled = true;
  setTimeout(takeTurn, 0);
}

function takeTurn(): void {
  isTurnScheduled = false;
  suspended.shift()?.(0);
  // Schedule the next turn here, because the resumed VM may end without being suspended again. The VM runs
  // after this function has returned.
  setTimeout(scheduleTurn, 0);
}

/** A trap or lack of memory after which a VM cannot be used any more. */
export class VmError extends Error {}

export class Vm {
  readonly #exports: Exports;
  #image: Image;
  readonly #drive: (fn: number, self: number, argc: number, argv: number) => Promise<number>;
  #isOverdue: DeadlineCheck = never;
  #sliceEnd = 0;
  /**
   * True after the guest was stopped. Built-ins with callbacks can turn the interruption into an error that
   * the guest catches, so code outside of the guest checks this field.
   */
  #stopped = false;
  /** Continues the guest if it is suspended. */
  #resume: (value: number) => void = () => {};

  constructor(module: WebAssembly.Module, image: Image, functions: HostFunctions) {
    this.#image = image;
    const names = Object.fromEntries(Object.entries(functions).map(([name, fn]) => [name.charCodeAt(0), fn]));
    const instance = new WebAssembly.Instance(module, {
      env: {
        host_interrupt: new Suspending(() => this.#interrupt()),
        host_call: (name: number, _length: number, _self: number, argc: number, argv: number) => {
          if (this.#stopped) return this.undefined();
          const { buffer } = this.#exports.memory, view = new DataView(buffer), args: number[] = [];
          for (let i = 0; i < argc; i++) args.push(view.getUint32(argv + 4 * i, true));
          return names[view.getUint8(name)](this, args);
        },
        host_get_timezone_offset: () => 0,
        host_promise_rejection: () => {},
        host_module_normalize: () => 0,
        host_module_load: () => 0,
      },
      wasi_snapshot_preview1: {
        clock_time_get: (_clock: number, _precision: bigint, out: number) => {
          const nanoseconds = BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e3)) * 1000n;
          new DataView(this.#exports.memory.buffer).setBigUint64(out, nanoseconds, true);
          return 0;
        },
        random_get: (out: number, length: number) => {
          crypto.getRandomValues(new Uint8Array(this.#exports.memory.buffer, out, length));
          return 0;
        },
        fd_close: () => 52,
        fd_fdstat_get: () => 8,
        fd_seek: () => 52,
        fd_write: () => 52,
      },
    });
    this.#exports = instance.exports as unknown as Exports;
    this.#drive = promising(this.#exports.hutch_drive);
  }

  /** Starts QuickJS. Only needed to build an image; every other VM is a copy of one. */
  boot(): void {
    const e = this.#exports;
    e.hutch_pages.value = e.memory.buffer.byteLength / PAGE;
    e.hutch_max_pages.value = 65536;
    e._initialize();
    if (e.qjs_init() !== 0) throw new Error("QuickJS does not start");
    e.qjs_set_max_stack_size(STACK_BYTES);
  }

  /** Returns a copy of the VM's memory. */
  capture(): Uint8Array {
    return new Uint8Array(this.#exports.memory.buffer).slice();
  }

  get stackPointer(): number {
    return this.#exports.__stack_pointer.value;
  }

  get contextAddress(): number {
    return this.#exports.qjs_get_context_ptr();
  }

  /** Bytes that the execution allocated beyond the image. */
  get grown(): number {
    return (this.#exports.hutch_pages.value as number) * PAGE - this.#end;
  }

  /** End of the image's memory. */
  get #end(): number {
    return this.#image.stackPointer + this.#image.heap.length;
  }

  /** Number of times that QuickJS ran out of memory since the reset. */
  get faults(): number {
    return this.#exports.hutch_faults.value;
  }

  get image(): Image {
    return this.#image;
  }

  /** Restores an image and reseeds Math.random. */
  reset(image = this.#image): void {
    this.#image = image;
    const e = this.#exports, { heap, stackPointer } = image;
    const used = (e.hutch_pages.value as number) * PAGE, end = this.#end;
    if (e.memory.buffer.byteLength < end) e.memory.grow((end - e.memory.buffer.byteLength) / PAGE);
    const bytes = new Uint8Array(e.memory.buffer);
    const lowest = (e.hutch_lowest_stack.value as number) - RED_ZONE_BYTES;
    if (lowest < stackPointer) bytes.fill(0, Math.max(0, lowest), stackPointer);
    bytes.set(heap, stackPointer);
    if (used > end) bytes.fill(0, end, used);
    e.hutch_pages.value = end / PAGE;
    e.hutch_faults.value = 0;
    e.__stack_pointer.value = e.hutch_lowest_stack.value = stackPointer;
    this.#reseed();
  }

  #reseed(): void {
    const seed = new Uint8Array(this.#exports.memory.buffer, this.#image.context + RANDOM_STATE, 8);
    crypto.getRandomValues(seed);
    seed[0] |= 1;
  }

  /**
   * Returns the difference to the image, or only its size if that exceeds `maxBytes`. No guest code may be
   * running, because its stack is not included.
   */
  save(maxBytes: number): SavedMemory | number {
    const e = this.#exports, { heap, stackPointer } = this.#image;
    const pages = e.hutch_pages.value as number;
    const memory = new Uint32Array(e.memory.buffer, stackPointer, (pages * PAGE - stackPointer) / 4);
    const base = new Uint32Array(heap.buffer, heap.byteOffset, heap.length / 4);
    const words = encodeDifference(memory, base, maxBytes);
    return typeof words === "number" ? words : { pages, faults: this.faults, words };
  }

  /**
   * Restores the image and applies the difference. Call `limit` first. Throws VmError if the saved memory is
   * invalid or exceeds the limit.
   */
  restore({ pages, faults, words }: SavedMemory): void {
    const e = this.#exports, { stackPointer } = this.#image;
    if (!(pages * PAGE >= this.#end && pages <= e.hutch_max_pages.value)) {
      throw new VmError("the saved memory exceeds the memory limit");
    }
    this.reset();
    if (e.memory.buffer.byteLength < pages * PAGE) {
      e.memory.grow(pages - e.memory.buffer.byteLength / PAGE);
    }
    e.hutch_pages.value = pages;
    e.hutch_faults.value = faults;
    const memory = new Uint32Array(e.memory.buffer, stackPointer, (pages * PAGE - stackPointer) / 4);
    if (!applyDifference(memory, words)) throw new VmError("the saved memory is invalid");
    // Set a new seed. Otherwise two copies of one execution would draw the same random numbers.
    this.#reseed();
  }

  limit(memoryBytes: number): void {
    const pages = (this.#end + memoryBytes) / PAGE;
    this.#exports.hutch_max_pages.value = Math.min(65536, Math.ceil(pages));
  }

  // --- values ---

  #write(text: string): [number, number] {
    const e = this.#exports;
    const bytes = text.length <= MAX_SHORT_CHARS ? undefined : encoder.encode(text);
    const address = e.wasm_malloc((bytes?.length ?? 3 * text.length) + 1);
    if (address === 0) throw new VmError("out of memory");
    const memory = new Uint8Array(e.memory.buffer);
    let { length } = bytes ?? text;
    if (bytes) memory.set(bytes, address);
    else length = encoder.encodeInto(text, memory.subarray(address, address + 3 * length)).written;
    memory[address + length] = 0;
    return [address, length];
  }

  string(text: string): number {
    const [address, length] = this.#write(text);
    const box = this.#exports.qjs_new_string(address, length);
    this.#exports.wasm_free(address);
    return box;
  }

  number(value: number): number {
    return this.#exports.qjs_new_number(value);
  }

  undefined(): number {
    return this.#exports.qjs_get_undefined();
  }

  arrayBuffer(bytes: Uint8Array): number {
    const e = this.#exports;
    const address = e.wasm_malloc(bytes.length || 1);
    if (address === 0) throw new VmError("out of memory");
    new Uint8Array(e.memory.buffer).set(bytes, address);
    const box = e.qjs_new_array_buffer(address, bytes.length);
    e.wasm_free(address);
    return box;
  }

  isUndefined(box: number): boolean {
    return this.#exports.qjs_is_undefined(box) !== 0;
  }

  isProxy(box: number): boolean {
    return this.#exports.qjs_is_proxy(box) !== 0;
  }

  toNumber(box: number): number {
    return this.#exports.qjs_get_float64(box);
  }

  toText(box: number): string {
    const [address, length] = this.#readWithLength((out) => this.#exports.qjs_get_string_len(box, out));
    if (address === 0) throw new VmError("out of memory");
    const text = decoder.decode(new Uint8Array(this.#exports.memory.buffer, address, length));
    this.#exports.qjs_free_cstring(address);
    return text;
  }

  /** Returns the number of bytes of a string in UTF-8. */
  byteLength(box: number): number {
    const [address, length] = this.#readWithLength((out) => this.#exports.qjs_get_string_len(box, out));
    if (address === 0) throw new VmError("out of memory");
    this.#exports.qjs_free_cstring(address);
    return length;
  }

  /** Returns a view of an ArrayBuffer's bytes, which the next call into the VM may invalidate. */
  toBytes(box: number): Uint8Array<ArrayBuffer> {
    const [address, length] = this.#readWithLength((out) => this.#exports.qjs_get_array_buffer(box, out));
    return new Uint8Array(this.#exports.memory.buffer as ArrayBuffer, address, length);
  }

  #readWithLength(read: (lengthOut: number) => number): [number, number] {
    const out = this.#image.scratch + SCRATCH_BYTES - 4;
    const address = read(out);
    return [address, new DataView(this.#exports.memory.buffer).getUint32(out, true)];
  }

  allocate(bytes: number): number {
    return this.#exports.wasm_malloc(bytes);
  }

  property(box: number, name: string): number {
    const [address] = this.#write(name);
    const value = this.#exports.qjs_get_prop_string(box, address);
    this.#exports.wasm_free(address);
    return value;
  }

  defineHostFunctions(names: string): void {
    const e = this.#exports, global = e.qjs_get_global();
    for (const name of names) {
      const [address, length] = this.#write(name);
      const [key] = this.#write(`__hutch_${name}`);
      e.qjs_set_prop_string(global, key, e.qjs_new_host_function(address, length, 0));
    }
  }

  // --- running ---

  /** Evaluates without preemption. Only for the prelude, and for source that just evaluates to a function. */
  evaluate(code: string, file: string): number {
    const [source, length] = this.#write(code);
    const [name] = this.#write(file);
    const box = this.#exports.qjs_eval(source, length, name, 0);
    this.#exports.wasm_free(source);
    this.#exports.wasm_free(name);
    return box;
  }

  /** Compiles a script to bytecode that does not contain the source. Only needed to build an image. */
  compile(code: string, file: string): Uint8Array {
    const [source, length] = this.#write(code), [name] = this.#write(file), out = this.allocate(4);
    const address = this.#exports.qjs_compile(source, length, name, 0, STRIP_SOURCE, out);
    if (address === 0) throw new Error(`${file} has a syntax error`);
    const { buffer } = this.#exports.memory;
    return new Uint8Array(buffer, address, new DataView(buffer).getUint32(out, true)).slice();
  }

  evaluateBytecode(bytes: Uint8Array): number {
    const address = this.allocate(bytes.length);
    new Uint8Array(this.#exports.memory.buffer).set(bytes, address);
    const box = this.#exports.qjs_eval_bytecode(address, bytes.length);
    this.#exports.wasm_free(address);
    return box;
  }

  isException(box: number): boolean {
    return this.#exports.qjs_is_exception(box) !== 0;
  }

  exception(): number {
    return this.#exports.qjs_get_exception();
  }

  /**
   * Calls a guest function and runs all jobs that follow, checking `isOverdue` meanwhile.
   * Returns false if the guest was stopped. Only one call at a time is allowed.
   */
  async call(fn: number, args: number[], isOverdue: DeadlineCheck): Promise<boolean> {
    const e = this.#exports, { scratch, undefinedBox } = this.#image;
    const view = new DataView(e.memory.buffer);
    for (let i = 0; i < args.length; i++) view.setUint32(scratch + 4 * i, args[i], true);
    this.#isOverdue = isOverdue;
    this.#stopped = false;
    this.renewSlice();
    e.qjs_set_interrupt_handler(1);
    try {
      if (await this.#drive(fn, undefinedBox, args.length, scratch) !== 0 || this.#stopped) return false;
      for (const box of args) e.qjs_free_value(box);
      return true;
    } finally {
      // Switch the interrupt hook off outside of `call`, because V8 allows a suspending import only under a
      // promising call.
      e.qjs_set_interrupt_handler(0);
    }
  }

  /** Starts a new time slice. */
  renewSlice(): void {
    this.#sliceEnd = performance.now() + SLICE_MS;
  }

  #interrupt(): number | Promise<number> {
    const now = performance.now();
    if (this.#stopped || this.faults > MAX_FAULTS || this.#isOverdue(now)) return this.#stop();
    if (now < this.#sliceEnd) return 0;
    return nextTurn((resume) => this.#resume = resume).then(() => {
      this.renewSlice();
      return this.#isOverdue(performance.now()) ? this.#stop() : 0;
    });
  }

  /** Continues a suspended guest now instead of at its turn, so that it notices that its time is up. */
  wake(): void {
    const index = suspended.indexOf(this.#resume);
    if (index >= 0) suspended.splice(index, 1)[0](0);
  }

  /** Returns the stack of the exception that ended a call, or an empty text. Runs no code of the guest. */
  stackOfException(): string {
    const e = this.#exports, stack = e.qjs_call(this.#image.entry.stack, this.exception(), 0, 0);
    return e.qjs_is_string(stack) ? this.toText(stack) : "";
  }

  #stop(): number {
    this.#stopped = true;
    return 1;
  }
}

/** Memory of a VM that waits, as its difference to the image. */
export interface SavedMemory {
  pages: number;
  /** Number of times that QuickJS ran out of memory. */
  faults: number;
  words: Uint32Array;
}

/** Memory of a VM after the prelude has run, from which every execution starts. Created at build time. */
export interface Image {
  /** Memory from the stack pointer on; below it there is no live stack frame. */
  heap: Uint8Array;
  stackPointer: number;
  context: number;
  undefinedBox: number;
  scratch: number;
  /** Boxes of the prelude's functions by name. */
  entry: Record<string, number>;
}
