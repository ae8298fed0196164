"""Generates the module "toolscript" and its type declarations for compilers and models.

Text from servers is treated as data. It occurs only in JSON strings and in comments, and is escaped so that
it cannot end a comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from weakref import WeakKeyDictionary

from hutch.protocols.toolscript.codegen.types import ServerTypes
from hutch.protocols.toolscript.gateway.catalog import Catalog, CatalogEntry
from hutch.session.json_value import well_formed
from hutch.session.schema.typescript import comment_lines, doc_comment, property_key, string_literal
from hutch.session.tools.names import safe_name

HEADING = "// `tools` needs no import. A call is a promise, and throws a ToolError if it fails.\n"
MAX_DESCRIPTION = 4_000
MAX_SUMMARY = 120
# Type names that the generated code uses itself.
_RESERVED_TYPE_NAMES = ("Error", "Promise", "Record", "ToolError", "Tools")

_TOOL_ERROR = """\
/** Thrown by a failed call. */
export declare class ToolError extends Error {
  /** The server and the tool, by their original names. */
  readonly server: string;
  readonly tool: string;
  readonly details: any;
  constructor(message: string, about: { server: string; tool: string; details?: unknown; cause?: unknown });
}
"""

_SHORT_TOOL_ERROR = (
    "export declare class ToolError extends Error { server: string; tool: string; details: any }\n"
)

_RUNTIME = """\
/** Thrown by a failed call. */
export class ToolError extends Error {
  static {
    Object.defineProperty(this.prototype, "name", { value: "ToolError", writable: true, configurable: true });
  }
  /** The server and the tool, by their original names. */
  readonly server: string;
  readonly tool: string;
  readonly details: any;
  constructor(message: string, about: { server: string; tool: string; details?: unknown; cause?: unknown }) {
    super(message, about.cause === undefined ? undefined : { cause: about.cause });
    this.server = about.server;
    this.tool = about.tool;
    this.details = about.details;
  }
}

