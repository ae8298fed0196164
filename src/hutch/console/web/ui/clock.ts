/** The time for everything that shows an age. One timer serves all of them. */

import { signal } from "@preact/signals";

const TICK_MS = 5_000;

/** Milliseconds since 1970, every few seconds while the page is visible. */
export const clock = signal(Date.now());

const tick = () => document.hidden || (clock.value = Date.now());
setInterval(tick, TICK_MS);
document.addEventListener("visibilitychange", tick);
