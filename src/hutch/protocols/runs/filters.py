"""Parses the filters, the order and the cursor of a list of runs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, get_args

import msgspec

from hutch.errors import InvalidInput
from hutch.store.models import now
from hutch.store.tables.run_search import ALL_ENDED, Match, RunQuery, SortColumn, SortKey
from hutch.text import cut, did_you_mean, format_rfc3339

STATUSES = ("pending", "running", "completed", "failed", "suspended")
PROTOCOLS = ("execbox", "tpmjs", "toolscript", "abilities", "rep", "mcp", "python", "cli")
ENGINES = ("quickjs", "deno", "npm", "script", "hutch")
"""Engines of executions, and of flow runs. Flow runs may also have other engines."""
OPEN_STATUSES = frozenset({"pending", "running"})
MAX_PAGE_SIZE = 1_000
MAX_VALUES = 50
MAX_VALUE_CHARS = 300

LIST_PARAMETERS = ("status", "protocol", "owner", "code", "engine", "label", "tool", "host", "text")
"""Parameters with several values."""
_SINGLE = ("parent", "since", "until", "sort", "order", "limit", "cursor", "before", "counts")
_AGO = re.compile(r"(\d{1,9})\s*([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_ORDERS = ("asc", "desc")


class RunListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request for a list of runs."""

    search: RunQuery
    statuses: frozenset[str] = frozenset(STATUSES)
    with_counts: bool = True

    @property
    def includes_open(self) -> bool:
        # Runs in progress have no duration yet, so a list in the order of the durations leaves them out.
        return bool(self.statuses & OPEN_STATUSES) and self.search.sort == "created"

    @property
    def includes_ended(self) -> bool:
        return bool(self.statuses - OPEN_STATUSES)


def parse_list_query(parameters: Iterable[tuple[str, str]]) -> RunListQuery:
    """Parses query parameters. Raises InvalidInput, which names the parameter."""
    values: dict[str, list[str]] = {}
    for name, value in parameters:
        base = name.removeprefix("not_")
        if base not in (LIST_PARAMETERS if base != name else (*LIST_PARAMETERS, *_SINGLE)):
            known = ", ".join((*LIST_PARAMETERS, *_SINGLE))
            raise InvalidInput(cut(name, 40), f"there is no such parameter; expected one of {known}.")
        if "\0" in value or len(value) > MAX_VALUE_CHARS:
            raise InvalidInput(name, f"expected at most {MAX_VALUE_CHARS} characters, without NUL.")
        values.setdefault(name, []).append(value)
    found = {name: _match(values, name) for name in LIST_PARAMETERS}
    _check_known("status", found["status"], STATUSES)
    _check_known("protocol", found["protocol"], PROTOCOLS)
    _check_known("engine", found["engine"], ENGINES, only_similar=True)
    statuses = frozenset(found["status"].any_of or STATUSES) - frozenset(found["status"].none_of)
    single = {name: values[name][-1] for name in _SINGLE if values.get(name, [""])[-1]}
    search = RunQuery(
        owner=found["owner"],
        protocol=found["protocol"],
        engine=found["engine"],
        label=found["label"],
        tool=found["tool"],
        host=found["host"],
        text=found["text"],
        outcome=found["code"],
        parent=single.get("parent"),
        ended=ALL_ENDED & statuses,
        since=_time(single, "since"),
        until=_time(single, "until"),
        sort=_choice(single, "sort", "created", get_args(SortColumn)),
        descending=_choice(single, "order", "desc", _ORDERS) == "desc",
        limit=_limit(single),
    )
    cursor = single.get("cursor") or single.get("before")
    if cursor is not None:
        search = msgspec.structs.replace(search, after=decode_cursor(cursor, search.sort))
    with_counts = cursor is None and _choice(single, "counts", "true", ("true", "false")) == "true"
    return RunListQuery(search=search, statuses=statuses, with_counts=with_counts)


def _match(values: Mapping[str, Sequence[str]], name: str) -> Match:
    any_of, none_of = [], [value for value in values.get(f"not_{name}", ()) if value]
    for text in values.get(name, ()):
        for value in filter(None, (part.strip() for part in text.split(","))):
            if value.startswith("-") and len(value) > 1:
                none_of.append(value[1:])
            else:
                any_of.append(value)
    if len(any_of) + len(none_of) > MAX_VALUES:
        raise InvalidInput(name, f"expected at most {MAX_VALUES} values, got {len(any_of) + len(none_of)}.")
    return Match(tuple(any_of), tuple(none_of))


