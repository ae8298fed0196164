/** `crypto.subtle.digest`, computed by the runner. */

import { startCall } from "../../../tools.ts";
import { setName } from "../define.ts";
import { takeHostFunction } from "../host.ts";

const ALGORITHMS = ["SHA-1", "SHA-256", "SHA-384", "SHA-512"];
const startDigest = takeHostFunction<(call: number, algorithm: string, bytes: ArrayBuffer) => void>("h");

async function digest(algorithm: unknown, data: unknown): Promise<ArrayBuffer> {
  const requested = typeof algorithm === "object"
    ? (algorithm as { name?: unknown } | null)?.name
    : algorithm;
  const name = `${requested}`.toUpperCase();
  if (!ALGORITHMS.includes(name)) {
    const message = `crypto.subtle.digest: ${requested} is not supported; use one of ${
      ALGORITHMS.join(", ")
    }`;
    throw new DOMException(message, "NotSupportedError");
  }
  const bytes = toArrayBuffer(data);
  const hex = await new Promise((resolve, reject) =>
    startCall(resolve, reject, (call) => startDigest(call, name, bytes))
  );
  return Uint8Array.fromHex(hex as string).buffer;
}

function toArrayBuffer(data: unknown): ArrayBuffer {
  if (data instanceof ArrayBuffer) return data;
  if (!ArrayBuffer.isView(data)) throw new TypeError("crypto.subtle.digest: expected a buffer or a view");
  return new Uint8Array(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).buffer;
}

Object.defineProperty(crypto, "subtle", {
  value: { digest: setName("digest", digest) },
  writable: true,
  configurable: true,
  enumerable: true,
});
