"""Reference pages that are generated from the code: commands, settings, errors and the HTTP API."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_origin

import click
import msgspec
from docs.site.pages import DOCS

from hutch import errors
from hutch.app.openapi import document
from hutch.cli.commands import hutch
from hutch.errors import HutchError
from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import Json, resolve_response
from hutch.protocols.abilities.responses import ERROR_CODES
from hutch.protocols.tpmjs.responses import FAILURE_KINDS
from hutch.settings import PROJECT_SETTINGS, SECRETS, Settings, model


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head := list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in lines)


# --- commands ---


def commands_page() -> str:
    intro = """\
# All commands

Every `hutch` command with its arguments and options, generated from the code. For people who look up an
option; [Commands by task](../cli.md) has examples.
"""
    return "\n".join([intro, *_command(hutch, "hutch", 2)])


def _command(command: click.Command, name: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    if name != "hutch":
        yield f"{'#' * level} {name}\n"
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{name} {usage}\n```\n"
        yield _help(command.help or "")
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if name != "hutch" and options:
        yield table(("option", "meaning"), (_option(each, context) for each in options)) + "\n"
    if command.epilog and name != "hutch":
        lines = textwrap.dedent(command.epilog.replace("\b\n", "")).strip().splitlines()
        examples = textwrap.dedent("\n".join(lines[1:]))
        yield f"{lines[0]}\n\n```text\n{examples}\n```\n"
    if isinstance(command, click.Group):
        for sub in sorted(command.commands):
            if not command.commands[sub].hidden:
                yield from _command(command.commands[sub], f"{name} {sub}", min(level + (name != "hutch"), 4))


def _help(text: str) -> str:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return (
        "\n\n".join(
            f"```text\n{part.removeprefix(chr(8)).strip()}\n```" if part.startswith("\b") else _escape(part)
            for part in paragraphs
        )
        + "\n"
    )


def _escape(text: str) -> str:
    """Escapes characters that Markdown or HTML would interpret, except in inline code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*_\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None
    return f"`{record[0]}`", _escape(" ".join(record[1].split()))


# --- settings ---


def settings_page() -> str:
    described = {**_documented_meanings(), **setting_docstrings()}
    rows = []
    for field in msgspec.structs.fields(Settings):
        marks = [
            *(["A secret: it is never shown."] if field.name in SECRETS else []),
            *(["A project's file may set it."] if field.name in PROJECT_SETTINGS else []),
        ]
        rows.append(
            (
                f'<a id="{field.name}"></a>`{field.name}`',
                type_text(field.type),
                _default(field),
                " ".join([_escape(described.get(field.name, "")), *marks]).strip(),
            )
        )
    intro = """\
# Settings

Every setting with its type and default, generated from the code. For operators who look up a setting;
[Operations](../operations.md#settings) says where settings come from. A setting `name` is the variable
`HUTCH_NAME`, and a key of `hutch.toml`.
"""
    return f"{intro}\n{table(('setting', 'type', 'default', 'meaning'), rows)}\n"