def _check_known(name: str, match: Match, known: Sequence[str], *, only_similar: bool = False) -> None:
    """Raises InvalidInput for an unknown value. With `only_similar`, raises it only if the value resembles a
    known one.
    """
    for value in (*match.any_of, *match.none_of):
        if value in known:
            continue
        close = did_you_mean(value, known)
        if close is not None or not only_similar:
            hint = f" Did you mean {close}?" if close is not None else ""
            raise InvalidInput(name, f"expected one of {', '.join(known)}, got {value[:40]!r}.{hint}")


def _limit(single: Mapping[str, str]) -> int:
    text = single.get("limit", "100")
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= MAX_PAGE_SIZE):
        raise InvalidInput("limit", f"expected an integer from 1 to {MAX_PAGE_SIZE}, got {text[:40]!r}.")
    return int(text)


def _choice(single: Mapping[str, str], name: str, default: Any, allowed: Sequence[str]) -> Any:
    value = single.get(name, default)
    if value not in allowed:
        raise InvalidInput(name, f"expected one of {', '.join(allowed)}, got {value[:40]!r}.")
    return value


def _time(single: Mapping[str, str], name: str) -> str | None:
    text = single.get(name)
    return None if text is None else parse_time(text, name)


def parse_time(text: str, name: str) -> str:
    """Converts an RFC 3339 time or an age such as `15m` to the format of the tables. Raises InvalidInput."""
    if match := _AGO.fullmatch(text.strip()):
        seconds = int(match[1]) * _UNIT_SECONDS[match[2]]
        try:
            return now(plus_seconds=-seconds)
        except OverflowError:
            return ""  # earlier than the time of any run
    try:
        # Restore the plus sign, because an unescaped plus sign in a URL is decoded as a space.
        moment = datetime.fromisoformat(text.strip().replace(" ", "+"))
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            name, f"expected a time such as {now()}, or how long ago, such as 15m or 7d; got {text[:40]!r}."
        ) from None
    return format_rfc3339(moment)


def encode_cursor(key: SortKey) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode_cursor(text: str, sort: SortColumn) -> SortKey:
    """Raises InvalidInput if the cursor is malformed or belongs to a list in another order."""
    expected: Any = tuple[str, str] if sort == "created" else tuple[float, str]
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        key: SortKey = msgspec.json.decode(data, type=expected)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise InvalidInput(
            "cursor", "expected the `next` of a page with the same filters and order."
        ) from None
    return key


class Matchable(Protocol):
    """A run that is not in the table of records: a run in progress, or a flow run."""

    @property
    def entry(self) -> Mapping[str, Any]: ...

    @property
    def tools(self) -> Sequence[str]: ...

    @property
    def hosts(self) -> Sequence[str]: ...


def matches(run: Matchable, query: RunListQuery) -> bool:
    """Returns True if a run in memory matches the filters that the database applies to records."""
    entry, search = run.entry, query.search
    if entry["status"] not in query.statuses or search.outcome.any_of:
        return False
    created = entry["created_at"]
    if (search.since and created < search.since) or (search.until and created >= search.until):
        return False
    if search.after is not None:
        key = (created, entry["run_id"])
        if not (key < search.after if search.descending else key > search.after):
            return False
    if search.parent is not None and entry["parent_run_id"] != search.parent:
        return False
    texts = [text.lower() for text in (entry["run_id"], entry["label"] or "", *run.tools, *run.hosts)]
    return (
        all(_matches_value(getattr(search, name), [entry[name]]) for name in ("owner", "protocol", "engine"))
        and _matches_value(search.tool, run.tools)
        and _matches_value(search.host, run.hosts)
        and _matches(search.label, lambda label: _is_label(label, entry["label"]))
        and _matches(search.text, lambda text: any(text.lower() in each for each in texts))
    )


def _matches(match: Match, found: Any) -> bool:
    return (not match.any_of or any(map(found, match.any_of))) and not any(map(found, match.none_of))


def _matches_value(match: Match, values: Sequence[str]) -> bool:
    return _matches(match, lambda value: value in values)


def _is_label(pattern: str, label: str | None) -> bool:
    if label is None:
        return False
    pattern, label = pattern.lower(), label.lower()
    return label.startswith(pattern[:-1]) if pattern.endswith("*") else label == pattern
