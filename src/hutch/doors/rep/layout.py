"""Where the steps of a flow stand in a drawing: in layers, with few crossings, below what they follow.

After Sugiyama: every step one layer below the lowest that leads to it; an edge that passes a layer has a bend
there, and one with a label has the label as an item of its own; items are ordered by the mean of their
neighbours; then each layer is moved to where its neighbours are, as far as its items leave room.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hutch.doors.rep.flow import Edge, Flow, Node
from hutch.doors.rep.graph import CONTROL

MOST_STEPS = 100
SPACE = 3
_MOST_ITEMS = 500
_SWEEPS = 12
_LONGEST = 40


class Item:
    """Something on a layer: a step in a box, a label of an edge, or a bend of one."""

    def __init__(self, lines: Sequence[str] = (), *, boxed: bool = False, rounded: bool = False) -> None:
        self.lines = lines
        self.boxed = boxed
        self.rounded = rounded
        longest = max((width(line) for line in lines), default=0)
        # Odd, so that there is a middle.
        self.width = (longest + (4 if boxed else 2)) | 1 if lines else 1
        self.height = len(lines) + (2 if boxed else 0) if lines else 1
        self.layer = 0
        self.centre = 0
        self.above: list[Item] = []
        self.below: list[Item] = []


def lay_out(flow: Flow) -> list[list[Item]]:
    """The layers, from the top; each from the left, with the centres of its items set.

    None at all if a drawing would be a thicket.
    """
    layers = _layered(flow) if len(flow.nodes) <= MOST_STEPS else []
    if not layers:
        return []
    _order(layers)
    _place(layers)
    return layers


def _layered(flow: Flow) -> list[list[Item]]:
    items = {
        name: Item(_lines(node), boxed=True, rounded=node.kind in CONTROL)
        for name, node in flow.nodes.items()
    }
    joints: list[tuple[Item, Item]] = []
    all_items: list[Item] = []
    for name in flow.order():
        item = items[name]
        all_items.append(item)
        for target in flow.successors(name):
            label = label_of([edge for edge in flow.outgoing(name) if edge.target == target])
            source = item
            if label:
                source = Item([clean(label)])
                source.layer = item.layer + 1
                all_items.append(source)
                joints.append((item, source))
            joints.append((source, items[target]))
            items[target].layer = max(items[target].layer, source.layer + 1)
    if len(all_items) + sum(lower.layer - upper.layer - 1 for upper, lower in joints) > _MOST_ITEMS:
        return []
    for upper, lower in joints:
        last = upper
        for layer in range(upper.layer + 1, lower.layer):
            bend = Item()
            bend.layer = layer
            all_items.append(bend)
            _join(last, bend)
            last = bend
        _join(last, lower)
    layers: list[list[Item]] = [[] for _ in range(1 + max(item.layer for item in all_items))]
    for item in all_items:
        layers[item.layer].append(item)
    return layers


def _join(source: Item, target: Item) -> None:
    source.below.append(target)
    target.above.append(source)


def _lines(node: Node) -> list[str]:
    lines = [clean(node.id)]
    if node.kind != node.id:
        lines.append(clean(node.kind))
    notes = notes_on(node)
    return [*lines, notes] if notes else lines


def notes_on(node: Node) -> str:
    """What is said of a step beside its kind: its time and its retries."""
    notes = []
    if node.timeout_ms:
        notes.append(f"≤ {seconds(node.timeout_ms)}")
    if node.retry_max:
        pause = f" after {seconds(node.backoff_ms)}" if node.backoff_ms else ""
        notes.append(f"{node.retry_max} {'retry' if node.retry_max == 1 else 'retries'}{pause}")
    return ", ".join(notes)


def seconds(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:g} s"


def label_of(edges: Iterable[Edge]) -> str:
    """When the edges between two steps are taken; an empty text if that is simply after success."""
    words = dict.fromkeys(_condition(edge) for edge in edges)
    return "" if list(words) == ["success"] else " or ".join(words)


def _condition(edge: Edge) -> str:
    if edge.on == "failure":
        return "failure"
    return "success" if edge.case is None else {"_DEFAULT": "otherwise"}.get(edge.case, f"= {edge.case}")


def clean(text: str) -> str:
    """A kind or a case may hold what a terminal would obey."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def width(text: str) -> int:
    """The columns that a text takes on a terminal."""
    return sum(width_of(char) for char in text)


def width_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


# --- order ---


def _order(layers: list[list[Item]]) -> None:
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        previous: list[Item] = []
        for layer in layers if down else reversed(layers):
            place = {id(item): number for number, item in enumerate(previous)}
            _sort(layer, place, down)
            previous = layer
        count = _crossings(layers)
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    for layer, items in zip(layers, best, strict=True):
        layer[:] = items


def _sort(layer: list[Item], place: dict[int, int], down: bool) -> None:
    """By the mean of the neighbours; what has none keeps its place."""
    wanted = {}
    for number, item in enumerate(layer):
        found = [place[id(each)] for each in (item.above if down else item.below) if id(each) in place]
        wanted[id(item)] = sum(found) / len(found) if found else float(number)
    layer.sort(key=lambda item: wanted[id(item)])


def _crossings(layers: list[list[Item]]) -> int:
    total = 0
    for upper, lower in pairwise(layers):
        place = {id(item): number for number, item in enumerate(lower)}
        seen: list[int] = []
        for item in upper:
            ends = sorted(place[id(each)] for each in item.below)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


# --- place ---


def _place(layers: list[list[Item]]) -> None:
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            _spread(layer, [_wanted(item, item.above if down else item.below) for item in layer])
    # What follows a single step stands right below it.
    for layer in layers:
        _spread(layer, [_wanted(item, item.above or item.below) for item in layer])
    left = min(item.centre - item.width // 2 for layer in layers for item in layer)
    for layer in layers:
        for item in layer:
            item.centre -= left


def _wanted(item: Item, neighbours: list[Item]) -> float:
    if not neighbours:
        return item.centre
    return sum(each.centre for each in neighbours) / len(neighbours)


def _spread(layer: list[Item], wanted: Sequence[float]) -> None:
    """The centres nearest to those wanted, by least squares, that keep order and distance.

    Less the room before them they must not fall: neighbours that would are pooled at their mean.
    """
    offsets: list[int] = []
    for number, item in enumerate(layer):
        before = layer[number - 1] if number else None
        room = 0 if before is None else offsets[-1] + before.width // 2 + SPACE + item.width // 2 + 1
        offsets.append(room)
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
