/** The parts of Node's `Buffer` that API wrappers use. */

import { defineGlobal } from "../define.ts";
import { decodeText, encodeUtf8 } from "../host.ts";

const ENCODINGS: Record<string, string> = {
  "utf8": "utf8",
  "utf-8": "utf8",
  "hex": "hex",
  "base64": "base64",
  "base64url": "base64url",
  "latin1": "latin1",
  "binary": "latin1",
  "ascii": "latin1",
  "utf16le": "utf16le",
  "utf-16le": "utf16le",
  "ucs2": "utf16le",
  "ucs-2": "utf16le",
};

function encodingOf(name: unknown): string {
  const encoding = ENCODINGS[`${name ?? "utf8"}`.toLowerCase()];
  if (!encoding) throw new TypeError(`Unknown encoding: ${name}`);
  return encoding;
}

function encode(text: string, encoding: unknown): Uint8Array {
  switch (encodingOf(encoding)) {
    case "hex":
      return hexBytes(text);
    case "base64":
    case "base64url":
      return base64Bytes(text);
    case "latin1":
      return Uint8Array.from(text, (char) => char.charCodeAt(0));
    case "utf16le":
      return new Uint8Array(Uint16Array.from(text.split(""), (unit) => unit.charCodeAt(0)).buffer);
    default:
      return new Uint8Array(encodeUtf8(text.toWellFormed()));
  }
}

/** Like Node, decodes up to the first invalid pair. */
function hexBytes(text: string): Uint8Array {
  const valid = /^(?:[0-9a-fA-F]{2})*/.exec(text)![0];
  return Uint8Array.fromHex(valid);
}

/** Like Node, accepts both alphabets with or without padding, and skips other characters. */
function base64Bytes(text: string): Uint8Array {
  let valid = text.replaceAll("-", "+").replaceAll("_", "/").replace(/=.*$|[^A-Za-z0-9+/]/gs, "");
  if (valid.length % 4 === 1) valid = valid.slice(0, -1);
  return Uint8Array.fromBase64(valid, { lastChunkHandling: "loose" });
}

function decode(bytes: Uint8Array, encoding: unknown): string {
  switch (encodingOf(encoding)) {
    case "hex":
      return bytes.toHex();
    case "base64":
      return bytes.toBase64();
    case "base64url":
      return bytes.toBase64({ alphabet: "base64url", omitPadding: true });
    case "latin1":
      return latin1Text(bytes);
    case "utf16le":
      return decodeText(new Uint8Array(bytes.subarray(0, bytes.length & ~1)).buffer, "utf-16le", 2).slice(1);
    default:
      return decodeText(new Uint8Array(bytes).buffer, "utf-8", 2).slice(1);
  }
}

function latin1Text(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 4096) {
    text += String.fromCharCode(...bytes.subarray(at, at + 4096));
  }
  return text;
}

function fromBytes(bytes: Uint8Array): Buffer {
  return new Buffer(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.byteLength);
}

class Buffer extends Uint8Array<ArrayBuffer> {
  constructor(first: any, second?: any, third?: any) {
    if (typeof first === "string") return Buffer.from(first, second);
    super(first, second, third);
  }

  static override from(value: any, second?: any, third?: any): any {
    if (typeof value === "string") return fromBytes(encode(value, second));
    if (value instanceof ArrayBuffer) return new Buffer(value, second, third);
    if (value?.type === "Buffer" && Array.isArray(value.data)) value = value.data;
    if (value === null || typeof value !== "object") {
      throw new TypeError("Buffer.from: expected a string, an array, a buffer or a view");
    }
    return fromBytes(Uint8Array.from(value, second, third));
  }

  static alloc(size: number, fill: unknown = 0, encoding?: string): Buffer {
    return new Buffer(size).fill(fill as number, encoding as any);
  }

  static allocUnsafe(size: number): Buffer {
    return new Buffer(size);
  }

  static isBuffer(value: unknown): boolean {
    return value instanceof Buffer;
  }

  static isEncoding(name: unknown): boolean {
    return `${name}`.toLowerCase() in ENCODINGS;
  }

  static byteLength(value: any, encoding?: string): number {
    return typeof value === "string" ? encode(value, encoding).length : value.byteLength;
  }

