/** `crypto.subtle.digest`, by the runner's own. */

import { queue } from "../../../tools.ts";
import { rename } from "../hide.ts";
import { take } from "../host.ts";

const ALGORITHMS = ["SHA-1", "SHA-256", "SHA-384", "SHA-512"];
const begin = take<(call: number, algorithm: string, bytes: ArrayBuffer) => void>("h");

async function digest(algorithm: unknown, data: unknown): Promise<ArrayBuffer> {
  const asked = typeof algorithm === "object" ? (algorithm as { name?: unknown } | null)?.name : algorithm;
  const name = `${asked}`.toUpperCase();
  if (!ALGORITHMS.includes(name)) {
    const known = ALGORITHMS.join(", ");
    throw new DOMException(
      `crypto.subtle.digest: there is no ${asked}; there are ${known}`,
      "NotSupportedError",
    );
  }
  const bytes = copied(data);
  const hex = await new Promise((resolve, reject) =>
    queue(resolve, reject, (call) => begin(call, name, bytes))
  );
  return Uint8Array.fromHex(hex as string).buffer;
}

function copied(data: unknown): ArrayBuffer {
  if (data instanceof ArrayBuffer) return data;
  if (!ArrayBuffer.isView(data)) throw new TypeError("crypto.subtle.digest: expected a buffer or a view");
  return new Uint8Array(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).buffer;
}

Object.defineProperty(crypto, "subtle", {
  value: { digest: rename("digest", digest) },
  writable: true,
  configurable: true,
  enumerable: true,
});
