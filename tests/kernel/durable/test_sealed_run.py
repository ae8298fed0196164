"""Checkpoints that a program takes itself. A checkpoint is encrypted bytes, with which the run can continue
in another store.
"""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch.errors import InvalidExecution
from hutch.kernel.durable import checkpoint as checkpoints
from hutch.kernel.durable import sealed_run
from hutch.session.json_value import encode_value
from hutch.session.suspension import Answer
from hutch.session.tools.provider import Provider

MASTER_KEY = "A" * 43 + "="


class Tools:
    def __init__(self) -> None:
        self.calls: list[int] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()

    async def ask(self) -> str:
        raise hutch.Suspend("a person")

    async def count(self, n: int) -> int:
        self.calls.append(n)
        return n

    async def wait(self) -> str:
        self.waiting.set()
        await self.go_on.wait()
        return "waited"

    @property
    def all(self) -> list[Any]:
        return [self.ask, self.count, self.wait]


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture(scope="module", autouse=True)
def master_key() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUTCH_MASTER_KEY", MASTER_KEY)
        yield


@pytest.fixture(scope="module")
async def first(
    anyio_backend: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch(home=str(tmp_path_factory.mktemp("first"))) as opened:
        yield opened


@pytest.fixture(scope="module")
async def second(
    anyio_backend: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[hutch.Hutch]:
    """A second Hutch with the same master key and another store."""
    async with hutch.Hutch(home=str(tmp_path_factory.mktemp("second"))) as opened:
        yield opened


async def refusal(h: hutch.Hutch, *args: Any, **options: Any) -> str:
    with pytest.raises(hutch.ResumeError) as caught:
        await h.resume(*args, **options)
    return caught.value.code


async def sealed(h: hutch.Hutch, tools: Tools, **options: Any) -> tuple[bytes, str]:
    """Starts a run that waits for a person. Returns its checkpoint and the id of its pending call."""
    run = await h.start("return await tools.ask({})", tools=tools.all, **options)
    (call,) = (await run.result()).pending_calls
    return await run.checkpoint(), call.call_id


async def test_running_code_continues_from_a_checkpoint_in_another_store(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools
) -> None:
    code = """
        console.log("before");
        const first = await tools.count({n: 1});
        const waited = await tools.wait({});
        await new Promise((resolve) => setTimeout(resolve, 1));
        return [first, waited, await tools.count({n: 2})];"""
    run = await first.start(code, tools=tools.all)
    await tools.waiting.wait()
    taking = asyncio.ensure_future(run.checkpoint())
    await asyncio.sleep(0)
    tools.go_on.set()
    blob = await taking
    result = await run.result()
    assert result.error is not None
    assert result.error.code == "suspended"
    events = [event async for event in run]
    assert isinstance(events[-2], hutch.RunSuspended), events
    assert tools.calls == [1]
    result = await (await second.resume(blob, tools=tools.all)).result()
    assert result.result == [1, "waited", 2], result
    assert (result.logs, tools.calls) == (["before"], [1, 2])
    # A checkpoint can be resumed only once in each store.
    assert await refusal(second, blob) == "checkpoint_ended"


async def test_checkpoint_of_a_run_that_waits_for_a_timer(first: hutch.Hutch, tools: Tools) -> None:
    code = "await new Promise((resolve) => setTimeout(resolve, 2_000)); return 'done'"
    run = await first.start(code)
    blob = await run.checkpoint()
    assert run.pending_calls == []
    assert (await (await first.resume(blob)).result()).result == "done"


async def test_invalid_checkpoints_are_refused(first: hutch.Hutch, second: hutch.Hutch, tools: Tools) -> None:
    blob, call_id = await sealed(first, tools, owner="ada")
    middle = len(blob) // 2
    altered = blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :]
    for data in (altered, blob[:-100], b"", b"nonsense", blob[:30], blob + b"A" * 8):
        assert await refusal(second, data, owner="ada") == "checkpoint_invalid", data[:30]
    too_large = sealed_run.MAGIC + bytes(2**30 - 20)
    assert await refusal(second, too_large, owner="ada") == "checkpoint_invalid"
    assert await refusal(second, blob) == "checkpoint_not_found"
    result = await (await second.resume(blob, {call_id: "yes"}, tools=tools.all, owner="ada")).result()
    assert result.result == "yes"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"run\n" + b"ab\n" * 1_000_000, "more than 100000 parts"),
        (b"run\n" + b"\n" * 10_000_000, "more than 100000 parts"),
        (b"run\n" + b"A" * 17_000_000, "a part has more than 16777216 bytes"),
        (b"x" * 200, "expected the bytes that"),
    ],
    ids=["short parts", "line breaks", "long part", "long id"],
)
async def test_lines_of_a_checkpoint_are_bounded(first: hutch.Hutch, text: bytes, reason: str) -> None:
    """Splitting them all would hold Python's lock for seconds, and need twenty times their size."""
    with pytest.raises(hutch.ResumeError, match=reason):
        await first.resume(sealed_run.MAGIC + text)


