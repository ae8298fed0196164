/** Runs code on the server and collects the events of the run as they arrive. */

import { signal } from "@preact/signals";
import { ApiError, batches, type ServerEvent } from "../../api.ts";
import { inFrame } from "../../ui/frames.ts";

export interface CallProgress {
  call: string | number;
  provider: string;
  tool: string;
  line?: number | null;
  input?: unknown;
  output?: unknown;
  ok?: boolean;
  duration_ms?: number;
}

export interface RunProgress {
  state: "running" | "ended" | "refused";
  runId?: string;
  logs: string[];
  calls: CallProgress[];
  result?: any;
  error?: unknown;
}

export interface RunRequest {
  code: string;
  engine: string;
  inputs?: unknown;
  limits?: Record<string, number>;
  check?: boolean;
  label?: string;
  record?: "metadata" | "errors" | "full";
}

/**
 * The run that the playground shows, also after leaving and reopening the view. Undefined before the first
 * run.
 */
export const progress = signal<RunProgress | undefined>(undefined);

const MAX_LOGS = 2_000;
let controller: AbortController | undefined;

export function cancel(): void {
  controller?.abort();
}

export async function run(request: RunRequest): Promise<void> {
  cancel();
  const own = controller = new AbortController();
  let current: RunProgress = progress.value = { state: "running", logs: [], calls: [] };
  const update = (changes: Partial<RunProgress>) => {
    current = { ...current, ...changes };
    // Update the page at most once per frame, because a guest may log thousands of lines at once.
    if (controller === own) inFrame(own, () => controller === own && (progress.value = current));
  };
  try {
    for await (const events of batches("POST", "/run", request, own.signal)) {
      update(progressed(current, events));
    }
    update({ state: "ended" });
  } catch (error) {
    if (own.signal.aborted) update({ state: "ended", error: "You stopped this run." });
    else update({ state: error instanceof ApiError ? "refused" : "ended", error });
  }
}

function progressed(
  { runId, logs, calls, result }: RunProgress,
  events: ServerEvent[],
): Partial<RunProgress> {
  const lines = [...logs];
  const byId = new Map(calls.map((call) => [call.call, call]));
  for (const { name, data } of events) {
    runId ??= data.run_id;
    if (name === "log") lines.push(data.line);
    else if (name === "tool_call_started") byId.set(data.call, data);
    else if (name === "tool_call_ended") byId.set(data.call, { ...byId.get(data.call), ...data });
    else if (name === "result") result = data;
  }
  return { runId, logs: lines.slice(-MAX_LOGS), calls: [...byId.values()], result };
}
