/** `crypto` with random bytes from the runner. */

import { defineGlobal, setName } from "./define.ts";
import { randomBytes } from "./host.ts";

const QUOTA = 65536;

function getRandomValues<T extends ArrayBufferView>(view: T): T {
  if (!ArrayBuffer.isView(view)) throw new TypeError("crypto.getRandomValues: expected a typed array");
  if (!/^(Big)?(Int|Uint)/.test((view as { [Symbol.toStringTag]?: string })[Symbol.toStringTag] ?? "")) {
    throw new DOMException("crypto.getRandomValues: expected integers", "TypeMismatchError");
  }
  if (view.byteLength > QUOTA) {
    throw new DOMException(`crypto.getRandomValues: more than ${QUOTA} bytes`, "QuotaExceededError");
  }
  new Uint8Array(view.buffer, view.byteOffset, view.byteLength).set(
    new Uint8Array(randomBytes(view.byteLength)),
  );
  return view;
}

function randomUUID(): string {
  const bytes = new Uint8Array(randomBytes(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  let text = "";
  for (let i = 0; i < 16; i++) {
    if (i === 4 || i === 6 || i === 8 || i === 10) text += "-";
    text += (bytes[i] + 0x100).toString(16).slice(1);
  }
  return text;
}

defineGlobal("crypto", {
  getRandomValues: setName("getRandomValues", getRandomValues),
  randomUUID: setName("randomUUID", randomUUID),
});
