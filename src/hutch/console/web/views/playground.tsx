/** Playground: write code, run it, and see logs, tool calls and the result as they arrive. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.ts";
import { formatDuration, visible } from "../format.ts";
import { link, location } from "../router.ts";
import { Badge, Button, Card, Empty, ErrorNote, Field, Json, Page } from "../ui/basics.tsx";
import { Files, type ShownFile } from "../ui/files.tsx";
import { useData } from "../ui/load.ts";
import { Split } from "../ui/split.tsx";
import { PendingApprovals } from "./approvals.tsx";
import { Editor, type ToolName } from "./playground/editor.tsx";
import { type Example, examples, FIRST } from "./playground/examples.ts";
import { cancel, progress, run, type RunProgress } from "./playground/run.ts";
import type { RunDetail } from "./runs/model.ts";

const STORED = "playground";

interface Draft {
  code: string;
  inputs: string;
  engine: string;
  timeout: string;
  memory: string;
}

function storedDraft(): Draft {
  const empty = { code: FIRST.code, inputs: "", engine: "quickjs", timeout: "", memory: "" };
  try {
    return { ...empty, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
  } catch {
    return empty;
  }
}

/** Keeps the draft in the browser's storage, so that it survives a reload and an expired session. */
function useDraft() {
  const [draft, setDraft] = useState(storedDraft);
  useEffect(() => localStorage.setItem(STORED, JSON.stringify(draft)), [draft]);
  const change = (changes: Partial<Draft>) => setDraft((old) => ({ ...old, ...changes }));
  return { draft, change };
}

export default function Playground() {
  const { draft, change } = useDraft();
  const [problem, setProblem] = useState("");
  // Identifies the loaded code. When it changes, the editor shows that code.
  const [loaded, setLoaded] = useState("");
  const isTouched = useRef(false);
  const tools = useData<ToolName[]>("/tools");
  const offered = examples(tools.data ?? []);
  const open = ({ name, code, inputs = "" }: Example) => {
    change({ code, inputs });
    setLoaded(`${name} ${Date.now()}`);
  };
  useEffect(() => {
    // Do not replace text of the user: the list of tools may arrive after the user has begun to edit.
    const first = offered.find(({ opensFirst }) => opensFirst);
    if (first && draft.code === FIRST.code && !isTouched.current) open(first);
  }, [tools.data]);
  const source = location.value.query.get("run");
  useEffect(() => {
    if (!source) return;
    get<RunDetail>(`/runs/${encodeURIComponent(source)}`).then((recorded) => {
      if (typeof recorded.code !== "string") return;
      const inputs = recorded.inputs === undefined || recorded.inputs === null
        ? ""
        : JSON.stringify(recorded.inputs, null, 2);
      change({ code: recorded.code, inputs, engine: recorded.engine === "deno" ? "deno" : "quickjs" });
      setLoaded(source);
    }, (error) => setProblem(String(error.message)));
  }, [source]);
  const start = () => {
    let inputs: unknown;
    try {
      inputs = draft.inputs.trim() ? JSON.parse(draft.inputs) : undefined;
    } catch (error) {
      setProblem(`Inputs: expected JSON. ${(error as Error).message}`);
      return;
    }
    const seconds = Number(draft.timeout);
    if (draft.timeout && !(seconds > 0)) {
      setProblem(`Time limit: expected seconds, got "${draft.timeout}".`);
      return;
    }
    const mebibytes = Number(draft.memory);
    if (draft.memory && !(mebibytes > 0)) {
      setProblem(`Memory limit: expected MiB, got "${draft.memory}".`);
      return;
    }
    setProblem("");
    const limits = {
      ...(seconds > 0 && { timeout_ms: seconds * 1_000 }),
      ...(mebibytes > 0 && { memory_limit_bytes: Math.round(mebibytes * 2 ** 20) }),
    };
    run({ code: draft.code, engine: draft.engine, inputs, limits, label: "playground", record: "full" });
  };
  const running = progress.value?.state === "running";
  const actions = (
    <>
      <select
        aria-label="Examples"
        value=""
        onChange={(event) => {
          const chosen = offered.find(({ name }) => name === event.currentTarget.value);
          if (chosen) open(chosen);
          event.currentTarget.value = "";
        }}
      >
        <option value="">Examples</option>
        {offered.map(({ name }) => <option key={name} value={name}>{name}</option>)}
      </select>
      <select
        aria-label="Engine"
        value={draft.engine}
        onChange={(event) => change({ engine: event.currentTarget.value })}
      >
        <option value="quickjs">quickjs</option>
        <option value="deno">deno</option>
      </select>
      {running && <Button kind="danger" onClick={cancel}>Stop</Button>}
      <Button kind="primary" onClick={start} title="Ctrl+Enter">{running ? "Run again" : "Run"}</Button>
    </>
  );
  return (
    <Page wide title="Playground" actions={actions}>
      {problem && <ErrorNote error={problem} />}
      <Split
        left={
          <div class="stack">
            <Card>
              <div onFocusIn={() => isTouched.current = true}>
                <Editor
                  code={draft.code}
                  loaded={loaded}
                  onChange={(code) => change({ code })}
                  onRun={start}
                  tools={tools.data ?? []}
                  checks
                />
              </div>
            </Card>
            <Card>
              <div class="playground-options">
                <Field label="Inputs (JSON)" hint="An object; its fields are variables of the code.">
                  <textarea
                    rows={3}
                    spellcheck={false}
                    value={draft.inputs}
                    placeholder='{"name": "Bo"}'
                    onInput={(event) => change({ inputs: event.currentTarget.value })}
                  />
                </Field>
                <Field label="Time limit (seconds)">
                  <input
                    inputMode="decimal"
                    placeholder="default"
                    value={draft.timeout}
                    onInput={(event) => change({ timeout: event.currentTarget.value })}
                  />
                </Field>
                <Field label="Memory limit (MiB)">
                  <input
                    inputMode="decimal"
                    placeholder="default"
                    value={draft.memory}
                    onInput={(event) => change({ memory: event.currentTarget.value })}
                  />
                </Field>
              </div>
            </Card>
          </div>
        }
        right={<Output progress={progress.value} />}
      />
    </Page>
  );
}

