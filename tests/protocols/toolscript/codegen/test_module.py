from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.protocols.toolscript.fakes import FakeServer, FakeTool

from hutch.protocols.toolscript.codegen.module import HEADING, declarations, signature, tools_module
from hutch.protocols.toolscript.gateway.catalog import Catalog

ISSUE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "Its title"},
        "labels": {"type": "array", "items": {}},
    },
    "required": ["title"],
}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def of(*tools: FakeTool, servers: tuple[FakeServer, ...] = ()) -> Catalog:
    return Catalog.of(tools, servers)


def signature_of(given: Any, output_schema: Any = None) -> str:
    return signature(of(FakeTool("s", "f", None, given, output_schema)).entries[0]).removeprefix("tools.s.f")


def test_module_without_tools_exports_an_empty_object() -> None:
    assert tools_module(of()).startswith("export const tools = {};\n")
    assert "export class ToolError" in tools_module(of())
    assert declarations(of()).startswith("export declare const tools: {};\n")


def test_full_declarations_contain_all_descriptions() -> None:
    catalog = of(
        FakeTool("git-hub", "create_issue", "Creates an issue.\n\nAt once.", ISSUE, NUMBER),
        servers=(FakeServer("git-hub", "GitHub", "Be careful."),),
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


def test_module_has_the_same_types_and_a_row_per_tool() -> None:
    catalog = of(FakeTool("git-hub", "create_issue", "Creates.", ISSUE, NUMBER))
    types = declarations(catalog).partition("/** Thrown by a failed")[0]
    module = tools_module(catalog)
    assert module.startswith(types)
    assert '["gitHub", "git-hub", [["createIssue", "create_issue"]]]' in module


def test_compact_declarations_have_one_line_per_tool() -> None:
    catalog = of(
        FakeTool("github", "create_issue", "Creates an issue. And so on.\nMore.", ISSUE, NUMBER),
        FakeTool("github", "list", None, None),
        servers=(FakeServer("github", "GitHub"),),
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
        ("garbage", "args?: Record<string, unknown>"),
        (["a"], "args?: Record<string, unknown>"),
        ({"type": "string"}, "args?: Record<string, unknown>"),
        ({"type": "objekt"}, "args?: Record<string, unknown>"),
        ({"$ref": "#/$defs/missing"}, "args?: Record<string, unknown>"),
        (False, "args?: Record<string, unknown>"),
    ],
    ids=str,
)
def test_arguments_are_typed_and_optional_if_none_is_required(given: Any, parameter: str) -> None:
    assert signature_of(given) == f"({parameter}): Promise<any>"


@pytest.mark.parametrize(
    ("output_schema", "result"),
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
        ("garbage", "any"),
    ],
    ids=str,
)
def test_results_have_the_type_of_their_schema_or_any(output_schema: Any, result: str) -> None:
    assert signature_of({"type": "object", "properties": {}}, output_schema).endswith(f": Promise<{result}>")


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
    text = declarations(of(FakeTool("a", "plant", None, tree, tree), FakeTool("b", "plant", None, tree)))
    assert "  plant(args?: A.Tree): Promise<A.Tree>;" in text
    assert "export declare namespace A {\n  interface Tree { kids?: A.Tree[] }\n}\n" in text
    assert "  plant(args?: B.Tree): Promise<any>;" in text


def test_types_that_a_server_repeats_are_declared_once_for_readers() -> None:
    entity = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name of the entity, unique in the graph"},
            "observations": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "observations"],
    }
    entities = {"type": "object", "properties": {"entities": {"type": "array", "items": entity}}}
    # This schema differs from `entities`, but has the same TypeScript type.
    closed = {
        "type": "object",
        "properties": {"entities": {"type": "array", "items": entity | {"additionalProperties": False}}},
    }
    catalog = of(
        FakeTool("memory", "create", None, entities, closed), FakeTool("memory", "drop", None, NUMBER)
    )
    chosen = declarations(catalog, only="memory__create")
    assert (
        "  create(args?: { entities?: Memory.Entity[] }): Promise<{ entities?: Memory.Entity[] }>;" in chosen
    )
    assert chosen.count("The name of the entity") == 1
    assert "export declare namespace Memory {\n  interface Entity {\n    /** The name of the" in chosen
    # The declarations for the type check have no named types, so that the compiler's messages show whole
    # types.
    assert "Memory.Entity" not in declarations(catalog)
    assert declarations(catalog).count("The name of the entity") == 2


