"""Tokens that a model reads: the tools of MCP servers, listed directly and through Hutch, and the answers of
Hutch's tools.

Counts with the public o200k tokenizer. Models count differently, but the ratio is much the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.baseline import environment
from bench.report import Row, Scale, number
from hutch.sandbox import deno_binary

# Published servers with 50 tools together. None of them needs an account to list its tools.
SERVERS = {
    "files": ["npm:@modelcontextprotocol/server-filesystem@2026.8.31", "/tmp"],
    "github": ["npm:@modelcontextprotocol/server-github@2025.4.8"],
    "memory": ["npm:@modelcontextprotocol/server-memory@2026.8.31"],
    "thinking": ["npm:@modelcontextprotocol/server-sequential-thinking@2026.8.31"],
}
_LIST = "return (await tools.files.listDirectory({ path: '/tmp' })).content.length"
# Calls of Hutch's tools whose answers are counted in tokens.
ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "search_tools, 5 results": ("search_tools", {"query": "read a file", "limit": 5}),
    "search_tools, the same with scores": (
        "search_tools",
        {"query": "read a file", "limit": 5, "scores": True},
    ),
    "describe_tools, all tools": ("describe_tools", {}),
    "describe_tools, one tool": ("describe_tools", {"names": ["tools.files.editFile"]}),
    "run_code, one call": ("run_code", {"code": _LIST}),
    "run_code, the same as JSON": ("run_code", {"code": _LIST, "format": "json"}),
    "run_code, wrong argument": ("run_code", {"code": "await tools.files.listDirectory({ pth: '.' })"}),
}
_TOKENIZER = """
import { encode } from "npm:gpt-tokenizer@4.0.0/encoding/o200k_base";
const texts = JSON.parse(new TextDecoder().decode(await new Response(Deno.stdin.readable).bytes()));
console.log(JSON.stringify(texts.map((text) => encode(text).length)));
"""


async def context(scale: Scale) -> list[Row]:
    entries = {name: _server_entry(arguments) for name, arguments in SERVERS.items()}
    direct = [await _visible_text(entry["command"], entry["args"]) for entry in entries.values()]
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder:
        config = Path(folder, "servers.json")
        await asyncio.to_thread(config.write_text, json.dumps({"mcpServers": entries}))
        hutch = [str(Path(sys.executable).with_name("hutch")), "mcp", "--config", str(config)]
        through, _ = await _visible_text(hutch[0], hutch[1:])
        answers = await _answers(hutch[0], hutch[1:])
    *counts, ours = await _count_tokens([*(text for text, _ in direct), through])
    sizes = await _count_tokens(answers)
    tools = sum(count for _, count in direct)
    return [
        Row(
            what=f"MCP: tokens of {tools} tools in a client's context, through `hutch mcp`",
            measured=f"{number(ours)} tokens",
            baseline=f"{number(sum(counts))} tokens: the same servers, each listed by itself",
            target="≤ a fifth of the baseline",
            met=ours * 5 <= sum(counts),
            data={"tools": tools, "tokens": ours, "baseline_tokens": sum(counts)},
        ),
        *(
            Row(what=f"MCP: answer of {what}", measured=f"{number(size)} tokens", data={"tokens": size})
            for what, size in zip(ANSWERS, sizes, strict=True)
        ),
    ]


def _server_entry(arguments: list[str]) -> dict[str, Any]:
    cache = {name: environment()[name] for name in ("DENO_DIR", "DENO_TLS_CA_STORE")}
    return {"command": deno_binary.find_deno(), "args": ["run", "-A", "--quiet", *arguments], "env": cache}


async def _visible_text(command: str, arguments: list[str]) -> tuple[str, int]:
    """Returns the text of the context (instructions and tools), and the number of tools."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=command, args=arguments, env=environment())
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        started = await session.initialize()
        tools = (await session.list_tools()).tools
    shown = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in tools
    ]
    return (started.instructions or "") + json.dumps(shown, ensure_ascii=False), len(tools)


async def _answers(command: str, arguments: list[str]) -> list[str]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=command, args=arguments, env=environment())
    texts = []
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for tool, values in ANSWERS.values():
            answer = await session.call_tool(tool, values)
            blocks = [block.text for block in answer.content if block.type == "text"]
            structured = answer.structured_content
            texts.append("".join(blocks) + ("" if structured is None else json.dumps(structured)))
    return texts


async def _count_tokens(texts: list[str]) -> list[int]:
    with tempfile.NamedTemporaryFile("w", suffix=".ts") as script:
        script.write(_TOKENIZER)
        script.flush()
        process = await asyncio.create_subprocess_exec(
            deno_binary.find_deno(), "run", "-A", "--quiet", "--no-lock", script.name,
            env=environment(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate(json.dumps(texts).encode())
    counts: list[int] = json.loads(output)
    return counts
