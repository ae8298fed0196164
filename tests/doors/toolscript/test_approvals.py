from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.processes import PATIENCE

from hutch.doors.toolscript.approvals import (
    MAX_PENDING_OF_RUN,
    Answer,
    Approval,
    Approvals,
    Denied,
    Policy,
)
from hutch.errors import SettingError

ASK = Policy({"*": "ask"})


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
def test_the_most_specific_rule_counts(rules: dict[str, str], rule: str) -> None:
    assert Policy(rules).rule("github", "delete_repo") == rule


def test_rules_for_an_ambiguous_name_hold_for_all_that_it_may_mean() -> None:
    policy = Policy({"a__b__c": "deny"})
    assert policy.rule("a", "b__c") == policy.rule("a__b", "c") == "deny"


def test_a_rule_that_is_none_is_named() -> None:
    with pytest.raises(SettingError, match=r"approvals\.github: expected one of allow, ask, deny, got 'no'"):
        Policy({"github": "no"})


def test_rules_about_nothing_are_found() -> None:
    policy = Policy(
        {"*": "allow", "githb": "deny", "github__gone": "deny", "github__del*": "ask", "mail": "ask"}
    )
    assert policy.idle([("github", "delete"), ("mail", "")]) == ["githb", "github__gone"]


def check(
    approvals: Approvals, run: str | None = "r", tool: str = "send", arguments: Any = None
) -> asyncio.Task[None]:
    return asyncio.create_task(approvals.check("mail", tool, arguments or {}, run))


async def asked(approvals: Approvals, count: int = 1) -> list[Approval]:
    with approvals.listen() as queue:
        async with asyncio.timeout(PATIENCE):
            while len(approvals.pending()) < count:
                await queue.get()
    return approvals.pending()


async def test_what_is_allowed_is_not_asked_and_what_is_denied_neither() -> None:
    approvals = Approvals(Policy({"mail__send": "deny"}))
    await approvals.check("mail", "read", {})
    with pytest.raises(Denied, match="The policy denies mail__send") as denied:
        await approvals.check("mail", "send", {})
    assert (denied.value.server, denied.value.tool, denied.value.kind) == ("mail", "send", "denied")
    assert approvals.pending() == []


async def test_a_call_waits_until_somebody_decides() -> None:
    approvals = Approvals(ASK)
    first, second = check(approvals, arguments={"to": "a"}), check(approvals, run=None)
    one, other = await asked(approvals, 2)
    assert (one.server, one.tool, one.arguments, one.run) == ("mail", "send", {"to": "a"}, "r")
    assert approvals.find(one.id) is one
    assert approvals.decide(one.id, Answer("allow"))
    await first
    assert not second.done()
    assert approvals.decide(other.id, Answer("deny", "not today"))
    with pytest.raises(Denied, match="The call of mail__send was denied: not today"):
        await second
    assert approvals.pending() == []
    assert not approvals.decide(one.id, Answer("allow"))
    assert approvals.was_decided(one.id)
    assert not approvals.was_decided("other")


async def test_the_first_decision_counts() -> None:
    approvals = Approvals(ASK)
    call = check(approvals)
    [one] = await asked(approvals)
    assert approvals.decide(one.id, Answer("deny"))
    assert not approvals.decide(one.id, Answer("allow"))
    with pytest.raises(Denied):
        await call


async def test_nobodys_answer_is_a_no() -> None:
    approvals = Approvals(ASK, seconds=0.01)
    with approvals.listen() as queue:
        with pytest.raises(Denied, match=r"Nobody approved mail__send within 0\.01 s"):
            await check(approvals)
        assert [queue.get_nowait().name for _ in range(2)] == ["asked", "expired"]  # type: ignore[union-attr]


async def test_somebody_in_this_process_can_be_asked() -> None:
    async def ask(approval: Approval) -> Any:
        return "allow" if approval.tool == "read" else Answer("deny", "no")

    approvals = Approvals(ASK, ask=ask)
    await check(approvals, tool="read")
    with pytest.raises(Denied, match="denied: no"):
        await check(approvals)


