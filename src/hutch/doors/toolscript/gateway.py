"""The gateway: all MCP servers behind one catalog, one module, one search and one policy."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hutch.doors.toolscript import module
from hutch.doors.toolscript.approvals import Approvals, Policy
from hutch.doors.toolscript.catalog import Catalog, Server, Tool, filter_items
from hutch.doors.toolscript.types import faults
from hutch.errors import HutchError, UpstreamError
from hutch.session.jsonvalue import well_formed

if TYPE_CHECKING:
    from hutch.doors.toolscript.search import Found, Index

SEARCH_LIMIT = 3
SEARCH_THRESHOLD = 0.35
# How long somebody who asks how things are waits for servers that are being connected to.
STATUS_SECONDS = 1.0
# Texts for different filters that are kept.
_MAX_TEXTS = 32


class Tools(Protocol):
    """Other people's tools: `hutch.upstream.servers.Upstreams`."""

    on_change: list[Callable[[], None]]

    @property
    def revision(self) -> str: ...
    def servers(self) -> Sequence[Server]: ...
    async def tools(self) -> Sequence[Tool]: ...
    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Any = None,
    ) -> Any: ...


class Text(NamedTuple):
    """A text and what tells it from others."""

    body: bytes
    etag: str

    @classmethod
    def of(cls, text: str) -> Text:
        body = well_formed(text).encode()
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def __str__(self) -> str:
        return self.body.decode()


class Called(NamedTuple):
    """A call that is over, by original names. `seconds` counts its wait for an approval too."""

    run: str | None
    server: str
    tool: str
    ok: bool
    seconds: float


class _Snapshot:
    """What was made of the tools of one revision."""

    def __init__(self, revision: str, catalog: Catalog) -> None:
        self.revision = revision
        self.catalog = catalog
        self.index: asyncio.Task[Index] | None = None
        self.texts: dict[tuple[str, ...], asyncio.Task[Text]] = {}
        self.problems: list[dict[str, Any]] | None = None


