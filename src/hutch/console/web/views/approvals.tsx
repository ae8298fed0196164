/** Tool calls that wait for a person's decision. */

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post, session, subscribe } from "../api.ts";
import { formatTime, visible } from "../format.ts";
import { link, location } from "../router.ts";
import { Age, Button, Card, Empty, ErrorNote, Json, Page, Snippet } from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import type { FlowRun } from "./flows/model.ts";
import { nameOf, ownerOf, type RunEntry } from "./runs/model.ts";

const REFRESH_MS = 3_000;

export interface Approval {
  id: string;
  server: string;
  tool: string;
  run: string | null;
  askedAt: string;
  seconds: number | null;
  arguments: unknown;
  argumentsBegin?: string;
}

/** The calls that wait now. Undefined until they are known. */
export const pending = signal<Approval[] | undefined>(undefined);

function reload(): Promise<void> {
  return get<Approval[] | { approvals: Approval[] }>("/approvals").then((answer) => {
    pending.value = Array.isArray(answer) ? answer : answer.approvals;
  }, () => undefined);
}

/** Keeps `pending` up to date for the operator. Other users may not decide. */
export function usePendingApprovals(): void {
  const isOperator = session.value?.signedIn && session.value.role === "admin";
  useEffect(() => {
    if (!isOperator) return;
    reload();
    return subscribe("/approvals/events", () => reload());
  }, [isOperator]);
}

const EXAMPLE = `[approvals]
github = "ask"`;

export default function Approvals() {
  const id = location.value.path[1];
  const approvals = pending.value;
  const flows = useData<{ runs: FlowRun[] }>("/runs?protocol=rep&status=running&counts=false", REFRESH_MS);
  if (!approvals || !flows.data && !flows.error) return null;
  const waiting = id ? [] : flows.data?.runs.filter((run) => run.waiting_for?.length) ?? [];
  const shown = id ? approvals.filter((approval) => approval.id === id) : approvals;
  return (
    <Page title="Approvals">
      {id && !shown.length && (
        <Empty title="This call is no longer waiting">
          <p>It was decided, it waited too long, or its run has ended.</p>
          <a href="#/approvals">Calls that wait now</a>
        </Empty>
      )}
      {!id && !shown.length && !waiting.length && (
        <Empty title="No call waits for a decision">
          <p>
            Calls of tools with the rule <code>ask</code> in the setting <code>approvals</code>{" "}
            wait here, and steps of flows of the kind <code>approve</code>.
          </p>
          <Snippet label="In hutch.toml: the tools of the server github ask" text={EXAMPLE} />
        </Empty>
      )}
      {shown.map((approval) => <ApprovalCard key={approval.id} approval={approval} />)}
      {waiting.map((run) => (
        <Card
          key={run.run_id}
          class="approval"
          title={
            <>
              <code>{visible(`${run.flow}: ${run.waiting_for!.join(", ")}`)}</code>{" "}
              <span class="quiet">waits in a flow</span>
            </>
          }
          actions={<Age time={run.created_at} />}
        >
          <a href={link(["flows", run.flow, "runs", run.run_id])}>Read and decide</a>
        </Card>
      ))}
    </Page>
  );
}

/** The waiting calls of one run, shown beside its output. */
export function PendingApprovals({ run }: { run?: string }) {
  const shown = (pending.value ?? []).filter((approval) => run !== undefined && approval.run === run);
  return <>{shown.map((approval) => <ApprovalCard key={approval.id} approval={approval} isBeside />)}</>;
}

function RunLink({ id }: { id: string }) {
  const { data } = useData<RunEntry>(`/runs/${encodeURIComponent(id)}`);
  const name = data && `${nameOf(data)} of ${ownerOf(data)}`;
  return <a href={link(["runs", id])}>Show the run{name ? `: ${visible(name)}` : ""}</a>;
}

function expiry({ askedAt, seconds }: Approval): number {
  return Date.parse(askedAt) + (seconds ?? 0) * 1_000;
}

/** `isBeside` is true where the card is shown on the page of its run. */
function ApprovalCard({ approval, isBeside }: { approval: Approval; isBeside?: boolean }) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState<unknown>();
  const decide = async (decision: "allow" | "deny") => {
    try {
      await post(`/approvals/${encodeURIComponent(approval.id)}`, { decision, reason: reason || undefined });
    } catch (error) {
      const isGone = error instanceof ApiError && (error.status === 404 || error.status === 409);
      setError(isGone ? new Error("This call is no longer waiting. Your decision had no effect.") : error);
    }
    await reload();
  };
  const title = (
    <>
      <code>{visible(`${approval.server}.${approval.tool}`)}</code> <span class="quiet">asks to run</span>
    </>
  );
  return (
    <Card class="approval" title={title} actions={<Age time={approval.askedAt} />}>
      {error !== undefined && <ErrorNote error={error} />}
      {approval.argumentsBegin === undefined
        ? <Json value={approval.arguments} />
        : <pre class="code" tabIndex={0}>{visible(approval.argumentsBegin)}…</pre>}
      <p class="quiet">
        Your decision is for exactly these arguments.{" "}
        {approval.seconds !== null && (
          <>Without one, the call fails at {formatTime(expiry(approval)).slice(11, 16)}.{" "}</>
        )}
        {approval.run && !isBeside && <RunLink id={approval.run.replace(/^remote:/, "")} />}
      </p>
      <div class="actions">
        <Button kind="primary" onClick={() => decide("allow")}>Allow</Button>
        <Button kind="danger" onClick={() => decide("deny")}>Deny</Button>
        <input
          class="approval-reason"
          aria-label="Reason for denying"
          placeholder="Reason, if you deny"
          value={reason}
          onInput={(event) => setReason(event.currentTarget.value)}
        />
      </div>
    </Card>
  );
}