def test_repeated_results_are_named_and_short_types_stay_inline() -> None:
    row = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("id", "title", "author", "url")},
    }
    point = {
        "type": "object",
        "properties": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    text = declarations(
        of(
            *(
                FakeTool(
                    "s",
                    name,
                    None,
                    point,
                    {"type": "object", "properties": {"rows": {"type": "array", "items": row}}},
                )
                for name in ("a", "b", "c")
            )
        ),
        compact=True,
    )
    for name in ("a", "b", "c"):
        assert f"    {name}(args?: {{ point?: {{ x?: number }} }}): Promise<S.AResult>;\n" in text
    row_text = "{ id?: string; title?: string; author?: string; url?: string }"
    # The type of `rows` occurs only once, inside the named type. So the type of `rows` has no name.
    assert f"export declare namespace S {{\n  interface AResult {{ rows?: {row_text}[] }}\n}}\n" in text


@pytest.mark.parametrize(
    ("schema", "note"),
    [
        (None, "Its server does not describe the arguments."),
        ("x", "Its server's schema of the arguments is not valid: it is not an object."),
        ({"type": "objekt"}, 'Its server\'s schema of the arguments is not valid: "objekt" is not valid'),
        ({"type": "object", "properties": {"a": {"required": True}}}, "at /properties/a/required."),
        ({"$ref": "#/$defs/missing"}, "it refers to '#/$defs/missing', which it does not contain."),
    ],
    ids=str,
)
def test_schema_errors_become_notes(schema: Any, note: str) -> None:
    text = declarations(of(FakeTool("s", "f", "Does.", schema)))
    assert "   * Does.\n   *\n   * Its server" in text
    assert note in text


def test_valid_parts_of_an_invalid_schema_are_used() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "required": True}}}
    assert signature_of(schema) == "(args?: { a?: string }): Promise<any>"


def test_older_json_schema_drafts_are_supported() -> None:
    old = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": False}},
    }
    text = declarations(of(FakeTool("s", "f", None, old)))
    assert "f(args?: { pair?: [string] }): Promise<any>;" in text
    assert "not valid" not in text


def test_collisions_and_unknown_filters_become_comments() -> None:
    catalog = of(FakeTool("s", "get_user"), FakeTool("s", "get-user"), FakeTool("t", "x"))
    note = (
        '// Tools of "s" that would share the name getUser: "get_user" is getUser, "get-user" is getUser_2.\n'
    )
    assert tools_module(catalog).startswith(note)
    assert declarations(catalog, compact=True).startswith(note)
    assert note not in declarations(catalog, only="t")
    assert declarations(catalog, only="t,s__got").startswith('// There is no tool or server "s__got".\n')


def test_server_names_do_not_clash_with_types() -> None:
    text = declarations(
        of(*(FakeTool(name, "f") for name in ("tools", "Tool_error", "promise", "record", "error")))
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
        of(
            FakeTool(HOSTILE, HOSTILE, HOSTILE, schema, schema),
            servers=(FakeServer(HOSTILE, HOSTILE, HOSTILE),),
        )
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


def test_module_of_500_tools_is_generated_in_half_a_second() -> None:
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
    tools = [FakeTool(f"server{n % 7}", f"tool_{n}", f"Does {n}. " * 10, schema, NUMBER) for n in range(500)]
    began = time.process_time()
    text = tools_module(Catalog.of(tools))
    assert time.process_time() - began < 0.5
    assert text.count("Promise<{ number: number }>") == 500
    assert json.loads(text[text.rindex("connect([") + 8 : text.rindex(");")].replace("],\n]", "]]"))
