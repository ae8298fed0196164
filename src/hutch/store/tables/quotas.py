"""Tables of quotas, and of the usage of owners and keys on each day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import StoreError
from hutch.store.backends.base import Database, SqlStatement
from hutch.store.models import Quota, Usage, now

if TYPE_CHECKING:
    from hutch.store.write_behind import WriteBehindQueue


class QuotaTable:
    """Table of quotas and usage, by subject. A subject is the id of a user or an API key, or the name of an
    owner that is not a user.
    """

    def __init__(self, database: Database, write_behind: WriteBehindQueue) -> None:
        self._database = database
        self._write_behind = write_behind

    async def get(self, subjects: Sequence[str]) -> dict[str, Quota]:
        """Returns the quotas of these subjects. Subjects without a quota are left out. Raises StoreError."""
        rows = await self._database.read(
            "SELECT subject, quota FROM quotas WHERE subject IN :subjects", subjects=[*subjects]
        )
        return {subject: _decode(subject, text) for subject, text in rows}

    async def set(self, subject: str, quota: Quota) -> None:
        """Replaces the quota of a subject. An empty quota removes the row."""
        if quota == Quota():
            sql = "DELETE FROM quotas WHERE subject = :subject"
        else:
            sql = """
                INSERT INTO quotas (subject, quota, updated_at) VALUES (:subject, :quota, :updated_at)
                ON CONFLICT (subject) DO UPDATE SET quota = excluded.quota, updated_at = excluded.updated_at
            """
        values = {"subject": subject, "quota": msgspec.json.encode(quota).decode(), "updated_at": now()}
        used = {name: value for name, value in values.items() if f":{name}" in sql}
        await self._database.write(SqlStatement(sql, used))

    async def usage(self, subjects: Sequence[str], day: str) -> dict[str, Usage]:
        """Returns the usage of subjects on a day such as `2031-02-03`, including usage that is not written
        yet.
        """
        async with self._write_behind.usage_lock:
            rows = await self._database.read(
                "SELECT subject, executions, cpu_seconds FROM usage_days"
                " WHERE subject IN :subjects AND day = :day",
                subjects=[*subjects],
                day=day,
            )
            found = {subject: Usage(executions, cpu_seconds) for subject, executions, cpu_seconds in rows}
            return {
                subject: found.get(subject, Usage()) + self._write_behind.unwritten_usage(subject, day)
                for subject in subjects
            }

    def add_usage(self, subject: str, day: str, usage: Usage) -> None:
        """Queues usage, which is written in batches in the background."""
        self._write_behind.add_usage(subject, day, usage)

    async def prune(self, before: str) -> None:
        """Deletes the usage of days before the day `before`."""
        sql = "DELETE FROM usage_days WHERE day < :before"
        await self._database.write(SqlStatement(sql, {"before": before}))


def _decode(subject: str, text: str) -> Quota:
    try:
        return msgspec.json.decode(text, type=Quota)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"The quota of {subject} cannot be read: {error}.",
            remedy="Update this server if a newer version of Hutch has stored it, or set the quota again.",
        ) from None


async def write_usage(database: Database, usages: Mapping[tuple[str, str], Usage]) -> None:
    """Adds to the stored usage. Every server writes the rows in sorted order, because transactions with
    different orders could block each other.
    """
    sql = """
        INSERT INTO usage_days AS used (subject, day, executions, cpu_seconds)
        VALUES (:subject, :day, :executions, :cpu_seconds)
        ON CONFLICT (subject, day) DO UPDATE SET
            executions = used.executions + excluded.executions,
            cpu_seconds = used.cpu_seconds + excluded.cpu_seconds
    """
    rows = [
        {"subject": subject, "day": day, "executions": usage.executions, "cpu_seconds": usage.cpu_seconds}
        for (subject, day), usage in sorted(usages.items())
    ]
    await database.write_many(sql, rows)
