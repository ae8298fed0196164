/**
 * Difference of a VM's memory to its image: words of 4 bytes, as runs of [words to skip, length, XOR of each word].
 *
 * Reference counts change words in nearly every page of the image, so the changed words are stored and not the
 * changed pages. XOR turns a small change of a word into a few bits, which compress well.
 */

/** A run continues over fewer equal words than this, because starting another run takes two words. */
const MAX_GAP = 3;

/** Words beyond `base` count as changed if they are not 0. */
export function encodeDifference(memory: Uint32Array, base: Uint32Array): Uint32Array {
  const bounds = changedRuns(memory, base);
  let size = bounds.length;
  for (let i = 0; i < bounds.length; i += 2) size += bounds[i + 1] - bounds[i];
  const out = new Uint32Array(size);
  for (let i = 0, at = 0, end = 0; i < bounds.length; i += 2) {
    out[at++] = bounds[i] - end;
    end = bounds[i + 1];
    out[at++] = end - bounds[i];
    for (let word = bounds[i]; word < end; word++) {
      out[at++] = word < base.length ? memory[word] ^ base[word] : memory[word];
    }
  }
  return out;
}

/** Returns the start and the end of each run, one after the other. */
function changedRuns(memory: Uint32Array, base: Uint32Array): number[] {
  const bounds: number[] = [], shared = Math.min(memory.length, base.length);
  for (let word = 0; word < memory.length;) {
    if (memory[word] === (word < shared ? base[word] : 0)) {
      word++;
      continue;
    }
    const start = word++;
    let end = word;
    while (word < memory.length && word - end <= MAX_GAP) {
      const isEqual = memory[word] === (word < shared ? base[word] : 0);
      word++;
      if (!isEqual) end = word;
    }
    bounds.push(start, end);
  }
  return bounds;
}

/** Changes `memory`, which equals the image and is 0 beyond it. Returns false if the difference is invalid. */
export function applyDifference(memory: Uint32Array, words: Uint32Array): boolean {
  let to = 0;
  for (let at = 0; at < words.length;) {
    if (at + 2 > words.length) return false;
    to += words[at++];
    const length = words[at++];
    if (to + length > memory.length || at + length > words.length) return false;
    for (const end = to + length; to < end;) memory[to++] ^= words[at++];
  }
  return true;
}
