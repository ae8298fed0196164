"""Approval policy for tool calls: allow, deny, or ask a person first."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from hutch.errors import SettingError, UpstreamError
from hutch.owner_shares import OwnerShares
from hutch.session.json_value import encode_value
from hutch.session.large_json import encode_large_value
from hutch.text import now_rfc3339, printable

logger = logging.getLogger("hutch.toolscript")
# Log of decisions. It is written at every log level except `error`, because decisions on calls that wait in
# memory are stored nowhere else.
decisions = logging.getLogger("hutch.approvals")

T = TypeVar("T")
Rule: TypeAlias = Literal["allow", "ask", "deny"]
Decision: TypeAlias = Literal["allow", "deny"]

ASK_SECONDS = 300.0
MAX_PENDING = 1_000
# Limit for one run, so that the calls of other runs can wait too.
MAX_PENDING_PER_RUN = 100
MAX_ARGUMENT_BYTES = 256 * 1024
"""Maximum size of the arguments of a call that needs an approval, as JSON text."""
# Number of decided calls whose ids are remembered.
_MAX_DECIDED = 1_000
# Maximum number of runs that are tracked. Above this number, runs without waiting calls are dropped first.
_MAX_RUNS = 10_000
# Maximum number of events queued for one listener. A listener that is too slow is disconnected, and gets all
# open approvals when it reconnects.
_MAX_EVENTS = 1_000


class CallDenied(UpstreamError):
    code = "denied"

    def __init__(self, server: str, tool: str, message: str) -> None:
        super().__init__(server, tool, message, kind="denied")


class ApprovalPolicy:
    """Rules for tool calls.

    A rule is named `server__tool`, `server` or `*`, with the original names. `*` in a name matches any
    characters. The most specific rule applies: a rule for the tool before a rule for its server, then the
    rule with more letters.
    """

    def __init__(self, rules: Mapping[str, str] | None = None) -> None:
        for name, rule in (rules or {}).items():
            if rule not in get_args(Rule):
                raise SettingError(f"approvals.{name}: expected one of allow, ask, deny, got {rule!r}.")
        self.rules: dict[str, str] = dict(rules or {})

    def rule(self, server: str, tool: str) -> Rule:
        matching = [
            (specific, _STRICTNESS[rule], rule)
            for name, rule in self.rules.items()
            if (specific := _specificity(name, server, tool)) is not None
        ]
        return max(matching)[2] if matching else "allow"  # type: ignore[return-value]

    def unmatched(self, tools: Iterable[tuple[str, str]]) -> list[str]:
        """Returns the rules that match none of the (server, tool) pairs and are probably misspelt."""
        known = list(tools)
        return [
            name
            for name in self.rules
            if name != "*" and all(_specificity(name, server, tool) is None for server, tool in known)
        ]


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


def _specificity(name: str, server: str, tool: str) -> tuple[int, int] | None:
    """Returns the specificity of a rule for a tool as a sort key. None if the rule does not match."""
    letters = len(name.replace("*", ""))
    if name in (f"{server}__{tool}", server) or name == "*":
        return (0 if name == "*" else 1 if name == server else 3), letters
    if "*" not in name:
        return None
    # Escape brackets and question marks, which have no special meaning in rules.
    pattern = name.replace("[", "[[]").replace("?", "[?]")
    if fnmatchcase(f"{server}__{tool}", pattern):
        return (2 if "__" in name else 1), letters
    return (1, letters) if fnmatchcase(server, pattern) else None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that waits for a decision."""

    id: str
    server: str
    tool: str
    arguments: Any
    run: str | None
    asked_at: str
    seconds: float | None
    """Timeout in seconds, after which the call is denied. None for a call of a suspended run, which waits as
    long as the run.
    """


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """A decision on a waiting call."""

    decision: Decision
    reason: str | None = None
    remember: bool = False
    """True if the decision applies to all calls of this tool in the same run."""
    decided_by: str | None = None
    """Name of the user who has decided, if known."""


class ApprovalEvent(msgspec.Struct, frozen=True):
    """Change of a waiting call.

    `name` is first `asked`, then `allowed`, `denied`, `expired`, or `withdrawn` if the caller has
    disconnected.
    """

    name: str
    approval: Approval


async def check_size(server: str, tool: str, arguments: Any) -> None:
    """Raises CallDenied if the arguments of a call are too large for a person to judge. Until a person
    decides, arguments stay in memory, or in the store if the run is suspended.
    """
    size = len(await encode_large_value(arguments))
    if size > MAX_ARGUMENT_BYTES:
        limit = f"a call that needs an approval may have {MAX_ARGUMENT_BYTES}"
        raise CallDenied(
            server, tool, f"The arguments of {server}__{tool} have {size} bytes of JSON; {limit}"
        )


def log_decision(approval: Approval, answer: ApprovalAnswer) -> None:
    decisions.info(
        "the call of %s__%s in run %s was decided: %s by %s (SHA-256 of its arguments: %s)",
        printable(approval.server),
        printable(approval.tool),
        printable(approval.run or "unknown"),
        answer.decision,
        printable(answer.decided_by or "unknown"),
        arguments_digest(approval.arguments),
    )


