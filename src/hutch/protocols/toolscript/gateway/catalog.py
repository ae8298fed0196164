"""Catalog of all tools, with their names in scripts, HTTP requests and filters."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from hutch.session.json_value import well_formed

# Maximum length of a script name, because servers may use names of any length.
MAX_NAME = 100

# Names that tools and servers do not get in scripts, because JavaScript looks up these properties implicitly.
# For example, awaiting a namespace must not call a tool named `then`.
_LOOKED_UP_WORDS = """
    constructor hasOwnProperty isPrototypeOf propertyIsEnumerable prototype then toJSON toLocaleString
    toString valueOf
"""
_LOOKED_UP = frozenset(_LOOKED_UP_WORDS.split())


class ToolInfo(Protocol):
    """A tool as described by its MCP server."""

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
    @property
    def annotations(self) -> Mapping[str, Any] | None: ...
    @property
    def reads_resources(self) -> bool: ...


class ServerInfo(Protocol):
    """An MCP server, connected or not."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str | None: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def state(self) -> str: ...
    @property
    def was_tried(self) -> bool: ...
    @property
    def error(self) -> str | None: ...
    @property
    def warnings(self) -> Sequence[str]: ...


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool and its names. The name is `tools.<namespace>.<member>` in scripts and `qualified` everywhere
    else.
    """

    server: str
    tool: str
    namespace: str
    member: str
    qualified: str
    description: str | None = None
    input_schema: Any = None
    output_schema: Any = None
    idempotent: bool = False
    """True if the server says that a call may be made again."""
    reads_only: bool = False
    """True if the server says that a call changes nothing."""
    reads_resources: bool = False
    """True for the tool that Hutch itself adds to servers with resources."""


class CatalogCollision(NamedTuple):
    """Several original names for which the script name would be `name`, and the script names that they got
    instead.

    The original names are names of tools of `server`, or names of servers if `server` is None.
    """

    server: str | None
    name: str
    became: dict[str, str]


class Catalog:
    """All tools of all servers, in order and without duplicates."""

    def __init__(
        self,
        entries: Sequence[CatalogEntry] = (),
        collisions: Sequence[CatalogCollision] = (),
        duplicates: Sequence[tuple[str, str]] = (),
        about: Mapping[str, str] | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> None:
        self.entries = entries
        self.collisions = collisions
        self.duplicates = duplicates
        """(server, tool) names that a server used twice. The second tool cannot be called."""
        self.about = about or {}
        """Titles and instructions of the servers, by server name."""
        names = (entry.namespace for entry in entries) if namespaces is None else namespaces
        self.namespaces = list(dict.fromkeys(names))
        """Namespaces of all servers, including those that a filter leaves out."""
        self._qualified = {entry.qualified: entry for entry in entries}
        self._original = {(entry.server, entry.tool): entry for entry in entries}

    @classmethod
    def of(cls, tools: Iterable[ToolInfo], servers: Sequence[ServerInfo] = ()) -> Catalog:
        """Builds the catalog. Servers keep the given order. Servers that only occur in `tools` come last."""
        by_server: dict[str, dict[str, ToolInfo]] = {server.name: {} for server in servers}
        duplicates: list[tuple[str, str]] = []
        for tool in tools:
            tools_of_server = by_server.setdefault(tool.server, {})
            if tool.name in tools_of_server:
                duplicates.append((tool.server, tool.name))
            tools_of_server.setdefault(tool.name, tool)
        by_server = {server: named for server, named in by_server.items() if named}
        namespaces = assign_names(by_server, "server")
        collisions = [CatalogCollision(None, *collision) for collision in namespaces.collisions]
        entries: list[CatalogEntry] = []
        taken: dict[str, int] = {}
        for server, named in by_server.items():
            members = assign_names(named, "tool")
            collisions += [CatalogCollision(server, *collision) for collision in members.collisions]
            for tool in named.values():
                entries.append(_entry(tool, namespaces.names[server], members.names[tool.name], taken))
        about = {
            server.name: f"{server.title or ''}\n\n{server.instructions or ''}".strip() for server in servers
        }
        return cls(entries, collisions, duplicates, about)

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def by_qualified_name(self, qualified: str) -> CatalogEntry | None:
        return self._qualified.get(qualified)

    def by_original_name(self, server: str, tool: str) -> CatalogEntry | None:
        return self._original.get((server, tool))

    def filtered(self, only: str | None) -> Catalog:
        """Returns the entries that match a filter such as `server,server__tool,tools.server.tool`. An empty
        filter selects everything. The names of the entries do not change.
        """
        names = set(filter_items(only))
        if not names:
            return self
        entries = [entry for entry in self.entries if not names.isdisjoint(_filter_names(entry))]
        return Catalog(entries, self.collisions, self.duplicates, self.about, self.namespaces)

    def unknown_items(self, only: str | None) -> list[str]:
        """Returns the filter items that match nothing."""
        known = {name for entry in self.entries for name in _filter_names(entry)}
        return [item for item in filter_items(only) if item not in known]


def filter_items(only: str | None) -> list[str]:
    items = (item.strip() for item in (only or "").split(","))
    return list(dict.fromkeys(item for item in items if item))


def _filter_names(entry: CatalogEntry) -> tuple[str, ...]:
    namespace, in_script = entry.namespace, f"{entry.namespace}.{entry.member}"
    return (
        *(entry.server, namespace, f"tools.{namespace}"),
        *(entry.qualified, f"{entry.server}__{entry.tool}", f"{namespace}__{entry.member}"),
        *(in_script, f"tools.{in_script}"),
    )


def _entry(tool: ToolInfo, namespace: str, member: str, taken: dict[str, int]) -> CatalogEntry:
    base = qualified = well_formed(f"{tool.server}__{tool.name}")
    # Number the name if it is taken. Tool `b__c` of server `a` and tool `c` of server `a__b` have the same
    # qualified name.
    while qualified in taken:
        taken[base] += 1
        qualified = f"{base}__{taken[base]}"
    taken[qualified] = 1
    return CatalogEntry(
        server=tool.server,
        tool=tool.name,
        namespace=namespace,
        member=member,
        qualified=qualified,
        description=tool.description if isinstance(tool.description, str) else None,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        idempotent=_is_idempotent(tool.annotations),
        reads_only=(tool.annotations or {}).get("readOnlyHint") is True,
        reads_resources=tool.reads_resources,
    )


def _is_idempotent(annotations: Mapping[str, Any] | None) -> bool:
    hints = annotations or {}
    return hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True


# --- names in scripts ---


class NameCollision(NamedTuple):
    """Several original names for which the script name would be `name`, and the script names that they got
    instead.
    """

    name: str
    became: dict[str, str]


class ScriptNames(NamedTuple):
    """Script names by original name, in order."""

    names: dict[str, str]
    collisions: list[NameCollision]


def assign_names(originals: Iterable[str], default: str) -> ScriptNames:
    """Assigns script names. The result does not depend on the order of the original names.

    On a collision, one original name gets the script name unchanged: preferably a name that equals the script
    name, or one in plain ASCII. The others get the script name with a number. `default` is used for names
    without letters or digits.
    """
    wanted = {original: camel_case(original) or default for original in originals}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for original, name in wanted.items():
        groups[name].append(original)
    assigned: dict[str, str] = {}
    for name, group in groups.items():
        group.sort(key=lambda original: _rank(original, name))
        assigned[group[0]] = name
    # Number the remaining names with an underscore. They cannot collide with others, because camelCase names
    # contain no underscores.
    for name, group in groups.items():
        for number, original in enumerate(group[1:], 2):
            assigned[original] = f"{name.rstrip('_')}_{number}"
    collisions = [
        NameCollision(name, {original: assigned[original] for original in group})
        for name, group in groups.items()
        if len(group) > 1
    ]
    return ScriptNames({original: assigned[original] for original in wanted}, collisions)


def camel_case(original: str) -> str:
    """Converts a name to camelCase. Returns an empty string if no character is usable.

    `create_issue` and `create-issue` become `createIssue`. `getUserName` stays the same.
    """
    words = _words(original)
    if not words:
        return ""
    if not any(char.islower() for word in words for char in word):
        words = [word.lower() for word in words]
    first = _lower_start(words[0])
    name = (first + "".join(word[0].upper() + word[1:] for word in words[1:]))[:MAX_NAME]
    if not _is_identifier(name):
        name = f"_{name}"
    return f"{name}_" if name in _LOOKED_UP else name


def _words(original: str) -> list[str]:
    text = unicodedata.normalize("NFC", original[: 2 * MAX_NAME])
    # Replace all other characters by spaces, because names can contain only letters, digits, $ and combining
    # marks.
    spaced = "".join(char if char != "_" and _is_identifier(f"_{char}") else " " for char in text)
    return spaced.split()


def _lower_start(word: str) -> str:
    """Lowers the first letter or acronym: `GetUser` to `getUser`, `HTTPGet` to `httpGet`, `ID` to `id`."""
    capitals = next((index for index, char in enumerate(word) if not char.isupper()), len(word))
    if 1 < capitals < len(word) and word[capitals].islower():
        capitals -= 1
    return word[:capitals].lower() + word[capitals:]


def _is_identifier(text: str) -> bool:
    """Returns True for a JavaScript identifier. Python has the same rule, except for the dollar sign."""
    return text.replace("$", "_").isidentifier()


def _rank(original: str, name: str) -> tuple[bool, bool, str]:
    plain = original.isascii() and original.replace("_", "a").isalnum()
    return original != name, not plain, original
