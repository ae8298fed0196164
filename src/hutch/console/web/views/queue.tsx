/** Asynchronous runs, webhooks, schedules and triggers. */

import { useState } from "preact/hooks";
import { get, post, remove, request, session } from "../api.ts";
import { formatTime, visible } from "../format.ts";
import { link } from "../router.ts";
import {
  Age,
  Badge,
  Broken,
  Button,
  Card,
  Copy,
  Empty,
  ErrorNote,
  Page,
  Snippet,
  Table,
} from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import {
  type Delivery,
  type Queue,
  type Schedule,
  type Starter,
  targetOf,
  type Trigger,
} from "./queue/model.ts";

const REFRESH_MS = 3_000;

export default function QueueView() {
  const queue = useData<Queue>("/queue", REFRESH_MS);
  const webhooks = useData<{ deliveries: Delivery[] }>("/webhooks", REFRESH_MS);
  const schedules = useData<{ schedules: Schedule[] }>("/schedules", REFRESH_MS);
  const triggers = useData<{ triggers: Trigger[] }>("/triggers", REFRESH_MS);
  const [error, setError] = useState<unknown>();
  if (queue.error && !queue.data) {
    return <Broken title="Queue" error={queue.error} retry={queue.reload} />;
  }
  const act = async (work: Promise<unknown>) => {
    setError(undefined);
    try {
      await work;
    } catch (error) {
      setError(error);
    }
    for (const loaded of [queue, webhooks, schedules, triggers]) loaded.reload();
  };
  return (
    <Page title="Queue" actions={<Secret />}>
      {error !== undefined && <ErrorNote error={error} />}
      <Runs queue={queue.data} act={act} />
      <Deliveries deliveries={webhooks.data?.deliveries} act={act} />
      <Starters title="Schedules" path="schedules" starters={schedules.data?.schedules} act={act} />
      <Starters title="Triggers" path="triggers" starters={triggers.data?.triggers} act={act} />
    </Page>
  );
}

const example = () =>
  `curl ${globalThis.location.origin}/runs${
    session.value?.needsKey ? ' -H "Authorization: Bearer $HUTCH_API_KEY"' : ""
  } -H 'Content-Type: application/json' \\
  -d '{"async": true, "kind": "code", "request": {"code": "return 6 * 7"}}'`;

type Act = (work: Promise<unknown>) => Promise<void>;

