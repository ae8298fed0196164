"""Quotas of owners and API keys: concurrent executions, executions per minute and per day, CPU seconds per
day.

Each execution is counted once, before it gets a runner. The usage of each day is also written to the store,
in the background, so that a restart does not reset the usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hutch.errors import HutchError, QuotaExceeded
from hutch.kernel.caller import caller_key
from hutch.settings import Settings
from hutch.store.models import Quota, Usage

if TYPE_CHECKING:
    from hutch.store.tables.quotas import QuotaTable
    from hutch.store.tables.rate_limits import RateLimiter

logger = logging.getLogger("hutch.fair_use")

DAY_SECONDS = 86_400
MINUTE_SECONDS = 60
REFRESH_SECONDS = 5.0
"""Time after which quotas and usage are read again, because another process may have changed them."""
MAX_ACCOUNTS = 10_000
"""Maximum number of owners and keys in memory. The least recently used ones are dropped."""


class QuotaStore(NamedTuple):
    """Parts of the store that quotas need."""

    quotas: QuotaTable
    rate_limits: RateLimiter


class Account(msgspec.Struct, eq=False):
    """Quota and usage of one owner or key."""

    subject: str
    quota: Quota = Quota()
    active: int = 0
    """Executions that wait or run."""
    day: int = -1
    """Day of `executions` and `cpu_seconds`, counted since 1970. -1 before the first execution."""
    executions: int = 0
    cpu_seconds: float = 0.0
    read_at: float = -math.inf
    """Time at which quota and usage were read from the store."""
    first_read: asyncio.Task[None] | None = None
    """Task that reads quota and usage for the first time that day. Executions wait for it."""
    has_limits: bool = False


class FairUse:
    """Counts executions and refuses those beyond a quota.

    A limit of the key applies to the usage of the key. If the key has no limit, the limit of the owner, or
    else the limit in the settings, applies to the usage of the owner with all its keys.
    """

    def __init__(
        self,
        settings: Settings,
        set_weight: Callable[[str, float], None] = lambda owner, weight: None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`set_weight` sets how many turns an owner gets in the queue for runners."""
        self.defaults = Quota(
            max_concurrent_executions=settings.max_concurrent_executions,
            max_executions_per_minute=settings.max_executions_per_minute,
            max_executions_per_day=settings.max_executions_per_day,
            max_cpu_seconds_per_day=settings.max_cpu_seconds_per_day,
        )
        self._has_limits = any(msgspec.structs.astuple(self.defaults))
        self._set_weight = set_weight
        self._clock = clock
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._refreshing: set[asyncio.Task[None]] = set()
        self.is_counting = True
        """False in the process of a flow, because the server has already counted the flow run."""
        self.store: QuotaStore | None = None
        """None while no store is open. Then only the settings limit executions."""
        self.open_store: Callable[[], Awaitable[object]] | None = None
        """Opens the store and sets `store`. Called if the settings have a limit per day."""
        self.refusals: Counter[str] = Counter()
        """Refused executions by the name of the limit."""

    @contextlib.asynccontextmanager
    async def count(self, owner: str) -> AsyncIterator[None]:
        """Counts something that is not an execution of the kernel, such as a flow run. Raises
        QuotaExceeded.
        """
        accounts = await self.begin(owner)
        was_refused = False
        try:
            yield
        except HutchError:
            was_refused = True
            raise
        finally:
            self.end(accounts, 0.0, was_refused=was_refused)

    async def begin(self, owner: str) -> tuple[Account, ...]:
        """Counts an execution of this owner and of the current task's API key. Returns their accounts for
        `end`. Raises QuotaExceeded.
        """
        if not self.is_counting:
            return ()
        key = caller_key.get()
        day = int(self._clock() // DAY_SECONDS)
        accounts = (self._account(owner),) if key is None else (self._account(owner), self._account(key))
        now = time.monotonic()
        is_limited = self._has_limits
        for account in accounts:
            if account.day != day:
                # Start at 0, even if the clock was set back to an earlier day: the usage of that day is read
                # from the store.
                account.day, account.executions, account.cpu_seconds = day, 0, 0.0
                account.read_at = -math.inf
            if now - account.read_at >= REFRESH_SECONDS:
                await self._refresh(account, now)
            elif account.first_read is not None:
                await asyncio.shield(account.first_read)
            is_limited |= account.has_limits
        if is_limited:
            self._check(accounts)
        for account in accounts:
            account.active += 1
            account.executions += 1
        if is_limited:
            try:
                await self._check_rate(accounts)
            except BaseException:
                for account in accounts:
                    account.active -= 1
                    account.executions -= 1
                raise
        return accounts

    def end(self, accounts: tuple[Account, ...], cpu_seconds: float, *, was_refused: bool = False) -> None:
        """Ends the execution that `begin` counted. Its CPU time counts for the day on which it ends.

        An execution that was refused after `begin`, for example because no runner was free, does not count
        for the day. Otherwise a client that tries again while the server is busy would use up its quota.
        """
        day = int(self._clock() // DAY_SECONDS)
        for account in accounts:
            account.active -= 1
            if was_refused:
                # The count may already be 0, because a new day may have begun since `begin`.
                account.executions = max(0, account.executions - 1)
                continue
            if account.day == day:
                account.cpu_seconds += cpu_seconds
            if self.store is not None:
                self.store.quotas.add_usage(account.subject, day_name(day), Usage(1, cpu_seconds))

    def forget(self, subject: str) -> None:
        """Reads the quota of an owner or key again before its next execution."""
        if (account := self._accounts.get(subject)) is not None:
            account.read_at = -math.inf

    def _account(self, subject: str) -> Account:
        account = self._accounts.get(subject)
        if account is None:
            account = self._accounts[subject] = Account(subject)
            if len(self._accounts) > MAX_ACCOUNTS:
                self._drop_oldest()
        else:
            self._accounts.move_to_end(subject)
        return account

    def _drop_oldest(self) -> None:
        for subject, account in self._accounts.items():
            if not account.active:
                del self._accounts[subject]
                return

    # --- limits ---

    def _check(self, accounts: tuple[Account, ...]) -> None:
        account, limit = self._limit("max_concurrent_executions", accounts)
        if limit and account.active >= limit:
            self._refuse("max_concurrent_executions", f"{limit} executions at the same time", 1)
        account, limit = self._limit("max_executions_per_day", accounts)
        if limit and account.executions >= limit:
            self._refuse("max_executions_per_day", f"{limit} executions a day", self._until_tomorrow())
        account, limit = self._limit("max_cpu_seconds_per_day", accounts)
        if limit and account.cpu_seconds >= limit:
            self._refuse("max_cpu_seconds_per_day", f"{limit} CPU seconds a day", self._until_tomorrow())

    async def _check_rate(self, accounts: tuple[Account, ...]) -> None:
        account, limit = self._limit("max_executions_per_minute", accounts)
        if not limit:
            return
        rates = self._local_rates if self.store is None else self.store.rate_limits
        try:
            wait = await rates.hit(f"executions:{account.subject}", limit, MINUTE_SECONDS)
        except HutchError as error:
            logger.warning("executions per minute cannot be counted: %s", error)
            return
        if wait is not None:
            self._refuse("max_executions_per_minute", f"{limit} executions a minute", math.ceil(wait))

    @cached_property
    def _local_rates(self) -> RateLimiter:
        """Counts executions per minute while no store is open."""
        from hutch.store.tables.rate_limits import RateLimiter

        return RateLimiter(None)

    def _limit(self, name: str, accounts: tuple[Account, ...]) -> tuple[Account, int]:
        """Returns the account (of the owner or of the key) whose usage is limited, and its limit."""
        for account in reversed(accounts):
            limit = getattr(account.quota, name)
            if limit is not None:
                return account, limit
        return accounts[0], getattr(self.defaults, name)

    def _refuse(self, limit: str, allowed: str, retry_after: float) -> None:
        self.refusals[limit] += 1
        message = f"The quota is used up: {allowed} ({limit})."
        raise QuotaExceeded(message, retry_after=retry_after, limit=limit)

    def _until_tomorrow(self) -> float:
        return math.ceil(DAY_SECONDS - self._clock() % DAY_SECONDS)

    # --- the store ---

    async def _refresh(self, account: Account, now: float) -> None:
        """Reads quota and usage. Waits for the first read of a day. Later reads run in the background."""
        is_first = account.read_at == -math.inf
        account.read_at = now
        if self.store is None and not (self._limits_days and self.open_store):
            return
        task = asyncio.get_running_loop().create_task(self._read(account))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)
        if is_first:
            account.first_read = task
            await asyncio.shield(task)

    @property
    def _limits_days(self) -> bool:
        return bool(self.defaults.max_executions_per_day or self.defaults.max_cpu_seconds_per_day)

    async def _read(self, account: Account) -> None:
        subject, day = account.subject, account.day
        try:
            if self.store is None and self.open_store is not None:
                await self.open_store()
            store = self.store
            if store is None:
                return
            quotas = await store.quotas.get([subject])
            used = (await store.quotas.usage([subject], day_name(day)))[subject]
        except HutchError as error:
            # Do not refuse executions because the store fails. The limits that were read before still apply.
            logger.warning("the quota of %s cannot be read: %s", subject, error)
            return
        finally:
            # Reset `first_read` only if it is this task: a new first read may have begun meanwhile, for
            # example on the next day.
            if account.first_read is asyncio.current_task():
                account.first_read = None
        account.quota = quotas.get(subject, Quota())
        account.has_limits = account.quota != Quota()
        self._set_weight(subject, account.quota.weight or 1)
        if account.day == day:
            # Take the higher count: the store lacks executions that have not ended yet, and this process has
            # not counted the executions of other processes.
            account.executions = max(account.executions, used.executions)
            account.cpu_seconds = max(account.cpu_seconds, used.cpu_seconds)

    async def close(self) -> None:
        await asyncio.gather(*self._refreshing, return_exceptions=True)


@lru_cache(maxsize=8)
def day_name(day: int) -> str:
    """Returns the date of a day that is counted since 1970, such as `2031-02-03`."""
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).date().isoformat()


def today() -> str:
    return day_name(int(time.time() // DAY_SECONDS))
