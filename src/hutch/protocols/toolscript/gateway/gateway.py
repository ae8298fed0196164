"""Gateway to the user's MCP servers, with one catalog, module, search index and approval policy."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from hutch.errors import UpstreamError
from hutch.protocols.toolscript.codegen import module
from hutch.protocols.toolscript.codegen.types import schema_problems
from hutch.protocols.toolscript.gateway.approvals import ApprovalPolicy, Approvals, CallDenied
from hutch.protocols.toolscript.gateway.catalog import Catalog, ServerInfo, ToolInfo, filter_items
from hutch.session.json_value import well_formed
from hutch.telemetry.trace_context import current

if TYPE_CHECKING:
    from hutch.kernel.durable.calls.call_replay import CallReplay
    from hutch.protocols.toolscript.gateway.search.index import SearchIndex, SearchResult
    from hutch.protocols.toolscript.gateway.stored_approvals import StoredApprovals

logger = logging.getLogger("hutch.toolscript")

SEARCH_LIMIT = 3
SEARCH_THRESHOLD = 0.35
# Time that `status` waits for servers that are still connecting.
STATUS_SECONDS = 1.0
# Maximum number of rendered modules and declarations in the cache, which has one entry per tool filter.
_MAX_CACHED_TEXTS = 32
# A larger catalog is built in a thread: 5,000 tools take 0.2 s.
_MAX_TOOLS_IN_LOOP = 500


class ToolSource(Protocol):
    """The connected MCP servers. Implemented by `hutch.mcp_client.servers.McpServers`."""

    on_change: list[Callable[[], None]]

    @property
    def revision(self) -> str: ...
    def servers(self) -> Sequence[ServerInfo]: ...
    async def tools(self) -> Sequence[ToolInfo]: ...
    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Any = None,
        whole: bool = False,
        on_input: Any = None,
    ) -> Any: ...


AskClient: TypeAlias = Callable[[str, str, str | None, Any], Awaitable[Any]]
"""Passes on questions of a tool to the client of a run; see `AskForInput` of the MCP client. Gets the
server, the tool, the id of the run and the questions.
"""


class EtaggedText(NamedTuple):
    """A text and its ETag."""

    body: bytes
    etag: str

    @classmethod
    def of(cls, text: str) -> EtaggedText:
        body = well_formed(text).encode()
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def __str__(self) -> str:
        return self.body.decode()


class CompletedCall(NamedTuple):
    """A finished tool call with the original names. `seconds` includes the wait for an approval."""

    run: str | None
    server: str
    tool: str
    ok: bool
    seconds: float
    started: float = 0.0
    """Start of the call, on the monotonic clock."""
    span_id: str | None = None
    """Id of the call's span if its run is traced."""


class _CatalogSnapshot:
    """Data derived from one revision of the tools."""

    def __init__(self, revision: str, catalog: Catalog) -> None:
        self.revision = revision
        self.catalog = catalog
        self.index: asyncio.Task[SearchIndex] | None = None
        self.texts: dict[tuple[str, ...], asyncio.Task[EtaggedText]] = {}
        self.problems: list[dict[str, Any]] | None = None