async def test_another_answer_ends_the_asking() -> None:
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
    approvals.decide(one.id, Answer("allow"))
    await call
    assert ended.is_set()


async def test_asking_that_fails_is_a_no(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(_: Approval) -> Any:
        raise OSError("no terminal")

    with pytest.raises(Denied, match="denied: nobody could be asked"):
        await check(Approvals(ASK, ask=ask))
    assert "nobody could be asked for an approval" in caplog.text


async def test_a_call_that_is_given_up_is_withdrawn() -> None:
    approvals = Approvals(ASK)
    with approvals.listen() as queue:
        call = check(approvals)
        await asked(approvals)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert [queue.get_nowait().name for _ in range(2)] == ["asked", "withdrawn"]  # type: ignore[union-attr]
    assert approvals.pending() == []


async def test_an_answer_can_hold_for_the_rest_of_the_run() -> None:
    approvals = Approvals(ASK)
    call = check(approvals)
    approvals.decide((await asked(approvals))[0].id, Answer("allow", remember=True))
    await call
    await approvals.check("mail", "send", {}, "r")
    other_run, other_tool = check(approvals, "other"), check(approvals, tool="read")
    await asked(approvals, 2)
    approvals.forget("r")
    again = check(approvals)
    for each in await asked(approvals, 3):
        approvals.decide(each.id, Answer("allow"))
    await asyncio.gather(other_run, other_tool, again)


async def test_who_listens_hears_what_waits_already_and_what_becomes_of_it() -> None:
    approvals = Approvals(ASK)
    call = check(approvals)
    [one] = await asked(approvals)
    with approvals.listen() as queue:
        approvals.decide(one.id, Answer("allow"))
        await call
        heard = [queue.get_nowait() for _ in range(2)]
    assert [(each.name, each.approval) for each in heard if each] == [("asked", one), ("allowed", one)]


async def test_the_wait_of_a_run_begins_with_its_first_call_and_ends_with_its_last() -> None:
    approvals = Approvals(ASK)
    told: list[str] = []
    approvals.on_wait_begin.append(lambda run: told.append(f"begin {run}"))
    approvals.on_wait_end.append(lambda run: told.append(f"end {run}"))
    calls = [check(approvals), check(approvals)]
    first, second = await asked(approvals, 2)
    assert told == ["begin r"]
    approvals.decide(first.id, Answer("allow"))
    await calls[0]
    assert told == ["begin r"]
    approvals.decide(second.id, Answer("allow"))
    await calls[1]
    assert told == ["begin r", "end r"]


async def test_a_script_that_nobody_answered_is_not_asked_about_again_while_others_are() -> None:
    """Its time stands still while it waits: asking for ever it would run for ever."""
    approvals = Approvals(ASK, seconds=0.01)
    with pytest.raises(Denied, match="Nobody approved mail__send within"):
        await check(approvals)
    with pytest.raises(Denied, match="Nobody approved an earlier call of this script in time"):
        await check(approvals)
    for run in ("another", None, None):
        with pytest.raises(Denied, match="Nobody approved mail__send within"):
            await check(approvals, run)
    approvals.forget("r")
    with pytest.raises(Denied, match="Nobody approved mail__send within"):
        await check(approvals)


async def test_one_script_leaves_room_for_the_questions_of_others() -> None:
    approvals = Approvals(ASK)
    waiting = [check(approvals) for _ in range(MAX_PENDING_OF_RUN)]
    await asyncio.sleep(0)
    with pytest.raises(Denied, match="100 calls of this script are waiting"):
        await check(approvals)
    other = check(approvals, "another")
    await asyncio.sleep(0)
    assert len(approvals.pending()) == MAX_PENDING_OF_RUN + 1
    for task in (*waiting, other):
        task.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)
