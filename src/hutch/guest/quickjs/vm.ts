/**
 * One QuickJS in WebAssembly: made from a memory image, reset in place to it, preemptible.
 *
 * Works on quickjs-wasi's raw exports. A *box* is the address of a JSValue in the VM's memory.
 * Guest code runs through JSPI (`WebAssembly.promising`): when its slice is over, the interrupt hook
 * suspends the VM's stack, the process serves its other executions, and the guest goes on afterwards.
 */

const PAGE = 65536;
/** Offset of the xorshift64* state in quickjs-wasi 3.6.2's JSContext; `checkRandom` checks it. */
const RANDOM_STATE = 280;
/** About 1,000 plain calls deep. V8 stops deeper native recursion itself; that ends the run. */
const STACK_BYTES = 262_144;
const SLICE_MS = 5;
/**
 * A guest may catch that its memory is exhausted and go on, but not for ever; and where QuickJS has no memory for
 * a job, it says so to nobody, so that a guest that only makes jobs never learns it.
 */
const MAX_FAULTS = 1_000;
/** Most executions use no more of the C stack than this, and deeper than that nothing was ever written. */
const SHALLOW_BYTES = 65_536;
/** Whoever went deeper has left something in the bytes right below: no C function has as many that it leaves out. */
const BAND_BYTES = 16_384;
/** Room for a call's arguments, and at its end for a length that comes back. */
const SCRATCH_BYTES = 64;

interface Exports {
  memory: WebAssembly.Memory;
  __stack_pointer: WebAssembly.Global;
  hutch_pages: WebAssembly.Global;
  hutch_max_pages: WebAssembly.Global;
  hutch_faults: WebAssembly.Global;
  hutch_drive(fn: number, self: number, argc: number, argv: number): number;
  _initialize(): void;
  qjs_init(): number;
  qjs_set_interrupt_handler(on: number): void;
  qjs_set_max_stack_size(bytes: number): void;
  qjs_eval(code: number, length: number, file: number, flags: number): number;
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
  qjs_get_context_ptr(): number;
  wasm_malloc(bytes: number): number;
  wasm_free(address: number): void;
}

/** What the prelude may ask of the runner, one letter each; arguments and answer are boxes. */
export type HostFunctions = Record<string, (vm: Vm, args: number[]) => number>;

/** Answers whether the guest's time is over; asked between slices and while it runs. */
export type Overdue = (now: number) => boolean;

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const never: Overdue = () => false;
// deno-lint-ignore no-explicit-any
const { Suspending, promising } = WebAssembly as any;

/** A timer, because immediates that follow each other keep Deno from looking at its sockets. */
function nextTurn(): Promise<number> {
  return new Promise((resolve) => setTimeout(() => resolve(0), 0));
}

function isZero(words: Uint32Array): boolean {
  for (let i = 0; i < words.length; i++) if (words[i] !== 0) return false;
  return true;
}

/** The trap or exhaustion that left a VM's own code in the middle of something. */
export class Broken extends Error {}

export class Vm {
  readonly #exports: Exports;
  #image: Image;
  readonly #drive: (fn: number, self: number, argc: number, argv: number) => Promise<number>;
  #overdue: Overdue = never;
  #sliceEnd = 0;
  /** Its time is over. Built-ins that call the guest back can turn that into an error which it may catch. */
  #stopped = false;

