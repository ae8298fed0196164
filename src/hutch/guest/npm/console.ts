/** Every way in which a package can print, made into lines of the logs. */

type Print = (line: string) => void;

/** Deno's own console, which takes a function that prints; it is not among the public ones. */
type Console = new (print: (text: string, level: number) => void) => typeof globalThis.console;

/** Text that waits for the end of its line is printed as it is from this length on. */
const MAX_WAITING = 65_536;

const { apply } = Reflect;
const { decode } = TextDecoder.prototype;

class Lines {
  #rest = "";
  #print: Print;

  constructor(print: Print) {
    this.#print = print;
  }

  /** What one call of the console printed is one line of the logs, however many it has itself. */
  entry(text: string): void {
    this.#rest += text;
    if (this.#rest.endsWith("\n")) this.#say(this.#rest.slice(0, -1));
  }

  write(text: string): void {
    const lines = (this.#rest + text).split("\n");
    for (let i = 0; i < lines.length - 1; i++) this.#print(lines[i]);
    this.#rest = lines[lines.length - 1];
    if (this.#rest.length > MAX_WAITING) this.flush();
  }

  flush(): void {
    if (this.#rest) this.#say(this.#rest);
  }

  #say(line: string): void {
    this.#rest = "";
    this.#print(line);
  }
}

/** Takes over the console, stdout and stderr. What it gives prints the lines that have not ended yet. */
export function adoptConsole(print: Print): () => void {
  const { Console } = (Deno as any)[(Deno as any).internal] as { Console: Console };
  const said = new Lines(print), written = new Lines(print), complained = new Lines(print);
  Object.assign(console, new Console((text) => said.entry(text)), { clear() {} });
  adoptStream(Deno.stdout, written);
  adoptStream(Deno.stderr, complained);
  return () => {
    said.flush();
    written.flush();
    complained.flush();
  };
}

/** Node's `process.stdout` writes through this one too. */
function adoptStream(stream: typeof Deno.stdout, lines: Lines): void {
  const decoder = new TextDecoder();
  const writeSync = (bytes: Uint8Array) => {
    lines.write(apply(decode, decoder, [bytes, { stream: true }]));
    return bytes.byteLength;
  };
  Object.assign(stream, { writeSync, write: (bytes: Uint8Array) => Promise.resolve(writeSync(bytes)) });
}
