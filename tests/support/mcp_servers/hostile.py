"""Small stdio servers without the SDK, most of which misbehave: `python hostile.py CLASS`.

Each one initialises and has the tool `act`, unless its class documents another behaviour.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VERSION = "2025-06-18"
SCHEMA = {"type": "object"}
ACT = {"name": "act", "inputSchema": SCHEMA}
COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
HUGE = 100 * 1024 * 1024


def write(raw: bytes) -> None:
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def send(message: dict[str, Any]) -> None:
    write(json.dumps(message).encode() + b"\n")


def answer(request: dict[str, Any], result: Any) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def requests() -> Any:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message:
            yield message


def content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


class Server:
    """A correct server."""

    def run(self) -> None:
        for request in requests():
            handle = getattr(self, request["method"].replace("/", "_"), None)
            if handle is None:
                send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}})
            else:
                handle(request)

    def initialize(self, request: dict[str, Any]) -> None:
        info = {"name": "hostile", "version": "1"}
        answer(request, {"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": info})

    def ping(self, request: dict[str, Any]) -> None:
        answer(request, {})

    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, {"tools": [ACT]})

    def tools_call(self, request: dict[str, Any]) -> None:
        answer(request, content("acted"))


class StringIds(Server):
    """Returns numeric request ids as strings."""

    def tools_call(self, request: dict[str, Any]) -> None:
        id = str(request["id"])
        if request["params"].get("arguments", {}).get("how") == "error":
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32050, "message": "it will not"}})
        else:
            # Send two responses. The second response is unexpected.
            for text in ("acted", "again"):
                send({"jsonrpc": "2.0", "id": id, "result": content(text)})


class LaxResponses(Server):
    """Sends responses that only lenient parsers accept."""

    def tools_call(self, request: dict[str, Any]) -> None:
        how = request["params"]["arguments"]["how"]
        number = request["id"]
        ids = {"plus": f"+{number}", "space": f" {number}", "zero": f"0{number}"}
        values = {"nan": float("nan"), "infinity": float("-inf")}
        more = {"error": {"error": None}, "method": {"method": None}}.get(how, {})
        result = {**content("acted"), "structuredContent": {"value": values.get(how, 1)}}
        send({"jsonrpc": "2.0", "id": ids.get(how, number), "result": result, **more})


class LaxErrors(Server):
    """Sends errors with ids that only lenient parsers match."""

    def tools_call(self, request: dict[str, Any]) -> None:
        how = request["params"]["arguments"]["how"]
        id = {"plus": "+", "space": " ", "zero": "0"}[how] + str(request["id"])
        send({"jsonrpc": "2.0", "id": id, "error": {"code": -32050, "message": "it will not"}})


class StrangeIds(Server):
    """Sends an unexpected response with an unusual id before the real response."""

    def tools_call(self, request: dict[str, Any]) -> None:
        digits = b"1" * 5000
        error = b',"error":{"code":1,"message":"m"}}\n'
        how = request["params"]["arguments"]["how"]
        lines = {
            "text": b'{"jsonrpc":"2.0","id":"' + digits + b'"' + error,
            "number": b'{"jsonrpc":"2.0","id":' + digits + error,
            "cut": b'{"jsonrpc":"2.0","id":' + digits + b',"result":{\n',
            "last": b'{"jsonrpc":"2.0","result":{],"id":' + digits + b"}\n",
            "bytes": b'{"jsonrpc":"2.0","id":"\xff","result":{\n',
            "true": b'{"jsonrpc":"2.0","id":true,"result":1}\n',
        }
        write(lines[how])
        super().tools_call(request)


class ReportsProcess(Server):
    """Returns information about the server's process. Exits if the argument `die` is given."""

    def tools_call(self, request: dict[str, Any]) -> None:
        if "die" in request["params"].get("arguments", {}):
            os._exit(3)
        found = {"pid": os.getpid(), "cwd": str(Path.cwd()), "env": dict(os.environ)}
        answer(request, content(json.dumps(found)))


class NeverResponds(Server):
    """Never sends anything."""

    def run(self) -> None:
        for _ in requests():
            pass


class PrintsLogs(Server):
    """Writes a banner and log lines to stdout."""

    def run(self) -> None:
        write(b"Welcome to the server!\n\n{not json}\n[1, 2]\n\xff\xfe\n")
        super().run()

    def tools_call(self, request: dict[str, Any]) -> None:
        write(b"INFO a call\n")
        super().tools_call(request)


