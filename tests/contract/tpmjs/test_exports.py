"""Which export a name stands for: objects, factories, default exports; ESM and CommonJS."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.served import Executor, eventually, tool

METRIC = 'hutch_runs_total{door="tpmjs",engine="npm",outcome="%s"}'
ENV = {"REGION": "north", "SOME_API_KEY": "k-1"}

FOUND: dict[str, tuple[str, dict[str, Any], Any]] = {
    "an object": ("export const tool = { execute: () => 'object' }", {}, "object"),
    "with a receiver": ("export const tool = { n: 1, execute() { return this.n } }", {}, 1),
    "a callable tool": (
        "export const tool = Object.assign(() => { throw 1 }, { execute: () => 'callable' })",
        {},
        "callable",
    ),
    "a function's own": (
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
    "default by what it calls itself": (
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
    "a factory that wants an environment": (
        "export const tool = (env) => ({ there: env.REGION, execute: () => env.REGION })",
        {"env": ENV},
        "north",
    ),
    "a factory that takes it apart": (
        "export const tool = ({ REGION }) => ({ execute: () => REGION })",
        {"env": ENV},
        "north",
    ),
    "a factory that wants a key": (
        "export const tool = (c) => { if (c?.apiKey) return { execute: () => c }; throw new Error('no') }",
        {"env": ENV},
        {"apiKey": "k-1"},
    ),
    "an async factory that wants a key": (
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
    "CommonJS at once": ("module.exports = { tool: { execute: () => 'cjs' } }", {"type": "commonjs"}, "cjs"),
    "CommonJS, worked out": (
        "for (const n of ['tool']) module.exports[n] = () => ({ execute: () => require('./other.cjs') })",
        {"type": "commonjs"},
        "required",
    ),
    "CommonJS that was compiled": (
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

NOT_FOUND = {
    "a wrong name beside a default": ("export default { execute: () => 1 }", 'has no export "tool"'),
    "of a default with another name": (
        "export default { name: 'other', execute: () => 1 }",
        'has no export "tool"',
    ),
    "of nothing": ("export {}", 'has no export "tool", and nothing that could be a tool'),
    "with what there is": (
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
    "execute is no function": ("export const tool = { execute: 1 }", 'Export "tool" of {} is an object with'),
    "a factory of something else": (
        "export const tool = async () => ({ bash: 1 })",
        'Export "tool" of {} is a function that gives an object with bash',
    ),
}


MORE = {
    "other.js": "export const tool = { execute: () => 'other' }",
    "other.cjs": "module.exports = 'required'",
}


async def test_is_found_and_executed(made: Executor) -> None:
    answers = await made.run_all(
        {
            name: {"source": {"index.js": source, **MORE}, **options}
            for name, (source, options, _) in FOUND.items()
        }
    )
    assert {name: answer.get("output", answer) for name, answer in answers.items()} == {
        name: output for name, (_, _, output) in FOUND.items()
    }


async def test_is_not_found(made: Executor) -> None:
    answers = await made.run_all({name: source for name, (source, _) in NOT_FOUND.items()})
    for name, (_, message) in NOT_FOUND.items():
        assert answers[name]["error"]["code"] == "TOOL_NOT_FOUND", name
        assert message in answers[name]["error"]["message"]


async def test_what_every_object_has_is_no_tool(made: Executor) -> None:
    source = "export default { execute: () => 1 }; export const data = {}"
    names = ["toString", "constructor", "__proto__", "then", "hasOwnProperty"]
    answers = await made.run_all({name: {"source": source, "name": name} for name in names})
    codes = {name: answer["error"]["code"] for name, answer in answers.items()}
    assert codes == dict.fromkeys(names, "TOOL_NOT_FOUND")


@pytest.mark.parametrize("protocol", ["1.0", "1.1"])
async def test_is_no_tool(made: Executor, protocol: str) -> None:
    answers = await made.run_all(
        {
            name: {"source": source, "X_TPMJS_Protocol_Version": protocol}
            for name, (source, _) in INVALID.items()
        }
    )
    for name, (_, message) in INVALID.items():
        answer = answers[name]
        if protocol == "1.1":
            assert (answer["errorStage"], answer["errorCode"]) == ("load", "INVALID_TOOL"), name
        else:
            assert answer["error"]["code"] == "TOOL_INVALID", name
            assert re.match(message.format(r"made-up-\d+"), answer["error"]["message"])


async def test_record_of_a_run_says_how_the_tool_failed(made: Executor) -> None:
    cases = {
        "ok": tool("return 1"),
        "tool_not_found": "export const data = {}",
        "tool_invalid": "export const tool = 5",
        "import_failed": "throw new Error('at once')",
        "execution_error": tool("throw new Error('no')"),
    }
    counted = {outcome: await made.metric(METRIC % outcome) for outcome in cases}
    answers = await made.run_all(cases)
    for outcome, answer in answers.items():
        record: list[str] = []

        def logged(run: str = answer["runId"], found: list[str] = record) -> list[str]:
            found[:] = [line for line in made.server.seen if run in line]
            return found

        await eventually(logged)
        assert json.loads(record[0])["outcome"] == outcome
        assert await made.metric(METRIC % outcome) == counted[outcome] + 1


async def test_factory_without_its_configuration_says_what_it_wants(made: Executor) -> None:
    source = "export const tool = () => { throw new Error('SOME_API_KEY is required') }"
    package = made.publish(source)
    answer = await made.execute(package)
    assert answer["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": "SOME_API_KEY is required"}
    answer = await made.execute(package, X_TPMJS_Protocol_Version="1.1")
    assert (answer["errorStage"], answer["errorCode"]) == ("load", "TOOL_CONFIGURATION_REQUIRED")


IMPORTS = {
    "throws": ("throw new Error('not today')", "not today"),
    "is no JavaScript": ("export const tool = {", "index.js"),
    "wants what is not there": ("import 'not-there'", "ERR_MODULE_NOT_FOUND"),
    "wants a file that is not there": ("import './missing.js'", "ERR_MODULE_NOT_FOUND"),
    "wants an export that is not there": ("import { no } from './index.js'", "'no'"),
    "awaits what fails": ("await Promise.reject(new Error('not yet'))", "not yet"),
    "throws nothing": ("throw undefined", "undefined"),
}


async def test_import_that_fails_is_told_in_the_package_s_own_words(made: Executor) -> None:
    answers = await made.run_all({name: tool("return 1", f"{it};\n") for name, (it, _) in IMPORTS.items()})
    for name, (_, message) in IMPORTS.items():
        error = answers[name]["error"]
        assert error["code"] == "TOOL_EXECUTION_ERROR", name
        assert re.match(r"made-up-\d+ cannot be imported: ", error["message"])
        assert message in error["message"]
        assert "/pkg" not in error["message"]
        assert "/hutch" not in error["message"]


async def test_import_that_fails_does_so_again(spared: Executor) -> None:
    package = spared.publish(tool("return 1", "throw new Error('never');"))
    for _ in range(3):
        answer = await spared.execute(package, X_TPMJS_Protocol_Version="1.1")
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


async def test_main_that_is_not_in_the_package_is_a_load_error(made: Executor) -> None:
    packages = [made.publish({"other.js": tool("return 1")}, **manifest) for manifest in MANIFESTS]
    answers = await asyncio.gather(
        *(made.execute(package, X_TPMJS_Protocol_Version="1.1") for package in packages)
    )
    for manifest, answer in zip(MANIFESTS, answers, strict=True):
        assert answer["errorStage"] == "load", manifest
        assert answer["errorCode"] in ("PACKAGE_IMPORT_FAILED", "TOOL_NOT_FOUND")
        assert "root:" not in answer["error"]


async def test_dependencies_are_found_and_others_are_not(made: Executor) -> None:
    made.npm.publish("made-up-helper", files={"index.js": "export const help = () => 'helped'"})
    source = tool("return help()", "import { help } from 'made-up-helper';")
    package = made.publish(source, dependencies={"made-up-helper": "^1.0.0"})
    assert (await made.execute(package))["output"] == "helped"
    without = made.publish(source)
    assert "ERR_MODULE_NOT_FOUND" in (await made.execute(without))["error"]["message"]


async def test_scripts_of_a_package_never_run(made: Executor, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    touch = f"touch {mark}"
    hooks = ("preinstall", "install", "postinstall", "prepare", "postprepare")
    package = made.publish(
        {"index.js": tool("return 'not built'"), "binding.gyp": "{}"},
        scripts=dict.fromkeys(hooks, touch),
        bin={"made-up": "index.js"},
    )
    assert (await made.execute(package))["output"] == "not built"
    assert not mark.exists()
