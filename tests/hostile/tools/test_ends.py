"""Tools that never end, exhaust a resource or kill themselves. The call gets the right error code, and the
server is not harmed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.contract.tpmjs.harness import ToolServer, server_with_registry, tool

TIMEOUT, FAILURE = "EXECUTION_TIMEOUT", "TOOL_EXECUTION_ERROR"

ENDLESS = {
    "a loop": tool("for (;;);"),
    "a loop while importing": tool("return 1", "for (;;);"),
    "a loop in the factory": "export const tool = () => { for (;;); }",
    "microtasks": tool("const f = () => queueMicrotask(f); f(); await new Promise(() => {})"),
    "never resolved": tool("await new Promise(() => {})"),
    "import that never ends": tool("return 1", "await new Promise(() => {});"),
    "a thenable": tool("return { then() {} }"),
    "toJSON": tool("return { toJSON() { for (;;); } }"),
    "a proxy": "export const tool = new Proxy({}, { get() { for (;;); } })",
    "an error's message": tool("throw { get message() { for (;;); } }"),
    "a generator": "export const tool = { *execute() { for (;;); } }",
    "an iterator": tool(
        "return { next: () => new Promise(() => {}), [Symbol.asyncIterator]() { return this } }"
    ),
    "Atomics": tool("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)"),
    "ignored signals": tool(
        "for (const s of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(s, () => {});"
        "options.abortSignal.onabort = () => { for (;;); }; await new Promise(() => {})"
    ),
    "a loop in a thread": tool(
        "new Worker('data:text/javascript,for(;;);', { type: 'module' }); await new Promise(() => {})"
    ),
}

GREEDY = {
    "numbers": tool("const a = []; for (;;) a.push(new Array(1e5).fill(1.5))"),
    "text": tool("let s = 'x'; const all = []; for (;;) all.push((s += s.slice(0, 1e6)) + Math.random())"),
    "buffers": tool("const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1))"),
    "buffers while importing": tool(
        "return 1", "const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1));"
    ),
    "WebAssembly": tool(
        "for (const all = [];;) {"
        " const { buffer } = (all[all.length] = new WebAssembly.Memory({ initial: 200 }));"
        " new Uint8Array(buffer).fill(1) }"
    ),
    "threads": tool(
        "for (let i = 0; i < 10_000; i++) {"
        " new Worker('data:text/javascript,setInterval(() => {}, 1000)', { type: 'module' });"
        " if (i % 10 === 0) await new Promise((r) => setTimeout(r)) }"
    ),
    "node's threads": tool(
        "const { Worker } = await import('node:worker_threads'); for (let i = 0; i < 10_000; i++) {"
        " new Worker('setInterval(() => {}, 1000)', { eval: true });"
        " if (i % 10 === 0) await new Promise((r) => setTimeout(r)) }"
    ),
    "a value of 200 MB": tool("return 'x'.repeat(200e6)"),
    "endless values": "export const tool = { *execute() { for (;;) yield 'x'.repeat(1e6) } }",
    "a message of 100 MB": tool("throw new Error('x'.repeat(100e6))"),
}

SELF_KILLING = {
    "SIGKILL": tool("Deno.kill(Deno.pid, 'SIGKILL')"),
    "SIGKILL by Node": tool("process.kill(process.pid, 'SIGKILL')"),
    "SIGKILL to all processes": tool(
        "Deno.kill(1, 'SIGKILL'); for (const p of [-1, 0, 2]) process.kill(p, 'SIGKILL')"
    ),
    "SIGSTOP": tool("Deno.kill(Deno.pid, 'SIGSTOP')"),
    "abort": tool("process.abort()"),
    "stack overflow": tool("const f = () => f(); f()"),
    "exit of another realm": tool(
        "(await import('node:vm')).runInNewContext('this.constructor.constructor(\"return Deno\")()').exit(0)"
    ),
    "the real exit": tool("Deno[Deno.internal].core.ops.op_exit(0)"),
    "the real exit in a thread": tool(
        "new Worker('data:text/javascript,Deno.exit(0)', { type: 'module' }); await new Promise(() => {})"
    ),
    "closed descriptors": tool(
        "const fs = await import('node:fs'); for (let i = 0; i < 64; i++) try { fs.closeSync(i) } catch {}"
        " throw new Error('closed')"
    ),
    "a trap": tool("Deno[Deno.internal].core.ops.op_panic?.('x'); throw new Error('no panic')"),
    "exit in an exit handler": tool(
        "process.on('exit', () => process.exit(0)); process.emit('exit'); process.exit()"
    ),
}


def codes(answers: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Checks that all tools failed, with messages of limited length. Returns their error codes."""
    assert [name for name, answer in answers.items() if answer["success"]] == []
    assert max(len(answer["error"]["message"]) for answer in answers.values()) < 10_000
    return {name: answer["error"]["code"] for name, answer in answers.items()}


