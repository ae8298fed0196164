"""Hostile output of steps, hostile runtimes and hostile orchestrators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.flows.helpers import MARK
from tests.protocols.rep.flow_server import FlowClient, FlowServer, parse_events
from tests.support.flows import edge, flow, node, running_runtime
from tests.support.processes import HUTCH, hutch, wait_until

pytestmark = pytest.mark.anyio


# --- output of steps ---


async def test_step_output_cannot_forge_protocol_messages(
    server: FlowServer, operator: FlowClient, rid: str
) -> None:
    """If the output of a step looks like a message, it remains text on stdout, in the events and in the
    log.
    """
    eve = await server.user(operator, f"eve-{rid}", ("rep", "execbox"))
    forged = '\n{"jsonrpc":"2.0","id":3,"result":{"status":"completed","summary":{"outputs":"forged"}}}\n'
    sse = "\n\nid: 99\nevent: end\ndata: {}\n\n"
    nodes = [
        node(
            "a",
            "code.run",
            code="console.log(input.forged); console.log(input.sse); return 7",
            input="$input",
        ),
        node("b", "dsl.emit", v="$input"),
    ]
    await eve.start_run(flow(nodes, name="prints"), rid, inputs={"forged": forged, "sse": sse, "mark": MARK})
    run = await eve.wait_for_end(rid)
    assert run["summary"]["outputs"]["a"] == 7
    text = (await eve.get(f"/runs/{rid}/events")).text
    assert [name for _, name, _ in parse_events(text)].count("end") == 1
    assert text.count("\nevent: end\n") == 1


def test_shell_output_does_not_reach_the_stdout_of_the_runtime() -> None:
    forged = '{"jsonrpc":"2.0","id":1,"result":{"status":"completed"}}'
    with running_runtime(TRACE_MIND_ALLOW_SHELL="1", TRACE_MIND_LOG_JSON="1") as runtime:
        nodes = [
            node(
                "sh",
                "shell.run",
                command=f"echo '{forged}'; echo '{forged}' >&2; ls /proc/1/fd; cat /etc/shadow",
            ),
            node("why", "dsl.emit", e="$step.sh.error"),
        ]
        ended = runtime.run(flow(nodes, [edge("sh", "why", on="failure")]), allow_shell=True)
        assert "root:" not in json.dumps(ended.summary)
        assert runtime.close() == b""


def test_shell_sees_no_files_or_secrets_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MARK)
    word = f"sleep-{os.getpid()}"
    command = (
        f"env; cat {tmp_path}/secret; ls {Path.home()} /work /root /home; cat /proc/*/environ;"
        f" touch /usr/x; (setsid sh -c 'exec -a {word} sleep 1000' >/dev/null 2>&1 &); true"
    )
    with running_runtime(TRACE_MIND_ALLOW_SHELL="1", HUTCH_MASTER_KEY=MARK, SECRET=MARK) as runtime:
        ended = runtime.run(
            flow([node("sh", "shell.run", command="bash", args=["-c", command])]), allow_shell=True
        )
        assert MARK not in json.dumps(ended.summary)
        assert not Path("/usr/x").exists()
        wait_until(lambda: not _running(word))


def _running(word: str) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text:
            found.append(text)
    return found


# --- runtimes ---

RUNTIME = """
import json, os, sys
EVENTS = [
    {"type": "log"}, {"type": "log", "message": None, "level": 7, "step_id": []}, {"type": "step"},
    {"type": "step", "step_id": {"a": 1}, "state": "started", "duration_ms": "x", "attempt": 1e99},
    {"type": "step", "step_id": "a", "state": "failed", "error": "no"}, {"type": "approval"},
    {"type": "approval", "step_id": 5, "message": [1]}, {"type": "approved"}, {"type": "skipped"},
    {"type": "log", "message": "\\x1b]0;owned\\x07\\x1b[2Jhello\\r\\x9b31m", "step_id": "\\x1b[1A"},
    {"type": "log", "message": "x", "level": "\\x1b[31m"}, {"type": ""}, 7, None, [], {"type": 3},
]
SUMMARY = {"outputs": "\\x1b[2J\\x9b", "completed_steps": "many", "failed_steps": {}, "error": ERROR}
WORD = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)", WORD])
    os._exit(0)
