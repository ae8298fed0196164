"""Small stdio servers without the SDK, most of which misbehave: `python tests/mcp_servers/hostile.py MODE`.

Each introduces itself and has the tool `act`, unless its mode says otherwise.
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


def say(message: dict[str, Any]) -> None:
    write(json.dumps(message).encode() + b"\n")


def answer(request: dict[str, Any], result: Any) -> None:
    say({"jsonrpc": "2.0", "id": request["id"], "result": result})


def requests() -> Any:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message:
            yield message


def content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


class Server:
    """Behaves."""

    def run(self) -> None:
        for request in requests():
            handle = getattr(self, request["method"].replace("/", "_"), None)
            if handle is None:
                say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}})
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


class Texts(Server):
    """Makes a text of every number that a request has."""

    def tools_call(self, request: dict[str, Any]) -> None:
        id = str(request["id"])
        if request["params"].get("arguments", {}).get("how") == "error":
            say({"jsonrpc": "2.0", "id": id, "error": {"code": -32050, "message": "it will not"}})
        else:
            # Twice: nobody waits for the second.
            for text in ("acted", "again"):
                say({"jsonrpc": "2.0", "id": id, "result": content(text)})


class Lax(Server):
    """Answers in ways that only lenient readers understand."""

    def tools_call(self, request: dict[str, Any]) -> None:
        how = request["params"]["arguments"]["how"]
        number = request["id"]
        ids = {"plus": f"+{number}", "space": f" {number}", "zero": f"0{number}"}
        values = {"nan": float("nan"), "infinity": float("-inf")}
        more = {"error": {"error": None}, "method": {"method": None}}.get(how, {})
        result = {**content("acted"), "structuredContent": {"value": values.get(how, 1)}}
        say({"jsonrpc": "2.0", "id": ids.get(how, number), "result": result, **more})


class LaxErrors(Server):
    """Fails calls under numbers that only lenient readers take for theirs."""

    def tools_call(self, request: dict[str, Any]) -> None:
        how = request["params"]["arguments"]["how"]
        id = {"plus": "+", "space": " ", "zero": "0"}[how] + str(request["id"])
        say({"jsonrpc": "2.0", "id": id, "error": {"code": -32050, "message": "it will not"}})


class StrangeIds(Server):
    """Before it answers, it answers what nobody asked, under ids that are hard to read."""

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


class Tells(Server):
    """What it knows of itself; where it is asked to, it dies instead."""

    def tools_call(self, request: dict[str, Any]) -> None:
        if "die" in request["params"].get("arguments", {}):
            os._exit(3)
        found = {"pid": os.getpid(), "cwd": str(Path.cwd()), "env": dict(os.environ)}
        answer(request, content(json.dumps(found)))


class Mute(Server):
    """Never says a word."""

    def run(self) -> None:
        for _ in requests():
            pass


class Chatty(Server):
    """Writes a banner and its log to stdout, as it should not."""

    def run(self) -> None:
        write(b"Welcome to the server!\n\n{not json}\n[1, 2]\n\xff\xfe\n")
        super().run()

    def tools_call(self, request: dict[str, Any]) -> None:
        write(b"INFO a call\n")
        super().tools_call(request)


class OnlyNoise(Server):
    """Writes to stdout what no client could understand, and nothing else."""

    def run(self) -> None:
        write(b"Usage: server [--port PORT]\n")
        for _ in requests():
            pass


class Malformed(Server):
    """Answers with what is no answer."""

    def tools_call(self, request: dict[str, Any]) -> None:
        say({"jsonrpc": "2.0", "id": request["id"], "result": "a text"})


class Garbled(Server):
    """Answers with what is no JSON; before that, with a number of its own, it asks for something."""

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
    """Answers with what is no result of a tool."""

    def tools_call(self, request: dict[str, Any]) -> None:
        answer(request, {"content": "a text"})


class Huge(Server):
    """100 MB, the id before or after it; a small answer to who asks for one."""

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
    """A line without an end."""

    def tools_call(self, request: dict[str, Any]) -> None:
        while True:
            write(b"x" * 1024 * 1024)


class Flood(Server):
    """Notifications without an end."""

    def tools_call(self, request: dict[str, Any]) -> None:
        line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
        while True:
            write(line * 100)


class FloodOfAnswers(Server):
    """Answers without an end to what nobody asked."""

    def tools_call(self, request: dict[str, Any]) -> None:
        while True:
            write(b'{"jsonrpc":"2.0","id":5000,"result":{}}\n' * 100)


class FloodOfErrors(Server):
    """Complains without an end, and answers all the same."""

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


class BadTools(Server):
    """One tool in order, and some that are not."""

    def tools_list(self, request: dict[str, Any]) -> None:
        nameless = {"inputSchema": SCHEMA}
        shapeless = {"name": "shapeless", "inputSchema": "object"}
        answer(request, {"tools": [nameless, ACT, shapeless, "a text", ACT]})


class NoTools(Server):
    def initialize(self, request: dict[str, Any]) -> None:
        info = {"name": "hostile", "version": "1"}
        answer(request, {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": info})


class Hangs(Server):
    """Stops for good at the first call."""

    def tools_call(self, request: dict[str, Any]) -> None:
        time.sleep(3600)


class Deaf(Server):
    """Reads nothing any more once it has told its tools."""

    def tools_list(self, request: dict[str, Any]) -> None:
        super().tools_list(request)
        time.sleep(3600)


class Foresees(Server):
    """Reads nothing more after its first call, and answers the second one again and again."""

    def tools_call(self, request: dict[str, Any]) -> None:
        super().tools_call(request)
        answers = {
            "result": {"result": content("foreseen")},
            "error": {"error": {"code": -32050, "message": "foreseen"}},
        }
        more = answers[request["params"]["arguments"]["how"]]
        while True:
            time.sleep(0.02)
            say({"jsonrpc": "2.0", "id": request["id"] + 1, **more})


class OnlyAsks(Server):
    """Reads nothing more once it is called, but has much to ask."""

    def tools_call(self, request: dict[str, Any]) -> None:
        while True:
            say({"jsonrpc": "2.0", "id": "x" * 1024 * 1024, "method": "ping"})


class ClosesInput(Server):
    """Closes its input at its first call, which it answers if it is asked to, and lives on."""

    def tools_call(self, request: dict[str, Any]) -> None:
        os.close(0)
        if "answer" in request["params"].get("arguments", {}):
            answer(request, content(str(os.getpid())))
        time.sleep(3600)


class Dies(Server):
    """At its start, with a complaint."""

    def run(self) -> None:
        print("ModuleNotFoundError: No module named 'tea'", file=sys.stderr)
        sys.exit(5)


class DiesAtOnce(Server):
    """Whenever it is called."""

    def tools_call(self, request: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Stubborn(Server):
    """Does not go when it is told to, and neither do its children."""

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


class Leaves(Server):
    """Answers, and then closes its output, but does not go."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run()
        time.sleep(3600)

    def tools_call(self, request: dict[str, Any]) -> None:
        answer(request, content(json.dumps([os.getpid()])))
        os.close(1)
        time.sleep(3600)


