/**
 * Patches QuickJS's WebAssembly so that its heap can be limited and reset.
 *
 * The published module grows its memory with `memory.grow`, which cannot be undone: after a reset in
 * place its allocator would grow past the old end, run after run. The patch routes `memory.grow` and
 * `memory.size` through a program break (`hutch_pages`) with a maximum that the runner sets for every
 * execution (`hutch_max_pages`). `hutch_faults` counts how often the engine itself reported exhaustion,
 * which a guest cannot fake by throwing the same error. `hutch_drive` calls a guest function and runs all
 * jobs that follow, because every entry through JSPI is expensive. The interrupt hook is called about 300
 * times as often, so that loops over slow native calls are stopped and preempted too. `hutch_lowest_stack` is
 * the lowest value of the stack pointer since the runner set it, so that a reset clears the whole used stack.
 *
 * The patch only appends functions and globals, so existing indices stay valid. It asserts every assumption
 * about the module, so that an incompatible upgrade fails the build.
 */

import { markLowestStack } from "./stack_mark.ts";

const SECTION = { type: 1, import: 2, function: 3, global: 6, export: 7, code: 10, data: 11 } as const;
const CALL = 0x10, END = 0x0b, I32 = 0x7f;
/** Kinds of exports. */
const FUNCTION = 0, GLOBAL = 3;
/** Initial value of `hutch_lowest_stack`: an address above the stack. */
const NO_STACK = 0x7fffffff;

/** `memory.size; i32.const 16; i32.shl` */
const SIZE_SITE = [0x3f, 0x00, 0x41, 0x10, 0x74];
/** `memory.grow; local.tee _; i32.const -1; i32.eq`; -1 matches any index of the local */
const GROW_SITE = [0x40, 0x00, 0x22, -1, 0x41, 0x7f, 0x46];
/** `i32.const 10000; i32.store offset=292`: the number of checks between two calls of the interrupt hook */
const INTERRUPT_SITE = [0x41, 0x90, 0xce, 0x00, 0x36, 0x02, 0xa4, 0x02];
/**
 * `i32.const 32`, padded to the same length. The number is small, because a native call between two checks
 * may take milliseconds.
 */
const INTERRUPT_EVERY = [0x41, 0xa0, 0x80, 0x00];
const EXHAUSTED = ["out of memory", "string too long"];

interface Section {
  id: number;
  body: Uint8Array;
}

/** Reads the parts of a WebAssembly binary that are not code. */
class Reader {
  at = 0;
  constructor(readonly bytes: Uint8Array) {}

  u32(): number {
    let value = 0, shift = 0;
    for (;;) {
      const byte = this.bytes[this.at++];
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
      shift += 7;
    }
  }

