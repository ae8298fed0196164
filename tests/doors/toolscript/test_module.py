from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.doors.toolscript.scripted import Given, Server

from hutch.doors.toolscript.catalog import Catalog
from hutch.doors.toolscript.module import HEADING, declarations, signature, tools_module

ISSUE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "Its title"},
        "labels": {"type": "array", "items": {}},
    },
    "required": ["title"],
}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def of(*tools: Given, servers: tuple[Server, ...] = ()) -> Catalog:
    return Catalog.of(tools, servers)


def signature_of(given: Any, gives: Any = None) -> str:
    return signature(of(Given("s", "f", None, given, gives)).entries[0]).removeprefix("tools.s.f")


def test_without_tools_the_module_has_none() -> None:
    assert tools_module(of()).startswith("export const tools = {};\n")
    assert "export class ToolError" in tools_module(of())
    assert declarations(of()).startswith("export declare const tools: {};\n")


def test_the_full_form_has_all_that_servers_say() -> None:
    catalog = of(
        Given("git-hub", "create_issue", "Creates an issue.\n\nAt once.", ISSUE, NUMBER),
        servers=(Server("git-hub", "GitHub", "Be careful."),),
    )
    text = declarations(catalog)
    assert text.startswith(HEADING)
    assert (
        "/**\n * GitHub\n *\n * Be careful.\n */\n"
        "export interface GitHub {\n"
        "  /**\n"
        "   * Creates an issue.\n"
        "   *\n"
        "   * At once.\n"
        "   */\n"
        "  createIssue(args: {\n"
        "    /** Its title */\n"
        "    title: string;\n"
        "    labels?: any[];\n"
        "  }): Promise<{ number: number }>;\n"
        "}\n"
    ) in text
    assert "export interface Tools {\n  gitHub: GitHub;\n}\n" in text
    assert text.endswith("export declare const tools: Tools;\n")


def test_the_module_has_the_same_types_and_a_row_for_every_tool() -> None:
    catalog = of(Given("git-hub", "create_issue", "Creates.", ISSUE, NUMBER))
    types = declarations(catalog).partition("/** What a call throws")[0]
    module = tools_module(catalog)
    assert module.startswith(types)
    assert '["gitHub", "git-hub", [["createIssue", "create_issue"]]]' in module


def test_the_compact_form_has_a_line_for_every_tool() -> None:
    catalog = of(
        Given("github", "create_issue", "Creates an issue. And so on.\nMore.", ISSUE, NUMBER),
        Given("github", "list", None, None),
        servers=(Server("github", "GitHub"),),
    )
    assert declarations(catalog, compact=True) == (
        HEADING + "export declare const tools: {\n"
        "  github: { // GitHub\n"
        "    createIssue(args: { title: string; labels?: any[] }): Promise<{ number: number }>;"
        " // Creates an issue.\n"
        "    list(args?: Record<string, unknown>): Promise<any>;\n"
        "  };\n"
        "};\n"
        "export declare class ToolError extends Error { server: string; tool: string; details: any }\n"
    )


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        (ISSUE, "args: { title: string; labels?: any[] }"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, "args?: { a?: number }"),
        ({"type": "object", "properties": {}}, "args?: Record<string, never>"),
        ({"type": "object"}, "args?: { [key: string]: any }"),
        ({"type": "object", "allOf": [{"properties": {"a": {"type": "null"}}}]}, "args?: { a?: null }"),
        ({"type": "object", "allOf": [{"required": ["a"]}]}, "args: { a: unknown }"),
        (
            {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "object"}]},
            "args: { a: unknown } | { [key: string]: any }",
        ),
        (
            {"type": "object", "properties": {"u": {"type": ["string", "null"], "enum": ["a", None]}}},
            'args?: { u?: "a" | null }',
        ),
        (None, "args?: Record<string, unknown>"),
        ({}, "args?: Record<string, unknown>"),
        ("nonsense", "args?: Record<string, unknown>"),
        (["a"], "args?: Record<string, unknown>"),
        ({"type": "string"}, "args?: Record<string, unknown>"),
        ({"type": "objekt"}, "args?: Record<string, unknown>"),
        ({"$ref": "#/$defs/missing"}, "args?: Record<string, unknown>"),
        (False, "args?: Record<string, unknown>"),
    ],
    ids=str,
)
def test_arguments_have_types_and_may_be_left_out_where_none_is_required(given: Any, parameter: str) -> None:
    assert signature_of(given) == f"({parameter}): Promise<any>"


@pytest.mark.parametrize(
    ("gives", "result"),
    [
        (None, "any"),
        ({}, "any"),
        (NUMBER, "{ number: number }"),
        ({"type": "object"}, "{ [key: string]: any }"),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
            "[string, null]",
        ),
        ({"$ref": "#point", "$defs": {"P": {"$anchor": "point", "type": "null"}}}, "S.Point"),
        ({"$id": "urn:x", "$ref": "urn:x#/$defs/P", "$defs": {"P": {"type": "null"}}}, "S.P"),
        ("nonsense", "any"),
    ],
    ids=str,
)
def test_results_have_the_types_of_their_schema_or_any(gives: Any, result: str) -> None:
    assert signature_of({"type": "object", "properties": {}}, gives).endswith(f": Promise<{result}>")


