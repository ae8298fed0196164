/** Stateful sessions: the list, and one session with its variables, its turns and a field for the next turn. */

import { useState } from "preact/hooks";
import { post } from "../api.ts";
import { formatBytes, visible } from "../format.ts";
import { location, navigate } from "../router.ts";
import { Age, Broken, Button, Card, Empty, ErrorNote, Page, Snippet } from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import { type Session, SessionDetail } from "./sessions/session.tsx";

const REFRESH_MS = 5_000;

export default function Sessions() {
  const { data, error, reload } = useData<{ sessions: Session[] }>("/sessions", REFRESH_MS);
  const id = location.value.path[1];
  if (error && !data) return <Broken title="Sessions" error={error} retry={reload} />;
  if (!data) return null;
  const sessions = [...data.sessions].sort((left, right) => right.used_at.localeCompare(left.used_at));
  const session = sessions.find((session) => session.id === id);
  return (
    <Page wide title="Sessions" actions={<NewSession onCreated={reload} />}>
      {sessions.length === 0 && !id ? <NoSessions /> : (
        <div class="two-columns">
          <Card>
            <div class="pick-list">
              {sessions.map((session) => (
                <button
                  type="button"
                  key={session.id}
                  class={session.id === id ? "pick pick-current" : "pick"}
                  aria-pressed={session.id === id}
                  onClick={() => navigate(["sessions", session.id])}
                >
                  <code>{visible(session.id)}</code>
                  <small>
                    turn {session.turn} · {formatBytes(session.bytes)} · <Age time={session.used_at} />
                  </small>
                </button>
              ))}
            </div>
          </Card>
          {session ? <SessionDetail key={session.id} session={session} onChange={reload} /> : (
            <Card>
              <Empty title={id ? "There is no such session" : "Choose a session"}>
                <p>{id ? "It was deleted, or it has expired." : "It shows its variables and its turns."}</p>
              </Empty>
            </Card>
          )}
        </div>
      )}
    </Page>
  );
}

function NoSessions() {
  return (
    <Card>
      <Empty title="There are no sessions yet">
        <p>A session runs code in turns that share their variables, like the cells of a notebook.</p>
        <Snippet
          label="Create one with its first turn"
          text={`curl ${globalThis.location.origin}/sessions -H 'Content-Type: application/json' -d '{"id": "work"}'
curl ${globalThis.location.origin}/sessions/work/run -H 'Content-Type: application/json' -d '{"code": "let x = 41"}'`}
        />
      </Empty>
    </Card>
  );
}

function NewSession({ onCreated }: { onCreated: () => void }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<unknown>();
  const create = async (event: Event) => {
    event.preventDefault();
    setError(undefined);
    try {
      const { id } = await post<Session>("/sessions", name.trim() ? { id: name.trim() } : {});
      setName("");
      onCreated();
      navigate(["sessions", id]);
    } catch (error) {
      setError(error);
    }
  };
  return (
    <>
      {error !== undefined && <ErrorNote error={error} />}
      <form class="inline-form" onSubmit={create}>
        <input
          aria-label="Name of a new session"
          placeholder="New session"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <Button type="submit">Create</Button>
      </form>
    </>
  );
}
