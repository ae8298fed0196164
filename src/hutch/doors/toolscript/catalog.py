"""The catalog: every tool under the names by which scripts, HTTP clients and filters know it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from hutch.doors.toolscript.names import name_all
from hutch.session.jsonvalue import well_formed


class Tool(Protocol):
    """A tool of an MCP server, as the server describes it."""

    @property
    def server(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def output_schema(self) -> Mapping[str, Any] | None: ...


class Server(Protocol):
    """An MCP server, whether it can be reached or not."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str | None: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def warnings(self) -> Sequence[str]: ...


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool and its names: `tools.<namespace>.<member>` in scripts, `qualified` everywhere else."""

    server: str
    tool: str
    namespace: str
    member: str
    qualified: str
    description: str | None = None
    input_schema: Any = None
    output_schema: Any = None


class Clash(NamedTuple):
    """Tools of a server, or servers, that would have the same name in scripts, and what they have instead."""

    server: str | None
    name: str
    became: dict[str, str]


class Catalog:
    """All tools of all servers, in order, each once."""

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        collisions: Sequence[Clash] = (),
        duplicates: Sequence[tuple[str, str]] = (),
        about: Mapping[str, str] | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> None:
        self.entries = entries
        self.collisions = collisions
        self.duplicates = duplicates
        """Servers and tools: names that a server gave to two of its tools; the second cannot be called."""
        self.about = about or {}
        """What servers say of themselves, by name."""
        names = (each.namespace for each in entries) if namespaces is None else namespaces
        self.namespaces = list(dict.fromkeys(names))
        """Of all servers, also of those that a filter leaves out."""
        self._qualified = {each.qualified: each for each in entries}
        self._original = {(each.server, each.tool): each for each in entries}

    @classmethod
    def of(cls, tools: Iterable[Tool], servers: Sequence[Server] = ()) -> Catalog:
        """Servers in their own order, then those that only tools tell of."""
        by_server: dict[str, dict[str, Tool]] = {each.name: {} for each in servers}
        twice: list[tuple[str, str]] = []
        for each in tools:
            known = by_server.setdefault(each.server, {})
            if each.name in known:
                twice.append((each.server, each.name))
            known.setdefault(each.name, each)
        by_server = {server: known for server, known in by_server.items() if known}
        namespaces = name_all(by_server, "server")
        clashes = [Clash(None, *each) for each in namespaces.collisions]
        entries: list[Entry] = []
        taken: dict[str, int] = {}
        for server, known in by_server.items():
            members = name_all(known, "tool")
            clashes += [Clash(server, *each) for each in members.collisions]
            for tool in known.values():
                entries.append(_entry(tool, namespaces.names[server], members.names[tool.name], taken))
        about = {each.name: f"{each.title or ''}\n\n{each.instructions or ''}".strip() for each in servers}
        return cls(entries, clashes, twice, about)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def called(self, qualified: str) -> Entry | None:
        return self._qualified.get(qualified)

    def original(self, server: str, tool: str) -> Entry | None:
        return self._original.get((server, tool))

    def filtered(self, only: str | None) -> Catalog:
        """What `server,server__tool` names, under the same names as ever; everything if it names nothing."""
        wanted = set(filter_items(only))
        if not wanted:
            return self
        entries = [each for each in self.entries if not wanted.isdisjoint(_answers_to(each))]
        return Catalog(entries, self.collisions, self.duplicates, self.about, self.namespaces)

    def unknown(self, only: str | None) -> list[str]:
        """What a filter names that is not here."""
        known = {name for each in self.entries for name in _answers_to(each)}
        return [each for each in filter_items(only) if each not in known]


def filter_items(only: str | None) -> list[str]:
    items = (item.strip() for item in (only or "").split(","))
    return list(dict.fromkeys(item for item in items if item))


def _answers_to(entry: Entry) -> tuple[str, ...]:
    in_script = f"{entry.namespace}__{entry.member}"
    return entry.server, entry.namespace, entry.qualified, f"{entry.server}__{entry.tool}", in_script


def _entry(tool: Tool, namespace: str, member: str, taken: dict[str, int]) -> Entry:
    base = qualified = well_formed(f"{tool.server}__{tool.name}")
    # `a` with `b__c` and `a__b` with `c` are two tools.
    while qualified in taken:
        taken[base] += 1
        qualified = f"{base}__{taken[base]}"
    taken[qualified] = 1
    return Entry(
        server=tool.server,
        tool=tool.name,
        namespace=namespace,
        member=member,
        qualified=qualified,
        description=tool.description if isinstance(tool.description, str) else None,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
    )
