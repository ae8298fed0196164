"""Search of run records with filters, a cursor and bounded work.

A search walks an index in the order of the result. One filter chooses the index, and the others are checked
on at most MAX_SCANNED rows. If the page is not full by then, the search returns the position that it has
reached, and the next request continues from there. So the number of rows that a request reads is bounded,
whatever the filters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from hutch.store.backends.base import Database, Values
from hutch.store.models import RunRow

MAX_SCANNED = 5_000
"""Maximum number of rows that one search reads, and maximum number of rows that a count reads."""
MAX_SCANNED_OF_OWNER = 1_000
"""Like MAX_SCANNED, for filters that the index of an owner does not answer. The rows of an owner are
scattered over the table, so reading one takes several times longer than reading neighbouring rows.
"""
MAX_SCANNED_SLOWLY = 500
"""Like MAX_SCANNED, for a search for text, a tool or a host, which takes many times longer for each row: a
text is compared with several columns, and tools and hosts are in another table.
"""
SEARCH_SECONDS = 2.0
"""Time limit of one statement. MAX_SCANNED rows take much less, so only a busy machine reaches it."""

EndedStatus = Literal["completed", "failed", "suspended"]
ALL_ENDED: frozenset[EndedStatus] = frozenset({"completed", "failed", "suspended"})
"""Statuses of runs that have a record."""


def status_of(outcome: str) -> EndedStatus:
    if outcome == "suspended":
        return "suspended"
    return "completed" if outcome == "ok" else "failed"


_IS_STATUS: dict[EndedStatus, str] = {
    "completed": "{}outcome = 'ok'",
    "failed": "({0}outcome <> 'ok' AND {0}outcome <> 'suspended')",
    "suspended": "{}outcome = 'suspended'",
}

SortColumn = Literal["created", "duration"]
SortKey = tuple[str | float, str]
"""Value of the sort column and id of a run."""
_SORT_COLUMNS = {"created": "created_at", "duration": "duration_ms"}


class Match(msgspec.Struct, frozen=True):
    """Values of a column that a filter includes and excludes."""

    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.any_of or self.none_of)

    @property
    def single(self) -> str | None:
        """The value that is included if it is the only one, otherwise None."""
        return self.any_of[0] if len(self.any_of) == 1 else None


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters, order and page of a search."""

    owner: Match = Match()
    protocol: Match = Match()
    engine: Match = Match()
    label: Match = Match()
    """A value that ends in `*` matches every label with that prefix."""
    outcome: Match = Match()
    tool: Match = Match()
    host: Match = Match()
    text: Match = Match()
    """Texts to search for in the id, the label, the outcome, the error message, the tools and the hosts of a
    run.
    """
    parent: str | None = None
    ended: frozenset[EndedStatus] = ALL_ENDED
    since: str | None = None
    until: str | None = None
    sort: SortColumn = "created"
    descending: bool = True
    limit: int = 100
    after: SortKey | None = None
    """Sort key after which the page begins."""


class RunPage(NamedTuple):
    runs: list[RunRow]
    next: SortKey | None
    """Sort key for the next page; None if this is the last page."""
    is_partial: bool
    """True if the search stopped at MAX_SCANNED rows before the page was full."""


class RunCounts(NamedTuple):
    completed: int
    failed: int
    suspended: int
    is_complete: bool


