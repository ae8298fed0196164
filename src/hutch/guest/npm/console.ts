/** Captures everything that a package prints as log lines. */

type Print = (line: string) => void;

/** Deno's internal console class, whose constructor takes a print function. */
type Console = new (print: (text: string, level: number) => void) => typeof globalThis.console;

/** Maximum length of an unfinished line. A longer one is printed before its line break arrives. */
const MAX_PARTIAL_LINE = 65_536;

const { apply } = Reflect;
const { decode } = TextDecoder.prototype;

class Lines {
  #rest = "";
  #print: Print;

  constructor(print: Print) {
    this.#print = print;
  }

  /** Adds the text of one console call, which becomes one log line even if it contains line breaks. */
  addEntry(text: string): void {
    this.#rest += text;
    if (this.#rest.endsWith("\n")) this.#printLine(this.#rest.slice(0, -1));
  }

  write(text: string): void {
    const lines = (this.#rest + text).split("\n");
    for (let i = 0; i < lines.length - 1; i++) this.#print(lines[i]);
    this.#rest = lines[lines.length - 1];
    if (this.#rest.length > MAX_PARTIAL_LINE) this.flush();
  }

  flush(): void {
    if (this.#rest) this.#printLine(this.#rest);
  }

  #printLine(line: string): void {
    this.#rest = "";
    this.#print(line);
  }
}

/** Captures the console, stdout and stderr. Returns a function that prints unfinished lines. */
export function captureConsole(print: Print): () => void {
  const { Console } = (Deno as any)[(Deno as any).internal] as { Console: Console };
  const consoleLines = new Lines(print), stdoutLines = new Lines(print), stderrLines = new Lines(print);
  Object.assign(console, new Console((text) => consoleLines.addEntry(text)), { clear() {} });
  captureStream(Deno.stdout, stdoutLines);
  captureStream(Deno.stderr, stderrLines);
  return () => {
    consoleLines.flush();
    stdoutLines.flush();
    stderrLines.flush();
  };
}

/** Node's `process.stdout` also writes through these methods. */
function captureStream(stream: typeof Deno.stdout, lines: Lines): void {
  const decoder = new TextDecoder();
  const writeSync = (bytes: Uint8Array) => {
    lines.write(apply(decode, decoder, [bytes, { stream: true }]));
    return bytes.byteLength;
  };
  Object.assign(stream, { writeSync, write: (bytes: Uint8Array) => Promise.resolve(writeSync(bytes)) });
}