async function call(server: string, tool: string, name: string, args: unknown): Promise<unknown> {
  const failed = (message: string, details?: unknown, cause?: unknown) => {
    const error = new ToolError(message, { server, tool, details, cause });
    // The stack trace starts where the script made the call.
    Error.captureStackTrace(error, call);
    return error;
  };
  const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL");
  if (!gateway) throw failed("TOOLSCRIPT_GATEWAY_URL is not set; it must be the URL of the gateway");
  let body: string;
  try {
    body = JSON.stringify(args ?? {});
  } catch (cause) {
    throw failed(`The arguments cannot be written as JSON: ${(cause as Error).message}`, undefined, cause);
  }
  let response: Response, text: string;
  try {
    response = await fetch(`${gateway.replace(/\\/+$/, "")}/tools/${encodeURIComponent(name)}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body,
    });
    text = await response.text();
  } catch (cause) {
    const reason = (cause as Error).message;
    throw failed(`The gateway at ${gateway} cannot be reached: ${reason}`, undefined, cause);
  }
  let answer: any;
  try {
    answer = JSON.parse(text);
  } catch (cause) {
    answer = undefined;
    if (response.ok) throw failed(`The gateway at ${gateway} did not answer with JSON`, undefined, cause);
  }
  if (response.ok) return answer;
  const error = answer?.error;
  const message = typeof error === "string" ? error : error?.message;
  throw failed(message ?? `The gateway answered ${response.status}: ${text.slice(0, 500)}`, error?.details);
}

// Script name, original name and tools of a server; of a tool also its qualified name if that differs.
type Row = [string, string, [string, string, string?][]];

function connect(rows: Row[]): any {
  const tools = Object.create(null);
  for (const [namespace, server, members] of rows) {
    const methods = tools[namespace] = Object.create(null);
    for (const [member, tool, name] of members) {
      methods[member] = (args?: unknown) => call(server, tool, name ?? `${server}__${tool}`, args);
    }
    Object.freeze(methods);
  }
  return Object.freeze(tools);
}
"""


def tools_module(catalog: Catalog, *, only: str | None = None) -> str:
    """Generates the module: types, one function for all calls, and a table of the tools."""
    chosen = catalog.filtered(only)
    notes = _notes(catalog, chosen, only)
    if not chosen:
        return f"{notes}export const tools = {{}};\n\n{_RUNTIME.partition('async function')[0].rstrip()}\n"
    rows = ",\n".join(_row(entries) for entries in _by_server(chosen))
    table = f"export const tools: Tools = connect([\n{rows},\n]);\n"
    return "\n".join((notes + HEADING, _types(chosen), _RUNTIME, table))


def declarations(catalog: Catalog, *, only: str | None = None, compact: bool = False) -> str:
    """Generates only the types: with documentation, or, if `compact`, one line per tool.

    Compact declarations, and declarations of the tools selected by `only`, are meant for readers, so they
    declare repeated types only once.
    """
    chosen = catalog.filtered(only)
    notes = _notes(catalog, chosen, only)
    if not chosen:
        return f"{notes}export declare const tools: {{}};\n\n{_TOOL_ERROR}"
    if compact:
        return notes + HEADING + _compact(chosen)
    declared = "export declare const tools: Tools;\n"
    if only:
        shared = "\n".join(_interfaces(chosen, share=True))
        return "\n".join((notes + HEADING, shared, declared + _SHORT_TOOL_ERROR))
    return "\n".join((notes + HEADING, _types(chosen), _TOOL_ERROR, declared))


def signature(entry: CatalogEntry) -> str:
    """Returns the signature of a tool on one line: `tools.github.createIssue(args: { … }): Promise<any>`."""
    types = ServerTypes(_type_name(entry.namespace), compact=True)
    return f"tools.{entry.namespace}.{entry.member}{types.signature(entry)}"


# --- full declarations ---


def _types(catalog: Catalog) -> str:
    """Generates an interface per server with its named types, and the interface of `tools`. The result is
    cached.
    """
    text = _types_cache.get(catalog)
    if text is None:
        text = _types_cache[catalog] = "\n".join(_interfaces(catalog))
    return text


_types_cache: WeakKeyDictionary[Catalog, str] = WeakKeyDictionary()


def _interfaces(catalog: Catalog, *, share: bool = False) -> Iterator[str]:
    members = []
    names = _type_names(catalog)
    for entries in _by_server(catalog):
        first, name = entries[0], names[entries[0].namespace]
        types = ServerTypes(name, sharing=entries if share else ())
        methods = [_method(entry, types) for entry in entries]
        about = doc_comment(comment_lines(catalog.about.get(first.server), MAX_DESCRIPTION), "")
        yield f"{about}export interface {name} {{\n" + "\n".join(methods) + "}\n"
        if types.named:
            yield f"export declare namespace {name} {{\n" + "\n\n".join(types.named) + "\n}\n"
        members.append(f"  {_key(first.namespace)}: {name};\n")
    yield f"export interface Tools {{\n{''.join(members)}}}\n"


def _method(entry: CatalogEntry, types: ServerTypes) -> str:
    signature = types.signature(entry)
    lines = comment_lines(entry.description, MAX_DESCRIPTION)
    notes = [line for note in signature.notes for line in comment_lines(note, MAX_DESCRIPTION)]
    if notes:
        lines += ["", *notes] if lines else notes
    return f"{doc_comment(lines, '  ')}  {_key(entry.member)}{signature};\n"


# --- compact declarations ---


def _compact(catalog: Catalog) -> str:
    lines, named = [], []
    names = _type_names(catalog)
    for entries in _by_server(catalog):
        first, name = entries[0], names[entries[0].namespace]
        types = ServerTypes(name, compact=True, sharing=entries)
        lines.append(f"  {_key(first.namespace)}: {{{_summary(catalog.about.get(first.server))}\n")
        lines += [
            f"    {_key(entry.member)}{types.signature(entry)};{_summary(entry.description)}\n"
            for entry in entries
        ]
        lines.append("  };\n")
        if types.named:
            named.append(f"export declare namespace {name} {{\n" + "\n".join(types.named) + "\n}\n")
    return f"export declare const tools: {{\n{''.join(lines)}}};\n{''.join(named)}{_SHORT_TOOL_ERROR}"


def _summary(text: str | None) -> str:
    """Returns the first sentence of a description as a trailing comment."""
    line = next(iter(comment_lines(text, MAX_DESCRIPTION)), "")
    sentence, stop, _ = line.partition(". ")
    short = sentence + stop.rstrip()
    clipped = short if len(short) <= MAX_SUMMARY else f"{short[:MAX_SUMMARY].rstrip()}…"
    return f" // {clipped}" if clipped else ""


# --- shared ---


def _by_server(catalog: Catalog) -> Iterator[list[CatalogEntry]]:
    for _, entries in groupby(catalog, lambda entry: entry.server):
        yield list(entries)


def _type_names(catalog: Catalog) -> dict[str, str]:
    """Returns the type name of each server by namespace.

    Names are computed for all servers, so that a filter does not change them.
    """
    names: dict[str, str] = {}
    taken = set(_RESERVED_TYPE_NAMES)
    for namespace in catalog.namespaces:
        base = name = _type_name(namespace)
        number = 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        names[namespace] = name
    return names


def _type_name(namespace: str) -> str:
    safe = safe_name(namespace)
    return safe[0].upper() + safe[1:]


def _key(name: str) -> str:
    """Returns the property key. `new` is quoted, because `new(…): …` would be a constructor signature."""
    return string_literal(name) if name == "new" else property_key(name)


def _row(entries: list[CatalogEntry]) -> str:
    members = []
    for entry in entries:
        row = [entry.member, entry.tool]
        if entry.qualified != f"{entry.server}__{entry.tool}":
            row.append(entry.qualified)
        members.append(json.dumps(row))
    first = entries[0]
    return f"  [{json.dumps(first.namespace)}, {json.dumps(first.server)}, [{', '.join(members)}]]"


def _notes(catalog: Catalog, chosen: Catalog, only: str | None) -> str:
    """Returns comments about unknown filter items and name collisions, one per line."""
    lines = [
        f"There is no tool or server {string_literal(well_formed(item))}."
        for item in catalog.unknown_items(only)[:20]
    ]
    shown = {entry.server for entry in chosen}
    for server, name, became in catalog.collisions:
        if server is None or server in shown:
            whose = "Servers" if server is None else f"Tools of {string_literal(well_formed(server))}"
            renamed = (
                f"{string_literal(well_formed(original))} is {script_name}"
                for original, script_name in became.items()
            )
            lines.append(f"{whose} that would share the name {name}: {_join_some(renamed)}.")
    return "".join(f"// {line}\n" for line in lines)


def _join_some(items: Iterable[str]) -> str:
    return ", ".join(list(items)[:20])
