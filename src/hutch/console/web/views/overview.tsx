/** The load of the server now and in the last ten minutes. */

import { useEffect, useState } from "preact/hooks";
import { get, session, subscribe } from "../api.ts";
import { formatBytes, formatCount, formatDuration } from "../format.ts";
import { Card, Empty, ErrorNote, Page } from "../ui/basics.tsx";
import { Chart } from "../ui/chart.tsx";

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
    return subscribe("/console/overview/events", ({ data: [sample, totals] }) => {
      setSamples((old) => [...(old ?? []).slice(1 - HISTORY_SECONDS), sample]);
      setTotals(totals);
    });
  }, []);
  return { samples, totals, error };
}

export function Overview() {
  return session.value?.role === "user" ? <UserOverview /> : <OperatorOverview />;
}

function UserOverview() {
  return (
    <Page title="Overview">
      <Card title={`Welcome, ${session.value?.user}`}>
        <p>
          <a href="#/connect">Connect</a> shows how to use this server.
        </p>
      </Card>
    </Page>
  );
}

function OperatorOverview() {
  const { samples, totals, error } = useLoad();
  if (error) return <ErrorNote error={error} />;
  if (!samples || !totals) return null;
  const times = samples.map((sample) => sample.time);
  const pick = (name: keyof LoadSample) => samples.map((sample) => sample[name]);
  const last = samples.at(-1);
  const recent = samples.slice(-60);
  const sum = (name: "runs" | "failed") => recent.reduce((total, sample) => total + sample[name], 0);
  const runs = sum("runs");
  return (
    <Page title="Overview">
      <div class="tiles">
        <Tile
          label="Executions, last minute"
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
          value={formatDuration(last?.p50_ms)}
          detail={`p95 ${formatDuration(last?.p95_ms)}`}
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
              { label: "waiting", color: "--chart-2", values: pick("waiting") },
            ]}
          />
        </Card>
        <Card title="Outcomes since the start">
          <Outcomes outcomes={totals.outcomes} />
        </Card>
      </div>
    </Page>
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

function Outcomes({ outcomes }: { outcomes: Record<string, number> }) {
  const rows = Object.entries(outcomes).sort((left, right) => right[1] - left[1]);
  const total = rows.reduce((sum, [, count]) => sum + count, 0);
  if (!total) {
    return (
      <Empty title="Nothing has run yet">
        <p>
          <a href="#/connect">Connect</a> a client.
        </p>
      </Empty>
    );
  }
  return (
    <ul class="bars">
      {rows.map(([code, count]) => (
        <li key={code}>
          <span class="bars-label">{code}</span>
          <meter class={code === "ok" ? "meter-ok" : "meter-bad"} min={0} max={total} value={count}>
            {count}
          </meter>
          <span class="bars-value">{formatCount(count)}</span>
        </li>
      ))}
    </ul>
  );
}