class OnlyNoise(Server):
    """Writes only invalid lines to stdout."""

    def run(self) -> None:
        write(b"Usage: server [--port PORT]\n")
        for _ in requests():
            pass


class Malformed(Server):
    """Sends an invalid JSON-RPC response."""

    def tools_call(self, request: dict[str, Any]) -> None:
        send({"jsonrpc": "2.0", "id": request["id"], "result": "a text"})


class Garbled(Server):
    """Sends a request with the id of the call, and then a response that is not JSON."""

    def tools_call(self, request: dict[str, Any]) -> None:
        number = json.dumps(request["id"]).encode()
        how = request["params"]["arguments"]["how"]
        write(b'{"jsonrpc":"2.0","id":' + number + b',"method":"x","params":{\n')
        if how == "cut":
            write(b'{"jsonrpc": "2.0", "id": ' + number + b', "result": {"content": [\n')
        elif how == "bytes":
            write(b'{"id":' + number + b',"jsonrpc":"2.0","result":{"text":"\xff"}}\n')
        elif how == "last":
            write(b'{"jsonrpc":"2.0","result":{"text":"\\ud800"},"id":' + number + b"}\n")
        elif how == "error":
            write(b'{"jsonrpc":"2.0","id":' + number + b',"error":no\n')
        else:
            super().tools_call(request)


class WrongResult(Server):
    """Sends a response that is not a tool result."""

    def tools_call(self, request: dict[str, Any]) -> None:
        answer(request, {"content": "a text"})


class Huge(Server):
    """Sends a response of 100 MB, in which the id is before or after the result. Sends a small response if
    the argument says so.
    """

    def tools_call(self, request: dict[str, Any]) -> None:
        how = request["params"].get("arguments", {}).get("id", "small")
        number = str(request["id"]).encode()
        if how == "small":
            return super().tools_call(request)
        before = b'"jsonrpc":"2.0","id":' + number + b"," if how == "first" else b""
        after = b',"jsonrpc":"2.0","id":' + number if how == "last" else b""
        write(b"{" + before + b'"result":{"content":[{"type":"text","text":"')
        for _ in range(HUGE // (1024 * 1024)):
            write(b"x" * 1024 * 1024)
        write(b'"}]}' + after + b"}\n")
        return None


class Endless(Server):
    """Sends an endless line."""

    def tools_call(self, request: dict[str, Any]) -> None:
        while True:
            write(b"x" * 1024 * 1024)


class Flood(Server):
    """Sends endless notifications."""

    def tools_call(self, request: dict[str, Any]) -> None:
        line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
        while True:
            write(line * 100)


class FloodOfAnswers(Server):
    """Sends endless unexpected responses."""

    def tools_call(self, request: dict[str, Any]) -> None:
        while True:
            write(b'{"jsonrpc":"2.0","id":5000,"result":{}}\n' * 100)


class FloodOfErrors(Server):
    """Writes much to stderr, and then responds."""

    def tools_call(self, request: dict[str, Any]) -> None:
        for _ in range(200):
            os.write(2, b"error " * 10_000 + b"\n")
        super().tools_call(request)


class EndlessPages(Server):
    def tools_list(self, request: dict[str, Any]) -> None:
        cursor = int((request.get("params") or {}).get("cursor", 0))
        answer(request, {"tools": [], "nextCursor": str(cursor + 1)})


class SamePage(Server):
    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, {"tools": [ACT], "nextCursor": "again"})


class ManyTools(Server):
    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, {"tools": [{"name": f"tool_{n}", "inputSchema": SCHEMA} for n in range(500)]})


class LongDescriptions(Server):
    def tools_list(self, request: dict[str, Any]) -> None:
        cursor = int((request.get("params") or {}).get("cursor", 0))
        tool = {"name": f"tool_{cursor}", "description": "x" * 30_000, "inputSchema": SCHEMA}
        answer(request, {"tools": [tool], "nextCursor": str(cursor + 1)})


class BadTools(Server):
    """Lists one valid tool and several invalid ones."""

    def tools_list(self, request: dict[str, Any]) -> None:
        nameless = {"inputSchema": SCHEMA}
        shapeless = {"name": "shapeless", "inputSchema": "object"}
        answer(request, {"tools": [nameless, ACT, shapeless, "a text", ACT]})


