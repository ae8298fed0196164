/** The current view and its parameters, in the fragment of the URL: `#/runs?status=failed`. */

import { computed, signal } from "@preact/signals";

export interface Location {
  /** Segments of the path, such as `["runs", "4f…"]`. */
  path: string[];
  query: URLSearchParams;
}

function parse(hash: string): Location {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

const hash = signal(globalThis.location.hash);
export const location = computed(() => parse(hash.value));

globalThis.addEventListener("hashchange", () => hash.value = globalThis.location.hash);

/** Returns the `href` of a view. Parameters that are empty or undefined are left out. */
export function link(path: string[], query: Record<string, string | undefined> = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) parameters.set(name, value);
  const text = parameters.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function navigate(path: string[], query: Record<string, string | undefined> = {}): void {
  globalThis.location.hash = link(path, query);
}

/** Changes parameters of the current view without adding an entry to the browser's history. */
export function setQuery(changes: Record<string, string | undefined>): void {
  const { path, query } = location.value;
  const merged = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", link(path, merged));
  hash.value = globalThis.location.hash;
}
