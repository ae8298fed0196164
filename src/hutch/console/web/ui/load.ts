/** Loads data for a view. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.ts";

export interface Loaded<T> {
  data?: T;
  error?: unknown;
  reload: () => void;
}

/**
 * Requests `path` again whenever it changes, and every `everyMs` while the page is visible. Keeps the
 * previous data until the next response arrives, so that nothing flickers.
 */
export function useData<T = any>(path: string | undefined, everyMs = 0): Loaded<T> {
  const [state, setState] = useState<{ data?: T; error?: unknown }>({});
  const [turn, setTurn] = useState(0);
  const shownPath = useRef<string | undefined>(undefined);
  useEffect(() => {
    if (path === undefined) return;
    if (shownPath.current?.split("?")[0] !== path.split("?")[0]) setState({});
    shownPath.current = path;
    const controller = new AbortController();
    get<T>(path, controller.signal).then(
      (data) => setState({ data }),
      (error) => controller.signal.aborted || setState((old) => ({ ...old, error })),
    );
    return () => controller.abort();
  }, [path, turn]);
  useEffect(() => {
    if (!everyMs) return;
    const timer = setInterval(() => document.hidden || setTurn((count) => count + 1), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return { ...state, reload: useCallback(() => setTurn((count) => count + 1), []) };
}
