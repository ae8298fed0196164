/** What a guest printed, within the limits: lines first, then characters over all, the last line clipped. */

export class Logs {
  readonly lines: string[] = [];
  truncated = false;
  #maxLines: number;
  #charsLeft: number;

  constructor(maxLines: number, maxChars: number) {
    this.#maxLines = maxLines;
    this.#charsLeft = maxChars;
  }

  /** Keeps a line; answers whether a further one could still be kept. */
  add(line: string): boolean {
    if (this.lines.length >= this.#maxLines || this.#charsLeft <= 0) {
      this.truncated = true;
      return false;
    }
    if (line.length > this.#charsLeft) {
      line = line.slice(0, this.#charsLeft);
      this.truncated = true;
    }
    this.#charsLeft -= line.length;
    this.lines.push(line.toWellFormed());
    return true;
  }
}