class NoTools(Server):
    def initialize(self, request: dict[str, Any]) -> None:
        info = {"name": "hostile", "version": "1"}
        answer(request, {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": info})


class Hangs(Server):
    """Never responds to a call."""

    def tools_call(self, request: dict[str, Any]) -> None:
        time.sleep(3600)


class StopsReading(Server):
    """Stops reading after the list of tools."""

    def tools_list(self, request: dict[str, Any]) -> None:
        super().tools_list(request)
        time.sleep(3600)


class AnswersEarly(Server):
    """Stops reading after the first call. Repeatedly sends responses to the second call, although it has not
    read this call.
    """

    def tools_call(self, request: dict[str, Any]) -> None:
        super().tools_call(request)
        answers = {
            "result": {"result": content("foreseen")},
            "error": {"error": {"code": -32050, "message": "foreseen"}},
        }
        more = answers[request["params"]["arguments"]["how"]]
        while True:
            time.sleep(0.02)
            send({"jsonrpc": "2.0", "id": request["id"] + 1, **more})


class OnlySendsRequests(Server):
    """Stops reading at the first call, but sends many large requests."""

    def tools_call(self, request: dict[str, Any]) -> None:
        while True:
            send({"jsonrpc": "2.0", "id": "x" * 1024 * 1024, "method": "ping"})


class ClosesInput(Server):
    """Closes its input at the first call and keeps running. Responds to the call only if the argument says
    so.
    """

    def tools_call(self, request: dict[str, Any]) -> None:
        os.close(0)
        if "answer" in request["params"].get("arguments", {}):
            answer(request, content(str(os.getpid())))
        time.sleep(3600)


class ExitsAtStart(Server):
    """Exits at the start, with an error on stderr."""

    def run(self) -> None:
        print("ModuleNotFoundError: No module named 'tea'", file=sys.stderr)
        sys.exit(5)


class CrashesAtCalls(Server):
    """Crashes at every call."""

    def tools_call(self, request: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Stubborn(Server):
    """Ignores SIGTERM, and so does its child."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run()
        while True:
            time.sleep(3600)

    def tools_call(self, request: dict[str, Any]) -> None:
        code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(3600)"
        command = [sys.executable, "-I", "-S", "-c", code]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        answer(request, content(json.dumps([os.getpid(), child.pid])))


class ClosesOutput(Server):
    """Responds, then closes its output and keeps running."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run()
        time.sleep(3600)

    def tools_call(self, request: dict[str, Any]) -> None:
        answer(request, content(json.dumps([os.getpid()])))
        os.close(1)
        time.sleep(3600)


class Modern(Server):
    """Supports only the protocol without a handshake."""

    def __init__(self) -> None:
        self.tools = [ACT]
        self.listener: Any = None

    def initialize(self, request: dict[str, Any]) -> None:
        data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
        send({"jsonrpc": "2.0", "id": request["id"], "error": error})

    def server_discover(self, request: dict[str, Any]) -> None:
        tools = {"tools": {"listChanged": True}}
        answer(request, {"supportedVersions": ["2026-07-28"], "capabilities": tools, **COMPLETE})

    def subscriptions_listen(self, request: dict[str, Any]) -> None:
        self.listener = request["id"]
        self.notify("subscriptions/acknowledged", notifications={"toolsListChanged": True})

    def notify(self, method: str, **params: Any) -> None:
        meta = {"io.modelcontextprotocol/subscriptionId": self.listener}
        send({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {"_meta": meta, **params}})

    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, {"tools": self.tools, **COMPLETE})

    def tools_call(self, request: dict[str, Any]) -> None:
        self.tools.append({"name": f"new_{len(self.tools)}", "inputSchema": SCHEMA})
        self.notify("tools/list_changed")
        answer(request, {**content("acted"), "resultType": "complete"})


class Asking(Modern):
    """Asks the user for a name until the name is not empty. The request state is the number of questions so
    far.
    """

    def tools_call(self, request: dict[str, Any]) -> None:
        params = request["params"]
        asked = int(params.get("requestState", 0))
        response = params.get("inputResponses", {}).get("name", {})
        name = response.get("content", {}).get("name", "")
        if name or response.get("action") == "decline":
            text = f"hello {name or 'nobody'} after {asked}"
            answer(request, {**content(text), "resultType": "complete"})
            return
        assert "form" in params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["elicitation"]
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        form = {"mode": "form", "message": "Who are you?", "requestedSchema": schema}
        requests = {"name": {"method": "elicitation/create", "params": form}}
        state = str(asked + 1)
        answer(request, {"resultType": "input_required", "inputRequests": requests, "requestState": state})


if __name__ == "__main__":
    globals()[sys.argv[1]]().run()
