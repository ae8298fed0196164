/** One run: its timeline on the left; the selected item, the code and the logs on the right. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, get, post, subscribe } from "../../api.ts";
import { formatDuration, formatTime, visible } from "../../format.ts";
import { link, location, navigate } from "../../router.ts";
import { Age, Badge, Button, Card, Copy, Crumbs, Empty, ErrorNote, Page } from "../../ui/basics.tsx";
import { Fact, FactRow } from "../../ui/facts.tsx";
import { Split } from "../../ui/split.tsx";
import { pending } from "../approvals.tsx";
import { Details } from "./details.tsx";
import { isActive, nameOf, ownerOf, type RunDetail, stateOf } from "./model.ts";
import { spansOf, Timeline } from "./timeline.tsx";
import { Waiting } from "./waiting.tsx";

const RELOAD_MS = 200;
const SUSPENDED_MS = 2_000;

/** Loads a run. While the run is active, loads it again after each of its events. */
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
  const suspended = run?.status === "suspended";
  useEffect(() => {
    if (!active) return;
    let timer: number | undefined;
    const reloadSoon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        load();
      }, RELOAD_MS);
    };
    const unsubscribe = subscribe(`${path}/events`, reloadSoon);
    return () => {
      clearTimeout(timer);
      unsubscribe();
    };
  }, [id, active]);
  // Poll a suspended run, because it has no events and another server may continue it.
  useEffect(() => {
    if (!suspended) return;
    load();
    const timer = setInterval(() => document.hidden || load(), SUSPENDED_MS);
    return () => clearInterval(timer);
  }, [id, suspended, pending.value]);
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
    // Open the view of the flow, because a flow run has steps instead of a timeline.
    globalThis.location.replace(link(["flows", run.flow, "runs", id]));
    return null;
  }
  return run ? <RunPanels run={run} reload={load} /> : null;
}

function RunPanels({ run, reload }: { run: RunDetail; reload: () => void }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isActive(run)) return;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [run.status]);
  const spans = useMemo(() => spansOf(run, now), [run, now]);
  const [selected, setSelected] = useState<string>("run");
  const span = spans.find((span) => span.id === selected);
  const filters = Object.fromEntries(new URLSearchParams(location.value.query.get("from") ?? ""));
  const title = (
    <Crumbs above={[{ href: link(["runs"], filters), name: "Runs" }]} name={nameOf(run)}>
      <Badge state={stateOf(run)} />
    </Crumbs>
  );
  const isSuspended = run.status === "suspended";
  return (
    <Page wide title={title} actions={<Actions run={run} reload={reload} />}>
      <Facts run={run} />
      {run.error && !isSuspended && <Failure run={run} />}
      {(isSuspended || isActive(run)) && <Waiting run={run} onChange={reload} />}
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
    <FactRow>
      <Fact name="Protocol">{[run.protocol, run.engine].filter(Boolean).join(" · ")}</Fact>
      <Fact name="Owner">{visible(ownerOf(run))}</Fact>
      <Fact name="Created">
        <Age time={run.created_at} />
      </Fact>
      {run.queue && (
        <Fact name="Asynchronous">
          {run.queue.state}
          {run.queue.state === "delayed" && run.queue.due_at &&
            ` until ${formatTime(run.queue.due_at).slice(0, 16)}`}
          {run.queue.attempts > 1 && `, attempt ${run.queue.attempts}`}
          {run.queue.source && `, by ${visible(run.queue.source)}`}
        </Fact>
      )}
      <Fact name="Queue" title="Waited for a runner">{formatDuration(run.queue_ms)}</Fact>
      {run.install_ms ? <Fact name="Install">{formatDuration(run.install_ms)}</Fact> : null}
      <Fact name="Ran">{isActive(run) ? "…" : formatDuration(run.duration_ms)}</Fact>
      {run.turn != null && run.label && (
        <Fact name="Session">
          <a href={link(["sessions", run.label])}>{visible(run.label)}</a>, turn {run.turn}
        </Fact>
      )}
      {run.parent_run_id && (
        <Fact name="Part of">
          <a class="mono" href={link(["runs", run.parent_run_id])}>{run.parent_run_id.slice(0, 12)}</a>
        </Fact>
      )}
      {run.trace_id && (
        <Fact name="Trace">
          <span class="mono">{run.trace_id.slice(0, 12)}…</span> <Copy text={run.trace_id} />
        </Fact>
      )}
      <Fact name="Id">
        <span class="mono">{run.run_id}</span> <Copy text={run.run_id} />
      </Fact>
    </FactRow>
  );
}

function Failure({ run }: { run: RunDetail }) {
  const { error } = run;
  if (!error) return null;
  return (
    <div class="failure" role="alert">
      <p>
        <strong>{error.name ? visible(error.name) : error.code}</strong>
        {error.line ? <span class="quiet">, line {error.line}</span> : null}
        {run.limit && <span class="quiet">, limit {run.limit} ({run.limits?.[run.limit]})</span>}
      </p>
      {error.message === undefined
        ? (
          <p class="quiet">
            The message is not recorded. The setting <code>record</code> determines what is recorded.
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

function Actions({ run, reload }: { run: RunDetail; reload: () => void }) {
  const [error, setError] = useState<unknown>();
  const path = `/runs/${encodeURIComponent(run.run_id)}`;
  const replay = async (mode: "same" | "recorded") => {
    setError(undefined);
    try {
      const { run_id } = await post(`${path}/replay`, { mode });
      navigate(["runs", run_id]);
    } catch (error) {
      setError(error);
    }
  };
  const cancel = () => post(`${path}/cancel`).then(reload, setError);
  const isOpen = isActive(run) || run.status === "suspended";
  return (
    <>
      {error !== undefined && <ErrorNote error={error} />}
      {isOpen && <Button kind="danger" onClick={cancel}>Cancel</Button>}
      {!isOpen && run.replay?.same && <Button onClick={() => replay("same")}>Run again</Button>}
      {!isOpen && run.replay?.recorded && (
        <Button
          onClick={() => replay("recorded")}
          title="Answers tool calls from the record. Nothing outside is touched."
        >
          Replay without side effects
        </Button>
      )}
      {typeof run.code === "string" && (
        <Button onClick={() => navigate(["playground"], { run: run.run_id })}>Edit and run</Button>
      )}
    </>
  );
}
