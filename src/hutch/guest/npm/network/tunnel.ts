/** CONNECT requests to a proxy, and the responses of the proxy. */

import { connectionError } from "./errors.ts";

export interface Target {
  host: string;
  port: number;
}

export function connectRequest({ host, port }: Target, method: "CONNECT" | "EXPLAIN" = "CONNECT"): string {
  const authority = host.includes(":") && !host.startsWith("[") ? `[${host}]:${port}` : `${host}:${port}`;
  return `${method} ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`;
}

export class ProxyResponse {
  #bytes = new Uint8Array();
  #text = "";

  add(bytes: Uint8Array): void {
    const all = new Uint8Array(this.#bytes.length + bytes.length);
    all.set(this.#bytes);
    all.set(bytes, this.#bytes.length);
    this.#bytes = all;
    this.#text = new TextDecoder("latin1").decode(all);
  }

  get #end(): number {
    return this.#text.indexOf("\r\n\r\n") + 4;
  }

  /** HTTP status of the response, or 0 until its head is complete. */
  get status(): number {
    return this.#end < 4 ? 0 : Number(this.#text.split(" ", 2)[1]);
  }

  /** Bytes after the head: the proxy's reason for a refusal, or the first bytes that the target sent. */
  get rest(): Uint8Array {
    return this.#bytes.subarray(this.#end);
  }

  /** Node's error code for the failure that the proxy reports. */
  get code(): string {
    return /\r\nX-Hutch-Egress: (\w+)\r\n/.exec(this.#text.slice(0, this.#end))?.[1] ?? "ECONNRESET";
  }

  get reason(): string {
    return this.status ? new TextDecoder().decode(this.rest).trim() : "The proxy closed the connection.";
  }
}

/**
 * Returns the error of the last failed tunnel to a target, or undefined if the proxy has not recorded one.
 */
export async function lastFailure(
  connect: typeof Deno.connect,
  proxy: Target,
  target: Target,
): Promise<Error | undefined> {
  try {
    using connection = await connect({ hostname: proxy.host, port: proxy.port });
    await connection.write(new TextEncoder().encode(connectRequest(target, "EXPLAIN")));
    const response = new ProxyResponse();
    const buffer = new Uint8Array(4096);
    for (let count; (count = await connection.read(buffer)) !== null;) {
      response.add(buffer.subarray(0, count));
    }
    const isKnown = response.status !== 0 && response.status !== 404;
    return isKnown ? connectionError(target, response.code, response.reason) : undefined;
  } catch {
    return undefined;
  }
}