class Gateway:
    """Gateway to the user's MCP servers. Belongs to the event loop in which it is first used."""

    def __init__(self, tools: ToolSource, approvals: Approvals | None = None) -> None:
        self.approvals = approvals or Approvals(ApprovalPolicy())
        self.stored_approvals: StoredApprovals | None = None
        """Approvals of runs that can be suspended. None if all calls wait in this process."""
        self.on_input: AskClient | None = None
        """Answers questions of tools; see `AskClient`."""
        self.on_call: list[Callable[[CompletedCall], None]] = []
        """Callbacks for every finished call of a known tool."""
        self.replays: dict[str, CallReplay] = {}
        """Recorded calls of runs that can be run again after a restart, by run id."""
        self._open_calls: dict[object, tuple[str | None, str]] = {}
        self._tools = tools
        self._snapshot: _CatalogSnapshot | None = None
        self._loading: asyncio.Task[_CatalogSnapshot] | None = None
        self._can_search = False
        self._started_at = time.monotonic()

    @property
    def revision(self) -> str:
        """Id of the current set of tools, used as `_t` in import maps. It changes with the tools and with
        every start.
        """
        return self._tools.revision

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Callbacks for changes of `revision`."""
        return self._tools.on_change

    def servers(self) -> Sequence[ServerInfo]:
        return self._tools.servers()

    async def catalog(self) -> Catalog:
        """Returns all tools. Waits for servers that are still connecting."""
        return (await self._current()).catalog

    # --- texts ---

    async def module(self, only: str | None = None) -> EtaggedText:
        """Returns the TypeScript module that scripts import."""
        return await self._text(module.tools_module, "module", only)

    async def declarations(self, only: str | None = None, *, compact: bool = False) -> EtaggedText:
        """Returns the type declarations of the module for a compiler, or, if `compact`, a short form for a
        model.
        """
        make = partial(module.declarations, compact=compact)
        return await self._text(make, "compact" if compact else "full", only)

    async def _text(self, make: Callable[..., str], form: str, only: str | None) -> EtaggedText:
        snapshot = await self._current()
        key = (form, *filter_items(only))
        task = snapshot.texts.pop(key, None)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            # Generate the text in a thread, because hundreds of tools would block the event loop noticeably.
            task = asyncio.create_task(
                asyncio.to_thread(lambda: EtaggedText.of(make(snapshot.catalog, only=",".join(key[1:]))))
            )
            while len(snapshot.texts) >= _MAX_CACHED_TEXTS:
                del snapshot.texts[next(iter(snapshot.texts))]
        snapshot.texts[key] = task
        return await asyncio.shield(task)

    # --- search ---

    async def search(
        self, query: str, *, limit: int = SEARCH_LIMIT, threshold: float = SEARCH_THRESHOLD
    ) -> list[SearchResult]:
        return (await self._index()).search(query, limit=limit, threshold=threshold)

    async def stats(self) -> dict[str, Any]:
        return {
            "toolsIndexed": len(await self._index()),
            "model": "lexical",
            "semanticAvailable": False,
            "cachedEmbeddings": 0,
            "cacheHitRate": 0,
        }

    async def keep_indexed(self) -> None:
        """Builds the search index now and after every change of the tools, until cancelled.

        Only `hutch serve` and `hutch mcp` use this. Other commands build the index on the first search,
        because most scripts do not search.
        """
        changed = asyncio.Event()
        self.on_change.append(changed.set)
        try:
            while True:
                changed.clear()
                await self._index()
                await changed.wait()
        finally:
            self.on_change.remove(changed.set)

    async def _index(self) -> SearchIndex:
        snapshot = await self._current()
        if snapshot.index is None:
            snapshot.index = asyncio.create_task(asyncio.to_thread(_build_index, snapshot.catalog))
        index = await asyncio.shield(snapshot.index)
        self._can_search = True
        return index

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
        whole: bool = False,
        is_approved: bool = False,
    ) -> Any:
        """Calls a tool by its original names and returns the value for scripts, or, if `whole`, an
        McpToolResult. Raises UpstreamError and its subclass CallDenied.

        `run` is the id of the calling run. Waiting for an approval does not count towards `timeout`. With
        `is_approved`, the call was approved before.
        """
        entry = (await self.catalog()).by_original_name(server, tool)
        if entry is None:
            raise await self._unknown_tool(f"{server}__{tool}")
        started, ok, key = time.monotonic(), False, object()
        trace = current.get()
        span_id = None if trace is None else trace.span_id
        self._open_calls[key] = run, f"tools.{entry.namespace}.{entry.member}"
        try:
            replay = None if run is None or is_approved else self.replays.get(run)
            if replay is not None:
                ok, value = await replay.recorded_result(
                    server, tool, arguments, is_idempotent=entry.idempotent
                )
                if ok:
                    return value
            if not is_approved:
                await self._check_approval(server, tool, arguments, run, replay)
            ask = {} if self.on_input is None else {"on_input": partial(self.on_input, server, tool, run)}

            def make() -> Awaitable[Any]:
                return self._tools.call(
                    server, tool, arguments, timeout=timeout, on_progress=on_progress, whole=whole, **ask
                )

            value = await (make() if replay is None else replay.record(server, tool, arguments, make))
            ok = True
            return value
        finally:
            del self._open_calls[key]
            # The guest's call, which waits for this one, is reported instead.
            is_reported = not (is_approved and run in self.replays)
            for callback in list(self.on_call) if is_reported else ():
                seconds = time.monotonic() - started
                callback(CompletedCall(run, server, tool, ok, seconds, started, span_id))

    async def _check_approval(
        self, server: str, tool: str, arguments: dict[str, Any], run: str | None, replay: CallReplay | None
    ) -> None:
        """Waits until a call is allowed. Raises CallDenied."""
        try:
            await self.approvals.check(server, tool, arguments, run)
        except CallDenied as denied:
            if replay is not None:
                # The guest may go on to make other calls, so a replay has to know this one.
                await replay.record_failure(server, tool, arguments, denied)
            raise

    def open_calls(self, run: str) -> list[str]:
        """Returns the names of the tools that a run is waiting for."""
        return list(dict.fromkeys(name for owner, name in self._open_calls.values() if owner == run))

    async def call_by_name(self, qualified: str, arguments: dict[str, Any], *, run: str | None = None) -> Any:
        """Calls a tool by its qualified name `server__tool`."""
        entry = (await self.catalog()).by_qualified_name(qualified)
        if entry is None:
            raise await self._unknown_tool(qualified)
        return await self.call(entry.server, entry.tool, arguments, run=run)

    async def _unknown_tool(self, qualified: str) -> UpstreamError:
        matching = [server for server in self.servers() if qualified.startswith(f"{server.name}__")]
        server = max(matching, key=lambda server: len(server.name), default=None)
        shown = qualified[:200]
        if server is None:
            prefix, _, tool = qualified.partition("__")
        else:
            prefix, tool = server.name, qualified[len(server.name) + 2 :]
            if server.state != "connected":
                message = f"There is no tool {shown} now: the server {server.name} is not connected"
                return UpstreamError(prefix, tool, message, kind="not_connected")
        similar = await asyncio.to_thread(_similar_names, qualified, await self.catalog())
        hint = f". Did you mean {' or '.join(similar)}?" if similar else ""
        return UpstreamError(
            prefix[:200],
            tool[:200],
            f"There is no tool {shown}{hint}",
            kind="unknown_tool",
            details={"suggestions": similar},
        )

    # --- status ---

    def health(self) -> dict[str, Any]:
        """Returns the gateway's part of `/health`."""
        return {"status": "ok", "search": {"ready": self._can_search, "semantic": False}}

    def connecting(self) -> list[str]:
        """Returns the names of the servers whose first connection attempt has not finished."""
        return [
            server.name for server in self.servers() if server.state == "connecting" and not server.was_tried
        ]

    async def status(self) -> dict[str, Any]:
        snapshot = await self._current_or_stale()
        catalog = Catalog() if snapshot is None else snapshot.catalog
        counts: dict[str, int] = {}
        for entry in catalog:
            counts[entry.server] = counts.get(entry.server, 0) + 1
        known = [(entry.server, entry.tool) for entry in catalog]
        known += [(server.name, "") for server in self.servers()]
        servers = [
            {
                "name": server.name,
                "title": server.title,
                "state": server.state,
                "error": server.error,
                "warnings": [*server.warnings],
                "tools": counts.get(server.name, 0),
            }
            for server in self.servers()
        ]
        return {
            "status": "ok",
            "revision": self.revision,
            "uptimeSeconds": round(time.monotonic() - self._started_at, 3),
            "tools": len(catalog),
            "servers": servers,
            "collisions": [collision._asdict() for collision in catalog.collisions],
            "problems": [] if snapshot is None else await self._problems(snapshot),
            "approvals": {
                "pending": len(self.approvals.pending()),
                "rules": self.approvals.policy.rules,
                "unmatchedRules": self.approvals.policy.unmatched(known),
            },
        }

    async def _problems(self, snapshot: _CatalogSnapshot) -> list[dict[str, Any]]:
        """Returns problems of tools that the owners of the MCP servers should fix."""
        if snapshot.problems is None:
            snapshot.problems = await asyncio.to_thread(_find_problems, snapshot.catalog)
        return snapshot.problems

    # --- snapshots ---

    async def _current(self) -> _CatalogSnapshot:
        snapshot = self._snapshot
        if snapshot is not None and snapshot.revision == self._tools.revision:
            return snapshot
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load())
        # Use a shield, because other callers may wait for the same task.
        return await asyncio.shield(self._loading)

    async def _load(self) -> _CatalogSnapshot:
        tools = await self._tools.tools()
        # Read the revision before the next await, so that it belongs to these tools.
        revision, servers = self._tools.revision, self.servers()
        if len(tools) <= _MAX_TOOLS_IN_LOOP:
            catalog = Catalog.of(tools, servers)
        else:
            catalog = await asyncio.to_thread(Catalog.of, tools, servers)
        self._snapshot = _CatalogSnapshot(revision, catalog)
        return self._snapshot

    async def _current_or_stale(self) -> _CatalogSnapshot | None:
        """Returns the current snapshot, or the previous one if loading takes longer than STATUS_SECONDS."""
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                return await self._current()
        except TimeoutError:
            return self._snapshot


def _build_index(catalog: Catalog) -> SearchIndex:
    from hutch.protocols.toolscript.gateway.search.index import SearchIndex

    return SearchIndex(catalog)


def _similar_names(name: str, catalog: Catalog) -> list[str]:
    from hutch.protocols.toolscript.gateway.search.index import similar_names

    return similar_names(name, (entry.qualified for entry in catalog))


def _find_problems(catalog: Catalog) -> list[dict[str, Any]]:
    problems = [
        {
            "server": server,
            "tool": tool,
            "message": "its server has two tools of this name; the first one is used",
        }
        for server, tool in catalog.duplicates
    ]
    for entry in catalog:
        problems += [
            {"server": entry.server, "tool": entry.tool, "message": fault} for fault in schema_problems(entry)
        ]
    return problems
