"""Runs abilities: the specification's seven steps in its order, and an answer whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from hutch.doors.abilities import (
    answers,
    documents,
    dynamic,
    ending,
    params,
    static,
    transform,
    verdict,
    wrapper,
)
from hutch.doors.abilities.answers import Failed
from hutch.doors.abilities.documents import Document
from hutch.doors.abilities.dynamic import Resolved
from hutch.doors.abilities.ending import Ended, Ending
from hutch.doors.abilities.injecting import Injecting
from hutch.doors.abilities.running import Running
from hutch.doors.abilities.upstream import Upstream
from hutch.doors.abilities.verdict import Verdict
from hutch.doors.limits import retry_after
from hutch.egress.broker import Broker
from hutch.egress.fetch import Hop
from hutch.egress.headers import MAX_HEADER_BYTES
from hutch.errors import Busy, HutchError, InvalidExecution, StoreError
from hutch.kernel import Kernel
from hutch.store.rows import Ability, User
from hutch.store.store import Store
from hutch.vault.credentials import Secret
from hutch.vault.vault import Vault

logger = logging.getLogger("hutch.abilities")

MOST_LOGINS = 10
_NO_HOST = "They name no host, and neither does service_name: its author has to write `host::Header`"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller gets: the specification's body, with the status that goes with it."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = {}
    run_id: str = ""
    logs: list[str] = []
    hops: list[Hop] = []
    """The requests that were made."""


class Abilities:
    """Runs abilities for users."""

    def __init__(self, kernel: Kernel, store: Store, vault: Vault, broker: Broker) -> None:
        """Raises SettingError."""
        self._kernel = kernel
        self._settings = kernel.settings
        self._store = store
        self._vault = vault
        self._broker = broker
        self._expire_on = verdict.statuses(kernel.settings.ability_expire_on)

    async def execute(
        self,
        user: User,
        ability_id: str,
        params: dict[str, Any],
        transform_code: str | None = None,
        *,
        door: str = "abilities",
        run_id: str | None = None,
    ) -> Answer:
        """Whatever happens, this is an answer in the specification's shape."""
        running = Running(kernel=self._kernel, owner=user.id, door=door, label=ability_id)
        try:
            return await self._execute(user, params, transform_code, running, run_id)
        except Exception as error:
            failed = _as_failed(error)
            body = answers.failure(failed.code, failed.message, **failed.more)
            return Answer(status=answers.STATUS[failed.code], body=body, headers=dict(failed.headers or {}))

    async def _execute(
        self,
        user: User,
        given: dict[str, Any],
        transform_code: str | None,
        running: Running,
        run_id: str | None,
    ) -> Answer:
        end = Ending(self._settings.ability_max_chars)
        document = await self._document(running.label, user)
        if (problem := params.problem(document, given)) is not None:
            raise Failed("INVALID_REQUEST", problem)
        await self._check_dependencies(document, user)
        resolved = await self._credentials(document, user)
        injecting = Injecting(await static.evaluate(document, running), resolved.headers)
        fetching = self._broker.open(injecting, [each.value for each in resolved.secrets], owner=user.id)
        end.redactor = fetching.redactor
        upstream = Upstream(fetching)
        try:
            outcome = await wrapper.call(
                document, given, upstream, running, hops=fetching.hops, run_id=run_id
            )
        finally:
            await fetching.close()
        judged = verdict.judge(fetching.hops, self._expire_on)
        await self._mark(judged, resolved.secrets)
        ended = await self._ended(document, user, judged, outcome, upstream, end)
        if ended is None:
            assert outcome.response is not None
            body = outcome.response.body
            if transform_code:
                body = await transform.apply(transform_code, body, running)
            ended = end.succeeded(outcome.response, body)
        logs = [end.redactor.text(line) for line in outcome.logs]
        return Answer(
            status=ended.status,
            body=ended.body,
            headers=ended.headers,
            run_id=outcome.run_id,
            logs=logs,
            hops=fetching.hops,
        )

    # --- before the wrapper ---

    async def _document(self, ability_id: str, user: User) -> Document:
        found = await self._store.abilities.get(ability_id, user.id)
        if found is None:
            raise answers.not_found(ability_id)
        return documents.decode(found.document)

    async def _check_dependencies(self, document: Document, user: User) -> None:
        """What is not there, whether its author knew that or not."""
        wanted = dict.fromkeys((*document.missing_dependencies, *document.dependency_order))
        wanted.pop(document.ability_id, None)
        if not wanted:
            return
        there = await self._store.abilities.existing(list(wanted), user.id)
        if missing := [each for each in wanted if each not in there]:
            raise Failed("MISSING_DEPENDENCIES", f"Missing dependencies: {', '.join(missing)}")

    async def _credentials(self, document: Document, user: User) -> Resolved:
        wanted = dynamic.needed(document)
        if not wanted:
            return Resolved()
        domains = dynamic.domains(wanted)
        secrets = await self._vault.secrets(user, domains) if domains else []
        resolved = dynamic.resolve(wanted, secrets)
        if resolved.missing or resolved.unusable:
            raise Failed("MISSING_CREDENTIALS", _missing(document, resolved))
        if sum(len(each.value) for each in resolved.secrets) > MAX_HEADER_BYTES:
            most = MAX_HEADER_BYTES // 1024
            raise Failed("INVALID_REQUEST", f"The credentials of this ability have more than {most} KiB")
        return resolved

    # --- after it ---

    async def _mark(self, judged: Verdict, secrets: Sequence[Secret]) -> None:
        """Only those that were sent are marked; what was marked and is taken again is no longer."""
        state = {each.credential.id: each.credential.state for each in secrets}
        by_cause: dict[str, list[str]] = {}
        for each, hop in judged.refused.items():
            by_cause.setdefault(f"{hop.host} answered {hop.status}", []).append(each)
        revived = [each for each in judged.taken if state.get(each) == "expired"]
        try:
            for cause, ids in by_cause.items():
                await self._vault.expire(ids, cause)
            if revived:
                await self._vault.revive(revived)
        except StoreError as error:
            # What the wrapper did is done: whoever was told to try again would do it twice.
            logger.error("credentials could not be marked: %s", error)

    async def _ended(
        self,
        document: Document,
        user: User,
        judged: Verdict,
        outcome: wrapper.Outcome,
        upstream: Upstream,
        end: Ending,
    ) -> Ended | None:
        """The answer, unless it is a success, whose body may still be transformed."""
        response = outcome.response
        status = judged.status
        if status is None and response is not None and response.status in self._expire_on:
            status = response.status
        if status is not None:
            logins = await self._logins(document, user)
            marked = bool(judged.refused)
            return end.refused(status, response, upstream.last, marked=marked, logins=logins)
        if outcome.failure is not None:
            return end.failed(outcome.failure, upstream.last)
        assert response is not None
        return None if response.ok else end.unhappy(response)

    async def _logins(self, document: Document, user: User) -> list[Ability]:
        text = f"login {document.service_name}"
        found = await self._store.abilities.search(user.id, text, MOST_LOGINS)
        return ending.login_first(found, document.service_name)


