from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import SettingError
from hutch.protocols.toolscript.gateway.approvals import (
    MAX_ARGUMENT_BYTES,
    MAX_PENDING_PER_RUN,
    Approval,
    ApprovalAnswer,
    ApprovalPolicy,
    Approvals,
    CallDenied,
)

ASK = ApprovalPolicy({"*": "ask"})


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ({}, "allow"),
        ({"*": "deny"}, "deny"),
        ({"*": "deny", "github": "allow"}, "allow"),
        ({"*": "allow", "github": "ask", "github__delete_repo": "deny"}, "deny"),
        ({"github": "deny", "github__delete_repo": "ask"}, "ask"),
        ({"github__*": "ask", "github": "deny"}, "ask"),
        ({"github__delete_*": "deny", "github__*": "allow"}, "deny"),
        ({"github__delete_*": "deny", "github__delete_repo": "allow"}, "allow"),
        ({"git*": "deny"}, "deny"),
        ({"*__delete_*": "ask", "github": "allow"}, "ask"),
        ({"gitlab": "deny", "github__delete": "deny", "github__delete_repo2": "deny"}, "allow"),
        ({"github__delete_rep?": "deny", "github__[d]elete_repo": "deny"}, "allow"),
        ({"GITHUB": "deny"}, "allow"),
    ],
    ids=str,
)
def test_most_specific_rule_wins(rules: dict[str, str], rule: str) -> None:
    assert ApprovalPolicy(rules).rule("github", "delete_repo") == rule


def test_rules_for_an_ambiguous_name_apply_to_all_matching_tools() -> None:
    policy = ApprovalPolicy({"a__b__c": "deny"})
    assert policy.rule("a", "b__c") == policy.rule("a__b", "c") == "deny"


def test_invalid_rule_raises_an_error_naming_it() -> None:
    with pytest.raises(SettingError, match=r"approvals\.github: expected one of allow, ask, deny, got 'no'"):
        ApprovalPolicy({"github": "no"})


def test_unmatched_rules_are_reported() -> None:
    policy = ApprovalPolicy(
        {"*": "allow", "githb": "deny", "github__gone": "deny", "github__del*": "ask", "mail": "ask"}
    )
    assert policy.unmatched([("github", "delete"), ("mail", "")]) == ["githb", "github__gone"]


def check(
    approvals: Approvals, run: str | None = "r", tool: str = "send", arguments: Any = None
) -> asyncio.Task[None]:
    return asyncio.create_task(approvals.check("mail", tool, arguments or {}, run))


async def asked(approvals: Approvals, count: int = 1) -> list[Approval]:
    with approvals.listen() as queue:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(approvals.pending()) < count:
                await queue.get()
    return approvals.pending()


async def test_allowed_and_denied_calls_are_not_asked_about() -> None:
    approvals = Approvals(ApprovalPolicy({"mail__send": "deny"}))
    await approvals.check("mail", "read", {})
    with pytest.raises(CallDenied, match="The policy denies mail__send") as denied:
        await approvals.check("mail", "send", {})
    assert (denied.value.server, denied.value.tool, denied.value.kind) == ("mail", "send", "denied")
    assert approvals.pending() == []


async def test_call_waits_for_a_decision() -> None:
    approvals = Approvals(ASK)
    first, second = check(approvals, arguments={"to": "a"}), check(approvals, run=None)
    one, other = await asked(approvals, 2)
    assert (one.server, one.tool, one.arguments, one.run) == ("mail", "send", {"to": "a"}, "r")
    assert approvals.find(one.id) is one
    assert approvals.decide(one.id, ApprovalAnswer("allow"))
    await first
    assert not second.done()
    assert approvals.decide(other.id, ApprovalAnswer("deny", "not today"))
    with pytest.raises(CallDenied, match="The call of mail__send was denied: not today"):
        await second
    assert approvals.pending() == []
    assert not approvals.decide(one.id, ApprovalAnswer("allow"))
    assert approvals.was_decided(one.id)
    assert not approvals.was_decided("other")


async def test_first_decision_counts() -> None:
    approvals = Approvals(ASK)
    call = check(approvals)
    [one] = await asked(approvals)
    assert approvals.decide(one.id, ApprovalAnswer("deny"))
    assert not approvals.decide(one.id, ApprovalAnswer("allow"))
    with pytest.raises(CallDenied):
        await call


async def test_call_is_denied_after_the_timeout() -> None:
    approvals = Approvals(ASK, seconds=0.01)
    with approvals.listen() as queue:
        with pytest.raises(CallDenied, match=r"mail__send was not approved within 0\.01 s"):
            await check(approvals)
        assert [queue.get_nowait().name for _ in range(2)] == ["asked", "expired"]  # type: ignore[union-attr]


async def test_ask_callback_decides() -> None:
    async def ask(approval: Approval) -> Any:
        return "allow" if approval.tool == "read" else ApprovalAnswer("deny", "no")

    approvals = Approvals(ASK, ask=ask)
    await check(approvals, tool="read")
    with pytest.raises(CallDenied, match="denied: no"):
        await check(approvals)


