/** One run: its timeline on the left; the selected item, the code and the logs on the right. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, get, post, session, subscribe } from "../../api.ts";
import { formatDuration, formatTime, visible } from "../../format.ts";
import { link, location, navigate } from "../../router.ts";
import { Age, Badge, Button, Card, Copy, Empty, ErrorNote, Json, Page, Tabs } from "../../ui/basics.tsx";
import { type LineMark, Source } from "../../ui/source.tsx";
import { Split } from "../../ui/split.tsx";
import { isActive, ownerOf, type RunDetail, stateOf } from "./model.ts";
import { type Span, spansOf, Timeline } from "./timeline.tsx";

/** Loads a run, and again at each of its events while it is active. */
function useRun(id: string) {
  const [run, setRun] = useState<RunDetail>();
  const [error, setError] = useState<unknown>();
  const path = `/runs/${encodeURIComponent(id)}`;
  const load = () =>
    get<RunDetail>(path).then((run) => {
      setRun(run);
      setError(undefined);
    }, setError);
  useEffect(() => {
    load();
  }, [id]);
  const active = run !== undefined && isActive(run);
  useEffect(() => {
    if (!active) return;
    let pending = false;
    const reloadSoon = () => {
      if (pending) return;
      pending = true;
      setTimeout(() => {
        pending = false;
        load();
      }, 200);
    };
    return subscribe(`${path}/events`, reloadSoon);
  }, [id, active]);
  return { run, error, load };
}

export function RunView({ id }: { id: string }) {
  const { run, error, load } = useRun(id);
  if (error && !run) {
    return error instanceof ApiError && error.status === 404
      ? (
        <Empty title="There is no such run">
          <p>It may have been removed because of its age.</p>
          <a href="#/runs">All runs</a>
        </Empty>
      )
      : <ErrorNote error={error} retry={load} />;
  }
  if (run?.kind === "flow" && run.flow) {
    // A flow run has steps instead of a timeline.
    globalThis.location.replace(link(["flows", run.flow, "runs", id]));
    return null;
  }
  return run ? <RunPanels run={run} /> : null;
}

function RunPanels({ run }: { run: RunDetail }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isActive(run)) return;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [run.status]);
  const spans = useMemo(() => spansOf(run, now), [run, now]);
  const [selected, setSelected] = useState<string>("run");
  const span = spans.find((span) => span.id === selected);
  const back = link(
    ["runs"],
    Object.fromEntries(new URLSearchParams(location.value.query.get("from") ?? "")),
  );
  const title = (
    <span class="run-title">
      <a href={back} class="quiet">Runs</a>
      <span class="quiet">/</span>
      <span class="run-title-name">{visible(run.label ?? run.flow ?? run.run_id.slice(0, 12))}</span>
      <Badge state={stateOf(run)} />
    </span>
  );
  return (
    <Page wide title={title} actions={<Actions run={run} />}>
      <Facts run={run} />
      {run.error && <Failure run={run} />}
      <Split
        left={
          <Card title="Timeline">
            <Timeline spans={spans} selected={selected} onSelect={(span) => setSelected(span.id)} />
          </Card>
        }
        right={<Details run={run} span={span} />}
      />
    </Page>
  );
}

