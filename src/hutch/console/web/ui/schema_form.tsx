/** A form for a JSON Schema. Values that a form cannot express are entered as JSON. */

import { useState } from "preact/hooks";
import { visible } from "../format.ts";
import { Field } from "./basics.tsx";

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  default?: unknown;
}

/**
 * Returns the only type of a schema, not counting "null". Returns undefined if the schema has several types.
 */
function plainType(schema: Schema): string | undefined {
  const types = [schema.type ?? []].flat().filter((type) => type !== "null");
  return types.length === 1 ? types[0] : undefined;
}

type Value = Record<string, unknown>;

/** Calls `onChange` with the value, or with undefined while a field is not valid. */
export function SchemaForm(
  { schema, onChange }: { schema: Schema; onChange: (value: Value | undefined) => void },
) {
  const properties = Object.entries(schema.properties ?? {});
  const [texts, setTexts] = useState<Record<string, string>>(() =>
    Object.fromEntries(
      properties.filter(([, field]) => field.default !== undefined).map((
        [name, field],
      ) => [name, asText(field)]),
    )
  );
  const [errors, setErrors] = useState<Record<string, string>>({});
  const change = (name: string, text: string) => {
    const changed = { ...texts, [name]: text };
    setTexts(changed);
    const value: Value = {};
    const problems: Record<string, string> = {};
    for (const [name, field] of properties) {
      const text = changed[name] ?? "";
      if (text === "") continue;
      try {
        value[name] = parse(field, text);
      } catch (error) {
        problems[name] = (error as Error).message;
      }
    }
    setErrors(problems);
    onChange(Object.keys(problems).length ? undefined : value);
  };
  if (!properties.length) return <p class="quiet">This tool takes no arguments.</p>;
  return (
    <div class="stack">
      {properties.map(([name, field]) => (
        <Field
          key={name}
          label={visible(name) + (schema.required?.includes(name) ? " *" : "")}
          hint={field.description && visible(field.description.slice(0, 400))}
          error={errors[name]}
        >
          <Input field={field} text={texts[name] ?? ""} onInput={(text) => change(name, text)} />
        </Field>
      ))}
    </div>
  );
}

function Input({ field, text, onInput }: { field: Schema; text: string; onInput: (text: string) => void }) {
  const type = plainType(field);
  if (field.enum || type === "boolean") {
    const options = field.enum ?? [true, false];
    return (
      <select value={text} onChange={(event) => onInput(event.currentTarget.value)}>
        <option value=""></option>
        {options.map((option) => {
          const label = typeof option === "string" ? option : JSON.stringify(option);
          return <option key={label} value={label}>{visible(label)}</option>;
        })}
      </select>
    );
  }
  if (type === "string" || type === "integer" || type === "number") {
    return (
      <input
        value={text}
        inputMode={type === "string" ? "text" : "decimal"}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    );
  }
  return (
    <textarea
      rows={3}
      spellcheck={false}
      value={text}
      placeholder={type === "array" ? "[…] as JSON" : type === "object" ? "{…} as JSON" : "JSON"}
      onInput={(event) => onInput(event.currentTarget.value)}
    />
  );
}

function asText(field: Schema): string {
  return typeof field.default === "string" ? field.default : JSON.stringify(field.default);
}

function parse(field: Schema, text: string): unknown {
  const type = plainType(field);
  if (field.enum) {
    return field.enum.find((option) =>
      (typeof option === "string" ? option : JSON.stringify(option)) === text
    );
  }
  if (type === "string") return text;
  if (type === "integer" || type === "number") {
    const value = Number(text);
    if (Number.isNaN(value) || (type === "integer" && !Number.isInteger(value))) {
      throw new Error(`Expected ${type === "integer" ? "a whole number" : "a number"}.`);
    }
    return value;
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`Expected JSON. ${(error as Error).message}`);
  }
}
