/** TypeScript's part as a script of its own, because it takes longest to load. Its value is `strip`. */

import { strip } from "./strip.ts";

(globalThis as { __hutch_entry?: unknown }).__hutch_entry = strip;
