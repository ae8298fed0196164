"""The journals of a runtime: each run written down in the store, so that it can be gone on with.

What is to be safe is written as soon as the last write is done, all that came meanwhile in one transaction:
steps that end at the same time wait for the disk together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep import holders
from hutch.doors.rep.codes import INVALID_IR
from hutch.doors.rep.prepare import NotRunnable
from hutch.doors.rep.records import record_of
from hutch.doors.rep.runs import Opened
from hutch.doors.rep.steps import StepResult, Summary
from hutch.errors import HutchError, InvalidText, StoreError
from hutch.session.jsonvalue import encode_value
from hutch.store.database import mended
from hutch.store.journal import Entry
from hutch.store.rows import FlowRunRow, now

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.rep")

LOCAL = "local"
"""Whose runs are without a user."""
OPERATOR = {LOCAL, "key"}
"""Both are whoever runs the server, to whom a server with a key gives the other name."""
PAUSE_SECONDS = 0.1
"""How long events wait for company."""
ASKED_SECONDS = 0.5
"""How often we look whether somebody asks something of a run."""
MOST_LOG_BYTES = 16 * 1024 * 1024
"""Of one run; logs beyond that are not kept."""
# What belongs to this try at a run, not to the run.
_PASSING = ("run_id", "journal", "resume", "origin")


class Lost(HutchError):
    """Another process has taken over this run."""

    code = "conflict"


class StoreJournals:
    """Those of one runtime process. They belong to its event loop."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        """`settings` is asked when there is a first run to write down."""
        self._settings = settings
        self._opening = asyncio.Lock()
        self._store: Store | None = None
        self._open: list[RunJournal] = []

    async def open(
        self,
        run_id: str,
        flow: Flow,
        inputs: Mapping[str, Any],
        *,
        options: Mapping[str, Any],
        on_asked: Callable[[Mapping[str, Any]], None],
    ) -> Opened:
        """Whoever begins a run that is there goes on with it.

        One that is over stays so, unless it failed and `options.resume` is true. Raises NotRunnable if it is
        another's, of another flow, or under way.
        """
        try:
            store = await self._opened()
        except StoreError as error:
            if options.get("resume") is True or _can_keep(self._settings()):
                raise
            logger.warning("this run is not kept, and cannot be resumed: %s", error)
            return Opened(None)
        row = await self._row(store, run_id, flow, inputs, options)
        try:
            added = await store.journal.add(row)
        except InvalidText as error:
            raise _refused("run_id", error.message) from None
        if added:
            return Opened(self._journal(store, row, on_asked))
        found = await store.journal.get(run_id)
        if found is None or not _is_same(found, row):
            raise _refused("run_id", f"there is a run {run_id!r} already, of another flow or other inputs")
        if found.is_over and not (found.status == "failed" and options.get("resume") is True):
            summary = msgspec.convert(value_of(found.summary or ""), Summary)
            return Opened(None, ended=summary)
        claimed = None
        if not holders.is_held(found):
            claimed = await store.journal.claim(found, holders.here(), now())
        if claimed is None:
            raise _refused("run_id", f"the run {run_id!r} is under way in another process", held=True)
        try:
            return await self._gone_on_with(store, claimed, on_asked)
        except HutchError:
            # Others may be able to read it, another day.
            with contextlib.suppress(HutchError):
                await store.journal.let_go(run_id, claimed.holder)
            raise

    async def _gone_on_with(
        self, store: Store, run: FlowRunRow, on_asked: Callable[[Mapping[str, Any]], None]
    ) -> Opened:
        steps = await store.journal.steps(run.run_id)
        finished = {step: msgspec.convert(value_of(body), StepResult) for step, body in steps}
        last = await store.journal.last(run.run_id)
        asking = await store.journal.steps_asking(run.run_id)
        return Opened(self._journal(store, run, on_asked, last=last, asking=asking), finished)

    async def close(self) -> None:
        """Lets go of runs that are not over, for others to go on with."""
        for journal in self._open:
            await journal.close()
        if self._store is not None:
            await self._store.close()

    async def _opened(self) -> Store:
        async with self._opening:
            if self._store is None:
                from hutch.vault import journals

                self._store = await journals.open_store(self._settings())
            return self._store

    async def _row(
        self,
        store: Store,
        run_id: str,
        flow: Flow,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> FlowRunRow:
        owner = LOCAL
        if (name := options.get("user")) is not None:
            user = await store.users.by_name(name)
            if user is None:
                raise _refused("user", f"there is no user {name!r}")
            owner = user.id
        at = now()
        kept = {key: value for key, value in options.items() if key not in _PASSING}
        return FlowRunRow(
            run_id=run_id,
            owner=owner,
            flow=flow.name,
            origin=str(options.get("origin", "cli")),
            status="running",
            created_at=at,
            started_at=at,
            holder=holders.here(),
            seen_at=at,
            claims=1,
            document=text_of(flow.document),
            inputs=text_of(inputs),
            options=text_of(kept),
        )

    def _journal(
        self,
        store: Store,
        run: FlowRunRow,
        on_asked: Callable[[Mapping[str, Any]], None],
        *,
        last: int = 0,
        asking: Iterable[str] = (),
    ) -> RunJournal:
        journal = RunJournal(store, run, on_asked, last=last, asking=asking)
        journal.begin()
        self._open = [*(each for each in self._open if not each.is_over), journal]
        return journal


class RunJournal:
    """One run's, for as long as this process holds the run."""

    def __init__(
        self,
        store: Store,
        run: FlowRunRow,
        on_asked: Callable[[Mapping[str, Any]], None],
        *,
        last: int,
        asking: Iterable[str],
    ) -> None:
        """`last` is the highest number so far, `asking` the steps that waited for somebody's word."""
        self._journal = store.journal
        self._asking = {*asking}
        self._run = run
        self._on_asked = on_asked
        self._number = last
        self._waiting: list[Entry] = []
        self._writing: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._logged = 0
        self.is_over = False
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def step_finished(self, run_id: str, step_id: str, result: StepResult) -> None:
        self._add(text_of(msgspec.structs.asdict(result)), result.state, step=step_id)
        await self._safe()

    def event(self, run_id: str, event: Mapping[str, Any]) -> None:
        body = text_of(event)
        if event["type"] == "log":
            if self._logged > MOST_LOG_BYTES:
                return
            self._logged += len(body)
            if self._logged > MOST_LOG_BYTES:
                note = {"level": "warning", "message": "logs from here on are not kept: there are too many"}
                body = text_of({**event, **note})
        # A package's kinds may call their events anything.
        kind = mended(event["type"])
        self._add(body, kind, subject=self._subject(kind, event.get("step_id")))
        if self._writing is None and self._later is None:
            self._later = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._write_soon)

    def _subject(self, kind: str, step_id: str | None) -> str | None:
        """The step, if by this event somebody is asked about it, or not any more."""
        if step_id is None:
            return None
        if kind == "approval":
            self._asking.add(step_id)
            return step_id
        if kind in ("step", "approved") and step_id in self._asking:
            self._asking.discard(step_id)
            return step_id
        return None

    async def finished(self, run_id: str, summary: Summary) -> None:
        try:
            await self._safe()
            at = now()
            text = text_of(summary.wire)
            if not await self._journal.finish(self._run, record_of(self._run, summary, at), text, at):
                raise Lost()
        finally:
            self._end()

    async def close(self) -> None:
        """If the run is not over, it is for whoever wants to go on with it."""
        if self.is_over:
            return
        self._end()
        try:
            await self._safe()
            await self._journal.let_go(self._run.run_id, self._run.holder)
        except HutchError as error:
            logger.warning("run %s could not be let go: %s", self._run.run_id, error)

    def _end(self) -> None:
        self.is_over = True
        if self._watching is not None:
            self._watching.cancel()
        if self._later is not None:
            self._later.cancel()

    # --- writing ---

    def _add(self, body: str, kind: str, *, step: str | None = None, subject: str | None = None) -> None:
        self._number += 1
        self._waiting.append(Entry(self._number, body, step, kind, subject))

    async def _safe(self) -> None:
        """Returns when all that was added is on the disk. Raises HutchError."""
        while self._waiting or self._writing is not None:
            # What is being written now may have begun too early for us. Others wait for it too.
            await asyncio.shield(self._write_soon())

    def _write_soon(self) -> asyncio.Task[None]:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
            self._writing.add_done_callback(_look_at)
        return self._writing

    async def _write(self) -> None:
        entries, self._waiting = self._waiting, []
        try:
            if not await self._journal.write(self._run.run_id, self._run.holder, entries):
                raise Lost()
        except BaseException:
            # Not left out: what comes later may not stand without it.
            self._waiting = entries + self._waiting
            raise
        finally:
            self._writing = None

    # --- others ---

    async def _watch(self) -> None:
        """Says that we are here, and hears what others ask."""
        run_id, holder = self._run.run_id, self._run.holder
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + holders.BEAT_SECONDS
        while True:
            await asyncio.sleep(ASKED_SECONDS)
            try:
                for body in await self._journal.asked(run_id):
                    self._on_asked(value_of(body))
                if loop.time() >= beat_at:
                    beat_at = loop.time() + holders.BEAT_SECONDS
                    if not await self._journal.beat(run_id, holder, now()):
                        logger.error("another process has taken over run %s", run_id)
                        self._on_asked({"type": "cancel"})
                        return
            except HutchError as error:
                logger.warning("run %s: the store does not answer: %s", run_id, error)