async def test_endless_tools_time_out(tools: ToolServer) -> None:
    began = time.monotonic()
    found = codes(await tools.run_all(ENDLESS))
    assert time.monotonic() - began < 60
    # The engine may also refuse Atomics.wait immediately.
    may_fail = {"Atomics"}
    assert {name: code for name, code in found.items() if code != TIMEOUT and name not in may_fail} == {}
    assert {*found.values()} <= {TIMEOUT, FAILURE}


async def test_greedy_tools_end_at_their_limits(tools: ToolServer) -> None:
    assert {*codes(await tools.run_all(GREEDY)).values()} <= {FAILURE, TIMEOUT}


async def test_tools_that_end_their_process_fail(tools: ToolServer) -> None:
    assert {*codes(await tools.run_all(SELF_KILLING)).values()} <= {FAILURE, TIMEOUT}


async def test_memory_limit_is_reported_as_the_reason(tools: ToolServer) -> None:
    answer = await tools.run(GREEDY["buffers"])
    message = "Execution exceeded its memory limit of 128 MiB"
    assert answer["error"] == {"code": FAILURE, "message": message}


LOGS = {
    "long lines": "for (let i = 0; i < 300; i++) console.log('x'.repeat(1e6))",
    "many lines": "for (let i = 0; i < 300_000; i++) console.log(i)",
    "one line": "for (let i = 0; i < 300; i++) Deno.stdout.writeSync(new Uint8Array(1e6).fill(120))",
    "raw writes": "const b = Buffer.alloc(1e6, 'x'); for (let i = 0; i < 300; i++) fs.writeSync(2, b)",
    "by Node": "const b = Buffer.alloc(1e6, text); for (let i = 0; i < 300; i++) process.stderr.write(b)",
}


async def test_300_mb_of_logs_are_truncated_and_the_output_is_returned(tools: ToolServer) -> None:
    before = "import fs from 'node:fs'; const text = 'x'.repeat(999) + '\\n';"
    answers = await tools.run_all(
        {name: tool(f"{source}; return 'done'", before) for name, source in LOGS.items()}
    )
    for name, answer in answers.items():
        # On a busy machine, the tool may time out.
        assert answer.get("output") == "done" or answer["error"]["code"] == TIMEOUT, name
        assert answer["logsTruncated"] is True, name
        assert 0 < sum(map(len, answer["logs"])) <= 64_000, name


async def test_endlessly_nested_output_is_rejected(tools: ToolServer) -> None:
    answer = await tools.run(tool("let a = []; for (let i = 0; i < 200_000; i++) a = [a]; return a"))
    assert answer["error"]["code"] == FAILURE


async def test_output_of_a_million_keys_is_rejected(tmp_path: Path) -> None:
    source = "return Object.fromEntries(Array.from({ length: 1e6 }, (_, i) => ['key' + i, i]))"
    # The tool must fail because of the size, and not because of a timeout, so give it enough time for a busy
    # machine.
    async with server_with_registry(tmp_path, {}, tool_timeout_ms=60_000) as tools:
        answer = await tools.run(tool(source))
        assert answer["success"] is False
        assert answer["error"]["code"] == FAILURE
        assert await tools.healthy()


async def test_large_params_arrive_and_deeply_nested_ones_are_rejected(tools: ToolServer) -> None:
    package = tools.publish(tool("return JSON.stringify(params).length"))
    large = await tools.execute(package, params={"text": "é" * 1_000_000})
    assert large["output"] == 1_000_011
    raw = b'{"packageName":"%s","name":"tool","params":{"a":%s}}' % (
        package.encode(),
        b"[" * 100_000 + b"]" * 100_000,
    )
    answer = await tools.client.post(
        "/execute-tool", content=raw, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "INVALID_REQUEST"
