/** The load of the server now and in the last ten minutes. */

import { useEffect, useState } from "preact/hooks";
import { get, session, subscribe } from "../api.ts";
import { formatBytes, formatCount, formatDuration, visible } from "../format.ts";
import { link } from "../router.ts";
import { Age, Badge, Broken, Card, Empty, ErrorNote, Page } from "../ui/basics.tsx";
import { Chart } from "../ui/chart.tsx";
import { useData } from "../ui/load.ts";
import { pending } from "./approvals.tsx";
import { nameOf, type RunPage, stateOf } from "./runs/model.ts";

interface LoadSample {
  time: number;
  runs: number;
  failed: number;
  tool_calls: number;
  p50_ms: number | null;
  p95_ms: number | null;
  in_flight: number;
  waiting: number;
  processes: number;
  warm: number;
  memory_bytes: number;
}

interface Totals {
  outcomes: Record<string, number>;
  protocols: Record<string, number>;
}

const HISTORY_SECONDS = 600;

/** Returns the samples of the server, live. */
function useLoad() {
  const [samples, setSamples] = useState<LoadSample[]>();
  const [totals, setTotals] = useState<Totals>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    get("/console/overview").then((overview) => {
      setSamples(overview.samples);
      setTotals(overview);
    }, setError);
    return subscribe("/console/overview/events", (events) => {
      const fresh = events.map(({ data: [sample] }) => sample);
      setSamples((old) => [...(old ?? []), ...fresh].slice(-HISTORY_SECONDS));
      setTotals(events.at(-1)!.data[1]);
    });
  }, []);
  return { samples, totals, error };
}

export default function Overview() {
  return session.value?.role === "user" ? <UserOverview /> : <OperatorOverview />;
}

const COUNTED = {
  running: "Running now",
  completed: "Completed, last day",
  failed: "Failed, last day",
  suspended: "Suspended, last day",
};

/** Overview for users. Only the operator sees the load of the server. */
function UserOverview() {
  const { data } = useData<RunPage>("/runs?limit=1&since=24h", REFRESH_MS);
  return (
    <Page title={`Welcome, ${visible(session.value?.user ?? "")}`}>
      <FirstSteps />
      <div class="tiles">
        {Object.entries(COUNTED).map(([status, label]) => (
          <a key={status} class="tile tile-link" href={link(["runs"], { status, since: "24h" })}>
            <div class="tile-label">{label}</div>
            <div class="tile-value">{data?.counts ? formatCount(data.counts[status] ?? 0) : "–"}</div>
          </a>
        ))}
      </div>
      <LastFailures />
    </Page>
  );
}

function OperatorOverview() {
  const { samples, totals, error } = useLoad();
  if (error) return <Broken title="Overview" error={error} />;
  if (!samples || !totals) return null;
  const times = samples.map((sample) => sample.time);
  const pick = (name: keyof LoadSample) => samples.map((sample) => sample[name]);
  const last = samples.at(-1);
  const recent = samples.slice(-60);
  const sum = (name: "runs" | "failed") => recent.reduce((total, sample) => total + sample[name], 0);
  const runs = sum("runs");
  const timed = recent.findLast((sample) => sample.p50_ms !== null);
  return (
    <Page title="Overview">
      <FirstSteps />
      <ApprovalNote />
      <div class="tiles">
        <Tile
          label="Runs, last minute"
          value={formatCount(runs)}
          detail={`${(runs / 60).toFixed(1)}/s`}
        />
        <Tile
          label="Failed, last minute"
          value={formatCount(sum("failed"))}
          detail={runs ? `${(sum("failed") / runs * 100).toFixed(1)} %` : "–"}
        />
        <Tile
          label="Duration, p50"
          value={formatDuration(timed?.p50_ms)}
          detail={`p95 ${formatDuration(timed?.p95_ms)}`}
        />
        <Tile
          label="Running now"
          value={formatCount(last?.in_flight ?? 0)}
          detail={`${formatCount(last?.waiting ?? 0)} in the queue`}
        />
        <Tile
          label="Runners"
          value={formatCount(last?.processes ?? 0)}
          detail={`${formatCount(last?.warm ?? 0)} warm`}
        />
        <Tile
          label="Memory of the host"
          value={formatBytes(last?.memory_bytes ?? 0)}
          detail="without runners"
        />
      </div>
      <div class="grid">
        <Card title="Executions per second">
          <Chart
            label="Executions per second"
            times={times}
            format={formatCount}
            series={[
              { label: "all", color: "--chart-1", values: pick("runs"), fill: true },
              { label: "failed", color: "--chart-2", values: pick("failed") },
            ]}
          />
        </Card>
        <Card title="Duration">
          <Chart
            label="Duration"
            times={times}
            format={formatDuration}
            series={[
              { label: "p50", color: "--chart-1", values: pick("p50_ms") },
              { label: "p95", color: "--chart-3", values: pick("p95_ms") },
            ]}
          />
        </Card>
        <Card title="Running and waiting">
          <Chart
            label="Running and waiting"
            times={times}
            format={formatCount}
            series={[
              { label: "running", color: "--chart-1", values: pick("in_flight"), fill: true },
              { label: "waiting", color: "--chart-3", values: pick("waiting") },
            ]}
          />
        </Card>
        <Card title="Outcomes since the start">
          <Outcomes outcomes={totals.outcomes} />
        </Card>
        <LastFailures />
        <McpServers />
      </div>
    </Page>
  );
}

