/** One stateful session: facts, variables, the next turn, and the turns so far. */

import { useState } from "preact/hooks";
import { post, remove } from "../../api.ts";
import { formatBytes, formatDuration, visible } from "../../format.ts";
import { link, navigate } from "../../router.ts";
import { Age, Badge, Button, Card, Empty, ErrorNote, Field, Json, Table } from "../../ui/basics.tsx";
import { Fact, FactRow } from "../../ui/facts.tsx";
import { useData } from "../../ui/load.ts";
import { type RunPage, stateOf } from "../runs/model.ts";

export interface Session {
  id: string;
  turn: number;
  created_at: string;
  used_at: string;
  expires_at: string;
  bytes: number;
}

interface Variable {
  name: string;
  type: string;
  bytes: number;
}

const REFRESH_MS = 5_000;

export function SessionDetail({ session, onChange }: { session: Session; onChange: () => void }) {
  const path = `/sessions/${encodeURIComponent(session.id)}`;
  // Reading the variables wakes the session, so they are read only when it has changed.
  const variables = useData<{ variables: Variable[] }>(`${path}/variables?turn=${session.turn}`);
  const turns = useData<RunPage>(
    `/runs?label=${encodeURIComponent(session.id)}&protocol=execbox&limit=20&counts=false`,
    REFRESH_MS,
  );
  const [error, setError] = useState<unknown>();
  const act = async (action: () => Promise<unknown>) => {
    setError(undefined);
    try {
      await action();
      onChange();
    } catch (error) {
      setError(error);
    }
  };
  const fork = () =>
    act(async () => {
      const { id } = await post<Session>(`${path}/fork`, {});
      navigate(["sessions", id]);
    });
  const undo = () => act(() => post(`${path}/rollback`, { turn: session.turn - 1 }));
  const discard = () => {
    if (confirm(`Delete the session ${session.id} with its variables?`)) {
      act(() => remove(path).then(() => navigate(["sessions"])));
    }
  };
  const afterTurn = () => {
    onChange();
    turns.reload();
  };
  return (
    <div class="column">
      <Card
        title={<code>{visible(session.id)}</code>}
        actions={
          <>
            <Button small onClick={undo} disabled={!session.turn} title="Goes back to the turn before">
              Undo the last turn
            </Button>
            <Button small onClick={fork} title="Copies the session">Fork</Button>
            <Button small kind="danger" onClick={discard}>Delete</Button>
          </>
        }
      >
        {error !== undefined && <ErrorNote error={error} />}
        <FactRow>
          <Fact name="Turns">{session.turn}</Fact>
          <Fact name="Stored">{formatBytes(session.bytes)}</Fact>
          <Fact name="Used">
            <Age time={session.used_at} />
          </Fact>
          <Fact name="Created">
            <Age time={session.created_at} />
          </Fact>
          <Fact name="Kept until">{session.expires_at.slice(0, 10)}</Fact>
        </FactRow>
      </Card>
      <Card title="Variables">
        {variables.error !== undefined && <ErrorNote error={variables.error} retry={variables.reload} />}
        {variables.data?.variables.length === 0 && <Empty title="The session has no variables yet" />}
        {!!variables.data?.variables.length && (
          <Table head={["Name", "Type", "Size"]} numbers={["Size"]} class="variables">
            {variables.data.variables.map(({ name, type, bytes }) => (
              <tr key={name}>
                <td>
                  <code>{visible(name)}</code>
                </td>
                <td>{visible(type)}</td>
                <td class="number">{formatBytes(bytes)}</td>
              </tr>
            ))}
          </Table>
        )}
      </Card>
      <NextTurn path={path} onEnd={afterTurn} />
      <Turns page={turns.data} error={turns.error} />
    </div>
  );
}

function NextTurn({ path, onEnd }: { path: string; onEnd: () => void }) {
  const [code, setCode] = useState("");
  const [isRunning, setIsRunning] = useState(false);
  const [result, setResult] = useState<any>();
  const [error, setError] = useState<unknown>();
  const run = async () => {
    if (!code.trim() || isRunning) return;
    setIsRunning(true);
    setError(undefined);
    setResult(undefined);
    try {
      const result = await post(`${path}/run`, { code, record: "full" });
      setResult(result);
      if (result.ok) setCode("");
    } catch (error) {
      setError(error);
    }
    setIsRunning(false);
    onEnd();
  };
  return (
    <Card title="Next turn">
      <Field label="Code" hint="Ctrl+Enter runs it. A turn that fails changes nothing.">
        <textarea
          rows={3}
          spellcheck={false}
          value={code}
          placeholder="prices.push(4)"
          onInput={(event) => setCode(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
          }}
        />
      </Field>
      <div class="actions">
        <Button kind="primary" onClick={run} disabled={!code.trim() || isRunning}>Run</Button>
        {result?.run_id && <a href={link(["runs", result.run_id])}>Timeline</a>}
      </div>
      {error !== undefined && <ErrorNote error={error} />}
      {result && !result.ok && <ErrorNote error={`${result.error.code}: ${result.error.message}`} />}
      {result?.logs?.length > 0 && (
        <div class="logs" tabIndex={0} role="log" aria-label="Log">
          {result.logs.map((line: string, index: number) => (
            <div key={index} class="log">{visible(line)}</div>
          ))}
        </div>
      )}
      {result?.ok && result.result !== undefined && <Json value={result.result} />}
    </Card>
  );
}

function Turns({ page, error }: { page?: RunPage; error: unknown }) {
  return (
    <Card title="Turns">
      {error !== undefined && <ErrorNote error={error} />}
      {page?.runs.length === 0 && <Empty title="No turn was recorded" />}
      {!!page?.runs.length && (
        <Table head={["State", "Run", "Ran", "When"]} numbers={["Ran", "When"]}>
          {page.runs.map((run) => (
            <tr key={run.run_id}>
              <td>
                <Badge state={stateOf(run)} />
              </td>
              <td>
                <a class="mono" href={link(["runs", run.run_id])}>{run.run_id.slice(0, 12)}</a>{" "}
                <span class="run-error">{visible(run.error?.message?.slice(0, 200) ?? "")}</span>
              </td>
              <td class="number">{formatDuration(run.duration_ms)}</td>
              <td class="number quiet">
                <Age time={run.created_at} />
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}
