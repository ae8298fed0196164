/** The timeline of a run: a bar for each wait, tool call and outgoing request. */

import { formatDuration, visible } from "../../format.ts";
import type { RunDetail } from "./model.ts";

export interface Span {
  id: string;
  kind: "queue" | "install" | "start" | "run" | "call" | "request" | "approval";
  label: string;
  /** Milliseconds since the guest started. */
  start: number;
  duration: number;
  ok: boolean;
  active?: boolean;
  /** True if the run is suspended until this call has its result. */
  waits?: boolean;
  line?: number | null;
  /** Value that the right panel shows. */
  detail: unknown;
}

const WAITS: Record<string, { kind: Span["kind"]; label: string }> = {
  queue: { kind: "queue", label: "Waited for a runner" },
  install: { kind: "install", label: "Installed the package" },
  start: { kind: "start", label: "Started a runner" },
  approval: { kind: "approval", label: "Approval" },
};

/** A difference that only the time in a store explains. */
const STORED_MS = 50;

/** Returns the spans of a run in the order in which they began. The first one is the run itself. */
export function spansOf(run: RunDetail, nowMs: number): Span[] {
  const elapsed = run.duration_ms ?? Math.max(0, nowMs - Date.parse(run.started_at ?? run.created_at));
  const isOpen = run.status === "running" || run.status === "pending";
  const whole: Span = {
    id: "run",
    kind: run.status === "pending" ? "queue" : "run",
    label: run.status === "pending" ? "Waits for its turn" : isOpen ? "Runs" : "Ran",
    start: 0,
    duration: elapsed,
    ok: run.status !== "failed",
    active: isOpen,
    line: run.status === "failed" ? run.error?.line : undefined,
    detail: undefined,
  };
  const waits = (run.waits ?? []).map((wait, index): Span => ({
    id: `wait-${index}`,
    kind: WAITS[wait.kind]?.kind ?? "queue",
    label: [WAITS[wait.kind]?.label ?? wait.kind, wait.subject?.replace(/^tools\./, "")]
      .filter(Boolean).join(": "),
    start: wait.start_ms,
    duration: wait.duration_ms,
    ok: true,
    detail: wait,
  }));
  const calls = (run.tool_calls ?? []).map((call, index): Span => ({
    id: `call-${index}`,
    kind: "call",
    label: call.label ??
      (call.provider && call.provider !== "tools" ? `${call.provider}.${call.tool}` : call.tool),
    start: call.start_ms ?? 0,
    duration: call.duration_ms ?? Math.max(0, elapsed - (call.start_ms ?? 0)),
    ok: call.duration_ms === null ? run.status !== "failed" : call.ok !== false,
    active: call.duration_ms === null && isOpen,
    waits: call.duration_ms === null && run.status === "suspended",
    line: call.line,
    detail: call,
  }));
  const requests = (run.requests ?? []).map((request, index): Span => ({
    id: `request-${index}`,
    kind: "request",
    label: [request.method, request.host + (request.path ?? ""), request.status].filter(Boolean).join(" "),
    start: request.start_ms ?? 0,
    duration: request.duration_ms ?? 0,
    ok: !request.status || request.status < 400,
    detail: request,
  }));
  const rest = [...waits, ...calls, ...requests].sort((left, right) => left.start - right.start);
  // The duration of a run does not include the time in which it was stored, but its calls and waits do.
  const end = rest.reduce((most, span) => Math.max(most, span.start + span.duration), 0);
  if (!isOpen && end > elapsed + STORED_MS) {
    whole.duration = end;
    whole.label = `Ran ${formatDuration(elapsed)}, with waits`;
  }
  return [...rest.filter((span) => span.start < 0), whole, ...rest.filter((span) => span.start >= 0)];
}

const MAX_SPANS = 500;
const TICKS = [0, 0.5, 1];
const LEGEND: [string, string][] = [
  ["queue", "Waited"],
  ["run", "Ran"],
  ["call", "Tool call"],
  ["request", "Request"],
  ["approval", "Approval"],
  ["bad", "Failed"],
];

/** The colour of a bar, and its entry in the legend. */
function toneOf(span: Span): string {
  if (span.waits) return "approval";
  if (!span.ok) return "bad";
  return span.kind === "install" || span.kind === "start" ? "queue" : span.kind;
}

export function Timeline({ spans, selected, onSelect }: {
  spans: Span[];
  selected?: string;
  onSelect: (span: Span) => void;
}) {
  const begin = spans.reduce((least, span) => Math.min(least, span.start), 0);
  const end = spans.reduce((most, span) => Math.max(most, span.start + span.duration), begin + 0.001);
  const percent = (ms: number) => (ms - begin) / (end - begin) * 100;
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const next = spans[spans.findIndex((span) => span.id === selected) + step];
    if (!next) return;
    onSelect(next);
    document.getElementById(`span-${next.id}`)?.focus();
  };
  const tones = new Set(spans.map(toneOf));
  return (
    <div class="timeline" onKeyDown={onKeyDown}>
      <div class="timeline-head" aria-hidden="true">
        <div class="timeline-scale">
          {TICKS.map((part) => (
            <span key={part} style={{ left: `${part * 100}%` }}>{formatTick((end - begin) * part)}</span>
          ))}
        </div>
      </div>
      {spans.slice(0, MAX_SPANS).map((span) => (
        <button
          type="button"
          key={span.id}
          id={`span-${span.id}`}
          class={span.id === selected ? "span span-selected" : "span"}
          aria-pressed={span.id === selected}
          onClick={() => onSelect(span)}
        >
          <span
            class={span.id === "run" ? "span-label span-whole" : "span-label"}
            title={visible(span.label)}
          >
            {visible(span.label)}
          </span>
          <span class="span-line">{span.line ? `line ${span.line}` : ""}</span>
          <span class="span-track">
            <span
              class={`bar bar-${toneOf(span)}${span.active || span.waits ? " bar-active" : ""}`}
              style={{ left: `${percent(span.start)}%`, width: `${span.duration / (end - begin) * 100}%` }}
            />
          </span>
          <span class="span-duration">{span.waits ? "waits" : formatDuration(span.duration)}</span>
        </button>
      ))}
      {spans.length > MAX_SPANS && <p class="quiet">{spans.length - MAX_SPANS} more are not shown.</p>}
      <ul class="legend timeline-legend" aria-hidden="true">
        {LEGEND.filter(([tone]) => tones.has(tone)).map(([tone, label]) => (
          <li key={tone}>
            <span class={`legend-mark bar-${tone}`} />
            {label}
          </li>
        ))}
      </ul>
    </div>
  );
}

function formatTick(ms: number): string {
  return ms === 0 ? "0" : formatDuration(ms);
}
