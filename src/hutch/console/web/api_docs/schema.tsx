/**
 * A schema as a table of its fields. Nested schemas with a name open on request, because they may contain
 * themselves.
 */

import { boundsOf, nameOf, type OpenApi, resolve, type Schema, typeOf } from "./document.ts";
import { Text } from "./text.tsx";

/**
 * `sent`: the client sends the value, so required fields are marked. In a response, optional fields are
 * marked.
 */
export function SchemaView({ api, schema, sent = false }: { api: OpenApi; schema: Schema; sent?: boolean }) {
  const whole = resolve(api, schema);
  const variants = whole.oneOf ?? whole.anyOf;
  if (variants && !whole.properties) {
    return (
      <ul class="api-variants">
        {variants.map((variant, index) => (
          <li key={index}>
            <p class="api-type">{index ? "or " : ""}{typeOf(variant)}</p>
            <SchemaView api={api} schema={variant} sent={sent} />
          </li>
        ))}
      </ul>
    );
  }
  if (whole.items) return <SchemaView api={api} schema={whole.items} sent={sent} />;
  const fields = Object.entries(whole.properties ?? {});
  if (!fields.length) return whole.description ? <Text text={whole.description} /> : null;
  return (
    <>
      {whole.description && <Text text={whole.description} />}
      <ul class="api-fields">
        {fields.map(([name, field]) => (
          <Field
            key={name}
            api={api}
            name={name}
            schema={field}
            sent={sent}
            required={whole.required?.includes(name) ?? false}
          />
        ))}
      </ul>
    </>
  );
}

export function Field({ api, name, schema, required, where, sent }: {
  api: OpenApi;
  name: string;
  schema: Schema;
  required: boolean;
  sent: boolean;
  where?: string;
}) {
  const bounds = boundsOf(schema);
  return (
    <li class="api-field">
      <p>
        <code class="api-name">{name}</code>
        <span class="api-type">{typeOf(schema)}</span>
        {where && <span class="api-where">{where}</span>}
        {sent && required && <span class="api-required">required</span>}
        {!sent && !required && <span class="api-where">may be missing</span>}
        {schema.deprecated && <span class="api-where">deprecated</span>}
      </p>
      {schema.description && <Text text={schema.description} />}
      {bounds && <p class="api-bounds">{bounds}</p>}
      <Inner api={api} schema={schema} sent={sent} />
    </li>
  );
}

/** The nested fields of a field. An inline object is shown immediately, a named schema on request. */
function Inner({ api, schema, sent }: { api: OpenApi; schema: Schema; sent: boolean }) {
  const inner = schema.items ?? schema;
  const references = [inner, ...inner.oneOf ?? inner.anyOf ?? []].filter((each) => each.$ref);
  if (references.length) {
    return (
      <>
        {references.map((each) => (
          <details key={each.$ref} class="api-inner">
            <summary>{nameOf(each.$ref!)}</summary>
            <SchemaView api={api} schema={each} sent={sent} />
          </details>
        ))}
      </>
    );
  }
  return inner.properties ? <SchemaView api={api} schema={inner} sent={sent} /> : null;
}
