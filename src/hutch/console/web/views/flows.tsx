/** Flows: the list, one flow with its graph, and one of its runs, live. */

import { useEffect, useState } from "preact/hooks";
import { get, post, stream } from "../api.ts";
import { formatJson, visible } from "../format.ts";
import { link, location, navigate } from "../router.ts";
import { Age, Badge, Button, Card, Empty, ErrorNote, Json, Page, Snippet } from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import { SchemaForm } from "../ui/schema_form.tsx";
import { FlowGraph } from "./flows/graph.tsx";
import type { Flow, FlowApproval, FlowHead, FlowRun, StepState } from "./flows/model.ts";

const REFRESH_MS = 3_000;

export default function Flows() {
  const [, name, , run] = location.value.path;
  if (run) return <FlowRunView key={run} name={name} id={run} />;
  return name ? <FlowView key={name} name={name} /> : <FlowList />;
}

function FlowList() {
  const { data, error, reload } = useData<{ flows: FlowHead[] }>("/flows?limit=1000");
  if (error) return <ErrorNote error={error} retry={reload} />;
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
  return (
    <table class="table">
      <thead>
        <tr>
          <th>Flow</th>
          <th>Version</th>
          <th>Changed</th>
        </tr>
      </thead>
      <tbody>
        {flows.map((flow) => (
          <tr key={flow.name}>
            <td>
              <a href={link(["flows", flow.name])}>{visible(flow.name)}</a>
            </td>
            <td>{flow.version}</td>
            <td>
              <Age time={flow.updated_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function FlowView({ name }: { name: string }) {
  const { data: flow, error, reload } = useData<Flow>(`/flows/${encodeURIComponent(name)}`);
  const runs = useData<{ runs: FlowRun[] }>("/runs?protocol=rep&limit=200", REFRESH_MS);
  const [selected, setSelected] = useState<string>();
  if (error) return <ErrorNote error={error} retry={reload} />;
  if (!flow) return null;
  const node = flow.document.graph.nodes.find((node) => node.id === selected);
  const own = runs.data?.runs.filter((run) => run.flow === name) ?? [];
  return (
    <Page wide title={<Title parts={[name]} />}>
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

function Title({ parts }: { parts: string[] }) {
  return (
    <span class="run-title">
      <a href="#/flows" class="quiet">Flows</a>
      {parts.map((part, index) => (
        <span key={part}>
          <span class="quiet">/</span>{" "}
          {index < parts.length - 1 ? <a href={link(["flows", part])}>{visible(part)}</a> : visible(part)}
        </span>
      ))}
    </span>
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
function useSteps(id: string, onEvent: () => void): ReadonlyMap<string, StepState> {
  const [steps, setSteps] = useState<ReadonlyMap<string, StepState>>(new Map());
  useEffect(() => {
    const controller = new AbortController();
    (async () => {
      for await (
        const { name, data } of stream(
          "GET",
          `/runs/${encodeURIComponent(id)}/events`,
          undefined,
          controller.signal,
        )
      ) {
        if (data.step_id) {
          setSteps((old) => {
            const before = old.get(data.step_id);
            const state = name === "approval" ? "waiting" : data.state ?? before?.state ?? "started";
            return new Map(old).set(data.step_id, {
              state,
              attempt: data.attempt ?? before?.attempt ?? 0,
              duration_ms: data.duration_ms,
              started: state === "started" ? data.timestamp : before?.started,
              error: data.error,
              events: [...(before?.events ?? []), data],
            });
          });
        }
        onEvent();
      }
    })().catch(() => undefined);
    return () => controller.abort();
  }, [id]);
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
  if (run.error) return <ErrorNote error={run.error} retry={run.reload} />;
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
      <Badge state={state} />
      {!isOver && <Button kind="danger" onClick={() => act("cancel")}>Cancel</Button>}
      {isOver && state !== "completed" && <Button onClick={() => act("resume")}>Resume</Button>}
      {isOver && selected && (
        <Button onClick={() => act("retry", { from: selected })}>Retry from {visible(selected)}</Button>
      )}
      <a href={link(["runs"], { parent: id })}>Executions of its steps</a>
    </>
  );
  const chosen = selected === undefined ? undefined : steps.get(selected);
  const node = flow.data?.document.graph.nodes.find((node) => node.id === selected);
  return (
    <Page wide title={<Title parts={[name, id]} />} actions={actions}>
      {error !== undefined && <ErrorNote error={error} />}
      {run.data.approvals?.map((approval) => (
        <StepApproval key={approval.step_id} run={id} approval={approval} onDecided={run.reload} />
      ))}
      {flow.data && (
        <Card>
          <FlowGraph document={flow.data.document} steps={steps} selected={selected} onSelect={setSelected} />
        </Card>
      )}
      <div class="grid">
        <Card title={selected ? `Step ${visible(selected)}` : "Run"}>
          {!selected && (
            <Json value={{ inputs: run.data.inputs, ...run.data.summary, outcome: run.data.outcome }} />
          )}
          {node && <Json value={{ type: node.type, with: node.with }} />}
          {chosen && (
            <ol class="events">
              {chosen.events.map((event, index) => (
                <li key={index}>
                  <Badge state={String(event.state ?? event.type)} />
                  <pre>{formatJson(event)}</pre>
                </li>
              ))}
            </ol>
          )}
          {selected && !chosen && <p class="quiet">This step has not begun.</p>}
        </Card>
      </div>
    </Page>
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
