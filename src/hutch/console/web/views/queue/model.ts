/** Responses of the queue's routes. */

export interface QueuedRun {
  run_id: string;
  owner: string;
  kind: string;
  label: string | null;
  source: string | null;
  state: string;
  attempts: number;
  max_attempts: number | null;
  created_at: string;
  due_at: string;
  outcome: string | null;
}

export interface Queue {
  counts: Record<string, number>;
  runs: QueuedRun[];
}

export interface DeliveryAttempt {
  at: string;
  duration_ms: number;
  status: number | null;
  error: string | null;
}

export interface Delivery {
  id: string;
  run_id: string;
  event: string;
  state: string;
  created_at: string;
  next_at: string | null;
  attempts: DeliveryAttempt[];
  attempt_count: number;
}

export interface Starter {
  id: string;
  name: string;
  flow?: string;
  script?: string;
  paused: boolean;
  last_at: string | null;
  last_run_id: string | null;
}

export interface Schedule extends Starter {
  cron: string;
  timezone: string;
  missed: string;
  next_at: string | null;
}

export interface Trigger extends Starter {
  signature: string;
}

export function targetOf(starter: Starter): string {
  return starter.flow === undefined ? `script ${starter.script}` : `flow ${starter.flow}`;
}
