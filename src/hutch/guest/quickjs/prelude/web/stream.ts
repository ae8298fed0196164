/** A body as a stream: `getReader()` and `for await`. There is no other way to make one. */

import { entitle } from "../hide.ts";
import { bytesOf, type Source, tee } from "./source.ts";

const SECRET = Symbol("only a body makes a stream");

export class ReadableStream {
  #source: Source;
  #reader: Reader | null = null;
  #disturbed = false;

  constructor(key: symbol, source: Source) {
    if (key !== SECRET) throw new TypeError("Illegal constructor: a stream is the body of a response");
    this.#source = source;
  }

  static make(source: Source): ReadableStream {
    return new ReadableStream(SECRET, source);
  }

  static disturbed(stream: ReadableStream): boolean {
    return stream.#disturbed;
  }

  /** What is left of it, for whoever takes it over. */
  static take(stream: ReadableStream): Source {
    stream.#claim();
    stream.#disturbed = true;
    return stream.#source;
  }

  #claim(): Reader {
    if (this.#reader) throw new TypeError("The stream is locked to a reader");
    return this.#reader = new Reader(
      () => {
        this.#disturbed = true;
        return this.#source.pull();
      },
      () => {
        this.#disturbed = true;
        this.#source.cancel();
      },
      () => this.#reader = null,
    );
  }

  get locked(): boolean {
    return this.#reader !== null;
  }

  getReader(): Reader {
    return this.#claim();
  }

  async cancel(): Promise<void> {
    await this.#claim().cancel();
  }

  tee(): [ReadableStream, ReadableStream] {
    const [one, other] = tee(take(this));
    return [make(one), make(other)];
  }

  async *values(): AsyncGenerator<Uint8Array> {
    const reader = this.#claim();
    let ended = false;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          ended = true;
          return;
        }
        yield value!;
      }
    } finally {
      if (!ended) await reader.cancel();
      reader.releaseLock();
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    return this.values();
  }
}

class Reader {
  #pull: (() => ReturnType<Source["pull"]>) | null;
  #cancel: () => void;
  #release: () => void;
  #last: Promise<unknown> = Promise.resolve();
  #finish!: () => void;
  readonly closed: Promise<void>;

  constructor(pull: () => ReturnType<Source["pull"]>, cancel: () => void, release: () => void) {
    this.#pull = pull;
    this.#cancel = cancel;
    this.#release = release;
    this.closed = new Promise((resolve) => this.#finish = resolve);
  }

  /** Reads that were not awaited follow each other. */
  read(): Promise<{ done: boolean; value?: Uint8Array }> {
    const pull = this.#pull;
    if (!pull) return Promise.reject(new TypeError("The reader has released its stream"));
    const next = this.#last.then(async () => {
      const piece = await pull();
      if (piece !== null) return { done: false, value: bytesOf(piece) };
      this.#finish();
      return { done: true, value: undefined };
    });
    this.#last = next.catch(() => {});
    return next;
  }

  cancel(): Promise<void> {
    if (!this.#pull) return Promise.reject(new TypeError("The reader has released its stream"));
    this.#cancel();
    this.#finish();
    this.#pull = () => Promise.resolve(null);
    return Promise.resolve();
  }

  releaseLock(): void {
    this.#pull = null;
    this.#release();
  }
}

export const { make, disturbed, take } = ReadableStream;
delete (ReadableStream as any).make;
delete (ReadableStream as any).disturbed;
delete (ReadableStream as any).take;
entitle("ReadableStream", ReadableStream);
entitle("ReadableStreamDefaultReader", Reader);
