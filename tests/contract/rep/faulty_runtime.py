"""A minimal REP runtime with one fault: `faulty_runtime.py FAULT`. Without an argument, the runtime has no
fault.

The runtime executes no steps: every run has ended after the third poll.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
KINDS = ["test.step", "dsl.emit", "wait", "code.run"]
CAPABILITIES: dict[str, Any] = {"version": "1.2.3", "step_kinds": KINDS, "limits": {"concurrency": 1}}
LASTING = (
    "never-ends",
    "ignores-cancel",
    "hangs-on-cancel",
    "cancel-is-unknown",
    "completes-when-cancelled",
    "outlives-everything",
)
NOW = "2026-01-31T12:00:00.000Z"

polls: dict[str, int] = {}
cancelled: set[str] = set()


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def answer(id: Any, **fields: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, **fields}) + "\n"


def sleep_forever() -> NoReturn:
    while True:
        time.sleep(600)


def event(**fields: Any) -> dict[str, Any]:
    return {"timestamp": NOW, **fields}


def capabilities() -> dict[str, Any]:
    if FAULT == "no-limits":
        return {name: CAPABILITIES[name] for name in ("version", "step_kinds")}
    if FAULT == "kinds-are-a-text":
        return {**CAPABILITIES, "step_kinds": "test.step"}
    if FAULT == "no-kinds":
        return {**CAPABILITIES, "step_kinds": []}
    return CAPABILITIES


def poll(run_id: str) -> dict[str, Any]:
    polls[run_id] = number = polls.get(run_id, 0) + 1
    if run_id in cancelled and FAULT not in ("ignores-cancel", "outlives-everything"):
        if FAULT == "completes-when-cancelled":
            return {"status": "completed", "summary": {}}
        return {"status": "failed", "summary": {"cancelled": True}}
    if FAULT == "unknown-status":
        return {"status": "napping"}
    if FAULT == "no-status":
        return {"events": []}
    if FAULT == "events-are-an-object":
        return {"status": "running", "events": {}}
    if FAULT == "summary-is-a-text":
        return {"status": "running", "summary": "fine"}
    if FAULT in LASTING or number < 3:
        return {"status": "running" if number > 1 else "pending", "events": events(number), "summary": {}}
    failed = {
        "step-fails": {"code": 2001, "message": "no", "data": {"step_id": "a", "attempt": 2}},
        "fails-1003": {"code": 1003, "message": "on second thoughts"},
        "fails-3002": {"code": 3002, "message": "panic"},
        "fails-with-text": "just so",
        "fails-without-error": None,
        "fails-oddly": {"code": "E_ODD", "message": 7},
    }
    if FAULT in failed:
        summary = {} if failed[FAULT] is None else {"error": failed[FAULT]}
        return {"status": "failed", "summary": {"failed_steps": 1, **summary}}
    return {"status": "completed", "summary": {"completed_steps": 1, "failed_steps": 0, "outputs": {"a": 1}}}


def events(number: int) -> list[Any]:
    if FAULT == "unknown-events":
        odd: list[Any] = [event(type="weather", is_fine=True), {"no": "type"}, 7, None]
        return [*odd, event(type="step", step_id="a", state="napping"), event(type="step", step_id="zzz")]
    state = "started" if number == 1 else "succeeded"
    return [
        event(type="step", step_id="a", state=state),
        event(type="log", level="info", message=f"{number}"),
    ]


def serve(request: dict[str, Any]) -> None:
    id, method, params = request["id"], request["method"].removeprefix("Runtime."), request["params"]
    apply_fault(id, method)
    match method:
        case "Capabilities":
            write(answer(id, result=capabilities()))
        case "StartRun":
            if FAULT.startswith("refuses-"):
                code = int(FAULT.removeprefix("refuses-"))
                write(answer(id, error={"code": code, "message": "no", "data": {"details": {"x": 1}}}))
            elif FAULT == "error-without-code":
                write(answer(id, error={"message": "no"}))
            elif FAULT == "no-run-id":
                write(answer(id, result={}))
            elif FAULT == "own-run-id":
                write(answer(id, result={"run_id": "mine"}))
            elif FAULT == "reports-environment":
                environ = {
                    name: value for name, value in os.environ.items() if name.startswith("TRACE_MIND_")
                }
                environ["secret"] = os.environ.get("HUTCH_API_KEY", "")
                details = {"environ": environ, "options": params["options"], "inputs": params["inputs"]}
                write(answer(id, error={"code": 2001, "message": "as asked", "data": {"details": details}}))
            else:
                write(answer(id, result={"run_id": params["options"]["run_id"]}))
        case "Poll":
            if FAULT == "own-run-id":
                assert params["run_id"] == "mine"
            write(answer(id, result=poll(params["run_id"])))
        case "Cancel":
            if FAULT == "hangs-on-cancel":
                sleep_forever()
            if FAULT == "cancel-is-unknown":
                write(answer(id, error={"code": -32601, "message": "no such method"}))
                return
            cancelled.add(params["run_id"])
            write(answer(id, result={"ok": True}))
        case _:
            write(answer(id, error={"code": -32601, "message": "no such method"}))


def apply_fault(id: Any, method: str) -> None:
    """Applies a fault that happens before the answer to a request, or instead of the answer."""
    at = "Poll" if FAULT.endswith("@poll") else "Capabilities"
    fault = FAULT.removesuffix("@poll")
    if fault == "no-poll-answer" and method == "Poll":
        print("polled", file=sys.stderr, flush=True)
        sleep_forever()
    if method != at:
        return
    match fault:
        case "silent":
            sleep_forever()
        case "late":
            time.sleep(0.4)
        case "garbage":
            write("Welcome to the runtime!\n")
        case "empty-object":
            write("{}\n")
        case "list":
            write(f"[{answer(id, result={}).strip()}]\n")
        case "request":
            write('{"jsonrpc": "2.0", "method": "Runtime.Event", "params": {}}\n')
        case "wrong-id":
            write(answer(id + 1, result=CAPABILITIES))
            sleep_forever()
        case "id-as-text":
            write(answer(str(id), result=CAPABILITIES))
            sleep_forever()
        case "null-id":
            write(answer(None, result=CAPABILITIES))
            sleep_forever()
        case "null-id-error":
            write(answer(None, error={"code": -32700, "message": "what?"}))
            sleep_forever()
        case "twice":
            write(answer(id, result=CAPABILITIES if method == "Capabilities" else {"status": "running"}))
        case "two-on-a-line":
            write(answer(id, result=CAPABILITIES).strip() + answer(id, result=CAPABILITIES))
            sleep_forever()
        case "both":
            write(answer(id, result={}, error={"code": 1, "message": ""}))
            sleep_forever()
        case "neither":
            write(answer(id))
            sleep_forever()
        case "jsonrpc-1":
            write(json.dumps({"id": id, "result": CAPABILITIES}) + "\n")
            sleep_forever()
        case "nan":
            write(f'{{"jsonrpc": "2.0", "id": {id}, "result": NaN}}\n')
            sleep_forever()
        case "not-utf8":
            sys.stdout.buffer.write(b'{"jsonrpc": "2.0", "id": 1, "result": "\xff\xfe"}\n')
            sys.stdout.flush()
            sleep_forever()
        case "nested":
            write(f'{{"jsonrpc": "2.0", "id": {id}, "result": {"[" * 50_000 + "]" * 50_000}}}\n')
            sleep_forever()
        case "half-a-line":
            write(answer(id, result=CAPABILITIES)[:20])
            sys.exit(0)
        case "half-a-line-and-waits":
            write(answer(id, result=CAPABILITIES)[:20])
            os.close(1)
            sleep_forever()
        case "long-line":
            part = "x" * 1_000_000
            for _ in range(100):
                write(part)
            write("\n")
            sleep_forever()
        case "closes-output":
            os.close(1)
            sleep_forever()
        case "exits":
            sys.exit(0)
        case "exits-7":
            print("out of cheese", file=sys.stderr)
            sys.exit(7)
        case "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "floods-stderr":
            for _ in range(50):
                sys.stderr.write("e" * 99_999 + "\n")
        case "leaves-children":
            # A child with its own session that inherits stdout is the hardest kind of child to find and end.
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            print(f"child {child.pid}", file=sys.stderr, flush=True)
            if "--and-dies" in sys.argv:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    if FAULT == "outlives-everything":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin:
        if line.strip():
            serve(json.loads(line))
    if FAULT == "outlives-everything":
        sleep_forever()


if __name__ == "__main__":
    main()