class _Conditions:
    """Conditions of a WHERE clause with their parameters."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.values: dict[str, Any] = {}

    def add(self, text: str, **values: Any) -> None:
        self.texts.append(text)
        self.values.update(values)

    @property
    def sql(self) -> str:
        return " AND ".join(self.texts) or "TRUE"


class RunSearch:
    def __init__(
        self,
        database: Database,
        columns: str,
        read_row: Callable[[Values], RunRow],
        decrypt: Callable[[str, str], Awaitable[str | None]],
    ) -> None:
        """`decrypt` returns the error message of the run with this id, or None if it cannot be decrypted."""
        self._database = database
        self._columns = columns
        self._read_row = read_row
        self._decrypt = decrypt

    async def page(self, query: RunQuery) -> RunPage:
        source, index, rest = _plan(query)
        # If the index answers all conditions, every row that it returns belongs to the page.
        is_exact = not rest.texts and not query.text
        scanned_rows = query.limit if is_exact else _max_scanned(query)
        scanned = f"SELECT r.* FROM {source} WHERE {index.sql} ORDER BY {_order(query)} LIMIT {scanned_rows}"
        values = {**index.values, **rest.values}
        if query.text:
            rows = await self._with_text(query, scanned, rest, values, self._columns)
            runs = [self._read_row(row) for row in rows[: query.limit]]
        else:
            # Do not add an outer ORDER BY, because SQLite would then read all rows before it returns the
            # first one. It is not needed, because both databases return the rows in the order of the inner
            # query.
            sql = f"SELECT {self._columns} FROM ({scanned}) AS runs WHERE {rest.sql} LIMIT :limit"
            rows = await self._database.search(sql, SEARCH_SECONDS, **values, limit=query.limit)
            runs = [self._read_row(row) for row in rows]
        if len(runs) >= query.limit:
            return RunPage(runs, sort_key(runs[-1], query.sort), False)
        # If the index answers all conditions, fewer rows than the limit means that there are no more rows.
        last = None if is_exact else await self._last_scanned(query)
        return RunPage(runs, last, last is not None)

    async def _with_text(
        self, query: RunQuery, scanned: str, rest: _Conditions, values: dict[str, Any], columns: str
    ) -> list[Values]:
        """Returns columns of those scanned rows that match the texts. The database searches the columns that
        it can read. Error messages are encrypted, so this method decrypts and searches them.
        """
        texts = [*query.text.any_of, *query.text.none_of]
        wanted = len(query.text.any_of)
        names = _names("text", texts)
        flags = ", ".join(f"CASE WHEN {_has_text(name)} THEN 1 ELSE 0 END AS {name}" for name in names)
        is_match = " AND ".join(
            [f"({' OR '.join(f'{name} = 1' for name in names[:wanted]) or 'TRUE'})"]
            + [f"{name} = 0" for name in names[wanted:]]
        )
        sql = f"""
            WITH flagged AS MATERIALIZED (
                SELECT {flags}, runs.* FROM ({scanned}) AS runs WHERE {rest.sql}
            )
            SELECT {", ".join(names)}, run_id, error_message, {columns}
            FROM flagged WHERE error_message IS NOT NULL OR ({is_match})
        """
        patterns = dict(zip(names, map(_contains, texts), strict=True))
        matching: list[Values] = []
        for row in await self._database.search(sql, SEARCH_SECONDS, **values, **patterns):
            *found, run_id, encrypted = row[: len(texts) + 2]
            message = "" if encrypted is None else (await self._decrypt(run_id, encrypted) or "").lower()
            has_text = [flag == 1 or text.lower() in message for flag, text in zip(found, texts, strict=True)]
            if (any(has_text[:wanted]) or not wanted) and not any(has_text[wanted:]):
                matching.append(row[len(texts) + 2 :])
        return matching

    async def _last_scanned(self, query: RunQuery) -> SortKey | None:
        """Returns the sort key of the last row that was scanned for a page, or None if there are no further
        rows.
        """
        source, index, _ = _plan(query)
        column = _SORT_COLUMNS[query.sort]
        table = "r"
        if _target(query):
            # The table of tools and hosts has both columns, so do not read the runs.
            source, table = "run_targets AS t", "t"
        sql = f"""
            SELECT {table}.{column}, {table}.run_id FROM {source} WHERE {index.sql}
            ORDER BY {_order(query)} LIMIT 1 OFFSET :skipped
        """
        rows = await self._database.search(
            sql, SEARCH_SECONDS, **index.values, skipped=_max_scanned(query) - 1
        )
        return (rows[0][0], rows[0][1]) if rows else None

    async def counts(self, query: RunQuery) -> RunCounts:
        """Counts the newest runs that match, without the filters for status and outcome."""
        query = msgspec.structs.replace(
            query, ended=ALL_ENDED, outcome=Match(), after=None, sort="created", descending=True
        )
        source, index, rest = _plan(query)
        needed = "r.*" if rest.texts or query.text else "r.outcome"
        maximum = _max_scanned(query)
        scanned = f"SELECT {needed} FROM {source} WHERE {index.sql} ORDER BY {_order(query)} LIMIT {maximum}"
        if query.text:
            values = {**index.values, **rest.values}
            outcomes = await self._with_text(query, scanned, rest, values, "outcome")
            found = Counter(status_of(outcome) for (outcome,) in outcomes)
            is_complete = await self._last_scanned(query) is None
            return RunCounts(found["completed"], found["failed"], found["suspended"], is_complete)
        matches = rest.sql
        sql = f"""
            SELECT COUNT(*),
                COALESCE(SUM(CASE WHEN {matches} THEN 1 ELSE 0 END), 0),
                COALESCE(SUM(CASE WHEN outcome = 'ok' AND {matches} THEN 1 ELSE 0 END), 0),
                COALESCE(SUM(CASE WHEN outcome = 'suspended' AND {matches} THEN 1 ELSE 0 END), 0)
            FROM ({scanned}) AS runs
        """
        values = {**index.values, **rest.values}
        (row,) = await self._database.search(sql, SEARCH_SECONDS, **values)
        seen, matched, completed, suspended = map(int, row)
        return RunCounts(completed, matched - completed - suspended, suspended, seen < maximum)


def sort_key(run: RunRow, sort: SortColumn) -> SortKey:
    return (run.created_at if sort == "created" else run.duration_ms), run.run_id


def _max_scanned(query: RunQuery) -> int:
    if query.text or query.tool or query.host:
        return min(MAX_SCANNED, MAX_SCANNED_SLOWLY)
    if query.owner.single is not None and _plan(query)[2].texts:
        return min(MAX_SCANNED, MAX_SCANNED_OF_OWNER)
    return MAX_SCANNED


def _order(query: RunQuery) -> str:
    direction = "DESC" if query.descending else "ASC"
    source = "t" if _target(query) else "r"
    return f"{source}.{_SORT_COLUMNS[query.sort]} {direction}, {source}.run_id {direction}"


def _target(query: RunQuery) -> tuple[str, str] | None:
    """Returns the kind (tool or host) and the name if the search walks the index of one tool or host.
    Otherwise returns None.
    """
    if query.sort == "created" and query.owner.single is None:
        for kind, match in (("tool", query.tool), ("host", query.host)):
            if match.single is not None:
                return kind, match.single
    return None


def _plan(query: RunQuery) -> tuple[str, _Conditions, _Conditions]:
    """Returns the table whose index the search walks, the conditions that this index answers, and the
    remaining conditions, without the search for texts.
    """
    index, rest = _Conditions(), _Conditions()
    target = _target(query)
    source = "runs AS r"
    used: set[str] = set()
    if target is not None:
        source = "run_targets AS t JOIN runs AS r ON r.run_id = t.run_id"
        index.add("t.kind = :target_kind AND t.name = :target", target_kind=target[0], target=target[1])
        used.add(target[0])
    else:
        used |= _choose_index(query, index)
    _add_range(query, index, rest, "t" if target else "r")
    _add_columns(query, rest, used)
    _add_targets(query, rest, used)
    return source, index, rest


def _choose_index(query: RunQuery, index: _Conditions) -> set[str]:
    """Chooses the index that probably has the fewest matching rows, and adds its conditions. Returns the
    names of the filters that these conditions cover.
    """
    used: set[str] = set()
    if query.owner.single is not None:
        # Read only rows of this owner, because the cursor contains the sort key of the last row that was
        # read. If that row belonged to another owner, its key would be revealed.
        index.add("r.owner = :owner", owner=query.owner.single)
        used.add("owner")
    if query.sort == "duration":
        return used
    if query.parent is not None:
        index.add("r.parent_run_id = :parent", parent=query.parent)
        return {*used, "parent"}
    if not used and query.label.single is not None and not query.label.single.endswith("*"):
        index.add("r.label = :label", label=query.label.single)
        return {"label"}
    if not used and query.outcome.single is not None and query.outcome.single != "ok":
        index.add("r.outcome = :outcome", outcome=query.outcome.single)
        return {"outcome", "ended"} if status_of(query.outcome.single) in query.ended else {"outcome"}
    if not used and query.ended == {"suspended"}:
        index.add(_IS_STATUS["suspended"].format("r."))
        return {"ended"}
    if "completed" not in query.ended:
        index.add("r.outcome <> 'ok'")
        if query.ended == {"failed"}:
            # This index also contains suspended runs. They are few, so skipping them is cheap.
            index.add("r.outcome <> 'suspended'")
        if "failed" in query.ended:
            used.add("ended")
    if query.protocol.single is not None and not used:
        index.add("r.protocol = :protocol", protocol=query.protocol.single)
        used.add("protocol")
    return used


def _add_range(query: RunQuery, index: _Conditions, rest: _Conditions, table: str) -> None:
    by_time = query.sort == "created"
    times, time_table = (index, table) if by_time else (rest, "runs")
    if query.since is not None:
        times.add(f"{time_table}.created_at >= :since", since=query.since)
    if query.until is not None:
        times.add(f"{time_table}.created_at < :until", until=query.until)
    if query.after is not None:
        column, sign = _SORT_COLUMNS[query.sort], "<" if query.descending else ">"
        value, run_id = query.after
        index.add(
            f"({table}.{column}, {table}.run_id) {sign} (:after_value, :after_id)",
            after_value=value,
            after_id=run_id,
        )


def _add_columns(query: RunQuery, rest: _Conditions, used: set[str]) -> None:
    for name in ("owner", "protocol", "engine", "outcome"):
        match: Match = getattr(query, name)
        if match.any_of and name not in used:
            rest.add(f"{name} IN :{name}_in", **{f"{name}_in": [*match.any_of]})
        if match.none_of:
            rest.add(f"{name} NOT IN :{name}_out", **{f"{name}_out": [*match.none_of]})
    if query.label.any_of and "label" not in used:
        names = _names("label", query.label.any_of)
        rest.add(
            "(" + " OR ".join(f"LOWER(label) LIKE :{name} ESCAPE '!'" for name in names) + ")",
            **dict(zip(names, map(_label_pattern, query.label.any_of), strict=True)),
        )
    for name, label in zip(_names("not_label", query.label.none_of), query.label.none_of, strict=True):
        rest.add(
            f"(label IS NULL OR LOWER(label) NOT LIKE :{name} ESCAPE '!')", **{name: _label_pattern(label)}
        )
    if query.parent is not None and "parent" not in used:
        rest.add("parent_run_id = :parent", parent=query.parent)
    if query.ended != ALL_ENDED and "ended" not in used:
        rest.add("(" + " OR ".join(_IS_STATUS[status].format("") for status in sorted(query.ended)) + ")")


def _add_targets(query: RunQuery, rest: _Conditions, used: set[str]) -> None:
    # Keep OFFSET 0: with it, PostgreSQL looks up each scanned row instead of reading all rows of a tool or
    # host.
    exists = """EXISTS (
        SELECT 1 FROM run_targets WHERE run_targets.run_id = runs.run_id AND kind = '{}' AND name IN :{}
        LIMIT 1 OFFSET 0
    )"""
    for kind, match in (("tool", query.tool), ("host", query.host)):
        if match.any_of and kind not in used:
            rest.add(exists.format(kind, f"{kind}_in"), **{f"{kind}_in": [*match.any_of]})
        if match.none_of:
            rest.add(f"NOT {exists.format(kind, f'{kind}_out')}", **{f"{kind}_out": [*match.none_of]})


def _has_text(name: str) -> str:
    like = f"LIKE :{name} ESCAPE '!'"
    # Keep OFFSET 0: with it, PostgreSQL looks up each scanned row instead of reading all tools and hosts.
    return f"""(
        LOWER(run_id) {like} OR outcome {like} OR (label IS NOT NULL AND LOWER(label) {like})
        OR EXISTS (
            SELECT 1 FROM run_targets WHERE run_targets.run_id = runs.run_id AND LOWER(name) {like}
            LIMIT 1 OFFSET 0
        )
    )"""


def _names(prefix: str, values: Sequence[str]) -> list[str]:
    return [f"{prefix}_{number}" for number in range(len(values))]


def _contains(text: str) -> str:
    return f"%{_escape(text.lower())}%"


def _label_pattern(label: str) -> str:
    label = label.lower()
    return f"{_escape(label[:-1])}%" if label.endswith("*") else _escape(label)


def _escape(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