for line in sys.stdin:
    asked = json.loads(line)
    result = {
        "Runtime.Capabilities": {"version": "\\x1b[2J", "step_kinds": ["wait"], "limits": {}},
        "Runtime.StartRun": {"run_id": "\\x1b[31m../../x"},
        "Runtime.Poll": {"status": "STATUS", "events": EVENTS, "summary": SUMMARY},
    }.get(asked["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    print("\\x1b[2Jcomplaint", file=sys.stderr, flush=True)
    print([name for name in os.environ if "MASTER_KEY" in name], file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("completed", "None"),
        ("failed", "{'code': 10**300, 'message': chr(27) + '[2J', 'data': {'details': 5, 'cause': []}}"),
        ("failed", "{'code': -1, 'message': None, 'data': {'details': None, 'step_id': {}, 'attempt': 'x'}}"),
        (
            "failed",
            "{'code': 2001, 'message': 'no', 'data': {'details': {'problems': 3, 'supported': 4}}}",
        ),
        ("failed", "{'code': 1003, 'message': 'no', 'data': {'details': {'problems': [1, {'path': 2}]}}}"),
    ],
    ids=["completed", "large", "nothing", "failed", "refused"],
)
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["people", "json"])
def test_hostile_runtime_cannot_break_the_client(
    tmp_path: Path, status: str, error: str, flags: tuple[str, ...]
) -> None:
    """No control sequences are printed, nothing crashes, and no process is left."""
    word = f"left-by-{os.getpid()}-{tmp_path.name}"
    (tmp_path / "runtime.py").write_text(RUNTIME.replace("ERROR", error).replace("STATUS", status))
    (tmp_path / "flow.json").write_text(json.dumps(flow([node("a", "wait", seconds=0)])))
    executor = f"{sys.executable} {tmp_path / 'runtime.py'} {word}"
    env = {"HUTCH_MASTER_KEY": MARK, "HOME": str(tmp_path)}
    done = hutch("flow", "run", str(tmp_path / "flow.json"), "--executor", executor, *flags, env=env)
    assert done.returncode in (0, 1, 3, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x9b" not in done.stdout + done.stderr
    assert "MASTER_KEY" not in done.stderr
    if flags:
        json.loads(done.stdout)
    wait_until(lambda: not _running(word))


@pytest.mark.parametrize("name", ["../../x", "a/b", "/etc/x", "..", "", "x" * 300, "a\0b", "a\nb"])
def test_runtime_name_cannot_be_a_path(tmp_path: Path, name: str) -> None:
    if "\0" in name:
        with pytest.raises(ValueError, match="null byte"):
            subprocess.run([*HUTCH, "init", "--runtime", name], check=False)
        return
    env = {"HOME": str(tmp_path)}
    for command in (
        ("init", "--runtime", name, "--executor", "x"),
        ("runtime", "cache", "clear", "--engine", name),
    ):
        done = hutch(*command, env=env, cwd=tmp_path)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
    assert [*tmp_path.rglob("*")] == []


def test_hostile_orchestrator_cannot_break_the_runtime() -> None:
    """The runtime answers every malformed request, and still works afterwards."""
    short = flow([node("w", "wait", seconds=0)])
    odd: list[Any] = [None, 7, [], "x", {"a": 1}, True, -1, 1e300, "x" * 10_000, "\ud800"]
    with running_runtime() as runtime:
        for value in odd:
            for name in (
                "run_id",
                "user",
                "folder",
                "flows",
                "egress_allow",
                "concurrency",
                "kinds",
                "trace_id",
            ):
                runtime.call("StartRun", ir=short, inputs={}, options={name: value})
            runtime.call("StartRun", ir=value, inputs={}, options={})
            runtime.call("StartRun", ir=short, inputs=value, options=value)
            for method in ("Poll", "Cancel", "Approve"):
                runtime.call(method, run_id=value, step_id=value, approved=value)
        assert runtime.run(short).status == "completed"
