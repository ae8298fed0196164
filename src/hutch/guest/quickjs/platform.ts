/** What the prelude borrows of the runner's own platform: URL and text decoding, both without side effects. */

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

/** `parse` with a base, or a part to set to `argument`; the URL's parts as JSON, or "" when it is none. */
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

/** "=" and the text, or "!" when a fatal decoder finds an error; mode is 1 for fatal, 2 for keeping the BOM. */
export function decodeText(bytes: Uint8Array, label: string, mode: number): string {
  try {
    const decoder = new TextDecoder(label, { fatal: (mode & 1) !== 0, ignoreBOM: (mode & 2) !== 0 });
    return `=${decoder.decode(bytes)}`;
  } catch {
    return "!";
  }
}
