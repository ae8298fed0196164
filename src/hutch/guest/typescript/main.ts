/** Script `typescript.js`, loaded only when needed because it takes longest to load. Its value is `strip`. */

import { strip } from "./strip.ts";

(globalThis as { __hutch_entry?: unknown }).__hutch_entry = strip;
