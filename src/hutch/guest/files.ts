/**
 * `files` and `display` for guests: the input files of an execution, and the files that it returns.
 *
 * The bytes are sent in tool calls that only Hutch's own host answers, in pieces and only when the guest asks
 * for them. Runs in the guest's realm, so it captures the built-ins that it needs before guest code can
 * replace them.
 */

import { toJson } from "./json.ts";
import { createToolFunction, type Emit } from "./tools.ts";

const { apply } = Reflect;
const { min, floor } = Math;
const { isView } = ArrayBuffer;
const { stringify } = JSON;
const { defineProperty } = Object;
const { slice: sliceText, startsWith, indexOf, toWellFormed, endsWith } = String.prototype;
const { subarray, slice, set, toBase64 } = Uint8Array.prototype as any;
const { fromBase64 } = Uint8Array as any;
const { then } = Promise.prototype;
const Bytes = Uint8Array, Buffer = ArrayBuffer, Encoder = TextEncoder, Decoder = TextDecoder;
const { encode } = Encoder.prototype, { decode } = Decoder.prototype;

/** Size of a piece in bytes. A piece must fit into the input of a tool call after it is encoded in Base64. */
const PIECE_BYTES = 384 * 1024;

export interface FileInfo {
  name: string;
  size: number;
  type: string;
}

interface Host {
  emit: Emit;
  /** Index of the tool that reads files. The tool that writes files has the next index. */
  firstTool: number;
  log: (line: string) => void;
  /** Maximum size of the input of a call. */
  maxBytes: number;
}

let inputs: FileInfo[] = [], host: Host;
let unfinished = 0, onFinished: (() => void) | undefined;

/** Defines the globals `files` and `display`, which work only after a call of `provideFiles`. */
export function defineFiles(): void {
  defineProperty(globalThis, "files", { value: files, writable: true, configurable: true });
  defineProperty(globalThis, "display", { value: display, writable: true, configurable: true });
}

/** Removes the globals `files` and `display`, but keeps variables of the guest with these names. */
export function removeFiles(): void {
  if ((globalThis as any).files === files) delete (globalThis as any).files;
  if ((globalThis as any).display === display) delete (globalThis as any).display;
}

export function provideFiles(list: FileInfo[], byHost: Host): void {
  inputs = list;
  host = byHost;
}

function maxPieceBytes(): number {
  return min(PIECE_BYTES, floor(host.maxBytes / 2));
}

function read(input: unknown): Promise<any> {
  return createToolFunction("files.read", host.firstTool, host.emit)(input);
}

function write(input: unknown): Promise<any> {
  return createToolFunction("files.write", host.firstTool + 1, host.emit)(input);
}

/** Waits for files that are still being written when the guest has ended. Returns undefined if there are none. */
export function filesWritten(): Promise<void> | undefined {
  if (unfinished === 0) return undefined;
  return new Promise((resolve) => onFinished = resolve);
}

const files = {
  list(): FileInfo[] {
    const copies: FileInfo[] = [];
    for (let i = 0; i < inputs.length; i++) copies[i] = { ...inputs[i] };
    return copies;
  },

  async read(name: string): Promise<Uint8Array> {
    const { size } = inputNamed(name), pieceBytes = maxPieceBytes();
    const bytes = new Bytes(size);
    for (let offset = 0; offset < size;) {
      const piece = fromBase64(await read({ name, offset, size: pieceBytes }));
      apply(set, bytes, [piece, offset]);
      offset += piece.length;
    }
    return bytes;
  },

  async text(name: string): Promise<string> {
    return apply(decode, new Decoder(), [await files.read(name)]);
  },

  write(name: string, data: unknown, type?: string): Promise<void> {
    return tracked(send("files.write", `${name}`, bytesOf("files.write", data), type));
  },
};

function display(value: unknown, type?: string): Promise<void> {
  const shown = tracked(show(value, type));
  // Log a failure. Most guests do not await `display` and would not notice the failure otherwise.
  apply(then, shown, [undefined, (error: any) => host.log(`display: ${error?.message}`)]);
  return shown;
}

async function show(value: unknown, type?: string): Promise<void> {
  if (typeof value === "string") {
    const image = type === undefined ? dataUrl(value) : undefined;
    if (image) return await send("display", null, image.bytes, image.type);
    return await send("display", null, encoded(value), type ?? "text/plain");
  }
  if (value instanceof Buffer || isView(value)) {
    return await send("display", null, bytesOf("display", value), type);
  }
  const text = toJson(value, "The value of display", host.maxBytes);
  if (text === undefined) throw new TypeError("display: expected a value, got undefined");
  return await send("display", null, encoded(text), type ?? "application/json");
}

/** Sends a file to the host. With the name null, the host chooses the name. */
async function send(label: string, name: string | null, bytes: Uint8Array, type?: string): Promise<void> {
  if (type !== undefined && typeof type !== "string") {
    throw new TypeError(`${label}: type: expected text such as "image/png", got ${stringify(type)}`);
  }
  const size = bytes.length, pieceBytes = maxPieceBytes();
  let offset = 0;
  do {
    const data = apply(toBase64, apply(subarray, bytes, [offset, offset + pieceBytes]), []);
    name = await write({ name, type: type ?? null, offset, size, data });
    offset += pieceBytes;
  } while (offset < size);
}

/** Counts a write while it is in progress, so that the execution does not end before the write. */
function tracked(writing: Promise<void>): Promise<void> {
  unfinished++;
  const end = () => {
    if (--unfinished === 0) onFinished?.();
  };
  apply(then, writing, [end, end]);
  return writing;
}

function inputNamed(name: unknown): FileInfo {
  let names = "";
  for (let i = 0; i < inputs.length; i++) {
    if (inputs[i].name === name) return inputs[i];
    if (i < 10) names += `${i ? ", " : ""}${inputs[i].name}`;
  }
  const known = names ? `; there are ${names}${inputs.length > 10 ? ", …" : ""}` : "; there are none";
  throw new TypeError(`files.read: expected the name of an input file, got ${stringify(name)}${known}`);
}

/** Returns a copy of the bytes, because the caller may change its array while they are sent. */
function bytesOf(label: string, data: unknown): Uint8Array {
  if (typeof data === "string") return encoded(data);
  if (data instanceof Buffer) return apply(slice, new Bytes(data), []);
  if (isView(data)) {
    return apply(slice, new Bytes(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength), []);
  }
  throw new TypeError(`${label}: expected text, an ArrayBuffer or a view of one, got ${kindOf(data)}`);
}

function kindOf(value: unknown): string {
  return value === null ? "null" : typeof value === "object" ? "an object" : typeof value;
}

function encoded(text: string): Uint8Array {
  return apply(encode, new Encoder(), [apply(toWellFormed, text, [])]);
}

/** Returns the content of a data URL in Base64, or undefined for any other text. */
function dataUrl(text: string): { type: string; bytes: Uint8Array } | undefined {
  if (!apply(startsWith, text, ["data:"])) return undefined;
  const comma = apply(indexOf, text, [","]), head: string = apply(sliceText, text, [5, comma]);
  if (comma < 0 || !apply(endsWith, head, [";base64"])) return undefined;
  const type: string = apply(sliceText, head, [0, -7]);
  try {
    return { type: type || "text/plain", bytes: fromBase64(apply(sliceText, text, [comma + 1])) };
  } catch {
    return undefined;
  }
}
