/** What can go wrong with a tool, and how an error of any kind is told. */

const { stringify } = JSON;

export type FaultCode =
  | "import_failed"
  | "tool_not_found"
  | "tool_invalid"
  | "configuration_required"
  | "schema_unavailable"
  | "execution_error"
  | "serialization_error";

/** The end of an execution that is the tool's own doing. */
export class ToolFault extends Error {
  constructor(readonly code: FaultCode, message: string, readonly kind?: string) {
    super(message);
  }
}

const MAX_MESSAGE = 8_000;
const MAX_NAME = 200;

/** The fault that an error of the package's stands for: its message as it is, and its name. */
export function faultOf(code: FaultCode, error: unknown): ToolFault {
  return error instanceof ToolFault ? error : new ToolFault(code, messageOf(error), nameOf(error));
}

/** One of another realm, of `node:vm` say, is no instance of our Error: what has a message is an error. */
export function messageOf(error: unknown): string {
  try {
    const message = (error as Error | null | undefined)?.message;
    if (typeof message === "string" && typeof error === "object") {
      return clipped(message || ofMany(error as AggregateError) || nameOf(error) || "Error", MAX_MESSAGE);
    }
    return clipped(typeof error === "string" ? error : stringify(error) ?? String(error), MAX_MESSAGE);
  } catch {
    return "an error that cannot be read";
  }
}

function ofMany(error: AggregateError): string {
  return Array.isArray(error.errors) ? error.errors.slice(0, 5).map(messageOf).join("; ") : "";
}

export function nameOf(error: unknown): string | undefined {
  try {
    const name = typeof error === "object" ? (error as Error | null)?.name : undefined;
    return typeof name === "string" && name ? clipped(name, MAX_NAME) : undefined;
  } catch {
    return undefined;
  }
}

function clipped(text: string, most: number): string {
  return (text.length > most ? `${text.slice(0, most)}…` : text).toWellFormed();
}

/** The text of an execution's result that failed so. */
export function faultText({ code, message, kind }: ToolFault): string {
  const name = kind ? `,"name":${stringify(kind)}` : "";
  return `{"ok":false,"code":${stringify(code)},"message":${
    stringify(clipped(message, MAX_MESSAGE))
  }${name}}`;
}
