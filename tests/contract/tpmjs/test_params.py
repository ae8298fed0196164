"""Parameters that do not match the schema of a tool cause warnings, or a refusal if validation is switched
on.
"""

from __future__ import annotations

from typing import Any

from tests.contract.tpmjs.harness import ToolServer, body

SCHEMA_TOOL = """
    export const tool = {
      inputSchema: { jsonSchema: {
        type: "object",
        properties: { q: { type: "string" }, limit: { type: "integer", default: 10 } },
        required: ["q"],
      } },
      execute: (params) => { if (params.fail) throw new Error("no luck"); return params; },
    };
"""
VALIDATOR_TOOL = """
    const validate = (value) => typeof value.q === "string"
      ? { success: true, value: { n: 7, ...value } }
      : { success: false, error: { issues: [{ path: ["q"], message: "expected text" }] } };
    export const tool = {
      inputSchema: {
        jsonSchema: {},
        validate: async (value) => { value.changed = true; return validate(value); },
      },
      execute: (params) => params,
    };
"""
NEVER_CHECKED = """
    export const tool = {
      inputSchema: { jsonSchema: {}, validate: () => new Promise(() => {}) },
      execute: () => "done",
    };
"""


async def validated(server: ToolServer, package: str, params: dict[str, Any]) -> Any:
    return await server.post("/execute-tool", {**body(package, params=params), "validate": True})


async def test_mismatches_are_warnings_and_the_tool_gets_the_parameters_unchanged(
    tool_server: ToolServer,
) -> None:
    package = tool_server.publish(SCHEMA_TOOL)
    bad = await tool_server.execute(package, params={"q": 1, "limit": "x"})
    assert bad["output"] == {"q": 1, "limit": "x"}
    assert bad["warnings"] == [
        "params.q: expected a string, got the number 1",
        'params.limit: expected an integer, got "x"',
    ]
    failed = await tool_server.execute(package, params={"fail": True})
    assert failed["error"]["message"] == "no luck"
    assert failed["warnings"] == ["params.q: is missing; expected a string"]
    assert "warnings" not in await tool_server.execute(package, params={"q": "x"})


async def test_validation_refuses_mismatches_and_applies_defaults(tool_server: ToolServer) -> None:
    package = tool_server.publish(SCHEMA_TOOL)
    refused = await validated(tool_server, package, {"limit": "x"})
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "code": "INVALID_REQUEST",
        "message": 'params.q: is missing; expected a string; params.limit: expected an integer, got "x"',
    }
    accepted = (await validated(tool_server, package, {"q": "x"})).json()
    assert accepted["output"] == {"q": "x", "limit": 10}
    assert "warnings" not in accepted


async def test_own_validator_of_a_tool_is_used(tool_server: ToolServer) -> None:
    package = tool_server.publish(VALIDATOR_TOOL)
    warned = await tool_server.execute(package, params={"q": 1})
    assert (warned["output"], warned["warnings"]) == ({"q": 1}, ["params.q: expected text"])
    refused = (await validated(tool_server, package, {"q": 1})).json()
    assert refused["error"]["message"] == "params.q: expected text"
    accepted = (await validated(tool_server, package, {"q": "x"})).json()
    assert accepted["output"] == {"n": 7, "q": "x", "changed": True}


async def test_validation_without_a_schema_is_a_warning(tool_server: ToolServer) -> None:
    package = tool_server.publish("export const tool = { execute: (params) => params };")
    answer = (await validated(tool_server, package, {"q": 1})).json()
    assert answer["output"] == {"q": 1}
    assert answer["warnings"] == ["params: not checked, because the tool does not describe its parameters"]


async def test_check_that_never_ends_does_not_hold_up_the_answer(tool_server: ToolServer) -> None:
    answer = await tool_server.run(NEVER_CHECKED)
    assert answer["output"] == "done"


async def test_thrown_error_has_its_location_in_the_package(tool_server: ToolServer) -> None:
    index = 'import { fail } from "./lib/fail.js";\nexport const tool = { execute: () => fail() };\n'
    sources = {
        "index.js": index,
        "lib/fail.js": "export function fail() {\n  throw new Error('no luck');\n}\n",
    }
    failed = await tool_server.run(sources)
    assert failed["error"]["message"] == "no luck"
    assert failed["errorLocation"] == "lib/fail.js:2:9"
    unimportable = await tool_server.run("const a = 1;\nthrow new Error('at once');\n")
    assert unimportable["errorLocation"] == "index.js:2:7"