  take(length: number): Uint8Array {
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  name(): string {
    return new TextDecoder().decode(this.take(this.u32()));
  }
}

export function leb(value: number): number[] {
  const out: number[] = [];
  do {
    const byte = value & 0x7f;
    value = Math.floor(value / 128);
    out.push(value ? byte | 0x80 : byte);
  } while (value);
  return out;
}

/** Signed LEB128, the encoding of `i32.const`. */
function sleb(value: number): number[] {
  const out: number[] = [];
  for (;;) {
    const byte = value & 0x7f;
    value >>= 7;
    if ((value === 0 && !(byte & 0x40)) || (value === -1 && byte & 0x40)) return [...out, byte];
    out.push(byte | 0x80);
  }
}

function utf8(text: string): number[] {
  const bytes = [...new TextEncoder().encode(text)];
  return [...leb(bytes.length), ...bytes];
}

function expect(fact: boolean, what: string): asserts fact {
  if (!fact) throw new Error(`quickjs.wasm is not of the shape this patch was written for: ${what}`);
}

function sections(wasm: Uint8Array): Section[] {
  const reader = new Reader(wasm);
  reader.take(8);
  const found: Section[] = [];
  while (reader.at < wasm.length) {
    const id = reader.take(1)[0];
    found.push({ id, body: reader.take(reader.u32()) });
  }
  return found;
}

function append(section: Section, count: number, bytes: number[]): void {
  const reader = new Reader(section.body);
  const before = reader.u32();
  const rest = section.body.subarray(reader.at);
  section.body = Uint8Array.from([...leb(before + count), ...rest, ...bytes]);
}

function countOf(section: Section): number {
  return new Reader(section.body).u32();
}

function importedFunctions(section: Section): number {
  const reader = new Reader(section.body);
  let functions = 0;
  for (let left = reader.u32(); left > 0; left--) {
    reader.name();
    reader.name();
    expect(reader.take(1)[0] === 0, "it imports more than functions");
    reader.u32();
    functions++;
  }
  return functions;
}

function exportedFunction(section: Section, wanted: string): number {
  return exportedIndex(section, wanted, FUNCTION);
}

function exportedIndex(section: Section, wanted: string, wantedKind: number): number {
  const reader = new Reader(section.body);
  for (let left = reader.u32(); left > 0; left--) {
    const name = reader.name();
    const kind = reader.take(1)[0], index = reader.u32();
    if (name === wanted && kind === wantedKind) return index;
  }
  throw new Error(`quickjs.wasm does not export ${wanted}`);
}

/** Returns the address of a NUL-terminated string in the data segments. */
function addressOf(section: Section, text: string): number {
  const reader = new Reader(section.body);
  const needle = [0, ...new TextEncoder().encode(text), 0];
  const found: number[] = [];
  for (let left = reader.u32(); left > 0; left--) {
    expect(reader.u32() === 0, "a data segment is not active");
    expect(reader.take(1)[0] === 0x41, "a data segment's offset is not i32.const");
    const offset = reader.u32();
    expect(reader.take(1)[0] === END, "a data segment's offset is not constant");
    const bytes = reader.take(reader.u32());
    for (const at of matches(bytes, needle)) found.push(offset + at + 1);
  }
  expect(found.length === 1, `"${text}" occurs ${found.length} times in its data`);
  return found[0];
}

function matches(bytes: Uint8Array, pattern: number[]): number[] {
  const found: number[] = [];
  for (let at = bytes.indexOf(pattern[0]); at >= 0; at = bytes.indexOf(pattern[0], at + 1)) {
    if (pattern.every((byte, i) => byte < 0 || bytes[at + i] === byte)) found.push(at);
  }
  return found;
}

/** Replaces the two-byte instruction at the start of every match by a call. */
function rewrite(body: Uint8Array, pattern: number[], target: number): [Uint8Array, number] {
  const sites = matches(body, pattern);
  const out: number[] = [];
  let from = 0;
  for (const at of sites) {
    out.push(...body.subarray(from, at), CALL, ...leb(target));
    from = at + 2;
  }
  return [sites.length ? Uint8Array.from([...out, ...body.subarray(from)]) : body, sites.length];
}

/** Inserts code before a function's first instruction, after its local declarations. */
function prepend(body: Uint8Array, code: number[]): Uint8Array {
  const reader = new Reader(body);
  for (let groups = reader.u32(); groups > 0; groups--) {
    reader.u32();
    reader.take(1);
  }
  return Uint8Array.from([...body.subarray(0, reader.at), ...code, ...body.subarray(reader.at)]);
}

export function patchWasm(wasm: Uint8Array): Uint8Array<ArrayBuffer> {
  const parsed = sections(wasm);
  const sectionOf = (id: number) => {
    const found = parsed.filter((section) => section.id === id);
    expect(found.length === 1, `it has ${found.length} sections ${id}`);
    return found[0];
  };
  const types = countOf(sectionOf(SECTION.type));
  const imported = importedFunctions(sectionOf(SECTION.import));
  const size = imported + countOf(sectionOf(SECTION.function)), grow = size + 1, drive = size + 2;
  const pages = countOf(sectionOf(SECTION.global)), maxPages = pages + 1, faults = pages + 2;
  const stackPointer = exportedIndex(sectionOf(SECTION.export), "__stack_pointer", GLOBAL);
  const lowest = pages + 3;
  const throwIndex = exportedFunction(sectionOf(SECTION.export), "JS_ThrowInternalError") - imported;
  const addresses = EXHAUSTED.map((text) => addressOf(sectionOf(SECTION.data), text));

  const exported = (name: string) => exportedFunction(sectionOf(SECTION.export), name);
  const driveCode = driveBody(
    exported("qjs_call"),
    exported("qjs_is_exception"),
    exported("qjs_free_value"),
    exported("qjs_is_job_pending"),
    exported("qjs_execute_pending_job"),
  );

  append(sectionOf(SECTION.type), 3, [
    ...[0x60, 0, 1, I32],
    ...[0x60, 1, I32, 1, I32],
    ...[0x60, 4, I32, I32, I32, I32, 1, I32],
  ]);
  append(sectionOf(SECTION.function), 3, [...leb(types), ...leb(types + 1), ...leb(types + 2)]);
  append(sectionOf(SECTION.global), 4, [
    ...Array(3).fill([I32, 1, 0x41, 0, END]).flat(),
    ...[I32, 1, 0x41, ...sleb(NO_STACK), END],
  ]);
  append(sectionOf(SECTION.export), 5, [
    ...utf8("hutch_pages"),
    3,
    ...leb(pages),
    ...utf8("hutch_max_pages"),
    3,
    ...leb(maxPages),
    ...utf8("hutch_faults"),
    3,
    ...leb(faults),
    ...utf8("hutch_lowest_stack"),
    3,
    ...leb(lowest),
    ...utf8("hutch_drive"),
    0,
    ...leb(drive),
  ]);

  const code = sectionOf(SECTION.code);
  const reader = new Reader(code.body);
  const bodies = Array.from({ length: reader.u32() }, () => reader.take(reader.u32()));
  let sizes = 0, grows = 0, interrupts = 0, frames = 0;
  const patched = bodies.map((body) => {
    const [first, n] = rewrite(body, SIZE_SITE, size);
    const [second, m] = rewrite(first, GROW_SITE, grow);
    sizes += n;
    grows += m;
    const polls = matches(second, INTERRUPT_SITE);
    interrupts += polls.length;
    const third = polls.length ? second.slice() : second;
    for (const at of polls) third.set(INTERRUPT_EVERY, at);
    const marked = markLowestStack(third, leb(stackPointer), leb(lowest));
    if (marked !== third) frames++;
    return marked;
  });
  expect(frames > 100, `${frames} functions use its C stack`);
  expect(interrupts === 1, `it calls the interrupt hook at ${interrupts} places`);
  expect(sizes === 3 && grows === 2, `its allocator asks for memory at ${sizes} and ${grows} places`);

  // hutch_faults += (message is one of EXHAUSTED)
  const isFault = addresses.flatMap((address, i) => [
    0x20,
    1,
    0x41,
    ...sleb(address),
    0x46,
    ...(i ? [0x72] : []),
  ]);
  patched[throwIndex] = prepend(patched[throwIndex], [
    ...isFault,
    0x23,
    ...leb(faults),
    0x6a,
    0x24,
    ...leb(faults),
  ]);
  patched.push(Uint8Array.from([0, 0x23, ...leb(pages), END]));
  patched.push(growBody(pages, maxPages));
  patched.push(driveCode);
  const chunks: Uint8Array[] = [Uint8Array.from(leb(patched.length))];
  for (const body of patched) chunks.push(Uint8Array.from(leb(body.length)), body);
  code.body = concat(chunks);

  const out: Uint8Array[] = [wasm.subarray(0, 8)];
  for (const { id, body } of parsed) {
    if (id !== 0) out.push(Uint8Array.from([id, ...leb(body.length)]), body);
  }
  return concat(out);
}

/**
 * grow(n): end = pages + n; fails above the maximum; grows the actual memory if it ends before `end`; returns
 * the old break.
 */
function growBody(pages: number, maxPages: number): Uint8Array {
  const fail = [0x04, 0x40, 0x41, 0x7f, 0x0f, END];
  return Uint8Array.from([
    1,
    1,
    I32,
    0x23,
    ...leb(pages),
    0x20,
    0,
    0x6a,
    0x22,
    1,
    0x23,
    ...leb(maxPages),
    0x4b,
    ...fail,
    0x20,
    1,
    0x3f,
    0,
    0x4b,
    0x04,
    0x40,
    0x20,
    1,
    0x3f,
    0,
    0x6b,
    0x40,
    0,
    0x41,
    0x7f,
    0x46,
    ...fail,
    END,
    0x23,
    ...leb(pages),
    0x20,
    1,
    0x24,
    ...leb(pages),
    END,
  ]);
}

/**
 * drive(fn, self, argc, argv): calls `fn`, then runs jobs until none is left. Returns 0, or 1 if a job threw
 * an exception, or 2 if the call did.
 */
function driveBody(call: number, failed: number, free: number, pending: number, job: number): Uint8Array {
  return Uint8Array.from([
    ...[1, 1, I32],
    ...[0x20, 0, 0x20, 1, 0x20, 2, 0x20, 3, CALL, ...leb(call), 0x22, 4],
    ...[CALL, ...leb(failed), 0x04, 0x40, 0x41, 2, 0x0f, END],
    ...[0x20, 4, CALL, ...leb(free)],
    ...[0x03, 0x40],
    ...[CALL, ...leb(pending), 0x45, 0x04, 0x40, 0x41, 0, 0x0f, END],
    ...[CALL, ...leb(job), 0x41, 0, 0x48, 0x04, 0x40, 0x41, 1, 0x0f, END],
    ...[0x0c, 0, END],
    ...[0x00, END],
  ]);
}

function concat(chunks: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    out.set(chunk, at);
    at += chunk.length;
  }
  return out;
}
