"""Renders a flow for a terminal (boxes and lines, or a list of steps if too wide) and as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hutch.protocols.rep.drawing.layout import (
    LayoutItem,
    clean,
    kind_of,
    label_of,
    lay_out,
    notes_on,
    seconds,
)
from hutch.protocols.rep.ir.flow import Flow
from hutch.text import columns

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
_LINES = {
    UP | DOWN: "│",
    LEFT | RIGHT: "─",
    DOWN | RIGHT: "╭",
    DOWN | LEFT: "╮",
    UP | RIGHT: "╰",
    UP | LEFT: "╯",
    UP | DOWN | RIGHT: "├",
    UP | DOWN | LEFT: "┤",
    DOWN | LEFT | RIGHT: "┬",
    UP | LEFT | RIGHT: "┴",
    UP | DOWN | LEFT | RIGHT: "┼",
}
_ASCII = str.maketrans("│─╭╮╰╯┌┐└┘├┤┬┴┼▼→≤…", "|-+++++++++++++v><~")


def draw(flow: Flow, columns: int = 100, *, ascii_only: bool = False) -> str:
    """Renders the flow as boxes, or as a list if the boxes need more than `columns` or there are too many
    steps.
    """
    lines = [heading(flow), ""]
    layers = lay_out(flow)
    widest = max(
        (item.centre + item.width // 2 + 1 for layer in layers for item in layer), default=columns + 1
    )
    lines += _picture(layers) if widest <= columns else listing(flow)
    text = "\n".join(line.rstrip() for line in lines)
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else text


def heading(flow: Flow) -> str:
    count = len(flow.nodes)
    parts = [f"{count} step{'' if count == 1 else 's'}"]
    if flow.timeout_ms:
        parts.append(f"≤ {seconds(flow.timeout_ms)}")
    return f"{flow.name}: {', '.join(parts)}"


def listing(flow: Flow) -> Iterator[str]:
    """Yields one line per step: id, kind, successors and conditions."""
    ordered = flow.order()
    ids = max(len(name) for name in ordered)
    kinds = max(columns(clean(kind_of(node))) for node in flow.nodes.values())
    for name in ordered:
        node = flow.nodes[name]
        ends = []
        for target in flow.successors(name):
            label = label_of([edge for edge in flow.outgoing(name) if edge.target == target])
            ends.append(f"{target} ({clean(label)})" if label else target)
        kind = clean(kind_of(node))
        notes = notes_on(node)
        after = f"→ {', '.join(ends)}" if ends else ""
        yield "  ".join(
            part
            for part in (
                f"{name:<{ids}}",
                kind + " " * (kinds - columns(kind)),
                after,
                f"[{notes}]" if notes else "",
            )
            if part
        )


# --- picture ---


class _Stroke(NamedTuple):
    """Part of a line in one cell. Lines that share a source or a target may join in a cell. Other lines only
    cross.
    """

    mask: int
    source: int
    target: int | None


class _Bar(NamedTuple):
    """The horizontal line from an item to all its successors that are not directly below it."""

    source: LayoutItem
    left: int
    right: int


class _Canvas:
    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], str] = {}
        self._strokes: dict[tuple[int, int], list[_Stroke]] = {}
        self.height = 0

    def write(self, row: int, column: int, text: str) -> None:
        for char in text:
            self._cells[row, column] = char
            size = columns(char)
            if size == 2:
                self._cells[row, column + 1] = ""
            column += size
        self.height = max(self.height, row + 1)

    def stroke(self, row: int, column: int, stroke: _Stroke) -> None:
        self._strokes.setdefault((row, column), []).append(stroke)
        self.height = max(self.height, row + 1)

    def lines(self) -> list[str]:
        for cell, strokes in self._strokes.items():
            self._cells.setdefault(cell, _char(strokes))
        rows: list[dict[int, str]] = [{} for _ in range(self.height)]
        for (row, column), char in self._cells.items():
            rows[row][column] = char
        return ["".join(row.get(column, " ") for column in range(max(row, default=-1) + 1)) for row in rows]


def _char(strokes: Sequence[_Stroke]) -> str:
    ends = {stroke.source for stroke in strokes}, {stroke.target for stroke in strokes}
    if len(ends[0]) > 1 and (len(ends[1]) > 1 or None in ends[1]):
        # Lines without a common source or target cross here, so the vertical one is drawn on top.
        strokes = [stroke for stroke in strokes if stroke.mask & (UP | DOWN)] or strokes
    mask = 0
    for stroke in strokes:
        mask |= stroke.mask
    return _LINES[mask]


def _picture(layers: list[list[LayoutItem]]) -> list[str]:
    canvas = _Canvas()
    row = 0
    for layer in layers:
        height = max(item.height for item in layer)
        for item in layer:
            _draw_item(canvas, item, row, height)
        row += height
        if layer is not layers[-1]:
            row = _connect(canvas, layer, row)
    return canvas.lines()


def _draw_item(canvas: _Canvas, item: LayoutItem, row: int, height: int) -> None:
    left = item.centre - item.width // 2
    if item.boxed:
        corners = "╭╮╰╯" if item.rounded else "┌┐└┘"
        inner = item.width - 2
        canvas.write(row, left, f"{corners[0]}{'─' * inner}{corners[1]}")
        for number, line in enumerate(item.lines, start=1):
            pad = inner - columns(line)
            canvas.write(row + number, left, f"│{' ' * (pad // 2)}{line}{' ' * (pad - pad // 2)}│")
        canvas.write(row + item.height - 1, left, f"{corners[2]}{'─' * inner}{corners[3]}")
        if item.below:
            canvas.write(row + item.height - 1, item.centre, "┬")
    elif item.lines:
        canvas.write(row, item.centre - columns(item.lines[0]) // 2, item.lines[0])
    own_height = item.height if item.lines else 0
    for number in range(own_height if item.below else height, height):
        canvas.write(row + number, item.centre, "│")


def _connect(canvas: _Canvas, layer: list[LayoutItem], row: int) -> int:
    """Draws the lines between a layer and the next layer. Returns the row of the next layer."""
    bars = [_bar(item) for item in layer if any(target.centre != item.centre for target in item.below)]
    tracks = _tracks(bars)
    last = row + (max(tracks.values(), default=-1) + 1)
    for item in layer:
        if not item.below:
            continue
        track = tracks.get(id(item))
        turn = last if track is None else row + track
        only = id(item.below[0]) if len(item.below) == 1 else None
        for line in range(row, turn):
            canvas.stroke(line, item.centre, _Stroke(UP | DOWN, id(item), only))
        for target in item.below:
            for line in range(turn + 1, last):
                canvas.stroke(line, target.centre, _Stroke(UP | DOWN, id(item), id(target)))
            canvas.write(last, target.centre, "▼" if target.boxed else "│")
    for bar in bars:
        _draw_bar(canvas, bar, row + tracks[id(bar.source)])
    return last + 1


def _bar(item: LayoutItem) -> _Bar:
    ends = [item.centre, *(target.centre for target in item.below)]
    return _Bar(item, min(ends), max(ends))


def _draw_bar(canvas: _Canvas, bar: _Bar, row: int) -> None:
    ends = {target.centre: id(target) for target in bar.source.below}
    only = next(iter(ends.values())) if len(ends) == 1 else None
    for column in range(bar.left, bar.right + 1):
        mask = (LEFT if column > bar.left else 0) | (RIGHT if column < bar.right else 0)
        if column == bar.source.centre:
            mask |= UP
        if column in ends:
            mask |= DOWN
        canvas.stroke(row, column, _Stroke(mask, id(bar.source), ends.get(column, only)))


def _tracks(bars: list[_Bar]) -> dict[int, int]:
    """Assigns each bar to a row, so that bars do not touch each other.

    A bar is placed below another bar if it would otherwise overlap that bar's vertical line.
    """
    tracks: dict[int, int] = {}
    taken: list[list[_Bar]] = []
    for bar in _upper_first(bars):
        ends = {target.centre for target in bar.source.below}
        first = max(
            (
                tracks[id(other.source)] + 1
                for other in bars
                if id(other.source) in tracks and other.source.centre in ends
            ),
            default=0,
        )
        track = next(
            (
                number
                for number in range(first, len(taken))
                if all(_apart(bar, other) for other in taken[number])
            ),
            max(first, len(taken)),
        )
        while len(taken) <= track:
            taken.append([])
        taken[track].append(bar)
        tracks[id(bar.source)] = track
    return tracks


def _upper_first(bars: list[_Bar]) -> list[_Bar]:
    """Sorts the bars from top to bottom. A bar that has a target directly below the source of another bar
    comes after that other bar. Bars in a cycle keep their order.
    """
    left, ordered = list(bars), []
    while left:
        ready = [
            bar for bar in left if not any(_runs_along(bar, other) for other in left if other is not bar)
        ]
        ready = ready or left[:1]
        ordered += ready
        left = [bar for bar in left if bar not in ready]
    return ordered


def _runs_along(bar: _Bar, other: _Bar) -> bool:
    return any(target.centre == other.source.centre for target in bar.source.below)


def _apart(bar: _Bar, other: _Bar) -> bool:
    if len(bar.source.below) == 1 and bar.source.below == other.source.below:
        return True  # Both bars lead to the same item and may join above it.
    return bar.right + 1 < other.left or other.right + 1 < bar.left


# --- Mermaid ---


def mermaid(flow: Flow) -> str:
    """Returns the source of a Mermaid flowchart."""
    names = {name: f"n{number}" for number, name in enumerate(flow.nodes)}
    lines = ["flowchart TD"]
    for name, node in flow.nodes.items():
        text = _escaped(name) if node.kind == name else f"{_escaped(name)}<br/>{_escaped(kind_of(node))}"
        before, after = {"switch": ("{", "}"), "finish": ("([", "])")}.get(node.kind, ("[", "]"))
        lines.append(f'    {names[name]}{before}"{text}"{after}')
    for name in flow.nodes:
        for target in flow.successors(name):
            edges = [edge for edge in flow.outgoing(name) if edge.target == target]
            label = label_of(edges)
            arrow = "-.->" if all(edge.on == "failure" for edge in edges) else "-->"
            when = f'|"{_escaped(label)}"|' if label else ""
            lines.append(f"    {names[name]} {arrow}{when} {names[target]}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Replaces special characters by Mermaid entities."""
    plain = clean(text)
    return "".join(char if char.isalnum() or char in " _.-=" else f"#{ord(char)};" for char in plain)
