/**
 * Requests to the server. If the session has expired, a request shows the sign-in form over the unchanged
 * page.
 */

import { signal } from "@preact/signals";
import { cancelFrame, inFrame } from "./ui/frames.ts";

export interface Session {
  signedIn: boolean;
  version: string;
  role?: "admin" | "user";
  user?: string | null;
  csrf?: string | null;
  needsKey?: boolean;
  reason?: string;
}

/** Undefined until the server has answered for the first time. */
export const session = signal<Session | undefined>(undefined);
/** The reason why the server cannot be reached; undefined while it can. */
export const offline = signal<string | undefined>(undefined);

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly body: any) {
    super(message);
  }
}

export async function loadSession(): Promise<void> {
  session.value = await request("GET", "/console/session");
}

export async function signIn(credentials: { link: string } | { key: string }): Promise<void> {
  await request("POST", "/console/session", credentials);
  await loadSession();
}

export async function signOut(): Promise<void> {
  await request("DELETE", "/console/session");
  await loadSession();
}

export function get<T = any>(path: string, signal?: AbortSignal): Promise<T> {
  return request("GET", path, undefined, signal);
}

export function post<T = any>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return request("POST", path, body ?? {}, signal);
}

export function put<T = any>(path: string, body: unknown): Promise<T> {
  return request("PUT", path, body);
}

export function remove<T = any>(path: string): Promise<T> {
  return request("DELETE", path);
}

/** Sends a request and returns the decoded body. Throws ApiError. */
export async function request(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<any> {
  const sentIn = session.value;
  const response = await send(method, path, { accept: "application/json" }, body, signal);
  const text = await response.text();
  if (!response.ok) throw toError(response, text, sentIn);
  return text ? JSON.parse(text) : undefined;
}

/** A server-sent event. */
export interface ServerEvent {
  name: string;
  data: any;
}

/** Sends a request whose response is a stream of events. Throws ApiError if the server refuses it. */
export async function* stream(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): AsyncGenerator<ServerEvent> {
  for await (const events of batches(method, path, body, signal)) yield* events;
}

/** Like `stream`, but yields the events that arrived together as one array. */
export async function* batches(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): AsyncGenerator<ServerEvent[]> {
  const sentIn = session.value;
  const response = await send(method, path, { accept: "text/event-stream" }, body, signal);
  if (!response.ok || !response.body) throw toError(response, await response.text(), sentIn);
  let buffer = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    buffer += chunk;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop()!;
    const events = blocks.map(parseEvent).filter((event) => event !== undefined);
    if (events.length) yield events;
  }
}

function parseEvent(block: string): ServerEvent | undefined {
  let name = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return data ? { name, data: JSON.parse(data) } : undefined;
}

const RECONNECT_MS = 2_000;

const MAX_HELD_EVENTS = 1_000;

/**
 * Subscribes to a stream of events. Calls `listen` at most once per animation frame, with all events since
 * the last call. Reconnects until the returned function is called. While the page is hidden, there are no
 * frames: then the newest MAX_HELD_EVENTS events are kept until the page is shown again.
 */
export function subscribe(path: string, listen: (events: ServerEvent[]) => void): () => void {
  const controller = new AbortController();
  const key = {};
  let held: ServerEvent[] = [];
  const deliver = () => {
    const events = held;
    held = [];
    if (!controller.signal.aborted) listen(events);
  };
  (async () => {
    while (!controller.signal.aborted) {
      try {
        for await (const events of batches("GET", path, undefined, controller.signal)) {
          held = [...held, ...events].slice(-MAX_HELD_EVENTS);
          inFrame(key, deliver);
        }
      } catch (error) {
        if (error instanceof ApiError && error.status < 500) return;
      }
      await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
    }
  })();
  return () => {
    controller.abort();
    cancelFrame(key);
  };
}

async function send(
  method: string,
  path: string,
  headers: Record<string, string>,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  const csrf = session.value?.csrf;
  if (csrf && method !== "GET") headers["x-hutch-csrf"] = csrf;
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const response = await fetch(path, { method, headers, body: text, signal, redirect: "error" });
    offline.value = undefined;
    return response;
  } catch (error) {
    if (signal?.aborted) throw error;
    offline.value = "The server does not answer.";
    throw new ApiError(0, "OFFLINE", offline.value, undefined);
  }
}

function toError(response: Response, text: string, sentIn: Session | undefined): ApiError {
  let body: any;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const error = body?.error;
  const message = typeof error === "string"
    ? error
    : error?.message ?? `The server answered ${response.status}.`;
  // The user may have signed in again since the request was sent.
  if (response.status === 401 && session.value?.signedIn && session.value === sentIn) {
    session.value = { ...session.value, signedIn: false, reason: "Your session has ended. Sign in again." };
  }
  return new ApiError(response.status, error?.code ?? "ERROR", message, body);
}