def _missing(document: Document, resolved: Resolved) -> str:
    """All that is missing, named as the ability names it."""
    said = []
    if resolved.missing:
        names = ", ".join(key.text for key in resolved.missing)
        domains = ", ".join(dict.fromkeys(key.host for key in resolved.missing if key.host))
        advice = f"Store credentials for: {domains}" if domains else _NO_HOST
        said.append(f"Missing credentials for headers: {names}. {advice}")
    for key, kind in resolved.unusable:
        said.append(f"The credential {key.text} is of the kind {kind}, which cannot be sent in a header")
    return ". ".join(said)


def _as_failed(error: Exception) -> Failed:
    """What is told of what is no guest's and no upstream's fault."""
    match error:
        case Failed():
            return error
        case Busy():
            return Failed("BUSY", str(error), headers=retry_after(error.retry_after))
        case InvalidExecution():
            return Failed("INVALID_REQUEST", str(error))
        case StoreError():
            logger.error("the store failed: %s", error)
            message = "The store cannot be used; the server's log says why"
            return Failed("UNAVAILABLE", message, headers=retry_after(1))
        case HutchError():
            logger.error("an ability could not be run: %s", error)
        case _:
            logger.error("an ability could not be run", exc_info=error)
    return Failed("INTERNAL_ERROR", "The server failed; its log says why")
