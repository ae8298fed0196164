/**
 * Difference between a VM's memory and its image: runs of 4-byte words as [words to skip, length, XOR of each
 * word].
 *
 * Reference counts change words in nearly every page of the image, so the changed words are stored and not
 * the changed pages. XOR turns a small change of a word into a few bits, which compress well.
 */

/** Runs with fewer equal words than this between them are merged, because starting a run takes two words. */
const MAX_GAP = 3;
/**
 * Memory beyond the image is stored in whole blocks of this size, because most of its words are in use.
 * Blocks that contain only 0 are left out.
 */
const BLOCK_WORDS = 64;

/**
 * Returns the difference between `memory` and `base`, or only its size in bytes if that exceeds `maxBytes`.
 * Words beyond `base` count as changed if they are not 0.
 */
export function encodeDifference(
  memory: Uint32Array,
  base: Uint32Array,
  maxBytes: number,
): Uint32Array | number {
  const shared = Math.min(memory.length, base.length), bounds: number[] = [];
  addChangedWords(bounds, memory, base, shared);
  const sharedBounds = bounds.length;
  addUsedBlocks(bounds, memory, shared);
  let size = bounds.length;
  for (let i = 0; i < bounds.length; i += 2) size += bounds[i + 1] - bounds[i];
  if (size * 4 > maxBytes) return size * 4;
  const out = new Uint32Array(size);
  for (let i = 0, at = 0, last = 0; i < bounds.length; i += 2) {
    const start = bounds[i], end = bounds[i + 1];
    out[at++] = start - last;
    out[at++] = end - start;
    if (i < sharedBounds) {
      for (let word = start; word < end; word++) out[at++] = memory[word] ^ base[word];
    } else {
      out.set(memory.subarray(start, end), at);
      at += end - start;
    }
    last = end;
  }
  return out;
}

/** Adds the start and the end of each run of words that differ from the image. */
function addChangedWords(bounds: number[], memory: Uint32Array, base: Uint32Array, shared: number): void {
  // Compare pairs of words as 64-bit integers, which takes half the time of comparing single words.
  const pairs = shared >> 1;
  const memoryPairs = new BigInt64Array(memory.buffer, memory.byteOffset, pairs);
  const basePairs = new BigInt64Array(base.buffer, base.byteOffset, pairs);
  for (let word = 0; word < shared;) {
    if (word % 2 === 0) word = 2 * skipEqualPairs(memoryPairs, basePairs, word >> 1);
    if (word === shared) break;
    if (memory[word] === base[word]) {
      word++;
      continue;
    }
    const start = word++;
    let end = word;
    while (word < shared && word - end <= MAX_GAP) {
      const isEqual = memory[word] === base[word];
      word++;
      if (!isEqual) end = word;
    }
    bounds.push(start, end);
  }
}

/** Skips groups of four equal pairs. */
function skipEqualPairs(memory: BigInt64Array, base: BigInt64Array, at: number): number {
  while (
    at + 4 <= memory.length && memory[at] === base[at] && memory[at + 1] === base[at + 1] &&
    memory[at + 2] === base[at + 2] && memory[at + 3] === base[at + 3]
  ) at += 4;
  return at;
}

/**
 * Finds the used memory after the end of the image. Appends to `bounds` where each sequence of blocks with other
 * bytes than 0 starts and ends.
 */
function addUsedBlocks(bounds: number[], memory: Uint32Array, from: number): void {
  let start = -1;
  for (let block = from; block < memory.length; block += BLOCK_WORDS) {
    const end = Math.min(block + BLOCK_WORDS, memory.length);
    let bits = 0;
    for (let word = block; word < end; word++) bits |= memory[word];
    if (bits !== 0 && start < 0) start = block;
    if (bits === 0 && start >= 0) {
      bounds.push(start, block);
      start = -1;
    }
  }
  if (start >= 0) bounds.push(start, memory.length);
}

/**
 * Applies a difference to `memory`, which must equal the image and be 0 beyond the image. Returns false if
 * the difference is invalid.
 */
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