function Runs({ queue, act }: { queue?: Queue; act: Act }) {
  if (!queue) return null;
  const counts = Object.entries(queue.counts).map(([state, count]) => `${count} ${state}`).join(", ");
  return (
    <Card title="Asynchronous runs" actions={<span class="quiet">{counts}</span>}>
      {!queue.runs.length && (
        <Empty title="Nothing is queued">
          <p>
            <code>POST /runs</code> with <code>"async": true</code>{" "}
            adds a run. Runs whose attempts have all failed stay here until they are retried or removed.
          </p>
          <Snippet label="Add a run" text={example()} />
        </Empty>
      )}
      {queue.runs.length > 0 && (
        <Table
          head={["Run", "Kind", "State", "Attempts", "Added", "Outcome", "Actions"]}
          numbers={["Attempts"]}
        >
          {queue.runs.map((run) => (
            <tr key={run.run_id}>
              <td>
                <a href={link(["runs", run.run_id])}>{visible(run.label ?? run.run_id.slice(0, 8))}</a>
                {run.source && <span class="quiet">{visible(` ${run.source}`)}</span>}
              </td>
              <td>{run.kind}</td>
              <td>
                <Badge state={run.state === "delayed" ? "waiting" : run.state}>{run.state}</Badge>
              </td>
              <td class="number">{run.attempts}{run.max_attempts !== null && ` of ${run.max_attempts}`}</td>
              <td>
                <Age time={run.created_at} />
              </td>
              <td>{visible(run.outcome ?? "")}</td>
              <td>
                {run.state === "dead"
                  ? (
                    <div class="actions">
                      <Button small onClick={() => act(post(`/queue/${run.run_id}/retry`))}>Retry</Button>
                      <Button small onClick={() => act(remove(`/queue/${run.run_id}`))}>Remove</Button>
                    </div>
                  )
                  : <Button small onClick={() => act(post(`/runs/${run.run_id}/cancel`))}>Cancel</Button>}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

function Deliveries({ deliveries, act }: { deliveries?: Delivery[]; act: Act }) {
  if (!deliveries?.length) return null;
  return (
    <Card title="Webhooks">
      <Table head={["Run", "Event", "State", "Answers", "Added", "Actions"]}>
        {deliveries.map((delivery) => (
          <tr key={delivery.id}>
            <td>
              <a href={link(["runs", delivery.run_id])}>{delivery.run_id.slice(0, 8)}</a>
            </td>
            <td>{delivery.event}</td>
            <td>
              <Badge state={delivery.state === "delivered" ? "ok" : delivery.state}>{delivery.state}</Badge>
            </td>
            <td>
              {answersOf(delivery).map((answer, index) => <div key={index}>{visible(answer)}</div>)}
            </td>
            <td>
              <Age time={delivery.created_at} />
            </td>
            <td>
              <Button small onClick={() => act(post(`/webhooks/${delivery.id}/send`))}>Send again</Button>
            </td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

const MAX_ANSWERS = 5;

/** Returns the last answers. Equal answers that follow each other are counted. */
function answersOf({ attempts }: Delivery): string[] {
  const groups: { text: string; count: number }[] = [];
  for (const { status, error } of attempts) {
    const text = String(status ?? error ?? "no answer");
    const last = groups.at(-1);
    if (last?.text === text) last.count++;
    else groups.push({ text, count: 1 });
  }
  return groups.slice(-MAX_ANSWERS).map(({ text, count }) => count > 1 ? `${count} × ${text}` : text);
}

function Starters({ title, path, starters, act }: {
  title: string;
  path: string;
  starters?: (Starter & Partial<Schedule> & Partial<Trigger>)[];
  act: Act;
}) {
  if (!starters) return null;
  const isSchedule = path === "schedules";
  const when = isSchedule ? "Cron" : "Signature";
  return (
    <Card title={title}>
      {!starters.length && (
        <p class="quiet">
          There are none. <code>hutch {isSchedule ? "schedule" : "trigger"} add</code> adds one.
        </p>
      )}
      {starters.length > 0 && (
        <Table head={["Name", "Starts", when, isSchedule ? "Next" : "State", "Last run", "Actions"]}>
          {starters.map((starter) => {
            const url = `/${path}/${starter.id}`;
            return (
              <tr key={starter.id}>
                <td>{visible(starter.name)}</td>
                <td>{visible(targetOf(starter))}</td>
                <td>
                  {isSchedule
                    ? <code>{visible(`${starter.cron} ${starter.timezone}`)}</code>
                    : starter.signature}
                </td>
                <td>
                  {starter.paused
                    ? <Badge state="skipped">paused</Badge>
                    : isSchedule
                    ? <NextTime starter={starter} />
                    : <Badge state="active" />}
                </td>
                <td>
                  {starter.last_run_id
                    ? (
                      <a href={link(["runs", starter.last_run_id])}>
                        <Age time={starter.last_at} />
                      </a>
                    )
                    : <span class="quiet">–</span>}
                </td>
                <td>
                  <div class="actions">
                    <Button
                      small
                      onClick={() => act(request("PATCH", url, { paused: !starter.paused }))}
                    >
                      {starter.paused ? "Resume" : "Pause"}
                    </Button>
                    <Button
                      small
                      onClick={() =>
                        act(remove(url))}
                    >
                      Remove
                    </Button>
                  </div>
                </td>
              </tr>
            );
          })}
        </Table>
      )}
    </Card>
  );
}

/** The next time of a schedule, in the time zone of its cron expression. */
function NextTime({ starter: { next_at, timezone } }: { starter: Partial<Schedule> }) {
  if (!next_at) return <span class="quiet">–</span>;
  // The Swedish format is 2026-11-19 09:00.
  const text = new Date(next_at).toLocaleString("sv", {
    timeZone: timezone,
    dateStyle: "short",
    timeStyle: "short",
  });
  return (
    <time dateTime={next_at} title={formatTime(next_at)}>
      {text} <span class="quiet">{visible(timezone ?? "")}</span>
    </time>
  );
}

/** Shows the secret that signs webhooks only on request. */
function Secret() {
  const [secret, setSecret] = useState<string>();
  if (secret !== undefined) return <Copy text={secret} label="Copy the webhook secret" />;
  const show = () => get<{ secret: string }>("/webhooks/secret").then((answer) => setSecret(answer.secret));
  return <Button small onClick={show}>Show the webhook secret</Button>;
}
