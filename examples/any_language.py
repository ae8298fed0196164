"""Drives `hutch runner` with JSON lines, as a host in any other language would."""

import json
import subprocess
import sys

# Runs `hutch runner` from the Python environment of this program.
RUNNER = [sys.executable, "-m", "hutch", "runner"]

EXECUTE = {
    "type": "execute",
    "id": "1",
    "code": "const { celsius } = await weather.now({ city: 'Oslo' });\nreturn celsius * 9 / 5 + 32",
    "options": {"timeoutMs": 2000, "memoryLimitBytes": 67108864, "maxLogLines": 100, "maxLogChars": 64000},
    "providers": [
        {"name": "weather", "tools": {"now": {"safeName": "now", "originalName": "now"}}, "types": ""}
    ],
}

with subprocess.Popen(RUNNER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
    assert runner.stdin
    assert runner.stdout

    def send(message: dict) -> None:
        print("->", message["type"])
        print(json.dumps(message), file=runner.stdin, flush=True)

    send(EXECUTE)
    for line in runner.stdout:
        message = json.loads(line)
        print("<-", message["type"])
        if message["type"] == "tool_call":
            send({"type": "tool_result", "callId": message["callId"], "ok": True, "result": {"celsius": 4}})
        elif message["type"] == "done":
            print(message["result"] if message["ok"] else message["error"])
            break
    runner.stdin.close()