def test_references_become_named_types_of_their_server() -> None:
    tree = {
        "$ref": "#/$defs/Tree",
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
            }
        },
    }
    text = declarations(of(Given("a", "plant", None, tree, tree), Given("b", "plant", None, tree)))
    assert "  plant(args?: A.Tree): Promise<A.Tree>;" in text
    assert "export declare namespace A {\n  interface Tree { kids?: A.Tree[] }\n}\n" in text
    assert "  plant(args?: B.Tree): Promise<any>;" in text


@pytest.mark.parametrize(
    ("schema", "note"),
    [
        (None, "Its server says nothing about the arguments."),
        ("x", "Its server's schema of the arguments is not valid: it is not an object."),
        ({"type": "objekt"}, 'Its server\'s schema of the arguments is not valid: "objekt" is not valid'),
        ({"type": "object", "properties": {"a": {"required": True}}}, "at /properties/a/required."),
        ({"$ref": "#/$defs/missing"}, "it refers to '#/$defs/missing', which is not in it."),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_schema_stands_in_a_note(schema: Any, note: str) -> None:
    text = declarations(of(Given("s", "f", "Does.", schema)))
    assert "   * Does.\n   *\n   * Its server" in text
    assert note in text


def test_what_can_be_understood_of_an_invalid_schema_is_used() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "required": True}}}
    assert signature_of(schema) == "(args?: { a?: string }): Promise<any>"


def test_schemas_of_older_drafts_are_valid_in_them() -> None:
    old = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": False}},
    }
    text = declarations(of(Given("s", "f", None, old)))
    assert "f(args?: { pair?: [string] }): Promise<any>;" in text
    assert "not valid" not in text


def test_collisions_and_unknown_filters_stand_in_comments() -> None:
    catalog = of(Given("s", "get_user"), Given("s", "get-user"), Given("t", "x"))
    note = (
        '// Tools of "s" that would share the name getUser: "get_user" is getUser, "get-user" is getUser_2.\n'
    )
    assert tools_module(catalog).startswith(note)
    assert declarations(catalog, compact=True).startswith(note)
    assert note not in declarations(catalog, only="t")
    assert declarations(catalog, only="t,s__got").startswith('// Nothing is called "s__got".\n')


def test_servers_that_are_called_like_types_take_nobodys_name() -> None:
    text = declarations(
        of(*(Given(name, "f") for name in ("tools", "Tool_error", "promise", "record", "error")))
    )
    for name in ("Tools_2", "ToolError_2", "Promise_2", "Record_2", "Error_2"):
        assert f"export interface {name} {{" in text


HOSTILE = (
    "*/ globalThis.pwned = 1; /* \n// x\u2028globalThis.pwned = 1;\r`${globalThis.pwned = 1}` \ud800"
    " \\ \" ' */ -->"
)


@pytest.mark.parametrize("form", [tools_module, declarations, lambda c: declarations(c, compact=True)])
def test_texts_of_servers_stay_in_comments_and_strings(form: Any) -> None:
    schema = {"type": "object", "properties": {HOSTILE: {"const": HOSTILE, "description": HOSTILE}}}
    text = form(
        of(Given(HOSTILE, HOSTILE, HOSTILE, schema, schema), servers=(Server(HOSTILE, HOSTILE, HOSTILE),))
    )
    kept = []
    for line in text.replace("\\\\", "").replace('\\"', "").split("\n"):
        code = line.partition("//")[0].strip()
        if not code.startswith(("*", "/**")):
            kept.append("".join(code.split('"')[::2]))
    assert "pwned" not in "\n".join(kept)
    assert "pwned" in text
    assert "\u2028" not in text
    text.encode()


def test_a_module_of_500_tools_is_made_in_half_a_second() -> None:
    schema = {
        "type": "object",
        "properties": {
            **{
                name: {"type": "string", "description": f"The {name}"}
                for name in ("owner", "repo", "title", "body")
            },
            "options": {
                "type": "object",
                "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
            },
        },
        "required": ["owner", "repo"],
        "$defs": {
            "Item": {
                "type": "object",
                "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
            }
        },
    }
    tools = [Given(f"server{n % 7}", f"tool_{n}", f"Does {n}. " * 10, schema, NUMBER) for n in range(500)]
    began = time.process_time()
    text = tools_module(Catalog.of(tools))
    assert time.process_time() - began < 0.5
    assert text.count("Promise<{ number: number }>") == 500
    assert json.loads(text[text.rindex("connect([") + 8 : text.rindex(");")].replace("],\n]", "]]"))
