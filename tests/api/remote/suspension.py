"""Code, tools and assertions for suspended runs of `hutch.connect`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hutch
from hutch.api.remote import Remote
from hutch.errors import ResumeError

MASTER_KEY = "A" * 43 + "="
CODE = """
    const seen = [];
    const note = async (name, call) => { seen.push(name); return await call };
    const [one, answer] = await Promise.all([
        note("count", tools.count({n: 1})),
        note("ask", tools.ask({what: "lunch"})),
    ]);
    const two = await tools.count({n: one + 1});
    console.log("continued");
    return {answer, two, seen};
"""


class Tools:
    """Tools of one client."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.keys: list[str] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()

    def ask(self, what: str) -> str:
        raise hutch.Suspend(f"A person decides about {what}")

    def later(self, token: str) -> int | hutch.Deferred:
        return hutch.Deferred(token)

    async def count(self, n: int, context: hutch.ToolContext) -> int:
        self.calls.append(n)
        self.keys.append(context.idempotency_key)
        return n

    async def wait(self) -> str:
        self.calls.append(0)
        self.waiting.set()
        await self.go_on.wait()
        return "waited"

    @property
    def all(self) -> list[Any]:
        return [self.ask, self.later, self.count, self.wait]


async def suspended(h: Remote, tools: Tools, code: str = CODE, **options: Any) -> hutch.Result:
    result = await h.run(code, tools=tools.all, **options)
    assert result.error is not None, result
    assert result.error.code == "suspended", result.error
    return result


async def refusal(h: Remote, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ResumeError) as refused:
        await h.resume(*arguments, **options)
    return refused.value.code
