/** Filters of the list of runs. Each is a parameter of the URL. */

import { useEffect, useState } from "preact/hooks";
import { session } from "../../api.ts";
import { location, setQuery } from "../../router.ts";
import { Button } from "../../ui/basics.tsx";

/** Parameters that are passed on to `GET /runs`. */
export const FILTERS = [
  "status",
  "protocol",
  "owner",
  "code",
  "engine",
  "label",
  "tool",
  "host",
  "parent",
  "text",
  "since",
  "until",
  "sort",
  "order",
] as const;

const STATUSES = [
  { value: "", label: "All" },
  { value: "running,pending", label: "Running" },
  { value: "completed", label: "Completed" },
  { value: "failed", label: "Failed" },
  { value: "suspended", label: "Suspended" },
];

const PERIODS = [
  { value: "", label: "Any time" },
  { value: "15m", label: "Last 15 minutes" },
  { value: "1h", label: "Last hour" },
  { value: "24h", label: "Last day" },
  { value: "7d", label: "Last week" },
];

const PROTOCOLS = ["execbox", "tpmjs", "toolscript", "abilities", "rep", "mcp"];
const ENGINES = ["quickjs", "deno", "npm", "script"];
const TYPING_MS = 250;

export function currentFilters(): URLSearchParams {
  const query = location.value.query;
  const filters = new URLSearchParams();
  for (const name of FILTERS) if (query.get(name)) filters.set(name, query.get(name)!);
  return filters;
}

export function clearFilters(): void {
  setQuery(Object.fromEntries(FILTERS.map((name) => [name, undefined])));
}

export function Filters({ counts, complete }: { counts?: Record<string, number>; complete?: boolean }) {
  const query = location.value.query;
  const value = (name: string) => query.get(name) ?? "";
  const select = (name: string, label: string, options: { value: string; label: string }[]) => (
    <select
      aria-label={label}
      value={value(name)}
      onChange={(event) => setQuery({ [name]: event.currentTarget.value })}
    >
      {options.map((option) => <option key={option.value} value={option.value}>{option.label}</option>)}
    </select>
  );
  const choices = (names: string[], label: string) => [
    { value: "", label },
    ...names.map((name) => ({ value: name, label: name })),
    ...names.map((name) => ({ value: `-${name}`, label: `not ${name}` })),
  ];
  const others = FILTERS.filter((name) =>
    ["code", "label", "tool", "host", "parent", "owner", "until"].includes(name) && value(name)
  );
  return (
    <div class="filters">
      <div class="segments" role="group" aria-label="Status">
        {STATUSES.map((status) => (
          <button
            type="button"
            key={status.value}
            class={value("status") === status.value ? "segment segment-current" : "segment"}
            aria-pressed={value("status") === status.value}
            onClick={() => setQuery({ status: status.value })}
          >
            {status.label}
            <Count statuses={status.value} counts={counts} complete={complete} />
          </button>
        ))}
      </div>
      <TextFilter name="text" placeholder="Search id, label, message, tool, host" />
      {select("since", "Time", PERIODS)}
      {select("protocol", "Protocol", choices(PROTOCOLS, "All protocols"))}
      {select("engine", "Engine", choices(ENGINES, "All engines"))}
      {select("sort", "Order", [{ value: "", label: "Newest first" }, {
        value: "duration",
        label: "Slowest first",
      }])}
      <AddFilter />
      {others.map((name) => (
        <span class="chip" key={name}>
          {name}: {value(name)}
          <button
            type="button"
            aria-label={`Remove the filter ${name}`}
            onClick={() => setQuery({ [name]: undefined })}
          >
            ✕
          </button>
        </span>
      ))}
      {currentFilters().size > 0 && (
        <Button
          small
          kind="link"
          onClick={clearFilters}
        >
          Clear all
        </Button>
      )}
    </div>
  );
}

function Count({ statuses, counts, complete }: {
  statuses: string;
  counts?: Record<string, number>;
  complete?: boolean;
}) {
  if (!counts) return null;
  const names = statuses ? statuses.split(",") : Object.keys(counts);
  const total = names.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
  return <span class="segment-count">{total}{complete === false && total ? "+" : ""}</span>;
}

/** A text field that changes the URL shortly after the last key. */
function TextFilter({ name, placeholder }: { name: string; placeholder: string }) {
  const current = location.value.query.get(name) ?? "";
  const [text, setText] = useState(current);
  useEffect(() => setText(current), [current]);
  useEffect(() => {
    if (text === current) return;
    const timer = setTimeout(() => setQuery({ [name]: text.trim() || undefined }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <input
      type="search"
      placeholder={placeholder}
      aria-label={placeholder}
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
    />
  );
}

const HINTS: Record<string, string> = {
  code: "timeout, or -timeout",
  tool: "shop.order, or -shop.order",
  host: "api.example.com",
  label: "sync*, or -sync*",
  parent: "id of a run",
  until: "1h, or a time",
  owner: "ann, or -ann",
};

/** Adds a filter with a value that is typed. `-` before the value excludes it. */
function AddFilter() {
  const names = [
    "code",
    "tool",
    "host",
    "label",
    "parent",
    "until",
    ...(session.value?.role === "admin" ? ["owner"] : []),
  ];
  const [name, setName] = useState("");
  return (
    <form
      class="add-filter"
      onSubmit={(event) => {
        event.preventDefault();
        const field = event.currentTarget.elements.namedItem("value") as HTMLInputElement | null;
        if (name && field?.value.trim()) setQuery({ [name]: field.value.trim() });
        setName("");
      }}
    >
      <select aria-label="More filters" value={name} onChange={(event) => setName(event.currentTarget.value)}>
        <option value="">More filters</option>
        {names.map((name) => <option key={name} value={name}>{name}</option>)}
      </select>
      {name && (
        <input
          name="value"
          aria-label={`Value of ${name}`}
          placeholder={HINTS[name]}
          ref={(input) => input?.focus()}
        />
      )}
    </form>
  );
}
