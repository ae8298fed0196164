/** Script `zod3.js`, loaded only for tools with Zod 3 schemas. Its value is the converter. */

import { fromSchema, fromShape, type Zod3Converter } from "./convert.ts";

const converter: Zod3Converter = { fromSchema, fromShape };
(globalThis as { __hutch_entry?: unknown }).__hutch_entry = converter;
