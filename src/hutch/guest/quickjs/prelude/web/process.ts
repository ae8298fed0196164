/** `process.env`, which is empty: there are wrappers that look. */

import { hide } from "../hide.ts";

hide("process", { env: {} });
