/** Runs code on the server and collects the events of the run as they arrive. */

import { signal } from "@preact/signals";
import { ApiError, stream } from "../../api.ts";

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
  const update = (change: (old: RunProgress) => Partial<RunProgress>) => {
    if (controller === own) progress.value = { ...progress.value!, ...change(progress.value!) };
  };
  progress.value = { state: "running", logs: [], calls: [] };
  try {
    for await (const { name, data } of stream("POST", "/run", request, own.signal)) {
      if (data.run_id) update(() => ({ runId: data.run_id }));
      if (name === "log") update(({ logs }) => ({ logs: [...logs, data.line].slice(-MAX_LOGS) }));
      else if (name === "tool_call_started") update(({ calls }) => ({ calls: [...calls, data] }));
      else if (name === "tool_call_ended") {
        update(({ calls }) => ({
          calls: calls.map((call) => call.call === data.call ? { ...call, ...data } : call),
        }));
      } else if (name === "result") update(() => ({ result: data }));
    }
    update(() => ({ state: "ended" }));
  } catch (error) {
    if (own.signal.aborted) update(() => ({ state: "ended", error: "You stopped this run." }));
    else update(() => ({ state: error instanceof ApiError ? "refused" : "ended", error }));
  }
}
