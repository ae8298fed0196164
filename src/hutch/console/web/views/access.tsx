/** Users, their API keys, their quotas and their credentials. */

import { useState } from "preact/hooks";
import { post, remove } from "../api.ts";
import { visible } from "../format.ts";
import { link, location, navigate } from "../router.ts";
import {
  Age,
  Badge,
  Broken,
  Button,
  Card,
  Copy,
  Dialog,
  Empty,
  ErrorNote,
  Field,
  Page,
  Table,
} from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import { type Quota, QuotaForm, quotaText, type Used, usedText } from "./access/quota.tsx";

interface UserHead {
  id: string;
  name: string;
  createdAt: string;
  keys: number;
}

interface UserList {
  users: UserHead[];
  scopes: string[];
  defaultScopes: string[];
}

interface ApiKey {
  id: string;
  name: string;
  state: string;
  endsWith: string;
  scopes: string[];
  createdAt: string;
  expiresAt: string | null;
  lastUsedAt: string | null;
  quota: Quota;
  today: Used;
}

interface Credential {
  id: string;
  domain: string;
  kind: string;
  key: string;
  hint: string;
  state: string;
  updatedAt: string;
}

interface UserDetail {
  name: string;
  createdAt: string;
  quota: Quota;
  today: Used;
  defaults: Quota;
  keys: ApiKey[];
  credentials: Credential[];
}

const KINDS = ["header", "cookie", "query", "body"];

export default function Access() {
  const list = useData<UserList>("/console/users");
  const name = location.value.path[1];
  if (list.error) return <Broken title="Access" error={list.error} retry={list.reload} />;
  if (!list.data) return null;
  return (
    <Page wide title="Access">
      <div class="two-columns">
        <Card title="Users">
          <div class="pick-list">
            {list.data.users.map((user) => (
              <button
                type="button"
                key={user.id}
                class={user.name === name ? "pick pick-current" : "pick"}
                aria-pressed={user.name === name}
                onClick={() => navigate(["access", user.name])}
              >
                <strong>{visible(user.name)}</strong>
                <small>{user.keys} active {user.keys === 1 ? "key" : "keys"}</small>
              </button>
            ))}
          </div>
          {!list.data.users.length && <Empty title="There are no users yet" />}
          <AddUser onAdded={list.reload} />
        </Card>
        {name ? <UserPanel key={name} name={name} list={list.data} onChanged={list.reload} /> : (
          <Card>
            <Empty title="Choose a user">
              <p>
                Users have keys with scopes, and credentials that their abilities use and that cannot be read.
              </p>
            </Empty>
          </Card>
        )}
      </div>
    </Page>
  );
}

function AddUser({ onAdded }: { onAdded: () => void }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<unknown>();
  const add = async (event: SubmitEvent) => {
    event.preventDefault();
    setError(undefined);
    try {
      await post("/console/users", { name });
      onAdded();
      navigate(["access", name]);
      setName("");
    } catch (error) {
      setError(error);
    }
  };
  return (
    <form class="stack" onSubmit={add}>
      {error !== undefined && <ErrorNote error={error} />}
      <div class="inline-form">
        <input
          aria-label="Name of the new user"
          placeholder="New user"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <Button type="submit" disabled={!name}>Add</Button>
      </div>
    </form>
  );
}

function UserPanel({ name, list, onChanged }: { name: string; list: UserList; onChanged: () => void }) {
  const path = `/console/users/${encodeURIComponent(name)}`;
  const { data: user, error, reload } = useData<UserDetail>(path);
  const [problem, setProblem] = useState<unknown>();
  const [isRemoving, setRemoving] = useState(false);
  if (error) return <ErrorNote error={error} retry={reload} />;
  if (!user) return null;
  const change = async (action: Promise<unknown>) => {
    setProblem(undefined);
    try {
      await action;
      reload();
      onChanged();
    } catch (error) {
      setProblem(error);
    }
  };
  const removeUser = async () => {
    await change(remove(path));
    navigate(["access"]);
  };
  return (
    <div class="stack">
      {problem !== undefined && <ErrorNote error={problem} />}
      <Card
        title={`Keys of ${visible(user.name)}`}
        actions={
          <>
            <a href={link(["runs"], { owner: user.name })}>Runs</a>
            {isRemoving
              ? (
                <>
                  <Button small kind="danger" onClick={removeUser}>
                    Remove with all keys and credentials
                  </Button>
                  <Button small onClick={() => setRemoving(false)}>Keep</Button>
                </>
              )
              : <Button small onClick={() => setRemoving(true)}>Remove user</Button>}
          </>
        }
      >
        <KeyTable
          keys={user.keys}
          revoke={(id) => change(remove(`/console/keys/${encodeURIComponent(id)}`))}
          onChanged={reload}
        />
        <AddKey path={path} list={list} onAdded={() => change(Promise.resolve())} />
      </Card>
      <Card title="Limits of executions" actions={<span>Today: {usedText(user.today)}</span>}>
        <QuotaForm path={`${path}/quota`} quota={user.quota} inherited={user.defaults} onSaved={reload} />
      </Card>
      <Card title="Credentials">
        <CredentialTable
          credentials={user.credentials}
          removeOne={(id) => change(remove(`${path}/credentials/${encodeURIComponent(id)}`))}
        />
        <AddCredential path={path} onAdded={() => change(Promise.resolve())} />
      </Card>
    </div>
  );
}

