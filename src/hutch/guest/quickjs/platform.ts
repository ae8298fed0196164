/** Deno's URL parser and text decoders for the prelude. */

const PARTS = [
  "href",
  "origin",
  "protocol",
  "username",
  "password",
  "host",
  "hostname",
  "port",
  "pathname",
  "search",
  "hash",
] as const;
const SETTABLE: readonly string[] = PARTS.filter((part) => part !== "origin");

/**
 * Parses `href` with the base `argument` (operation `parse`), or sets a part of it to `argument`. Returns the
 * URL's parts as JSON, or "" if the URL is invalid.
 */
export function urlParts(operation: string, href: string, argument: string): string {
  try {
    const url = operation === "parse" ? new URL(href, argument || undefined) : new URL(href);
    if (SETTABLE.includes(operation)) (url as unknown as Record<string, string>)[operation] = argument;
    return JSON.stringify(Object.fromEntries(PARTS.map((part) => [part, url[part]])));
  } catch {
    return "";
  }
}

export function encodingOf(label: string): string {
  try {
    return new TextDecoder(label).encoding;
  } catch {
    return "";
  }
}

/** Returns "=" and the text, or "!" for an error of a fatal decoder. `mode`: 1 is fatal, 2 is ignoreBOM. */
export function decodeText(bytes: Uint8Array, label: string, mode: number): string {
  try {
    const decoder = new TextDecoder(label, { fatal: (mode & 1) !== 0, ignoreBOM: (mode & 2) !== 0 });
    return `=${decoder.decode(bytes)}`;
  } catch {
    return "!";
  }
}
