/** Messages between host and runner: the Execbox messages and extensions, one JSON object per line. */

import { type FileInfo } from "./files.ts";
import { type SuspendedState, type VmState } from "./quickjs/suspension.ts";

/** Captures the functions here, before guest code can replace them. */
const { parse, stringify } = JSON;

export interface Options {
  timeoutMs: number;
  memoryLimitBytes: number;
  maxLogLines: number;
  maxLogChars: number;
  /** Extension: maximum size of a result's JSON text. */
  maxResultBytes?: number;
  /** Extension: also send each log line while the execution runs. */
  streamLogs?: boolean;
  /** Extension: send the source line of each tool call. */
  sendCallLines?: boolean;
  /** Extension that only the host sends: the input files. Present if the guest has `files` and `display`. */
  files?: FileInfo[];
}

export interface Manifest {
  name: string;
  /** Extension: `streams` if the host sends the items of the tool's result one by one. */
  tools: Record<string, { safeName: string; originalName: string; description?: string; streams?: boolean }>;
  types: string;
}

export interface Execute {
  type: "execute";
  id: string;
  code: string;
  options: Options;
  providers: Manifest[];
  /** Extension: values of global variables. */
  inputs?: Record<string, unknown>;
  /** Extension that only the host sends: an instruction to do something other than run the code. */
  job?: Job;
  /** Extension that only the host sends: state of the suspended execution to continue. */
  state?: SuspendedState;
  /** Extension that only the host sends: the execution is a turn of a session. */
  turn?: Turn;
}

/**
 * A turn starts with the memory of the previous turn. The runner sends the turn's own memory before its
 * `done`.
 */
export interface Turn {
  number: number;
  /** With `variables`, the runner returns the session's variables instead of running the code. */
  form: "run" | "variables";
  /** Maximum size of the memory's difference to the image. */
  maxBytes: number;
  /** State of the VM besides the memory, which was sent before; absent for the first turn. */
  vm?: VmState;
}

export interface Job {
  /**
   * With `prepare`, the runner returns the program made from `code`. With `program`, `input` is such a
   * program.
   */
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

/** Extension: an item of the result of a call with `stream`. The call ends with a `tool_result`. */
export interface ToolItem {
  type: "tool_item";
  callId: string;
  item: unknown;
}

/** Extension: sends the state of an execution when it next waits, and ends it in this runner. */
export interface Suspend {
  type: "suspend";
  id: string;
  /**
   * If the difference between the execution's memory and the image is larger than this, the execution
   * continues.
   */
  maxBytes: number;
}

/** Extension: a part of a suspended execution's memory in Base64. All parts precede `suspended` or `execute`. */
export interface MemoryPart {
  type: "memory";
  id: string;
  data: string;
}

/** Extension: the process is idle and may run code that is slow only the first time. */
export interface WarmUp {
  type: "warm_up";
}

/**
 * Extension: extends the time limit of an execution, because the limit is paused while a call waits for an
 * approval.
 */
export interface Extend {
  type: "extend";
  id: string;
  /** Milliseconds to add, possibly negative. */
  ms: number;
}

export type HostMessage = Execute | Cancel | ToolResult | ToolItem | Suspend | MemoryPart | Extend;

/** Error of an execution. Fields other than code and message are extensions, set if known. */
export interface Failure {
  code: string;
  message: string;
  name?: string;
  line?: number;
  column?: number;
  /** The guest's frames, one per line. */
  stack?: string;
}

export interface Outcome {
  ok: boolean;
  /** JSON text, absent for `undefined`. */
  result?: string;
  error?: Failure;
  logs: string[];
  logsTruncated: boolean;
  durationMs: number;
  /** Extension: state of the VM after a turn of a session. */
  vm?: VmState;
  /** Extension: number of tool calls whose results the guest has not received. */
  openCalls?: number;
}

export function startedLine(id: string): string {
  return `{"type":"started","id":${stringify(id)}}\n`;
}

/** Extension: a log line of a running execution. */
export function logLine(id: string, line: string): string {
  return `{"type":"log","id":${stringify(id)},"lines":[${stringify(line)}]}\n`;
}

export function memoryLine(id: string, data: string): string {
  return `{"type":"memory","id":${stringify(id)},"data":"${data}"}\n`;
}

/** Reply to `suspend`: the state, or the size of a memory that is too large. */
export function suspendedLine(id: string, outcome: { state: SuspendedState } | { tooLarge: number }): string {
  return `{"type":"suspended","id":${stringify(id)},${stringify(outcome).slice(1)}\n`;
}

/** `target` comes from `callTargets`; `input` is one line of valid JSON. */
export function toolCallLine(
  id: string,
  callId: string,
  target: string,
  input: string,
  line?: number,
): string {
  const at = line ? `,"line":${line}` : "";
  return `{"type":"tool_call","id":${stringify(id)},"callId":"${callId}",${target}${at},"input":${input}}\n`;
}

/** The tools behind `files` and `display`. No provider can have this name, because it is not an identifier. */
const FILE_TARGETS = ["read", "write"].map((tool) => `"providerName":"hutch:files","safeToolName":"${tool}"`);

/**
 * Returns the JSON fields that name the tool of a call: one text for each tool, in the order of the tools, and
 * then, if the guest has files, one for each function of `files`.
 */
export function callTargets(providers: Manifest[], files?: FileInfo[]): string[] {
  const targets = providers.flatMap(({ name, tools }) =>
    Object.keys(tools).map((tool) => {
      const stream = tools[tool].streams ? ',"stream":true' : "";
      return `"providerName":${stringify(name)},"safeToolName":${stringify(tool)}${stream}`;
    })
  );
  return files ? [...targets, ...FILE_TARGETS] : targets;
}

export function isFileTarget(target: string): boolean {
  return target === FILE_TARGETS[0] || target === FILE_TARGETS[1];
}

/** Returns each namespace with the names of its tools and, if some of these tools stream, with their names. */
export function providerTools(providers: Manifest[]): [string, string[], string[]?][] {
  return providers.map(({ name, tools }) => {
    const names = Object.keys(tools), streaming = names.filter((tool) => tools[tool].streams === true);
    return streaming.length ? [name, names, streaming] : [name, names];
  });
}

const MAX_LISTED = 20;

/** Hint for the caller of an unknown tool. */
export function availableTools(namespace: string, tools: string[]): string {
  return `${namespace} has ${tools.slice(0, MAX_LISTED).join(", ")}${tools.length > MAX_LISTED ? ", …" : ""}`;
}

export function doneLine(id: string, outcome: Outcome): string {
  const { ok, result, error, logs, logsTruncated, durationMs, vm, openCalls } = outcome;
  const head = `{"type":"done","id":${stringify(id)},"ok":${ok},"durationMs":${durationMs},` +
    `"logs":[${jsonStrings(logs)}]${logsTruncated ? ',"logsTruncated":true' : ""}` +
    (vm ? `,"vm":{"pages":${vm.pages},"faults":${vm.faults}}` : "") +
    (openCalls ? `,"openCalls":${openCalls}` : "");
  if (ok) return result === undefined ? `${head}}\n` : `${head},"result":${result}}\n`;
  return `${head},"error":{${errorFields(error!)}}}\n`;
}

/** Encodes each field separately: for an object, a guest in the same realm could define `toJSON`. */
function errorFields({ code, message, name, line, column, stack }: Failure): string {
  let text = `"code":${stringify(code)},"message":${stringify(message)}`;
  if (name) text += `,"name":${stringify(name)}`;
  if (line) text += `,"line":${line},"column":${column}`;
  return stack ? `${text},"stack":${stringify(stack)}` : text;
}

function jsonStrings(lines: string[]): string {
  let text = "";
  for (let i = 0; i < lines.length; i++) text += (i ? "," : "") + stringify(lines[i]);
  return text;
}

/** One less than the host's limit for nesting, because the message adds a level. */
const MAX_DEPTH = 127;

/**
 * Returns true if text from a guest can be copied into a message: one line of valid JSON, not nested too
 * deeply.
 */
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
  writeSync?(bytes: Uint8Array): number;
}

