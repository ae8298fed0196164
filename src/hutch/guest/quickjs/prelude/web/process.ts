/** An empty `process.env`, because some wrappers read it. */

import { defineGlobal } from "../define.ts";

defineGlobal("process", { env: {} });
