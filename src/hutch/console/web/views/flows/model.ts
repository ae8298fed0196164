/** Flows and their runs as the server describes them: see docs/rep.md. */

import type { Schema } from "../../ui/schema_form.tsx";

export interface FlowHead {
  name: string;
  version: number;
  created_at: string;
  updated_at: string;
}

export interface FlowNode {
  id: string;
  type: string;
  with?: Record<string, unknown>;
  retry?: { max: number; backoff_ms: number };
  timeout_ms?: number;
}

export interface FlowDocument {
  graph: { nodes: FlowNode[]; edges: { from: string; to: string; on?: string }[] };
}

export interface Flow extends FlowHead {
  inputs_json_schema: Schema;
  document: FlowDocument;
}

export interface FlowApproval {
  step_id: string;
  message?: string;
  asked_at: string;
}

export interface FlowRun {
  run_id: string;
  flow: string;
  version: number;
  status: string;
  state?: string;
  outcome: string | null;
  created_at: string;
  started_at?: string | null;
  ended_at?: string | null;
  inputs?: unknown;
  summary?: Record<string, unknown>;
  approvals?: FlowApproval[];
  /** In lists: the steps that wait for an approval. */
  waiting_for?: string[];
  steps?: Record<string, unknown>[];
}

/** The latest state of a step, from the events of its run. */
export interface StepState {
  state: "started" | "succeeded" | "failed" | "skipped" | "waiting" | string;
  attempt: number;
  duration_ms?: number;
  started?: string;
  error?: unknown;
  /** All events of the step, oldest first. */
  events: Record<string, unknown>[];
}
