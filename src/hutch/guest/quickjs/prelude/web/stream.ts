/** `ReadableStream` of a body, with `getReader()` and `for await`. Guests cannot construct one. */

import { nameClass } from "../define.ts";
import { bytesOf, type Source, tee } from "./source.ts";

const CONSTRUCTOR_KEY = Symbol("only a body creates a stream");

export class ReadableStream {
  #source: Source;
  #reader: Reader | null = null;
  #disturbed = false;

  constructor(key: symbol, source: Source) {
    if (key !== CONSTRUCTOR_KEY) {
      throw new TypeError("Illegal constructor: a stream is the body of a response");
    }
    this.#source = source;
  }

  static createStream(source: Source): ReadableStream {
    return new ReadableStream(CONSTRUCTOR_KEY, source);
  }

  static isDisturbed(stream: ReadableStream): boolean {
    return stream.#disturbed;
  }

  /** Locks the stream and returns the source of the rest. */
  static takeSource(stream: ReadableStream): Source {
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
    const [one, other] = tee(takeSource(this));
    return [createStream(one), createStream(other)];
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
  #lastRead: Promise<unknown> = Promise.resolve();
  #close!: () => void;
  readonly closed: Promise<void>;

  constructor(pull: () => ReturnType<Source["pull"]>, cancel: () => void, release: () => void) {
    this.#pull = pull;
    this.#cancel = cancel;
    this.#release = release;
    this.closed = new Promise((resolve) => this.#close = resolve);
  }

  /** Concurrent reads are queued. */
  read(): Promise<{ done: boolean; value?: Uint8Array }> {
    const pull = this.#pull;
    if (!pull) return Promise.reject(new TypeError("The reader was released from its stream"));
    const next = this.#lastRead.then(async () => {
      const piece = await pull();
      if (piece !== null) return { done: false, value: bytesOf(piece) };
      this.#close();
      return { done: true, value: undefined };
    });
    this.#lastRead = next.catch(() => {});
    return next;
  }

  cancel(): Promise<void> {
    if (!this.#pull) return Promise.reject(new TypeError("The reader was released from its stream"));
    this.#cancel();
    this.#close();
    this.#pull = () => Promise.resolve(null);
    return Promise.resolve();
  }

  releaseLock(): void {
    this.#pull = null;
    this.#release();
  }
}

export const { createStream, isDisturbed, takeSource } = ReadableStream;
delete (ReadableStream as any).createStream;
delete (ReadableStream as any).isDisturbed;
delete (ReadableStream as any).takeSource;
nameClass("ReadableStream", ReadableStream);
nameClass("ReadableStreamDefaultReader", Reader);
