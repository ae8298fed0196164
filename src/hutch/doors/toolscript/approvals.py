"""Approvals: which tools may be called at once, which never, and which when somebody says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from hutch.errors import SettingError, UpstreamError

logger = logging.getLogger("hutch.toolscript")

Rule: TypeAlias = Literal["allow", "ask", "deny"]
Decision: TypeAlias = Literal["allow", "deny"]

ASK_SECONDS = 300.0
MAX_PENDING = 1_000
# The same of one run: the rest is for others.
MAX_PENDING_OF_RUN = 100
# Of those decided, whose ids are still known to have been.
_REMEMBERED = 1_000
# Whose waits are known; of those that nobody forgot the ones that do not wait go first.
_MAX_RUNS = 10_000
# Events that wait for one listener; who is slower is let go, and sees all that is open when it comes back.
_MAX_EVENTS = 1_000


class Denied(UpstreamError):
    """The call is not allowed."""

    code = "denied"

    def __init__(self, server: str, tool: str, message: str) -> None:
        super().__init__(server, tool, message, kind="denied")


class Policy:
    """Rules by `server__tool`, `server` and `*`, all of them original names; a `*` stands for anything.

    The most specific one counts: that of the tool before that of its server, then the one with more letters.
    """

    def __init__(self, rules: Mapping[str, str] | None = None) -> None:
        for name, rule in (rules or {}).items():
            if rule not in get_args(Rule):
                raise SettingError(f"approvals.{name}: expected one of allow, ask, deny, got {rule!r}.")
        self.rules: dict[str, str] = dict(rules or {})

    def rule(self, server: str, tool: str) -> Rule:
        fitting = [
            (specific, _STRICTNESS[rule], rule)
            for name, rule in self.rules.items()
            if (specific := _specificity(name, server, tool)) is not None
        ]
        return max(fitting)[2] if fitting else "allow"  # type: ignore[return-value]

    def idle(self, tools: Iterable[tuple[str, str]]) -> list[str]:
        """Rules that are about none of these servers and tools: perhaps somebody mistyped."""
        known = list(tools)
        return [
            name
            for name in self.rules
            if name != "*" and all(_specificity(name, server, tool) is None for server, tool in known)
        ]


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


def _specificity(name: str, server: str, tool: str) -> tuple[int, int] | None:
    """How closely a rule's name fits a tool, or None."""
    letters = len(name.replace("*", ""))
    if name in (f"{server}__{tool}", server) or name == "*":
        return (0 if name == "*" else 1 if name == server else 3), letters
    if "*" not in name:
        return None
    # Brackets and question marks are letters here.
    pattern = name.replace("[", "[[]").replace("?", "[?]")
    if fnmatchcase(f"{server}__{tool}", pattern):
        return (2 if "__" in name else 1), letters
    return (1, letters) if fnmatchcase(server, pattern) else None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for somebody's word."""

    id: str
    server: str
    tool: str
    arguments: Any
    run: str | None
    asked_at: str
    seconds: float
    """How long it waits before it is denied."""


class Answer(msgspec.Struct, frozen=True):
    """Somebody's word."""

    decision: Decision
    reason: str | None = None
    remember: bool = False
    """Whether the same holds for this tool for the rest of the run."""


class Event(msgspec.Struct, frozen=True):
    """`asked`; then `allowed`, `denied`, `expired`, or `withdrawn` when nobody waits for it any more."""

    name: str
    approval: Approval


Ask: TypeAlias = Callable[[Approval], Awaitable[Answer | Decision]]
"""Asks somebody in this process; cancelled when another answer comes first. Several may be asked at once."""


