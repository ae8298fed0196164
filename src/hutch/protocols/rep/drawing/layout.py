"""Layered layout of a flow's steps (after Sugiyama).

Every step is placed one layer below its lowest predecessor. An edge that spans several layers gets a bend in
each layer in between. The label of an edge is a separate item. The items of a layer are ordered by the mean
position of their neighbours. Then every item moves as close to its neighbours as the space in its layer
allows.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hutch.protocols.rep.ir.flow import Flow, FlowEdge, FlowNode
from hutch.protocols.rep.ir.graph import CONTROL_KINDS
from hutch.text import columns, cut, printable

MAX_STEPS = 100
SPACE = 3
_MAX_ITEMS = 500
_SWEEPS = 12
_MAX_LABEL = 40


class LayoutItem:
    """An item on a layer: a step in a box, the label of an edge, or a bend."""

    def __init__(self, lines: Sequence[str] = (), *, boxed: bool = False, rounded: bool = False) -> None:
        self.lines = lines
        self.boxed = boxed
        self.rounded = rounded
        longest = max((columns(line) for line in lines), default=0)
        # The width is odd, so that there is a centre column.
        self.width = (longest + (4 if boxed else 2)) | 1 if lines else 1
        self.height = len(lines) + (2 if boxed else 0) if lines else 1
        self.layer = 0
        self.centre = 0
        self.above: list[LayoutItem] = []
        self.below: list[LayoutItem] = []


def lay_out(flow: Flow) -> list[list[LayoutItem]]:
    """Returns the layers from top to bottom, with the centres of the items set.

    The items of a layer are ordered from left to right. Returns an empty list if there are too many steps or
    lines to draw.
    """
    layers = _build_layers(flow) if len(flow.nodes) <= MAX_STEPS else []
    if not layers:
        return []
    _order(layers)
    _position(layers)
    return layers


def _build_layers(flow: Flow) -> list[list[LayoutItem]]:
    items = {
        name: LayoutItem(_lines(node), boxed=True, rounded=node.kind in CONTROL_KINDS)
        for name, node in flow.nodes.items()
    }
    links: list[tuple[LayoutItem, LayoutItem]] = []
    all_items: list[LayoutItem] = []
    for name in flow.order():
        item = items[name]
        all_items.append(item)
        for target in flow.successors(name):
            label = label_of([edge for edge in flow.outgoing(name) if edge.target == target])
            source = item
            if label:
                source = LayoutItem([clean(label)])
                source.layer = item.layer + 1
                all_items.append(source)
                links.append((item, source))
            links.append((source, items[target]))
            items[target].layer = max(items[target].layer, source.layer + 1)
    if len(all_items) + sum(lower.layer - upper.layer - 1 for upper, lower in links) > _MAX_ITEMS:
        return []
    for upper, lower in links:
        previous = upper
        for layer in range(upper.layer + 1, lower.layer):
            bend = LayoutItem()
            bend.layer = layer
            all_items.append(bend)
            _connect_items(previous, bend)
            previous = bend
        _connect_items(previous, lower)
    layers: list[list[LayoutItem]] = [[] for _ in range(1 + max(item.layer for item in all_items))]
    for item in all_items:
        layers[item.layer].append(item)
    return layers


def _connect_items(source: LayoutItem, target: LayoutItem) -> None:
    source.below.append(target)
    target.above.append(source)


def _lines(node: FlowNode) -> list[str]:
    lines = [clean(node.id)]
    if node.kind != node.id:
        lines.append(clean(kind_of(node)))
    notes = notes_on(node)
    return [*lines, notes] if notes else lines


def kind_of(node: FlowNode) -> str:
    """Returns the kind of a step. For a `for_each`, adds the kind of its inner step."""
    return node.kind if node.item_step is None else f"{node.kind}: {node.item_step.kind}"


def notes_on(node: FlowNode) -> str:
    """Describes the timeout and the retries of a step. Returns an empty string if it has neither."""
    notes = []
    node = node.item_step or node
    if node.timeout_ms:
        notes.append(f"≤ {seconds(node.timeout_ms)}")
    if node.retry_max:
        pause = f" after {seconds(node.backoff_ms)}" if node.backoff_ms else ""
        notes.append(f"{node.retry_max} {'retry' if node.retry_max == 1 else 'retries'}{pause}")
    return ", ".join(notes)


def seconds(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:g} s"


def label_of(edges: Iterable[FlowEdge]) -> str:
    """Describes the condition of the edges between two steps. Returns an empty string if the only condition
    is success.
    """
    words = dict.fromkeys(_condition(edge) for edge in edges)
    return "" if list(words) == ["success"] else " or ".join(words)


def _condition(edge: FlowEdge) -> str:
    if edge.on == "failure":
        return "failure"
    return "success" if edge.case is None else {"_DEFAULT": "otherwise"}.get(edge.case, f"= {edge.case}")


def clean(text: str) -> str:
    """Replaces control characters, which step kinds and cases may contain, and shortens the text."""
    line = printable(text, replacement="\N{REPLACEMENT CHARACTER}")
    return cut(line, _MAX_LABEL)


# --- order ---


def _order(layers: list[list[LayoutItem]]) -> None:
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        previous: list[LayoutItem] = []
        for layer in layers if down else reversed(layers):
            position = {id(item): number for number, item in enumerate(previous)}
            _sort(layer, position, down)
            previous = layer
        count = _crossings(layers)
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    for layer, items in zip(layers, best, strict=True):
        layer[:] = items


def _sort(layer: list[LayoutItem], position: dict[int, int], down: bool) -> None:
    """Sorts items by the mean position of their neighbours. Items without neighbours keep their position."""
    mean_position = {}
    for number, item in enumerate(layer):
        positions = [
            position[id(neighbour)]
            for neighbour in (item.above if down else item.below)
            if id(neighbour) in position
        ]
        mean_position[id(item)] = sum(positions) / len(positions) if positions else float(number)
    layer.sort(key=lambda item: mean_position[id(item)])


def _crossings(layers: list[list[LayoutItem]]) -> int:
    total = 0
    for upper, lower in pairwise(layers):
        position = {id(item): number for number, item in enumerate(lower)}
        seen: list[int] = []
        for item in upper:
            ends = sorted(position[id(target)] for target in item.below)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


# --- position ---


def _position(layers: list[list[LayoutItem]]) -> None:
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            _spread(layer, [_wanted(item, item.above if down else item.below) for item in layer])
    # Finally, place each item below the mean of its predecessors, so that an item with one predecessor is
    # directly below it.
    for layer in layers:
        _spread(layer, [_wanted(item, item.above or item.below) for item in layer])
    left = min(item.centre - item.width // 2 for layer in layers for item in layer)
    for layer in layers:
        for item in layer:
            item.centre -= left


def _wanted(item: LayoutItem, neighbours: list[LayoutItem]) -> float:
    if not neighbours:
        return item.centre
    return sum(neighbour.centre for neighbour in neighbours) / len(neighbours)


def _spread(layer: list[LayoutItem], wanted: Sequence[float]) -> None:
    """Moves the items of a layer to the wanted centres by least squares, in the same order and without
    overlaps.

    The offset of an item is its smallest possible distance from the first item. Adjacent items that would
    overlap move as a group to their mean position.
    """
    offsets: list[int] = []
    for number, item in enumerate(layer):
        before = layer[number - 1] if number else None
        offset = 0 if before is None else offsets[-1] + before.width // 2 + SPACE + item.width // 2 + 1
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean = (mean * count + other * others) / (count + others)
            count += others
        pools.append((mean, count))
    number = 0
    for mean, count in pools:
        for _ in range(count):
            layer[number].centre = round(mean) + offsets[number]
            number += 1
