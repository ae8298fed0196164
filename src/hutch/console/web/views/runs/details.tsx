/** The right panel of a run: its code, the selected bar, input and output, logs, files and limits. */

import { useEffect, useRef, useState } from "preact/hooks";
import { formatDuration, visible } from "../../format.ts";
import { Badge, Card, Copy, Empty, Json, Tabs } from "../../ui/basics.tsx";
import { Files } from "../../ui/files.tsx";
import { type LineMark, Source } from "../../ui/source.tsx";
import { asCurl, asPython } from "./copy.ts";
import { isActive, type RunDetail } from "./model.ts";
import type { Span } from "./timeline.tsx";

export function Details({ run, span }: { run: RunDetail; span?: Span }) {
  const hasCode = typeof run.code === "string";
  const [tab, setTab] = useState(hasCode ? "code" : isActive(run) ? "logs" : "data");
  const isPart = span !== undefined && span.id !== "run";
  const tabs = [
    { id: "code", label: "Code" },
    { id: "data", label: isPart ? "Selected" : "Input and output" },
    { id: "logs", label: `Logs${run.log_lines ? ` (${run.log_lines})` : ""}` },
    ...(run.files?.length ? [{ id: "files", label: `Files (${run.files.length})` }] : []),
    { id: "limits", label: "Limits" },
  ];
  useEffect(() => {
    // If the selected bar belongs to a line of the code, show the code tab, which shows the bar's data below
    // that line.
    if (isPart && !(span.line && hasCode)) setTab("data");
    else if (isPart) setTab("code");
  }, [span?.id]);
  return (
    <Card>
      <Tabs tabs={tabs} current={tab} onSelect={setTab} />
      {tab === "code" && <CodeTab run={run} span={span} />}
      {tab === "data" && (isPart ? <SpanData span={span} /> : <RunData run={run} />)}
      {tab === "logs" && <Logs run={run} />}
      {tab === "files" && <Files files={filesOf(run)} />}
      {tab === "limits" && <Limits run={run} />}
    </Card>
  );
}

function filesOf(run: RunDetail) {
  const base = `/runs/${encodeURIComponent(run.run_id)}/files/`;
  return (run.files ?? []).map(({ recorded, ...file }) => ({
    ...file,
    url: recorded ? base + encodeURIComponent(file.name) : undefined,
  }));
}

function CodeTab({ run, span }: { run: RunDetail; span?: Span }) {
  if (typeof run.code !== "string") return <NotRecorded what="The code" run={run} />;
  const marks = new Map<number, LineMark>();
  for (const call of run.tool_calls ?? []) if (call.line) marks.set(call.line, "call");
  if (run.error?.line && run.status !== "suspended") marks.set(run.error.line, "error");
  return (
    <>
      <Source code={run.code} marks={marks} focus={span?.line} />
      <div class="actions">
        <Copy label="Copy code" text={run.code} />
        <Copy label="Copy as curl" text={asCurl(run, run.code)} />
        <Copy label="Copy as Python" text={asPython(run, run.code)} />
      </div>
      {span && span.id !== "run" && <SpanData span={span} />}
    </>
  );
}

function SpanData({ span }: { span: Span }) {
  const { input, output, ...rest } = span.detail as Record<string, unknown>;
  const state = span.waits ? "waiting" : span.active ? "running" : span.ok ? "ok" : "failed";
  return (
    <div class="stack">
      <div class="card-head">
        <h3>{visible(span.label)}</h3>
        <span class="actions">
          {span.line ? <span class="quiet">line {span.line}</span> : null}
          <span class="quiet">{formatDuration(span.duration)}</span>
          <Badge state={state} />
        </span>
      </div>
      {input !== undefined && (
        <>
          <h4>Arguments</h4>
          <Json value={input} />
        </>
      )}
      {output !== undefined && (
        <>
          <h4>Result</h4>
          <Json value={output} />
        </>
      )}
      <details open={input === undefined && output === undefined}>
        <summary>All fields</summary>
        <Json value={rest} />
      </details>
    </div>
  );
}

function RunData({ run }: { run: RunDetail }) {
  if (run.inputs === undefined && run.output === undefined) {
    if (isActive(run)) return <Empty title="The run has not ended yet" />;
    if (run.recorded === "full" && run.error) return <Empty title="No output, because the run did not end" />;
    return <NotRecorded what="Input and output" run={run} />;
  }
  return (
    <div class="stack">
      {run.inputs !== undefined && (
        <>
          <h4>Inputs</h4>
          <Json value={run.inputs} />
        </>
      )}
      {run.output !== undefined && (
        <>
          <h4>Output</h4>
          <Json value={run.output} />
        </>
      )}
    </div>
  );
}

function Logs({ run }: { run: RunDetail }) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  // Scroll to the newest line, unless the reader has scrolled up.
  useEffect(() => {
    if (box.current && isAtEnd.current && isActive(run)) box.current.scrollTop = box.current.scrollHeight;
  }, [run]);
  if (!run.logs?.length) {
    if (!run.logs && run.log_lines) return <NotRecorded what="The log" run={run} />;
    return <Empty title={isActive(run) ? "Nothing was logged yet" : "Nothing was logged"} />;
  }
  const onScroll = (
    { currentTarget: { scrollTop, clientHeight, scrollHeight } }: { currentTarget: Element },
  ) => {
    isAtEnd.current = scrollTop + clientHeight > scrollHeight - 20;
  };
  return (
    <div class="logs" ref={box} tabIndex={0} role="log" aria-label="Log" onScroll={onScroll}>
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

function Limits({ run }: { run: RunDetail }) {
  const limits = Object.entries(run.limits ?? {}).filter(([, value]) => typeof value === "number");
  return (
    <table class="table">
      <tbody>
        {limits.map(([name, value]) => (
          <tr key={name}>
            <td>
              <code>{name}</code>
            </td>
            <td class="number">{value.toLocaleString("en").replaceAll(",", " ")}</td>
            <td>{run.limit === name && <Badge state="failed">reached</Badge>}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function NotRecorded({ what, run }: { what: string; run: RunDetail }) {
  return (
    <Empty title={`${what} of this run ${what.includes(" and ") ? "are" : "is"} not recorded`}>
      <p>
        It was recorded with <code>record = "{run.recorded ?? "errors"}"</code>. Set{" "}
        <code>record = "full"</code> to keep code, inputs, outputs and logs of further runs.
      </p>
    </Empty>
  );
}
