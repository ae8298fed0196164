/** Flows: the list, one flow with its graph, and one of its runs, live. */

import { useEffect, useState } from "preact/hooks";
import { batches, get, post, type ServerEvent } from "../api.ts";
import { formatDuration, formatJson, visible } from "../format.ts";
import { link, location, navigate } from "../router.ts";
import {
  Age,
  Badge,
  Broken,
  Button,
  Card,
  Copy,
  Crumbs,
  Empty,
  ErrorNote,
  Json,
  Page,
  Snippet,
  Table,
} from "../ui/basics.tsx";
import { Fact, FactRow } from "../ui/facts.tsx";
import { cancelFrame, inFrame } from "../ui/frames.ts";
import { useData } from "../ui/load.ts";
import { SchemaForm } from "../ui/schema_form.tsx";
import { FlowGraph } from "./flows/graph.tsx";
import type { Flow, FlowApproval, FlowHead, FlowNode, FlowRun, StepState } from "./flows/model.ts";

const REFRESH_MS = 3_000;
const FLOWS = { href: "#/flows", name: "Flows" };

export default function Flows() {
  const [, name, , run] = location.value.path;
  if (run) return <FlowRunView key={run} name={name} id={run} />;
  return name ? <FlowView key={name} name={name} /> : <FlowList />;
}

function FlowList() {
  const { data, error, reload } = useData<{ flows: FlowHead[] }>("/flows?limit=1000");
  if (error) return <Broken title="Flows" error={error} retry={reload} />;
  if (!data) return null;
  return (
    <Page title="Flows">
      <Card>
        {data.flows.length ? <FlowTable flows={data.flows} /> : (
          <Empty title="No flow is stored yet">
            <Snippet
              label="Store an example"
              text={`curl ${globalThis.location.origin}/flows -H 'Content-Type: application/yaml' --data-binary @examples/flows/greet.yaml`}
            />
          </Empty>
        )}
      </Card>
    </Page>
  );
}