  constructor(module: WebAssembly.Module, image: Image, functions: HostFunctions) {
    this.#image = image;
    const names = Object.fromEntries(Object.entries(functions).map(([name, fn]) => [name.charCodeAt(0), fn]));
    const instance = new WebAssembly.Instance(module, {
      env: {
        host_interrupt: new Suspending(() => this.#interrupt()),
        host_call: (name: number, _length: number, _self: number, argc: number, argv: number) => {
          if (this.#stopped) return this.undefined();
          const view = new DataView(this.#exports.memory.buffer);
          const args = Array.from({ length: argc }, (_, i) => view.getUint32(argv + 4 * i, true));
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

  /** Starts QuickJS itself: only for the image, every other VM is a copy of it. */
  boot(): void {
    const e = this.#exports;
    e.hutch_pages.value = e.memory.buffer.byteLength / PAGE;
    e.hutch_max_pages.value = 65536;
    e._initialize();
    if (e.qjs_init() !== 0) throw new Error("QuickJS does not start");
    e.qjs_set_max_stack_size(STACK_BYTES);
  }

  /** A copy of everything the VM is. */
  capture(): Uint8Array {
    const e = this.#exports;
    return new Uint8Array(e.memory.buffer, 0, (e.hutch_pages.value as number) * PAGE).slice();
  }

  get stackPointer(): number {
    return this.#exports.__stack_pointer.value;
  }

  get contextAddress(): number {
    return this.#exports.qjs_get_context_ptr();
  }

  /** Bytes that the last execution took beyond the image. */
  get grown(): number {
    return (this.#exports.hutch_pages.value as number) * PAGE - this.#end;
  }

  /** Where the image's memory ends. */
  get #end(): number {
    return this.#image.stackPointer + this.#image.heap.length;
  }

  /** How often QuickJS itself ran out of memory since the reset. */
  get faults(): number {
    return this.#exports.hutch_faults.value;
  }

  /** What it started from. */
  get image(): Image {
    return this.#image;
  }

  /** Back to an image: nothing of an earlier execution stays, and randomness is fresh. */
  reset(image = this.#image): void {
    this.#image = image;
    const e = this.#exports, { heap, stackPointer, context } = image;
    const used = (e.hutch_pages.value as number) * PAGE, end = this.#end;
    if (e.memory.buffer.byteLength < end) e.memory.grow((end - e.memory.buffer.byteLength) / PAGE);
    const bytes = new Uint8Array(e.memory.buffer);
    const shallow = stackPointer - SHALLOW_BYTES;
    const isDeep = !isZero(new Uint32Array(e.memory.buffer, shallow - BAND_BYTES, BAND_BYTES / 4));
    bytes.fill(0, isDeep ? stackPointer - 2 * STACK_BYTES : shallow, stackPointer);
    bytes.set(heap, stackPointer);
    if (used > end) bytes.fill(0, end, used);
    e.hutch_pages.value = end / PAGE;
    e.hutch_faults.value = 0;
    e.__stack_pointer.value = stackPointer;
    const seed = bytes.subarray(context + RANDOM_STATE, context + RANDOM_STATE + 8);
    crypto.getRandomValues(seed);
    seed[0] |= 1;
  }

  limit(memoryBytes: number): void {
    const pages = (this.#end + memoryBytes) / PAGE;
    this.#exports.hutch_max_pages.value = Math.min(65536, Math.ceil(pages));
  }

  // --- values ---

  #write(text: string): [number, number] {
    const e = this.#exports;
    const bytes = encoder.encode(text);
    const address = e.wasm_malloc(bytes.length + 1);
    if (address === 0) throw new Broken("out of memory");
    const memory = new Uint8Array(e.memory.buffer);
    memory.set(bytes, address);
    memory[address + bytes.length] = 0;
    return [address, bytes.length];
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
    if (address === 0) throw new Broken("out of memory");
    new Uint8Array(e.memory.buffer).set(bytes, address);
    const box = e.qjs_new_array_buffer(address, bytes.length);
    e.wasm_free(address);
    return box;
  }

  isUndefined(box: number): boolean {
    return this.#exports.qjs_is_undefined(box) !== 0;
  }

  toNumber(box: number): number {
    return this.#exports.qjs_get_float64(box);
  }

  toText(box: number): string {
    const [address, length] = this.#lengthed((out) => this.#exports.qjs_get_string_len(box, out));
    if (address === 0) throw new Broken("out of memory");
    const text = decoder.decode(new Uint8Array(this.#exports.memory.buffer, address, length));
    this.#exports.qjs_free_cstring(address);
    return text;
  }

  /** The bytes of an ArrayBuffer, as a view that the next call into the VM may invalidate. */
  toBytes(box: number): Uint8Array<ArrayBuffer> {
    const [address, length] = this.#lengthed((out) => this.#exports.qjs_get_array_buffer(box, out));
    return new Uint8Array(this.#exports.memory.buffer as ArrayBuffer, address, length);
  }

  #lengthed(read: (lengthOut: number) => number): [number, number] {
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

  /** Evaluates without preemption: for the prelude, and for source that only makes a function. */
  evaluate(code: string, file: string): number {
    const [source, length] = this.#write(code);
    const [name] = this.#write(file);
    const box = this.#exports.qjs_eval(source, length, name, 0);
    this.#exports.wasm_free(source);
    this.#exports.wasm_free(name);
    return box;
  }

  isException(box: number): boolean {
    return this.#exports.qjs_is_exception(box) !== 0;
  }

  exception(): number {
    return this.#exports.qjs_get_exception();
  }

  /**
   * Calls a guest function, then its jobs until none is left; `overdue` is asked all the time.
   * Answers false when the guest was stopped. Only one call at a time.
   */
  async call(fn: number, args: number[], overdue: Overdue): Promise<boolean> {
    const e = this.#exports, { scratch, undefinedBox } = this.#image;
    const view = new DataView(e.memory.buffer);
    for (let i = 0; i < args.length; i++) view.setUint32(scratch + 4 * i, args[i], true);
    this.#overdue = overdue;
    this.#stopped = false;
    this.renewSlice();
    e.qjs_set_interrupt_handler(1);
    try {
      if (await this.#drive(fn, undefinedBox, args.length, scratch) !== 0 || this.#stopped) return false;
      for (const box of args) e.qjs_free_value(box);
      return true;
    } finally {
      // V8 allows a suspending import only under a promising call.
      e.qjs_set_interrupt_handler(0);
    }
  }

  /** From now on the guest has the time of a whole slice again. */
  renewSlice(): void {
    this.#sliceEnd = performance.now() + SLICE_MS;
  }

  #interrupt(): number | Promise<number> {
    const now = performance.now();
    if (this.#stopped || this.faults > MAX_FAULTS || this.#overdue(now)) return this.#stop();
    if (now < this.#sliceEnd) return 0;
    return nextTurn().then(() => {
      this.renewSlice();
      return this.#overdue(performance.now()) ? this.#stop() : 0;
    });
  }

  #stop(): number {
    this.#stopped = true;
    return 1;
  }
}

/** The memory of a VM that has run the prelude: what every execution starts from. Made at build time. */
export interface Image {
  /** From the top of the C stack on; below it no frame is live. */
  heap: Uint8Array;
  stackPointer: number;
  context: number;
  undefinedBox: number;
  scratch: number;
  /** The prelude's own functions. */
  entry: Record<string, number>;
}

const BLANK: Image = {
  heap: new Uint8Array(0),
  stackPointer: 0,
  context: 0,
  undefinedBox: 0,
  scratch: 0,
  entry: {},
};

export function buildImage(
  module: WebAssembly.Module,
  hostFunctions: string,
  prelude: string,
  entries: string[],
): Image {
  const nothing = (vm: Vm) => vm.undefined();
  const vm = new Vm(module, BLANK, Object.fromEntries([...hostFunctions].map((name) => [name, nothing])));
  vm.boot();
  vm.defineHostFunctions(hostFunctions);
  const undefinedBox = vm.undefined(), scratch = vm.allocate(SCRATCH_BYTES);
  const made = vm.evaluate(prelude, "prelude.js");
  if (vm.isException(made)) throw new Error("The prelude fails");
  const entry = Object.fromEntries(entries.map((name) => [name, vm.property(made, name)]));
  const { stackPointer, contextAddress: context } = vm;
  const image = {
    heap: vm.capture().slice(stackPointer),
    stackPointer,
    context,
    undefinedBox,
    scratch,
    entry,
  };
  checkRandom(new Vm(module, image, {}));
  return image;
}

/** Two resets must not give the same numbers: it would mean that the seed is somewhere else. */
function checkRandom(vm: Vm): void {
  const draw = () => {
    vm.reset();
    vm.limit(1 << 20);
    return vm.toNumber(vm.evaluate("Math.random()", "check.js"));
  };
  if (draw() === draw()) throw new Error("Math.random is not reseeded: JSContext has another layout");
}
