"""What steps print, what runtimes say, and what orchestrators ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rep.stations import Caller, Station, parsed
from tests.flows import edge, flow, node, serving
from tests.hostile.flows.harm import MARK
from tests.processes import HUTCH, hutch, until

pytestmark = pytest.mark.anyio


# --- what steps print ---


async def test_what_a_step_prints_is_no_word_of_the_runtime(
    place: Station, operator: Caller, rid: str
) -> None:
    """Neither on its stdout, nor in the events, nor in the log."""
    eve = await place.user(operator, f"eve-{rid}", ("rep", "execbox"))
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
    await eve.begin(flow(nodes, name="prints"), rid, inputs={"forged": forged, "sse": sse, "mark": MARK})
    run = await eve.ended(rid)
    assert run["summary"]["outputs"]["a"] == 7
    text = (await eve.get(f"/runs/{rid}/events")).text
    assert [name for _, name, _ in parsed(text)].count("end") == 1
    assert text.count("\nevent: end\n") == 1


def test_what_a_step_prints_is_none_in_the_runtimes_output_either() -> None:
    forged = '{"jsonrpc":"2.0","id":1,"result":{"status":"completed"}}'
    with serving(TRACE_MIND_ALLOW_SHELL="1", TRACE_MIND_LOG_JSON="1") as runtime:
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


def test_a_shell_finds_no_files_no_secrets_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MARK)
    word = f"sleep-{os.getpid()}"
    command = (
        f"env; cat {tmp_path}/secret; ls {Path.home()} /work /root /home; cat /proc/*/environ;"
        f" touch /usr/x; (setsid sh -c 'exec -a {word} sleep 1000' >/dev/null 2>&1 &); true"
    )
    with serving(TRACE_MIND_ALLOW_SHELL="1", HUTCH_MASTER_KEY=MARK, SECRET=MARK) as runtime:
        ended = runtime.run(
            flow([node("sh", "shell.run", command="bash", args=["-c", command])]), allow_shell=True
        )
        assert MARK not in json.dumps(ended.summary)
        assert not Path("/usr/x").exists()
        until(lambda: not _running(word))


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
def test_a_runtime_may_say_anything(tmp_path: Path, status: str, error: str, flags: tuple[str, ...]) -> None:
    """Nothing that a terminal would obey comes out, nothing breaks, and nothing of it stays."""
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
    until(lambda: not _running(word))


@pytest.mark.parametrize("name", ["../../x", "a/b", "/etc/x", "..", "", "x" * 300, "a\0b", "a\nb"])
def test_no_name_of_a_runtime_is_a_path(tmp_path: Path, name: str) -> None:
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


def test_an_orchestrator_may_ask_anything() -> None:
    """And gets an answer each time; the runtime goes on."""
    short = flow([node("w", "wait", seconds=0)])
    odd: list[Any] = [None, 7, [], "x", {"a": 1}, True, -1, 1e300, "x" * 10_000, "\ud800"]
    with serving() as runtime:
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
