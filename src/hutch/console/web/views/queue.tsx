/** Asynchronous runs, webhooks, schedules and triggers. */

import { useState } from "preact/hooks";
import { get, post, remove, request } from "../api.ts";
import { visible } from "../format.ts";
import { link } from "../router.ts";
import { Age, Badge, Broken, Button, Card, Copy, Empty, ErrorNote, Page, Table } from "../ui/basics.tsx";
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
                {run.source && <span class="quiet">{visible(run.source)}</span>}
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
                    <>
                      <Button small onClick={() => act(post(`/queue/${run.run_id}/retry`))}>Retry</Button>
                      {" "}
                      <Button small onClick={() => act(remove(`/queue/${run.run_id}`))}>Remove</Button>
                    </>
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
              {visible(delivery.attempts.map(({ status, error }) => status ?? error).slice(-5).join(", "))}
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
        <Table head={["Name", "Starts", when, "Next", "Last run", "Actions"]}>
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
                    ? <span>{starter.next_at?.slice(0, 16).replace("T", " ")}</span>
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
                  <Button small onClick={() => act(request("PATCH", url, { paused: !starter.paused }))}>
                    {starter.paused ? "Resume" : "Pause"}
                  </Button>{" "}
                  <Button small onClick={() => act(remove(url))}>Remove</Button>
                </td>
              </tr>
            );
          })}
        </Table>
      )}
    </Card>
  );
}

/** Shows the secret that signs webhooks only on request. */
function Secret() {
  const [secret, setSecret] = useState<string>();
  if (secret !== undefined) return <Copy text={secret} label="Copy the webhook secret" />;
  const show = () => get<{ secret: string }>("/webhooks/secret").then((answer) => setSecret(answer.secret));
  return <Button small onClick={show}>Show the webhook secret</Button>;
}
