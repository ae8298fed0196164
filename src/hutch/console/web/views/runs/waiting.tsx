/** Pending calls of a suspended run: approvals to decide, and calls whose results can be delivered. */

import { useEffect, useState } from "preact/hooks";
import { post, session } from "../../api.ts";
import { visible } from "../../format.ts";
import { Badge, Button, Card, ErrorNote, Field, Snippet } from "../../ui/basics.tsx";
import { pending, PendingApprovals } from "../approvals.tsx";
import type { PendingCall, RunDetail } from "./model.ts";

export function Waiting({ run, onChange }: { run: RunDetail; onChange: () => void }) {
  const calls = run.pending_calls ?? [];
  const results = calls.filter((call) => !call.is_question);
  const isOperator = session.value?.role === "admin";
  const questions = calls.filter((call) => call.is_question && !call.has_answer);
  const asked = pending.value?.some((approval) => approval.run === run.run_id);
  const isDecided = isOperator && pending.value !== undefined && !asked;
  const waitsForResult = results.some((call) => !call.has_answer);
  return (
    <>
      <PendingApprovals run={run.run_id} />
      {!isOperator &&
        questions.map((call) => (
          <Card
            key={call.call_id}
            class="approval"
            title={<Title call={call} text="waits for the operator's decision" />}
          >
            <Message call={call} />
          </Card>
        ))}
      {results.map((call) => <ResultCard key={call.call_id} run={run} call={call} onChange={onChange} />)}
      {run.status === "suspended" && !run.tools_elsewhere && !waitsForResult &&
        (isDecided || !questions.length) && <ContinueCard run={run} onChange={onChange} />}
    </>
  );
}

function Title({ call, text }: { call: PendingCall; text: string }) {
  const name = [call.provider, call.tool].filter(Boolean).join(".") || call.call_id;
  return (
    <>
      <code>{visible(name)}</code> <span class="quiet">{text}</span>
    </>
  );
}

/** What the tool said about the wait, and the id by which a result is delivered. */
function Message({ call }: { call: PendingCall }) {
  return (
    <>
      {call.message && <p class="pending-message">{visible(call.message)}</p>}
      <p class="quiet">
        Call <code>{call.call_id}</code>
      </p>
    </>
  );
}

/** Time within which a run normally continues after its last decision or result has arrived. */
const CONTINUES_MS = 4_000;

function ContinueCard({ run, onChange }: { run: RunDetail; onChange: () => void }) {
  const [isLate, setIsLate] = useState(false);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    const timer = setTimeout(() => setIsLate(true), CONTINUES_MS);
    return () => clearTimeout(timer);
  }, []);
  const resume = () => {
    setError(undefined);
    post(`/runs/${encodeURIComponent(run.run_id)}/resume`, {}).then(onChange, setError);
  };
  if (!isLate) return null;
  return (
    <Card class="approval" title="The run was not continued">
      <p class="quiet">
        Everything that it waited for is there. A server continues such a run within a minute.
      </p>
      {error !== undefined && <ErrorNote error={error} />}
      <div class="actions">
        <Button onClick={resume}>Continue now</Button>
      </div>
    </Card>
  );
}

function ResultCard({ run, call, onChange }: { run: RunDetail; call: PendingCall; onChange: () => void }) {
  const [text, setText] = useState("");
  const [error, setError] = useState<unknown>();
  const send = async (body: object) => {
    setError(undefined);
    try {
      await post(`/runs/${encodeURIComponent(run.run_id)}/resume`, body);
      onChange();
    } catch (error) {
      setError(error);
    }
  };
  const deliver = () => {
    try {
      send({ results: { [call.call_id]: JSON.parse(text) } });
    } catch (error) {
      setError(
        new Error(`Result: expected JSON, such as "yes" or {"ok": true}. ${(error as Error).message}`),
      );
    }
  };
  const title = <Title call={call} text="waits for its result" />;
  if (call.has_answer) {
    return (
      <Card class="approval" title={title} actions={<Badge state="ok">delivered</Badge>}>
        <Message call={call} />
        <p class="quiet">The run continues when all results that it needs are there.</p>
      </Card>
    );
  }
  if (run.tools_elsewhere) {
    return (
      <Card class="approval" title={title}>
        <Message call={call} />
        <Snippet
          label="A program started this run and has its tools. Only a program can continue it:"
          text={`await h.resume("${run.run_id}", {"${call.call_id}": "yes"}, tools=[…])`}
        />
      </Card>
    );
  }
  return (
    <Card class="approval" title={title}>
      <Message call={call} />
      {error !== undefined && <ErrorNote error={error} />}
      <Field label="Result (JSON)" hint="The call returns this value, and the run continues.">
        <textarea
          rows={2}
          spellcheck={false}
          value={text}
          placeholder='"yes"'
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </Field>
      <div class="actions">
        <Button kind="primary" disabled={!text.trim()} onClick={deliver}>Deliver and continue</Button>
        <Button
          kind="danger"
          onClick={() => send({ errors: { [call.call_id]: text.trim() || "Refused in the console" } })}
        >
          Let the call fail
        </Button>
      </div>
    </Card>
  );
}