class Modern(Server):
    """Knows only the protocol without a handshake."""

    def __init__(self) -> None:
        self.tools = [ACT]
        self.listener: Any = None

    def initialize(self, request: dict[str, Any]) -> None:
        data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
        say({"jsonrpc": "2.0", "id": request["id"], "error": error})

    def server_discover(self, request: dict[str, Any]) -> None:
        tools = {"tools": {"listChanged": True}}
        answer(request, {"supportedVersions": ["2026-07-28"], "capabilities": tools, **COMPLETE})

    def subscriptions_listen(self, request: dict[str, Any]) -> None:
        self.listener = request["id"]
        self.tell("subscriptions/acknowledged", notifications={"toolsListChanged": True})

    def tell(self, method: str, **params: Any) -> None:
        meta = {"io.modelcontextprotocol/subscriptionId": self.listener}
        say({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {"_meta": meta, **params}})

    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, {"tools": self.tools, **COMPLETE})

    def tools_call(self, request: dict[str, Any]) -> None:
        self.tools.append({"name": f"new_{len(self.tools)}", "inputSchema": SCHEMA})
        self.tell("tools/list_changed")
        answer(request, {**content("acted"), "resultType": "complete"})


if __name__ == "__main__":
    globals()[sys.argv[1]]().run()
