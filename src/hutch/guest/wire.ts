/** What is said between host and runner: the six Execbox messages, one JSON object a line. */

/** Taken before guest code can replace them. */
const { parse, stringify } = JSON;

export interface Options {
  timeoutMs: number;
  memoryLimitBytes: number;
  maxLogLines: number;
  maxLogChars: number;
  /** Ours: the most bytes of a result's JSON text. */
  maxResultBytes?: number;
}

export interface Manifest {
  name: string;
  tools: Record<string, { safeName: string; originalName: string; description?: string }>;
  types: string;
}

export interface Execute {
  type: "execute";
  id: string;
  code: string;
  options: Options;
  providers: Manifest[];
  /** Ours: what else is to be done with the code, and with what; no Execbox client can ask for it. */
  job?: Job;
}

export interface Job {
  /** `prepare` answers with the program that `code` makes, which another runner gets as `program`. */
  form: "wrapper" | "transform" | "headers" | "prepare" | "program";
  /** JSON text. */
  input: string;
}

export interface Cancel {
  type: "cancel";
  id: string;
}

export interface ToolResult {
  type: "tool_result";
  callId: string;
  ok: boolean;
  result?: unknown;
  error?: { code: string; message: string };
}

/** Ours: nobody has wanted this process for a moment, so that it may do what is slow the first time. */
export interface Rehearse {
  type: "rehearse";
}

export type HostMessage = Execute | Cancel | ToolResult;

/** An execution's error; name, line and column are ours, and only where they are known. */
export interface Failure {
  code: string;
  message: string;
  name?: string;
  line?: number;
  column?: number;
}

export interface Outcome {
  ok: boolean;
  /** JSON text, absent for `undefined`. */
  result?: string;
  error?: Failure;
  logs: string[];
  logsTruncated: boolean;
  durationMs: number;
}

export function startedLine(id: string): string {
  return `{"type":"started","id":${stringify(id)}}\n`;
}

/** `target` is a tool's `targets` entry, `input` one line of valid JSON. */
export function toolCallLine(id: string, callId: string, target: string, input: string): string {
  return `{"type":"tool_call","id":${stringify(id)},"callId":"${callId}",${target},"input":${input}}\n`;
}

/** For every tool, in order, how a call of it names it on the wire. */
export function targets(providers: Manifest[]): string[] {
  return providers.flatMap(({ name, tools }) =>
    Object.keys(tools).map((tool) => `"providerName":${stringify(name)},"safeToolName":${stringify(tool)}`)
  );
}

/** Namespaces and the names of their tools, as the guest needs them. */
export function lendable(providers: Manifest[]): [string, string[]][] {
  return providers.map(({ name, tools }) => [name, Object.keys(tools)]);
}

const MOST_NAMED = 20;

/** What those are told of who called a tool that is not there. */
export function whatHas(namespace: string, tools: string[]): string {
  return `${namespace} has ${tools.slice(0, MOST_NAMED).join(", ")}${tools.length > MOST_NAMED ? ", …" : ""}`;
}

export function doneLine(id: string, outcome: Outcome): string {
  const { ok, result, error, logs, logsTruncated, durationMs } = outcome;
  const head = `{"type":"done","id":${stringify(id)},"ok":${ok},"durationMs":${durationMs},` +
    `"logs":[${written(logs)}]${logsTruncated ? ',"logsTruncated":true' : ""}`;
  if (ok) return result === undefined ? `${head}}\n` : `${head},"result":${result}}\n`;
  return `${head},"error":{${failureText(error!)}}}\n`;
}

/** Piece by piece: of a whole object or array, a guest in the same realm could have a say by `toJSON`. */
function failureText({ code, message, name, line, column }: Failure): string {
  let text = `"code":${stringify(code)},"message":${stringify(message)}`;
  if (name) text += `,"name":${stringify(name)}`;
  return line ? `${text},"line":${line},"column":${column}` : text;
}

function written(lines: string[]): string {
  let text = "";
  for (let i = 0; i < lines.length; i++) text += (i ? "," : "") + stringify(lines[i]);
  return text;
}

/** One less than what the host takes, for the message around it. */
const MAX_DEPTH = 127;

/** Whether guest-made text may stand in a message as it is: one line of valid JSON that nests within bounds. */
export function isJson(text: string): boolean {
  if (text.includes("\n") || depth(text) > MAX_DEPTH) return false;
  try {
    parse(text);
    return true;
  } catch {
    return false;
  }
}

export interface Pipe {
  read(buffer: Uint8Array): Promise<number | null>;
  write(bytes: Uint8Array): Promise<number>;
  /** Where there is one: a write that is done when it returns. */
  writeSync?(bytes: Uint8Array): number;
}

function depth(text: string): number {
  let now = 0, most = 0;
  for (let i = 0, quoted = false; text.length > 2 * MAX_DEPTH && i < text.length; i++) {
    const char = text.charCodeAt(i);
    if (quoted) {
      if (char === 92) i++;
      else if (char === 34) quoted = false;
    } else if (char === 34) quoted = true;
    else if (char === 91 || char === 123) most = Math.max(most, ++now);
    else if (char === 93 || char === 125) now--;
  }
  return most;
}

/** Not `setImmediate` or `setTimeout`, whose first use loads 15 ms of Node; taken before a guest can replace it. */
const soon = queueMicrotask;

const encoder = new TextEncoder();

/** Reads messages and batches writes: whatever is said in one turn leaves in one write. */
export class Wire {
  #pipe: Pipe;
  #out = "";
  #writing = false;
  #encode = encoder.encode.bind(encoder);
  #drained: (() => void)[] = [];
  /** Lines that came, of whatever kind. */
  heard = 0;

  constructor(pipe: Pipe) {
    this.#pipe = pipe;
  }

  send(line: string): void {
    this.#out += line;
    if (this.#writing) return;
    this.#writing = true;
    soon(() => this.#pipe.writeSync ? this.flush() : this.#flush());
  }

  /** Everything said so far leaves now, whatever comes next; only with `writeSync`. */
  flush(): void {
    const bytes = this.#encode(this.#out);
    this.#out = "";
    this.#writing = false;
    for (let at = 0; at < bytes.length;) at += this.#pipe.writeSync!(bytes.subarray(at));
  }

  /** Resolves when everything said so far has left. */
  drained(): Promise<void> {
    if (!this.#writing) return Promise.resolve();
    return new Promise((resolve) => this.#drained.push(resolve));
  }

  async #flush(): Promise<void> {
    while (this.#out !== "") {
      const bytes = this.#encode(this.#out);
      this.#out = "";
      for (let at = 0; at < bytes.length;) at += await this.#pipe.write(bytes.subarray(at));
    }
    this.#writing = false;
    for (const resolve of this.#drained.splice(0)) resolve();
  }

  /** Until the host's end closes. What is no JSON is dropped: it must not take everybody else along. */
  async listen(receive: (message: HostMessage) => void): Promise<void> {
    const buffer = new Uint8Array(65536);
    const decoder = new TextDecoder();
    let parts: string[] = [];
    for (;;) {
      const count = await this.#pipe.read(buffer);
      if (count === null) return;
      const lines = decoder.decode(buffer.subarray(0, count), { stream: true }).split("\n");
      for (const line of lines.slice(0, -1)) {
        this.heard++;
        parts.push(line);
        const message = understood(parts.join(""));
        parts = [];
        if (message) receive(message);
      }
      parts.push(lines.at(-1)!);
    }
  }
}

function understood(line: string): HostMessage | undefined {
  try {
    return parse(line);
  } catch {
    return undefined;
  }
}
