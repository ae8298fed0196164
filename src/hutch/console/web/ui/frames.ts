/** Spreads drawing over animation frames, so that no task of the page takes long. */

const waiting = new Map<object, () => void>();
let isScheduled = false;

/**
 * Calls `draw` in one of the next frames. Each frame makes only one such call. A later call with the same key
 * replaces one that is still waiting. While the page is hidden, there are no frames, so only the last call
 * for each key is made when the page is shown again.
 */
export function inFrame(key: object, draw: () => void): void {
  waiting.set(key, draw);
  schedule();
}

/** Drops the call with this key that waits for a frame, if there is one. */
export function cancelFrame(key: object): void {
  waiting.delete(key);
}

function schedule(): void {
  if (isScheduled || !waiting.size) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const [next] = waiting;
    if (!next) return;
    const [key, draw] = next;
    waiting.delete(key);
    try {
      draw();
    } finally {
      schedule();
    }
  });
}
