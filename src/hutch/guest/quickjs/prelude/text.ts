/** `TextEncoder` and `TextDecoder`, which use functions of the runner. */

import { defineGlobalClass } from "./define.ts";
import { decodeText as decode, encodeUtf8 } from "./host.ts";

const FATAL = 1, IGNORE_BOM = 2;

class TextEncoder {
  get encoding(): string {
    return "utf-8";
  }

  encode(text: unknown = ""): Uint8Array {
    return new Uint8Array(encodeUtf8(`${text}`.toWellFormed()));
  }

  encodeInto(text: string, target: Uint8Array): { read: number; written: number } {
    let read = 0, written = 0;
    for (const char of `${text}`) {
      const bytes = this.encode(char);
      if (written + bytes.length > target.length) break;
      target.set(bytes, written);
      read += char.length;
      written += bytes.length;
    }
    return { read, written };
  }
}

class TextDecoder {
  #incomplete = new Uint8Array(0);
  readonly encoding: string;
  readonly fatal: boolean;
  readonly ignoreBOM: boolean;

  constructor(label = "utf-8", options: { fatal?: boolean; ignoreBOM?: boolean } = {}) {
    this.fatal = Boolean(options.fatal);
    this.ignoreBOM = Boolean(options.ignoreBOM);
    const encoding = decode(new ArrayBuffer(0), `${label}`, -1);
    if (!encoding) throw new RangeError(`TextDecoder: the encoding "${label}" is not supported`);
    this.encoding = encoding;
  }

  decode(input?: ArrayBuffer | ArrayBufferView, options: { stream?: boolean } = {}): string {
    let bytes = concat(this.#incomplete, bytesOf(input));
    const complete = options.stream ? bytes.length - incompleteLength(bytes) : bytes.length;
    this.#incomplete = bytes.slice(complete);
    bytes = bytes.slice(0, complete);
    const mode = (this.fatal ? FATAL : 0) | (this.ignoreBOM ? IGNORE_BOM : 0);
    const result = decode(bytes.buffer as ArrayBuffer, this.encoding, mode);
    if (result[0] === "!") throw new TypeError("TextDecoder: the data is not valid in this encoding");
    return result.slice(1);
  }
}

function bytesOf(input?: ArrayBuffer | ArrayBufferView): Uint8Array {
  if (input === undefined) return new Uint8Array(0);
  if (input instanceof ArrayBuffer) return new Uint8Array(input);
  if (ArrayBuffer.isView(input)) return new Uint8Array(input.buffer, input.byteOffset, input.byteLength);
  throw new TypeError("TextDecoder.decode: expected an ArrayBuffer or a view of one");
}

function concat(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

/** Number of bytes at the end that belong to an incomplete UTF-8 character. */
function incompleteLength(bytes: Uint8Array): number {
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

defineGlobalClass("TextEncoder", TextEncoder);
defineGlobalClass("TextDecoder", TextDecoder);