class Gateway:
    """It belongs to the event loop in which it is first used."""

    def __init__(self, tools: Tools, approvals: Approvals | None = None) -> None:
        self.approvals = approvals or Approvals(Policy())
        self.on_call: list[Callable[[Called], None]] = []
        """Told of every call of a tool that there is, when it is over."""
        self._tools = tools
        self._snapshot: _Snapshot | None = None
        self._loading: asyncio.Task[_Snapshot] | None = None
        self._began = time.monotonic()

    @property
    def revision(self) -> str:
        """What `_t` is to say: it changes with the tools, and with every start."""
        return self._tools.revision

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Called whenever `revision` has changed."""
        return self._tools.on_change

    def servers(self) -> Sequence[Server]:
        return self._tools.servers()

    async def catalog(self) -> Catalog:
        """All tools; waits for servers that are being connected to."""
        return (await self._current()).catalog

    # --- texts ---

    async def module(self, only: str | None = None) -> Text:
        """The module that scripts import."""
        return await self._text(module.tools_module, "module", only)

    async def declarations(self, only: str | None = None, *, compact: bool = False) -> Text:
        """The module's types: for a compiler, or, compact, for a model."""
        make = partial(module.declarations, compact=compact)
        return await self._text(make, "compact" if compact else "full", only)

    async def _text(self, make: Callable[..., str], form: str, only: str | None) -> Text:
        snapshot = await self._current()
        key = (form, *filter_items(only))
        task = snapshot.texts.pop(key, None)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            # In a thread: with hundreds of tools it takes so long that others would notice.
            task = asyncio.create_task(
                asyncio.to_thread(lambda: Text.of(make(snapshot.catalog, only=",".join(key[1:]))))
            )
            while len(snapshot.texts) >= _MAX_TEXTS:
                del snapshot.texts[next(iter(snapshot.texts))]
        snapshot.texts[key] = task
        return await asyncio.shield(task)

    # --- search ---

    async def search(
        self, query: str, *, limit: int = SEARCH_LIMIT, threshold: float = SEARCH_THRESHOLD
    ) -> list[Found]:
        """Raises HutchError where there is no search to be had."""
        return (await self._index()).search(query, limit=limit, threshold=threshold)

    async def stats(self) -> dict[str, Any]:
        return {
            "toolsIndexed": len(await self._index()),
            "model": "bm25",
            "semanticAvailable": False,
            "cachedEmbeddings": 0,
            "cacheHitRate": 0,
        }

    async def _index(self) -> Index:
        """Made when somebody searches: most scripts do not."""
        snapshot = await self._current()
        if snapshot.index is None:
            snapshot.index = asyncio.create_task(asyncio.to_thread(_indexed, snapshot.catalog))
        return await asyncio.shield(snapshot.index)

    # --- calls ---

    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        run: str | None = None,
        timeout: float | None = None,
        on_progress: Any = None,
    ) -> Any:
        """What a tool gives, by its original names. Raises UpstreamError, and Denied, which is one.

        `run` is whose call it is; the time that it waits for an approval is no part of `timeout`.
        """
        if (await self.catalog()).original(server, tool) is None:
            raise await self._unknown(f"{server}__{tool}")
        began, ok = time.monotonic(), False
        try:
            await self.approvals.check(server, tool, arguments, run)
            value = await self._tools.call(server, tool, arguments, timeout=timeout, on_progress=on_progress)
            ok = True
            return value
        finally:
            for told in list(self.on_call):
                told(Called(run, server, tool, ok, time.monotonic() - began))

    async def call_by_name(self, qualified: str, arguments: dict[str, Any], *, run: str | None = None) -> Any:
        """The same for `server__tool`."""
        entry = (await self.catalog()).called(qualified)
        if entry is None:
            raise await self._unknown(qualified)
        return await self.call(entry.server, entry.tool, arguments, run=run)

    async def _unknown(self, qualified: str) -> UpstreamError:
        named = [each for each in self.servers() if qualified.startswith(f"{each.name}__")]
        server = max(named, key=lambda each: len(each.name), default=None)
        shown = qualified[:200]
        if server is None:
            prefix, _, tool = qualified.partition("__")
        else:
            prefix, tool = server.name, qualified[len(server.name) + 2 :]
            if server.state != "connected":
                message = f"There is no tool {shown} now: the server {server.name} is not connected"
                return UpstreamError(prefix, tool, message, kind="not_connected")
        near = await asyncio.to_thread(_near, qualified, await self.catalog())
        hint = f". Did you mean {' or '.join(near)}?" if near else ""
        return UpstreamError(
            prefix[:200],
            tool[:200],
            f"There is no tool {shown}{hint}",
            kind="unknown_tool",
            details={"suggestions": near},
        )

    # --- how things are ---

    def health(self) -> dict[str, Any]:
        """What `/health` says of the gateway."""
        return {"status": "ok", "search": {"ready": self._snapshot is not None, "semantic": False}}

    def connecting(self) -> list[str]:
        """Servers of which it is not known yet whether they can be reached."""
        return [each.name for each in self.servers() if each.state == "connecting"]

    async def status(self) -> dict[str, Any]:
        snapshot = await self._at_hand()
        catalog = Catalog() if snapshot is None else snapshot.catalog
        counts: dict[str, int] = {}
        for entry in catalog:
            counts[entry.server] = counts.get(entry.server, 0) + 1
        named = [(entry.server, entry.tool) for entry in catalog]
        named += [(each.name, "") for each in self.servers()]
        servers = [
            {
                "name": each.name,
                "title": each.title,
                "state": each.state,
                "error": each.error,
                "warnings": [*each.warnings],
                "tools": counts.get(each.name, 0),
            }
            for each in self.servers()
        ]
        return {
            "status": "ok",
            "revision": self.revision,
            "uptimeSeconds": round(time.monotonic() - self._began, 3),
            "tools": len(catalog),
            "servers": servers,
            "collisions": [each._asdict() for each in catalog.collisions],
            "problems": [] if snapshot is None else await self._problems(snapshot),
            "approvals": {
                "pending": len(self.approvals.pending()),
                "rules": self.approvals.policy.rules,
                "unmatchedRules": self.approvals.policy.idle(named),
            },
        }

    async def _problems(self, snapshot: _Snapshot) -> list[dict[str, Any]]:
        """What the owners of servers should mend."""
        if snapshot.problems is None:
            snapshot.problems = await asyncio.to_thread(_problems, snapshot.catalog)
        return snapshot.problems

    # --- the tools of the moment ---

    async def _current(self) -> _Snapshot:
        snapshot = self._snapshot
        if snapshot is not None and snapshot.revision == self._tools.revision:
            return snapshot
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load())
        # Others may wait for it too.
        return await asyncio.shield(self._loading)

    async def _load(self) -> _Snapshot:
        tools = await self._tools.tools()
        # At once, before anything else can change it.
        revision = self._tools.revision
        catalog = Catalog.of(tools, self.servers())
        self._snapshot = _Snapshot(revision, catalog)
        return self._snapshot

    async def _at_hand(self) -> _Snapshot | None:
        """The newest that can be had without waiting for slow servers."""
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                return await self._current()
        except TimeoutError:
            return self._snapshot


def _indexed(catalog: Catalog) -> Index:
    from hutch.doors.toolscript.search import Index

    try:
        return Index(catalog)
    except sqlite3.OperationalError as error:
        raise HutchError(f"Tools cannot be searched with this Python's SQLite: {error}.") from None


def _near(wanted: str, catalog: Catalog) -> list[str]:
    from hutch.doors.toolscript.search import near_names

    return near_names(wanted, (entry.qualified for entry in catalog))


def _problems(catalog: Catalog) -> list[dict[str, Any]]:
    found = [
        {"server": server, "tool": tool, "message": "its server has two tools of this name; the first counts"}
        for server, tool in catalog.duplicates
    ]
    for entry in catalog:
        found += [{"server": entry.server, "tool": entry.tool, "message": fault} for fault in faults(entry)]
    return found
