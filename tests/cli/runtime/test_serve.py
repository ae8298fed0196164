"""Tests of `hutch runtime serve` as a process, driven by hand-written requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.flows import EXIT_SECONDS, SERVE, StdioRuntime, chain, edge, flow, node, running_runtime
from tests.support.processes import TIMEOUT_SECONDS, Traces, hutch, wait_until

CAPABILITIES = '{"jsonrpc":"2.0","id":1,"method":"Runtime.Capabilities","params":{}}'
KINDS = {
    "http.get",
    "http.request",
    "mcp.call",
    "tool.execute",
    "ability.execute",
    "toolscript.run",
    "code.run",
    "flow.run",
    "for_each",
    "switch",
    "finish",
    "dsl.emit",
    "wait",
    "approve",
}
ENGINES = ("quickjs", "deno")
WAIT = flow([node("w", "wait", seconds=600)])
DONE = flow([node("w", "wait", seconds=0)])


@pytest.fixture(scope="module")
def runtime() -> Iterator[StdioRuntime]:
    """One runtime for many tests, which must not stop the runtime. After the last test, checks that the
    runtime printed only responses.
    """
    with running_runtime() as one:
        yield one
        assert one.close() == b""
        assert one.process.wait(EXIT_SECONDS) == 0
        assert one.process.stderr is not None
        lines = one.process.stderr.read().decode().splitlines()
        assert [line for line in lines if not line.startswith("hutch: ignored 'Runtime.Health'")] == []


# --- methods ---


def test_capabilities_have_three_fields_and_every_kind(runtime: StdioRuntime) -> None:
    capabilities = runtime.result("Capabilities")
    assert set(capabilities) == {"version", "step_kinds", "limits"}
    assert set(capabilities["step_kinds"]) == KINDS
    assert capabilities["limits"] == {"concurrency": 64}


def test_capabilities_are_answered_without_heavy_imports() -> None:
    code = (
        "import sys, threading; from hutch.cli.runtime.serve import serve_runtime; serve_runtime()\n"
        "heavy = {'asyncio', 'msgspec', 'uvloop', 'hutch.kernel.kernel', 'hutch.app.app',"
        " 'importlib.metadata'}\n"
        "print(heavy & {*sys.modules}, file=sys.stderr)"
    )
    command = [SERVE[0], "-c", code]
    done = subprocess.run(
        command, input=CAPABILITIES + "\n", capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert set(json.loads(done.stdout)["result"]["step_kinds"]) == KINDS
    assert done.stderr == "set()\n"


def test_capabilities_are_answered_quickly() -> None:
    """The target is 0.15 s, which `make bench` measures. The limit here is higher, because the machine may be
    busy.
    """
    with running_runtime() as one:
        one.result("Capabilities")
    began = time.monotonic()
    with running_runtime() as one:
        one.result("Capabilities")
        assert time.monotonic() - began < 5


def test_health_is_answered(runtime: StdioRuntime) -> None:
    assert runtime.result("Health") == {"ok": True, "details": {"active_runs": 0}}


def test_unknown_method_is_rejected(runtime: StdioRuntime) -> None:
    error = runtime.failure("Sleep")
    assert error["code"] == -32601
    assert "unknown method 'Runtime.Sleep'; expected one of Runtime.Capabilities" in error["message"]


def test_run_completes_with_outputs_and_events(runtime: StdioRuntime) -> None:
    ended = runtime.run(
        flow([node("a", "wait", seconds=0), node("b", "finish", outputs={"x": "$input.x"})], chain("a", "b")),
        {"x": [1, "é", None]},
        run_id="from-start-to-end",
        trace_id="t",
        allow_shell=False,
    )
    assert ended.outputs == {"x": [1, "é", None]}
    assert ended.steps() == [("a", "started"), ("a", "succeeded"), ("b", "started"), ("b", "succeeded")]
    again = runtime.result("Poll", run_id="from-start-to-end")
    assert again == {"status": "completed", "events": [], "summary": ended.summary}


def test_run_without_an_id_gets_one(runtime: StdioRuntime) -> None:
    one, other = runtime.start(DONE), runtime.start(DONE, run_id=None)
    assert one != other
    assert len(one) == len(other) == 36


def test_null_inputs_and_options_are_accepted(runtime: StdioRuntime) -> None:
    assert runtime.result("StartRun", ir=DONE, inputs=None, options=None)["run_id"]


def test_same_run_id_twice_is_one_run(runtime: StdioRuntime) -> None:
    assert runtime.start(WAIT, run_id="twice") == runtime.start(DONE, run_id="twice") == "twice"
    assert runtime.result("Poll", run_id="twice")["summary"]["total_steps"] == 1
    assert runtime.result("Health")["details"] == {"active_runs": 1}
    assert runtime.result("Cancel", run_id="twice") == {"ok": True}
    assert runtime.ended("twice").summary["cancelled"] is True


def test_cancel_ends_a_run_and_may_be_repeated(runtime: StdioRuntime) -> None:
    run_id = runtime.start(WAIT)
    assert runtime.result("Cancel", run_id=run_id) == {"ok": True}
    ended = runtime.ended(run_id)
    assert (ended.status, ended.summary["cancelled"], ended.error["data"]["cause"]) == (
        "failed",
        True,
        "Cancelled",
    )
    assert runtime.result("Cancel", run_id=run_id) == {"ok": True}
    assert runtime.ended(run_id).summary == ended.summary


def test_cancel_of_a_completed_run_changes_nothing(runtime: StdioRuntime) -> None:
    run_id = runtime.start(DONE)
    assert runtime.ended(run_id).status == "completed"
    assert runtime.result("Cancel", run_id=run_id) == {"ok": True}
    assert runtime.ended(run_id).status == "completed"


def test_approval_is_asked_for_and_given(runtime: StdioRuntime) -> None:
    nodes = [node("ask", "approve", message="Really?"), node("end", "finish", outputs="$step.ask")]
    run_id = runtime.start(flow(nodes, chain("ask", "end")))
    events: list[dict[str, Any]] = []
    runtime.poll_until(run_id, lambda _: any(each["type"] == "approval" for each in events), events)
    [asked] = [each for each in events if each["type"] == "approval"]
    assert (asked["step_id"], asked["message"]) == ("ask", "Really?")
    refused = runtime.failure("Approve", run_id=run_id, step_id="other", approved=True)
    assert (refused["code"], "waiting: ask" in refused["message"]) == (-32602, True)
    assert runtime.failure("Approve", run_id=run_id, step_id="ask", approved="yes")["code"] == -32602
    runtime.result("Approve", run_id=run_id, step_id="ask", approved=True, by="Bo")
    assert runtime.ended(run_id).outputs == {"approved": True, "by": "Bo"}


def test_approval_is_denied(runtime: StdioRuntime) -> None:
    run_id = runtime.start(flow([node("ask", "approve", retries=3, message="Really?")]))
    runtime.poll_until(run_id, lambda one: any(each["type"] == "approval" for each in one["events"]), [])
    runtime.result("Approve", run_id=run_id, step_id="ask", approved=False, by="Bo", reason="too dear")
    assert runtime.ended(run_id).error["message"] == "The step was not approved by Bo: too dear"


def test_end_is_reported_after_all_events(runtime: StdioRuntime) -> None:
    run_id = runtime.start(flow([node(f"s{number}", "dsl.emit", x="y" * 60_000) for number in range(150)]))
    answers: list[dict[str, Any]] = []
    runtime.poll_until(
        run_id, lambda one: answers.append(one) or one["status"] not in ("pending", "running"), []
    )
    assert all(len(json.dumps(each)) < 5_000_000 for each in answers)
    events = [each for one in answers for each in one["events"]]
    assert [each["type"] for each in events].count("log") == 150
    assert [one["status"] for one in answers if one["events"]].count("completed") <= 1
    assert "outputs" in answers[-1]["summary"] or "error" in answers[-1]["summary"]


# --- bad parameters ---


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("StartRun", {}, "ir: is required"),
        ("StartRun", {"ir": DONE, "inputs": []}, "inputs: expected an object"),
        ("StartRun", {"ir": DONE, "options": 1}, "options: expected an object"),
        ("StartRun", {"ir": DONE, "options": {"run_id": 7}}, "options.run_id: expected a text"),
        ("StartRun", {"ir": DONE, "options": {"run_id": ""}}, "options.run_id: expected a text"),
        ("StartRun", {"ir": DONE, "options": {"concurrency": 0}}, "options.concurrency: expected an integer"),
        ("StartRun", {"ir": DONE, "options": {"egress_allow": "x"}}, "options.egress_allow: expected a list"),
        ("Poll", {}, "run_id: is required"),
        ("Poll", {"run_id": 5}, "run_id: expected a text"),
        ("Poll", {"run_id": "unknown"}, "run_id: there is no run 'unknown'"),
        ("Cancel", {"run_id": "unknown"}, "run_id: there is no run 'unknown'"),
        ("Approve", {"run_id": "unknown"}, "run_id: there is no run 'unknown'"),
    ],
)
def test_invalid_parameters_are_named(
    runtime: StdioRuntime, method: str, params: dict[str, Any], message: str
) -> None:
    error = runtime.failure(method, **params)
    assert error["code"] == -32602
    assert error["message"].startswith(message)


# --- bad flows ---


def test_unsupported_ir_version_is_1001(runtime: StdioRuntime) -> None:
    error = runtime.failure("StartRun", ir=flow([node("a", "x")], version="2.0.0"))
    assert error["code"] == 1001
    assert error["data"] == {
        "step_id": None,
        "attempt": 0,
        "retriable": False,
        "details": {"expected": "1.0.0", "received": "2.0.0"},
    }


def test_unknown_kind_is_1002_and_names_the_step(runtime: StdioRuntime) -> None:
    error = runtime.failure("StartRun", ir=flow([node("a", "wait", seconds=0), node("b", "opcua.read")]))
    assert (error["code"], error["data"]["step_id"]) == (1002, "b")
    assert error["data"]["details"]["kind"] == "opcua.read"
    assert set(error["data"]["details"]["supported"]) == KINDS


SHELL = flow([node("a", "shell.run", command="true")])


@pytest.mark.parametrize("options", [{}, {"allow_shell": True}])
def test_shell_is_1002_if_the_environment_does_not_allow_it(
    runtime: StdioRuntime, options: dict[str, Any]
) -> None:
    error = runtime.failure("StartRun", ir=SHELL, options=options)
    assert error["code"] == 1002
    assert "TRACE_MIND_ALLOW_SHELL=1" in error["message"]


def test_shell_is_listed_if_the_environment_allows_it_and_rejected_without_the_option() -> None:
    with running_runtime(TRACE_MIND_ALLOW_SHELL="1") as one:
        assert set(one.result("Capabilities")["step_kinds"]) == KINDS | {"shell.run"}
        assert one.failure("StartRun", ir=SHELL, options={})["code"] == 1002


def test_limits_of_executions_do_not_apply_to_steps() -> None:
    steps = flow([node(id, "code.run", code="return 1") for id in "ab"], chain("a", "b"))
    with running_runtime(HUTCH_MAX_EXECUTIONS_PER_MINUTE="1", HUTCH_MAX_CONCURRENT_EXECUTIONS="1") as one:
        assert one.run(steps).status == "completed"


@pytest.mark.parametrize(
    ("ir", "path"),
    [
        ("text", ""),
        ({"version": "1.0.0"}, "flow"),
        (flow([node("a", "wait", seconds=0)], [edge("a", "b")]), "graph.edges[0].to"),
        (flow([node("a", "wait", seconds=0), node("a", "wait", seconds=0)]), "graph.nodes[1].id"),
        (
            flow([node(id, "wait", seconds=0) for id in "ab"], [edge("a", "b"), edge("b", "a")]),
            "graph.edges[1]",
        ),
        (flow([node("a", "wait", seconds="$step.unknown")]), "graph.nodes[0].with.seconds"),
        (flow([node("a", "wait", seconds="$step.a")]), "graph.nodes[0].with.seconds"),
        (flow([node("a", "wait")]), "graph.nodes[0].with.seconds"),
        (flow([node("a", "wait", seconds=1, minutes=1)]), "graph.nodes[0].with.minutes"),
    ],
)
def test_invalid_flow_is_1003_with_paths(runtime: StdioRuntime, ir: Any, path: str) -> None:
    error = runtime.failure("StartRun", ir=ir)
    assert error["code"] == 1003
    assert path in [each["path"] for each in error["data"]["details"]["problems"]]


@pytest.mark.parametrize(
    ("inputs", "path"), [({}, "inputs.n"), ({"n": "x"}, "inputs.n"), ({"n": None}, "inputs.n")]
)
@pytest.mark.parametrize(
    "schema",
    [{"n": {"type": "int"}}, {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}],
    ids=["compiler", "json-schema"],
)
def test_invalid_inputs_are_rejected_with_paths(
    runtime: StdioRuntime, inputs: dict[str, Any], path: str, schema: dict[str, Any]
) -> None:
    ir = flow([node("a", "wait", seconds=0)], inputs_schema=schema)
    error = runtime.failure("StartRun", ir=ir, inputs=inputs)
    assert error["code"] == 1003
    assert any(each["path"].startswith("inputs") for each in error["data"]["details"]["problems"])


# --- bad lines ---


def test_bad_lines_are_answered_and_later_requests_are_served(runtime: StdioRuntime) -> None:
    half = '{"jsonrpc":"2.0","id":9,"meth'
    runtime.send("garbage", CAPABILITIES + CAPABILITIES, f"[{CAPABILITIES}]", half, "", "  ", b"\xff\xfe")
    codes = [(answer["id"], answer["error"]["code"]) for answer in (runtime.receive() for _ in range(5))]
    assert codes == [(None, -32700), (None, -32700), (None, -32600), (None, -32700), (None, -32700)]
    assert runtime.result("Capabilities")["version"]


@pytest.mark.parametrize("id", ['"text"', "0", "-1", "1.5", "null", "123456789012345678901234567890"])
def test_all_kinds_of_ids_are_echoed(runtime: StdioRuntime, id: str) -> None:
    runtime.send(f'{{"jsonrpc":"2.0","id":{id},"method":"Runtime.Health"}}')
    assert runtime.receive()["id"] == json.loads(id)


def test_notification_gets_no_answer(runtime: StdioRuntime) -> None:
    runtime.send('{"jsonrpc":"2.0","method":"Runtime.Health"}')
    assert runtime.result("Health")["ok"] is True


def test_line_of_100_megabytes_is_rejected_without_buffering_it() -> None:
    with running_runtime() as one:
        one.send(b"x" * 100_000_000)
        error = one.receive()["error"]
        assert (error["code"], "longer than 16777216 bytes" in error["message"]) == (-32600, True)
        assert one.run(DONE).status == "completed"
        one.send(b'{"jsonrpc":"2.0","id":1,"method":"' + b"y" * 100_000_000)
        assert one.receive()["error"]["code"] == -32600
        assert one.run(DONE).status == "completed"
        status = Path(f"/proc/{one.process.pid}/status").read_text()
        [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
        assert peak < 250_000


def test_requests_can_arrive_in_any_pieces_and_many_at_once() -> None:
    with running_runtime() as one:
        assert one.process.stdin is not None
        for byte in CAPABILITIES.encode():
            one.process.stdin.write(bytes([byte]))
            one.process.stdin.flush()
        one.send("")
        assert one.receive()["id"] == 1
        start = {"jsonrpc": "2.0", "id": 2, "method": "Runtime.StartRun", "params": {"ir": DONE}}
        health = {"jsonrpc": "2.0", "method": "Runtime.Health"}
        one.send(*(json.dumps(each) for each in [start, *({**health, "id": n} for n in range(3, 500))]))
        assert [one.receive()["id"] for _ in range(2, 500)] == [*range(2, 500)]


# --- shutdown ---


@pytest.mark.parametrize("input", [b"", b"\n", CAPABILITIES.encode(), b'{"jsonrpc":"2.0","id":9,"me'])
def test_runtime_ends_at_the_end_of_stdin(input: bytes) -> None:
    done = hutch("runtime", "serve", input=input)
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if not input.strip():
        assert answers == []
    elif input.endswith(b"me"):
        assert [each["error"]["code"] for each in answers] == [-32700]
    else:
        assert [each["id"] for each in answers] == [1]


def test_runtime_ends_soon_after_stdin_with_a_run_in_flight() -> None:
    with running_runtime() as one:
        run_id = one.start(flow([node("loop", "code.run", code="for (;;);"), node("w", "wait", seconds=99)]))
        wait_until(lambda: one.result("Poll", run_id=run_id)["status"] == "running")
        wait_until(lambda: Traces(one.process.pid).processes > 0)
        with Traces(one.process.pid) as traces:
            began = time.monotonic()
            assert one.close() == b""
            assert one.process.wait(TIMEOUT_SECONDS) == 0
            assert time.monotonic() - began < EXIT_SECONDS
            assert traces.remaining() == []


def test_partial_line_at_the_end_of_stdin_is_answered_with_an_error() -> None:
    with running_runtime() as one:
        one.start(WAIT)
        assert one.process.stdin is not None
        one.process.stdin.write(b'{"jsonrpc":"2.0","id":9,"me')
        assert json.loads(one.close())["error"]["code"] == -32700
        assert one.process.wait(EXIT_SECONDS) == 0


def test_runtime_ends_when_its_stdout_is_closed() -> None:
    with running_runtime() as one:
        one.start(WAIT)
        assert one.process.stdout is not None
        one.process.stdout.close()
        one.send(CAPABILITIES)
        assert one.process.wait(TIMEOUT_SECONDS) == 1


def test_sigterm_ends_the_runtime_and_its_runs() -> None:
    with running_runtime() as one:
        one.start(flow([node("loop", "code.run", code="for (;;);")]))
        wait_until(lambda: Traces(one.process.pid).processes > 0)
        with Traces(one.process.pid) as traces:
            one.process.terminate()
            assert one.process.wait(TIMEOUT_SECONDS) == 1
            assert traces.remaining() == []


def test_sigint_is_ignored() -> None:
    with running_runtime() as one:
        one.result("Capabilities")
        one.process.send_signal(signal.SIGINT)
        assert one.run(DONE).status == "completed"
        one.process.send_signal(signal.SIGINT)
        assert one.run(DONE).status == "completed"


ORCHESTRATOR = """
import json, subprocess, sys
runtime = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in json.loads(sys.argv[2]):
    runtime.stdin.write(line.encode() + b"\\n")
    runtime.stdin.flush()
    runtime.stdout.readline()