def _documented_meanings() -> dict[str, str]:
    """Returns the meanings of settings in docs/operations.md. The site uses them for settings without a
    docstring.
    """
    page = (DOCS / "operations.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", page, re.M)
    return {name: re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", meaning) for name, meaning in rows}


def setting_docstrings() -> dict[str, str]:
    """Returns the docstrings of the fields of `Settings`. They are read from the source, because Python does
    not keep docstrings of fields.
    """
    tree = ast.parse(inspect.getsource(model))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Settings":
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    assert isinstance(text.value, ast.Constant)
                    found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def type_text(kind: Any) -> str:
    """Describes a type in words: `number ≥ 0`, `list of texts`."""
    name = {str: "text", int: "integer", float: "number", bool: "`true` or `false`", type(None): "none"}.get(
        kind
    )
    if name is not None:
        return name
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        bounds = [
            f"{sign} {value:g}"
            for meta in kind.__metadata__
            for sign, value in (("≥", meta.ge), (">", meta.gt), ("≤", meta.le))
            if value is not None
        ]
        return " ".join([type_text(kind.__origin__), *bounds])
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return f"table of {type_text(arguments[1])}"
    if str(origin) == "typing.Literal":
        return ", ".join(f"`{value}`" for value in arguments)
    return " or ".join(map(type_text, arguments))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.name == "quickjs_processes":
        return "the number of cores"
    default = field.default if field.default is not msgspec.NODEFAULT else None
    if default in (None, (), {}):
        return "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


# --- errors ---


def errors_page() -> str:
    classes = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, HutchError) and each is not HutchError
    ]
    python = [(f"`{each.code}`", f"`{each.__name__}`", _escape(_first_line(each))) for each in classes]
    http = [(str(kind.status), f"`{kind.code}`") for kind in ERROR_KINDS.values()]
    tpmjs = [(f"`{kind.code}`", f"`{kind.code_1_1}`", kind.stage) for kind in FAILURE_KINDS.values()]
    return f"""\
# Errors

Every error code, generated from the code. For people who handle errors of Hutch in a program. A message names
the field or the setting, what was expected and what to do; codes do not change.

## In results of executions

`Result.error.code`, and `error.code` in Execbox messages and in `POST /run`: {_codes(errors.WIRE_CODES)}.
[Execbox](../execbox.md#error-codes) describes them.

## In Python

`Result.raise_for_error` raises `ExecutionError`. Everything else that goes wrong is another subclass of
`HutchError`.

{table(("code", "class", "meaning"), sorted(python))}

## In HTTP responses

`{{"success": false, "error": {{"code", "message"}}}}`:

{table(("status", "code"), http)}

## In TPMJS responses

{table(("code (1.0)", "code (1.1)", "stage"), tpmjs)}

[TPMJS](../tpmjs.md#codes) describes them.

## In responses of abilities

`errorCode` is one of {_codes(ERROR_CODES)}. [Abilities](../abilities.md#errors) describes them.
"""


def _codes(codes: Iterable[str]) -> str:
    return ", ".join(f"`{code}`" for code in sorted(codes))


def _first_line(kind: type) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


# --- HTTP API ---

_ACCESS = {"key": "a key", "user_key": "a user's key", "operator_key": "the operator's key"}


def http_page() -> str:
    api = document(Settings(api_key="set"))
    intro = """\
# HTTP API

Every route of `hutch serve`, generated from the code. For people who write clients. A running server has the
same with all schemas: as a page at `/docs/api`, and as an OpenAPI 3.1 document at `/openapi.json`.
"""
    parts = [intro]
    for tag in api["tags"]:
        parts.append(f"## {tag['name']}\n\n{tag['description']}\n")
        for path, item in api["paths"].items():
            parts += [
                _operation(api, method, path, operation)
                for method, operation in item.items()
                if operation["tags"] == [tag["name"]]
            ]
    return "\n".join(parts)


def _operation(api: Json, method: str, path: str, operation: Json) -> str:
    security = [name for each in operation["security"] for name in each]
    needs = f"Needs {' or '.join(_ACCESS[name] for name in security)}." if security else "Needs no key."
    parts = [f"### {method.upper()} {path}\n\n{operation['summary']}. {needs}\n"]
    if parameters := operation.get("parameters"):
        rows = (
            (f"`{each['name']}`", each["in"], _description(each), "yes" if each.get("required") else "")
            for each in parameters
        )
        parts.append(table(("parameter", "in", "meaning", "required"), rows) + "\n")
    if body := operation.get("requestBody"):
        example = body["content"]["application/json"]["example"]
        parts.append(
            f"Body, for example:\n\n```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```\n"
        )
    statuses = ", ".join(
        f"{status} {resolve_response(api, reply)['description']}"
        for status, reply in sorted(operation["responses"].items())
    )
    parts.append(f"Responses: {statuses}.\n")
    return "\n".join(parts)


def _description(parameter: Json) -> str:
    schema = parameter["schema"]
    text = parameter.get("description") or schema.get("description") or ""
    if not text and "enum" in schema:
        text = " or ".join(f"`{value}`" for value in schema["enum"])
    return str(text)


GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/errors.md": errors_page,
    "reference/http-api.md": http_page,
}
