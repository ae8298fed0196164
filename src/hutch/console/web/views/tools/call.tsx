/** A form for the arguments of a tool, a button that calls it, and its result. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { formatDuration } from "../../format.ts";
import { link } from "../../router.ts";
import { Button, ErrorNote, Json } from "../../ui/basics.tsx";
import { type Schema, SchemaForm } from "../../ui/schema_form.tsx";

export interface Outcome {
  result: unknown;
  runId?: string | null;
}

interface CallState {
  outcome?: Outcome;
  error?: unknown;
  ms?: number;
  running?: boolean;
}

export function CallForm({ schema, label, call, onValue, children }: {
  schema: Schema;
  label: string;
  call: (value: Record<string, unknown>) => Promise<Outcome>;
  onValue?: (value: Record<string, unknown> | undefined) => void;
  children?: ComponentChildren;
}) {
  const [value, setValue] = useState<Record<string, unknown> | undefined>({});
  const [state, setState] = useState<CallState>();
  const run = async () => {
    setState({ running: true });
    const began = performance.now();
    try {
      const outcome = await call(value ?? {});
      setState({ outcome, ms: performance.now() - began });
    } catch (error) {
      setState({ error, ms: performance.now() - began });
    }
  };
  const change = (value: Record<string, unknown> | undefined) => {
    setValue(value);
    onValue?.(value);
  };
  return (
    <>
      <SchemaForm schema={schema} onChange={change} />
      {children}
      <div class="actions">
        <Button kind="primary" onClick={run} disabled={value === undefined || state?.running}>{label}</Button>
        {state?.running && <span class="quiet">Calling…</span>}
        {state?.ms !== undefined && <span class="quiet">{formatDuration(state.ms)}</span>}
        {state?.outcome?.runId && <a href={link(["runs", state.outcome.runId])}>Show the run</a>}
      </div>
      {state?.error !== undefined && <ErrorNote error={state.error} />}
      {state?.outcome && <Json value={state.outcome.result} />}
    </>
  );
}
