/** Types of the records of runs that the HTTP API returns; see docs/runs.md. */

export interface RunError {
  code: string;
  name?: string;
  message?: string;
  line?: number | null;
  column?: number | null;
  stack?: string | null;
}

interface RunBase {
  run_id: string;
  kind: "execution" | "flow";
  protocol: string;
  owner: string;
  owner_name?: string | null;
  label?: string | null;
  engine?: string | null;
  status: "pending" | "running" | "completed" | "failed" | "suspended";
  outcome: string | null;
  error?: RunError | null;
  created_at: string;
  started_at?: string | null;
  ended_at?: string | null;
  duration_ms?: number | null;
  queue_ms?: number | null;
  install_ms?: number | null;
  limit?: string | null;
  log_lines?: number;
  parent_run_id?: string | null;
  recorded?: string;
  flow?: string;
}

export interface RunEntry extends RunBase {
  tool_calls?: number;
  requests?: number;
}

export interface ToolCall {
  provider: string;
  tool: string;
  label?: string | null;
  line?: number | null;
  start_ms?: number | null;
  duration_ms: number | null;
  ok: boolean | null;
  code?: string | null;
  input?: unknown;
  output?: unknown;
}

export interface OutgoingRequest {
  method?: string;
  host: string;
  path?: string;
  status?: number | null;
  start_ms?: number | null;
  duration_ms?: number | null;
  sent_bytes?: number;
  received_bytes?: number;
}

export interface Wait {
  kind: string;
  subject?: string | null;
  start_ms: number;
  duration_ms: number;
}

/** A call that a suspended run waits for. */
export interface PendingCall {
  call_id: string;
  provider: string | null;
  tool: string | null;
  /** What the tool said about the wait. */
  message: string | null;
  is_question: boolean;
  has_answer: boolean;
}

export interface RunFile {
  name: string;
  mime_type: string;
  size: number;
  recorded: boolean;
}

export interface RunDetail extends RunBase {
  code_hash?: string;
  trace_id?: string | null;
  /** Number of the turn, if the run was a turn of a session. */
  turn?: number;
  limits?: Record<string, number>;
  retries?: number;
  tool_calls?: ToolCall[];
  tool_call_count?: number;
  requests?: OutgoingRequest[];
  request_count?: number;
  waits?: Wait[];
  logs?: { at_ms: number | null; line: string }[];
  logs_truncated?: boolean;
  code?: string | { $cut: number };
  inputs?: unknown;
  output?: unknown;
  files?: RunFile[];
  pending_calls?: PendingCall[];
  /** True if only the program that started a suspended run can continue it. */
  tools_elsewhere?: boolean;
  /** Place in the queue, if the run is asynchronous. */
  queue?: { state: string; due_at: string | null; attempts: number; source: string | null } | null;
  replay?: { same: boolean; recorded: boolean; reason: string | null };
}

export interface RunPage {
  runs: RunEntry[];
  next?: string;
  is_partial?: boolean;
  searched_to?: string;
  counts?: Record<string, number>;
  counts_complete?: boolean;
}

export function isActive(run: { status: string }): boolean {
  return run.status === "running" || run.status === "pending";
}

/** The state that a badge shows: the status, or the error code of a failed run. */
export function stateOf(run: RunBase): string {
  return run.status === "failed" ? run.outcome ?? "failed" : run.status;
}

export function nameOf(run: RunBase): string {
  return run.label ?? run.flow ?? run.run_id.slice(0, 12);
}

export function ownerOf(run: RunBase): string {
  return run.owner_name ?? (run.owner === "local" || run.owner === "key" ? "operator" : run.owner);
}
