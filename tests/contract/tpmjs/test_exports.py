"""Exports that tool names refer to: objects, factories, default exports; ESM and CommonJS."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import ToolServer, eventually, tool

METRIC = 'hutch_runs_total{engine="npm",outcome="%s",protocol="tpmjs"}'
ENV = {"REGION": "north", "SOME_API_KEY": "k-1"}

FOUND: dict[str, tuple[str, dict[str, Any], Any]] = {
    "an object": ("export const tool = { execute: () => 'object' }", {}, "object"),
    "with a receiver": ("export const tool = { n: 1, execute() { return this.n } }", {}, 1),
    "a callable tool": (
        "export const tool = Object.assign(() => { throw 1 }, { execute: () => 'callable' })",
        {},
        "callable",
    ),
    "property of a function": (
        "export function tool() { throw 1 } tool.execute = () => 'own'",
        {},
        "own",
    ),
    "an instance": (
        "class Tool { execute() { return 'instance' } } export const tool = new Tool()",
        {},
        "instance",
    ),
    "default by its name": ("export default { execute: () => 'default' }", {"name": "default"}, "default"),
    "default by its own name property": (
        "export default { name: 'me', execute: () => 'me' }",
        {"name": "me"},
        "me",
    ),
    "in the default export": ("export default { tool: { execute: () => 'inside' } }", {}, "inside"),
    "a factory": ("export const tool = () => ({ execute: () => 'made' })", {}, "made"),
    "an async factory": (
        "export const tool = async () => { await 0; return { execute: () => 'made later' } }",
        {},
        "made later",
    ),
    "a factory that reads the environment": (
        "export const tool = () => ({ execute: () => process.env.REGION })",
        {"env": ENV},
        "north",
    ),
    "a factory that requires the environment": (
        "export const tool = (env) => ({ there: env.REGION, execute: () => env.REGION })",
        {"env": ENV},
        "north",
    ),
    "a factory that destructures its argument": (
        "export const tool = ({ REGION }) => ({ execute: () => REGION })",
        {"env": ENV},
        "north",
    ),
    "a factory that needs a key": (
        "export const tool = (c) => { if (c?.apiKey) return { execute: () => c }; throw new Error('no') }",
        {"env": ENV},
        {"apiKey": "k-1"},
    ),
    "an async factory that needs a key": (
        "export const tool = async ({ apiKey }) => apiKey && { execute: () => apiKey }",
        {"env": ENV},
        "k-1",
    ),
    "after top-level await": (
        "const m = await new Promise((r) => setTimeout(r, 9, 'm')); export const tool = { execute: () => m }",
        {},
        "m",
    ),
    "re-exported": ("export { tool } from './other.js'", {}, "other"),
    "CommonJS": ("exports.tool = { execute: () => 'cjs' }", {"type": "commonjs"}, "cjs"),
    "CommonJS object": ("module.exports = { tool: { execute: () => 'cjs' } }", {"type": "commonjs"}, "cjs"),
    "computed CommonJS exports": (
        "for (const n of ['tool']) module.exports[n] = () => ({ execute: () => require('./other.cjs') })",
        {"type": "commonjs"},
        "required",
    ),
    "compiled CommonJS": (
        "exports.__esModule = true; exports.default = { tool: { execute: () => 'compiled' } }",
        {"type": "commonjs"},
        "compiled",
    ),
    "CommonJS's default": (
        "module.exports = { execute: () => 1 }",
        {"type": "commonjs", "name": "default"},
        1,
    ),
}

IS_EXPORT = re.compile(r"(class Tool .* )?export (const|function|async function) tool\b")

NOT_FOUND = {
    "wrong name with a default export": ("export default { execute: () => 1 }", 'has no export "tool"'),
    "default export with another name": (
        "export default { name: 'other', execute: () => 1 }",
        'has no export "tool"',
    ),
    "no exports": ("export {}", 'has no export "tool", and nothing that could be a tool'),
    "lists the available tools": (
        "export const other = { execute() {} }; export const data = 1",
        'has no export "tool"; its tools are other',
    ),
}

INVALID = {
    "a number": ("export const tool = 5", 'Export "tool" of {} is a number'),
    "an array": ("export const tool = []", 'Export "tool" of {} is an array'),
    "null": ("export const tool = null", 'Export "tool" of {} is null'),
    "an object": ("export const tool = { run() {} }", 'Export "tool" of {} is an object with run'),
    "a class": ("export class tool { execute() {} }", 'Export "tool" of {} is a class'),
    "execute is not a function": (
        "export const tool = { execute: 1 }",
        'Export "tool" of {} is an object with',
    ),
    "factory that returns no tool": (
        "export const tool = async () => ({ bash: 1 })",
        'Export "tool" of {} is a function that returns an object with bash',
    ),
    "function that is not a factory": (
        "export const tool = (manifest) => manifest.steps.length",
        'Export "tool" of {} is a function that throws Cannot read properties of undefined',
    ),
}


def as_exports(sources: dict[str, str]) -> dict[str, dict[str, str]]:
    """Combines modules that each export `tool` into one module with several exports, because an installation
    takes longer than an execution. Returns options of `run_all`.
    """
    names = {name: f"tool{number}" for number, name in enumerate(sources)}
    module = ";\n".join(re.sub(r"\btool\b", names[name], source) for name, source in sources.items())
    return {name: {"source": module, "name": names[name]} for name in sources}


MORE = {
    "other.js": "export const tool = { execute: () => 'other' }",
    "other.cjs": "module.exports = 'required'",
}


async def test_tool_is_found_and_executed(tool_server: ToolServer) -> None:
    alone = {
        name: {"source": {"index.js": source, **MORE}, **options}
        for name, (source, options, _) in FOUND.items()
    }
    exported = {name: source for name, (source, _, _) in FOUND.items() if IS_EXPORT.match(source)}
    together = as_exports(exported)
    answers = await tool_server.run_all(
        {name: options | together.get(name, {}) for name, options in alone.items()}
    )
    assert {name: answer.get("output", answer) for name, answer in answers.items()} == {
        name: output for name, (_, _, output) in FOUND.items()
    }


async def test_missing_tool_is_not_found(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all({name: source for name, (source, _) in NOT_FOUND.items()})
    for name, (_, message) in NOT_FOUND.items():
        assert answers[name]["error"]["code"] == "TOOL_NOT_FOUND", name
        assert message in answers[name]["error"]["message"]


async def test_members_of_every_object_are_not_tools(tool_server: ToolServer) -> None:
    source = "export default { execute: () => 1 }; export const data = {}"
    names = ["toString", "constructor", "__proto__", "then", "hasOwnProperty"]
    answers = await tool_server.run_all({name: {"source": source, "name": name} for name in names})
    codes = {name: answer["error"]["code"] for name, answer in answers.items()}
    assert codes == dict.fromkeys(names, "TOOL_NOT_FOUND")


@pytest.mark.parametrize("protocol", ["1.0", "1.1"])
async def test_invalid_tool_is_refused(tool_server: ToolServer, protocol: str) -> None:
    answers = await tool_server.run_all(
        {
            name: {**options, "X_TPMJS_Protocol_Version": protocol}
            for name, options in as_exports({name: source for name, (source, _) in INVALID.items()}).items()
        }
    )
    for name, (_, message) in INVALID.items():
        answer = answers[name]
        if protocol == "1.1":
            assert (answer["errorStage"], answer["errorCode"]) == ("load", "INVALID_TOOL"), name
        else:
            assert answer["error"]["code"] == "TOOL_INVALID", name
            expected = message.replace('"tool"', r'"tool\d+"').format(r"made-up-\d+")
            assert re.match(expected, answer["error"]["message"])


async def test_run_record_has_the_failure_code(tool_server: ToolServer) -> None:
    cases = {
        "ok": tool("return 1"),
        "tool_not_found": "export const data = {}",
        "tool_invalid": "export const tool = 5",
        "import_failed": "throw new Error('at once')",
        "execution_error": tool("throw new Error('no')"),
    }
    counted = {outcome: await tool_server.metric(METRIC % outcome) for outcome in cases}
    answers = await tool_server.run_all(cases)
    for outcome, answer in answers.items():
        record: list[str] = []

        def logged(run: str = answer["runId"], found: list[str] = record) -> list[str]:
            found[:] = [line for line in tool_server.server.seen if run in line]
            return found

        await eventually(logged)
        assert json.loads(record[0])["outcome"] == outcome
        assert await tool_server.metric(METRIC % outcome) == counted[outcome] + 1


async def test_factory_without_configuration_reports_what_it_needs(tool_server: ToolServer) -> None:
    source = "export const tool = () => { throw new Error('SOME_API_KEY is required') }"
    package = tool_server.publish(source)
    answer = await tool_server.execute(package)
    assert answer["error"] == {"code": "TOOL_INVALID", "message": "SOME_API_KEY is required"}
    answer = await tool_server.execute(package, X_TPMJS_Protocol_Version="1.1")
    assert (answer["errorStage"], answer["errorCode"]) == ("load", "TOOL_CONFIGURATION_REQUIRED")


IMPORTS = {
    "throws": ("throw new Error('not today')", "not today"),
    "syntax error": ("export const tool = {", "index.js"),
    "missing package": ("import 'not-there'", "ERR_MODULE_NOT_FOUND"),
    "missing file": ("import './missing.js'", "ERR_MODULE_NOT_FOUND"),
    "missing export": ("import { no } from './index.js'", "'no'"),
    "rejected top-level await": ("await Promise.reject(new Error('not yet'))", "not yet"),
    "throws undefined": ("throw undefined", "undefined"),
}


async def test_failed_import_has_the_packages_message(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all(
        {name: tool("return 1", f"{it};\n") for name, (it, _) in IMPORTS.items()}
    )
    for name, (_, message) in IMPORTS.items():
        error = answers[name]["error"]
        assert error["code"] == "TOOL_EXECUTION_ERROR", name
        assert re.match(r"made-up-\d+ cannot be imported: ", error["message"])
        assert message in error["message"]
        assert "/pkg" not in error["message"]
        assert "/hutch" not in error["message"]


async def test_failed_import_fails_again(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("return 1", "throw new Error('never');"))
    for _ in range(3):
        answer = await spare_server.execute(package, X_TPMJS_Protocol_Version="1.1")
        assert (answer["errorStage"], answer["errorCode"]) == ("load", "PACKAGE_IMPORT_FAILED")
        assert answer["error"] == f"{package} cannot be imported: never"


MANIFESTS: list[dict[str, Any]] = [
    {"main": "../../../../etc/passwd"},
    {"main": "/etc/passwd"},
    {"exports": "./../../../load.mjs"},
    {"exports": {".": "file:///hutch/npm.js"}},
    {"main": "missing.js"},
    {"main": "package.json"},
    {"exports": {"./other": "./index.js"}},
]


async def test_main_outside_of_the_package_is_a_load_error(tool_server: ToolServer) -> None:
    packages = [tool_server.publish({"other.js": tool("return 1")}, **manifest) for manifest in MANIFESTS]
    answers = await asyncio.gather(
        *(tool_server.execute(package, X_TPMJS_Protocol_Version="1.1") for package in packages)
    )
    for manifest, answer in zip(MANIFESTS, answers, strict=True):
        assert answer["errorStage"] == "load", manifest
        assert answer["errorCode"] in ("PACKAGE_IMPORT_FAILED", "TOOL_NOT_FOUND")
        assert "root:" not in answer["error"]


async def test_dependencies_are_found_and_other_packages_are_not(tool_server: ToolServer) -> None:
    tool_server.npm.publish("made-up-helper", files={"index.js": "export const help = () => 'helped'"})
    source = tool("return help()", "import { help } from 'made-up-helper';")
    package = tool_server.publish(source, dependencies={"made-up-helper": "^1.0.0"})
    assert (await tool_server.execute(package))["output"] == "helped"
    without = tool_server.publish(source)
    assert "ERR_MODULE_NOT_FOUND" in (await tool_server.execute(without))["error"]["message"]


async def test_scripts_of_a_package_never_run(tool_server: ToolServer, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    touch = f"touch {mark}"
    hooks = ("preinstall", "install", "postinstall", "prepare", "postprepare")
    package = tool_server.publish(
        {"index.js": tool("return 'not built'"), "binding.gyp": "{}"},
        scripts=dict.fromkeys(hooks, touch),
        bin={"made-up": "index.js"},
    )
    assert (await tool_server.execute(package))["output"] == "not built"
    assert not mark.exists()


ZOD_3_TOOL = """
class ZodType {
  constructor(_def) { this._def = _def }
  isOptional() { return this._def.typeName === "ZodOptional" }
}
const zod = (typeName, def) => new ZodType({ typeName, ...def });
const city = zod("ZodString", { checks: [{ kind: "min", value: 1 }], description: "Name of a city" });
const days = zod("ZodOptional", { innerType: zod("ZodNumber", { checks: [{ kind: "int" }] }) });
const shape = () => ({ city, days });
const inputSchema = zod("ZodObject", { shape, unknownKeys: "strip", catchall: zod("ZodNever") });
export const tool = { description: "Forecast", inputSchema, execute: () => 1 };
"""


async def test_schema_of_a_bundled_zod_3_is_described(tool_server: ToolServer) -> None:
    package = tool_server.publish(ZOD_3_TOOL)
    answer = await tool_server.post("/load-and-describe", {"packageName": package, "name": "tool"})
    assert answer.json()["tool"]["inputSchema"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1, "description": "Name of a city"},
            "days": {"type": "integer"},
        },
        "required": ["city"],
    }
