"""Step kinds of installed third-party packages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.flows import EXIT_SECONDS, StdioRuntime, flow, node, running_runtime

MODULE = """
import time
from hutch.step_kinds import Call, Kind, StepFailed

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}

async def add(call: Call) -> object:
    call.log("info", f"adding in attempt {call.attempt}")
    return {"sum": call.params["a"] + call.params["b"]}

async def odd(call: Call) -> object:
    return {1, 2}

async def wrong(call: Call) -> object:
    raise ValueError("as it happens")

async def picky(call: Call) -> object:
    raise StepFailed("never", retriable=False, details={"why": "picky"})

async def unreadable(call: Call) -> object:
    call.log("loud", 7)
    call.emit("mine", value={1})
    raise StepFailed("odd details", details={"a": {1}})

async def long(call: Call) -> object:
    raise StepFailed("x" * 100_000, details="y" * 1_000_000)

async def block(call: Call) -> object:
    time.sleep(600)

def plain(call: Call) -> object:
    return 1

ADD = Kind("my.add", add, schema=SCHEMA)
ODD = Kind("my.odd", odd)
WRONG = Kind("my.wrong", wrong)
PICKY = Kind("my.picky", picky)
UNREADABLE = Kind("my.unreadable", unreadable)
LONG = Kind("my.long", long)
BLOCK = Kind("my.block", block)
PLAIN = Kind("my.plain", plain)
TAKEN = Kind("wait", odd)
NO_KIND = 7
"""
OLD_MODULE = """
from hutch.doors.rep.kinds.registry import Call, Kind

async def double(call: Call) -> object:
    from hutch.doors.rep.kinds.registry import StepFailed
    if call.params["a"] < 0:
        raise StepFailed("negative", retriable=False)
    return 2 * call.params["a"]

DOUBLE = Kind("old.double", double)
"""
ENTRIES = """
[hutch.step_kinds]
old.double = old_kinds:DOUBLE
my.add = my_kinds:ADD
my.odd = my_kinds:ODD
my.wrong = my_kinds:WRONG
my.picky = my_kinds:PICKY
my.unreadable = my_kinds:UNREADABLE
my.long = my_kinds:LONG
my.block = my_kinds:BLOCK
my.plain = my_kinds:PLAIN
my.none = my_kinds:NO_KIND
my.gone = nowhere:AT_ALL
wait = my_kinds:TAKEN
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("packages")
    (folder / "my_kinds.py").write_text(MODULE)
    (folder / "old_kinds.py").write_text(OLD_MODULE)
    info = folder / "my_kinds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kinds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return str(folder)


@pytest.fixture(scope="module")
def runtime(environment: None, installed: str) -> Iterator[StdioRuntime]:
    with running_runtime(PYTHONPATH=installed) as runtime:
        yield runtime


def test_extension_kind_is_listed_and_runs(runtime: StdioRuntime) -> None:
    kinds = runtime.result("Capabilities")["step_kinds"]
    assert {"my.add", "my.odd", "code.run"} <= {*kinds}
    assert kinds.count("wait") == 1
    ended = runtime.run(flow([node("s", "my.add", a="$input.a", b="2")]), {"a": 1})
    assert ended.outputs == {"s": {"sum": 3}}
    assert "adding in attempt 0" in ended.logs()


def test_extension_schema_is_checked_before_the_run_and_after_references_resolve(
    runtime: StdioRuntime,
) -> None:
    error = runtime.failure("StartRun", ir=flow([node("s", "my.add", a=1, c=2)]))
    paths = [each["path"] for each in error["data"]["details"]["problems"]]
    assert (error["code"], paths) == (1003, ["graph.nodes[0].with.b", "graph.nodes[0].with.c"])
    ended = runtime.run(flow([node("s", "my.add", retries=2, a="$input.a", b=2)]), {"a": "one"})
    assert "with.a" in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_builtin_kind_cannot_be_replaced(runtime: StdioRuntime) -> None:
    assert runtime.run(flow([node("s", "wait", seconds=0)])).outputs == {"s": {"seconds": 0.0}}


def test_exception_of_an_extension_fails_its_step(runtime: StdioRuntime) -> None:
    ended = runtime.run(flow([node("s", "my.wrong", retries=1)]))
    assert (ended.error["code"], ended.error["message"]) == (2001, "ValueError: as it happens")
    assert (ended.error["data"]["cause"], ended.error["data"]["attempt"]) == ("ValueError", 1)
    details = runtime.run(flow([node("s", "my.picky", retries=1)])).error["data"]
    assert (details["attempt"], details["retriable"], details["details"]) == (0, False, {"why": "picky"})


def test_non_json_output_fails_the_step(runtime: StdioRuntime) -> None:
    ended = runtime.run(flow([node("s", "my.odd")]))
    assert ended.error["message"] == "The output is not JSON: $ is a set"


def test_invalid_details_and_events_are_made_json(runtime: StdioRuntime) -> None:
    ended = runtime.run(flow([node("s", "my.unreadable")]))
    assert ended.error["data"]["details"] == {"unreadable": "$.a is a set"}
    assert [(each["level"], each["message"]) for each in ended.events if each["type"] == "log"] == [
        ("info", "7")
    ]
    assert [each["unreadable"] for each in ended.events if each["type"] == "mine"] == ["$.value is a set"]
    long = runtime.run(flow([node("s", "my.long")])).error
    assert len(long["message"]) == 8_001
    assert len(long["data"]["details"]["truncated"]) == 65_536


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("my.gone", "cannot be loaded"),
        ("my.none", "expected my_kinds:NO_KIND"),
        ("my.plain", "async function"),
    ],
)
def test_unloadable_kind_is_1002(runtime: StdioRuntime, kind: str, message: str) -> None:
    error = runtime.failure("StartRun", ir=flow([node("s", kind)]))
    assert (error["code"], error["data"]["step_id"]) == (1002, "s")
    assert message in error["message"]


def test_extension_that_imports_the_old_module_runs_with_a_warning(installed: str) -> None:
    with running_runtime(PYTHONPATH=installed) as runtime:
        assert runtime.run(flow([node("s", "old.double", a=2)])).outputs == {"s": 4}
        assert runtime.run(flow([node("s", "old.double", a=-2)])).error["message"] == "negative"
        runtime.close()
        assert runtime.process.stderr is not None
        log = runtime.process.stderr.read().decode()
    assert log.count("hutch.doors.rep.kinds.registry is deprecated: import hutch.step_kinds") == 1


def test_blocking_step_does_not_outlive_the_orchestrator(installed: str) -> None:
    with running_runtime(PYTHONPATH=installed) as runtime:
        runtime.start(flow([node("s", "my.block")]))
        assert runtime.process.stdin is not None
        began = time.monotonic()
        runtime.process.stdin.close()
        runtime.process.wait(EXIT_SECONDS)
        assert time.monotonic() - began < EXIT_SECONDS