async def test_results_in_a_checkpoint_count_for_the_quota(
    first: hutch.Hutch, tmp_path: Path, tools: Tools
) -> None:
    run = await first.start("return (await tools.ask({})).length", tools=tools.all)
    (call,) = (await run.result()).pending_calls
    suspended_runs = await first._opened()
    await suspended_runs.calls.answer(
        run.id or "", "default", {call.call_id: Answer(result_json=encode_value("x" * 200_000))}
    )
    blob = await run.checkpoint()
    async with hutch.Hutch(home=str(tmp_path), max_suspended_bytes_per_owner=100_000) as other:
        assert await refusal(other, blob, tools=tools.all) == "too_many_suspended"


async def test_refused_resume_frees_the_data_of_its_caller(first: hutch.Hutch) -> None:
    """A client may send 128 MiB with each request, so that this may not wait for a garbage collection."""
    run = await first.start("return 1 + await tools.ask({})", tools=[Tools().ask])
    result = await run.result()
    suspended_runs = await first._opened()
    await suspended_runs.ends.cancel(result.run_id, "default")

    async def refused_with() -> weakref.ref[Provider]:
        provider = Provider.of(Tools().ask)
        try:
            await suspended_runs.resume(result.run_id, "default", [provider])
        except hutch.ResumeError:
            return weakref.ref(provider)
        raise AssertionError

    gc.disable()
    try:
        provider = await refused_with()
        # The event loop frees the exception after its current step.
        await asyncio.sleep(0)
        assert provider() is None
    finally:
        gc.enable()


async def test_checkpoint_of_another_bundle_or_a_past_one_is_refused(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, _ = await sealed(first, tools)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "bundle_digest", lambda: "0" * 64)
        assert await refusal(second, blob) == "checkpoint_incompatible"
    monkeypatch.setattr("hutch.kernel.durable.sealed_run.now", lambda **_: "9999-01-01T00:00:00Z")
    assert await refusal(second, blob) == "checkpoint_expired"


async def test_checkpoint_of_other_keys_is_refused(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, _ = await sealed(first, tools)
    await refusal(second, b"")
    monkeypatch.setenv("HUTCH_MASTER_KEY", "B" * 43 + "=")
    assert await refusal(second, blob) == "checkpoint_invalid"
    assert os.environ["HUTCH_MASTER_KEY"] != MASTER_KEY


async def test_older_checkpoint_of_a_run_is_refused(first: hutch.Hutch, tools: Tools) -> None:
    run = await first.start("await tools.ask({}); return await tools.ask({})", tools=tools.all)
    (call,) = (await run.result()).pending_calls
    old = await run.checkpoint()
    run = await first.resume(old, {call.call_id: "a"}, tools=tools.all)
    (call,) = (await run.result()).pending_calls
    assert await refusal(first, old) == "checkpoint_superseded"
    run = await first.resume(await run.checkpoint(), {call.call_id: "b"}, tools=tools.all)
    assert (await run.result()).result == "b"


async def test_cancelled_run_cannot_be_continued_from_its_checkpoint(
    first: hutch.Hutch, tools: Tools
) -> None:
    run = await first.start("return await tools.ask({})", tools=tools.all)
    blob = await run.checkpoint()
    assert run.id is not None
    assert await (await first._opened()).ends.cancel(run.id, "default")
    assert await refusal(first, blob) == "checkpoint_ended"


@pytest.mark.parametrize(
    ("results", "errors", "field"),
    [
        ({"ID": 7}, None, "results.ID"),
        (["yes"], None, "results"),
        ({7: "yes"}, None, "results"),
        (None, {"ID": 7}, "errors.ID"),
        ({"ID": "yes"}, {"ID": "no"}, "errors.ID"),
    ],
)
async def test_results_of_the_wrong_type_are_refused(
    first: hutch.Hutch, tools: Tools, results: Any, errors: Any, field: str
) -> None:
    blob, call_id = await sealed(first, tools)
    results, errors = ({call_id: each["ID"]} if each and "ID" in each else each for each in (results, errors))
    with pytest.raises(InvalidExecution) as caught:
        await first.resume(blob, results, errors=errors, tools=tools.all)
    assert caught.value.field == field.replace("ID", call_id)
    assert (await (await first.resume(blob, {call_id: "yes"}, tools=tools.all)).result()).result == "yes"


async def test_run_that_cannot_be_suspended_says_why(tmp_path: Path, tools: Tools) -> None:
    async with hutch.Hutch(home=str(tmp_path), max_checkpoint_bytes=10_000) as h:
        code = """
            const data = Array.from({length: 9_000}, (_, i) => [i]);
            return await tools.wait({}) + data.length"""
        run = await h.start(code, tools=tools.all)
        with pytest.raises(hutch.ResumeError, match="max_checkpoint_bytes"):
            await run.checkpoint()
        tools.go_on.set()
        assert (await run.result()).result == "waited9000"
        with pytest.raises(hutch.ResumeError) as caught:
            await run.checkpoint()
        assert caught.value.code == "checkpoint_ended"
        run = await h.start("return await tools.wait({})", tools=tools.all, engine="deno")
        with pytest.raises(hutch.ResumeError, match="quickjs"):
            await run.checkpoint()