/** First steps, shown while nothing has run. */
function FirstSteps() {
  const { data } = useData<RunPage>("/runs?limit=1&counts=false", REFRESH_MS);
  if (data?.runs.length !== 0) return null;
  return (
    <Card title="First steps">
      <ol class="first-steps">
        <li>
          <a href="#/playground">Run a snippet</a>
          <span>
            The playground has one that calls tools. Its timeline shows every call and its source line.
          </span>
        </li>
        <li>
          <a href="#/connect">Connect a client</a>
          <span>Copy the entry for Claude Code, Cursor or VS Code, or the lines for Python and curl.</span>
        </li>
        <li>
          <a href="#/tools">Look at the tools</a>
          <span>MCP servers, npm packages and abilities, each with a form to try it.</span>
        </li>
      </ol>
    </Card>
  );
}

function ApprovalNote() {
  const count = pending.value?.length ?? 0;
  if (!count) return null;
  return (
    <div class="note" role="status">
      <span>{count === 1 ? "A call waits" : `${count} calls wait`} for a decision.</span>
      <a class="button small" href="#/approvals">Decide</a>
    </div>
  );
}

function Tile({ label, value, detail }: { label: string; value: string; detail: string }) {
  return (
    <div class="tile">
      <div class="tile-label">{label}</div>
      <div class="tile-value">{value}</div>
      <div class="tile-detail">{detail}</div>
    </div>
  );
}

const METERS: Record<string, string> = { ok: "meter-ok", suspended: "meter-wait", cancelled: "meter-quiet" };

/** Outcomes whose code is not the clearest name. A run is counted each time that it is suspended. */
const OUTCOMES: Record<string, string> = { suspended: "suspensions" };

function Outcomes({ outcomes }: { outcomes: Record<string, number> }) {
  const rows = Object.entries(outcomes).sort((left, right) => right[1] - left[1]);
  const total = rows.reduce((sum, [, count]) => sum + count, 0);
  if (!total) {
    return (
      <Empty title="Nothing has run since the start">
        <p>
          Run code in the <a href="#/playground">playground</a>, or <a href="#/connect">connect</a> a client.
        </p>
      </Empty>
    );
  }
  return (
    <ul class="bars">
      {rows.map(([code, count]) => (
        <li key={code}>
          <span class="bars-label" title={code}>{OUTCOMES[code] ?? code}</span>
          <meter class={METERS[code] ?? "meter-bad"} min={0} max={total} value={count}>
            {count}
          </meter>
          <span class="bars-value">{formatCount(count)}</span>
        </li>
      ))}
    </ul>
  );
}

const REFRESH_MS = 5_000;

function LastFailures() {
  const { data, error } = useData<RunPage>("/runs?status=failed&limit=8&counts=false", REFRESH_MS);
  return (
    <Card title="Last failures" actions={<a href={link(["runs"], { status: "failed" })}>All</a>}>
      {error !== undefined && <ErrorNote error={error} />}
      {data?.runs.length === 0 && (
        <Empty title="Nothing has failed">
          <p>Failed runs appear here with their message.</p>
        </Empty>
      )}
      <ul class="failures">
        {data?.runs.map((run) => (
          <li key={run.run_id}>
            <Badge state={stateOf(run)} />
            <a href={link(["runs", run.run_id])} title={visible(nameOf(run))}>
              {visible(nameOf(run))}
            </a>
            <span class="failures-message">{visible(run.error?.message?.slice(0, 200) ?? "")}</span>
            <span class="quiet">
              <Age time={run.created_at} />
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function McpServers() {
  const { data } = useData<
    { servers: { name: string; state: string; error?: string | null; tools: number }[] }
  >(
    "/status",
    REFRESH_MS,
  );
  return (
    <Card title="MCP servers">
      {data?.servers.length === 0 && (
        <Empty title="No MCP servers">
          <p>
            List them in <code>~/.toolscript.json</code>.
          </p>
        </Empty>
      )}
      <ul class="failures">
        {data?.servers.map((server) => (
          <li key={server.name}>
            <Badge state={server.state} />
            <a href="#/tools">{visible(server.name)}</a>
            <span class="failures-message">{visible(server.error ?? "")}</span>
            <span class="quiet">{server.tools} tools</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}