print(runtime.pid, flush=True)
runtime.wait()
"""


def test_killed_orchestrator_leaves_no_runtime_and_no_guest() -> None:
    nodes = [node(engine, "code.run", code="for (;;);", engine=engine) for engine in ENGINES]
    start = {"jsonrpc": "2.0", "id": 2, "method": "Runtime.StartRun", "params": {"ir": flow(nodes)}}
    command = [SERVE[0], "-c", ORCHESTRATOR, json.dumps(SERVE), json.dumps([CAPABILITIES, json.dumps(start)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())

        def guests() -> int:
            with Traces(pid) as traces:
                return traces.processes

        # Two engines are started, each with three processes: bubblewrap, its child and Deno. If there are at
        # least four processes, both engines have started.
        wait_until(lambda: guests() >= 4)
        with Traces(pid) as traces:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(TIMEOUT_SECONDS)
            assert [each for each in traces.remaining() if each.isdigit()] == []


def test_killed_runtime_leaves_no_guest() -> None:
    with running_runtime() as one:
        one.start(flow([node(engine, "code.run", code="for (;;);", engine=engine) for engine in ENGINES]))

        def guests() -> int:
            with Traces(one.process.pid) as traces:
                return traces.processes

        wait_until(lambda: guests() >= 4)
        with Traces(one.process.pid) as traces:
            one.process.kill()
            one.process.wait(TIMEOUT_SECONDS)
            assert [each for each in traces.remaining() if each.isdigit()] == []


# --- log ---


def test_log_is_json_if_the_orchestrator_asks_for_it() -> None:
    with running_runtime(TRACE_MIND_LOG_JSON="1", HUTCH_LOG_LEVEL="info") as one:
        ended = one.run(DONE, run_id="logged")
        assert one.close() == b""
        assert one.process.stderr is not None
        lines = [json.loads(line) for line in one.process.stderr.read().splitlines()]
    steps = [each for each in lines if each["message"] == "step"]
    assert [(each["run_id"], each["step_id"], each["state"]) for each in steps] == [
        ("logged", "w", "started"),
        ("logged", "w", "succeeded"),
    ]
    assert [each["timestamp"] for each in steps] == [each["timestamp"] for each in ended.events]


def test_invalid_settings_are_reported_on_stderr() -> None:
    with running_runtime(HUTCH_MAX_PROCESSES="many") as one:
        assert one.result("Capabilities")["version"]
        start = {"jsonrpc": "2.0", "id": 2, "method": "Runtime.StartRun", "params": {"ir": DONE}}
        one.send(json.dumps(start))
        assert one.process.wait(TIMEOUT_SECONDS) == 2
        assert one.process.stderr is not None
        assert (
            b"HUTCH_MAX_PROCESSES: expected an integer of at least 1, got 'many'."
            in one.process.stderr.read()
        )