def _can_keep(settings: Settings) -> bool:
    """Whether there is a place for a store at all: not in a home that cannot be written."""
    if settings.database_url is not None:
        return True
    try:
        settings.home_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(settings.home_path, os.W_OK)


def _look_at(writing: asyncio.Task[None]) -> None:
    """Nobody waits for events; the next step finds the same fault, and is told."""
    if not writing.cancelled() and (error := writing.exception()) is not None:
        logger.warning("a journal is behind: %s", error)


def text_of(value: Any) -> str:
    """JSON in ASCII, so that any text can be kept, and as deep as steps may make it and somewhat deeper."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except TypeError:
        # What a step gave may have objects in it that have a form in JSON.
        return encode_value(value).decode()


def value_of(text: str) -> Any:
    return json.loads(text)


def _is_same(found: FlowRunRow, row: FlowRunRow) -> bool:
    same = value_of(found.document) == value_of(row.document) and value_of(found.inputs) == value_of(
        row.inputs
    )
    return same and (found.owner == row.owner or {found.owner, row.owner} == OPERATOR)


def _refused(option: str, message: str, **details: Any) -> NotRunnable:
    problem = {"path": f"options.{option}", "message": message}
    return NotRunnable(
        INVALID_IR, f"options.{option}: {message}.", details={"problems": [problem], **details}
    )
