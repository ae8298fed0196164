/** Log lines of a guest, limited by number and by total characters; the last line is truncated. */

export class Logs {
  readonly lines: string[] = [];
  truncated = false;
  #maxLines: number;
  #charsLeft: number;

  constructor(maxLines: number, maxChars: number) {
    this.#maxLines = maxLines;
    this.#charsLeft = maxChars;
  }

  /** Returns false if the line was dropped. */
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
