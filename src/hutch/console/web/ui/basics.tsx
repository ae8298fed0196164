/** Small components that all views use. */

import { cloneElement, type ComponentChildren, isValidElement, toChildArray, type VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import { formatAge, formatJson, formatTime, visible } from "../format.ts";
import { clock } from "./clock.ts";

type Children = { children?: ComponentChildren };

export function Page({ title, actions, children, wide }: Children & {
  title: ComponentChildren;
  actions?: ComponentChildren;
  wide?: boolean;
}) {
  return (
    <section class={wide ? "page page-wide" : "page"}>
      <header class="page-head">
        <h1>{title}</h1>
        <div class="actions">{actions}</div>
      </header>
      {children}
    </section>
  );
}

export function Card({ title, actions, children, class: name = "" }: Children & {
  title?: ComponentChildren;
  actions?: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`card ${name}`}>
      {title && (
        <header class="card-head">
          <h2>{title}</h2>
          <div class="actions">{actions}</div>
        </header>
      )}
      {children}
    </section>
  );
}

/** The title of a page below another one: links to the pages above, the name, and a badge. */
export function Crumbs({ above, name, children }: Children & {
  above: { href: string; name: string }[];
  name: string;
}) {
  return (
    <span class="crumbs">
      {above.map(({ href, name }) => (
        <span key={href} class="crumb">
          <a href={href}>{visible(name)}</a>
          <span aria-hidden="true">/</span>
        </span>
      ))}
      <span class="crumbs-name">{visible(name)}</span>
      {children}
    </span>
  );
}

/**
 * A table that scrolls sideways where it does not fit. Columns in `numbers` are aligned to the right. On a
 * phone, the cells of a row are below each other, each with the name of its column. So the children must be
 * rows.
 */
export function Table({ head, numbers = [], children, class: name = "" }: Children & {
  head: string[];
  numbers?: string[];
  class?: string;
}) {
  return (
    <div class="scroll">
      <table class={`table stacked-rows ${name}`}>
        <thead>
          <tr>
            {head.map((text) => <th key={text} class={numbers.includes(text) ? "number" : ""}>{text}</th>)}
          </tr>
        </thead>
        <tbody>{toChildArray(children).filter(isValidElement).map((row) => labelled(row, head))}</tbody>
      </table>
    </div>
  );
}

/** Returns a row whose cells have the names of their columns, which the style sheet shows on a phone. */
function labelled(row: VNode<any>, head: string[]): VNode {
  const cells = toChildArray(row.props.children).filter(isValidElement);
  const named = cells.map((cell, index) => cloneElement(cell as VNode<any>, { "data-label": head[index] }));
  return cloneElement(row, {}, named);
}

type Tone = "ok" | "bad" | "wait" | "run" | "quiet";

const TONES: Record<string, Tone> = {
  ok: "ok",
  success: "ok",
  succeeded: "ok",
  completed: "ok",
  connected: "ok",
  ready: "ok",
  running: "run",
  started: "run",
  queued: "wait",
  waiting: "wait",
  pending: "wait",
  suspended: "wait",
  connecting: "wait",
  approval: "wait",
  approved: "ok",
  active: "ok",
  cancelled: "quiet",
  skipped: "quiet",
  expired: "quiet",
};

/** A state with its colour. Unknown states have the colour of failures. */
export function Badge({ state, children }: Children & { state: string }) {
  const text = children ?? visible(state);
  return (
    <span class={`badge badge-${TONES[state] ?? "bad"}`} title={typeof text === "string" ? text : undefined}>
      {text}
    </span>
  );
}

export function Button({ kind = "plain", small, children, ...rest }: Children & {
  kind?: "plain" | "primary" | "danger" | "link";
  small?: boolean;
  onClick?: (event: MouseEvent) => void;
  disabled?: boolean;
  title?: string;
  type?: "button" | "submit";
  "aria-pressed"?: boolean;
  "aria-expanded"?: boolean;
  "aria-label"?: string;
}) {
  return (
    <button type="button" class={`button button-${kind}${small ? " small" : ""}`} {...rest}>
      {children}
    </button>
  );
}

/** Text that is shown instead of an empty list, with advice for the user. */
export function Empty({ title, children }: Children & { title: string }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  const message = error instanceof Error ? error.message : String(error);
  return (
    <div class="note note-bad" role="alert">
      <span>{visible(message)}</span>
      {retry && <Button small onClick={retry}>Try again</Button>}
    </div>
  );
}

/** A view whose data could not be loaded. */
export function Broken({ title, error, retry }: { title: string; error: unknown; retry?: () => void }) {
  const isForbidden = error instanceof ApiError && error.status === 403;
  return (
    <Page title={title}>
      {isForbidden
        ? (
          <Card>
            <Empty title="Your key does not allow this view">
              <p>{visible(error.message)}</p>
            </Empty>
          </Card>
        )
        : <ErrorNote error={error} retry={retry} />}
    </Page>
  );
}

/** A time as its age, with the exact time as a tooltip. */
export function Age({ time }: { time: string | number | null | undefined }) {
  const now = Math.max(clock.value, Date.now());
  if (time === null || time === undefined) return <span class="quiet">–</span>;
  return <time dateTime={new Date(time).toISOString()} title={formatTime(time)}>{formatAge(time, now)}</time>;
}

export function Json({ value }: { value: unknown }) {
  return <pre class="code" tabIndex={0}>{formatJson(value)}</pre>;
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [state, setState] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setState("Copied");
    } catch {
      setState("Select the text and copy it");
    }
    setTimeout(() => setState(""), 2_000);
  };
  return <Button small onClick={copy}>{state || label}</Button>;
}

/** Text to be copied, such as a command. */
export function Snippet({ text, label }: { text: string; label?: string }) {
  return (
    <div class="snippet">
      {label && <div class="snippet-label">{label}</div>}
      <pre class="code" tabIndex={0}>{visible(text)}</pre>
      <Copy text={text} />
    </div>
  );
}

export function Field({ label, hint, error, children }: Children & {
  label: string;
  hint?: ComponentChildren;
  error?: string;
}) {
  return (
    <label class="field">
      <span class="field-label">{label}</span>
      {children}
      {hint && <span class="field-hint">{hint}</span>}
      {error && <span class="field-error" role="alert">{error}</span>}
    </label>
  );
}

/** A modal dialog. Escape and a click outside close it. */
export function Dialog({ title, onClose, children }: Children & { title: string; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}
    >
      <div class="dialog-body">
        <header class="card-head">
          <h2>{title}</h2>
          <Button small aria-label="Close" onClick={() => dialog.current?.close()}>✕</Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export function Tabs({ tabs, current, onSelect }: {
  tabs: { id: string; label: ComponentChildren }[];
  current: string;
  onSelect: (id: string) => void;
}) {
  return (
    <div class="tabs" role="tablist">
      {tabs.map(({ id, label }) => (
        <button
          type="button"
          key={id}
          role="tab"
          aria-selected={id === current}
          class={id === current ? "tab tab-current" : "tab"}
          onClick={() => onSelect(id)}
        >
          {label}
        </button>
      ))}
    </div>
  );
}