def arguments_digest(arguments: Any) -> str:
    """Returns the SHA-256 of the JSON text of arguments."""
    return hashlib.sha256(encode_value(arguments)).hexdigest()


AskUser: TypeAlias = Callable[[Approval], Awaitable[ApprovalAnswer | Decision]]
"""Asks a person in this process for a decision. Calls may run concurrently. A call is cancelled if another
answer arrives first.
"""


class Approvals:
    """The waiting calls, and the listeners that are notified about them."""

    def __init__(
        self, policy: ApprovalPolicy, *, seconds: float = ASK_SECONDS, ask: AskUser | None = None
    ) -> None:
        self.policy = policy
        self.ask = ask
        self.on_wait_begin: list[Callable[[str, str], None]] = []
        """Callbacks that get the run id and the tool's name when the first call of a run starts to wait."""
        self.on_wait_end: list[Callable[[str], None]] = []
        self._seconds = seconds
        self._open: dict[str, tuple[Approval, asyncio.Future[ApprovalAnswer]]] = {}
        self._decided: deque[str] = deque(maxlen=_MAX_DECIDED)
        self.owner_of: Callable[[str | None], str] = lambda run: run or ""
        """Returns the owner of a run, so that the waiting calls of one owner cannot take all places."""
        self._asking = 0
        """Number of calls that wait in memory. Calls of suspended runs are limited when they are stored."""
        self._shares = OwnerShares(MAX_PENDING)
        self._remembered: dict[tuple[str, str, str], ApprovalAnswer] = {}
        self._waits: dict[str, _RunWait] = {}
        self._listeners: set[asyncio.Queue[ApprovalEvent | None]] = set()

    async def check(self, server: str, tool: str, arguments: Any, run: str | None = None) -> None:
        """Waits until the call is allowed. Raises CallDenied if the policy or a person denies it."""
        rule = self.policy.rule(server, tool)
        if rule == "deny":
            raise CallDenied(server, tool, f"The policy denies {server}__{tool}")
        if rule == "ask":
            remembered = None if run is None else self._remembered.get((run, server, tool))
            if remembered is None:
                await check_size(server, tool, arguments)
            answer = remembered or await self._ask_person(server, tool, arguments, run)
            if answer.remember and run is not None:
                self._remembered[run, server, tool] = answer
            if answer.decision == "deny":
                reason = f": {answer.reason}" if answer.reason else ""
                raise CallDenied(server, tool, f"The call of {server}__{tool} was denied{reason}")

    def must_ask(self, server: str, tool: str, run: str) -> bool:
        """Returns True if the policy requires a decision of a person, and no earlier decision covers all
        calls of this tool in the run.
        """
        return (run, server, tool) not in self._remembered and self.policy.rule(server, tool) == "ask"

    async def wait_for_decision(self, approval: Approval) -> ApprovalAnswer:
        """Shows a call of a suspended run until a person has decided on it."""
        decided: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._open[approval.id] = (approval, decided)
        outcome = "withdrawn"
        try:
            self._notify("asked", approval)
            answer = await decided
            outcome = "allowed" if answer.decision == "allow" else "denied"
            if answer.remember and approval.run is not None:
                self._remembered[approval.run, approval.server, approval.tool] = answer
            return answer
        finally:
            del self._open[approval.id]
            self._decided.append(approval.id)
            self._notify(outcome, approval)

    async def wait_for_input(self, server: str, tool: str, run: str | None, answer: Awaitable[T]) -> T:
        """Waits until a person answers a question of a tool. The time limit is the same as for a decision on
        a call. Meanwhile, the time limit of the run is paused. Raises UpstreamError if the person does not
        answer.
        """
        wait = None if run is None else self._wait_of(run)
        with self._waiting(run, wait, f"{server}__{tool}"):
            try:
                async with asyncio.timeout(self._seconds):
                    return await answer
            except TimeoutError:
                message = f"the tool asked the user, who did not answer within {self._seconds:g} s"
                raise UpstreamError(server, tool, message, kind="timeout") from None

    def pausing(self, server: str, tool: str, run: str) -> AbstractContextManager[None]:
        """Pauses the time limit of a run while its call waits for a person, as `check` does."""
        return self._waiting(run, self._wait_of(run), f"{server}__{tool}")

    def pending(self) -> list[Approval]:
        return [approval for approval, _ in self._open.values()]

    def find(self, id: str) -> Approval | None:
        known = self._open.get(id)
        return None if known is None else known[0]

    def was_decided(self, id: str) -> bool:
        return id in self._decided

    def decide(self, id: str, answer: ApprovalAnswer) -> bool:
        """Decides on a waiting call. Returns False if no call with this id is waiting."""
        _, future = self._open.get(id, (None, None))
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def forget(self, run: str) -> None:
        """Removes all data about a finished run."""
        self._waits.pop(run, None)
        for key in [key for key in self._remembered if key[0] == run]:
            del self._remembered[key]

    # --- events ---

    @contextlib.contextmanager
    def listen(self) -> Iterator[asyncio.Queue[ApprovalEvent | None]]:
        """Yields a queue that contains the waiting calls and then all events. None ends the queue if the
        listener is too slow.
        """
        queue: asyncio.Queue[ApprovalEvent | None] = asyncio.Queue()
        for approval in self.pending():
            queue.put_nowait(ApprovalEvent("asked", approval))
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    def _notify(self, name: str, approval: Approval) -> None:
        for queue in list(self._listeners):
            if queue.qsize() < _MAX_EVENTS + MAX_PENDING:
                queue.put_nowait(ApprovalEvent(name, approval))
            else:
                self._listeners.discard(queue)
                queue.put_nowait(None)

    # --- asking ---

    async def _ask_person(self, server: str, tool: str, arguments: Any, run: str | None) -> ApprovalAnswer:
        owner = self.owner_of(run)
        if self._asking >= MAX_PENDING or not self._shares.may_take(owner):
            whose = "" if self._asking >= MAX_PENDING else " of yours"
            message = f"Too many calls{whose} are waiting for approval already"
            raise CallDenied(server, tool, message)
        wait = None if run is None else self._wait_of(run)
        if wait is not None and wait.calls >= MAX_PENDING_PER_RUN:
            message = f"{MAX_PENDING_PER_RUN} calls of this script are waiting for approval already"
            raise CallDenied(server, tool, message)
        if wait is not None and wait.has_expired:
            # Deny the call, because the timeout is paused while the script waits. By asking repeatedly, a
            # script could run forever.
            raise CallDenied(server, tool, "An earlier call of this script was not approved in time")
        approval = Approval(
            id=secrets.token_urlsafe(9),
            server=server,
            tool=tool,
            arguments=arguments,
            run=run,
            asked_at=now_rfc3339(),
            seconds=self._seconds,
        )
        decided: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._open[approval.id] = (approval, decided)
        self._asking += 1
        self._shares.take(owner)
        outcome = "withdrawn"
        try:
            with self._waiting(run, wait, f"{server}__{tool}"):
                self._notify("asked", approval)
                answer = await self._first_answer(approval, decided)
            outcome = "allowed" if answer.decision == "allow" else "denied"
            if answer.decided_by is not None:
                log_decision(approval, answer)
            return answer
        except TimeoutError:
            outcome = "expired"
            if wait is not None:
                wait.has_expired = True
            message = f"{server}__{tool} was not approved within {self._seconds:g} s"
            raise CallDenied(server, tool, message) from None
        finally:
            self._asking -= 1
            self._shares.give_back(owner)
            del self._open[approval.id]
            self._decided.append(approval.id)
            self._notify(outcome, approval)

    async def _first_answer(
        self, approval: Approval, decided: asyncio.Future[ApprovalAnswer]
    ) -> ApprovalAnswer:
        """Waits for the first answer from `ask` or `decide`."""
        asking = None if self.ask is None else asyncio.ensure_future(self.ask(approval))
        sources: list[asyncio.Future[Any]] = [decided] if asking is None else [decided, asking]
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.wait(sources, return_when=asyncio.FIRST_COMPLETED)
            if asking is None or decided.done():
                return decided.result()
            answer = asking.result()
            return answer if isinstance(answer, ApprovalAnswer) else ApprovalAnswer(answer)
        except TimeoutError:
            raise
        except Exception as error:
            logger.error("asking for an approval failed", exc_info=error)
            return ApprovalAnswer("deny", "the question could not be asked")
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    def _wait_of(self, run: str) -> _RunWait:
        if run not in self._waits and len(self._waits) >= _MAX_RUNS:
            self._waits = {run: wait for run, wait in self._waits.items() if wait.calls}
        return self._waits.setdefault(run, _RunWait())

    @contextlib.contextmanager
    def _waiting(self, run: str | None, wait: _RunWait | None, tool: str) -> Iterator[None]:
        if run is None or wait is None:
            yield
            return
        if wait.begin():
            _call_all(self.on_wait_begin, run, tool)
        try:
            yield
        finally:
            if wait.end():
                _call_all(self.on_wait_end, run)


class _RunWait:
    """Counts the waiting calls of a run, to tell when the first wait begins and the last wait ends."""

    def __init__(self) -> None:
        self.calls = 0
        self.has_expired = False
        """True if the approval of a call of this run timed out."""

    def begin(self) -> bool:
        """Counts a waiting call. Returns True if it is the only one."""
        self.calls += 1
        return self.calls == 1

    def end(self) -> bool:
        """Removes a waiting call. Returns True if it was the last one."""
        self.calls -= 1
        return self.calls == 0


def _call_all(callbacks: Iterable[Callable[..., None]], *arguments: str) -> None:
    for callback in list(callbacks):
        callback(*arguments)