function FlowTable({ flows }: { flows: FlowHead[] }) {
  const { data } = useData<{ runs: FlowRun[] }>("/runs?protocol=rep&limit=200&counts=false", REFRESH_MS);
  const last = new Map([...data?.runs ?? []].reverse().map((run) => [run.flow, run]));
  return (
    <Table head={["Flow", "Version", "Changed", "Last run"]}>
      {flows.map((flow) => (
        <tr key={flow.name}>
          <td>
            <a href={link(["flows", flow.name])}>{visible(flow.name)}</a>
          </td>
          <td>{flow.version}</td>
          <td>
            <Age time={flow.updated_at} />
          </td>
          <td>
            <LastRun run={last.get(flow.name)} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function LastRun({ run }: { run?: FlowRun }) {
  if (!run) return <span class="quiet">–</span>;
  return (
    <a class="last-run" href={link(["flows", run.flow, "runs", run.run_id])}>
      <Badge state={run.state ?? run.status} /> <Age time={run.created_at} />
    </a>
  );
}

function FlowView({ name }: { name: string }) {
  const { data: flow, error, reload } = useData<Flow>(`/flows/${encodeURIComponent(name)}`);
  const runs = useData<{ runs: FlowRun[] }>("/runs?protocol=rep&limit=200", REFRESH_MS);
  const [selected, setSelected] = useState<string>();
  if (error) return <Broken title="Flows" error={error} retry={reload} />;
  if (!flow) return null;
  const node = flow.document.graph.nodes.find((node) => node.id === selected);
  const own = runs.data?.runs.filter((run) => run.flow === name) ?? [];
  return (
    <Page wide title={<Crumbs above={[FLOWS]} name={name} />}>
      <Card title={`Version ${flow.version}`}>
        <FlowGraph document={flow.document} steps={new Map()} selected={selected} onSelect={setSelected} />
        {node && <Json value={node} />}
      </Card>
      <div class="grid">
        <StartFlow flow={flow} />
        <Card title="Last runs">
          {own.length
            ? own.slice(0, 30).map((run) => <RunLine key={run.run_id} run={run} />)
            : <Empty title="It has not run yet" />}
        </Card>
      </div>
    </Page>
  );
}

function RunLine({ run }: { run: FlowRun }) {
  return (
    <div class="card-head">
      <a class="mono" href={link(["flows", run.flow, "runs", run.run_id])}>{visible(run.run_id)}</a>
      <span class="actions">
        <Age time={run.created_at} />
        <Badge state={run.state ?? run.status} />
      </span>
    </div>
  );
}

function StartFlow({ flow }: { flow: Flow }) {
  const [inputs, setInputs] = useState<Record<string, unknown> | undefined>({});
  const [error, setError] = useState<unknown>();
  const start = async () => {
    setError(undefined);
    try {
      const run = await post<FlowRun>(`/flows/${encodeURIComponent(flow.name)}/runs`, { inputs });
      navigate(["flows", flow.name, "runs", run.run_id]);
    } catch (error) {
      setError(error);
    }
  };
  return (
    <Card title="Start a run">
      {Object.keys(flow.inputs_json_schema.properties ?? {}).length
        ? <SchemaForm schema={flow.inputs_json_schema} onChange={setInputs} />
        : <p class="quiet">This flow has no inputs.</p>}
      {error !== undefined && <ErrorNote error={error} />}
      <div class="actions">
        <Button kind="primary" onClick={start} disabled={inputs === undefined}>Start</Button>
      </div>
    </Card>
  );
}

/** Collects the states of the steps from the events of a run, live until it ends. */
function useSteps(id: string, onEvents: () => void): ReadonlyMap<string, StepState> {
  const [steps, setSteps] = useState<ReadonlyMap<string, StepState>>(new Map());
  useEffect(() => {
    const controller = new AbortController();
    const path = `/runs/${encodeURIComponent(id)}/events`;
    let current: ReadonlyMap<string, StepState> = new Map();
    (async () => {
      for await (const events of batches("GET", path, undefined, controller.signal)) {
        current = withEvents(current, events);
        inFrame(controller, () => {
          setSteps(current);
          onEvents();
        });
      }
    })().catch(() => undefined);
    return () => {
      controller.abort();
      cancelFrame(controller);
    };
  }, [id]);
  return steps;
}

function withEvents(old: ReadonlyMap<string, StepState>, events: ServerEvent[]): Map<string, StepState> {
  const steps = new Map(old);
  for (const { name, data } of events) {
    if (!data.step_id) continue;
    const before = steps.get(data.step_id);
    const state = name === "approval" ? "waiting" : data.state ?? before?.state ?? "started";
    steps.set(data.step_id, {
      state,
      attempt: data.attempt ?? before?.attempt ?? 0,
      duration_ms: data.duration_ms,
      started: state === "started" ? data.timestamp : before?.started,
      error: data.error,
      events: [...(before?.events ?? []), data],
    });
  }
  return steps;
}

function FlowRunView({ name, id }: { name: string; id: string }) {
  const path = `/runs/${encodeURIComponent(id)}`;
  const run = useData<FlowRun>(path);
  const version = run.data?.version;
  const flow = useData<Flow>(version ? `/flows/${encodeURIComponent(name)}?version=${version}` : undefined);
  const steps = useSteps(id, run.reload);
  const [selected, setSelected] = useState<string>();
  const [error, setError] = useState<unknown>();
  if (run.error) return <Broken title="Flows" error={run.error} retry={run.reload} />;
  if (!run.data) return null;
  const state = run.data.state ?? run.data.status;
  const isOver = run.data.ended_at != null;
  const act = async (action: string, body: object = {}) => {
    setError(undefined);
    try {
      await post(`${path}/${action}`, body);
      run.reload();
    } catch (error) {
      setError(error);
    }
  };
  const actions = (
    <>
      {!isOver && <Button kind="danger" onClick={() => act("cancel")}>Cancel</Button>}
      {isOver && state !== "completed" && <Button onClick={() => act("resume")}>Resume</Button>}
      {isOver && selected && (
        <Button onClick={() => act("retry", { from: selected })}>Retry from {visible(selected)}</Button>
      )}
      <a class="button" href={link(["runs"], { parent: id })}>Executions of its steps</a>
    </>
  );
  const title = (
    <Crumbs above={[FLOWS, { href: link(["flows", name]), name }]} name={id.slice(0, 8)}>
      <Badge state={state} />
    </Crumbs>
  );
  const chosen = selected === undefined ? undefined : steps.get(selected);
  const node = flow.data?.document.graph.nodes.find((node) => node.id === selected);
  return (
    <Page wide title={title} actions={actions}>
      <RunFacts run={run.data} />
      {error !== undefined && <ErrorNote error={error} />}
      {run.data.approvals?.map((approval) => (
        <StepApproval key={approval.step_id} run={id} approval={approval} onDecided={run.reload} />
      ))}
      {flow.data && (
        <Card>
          <FlowGraph document={flow.data.document} steps={steps} selected={selected} onSelect={setSelected} />
        </Card>
      )}
      {selected
        ? <StepCard id={selected} node={node} step={chosen} record={run.data.steps?.find(isStep(selected))} />
        : <RunCards run={run.data} hasGraph={flow.data !== undefined} />}
    </Page>
  );
}

const isStep = (id: string) => (step: Record<string, unknown>) => step.step_id === id;

function StepCard({ id, node, step, record }: {
  id: string;
  node?: FlowNode;
  step?: StepState;
  record?: Record<string, unknown>;
}) {
  return (
    <Card title={`Step ${visible(id)}`} actions={step && <Badge state={step.state} />}>
      {!step && <p class="quiet">This step has not begun.</p>}
      {step?.error !== undefined && <Json value={step.error} />}
      <div class="grid">
        {record && "input" in record && (
          <div class="stack">
            <h4>Input</h4>
            <Json value={record.input} />
          </div>
        )}
        {record && "output" in record && (
          <div class="stack">
            <h4>Output</h4>
            <Json value={record.output} />
          </div>
        )}
        {node && (
          <div class="stack">
            <h4>Definition</h4>
            <Json value={{ type: node.type, with: node.with }} />
          </div>
        )}
      </div>
      {step && (
        <details>
          <summary>Events ({step.events.length})</summary>
          <ol class="events">
            {step.events.map((event, index) => (
              <li key={index}>
                <Badge state={String(event.state ?? event.type)} />
                <pre>{formatJson(event)}</pre>
              </li>
            ))}
          </ol>
        </details>
      )}
    </Card>
  );
}

function RunCards({ run, hasGraph }: { run: FlowRun; hasGraph: boolean }) {
  const { outputs, error } = run.summary ?? {};
  return (
    <>
      {error !== undefined && error !== null && (
        <Card title="Error">
          <Json value={error} />
        </Card>
      )}
      <div class="grid">
        <Card title="Inputs">
          <Json value={run.inputs ?? {}} />
        </Card>
        <Card title="Outputs">
          {outputs === undefined
            ? <Empty title={run.ended_at ? "The run has no outputs" : "The run has not ended yet"} />
            : <Json value={outputs} />}
        </Card>
      </div>
      {hasGraph && <p class="quiet">Choose a step of the graph to see its input, output and attempts.</p>}
    </>
  );
}

function RunFacts({ run }: { run: FlowRun }) {
  const summary = run.summary ?? {};
  const begin = Date.parse(run.started_at ?? run.created_at);
  return (
    <FactRow>
      {run.version != null && <Fact name="Version">{run.version}</Fact>}
      <Fact name="Steps">
        {String(summary.completed_steps ?? 0)} of {String(summary.total_steps ?? "?")}
        {summary.failed_steps ? `, ${summary.failed_steps} failed` : ""}
      </Fact>
      <Fact name="Created">
        <Age time={run.created_at} />
      </Fact>
      <Fact name="Took">{run.ended_at ? formatDuration(Date.parse(run.ended_at) - begin) : "…"}</Fact>
      <Fact name="Id">
        <span class="mono">{run.run_id}</span> <Copy text={run.run_id} />
      </Fact>
    </FactRow>
  );
}

function StepApproval({ run, approval, onDecided }: {
  run: string;
  approval: FlowApproval;
  onDecided: () => void;
}) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState<unknown>();
  const decide = async (approved: boolean) => {
    const path = `/runs/${encodeURIComponent(run)}/approvals/${encodeURIComponent(approval.step_id)}`;
    try {
      await post(path, { approved, reason: reason || undefined });
    } catch (error) {
      setError(error);
    }
    await get(`/runs/${encodeURIComponent(run)}`).catch(() => undefined);
    onDecided();
  };
  return (
    <Card
      class="approval"
      title={<code>{visible(approval.step_id)}</code>}
      actions={<Age time={approval.asked_at} />}
    >
      <p>{visible(approval.message ?? "This step waits for a decision.")}</p>
      {error !== undefined && <ErrorNote error={error} />}
      <div class="actions">
        <Button kind="primary" onClick={() => decide(true)}>Approve</Button>
        <Button kind="danger" onClick={() => decide(false)}>Reject</Button>
        <input
          class="approval-reason"
          aria-label="Reason"
          placeholder="Reason"
          value={reason}
          onInput={(event) => setReason(event.currentTarget.value)}
        />
      </div>
    </Card>
  );
}