  static concat(list: Uint8Array[], length?: number): Buffer {
    const all = new Buffer(length ?? list.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of list) {
      if (at >= all.length) break;
      all.set(part.subarray(0, all.length - at), at);
      at += part.length;
    }
    return all;
  }

  static compare(one: Uint8Array, other: Uint8Array): number {
    for (let i = 0; i < one.length && i < other.length; i++) {
      if (one[i] !== other[i]) return one[i] < other[i] ? -1 : 1;
    }
    return Math.sign(one.length - other.length);
  }

  override toString(encoding?: any, start = 0, end = this.length): string {
    return decode(this.subarray(start, end), encoding);
  }

  toJSON(): { type: string; data: number[] } {
    return { type: "Buffer", data: [...this] };
  }

  equals(other: Uint8Array): boolean {
    return Buffer.compare(this, other) === 0;
  }

  compare(other: Uint8Array): number {
    return Buffer.compare(this, other);
  }

  /** Returns a view of the same memory, unlike `slice` of a Uint8Array. */
  override slice(start?: number, end?: number): any {
    return this.subarray(start, end);
  }

  override fill(value: any, start?: any, end?: any, encoding?: any): this {
    if (typeof value !== "string") return super.fill(value, start, end);
    if (typeof start === "string") [encoding, start] = [start, undefined];
    const pattern = encode(value, encoding), first = start ?? 0, last = end ?? this.length;
    for (let i = first; i < last; i++) this[i] = pattern.length ? pattern[(i - first) % pattern.length] : 0;
    return this;
  }

  write(text: string, offset: any = 0, length?: any, encoding?: any): number {
    if (typeof offset === "string") [encoding, offset] = [offset, 0];
    else if (typeof length === "string") [encoding, length] = [length, undefined];
    const target = this.subarray(offset, length === undefined ? undefined : offset + length);
    const bytes = encode(text, encoding).subarray(0, target.length);
    target.set(bytes);
    return bytes.length;
  }

  copy(target: Uint8Array, at = 0, start = 0, end = this.length): number {
    const part = this.subarray(start, Math.min(end, start + target.length - at));
    target.set(part, at);
    return part.length;
  }

  override indexOf(value: any, from = 0, encoding?: string): number {
    if (typeof value === "number") return super.indexOf(value & 255, from);
    const needle = typeof value === "string" ? encode(value, encoding) : value;
    for (let i = from < 0 ? Math.max(0, this.length + from) : from; i + needle.length <= this.length; i++) {
      if (needle.every((byte: number, j: number) => this[i + j] === byte)) return i;
    }
    return -1;
  }

  override includes(value: any, from = 0, encoding?: string): boolean {
    return this.indexOf(value, from, encoding as any) >= 0;
  }
}

/** Defines `readUInt32BE` and the like, by the methods of DataView. */
function defineNumberMethods(): void {
  const kinds: [name: string, view: string, size: number][] = [
    ["UInt8", "Uint8", 1],
    ["Int8", "Int8", 1],
    ["UInt16", "Uint16", 2],
    ["Int16", "Int16", 2],
    ["UInt32", "Uint32", 4],
    ["Int32", "Int32", 4],
    ["BigUInt64", "BigUint64", 8],
    ["BigInt64", "BigInt64", 8],
    ["Float", "Float32", 4],
    ["Double", "Float64", 8],
  ];
  const viewOf = (bytes: Uint8Array): any => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (const [name, kind, size] of kinds) {
    for (const order of size === 1 ? [""] : ["LE", "BE"]) {
      const isLittleEndian = order === "LE";
      const get = function (this: Uint8Array, at = 0) {
        return viewOf(this)[`get${kind}`](at, isLittleEndian);
      };
      const set = function (this: Uint8Array, value: unknown, at = 0) {
        viewOf(this)[`set${kind}`](at, value, isLittleEndian);
        return at + size;
      };
      for (const alias of new Set([name, name.replace("UInt", "Uint")])) {
        defineMethod(`read${alias}${order}`, get);
        defineMethod(`write${alias}${order}`, set);
      }
    }
  }
}

function defineMethod(name: string, value: unknown): void {
  Object.defineProperty(Buffer.prototype, name, { value, writable: true, configurable: true });
}

defineNumberMethods();
defineGlobal("Buffer", Buffer);