function depth(text: string): number {
  let current = 0, max = 0;
  for (let i = 0, quoted = false; text.length > 2 * MAX_DEPTH && i < text.length; i++) {
    const char = text.charCodeAt(i);
    if (quoted) {
      if (char === 92) i++;
      else if (char === 34) quoted = false;
    } else if (char === 34) quoted = true;
    else if (char === 91 || char === 123) max = Math.max(max, ++current);
    else if (char === 93 || char === 125) current--;
  }
  return max;
}

/**
 * Schedules writes with microtasks, because `setImmediate` and `setTimeout` load Node's timers, which takes
 * 15 ms. The function is captured here, before a guest can replace it.
 */
const schedule = queueMicrotask;

const encoder = new TextEncoder();

/** Reads messages, and sends all lines of one turn of the event loop in one write. */
export class Wire {
  #pipe: Pipe;
  #out = "";
  #writing = false;
  #encode = encoder.encode.bind(encoder);
  #encodeInto = encoder.encodeInto.bind(encoder);
  #buffer = new Uint8Array(4096);
  #drained: (() => void)[] = [];
  /** Number of lines received, including invalid ones. */
  linesReceived = 0;

  constructor(pipe: Pipe) {
    this.#pipe = pipe;
  }

  send(line: string): void {
    this.#out += line;
    if (this.#writing) return;
    this.#writing = true;
    schedule(() => this.#pipe.writeSync ? this.flush() : this.#flush());
  }

  /** Writes everything immediately. Needs `writeSync`. */
  flush(): void {
    const bytes = this.#encodeShort(this.#out) ?? this.#encode(this.#out);
    this.#out = "";
    this.#writing = false;
    for (let at = 0; at < bytes.length;) at += this.#pipe.writeSync!(at ? bytes.subarray(at) : bytes);
  }

  /** Encodes a text into a buffer that is used again, which takes half the time of a new array. */
  #encodeShort(text: string): Uint8Array | undefined {
    if (3 * text.length > this.#buffer.length) return undefined;
    return this.#buffer.subarray(0, this.#encodeInto(text, this.#buffer).written);
  }

  /** Resolves when everything sent so far is written. */
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

  /**
   * Receives messages until the host closes its end. Ignores invalid JSON, because other executions must
   * continue.
   */
  async listen(receive: (message: HostMessage) => void): Promise<void> {
    const buffer = new Uint8Array(65536);
    const decoder = new TextDecoder();
    let parts: string[] = [];
    for (;;) {
      const count = await this.#pipe.read(buffer);
      if (count === null) return;
      const lines = decoder.decode(buffer.subarray(0, count), { stream: true }).split("\n");
      for (const line of lines.slice(0, -1)) {
        this.linesReceived++;
        parts.push(line);
        const message = parseMessage(parts.join(""));
        parts = [];
        if (message) receive(message);
      }
      parts.push(lines.at(-1)!);
    }
  }
}

function parseMessage(line: string): HostMessage | undefined {
  try {
    return parse(line);
  } catch {
    return undefined;
  }
}
