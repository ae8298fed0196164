"""Suspended runs that continue in another Hutch with the same store, as after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kernel.durable.suspension import ASK, Tools, refused, resumed, suspend, update

import hutch
from hutch.errors import InvalidExecution, VaultError
from hutch.kernel.durable import checkpoint as checkpoints


async def test_run_continues_elsewhere_without_repeating_calls(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools
) -> None:
    code = """
        console.log("before");
        const seen = new Map([["a", 1]]);
        const [answer, n] = await Promise.all([tools.ask({what: "lunch"}), tools.count({n: 1})]);
        console.log("after");
        return [answer, n, seen.get("a"), await tools.count({n: 2})];"""
    result = await first.run(code, tools=tools.all)
    assert result.error is not None
    assert (result.error.code, result.logs) == ("suspended", ["before"])
    assert "tools.ask" in result.error.message
    (call,) = result.pending_calls
    assert (call.provider, call.tool, call.input) == ("tools", "ask", {"what": "lunch"})
    assert call.message == "approval of lunch"
    result = await resumed(second, tools, result.run_id, {call.call_id: "yes"})
    assert result.ok, result
    assert (result.result, result.logs) == (["yes", 1, 1, 2], ["before", "after"])
    assert tools.calls == [1, 2]
    assert len(set(tools.keys)) == 2
    assert [(each.tool, each.ok) for each in result.calls] == [
        ("count", True),
        ("ask", True),
        ("count", True),
    ]


async def test_run_can_be_suspended_again_and_again(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools
) -> None:
    code = "let s = ''; for (let i = 0; i < 3; i++) s += await tools.ask({what: `${i}`}); return s"
    run_id, call_id = await suspend(first, tools, code)
    for number, h in enumerate([second, first]):
        result = await resumed(h, tools, run_id, {call_id: f"{number}"})
        assert result.run_id == run_id
        (call,) = result.pending_calls
        assert call.input == {"what": f"{number + 1}"}
        call_id = call.call_id
    assert (await resumed(second, tools, run_id, {call_id: "2"})).result == "012"


async def test_result_of_one_of_two_pending_calls_lets_the_run_go_on(
    first: hutch.Hutch, tools: Tools
) -> None:
    code = """
        const slow = tools.ask({what: "a"});
        const quick = tools.ask({what: "b"}).then((x) => tools.count({n: x}));
        return [await quick, await slow];"""
    result = await first.run(code, tools=tools.all)
    slow, quick = (call.call_id for call in result.pending_calls)
    result = await resumed(first, tools, result.run_id, {quick: 7})
    assert [call.call_id for call in result.pending_calls] == [slow]
    assert tools.calls == [7]
    assert (await resumed(first, tools, result.run_id, {slow: "late"})).result == [7, "late"]


async def test_token_delivers_a_result_once(first: hutch.Hutch, second: hutch.Hutch, tools: Tools) -> None:
    run_id, _ = await suspend(first, tools, "return await tools.later({token: 'secret 1'})")
    assert await second.resolve("secret 1", {"ok": True}) == run_id
    async with refused("already_answered"):
        await second.resolve("secret 1", 2)
    async with refused("unknown_call"):
        await second.resolve("secret 2", 2)
    assert (await resumed(second, tools, run_id)).result == {"ok": True}


async def test_error_is_thrown_in_the_guest(first: hutch.Hutch, tools: Tools) -> None:
    code = "try { await tools.ask({what: 'x'}) } catch (e) { return [e.code, e.message] }"
    run_id, call_id = await suspend(first, tools, code)
    result = await resumed(first, tools, run_id, errors={call_id: "denied by Ada"})
    assert result.result == ["tool_error", "denied by Ada"]


async def test_invalid_answers_are_refused_and_the_run_stays_suspended(
    first: hutch.Hutch, tools: Tools
) -> None:
    run_id, call_id = await suspend(first, tools)
    async with refused("unknown_call"):
        await first.resume(run_id, {"c999": 1})
    with pytest.raises(InvalidExecution, match=rf"results\.{call_id}"):
        await first.resume(run_id, {call_id: object()})
    async with refused("checkpoint_not_found"):
        await first.resume("unknown", {call_id: 1})
    async with refused("checkpoint_not_found"):
        await first.resume(run_id, {call_id: 1}, owner="somebody else")
    assert (await resumed(first, tools, run_id, {call_id: "yes"})).result == "yes"


async def test_of_two_resumes_at_once_one_wins(first: hutch.Hutch, second: hutch.Hutch, tools: Tools) -> None:
    run_id, call_id = await suspend(first, tools)
    await (await first._opened()).calls.answer(run_id, "default", {call_id: _answer("yes")})
    attempts = [h.resume(run_id, tools=tools.all) for h in (first, second, first, second)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    (run,) = [each for each in outcomes if isinstance(each, hutch.Run)]
    refusals = [each.code for each in outcomes if isinstance(each, hutch.ResumeError)]
    # Three of the attempts are refused. An attempt after the end of the run is refused with
    # `checkpoint_ended`.
    assert len(refusals) == 3
    assert {*refusals} <= {"checkpoint_in_use", "checkpoint_ended"}
    assert (await run.result()).result == "yes"
    async with refused("checkpoint_ended"):
        await first.resume(run_id)


def _answer(value: str) -> Any:
    from hutch.session.suspension import Answer

    return Answer(result_json=msgspec.json.encode(value))


@pytest.mark.parametrize("column", ["data", "owner", "bundle", "generation"])
async def test_altered_checkpoint_is_refused(first: hutch.Hutch, tools: Tools, column: str) -> None:
    run_id, call_id = await suspend(first, tools)
    if column == "data":
        await update(
            first,
            "UPDATE checkpoint_parts SET data = substr(data, 1, 60) || 'AAAA' || substr(data, 65)"
            " WHERE run_id = :run_id",
            run_id=run_id,
        )
    else:
        value: Any = 7 if column == "generation" else "default" if column == "owner" else "other"
        await update(
            first,
            f"UPDATE checkpoints SET {column} = :value WHERE run_id = :run_id",
            run_id=run_id,
            value=value,
        )
    if column == "owner":
        # The owner is authenticated with the data, so a checkpoint with a changed owner cannot be used.
        other, other_call = await suspend(first, tools, owner="ada")
        await update(first, "UPDATE checkpoints SET owner = 'default' WHERE run_id = :run_id", run_id=other)
        run_id, call_id = other, other_call
    with pytest.raises(VaultError):
        await first.resume(run_id, {call_id: 1})


async def test_truncated_checkpoint_is_refused(first: hutch.Hutch, tools: Tools) -> None:
    code = "const rows = Array.from({length: 30_000}, () => [Math.random()]);" + ASK
    run_id, call_id = await suspend(first, tools, code)
    await update(first, "DELETE FROM checkpoint_parts WHERE run_id = :run_id AND part > 0", run_id=run_id)
    with pytest.raises(VaultError):
        await first.resume(run_id, {call_id: 1})


async def test_checkpoint_of_another_bundle_is_refused_and_kept(
    first: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "bundle_digest", lambda: "0" * 64)
        run_id, call_id = await suspend(first, tools)
    async with refused("checkpoint_incompatible"):
        await first.resume(run_id, {call_id: 1})
    monkeypatch.setattr(checkpoints, "bundle_digest", lambda: "0" * 64)
    assert (await resumed(first, tools, run_id)).result == 1


async def test_refused_resume_takes_no_memory_for_states(
    first: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, call_id = await suspend(first, tools)
    monkeypatch.setattr(checkpoints, "bundle_digest", lambda: "0" * 64)
    with pytest.raises(hutch.ResumeError) as caught:
        await first.resume(run_id, {call_id: 1})
    assert first._kernel is not None
    assert first._kernel.states.used_bytes == 0
    # Keep the exception until the memory is checked above, because the exception refers to the frames of
    # `resume`.
    assert caught.tb is not None


async def test_too_large_run_gets_an_error_from_the_tool(tmp_path: Path, tools: Tools) -> None:
    async with hutch.Hutch(home=str(tmp_path), max_checkpoint_bytes=10_000) as h:
        code = "const data = Array.from({length: 9_000}, (_, i) => [i]);" + ASK
        error = (await h.run(code, tools=tools.all)).error
        assert error is not None
        assert error.code == "tool_error"
        assert "max_checkpoint_bytes" in error.message
        assert "approval of lunch" in error.message


async def test_result_that_comes_while_the_run_continues_is_kept(first: hutch.Hutch, tools: Tools) -> None:
    code = """
        const b = tools.later({token: "kept"});
        const a = await tools.ask({what: "a"});
        await tools.wait({});
        return [a, await b];"""
    result = await first.run(code, tools=tools.all)
    (ask,) = [call for call in result.pending_calls if call.tool == "ask"]
    run = await first.resume(result.run_id, {ask.call_id: 1}, tools=tools.all)
    await tools.waiting.wait()
    await first.resolve("kept", 2)
    tools.go_on.set()
    error = (await run.result()).error
    assert error is not None
    assert error.code == "suspended"
    assert (await resumed(first, tools, result.run_id)).result == [1, 2]


# The guest calls another tool after the host has asked the runner to suspend it.
async def test_stored_run_uses_no_memory(first: hutch.Hutch, tools: Tools) -> None:
    run = await first.start("const rows = Array.from({length: 9_000}, (_, i) => [i]);" + ASK, tools=tools.all)
    await run.result()
    assert len(run.pending_calls) == 1
    session = run._handle.session
    assert session is not None
    assert session.saved is not None
    assert session.saved.memory == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return await Promise.all([1, 2].map(() => tools.later({token: 'same'})))", "the same token"),
        ("'\ud800'; " + ASK, "surrogate"),
    ],
)
async def test_run_that_cannot_be_stored_fails_with_the_reason(
    first: hutch.Hutch, tools: Tools, code: str, message: str
) -> None:
    error = (await first.run(code, tools=tools.all)).error
    assert error is not None
    assert error.code == "internal_error"
    assert message in error.message


async def test_owner_can_store_a_limited_amount(tmp_path: Path, tools: Tools) -> None:
    async with hutch.Hutch(home=str(tmp_path), max_suspended_bytes_per_owner=20_000) as h:
        results = [await h.run(ASK, tools=tools.all) for _ in range(6)]
        codes = [result.error and result.error.code for result in results]
        assert (codes[0], codes[-1]) == ("suspended", "internal_error")
        assert "max_suspended_bytes_per_owner" in str(results[-1].error)
        assert (await h.run(ASK, tools=tools.all, owner="ada")).pending_calls


async def test_deno_gets_an_error_from_the_tool(first: hutch.Hutch, tools: Tools) -> None:
    result = await first.run(ASK, tools=tools.all, engine="deno")
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("tool_error", "approval of lunch")
    assert result.pending_calls == ()