function Facts({ run }: { run: RunDetail }) {
  return (
    <dl class="fact-row">
      <Fact name="Protocol">{[run.protocol, run.engine].filter(Boolean).join(" · ")}</Fact>
      <Fact name="Owner">{visible(ownerOf(run))}</Fact>
      <Fact name="Created">
        <Age time={run.created_at} />
      </Fact>
      <Fact name="Queue">{formatDuration(run.queue_ms)}</Fact>
      {run.install_ms ? <Fact name="Install">{formatDuration(run.install_ms)}</Fact> : null}
      <Fact name="Ran">{isActive(run) ? "…" : formatDuration(run.duration_ms)}</Fact>
      <Fact name="Id">
        <span class="mono">{run.run_id}</span> <Copy text={run.run_id} />
      </Fact>
      {run.parent_run_id && (
        <Fact name="Part of">
          <a class="mono" href={link(["runs", run.parent_run_id])}>{run.parent_run_id.slice(0, 12)}</a>
        </Fact>
      )}
    </dl>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Failure({ run }: { run: RunDetail }) {
  const { error } = run;
  if (!error) return null;
  return (
    <div class={run.status === "suspended" ? "failure waiting" : "failure"} role="alert">
      <p>
        <strong>{error.name ? visible(error.name) : error.code}</strong>
        {error.line ? <span class="quiet">, line {error.line}</span> : null}
        {run.limit && <span class="quiet">, limit {run.limit} ({run.limits?.[run.limit]})</span>}
      </p>
      {error.message === undefined
        ? (
          <p class="quiet">
            The message is not recorded. The setting <code>record</code> says what is.
          </p>
        )
        : <pre>{visible(error.message)}</pre>}
      {error.stack && (
        <details>
          <summary>Stack</summary>
          <pre>{visible(error.stack)}</pre>
        </details>
      )}
    </div>
  );
}

function Details({ run, span }: { run: RunDetail; span?: Span }) {
  const [tab, setTab] = useState(typeof run.code === "string" ? "code" : "data");
  const tabs = [
    { id: "code", label: "Code" },
    { id: "data", label: span && span.kind !== "run" ? "Selected" : "Input and output" },
    { id: "logs", label: `Logs${run.log_lines ? ` (${run.log_lines})` : ""}` },
    { id: "limits", label: "Limits" },
  ];
  useEffect(() => {
    if (!span) return;
    if (span.kind === "run") return;
    if (!span.line || typeof run.code !== "string") setTab("data");
  }, [span?.id]);
  return (
    <Card>
      <Tabs tabs={tabs} current={tab} onSelect={setTab} />
      {tab === "code" && <CodeTab run={run} span={span} />}
      {tab === "data" && (span && span.kind !== "run" ? <SpanData span={span} /> : <RunData run={run} />)}
      {tab === "logs" && <Logs run={run} />}
      {tab === "limits" && <Json value={{ limits: run.limits, reached: run.limit, retries: run.retries }} />}
    </Card>
  );
}

function CodeTab({ run, span }: { run: RunDetail; span?: Span }) {
  if (typeof run.code !== "string") return <NotRecorded what="The code" run={run} />;
  const marks = new Map<number, LineMark>();
  for (const call of run.tool_calls ?? []) if (call.line) marks.set(call.line, "call");
  if (run.error?.line) marks.set(run.error.line, "error");
  return (
    <>
      <Source code={run.code} marks={marks} focus={span?.line} />
      {span && span.kind !== "run" && <SpanData span={span} />}
    </>
  );
}

function SpanData({ span }: { span: Span }) {
  const { input, output, ...rest } = span.detail as Record<string, unknown>;
  return (
    <div class="stack">
      <h3>{visible(span.label)}</h3>
      {input !== undefined && (
        <>
          <h3 class="quiet">Arguments</h3>
          <Json value={input} />
        </>
      )}
      {output !== undefined && (
        <>
          <h3 class="quiet">Result</h3>
          <Json value={output} />
        </>
      )}
      <Json value={rest} />
    </div>
  );
}

function RunData({ run }: { run: RunDetail }) {
  if (run.inputs === undefined && run.output === undefined) {
    return <NotRecorded what="Input and output" run={run} />;
  }
  return (
    <div class="stack">
      {run.inputs !== undefined && (
        <>
          <h3 class="quiet">Inputs</h3>
          <Json value={run.inputs} />
        </>
      )}
      {run.output !== undefined && (
        <>
          <h3 class="quiet">Output</h3>
          <Json value={run.output} />
        </>
      )}
    </div>
  );
}

function Logs({ run }: { run: RunDetail }) {
  if (!run.logs) {
    return run.log_lines ? <NotRecorded what="The log" run={run} /> : <Empty title="Nothing was logged" />;
  }
  if (!run.logs.length) return <Empty title="Nothing was logged" />;
  return (
    <div class="logs" tabIndex={0} role="log" aria-label="Log">
      {run.logs.map(({ at_ms, line }, index) => (
        <div key={index} class="log">
          <span class="log-time">{at_ms === null ? "" : formatDuration(at_ms)}</span>
          <span>{visible(line)}</span>
        </div>
      ))}
      {run.logs_truncated && <p class="quiet">Further lines were cut.</p>}
    </div>
  );
}

function NotRecorded({ what, run }: { what: string; run: RunDetail }) {
  return (
    <Empty title={`${what} of this run is not recorded`}>
      <p>
        It was recorded with <code>record = "{run.recorded ?? "errors"}"</code>. Set{" "}
        <code>record = "full"</code> to keep code, inputs, outputs and logs of further runs.
      </p>
    </Empty>
  );
}

function Actions({ run }: { run: RunDetail }) {
  const [error, setError] = useState<unknown>();
  const replay = async (mode: "same" | "recorded") => {
    setError(undefined);
    try {
      const { run_id } = await post(`/runs/${encodeURIComponent(run.run_id)}/replay`, { mode });
      navigate(["runs", run_id]);
    } catch (error) {
      setError(error);
    }
  };
  const cancel = () => post(`/runs/${encodeURIComponent(run.run_id)}/cancel`).catch(setError);
  const code = typeof run.code === "string" ? run.code : undefined;
  return (
    <>
      {error !== undefined && <ErrorNote error={error} />}
      {isActive(run) && <Button kind="danger" onClick={cancel}>Cancel</Button>}
      {!isActive(run) && run.replay?.same && <Button onClick={() => replay("same")}>Run again</Button>}
      {!isActive(run) && run.replay?.recorded && (
        <Button
          onClick={() => replay("recorded")}
          title="Answers tool calls from the record. Nothing outside is touched."
        >
          Replay without side effects
        </Button>
      )}
      {code !== undefined && (
        <>
          <Button onClick={() => navigate(["playground"], { run: run.run_id })}>Edit and run</Button>
          <Copy label="Copy as curl" text={asCurl(run, code)} />
          <Copy label="Copy as Python" text={asPython(run, code)} />
        </>
      )}
    </>
  );
}

function asCurl(run: RunDetail, code: string): string {
  const body = JSON.stringify({ code, engine: run.engine, inputs: run.inputs ?? undefined });
  const key = session.value?.needsKey ? ' -H "Authorization: Bearer $HUTCH_API_KEY"' : "";
  const quoted = body.replaceAll("'", "'\\''");
  return `curl ${globalThis.location.origin}/run -H 'Content-Type: application/json'${key} -d '${quoted}'`;
}

function asPython(run: RunDetail, code: string): string {
  const inputs = run.inputs ? `, inputs=json.loads(${JSON.stringify(JSON.stringify(run.inputs))})` : "";
  return `# Recorded ${formatTime(run.created_at)} as run ${run.run_id}.
import json
import hutch

print(hutch.run_sync(${JSON.stringify(code)}, engine=${JSON.stringify(run.engine)}${inputs}))
`;
}