async def test_another_answer_cancels_the_ask_callback() -> None:
    ended = asyncio.Event()

    async def ask(_: Approval) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    approvals = Approvals(ASK, ask=ask)
    call = check(approvals)
    [one] = await asked(approvals)
    await asyncio.sleep(0)
    approvals.decide(one.id, ApprovalAnswer("allow"))
    await call
    assert ended.is_set()


async def test_failing_ask_callback_denies_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(_: Approval) -> Any:
        raise OSError("no terminal")

    with pytest.raises(CallDenied, match="denied: the question could not be asked"):
        await check(Approvals(ASK, ask=ask))
    assert "asking for an approval failed" in caplog.text


async def test_cancelled_call_is_withdrawn() -> None:
    approvals = Approvals(ASK)
    with approvals.listen() as queue:
        call = check(approvals)
        await asked(approvals)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert [queue.get_nowait().name for _ in range(2)] == ["asked", "withdrawn"]  # type: ignore[union-attr]
    assert approvals.pending() == []


async def test_decision_can_be_remembered_for_the_rest_of_the_run() -> None:
    approvals = Approvals(ASK)
    call = check(approvals)
    approvals.decide((await asked(approvals))[0].id, ApprovalAnswer("allow", remember=True))
    await call
    await approvals.check("mail", "send", {}, "r")
    other_run, other_tool = check(approvals, "other"), check(approvals, tool="read")
    await asked(approvals, 2)
    approvals.forget("r")
    again = check(approvals)
    for each in await asked(approvals, 3):
        approvals.decide(each.id, ApprovalAnswer("allow"))
    await asyncio.gather(other_run, other_tool, again)


async def test_listener_gets_pending_calls_and_later_events() -> None:
    approvals = Approvals(ASK)
    call = check(approvals)
    [one] = await asked(approvals)
    with approvals.listen() as queue:
        approvals.decide(one.id, ApprovalAnswer("allow"))
        await call
        received = [queue.get_nowait() for _ in range(2)]
    assert [(each.name, each.approval) for each in received if each] == [("asked", one), ("allowed", one)]


async def test_wait_of_a_run_begins_with_its_first_call_and_ends_with_its_last() -> None:
    approvals = Approvals(ASK)
    log: list[str] = []
    approvals.on_wait_begin.append(lambda run, tool: log.append(f"begin {run} {tool}"))
    approvals.on_wait_end.append(lambda run: log.append(f"end {run}"))
    calls = [check(approvals), check(approvals)]
    first, second = await asked(approvals, 2)
    assert log == ["begin r mail__send"]
    approvals.decide(first.id, ApprovalAnswer("allow"))
    await calls[0]
    assert log == ["begin r mail__send"]
    approvals.decide(second.id, ApprovalAnswer("allow"))
    await calls[1]
    assert log == ["begin r mail__send", "end r"]


async def test_run_with_an_expired_approval_is_denied_without_asking() -> None:
    """While a script waits for an approval, its timeout is paused. So a script that asked repeatedly could
    run forever.
    """
    approvals = Approvals(ASK, seconds=0.01)
    with pytest.raises(CallDenied, match="mail__send was not approved within"):
        await check(approvals)
    with pytest.raises(CallDenied, match="An earlier call of this script was not approved in time"):
        await check(approvals)
    for run in ("another", None, None):
        with pytest.raises(CallDenied, match="mail__send was not approved within"):
            await check(approvals, run)
    approvals.forget("r")
    with pytest.raises(CallDenied, match="mail__send was not approved within"):
        await check(approvals)


async def test_pending_approvals_are_limited_per_run() -> None:
    approvals = Approvals(ASK)
    waiting = [check(approvals) for _ in range(MAX_PENDING_PER_RUN)]
    await asyncio.sleep(0)
    with pytest.raises(CallDenied, match="100 calls of this script are waiting"):
        await check(approvals)
    other = check(approvals, "another")
    await asyncio.sleep(0)
    assert len(approvals.pending()) == MAX_PENDING_PER_RUN + 1
    for task in (*waiting, other):
        task.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)


async def test_arguments_that_no_person_can_judge_are_denied() -> None:
    approvals = Approvals(ASK)
    with pytest.raises(CallDenied, match="a call that needs an approval may have 262144"):
        await approvals.check("github", "create", {"text": "x" * MAX_ARGUMENT_BYTES}, "run")
    assert approvals.pending() == []


async def test_calls_of_one_owner_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.protocols.toolscript.gateway.approvals.MAX_PENDING", 10)
    approvals = Approvals(ASK)
    approvals.owner_of = lambda run: (run or "").partition("-")[0]
    # The call of a suspended run waits in the store, so it does not count towards the limits.
    stored = Approval(id="x", server="mail", tool="send", arguments={}, run="s", asked_at="", seconds=None)
    waiting = [asyncio.create_task(approvals.wait_for_decision(stored))]
    waiting += [check(approvals, f"hog-{number}") for number in range(8)]  # type: ignore[misc]
    await asked(approvals, 9)
    with pytest.raises(CallDenied, match="Too many calls of yours are waiting for approval already"):
        await check(approvals, "hog-8")
    waiting.append(check(approvals, "other-0"))  # type: ignore[arg-type]
    await asked(approvals, 10)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    freed = check(approvals, "hog-9")
    await asked(approvals)
    freed.cancel()
    await asyncio.gather(freed, return_exceptions=True)
