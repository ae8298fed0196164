/** The current time for all components that show an age, updated by one timer. */

import { signal } from "@preact/signals";

const TICK_MS = 5_000;

/** Milliseconds since 1970. Updated every few seconds while the page is visible. */
export const clock = signal(Date.now());

const tick = () => document.hidden || (clock.value = Date.now());
setInterval(tick, TICK_MS);
document.addEventListener("visibilitychange", tick);
