/** Makes axe-core a global of the page, for the browser tests. */

import axe from "axe-core";

(globalThis as { axe?: unknown }).axe = axe;
