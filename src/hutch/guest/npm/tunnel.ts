/** What is said to a proxy to be connected to somebody, and what it answers. */

export interface Target {
  host: string;
  port: number;
}

export function request({ host, port }: Target): string {
  const authority = host.includes(":") && !host.startsWith("[") ? `[${host}]:${port}` : `${host}:${port}`;
  return `CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`;
}

export class Answer {
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

  /** 0 until it is known. */
  get status(): number {
    return this.#end < 4 ? 0 : Number(this.#text.split(" ", 2)[1]);
  }

  /** What came after the head: of a refusal its reason, else the first that the other side said. */
  get rest(): Uint8Array {
    return this.#bytes.subarray(this.#end);
  }

  get reason(): string {
    return this.status ? new TextDecoder().decode(this.rest).trim() : "The proxy closed the connection.";
  }
}

/** Why the proxy does not connect to a target; undefined when it does, or does not answer. */
export async function ask(connect: typeof Deno.connect, proxy: Target, target: Target) {
  try {
    using connection = await connect({ hostname: proxy.host, port: proxy.port });
    await connection.write(new TextEncoder().encode(request(target)));
    const answer = new Answer();
    const buffer = new Uint8Array(4096);
    for (let count; (count = await connection.read(buffer)) !== null;) {
      answer.add(buffer.subarray(0, count));
      if (answer.status === 200) return undefined;
    }
    return answer.reason;
  } catch {
    return undefined;
  }
}
