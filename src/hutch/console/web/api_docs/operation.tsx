/** One operation: the key that it needs, its parameters, its body, an example as curl, and its responses. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Snippet } from "../ui/basics.tsx";
import {
  curlOf,
  type Media,
  needsKey,
  type OpenApi,
  type Operation,
  type Reply,
  resolveReply,
  type Route,
} from "./document.ts";
import { Field, SchemaView } from "./schema.tsx";
import { Text } from "./text.tsx";

export function OperationCard({ api, route, current }: { api: OpenApi; route: Route; current: boolean }) {
  const { method, path, operation } = route;
  const card = useRef<HTMLDetailsElement>(null);
  const [open, setOpen] = useState(current);
  useEffect(() => {
    if (!current) return;
    setOpen(true);
    card.current?.scrollIntoView({ block: "start" });
  }, [current]);
  return (
    <details
      ref={card}
      id={operation.operationId}
      class="api-operation"
      open={open}
      onToggle={(event) => setOpen(event.currentTarget.open)}
    >
      <summary>
        <Method method={method} />
        <code class="api-path">{path}</code>
        <span class="api-summary">{operation.summary}</span>
        <a class="api-link" href={`#${operation.operationId}`} aria-label={`Link to ${method} ${path}`}>#</a>
      </summary>
      {open && <OperationBody api={api} route={route} />}
    </details>
  );
}

export function Method({ method }: { method: string }) {
  return <span class={`api-method api-${method.toLowerCase()}`}>{method}</span>;
}

function OperationBody({ api, route }: { api: OpenApi; route: Route }) {
  const { operation } = route;
  const parameters = operation.parameters ?? [];
  const body = operation.requestBody;
  return (
    <div class="api-body">
      <Text text={accessOf(api, operation)} />
      <Snippet label="Example" text={curlOf(route, globalThis.location.origin)} />
      {parameters.length > 0 && (
        <section>
          <h4>Parameters</h4>
          <ul class="api-fields">
            {parameters.map((each) => (
              <Field
                key={`${each.in} ${each.name}`}
                api={api}
                name={each.name}
                where={`in the ${each.in}`}
                sent
                required={each.required ?? false}
                schema={{ ...each.schema, description: each.description ?? each.schema.description }}
              />
            ))}
          </ul>
        </section>
      )}
      {body && (
        <section>
          <h4>
            Body{" "}
            <span class="api-where">
              {Object.keys(body.content).join(", ")}
              {!body.required && ", optional"}
            </span>
          </h4>
          <MediaView api={api} media={Object.values(body.content)[0]} sent />
        </section>
      )}
      <section>
        <h4>Responses</h4>
        {Object.entries(operation.responses)
          .sort(([left], [right]) => left.localeCompare(right))
          .map(([status, reply]) => (
            <ReplyView key={status} api={api} status={status} reply={resolveReply(api, reply)} />
          ))}
      </section>
    </div>
  );
}

function accessOf(api: OpenApi, operation: Operation): string {
  if (!operation.security.length) return "Needs no key.";
  if (!needsKey(operation)) return "This server has no key, so requests need none.";
  const schemes = operation.security.flatMap(Object.keys).map((name) => api.components.securitySchemes[name]);
  return `Needs ${schemes.map(({ description }) => lowerFirst(description)).join("; or ")}.`;
}

function lowerFirst(text: string): string {
  return text[0].toLowerCase() + text.slice(1);
}

function ReplyView({ api, status, reply }: { api: OpenApi; status: string; reply: Reply }) {
  const content = Object.entries(reply.content ?? {});
  const tone = status.startsWith("2") ? "ok" : status.startsWith("4") ? "wait" : "quiet";
  const label = (
    <>
      <span class={`badge badge-${status.startsWith("5") ? "bad" : tone}`}>{status}</span>
      <span>{reply.description}</span>
      <span class="api-where">{content.map(([type]) => type).join(", ")}</span>
    </>
  );
  if (!content.some(([, media]) => media.schema && Object.keys(media.schema).length)) {
    return <p class="api-reply">{label}</p>;
  }
  return (
    <details class="api-reply-details">
      <summary class="api-reply">{label}</summary>
      {content.map(([type, media]) => <MediaView key={type} api={api} media={media} />)}
    </details>
  );
}

function MediaView({ api, media, sent = false }: { api: OpenApi; media: Media; sent?: boolean }) {
  return media.schema ? <SchemaView api={api} schema={media.schema} sent={sent} /> : null;
}
