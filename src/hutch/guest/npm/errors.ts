/** Errors of tools and their form in a result. */

const { stringify } = JSON;

export type ToolErrorCode =
  | "import_failed"
  | "tool_not_found"
  | "tool_invalid"
  | "configuration_required"
  | "schema_unavailable"
  | "invalid_params"
  | "execution_error"
  | "serialization_error";

/** Failure of an execution that the tool caused. */
export class ToolError extends Error {
  constructor(
    readonly code: ToolErrorCode,
    message: string,
    readonly errorName?: string,
    /** Position in the package, such as `dist/index.js:3:7`. */
    readonly location?: string,
  ) {
    super(message);
  }
}

const MAX_MESSAGE = 8_000;
const MAX_NAME = 200;

/** Wraps an error of the package with its message, name and location. */
export function toToolError(code: ToolErrorCode, error: unknown, packageName: string): ToolError {
  if (error instanceof ToolError) return error;
  return new ToolError(code, messageOf(error), nameOf(error), locationOf(error, packageName));
}

const MAX_STACK = 16_000;
const MAX_LOCATION = 300;
const FRAME = /^ {4}at .*?((?:file:\/\/)?\/[^\n]*):(\d+):(\d+)\)?$/gm;
const MODULES = "/node_modules/";
/** Folder of an unpublished package, which Deno runs from its TypeScript source. */
export const UNPUBLISHED = "/unpublished/";

/**
 * Returns the innermost position in the package's own files. If there is none, returns the innermost position
 * in the files of a dependency.
 */
export function locationOf(error: unknown, packageName: string): string | undefined {
  try {
    const { stack } = Object(error) as { stack?: unknown };
    if (typeof stack !== "string") return undefined;
    let other: string | undefined;
    for (const [, url, line, column] of stack.slice(0, MAX_STACK).matchAll(FRAME)) {
      const path = url.startsWith("file://") ? decodeURI(url) : url;
      const source = path.indexOf(UNPUBLISHED);
      if (source >= 0 && !path.includes(MODULES)) {
        return truncate(`${path.slice(source + UNPUBLISHED.length)}:${line}:${column}`, MAX_LOCATION);
      }
      const start = path.lastIndexOf(MODULES);
      if (start < 0) continue;
      const file = path.slice(start + MODULES.length);
      const position = truncate(`${file}:${line}:${column}`, MAX_LOCATION);
      if (file.startsWith(`${packageName}/`)) return position.slice(packageName.length + 1);
      other ??= position;
    }
    return other;
  } catch {
    return undefined;
  }
}

/**
 * Returns the message of an error. Accepts every object with a message, because an error of another realm
 * (`node:vm`) is not an instance of Error.
 */
export function messageOf(error: unknown): string {
  try {
    const message = (error as Error | null | undefined)?.message;
    if (typeof message === "string" && typeof error === "object") {
      return truncate(
        failedRequestMessage(message, error as Error) || message ||
          aggregateMessage(error as AggregateError) || nameOf(error) || "Error",
        MAX_MESSAGE,
      );
    }
    return truncate(typeof error === "string" ? error : stringify(error) ?? String(error), MAX_MESSAGE);
  } catch {
    return "an error that cannot be read";
  }
}

/** Adds the cause of a failed `fetch`, because Node's error has the reason only there. */
function failedRequestMessage(message: string, { cause }: Error): string | undefined {
  const reason = message === "fetch failed" && (cause as Error | undefined)?.message;
  return typeof reason === "string" && reason ? `${message}: ${reason}` : undefined;
}

function aggregateMessage(error: AggregateError): string {
  return Array.isArray(error.errors) ? error.errors.slice(0, 5).map(messageOf).join("; ") : "";
}

export function nameOf(error: unknown): string | undefined {
  try {
    const name = typeof error === "object" ? (error as Error | null)?.name : undefined;
    return typeof name === "string" && name ? truncate(name, MAX_NAME) : undefined;
  } catch {
    return undefined;
  }
}

function truncate(text: string, maxChars: number): string {
  return (text.length > maxChars ? `${text.slice(0, maxChars)}…` : text).toWellFormed();
}

/** Returns the JSON text of a failed execution's result. `more` are further fields. */
export function errorResult({ code, message, errorName, location }: ToolError, more = ""): string {
  const name = errorName ? `,"name":${stringify(errorName)}` : "";
  const position = location ? `,"location":${stringify(location)}` : "";
  return `{"ok":false,"code":${stringify(code)},"message":${
    stringify(truncate(message, MAX_MESSAGE))
  }${name}${position}${more}}`;
}
