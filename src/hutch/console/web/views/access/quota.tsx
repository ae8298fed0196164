/** Limits of a user or a key, today's usage, and the form that changes the limits. */

import { useState } from "preact/hooks";
import { put } from "../../api.ts";
import { Button, ErrorNote, Field } from "../../ui/basics.tsx";

export type Quota = Partial<Record<keyof typeof LABELS, number>>;

export interface Used {
  executions: number;
  cpuSeconds: number;
}

const LABELS = {
  max_concurrent_executions: "At once",
  max_executions_per_minute: "Per minute",
  max_executions_per_day: "Per day",
  max_cpu_seconds_per_day: "CPU s per day",
  weight: "Turns in queue",
};
const NAMES = Object.keys(LABELS) as (keyof typeof LABELS)[];
const SHORT: Record<string, string> = {
  max_concurrent_executions: "at once",
  max_executions_per_minute: "/ minute",
  max_executions_per_day: "/ day",
  max_cpu_seconds_per_day: "CPU s / day",
};

/** One line with the limits that are set. */
export function quotaText(quota: Quota): string {
  const parts = NAMES.filter((name) => quota[name] !== undefined && SHORT[name])
    .map((name) => `${quota[name] === 0 ? "no limit" : quota[name]} ${SHORT[name]}`);
  return parts.join(", ") || "as the user";
}

export function usedText({ executions, cpuSeconds }: Used): string {
  const seconds = Number(cpuSeconds.toPrecision(3));
  return `${executions} ${executions === 1 ? "execution" : "executions"}, ${seconds} CPU s`;
}

/** Passes text that is not a number to the server, which explains what it expects. */
function numberOrText(text: string): number | string {
  const number = Number(text);
  return Number.isFinite(number) ? number : text;
}

/**
 * `inherited` has the limits of the settings in the form of a user. It is undefined in the form of a key,
 * because a key inherits the limits of its user.
 */
export function QuotaForm({ path, quota, inherited, onSaved }: {
  path: string;
  quota: Quota;
  inherited?: Quota;
  onSaved: () => void;
}) {
  const [draft, setDraft] = useState<Record<string, string>>(
    Object.fromEntries(NAMES.map((name) => [name, quota[name]?.toString() ?? ""])),
  );
  const [error, setError] = useState<unknown>();
  const [isSaved, setSaved] = useState(false);
  const save = async (event: SubmitEvent) => {
    event.preventDefault();
    setError(undefined);
    setSaved(false);
    const set = names.filter((name) => draft[name].trim() !== "");
    try {
      await put(path, Object.fromEntries(set.map((name) => [name, numberOrText(draft[name])])));
      setSaved(true);
      onSaved();
    } catch (error) {
      setError(error);
    }
  };
  const placeholder = (name: keyof Quota) => {
    if (name === "weight") return "1";
    return inherited ? String(inherited[name] || "no limit") : "as the user";
  };
  // Only users have a weight, because turns in the queue belong to users.
  const names = inherited ? NAMES : NAMES.filter((name) => name !== "weight");
  return (
    <form class="stack" onSubmit={save}>
      {error !== undefined && <ErrorNote error={error} />}
      <div class="form-row">
        {names.map((name) => (
          <Field key={name} label={LABELS[name]}>
            <input
              name={name}
              inputMode="numeric"
              placeholder={placeholder(name)}
              value={draft[name]}
              onInput={(event) => {
                setSaved(false);
                setDraft({ ...draft, [name]: event.currentTarget.value });
              }}
            />
          </Field>
        ))}
      </div>
      <div class="actions">
        <Button type="submit">Save limits</Button>
        <span class="field-hint" role="status">
          {isSaved ? "Saved." : "An empty field keeps the value shown; 0 means no limit. Days are UTC."}
        </span>
      </div>
    </form>
  );
}