function KeyTable({ keys, revoke, onChanged }: {
  keys: ApiKey[];
  revoke: (id: string) => void;
  onChanged: () => void;
}) {
  const [edited, setEdited] = useState<string>();
  if (!keys.length) return <Empty title="No keys" />;
  const key = keys.find(({ id }) => id === edited);
  return (
    <>
      {key && (
        <Dialog
          title={`Limits of the key …${visible(key.endsWith)}`}
          onClose={() => setEdited(undefined)}
        >
          <p>Used today: {usedText(key.today)}. A limit of a key takes precedence over its user's.</p>
          <QuotaForm
            path={`/console/keys/${encodeURIComponent(key.id)}/quota`}
            quota={key.quota}
            onSaved={() => {
              setEdited(undefined);
              onChanged();
            }}
          />
        </Dialog>
      )}
      <Table head={["Key", "State", "Scopes", "Expires", "Last used", "Limits", "Actions"]}>
        {keys.map((key) => (
          <tr key={key.id}>
            <td>
              <code class="name">…{visible(key.endsWith)}</code> {visible(key.name)}
            </td>
            <td>
              <Badge state={key.state === "active" ? "ok" : "cancelled"}>{key.state}</Badge>
            </td>
            <td>{key.scopes.join(", ")}</td>
            <td>{key.expiresAt?.slice(0, 10) ?? "never"}</td>
            <td>
              <Age time={key.lastUsedAt} />
            </td>
            <td>{quotaText(key.quota)}</td>
            <td>
              {key.state === "active" && (
                <div class="actions">
                  <Button small onClick={() => setEdited(key.id)}>Limits</Button>
                  <Button small onClick={() => revoke(key.id)}>Revoke</Button>
                </div>
              )}
            </td>
          </tr>
        ))}
      </Table>
    </>
  );
}

function AddKey({ path, list, onAdded }: { path: string; list: UserList; onAdded: () => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState("");
  const [scopes, setScopes] = useState<string[]>(list.defaultScopes);
  const [secret, setSecret] = useState("");
  const [error, setError] = useState<unknown>();
  const add = async (event: SubmitEvent) => {
    event.preventDefault();
    setError(undefined);
    setSecret("");
    try {
      const body = { scopes, ...(name && { name }), ...(days && { days: Number(days) }) };
      setSecret((await post<{ secret: string }>(`${path}/keys`, body)).secret);
      onAdded();
    } catch (error) {
      setError(error);
    }
  };
  const toggle = (scope: string) =>
    setScopes((old) => old.includes(scope) ? old.filter((other) => other !== scope) : [...old, scope]);
  return (
    <form class="stack" onSubmit={add}>
      {error !== undefined && <ErrorNote error={error} />}
      {secret && (
        <p class="note">
          <span>
            Copy this key now, it is not shown again: <code>{secret}</code>
          </span>
          <Copy text={secret} />
        </p>
      )}
      <fieldset class="scopes">
        <legend>New key for</legend>
        {list.scopes.map((scope) => (
          <label key={scope}>
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} /> {scope}
          </label>
        ))}
      </fieldset>
      <div class="inline-form">
        <input
          aria-label="Name of the key"
          placeholder="Name"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <input
          aria-label="Days until it expires"
          placeholder="Days until it expires"
          inputMode="numeric"
          value={days}
          onInput={(event) => setDays(event.currentTarget.value)}
        />
        <Button type="submit" disabled={!scopes.length}>Create key</Button>
      </div>
    </form>
  );
}

function CredentialTable({ credentials, removeOne }: {
  credentials: Credential[];
  removeOne: (id: string) => void;
}) {
  if (!credentials.length) return <Empty title="No credentials" />;
  return (
    <Table head={["Host", "Sent as", "Value", "State", "Changed", "Actions"]}>
      {credentials.map((credential) => (
        <tr key={credential.id}>
          <td>{visible(credential.domain)}</td>
          <td>
            {credential.kind} <code>{visible(credential.key)}</code>
          </td>
          <td>
            <code>…{visible(credential.hint)}</code>
          </td>
          <td>
            <Badge state={credential.state === "active" ? "ok" : "expired"}>{credential.state}</Badge>
          </td>
          <td>
            <Age time={credential.updatedAt} />
          </td>
          <td>
            <Button small onClick={() => removeOne(credential.id)}>Remove</Button>
          </td>
        </tr>
      ))}
    </Table>
  );
}

function AddCredential({ path, onAdded }: { path: string; onAdded: () => void }) {
  const empty = { domain: "", kind: "header", key: "Authorization", value: "" };
  const [draft, setDraft] = useState(empty);
  const [error, setError] = useState<unknown>();
  const set =
    (name: keyof typeof empty) => (event: { currentTarget: HTMLInputElement | HTMLSelectElement }) =>
      setDraft((old) => ({ ...old, [name]: event.currentTarget.value }));
  const add = async (event: SubmitEvent) => {
    event.preventDefault();
    setError(undefined);
    try {
      await post(`${path}/credentials`, draft);
      setDraft(empty);
      onAdded();
    } catch (error) {
      setError(error);
    }
  };
  return (
    <form class="stack" onSubmit={add}>
      {error !== undefined && <ErrorNote error={error} />}
      <div class="form-row">
        <Field label="Host">
          <input value={draft.domain} placeholder="api.example.com" onInput={set("domain")} />
        </Field>
        <Field label="Sent as">
          <select value={draft.kind} onChange={set("kind")}>
            {KINDS.map((kind) => <option key={kind}>{kind}</option>)}
          </select>
        </Field>
        <Field label="Name">
          <input value={draft.key} onInput={set("key")} />
        </Field>
        <Field label="Value" hint="It is encrypted and cannot be read again.">
          <input type="password" autocomplete="off" value={draft.value} onInput={set("value")} />
        </Field>
      </div>
      <div class="actions">
        <Button type="submit" disabled={!draft.domain || !draft.key || !draft.value}>Store credential</Button>
      </div>
    </form>
  );
}