class Approvals:
    """The calls that wait, and who is told of them."""

    def __init__(self, policy: Policy, *, seconds: float = ASK_SECONDS, ask: Ask | None = None) -> None:
        self.policy = policy
        self.ask = ask
        self.on_wait_begin: list[Callable[[str], None]] = []
        """Told the run when a call of it begins to wait while none did."""
        self.on_wait_end: list[Callable[[str], None]] = []
        self._seconds = seconds
        self._open: dict[str, tuple[Approval, asyncio.Future[Answer]]] = {}
        self._decided: deque[str] = deque(maxlen=_REMEMBERED)
        self._standing: dict[tuple[str, str, str], Answer] = {}
        self._waits: dict[str, _Wait] = {}
        self._listeners: set[asyncio.Queue[Event | None]] = set()

    async def check(self, server: str, tool: str, arguments: Any, run: str | None = None) -> None:
        """Returns when the call may be made. Raises Denied when it may not."""
        rule = self.policy.rule(server, tool)
        if rule == "deny":
            raise Denied(server, tool, f"The policy denies {server}__{tool}")
        if rule == "ask":
            standing = None if run is None else self._standing.get((run, server, tool))
            answer = standing or await self._ask_for(server, tool, arguments, run)
            if answer.remember and run is not None:
                self._standing[run, server, tool] = answer
            if answer.decision == "deny":
                why = f": {answer.reason}" if answer.reason else ""
                raise Denied(server, tool, f"The call of {server}__{tool} was denied{why}")

    def pending(self) -> list[Approval]:
        return [approval for approval, _ in self._open.values()]

    def find(self, id: str) -> Approval | None:
        known = self._open.get(id)
        return None if known is None else known[0]

    def was_decided(self, id: str) -> bool:
        return id in self._decided

    def decide(self, id: str, answer: Answer) -> bool:
        """Answers for a call that waits; False when none of this id does."""
        _, answered = self._open.get(id, (None, None))
        if answered is None or answered.done():
            return False
        answered.set_result(answer)
        return True

    def forget(self, run: str) -> None:
        """The run is over."""
        self._waits.pop(run, None)
        for key in [key for key in self._standing if key[0] == run]:
            del self._standing[key]

    # --- events ---

    @contextlib.contextmanager
    def listen(self) -> Iterator[asyncio.Queue[Event | None]]:
        """What waits now, then what happens; None at last for a listener that does not keep up."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        for approval in self.pending():
            queue.put_nowait(Event("asked", approval))
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    def _tell(self, name: str, approval: Approval) -> None:
        for queue in list(self._listeners):
            if queue.qsize() < _MAX_EVENTS + MAX_PENDING:
                queue.put_nowait(Event(name, approval))
            else:
                self._listeners.discard(queue)
                queue.put_nowait(None)

    # --- asking ---

    async def _ask_for(self, server: str, tool: str, arguments: Any, run: str | None) -> Answer:
        if len(self._open) >= MAX_PENDING:
            raise Denied(server, tool, f"{MAX_PENDING} calls are waiting for approval already")
        wait = None if run is None else self._wait_of(run)
        if wait is not None and wait.calls >= MAX_PENDING_OF_RUN:
            message = f"{MAX_PENDING_OF_RUN} calls of this script are waiting for approval already"
            raise Denied(server, tool, message)
        if wait is not None and wait.in_vain:
            # Its time stands still while it waits: it could go on asking, and so running, for ever.
            raise Denied(server, tool, "Nobody approved an earlier call of this script in time")
        approval = Approval(
            id=secrets.token_urlsafe(9),
            server=server,
            tool=tool,
            arguments=arguments,
            run=run,
            asked_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seconds=self._seconds,
        )
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[approval.id] = (approval, answered)
        outcome = "withdrawn"
        try:
            with self._waiting(run, wait):
                self._tell("asked", approval)
                answer = await self._answer(approval, answered)
            outcome = "allowed" if answer.decision == "allow" else "denied"
            return answer
        except TimeoutError:
            outcome = "expired"
            if wait is not None:
                wait.in_vain = True
            message = f"Nobody approved {server}__{tool} within {self._seconds:g} s"
            raise Denied(server, tool, message) from None
        finally:
            del self._open[approval.id]
            self._decided.append(approval.id)
            self._tell(outcome, approval)

    async def _answer(self, approval: Approval, answered: asyncio.Future[Answer]) -> Answer:
        """What is said first: in this process, or by `decide`."""
        asking = None if self.ask is None else asyncio.ensure_future(self.ask(approval))
        waited: list[asyncio.Future[Any]] = [answered] if asking is None else [answered, asking]
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if asking is None or answered.done():
                return answered.result()
            said = asking.result()
            return said if isinstance(said, Answer) else Answer(said)
        except TimeoutError:
            raise
        except Exception as error:
            logger.error("nobody could be asked for an approval", exc_info=error)
            return Answer("deny", "nobody could be asked")
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    def _wait_of(self, run: str) -> _Wait:
        if run not in self._waits and len(self._waits) >= _MAX_RUNS:
            self._waits = {each: wait for each, wait in self._waits.items() if wait.calls}
        return self._waits.setdefault(run, _Wait())

    @contextlib.contextmanager
    def _waiting(self, run: str | None, wait: _Wait | None) -> Iterator[None]:
        if run is None or wait is None:
            yield
            return
        if wait.begin():
            _call_all(self.on_wait_begin, run)
        try:
            yield
        finally:
            if wait.end():
                _call_all(self.on_wait_end, run)


class _Wait:
    """How many calls of a run wait: what two wait together counts once."""

    def __init__(self) -> None:
        self.calls = 0
        self.in_vain = False
        """Whether a call waited until nobody had answered."""

    def begin(self) -> bool:
        """Whether it is the first."""
        self.calls += 1
        return self.calls == 1

    def end(self) -> bool:
        """Whether it was the last."""
        self.calls -= 1
        return self.calls == 0


def _call_all(callbacks: Iterable[Callable[[str], None]], run: str) -> None:
    for each in list(callbacks):
        each(run)