function Output({ progress }: { progress?: RunProgress }) {
  if (!progress) {
    return (
      <Card title="Output">
        <Empty title="Nothing has run yet">
          <p>
            <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs the code. Logs and tool calls appear here as they happen.
          </p>
        </Empty>
      </Card>
    );
  }
  const { state, result, error, logs, calls, runId } = progress;
  return (
    <div class="stack">
      <PendingApprovals run={runId} />
      <Card
        title="Output"
        actions={
          <>
            {runId && <a class="button small" href={link(["runs", runId])}>Timeline</a>}
            <Badge state={state === "running" ? "running" : result?.ok ? "completed" : "failed"}>
              {state === "running" ? "running" : result?.ok ? "ok" : result?.error?.code ?? "not run"}
            </Badge>
          </>
        }
      >
        {error !== undefined && <ErrorNote error={error} />}
        {result && !result.ok && <Failure error={result.error} />}
        {result?.warnings?.map((text: string) => (
          <p key={text} class="note" role="status">
            <strong>Warning:</strong> {visible(text)}
          </p>
        ))}
        {result?.ok && (
          <>
            <Json value={result.result} />
            <p class="quiet">{formatDuration(result.duration_ms)}</p>
          </>
        )}
      </Card>
      {result?.files?.length > 0 && (
        <Card title={`Files (${result.files.length})`}>
          <Files files={result.files.map(withData)} />
        </Card>
      )}
      {calls.length > 0 && (
        <Card title={`Tool calls (${calls.length})`}>
          <ul class="call-list">
            {calls.map((call) => (
              <li key={call.call}>
                <details>
                  <summary>
                    <Badge state={call.ok === undefined ? "running" : call.ok ? "ok" : "failed"} />
                    <code>{visible([call.provider, call.tool].filter(Boolean).join("."))}</code>
                    <span class="call-argument">{visible(firstArgument(call.input))}</span>
                    {call.line ? <span class="quiet">line {call.line}</span> : null}
                    <span class="quiet call-time">
                      {call.ok === undefined ? "…" : formatDuration(call.duration_ms)}
                    </span>
                  </summary>
                  {call.input !== undefined && (
                    <>
                      <h4>Arguments</h4>
                      <Json value={call.input} />
                    </>
                  )}
                  {call.output !== undefined && (
                    <>
                      <h4>Result</h4>
                      <Json value={call.output} />
                    </>
                  )}
                </details>
              </li>
            ))}
          </ul>
        </Card>
      )}
      {logs.length > 0 && (
        <Card title={`Log (${logs.length})`}>
          <div class="logs" tabIndex={0} role="log" aria-label="Log">
            {logs.map((line, index) => <div key={index} class="log">{visible(line)}</div>)}
          </div>
        </Card>
      )}
    </div>
  );
}

/** Returns the first argument, to tell several calls of one tool apart. */
function firstArgument(input: unknown): string {
  const values = typeof input === "object" && input !== null ? Object.values(input) : [input];
  const first = values.find((value) => typeof value === "string" || typeof value === "number");
  const text = String(first ?? "");
  return text.length > 30 ? `${text.slice(0, 29)}…` : text;
}

interface ResultFile {
  name: string;
  mime_type: string;
  size: number;
  /** Content in Base64. */
  data: string;
}

function withData({ data, ...file }: ResultFile): ShownFile {
  return { ...file, url: `data:${file.mime_type};base64,${data}` };
}

function Failure(
  { error }: { error: { code: string; message: string; line?: number | null; stack?: string | null } },
) {
  return (
    <div class="failure" role="alert">
      <p>
        <strong>{error.code}</strong>
        {error.line ? <span class="quiet">, line {error.line}</span> : null}
      </p>
      <pre>{visible(error.message)}</pre>
      {error.stack && (
        <details>
          <summary>Stack</summary>
          <pre>{visible(error.stack)}</pre>
        </details>
      )}
    </div>
  );
}
