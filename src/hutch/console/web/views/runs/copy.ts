/** Commands that repeat a run outside the console. */

import { session } from "../../api.ts";
import { formatTime } from "../../format.ts";
import type { RunDetail } from "./model.ts";

export function asCurl(run: RunDetail, code: string): string {
  const body = JSON.stringify({ code, engine: run.engine, inputs: run.inputs ?? undefined });
  const key = session.value?.needsKey ? ' -H "Authorization: Bearer $HUTCH_API_KEY"' : "";
  const quoted = body.replaceAll("'", "'\\''");
  return `curl ${globalThis.location.origin}/run -H 'Content-Type: application/json'${key} -d '${quoted}'`;
}

export function asPython(run: RunDetail, code: string): string {
  const inputs = run.inputs ? `, inputs=json.loads(${JSON.stringify(JSON.stringify(run.inputs))})` : "";
  return `# Recorded ${formatTime(run.created_at)} as run ${run.run_id}.
import json
import hutch

print(hutch.run_sync(${JSON.stringify(code)}, engine=${JSON.stringify(run.engine)}${inputs}))
`;
}
