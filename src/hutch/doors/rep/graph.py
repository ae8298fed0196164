"""What holds for any graph: an order, what comes before what, and cycles, where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CONTROL = frozenset({"switch", "finish", "dsl.emit"})
"""Kinds that direct a flow and do nothing outside: no runtime has to declare them (decision 7)."""
MOST_CYCLES = 20


def order(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> list[str]:
    """The nodes, each after all that come before it; those in or behind cycles are left out."""
    waiting = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {name: [] for name in waiting}
    for source, target in edges:
        waiting[target] += 1
        after[source].append(target)
    ready = [name for name, count in waiting.items() if not count]
    for name in ready:  # grows on the way
        for target in after[name]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return ready


def before(ordered: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """For every node, a set of all that can come before it: bit N is node N of `ordered`."""
    bits = {name: 1 << number for number, name in enumerate(ordered)}
    sources: dict[str, list[str]] = {name: [] for name in ordered}
    for source, target in edges:
        sources[target].append(source)
    found: dict[str, int] = {}
    for name in ordered:
        reach = 0
        for source in sources[name]:
            reach |= found[source] | bits[source]
        found[name] = reach
    return found


def cycles(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[tuple[int, list[str]]]:
    """The first cycles: for each the number of the edge that closes it, and its nodes in order."""
    found: list[tuple[int, list[str]]] = []
    left = dict(enumerate(edges))
    while len(found) < MOST_CYCLES:
        done = set(order(nodes, left.values()))
        stuck = {number: edge for number, edge in left.items() if not done & set(edge)}
        if not stuck:
            break
        closing, cycle = _one(stuck)
        found.append((closing, cycle))
        del left[closing]
    return found


def _one(edges: dict[int, tuple[str, str]]) -> tuple[int, list[str]]:
    """Every node that is an end of these has one of them leading to it, so going back comes round."""
    into: dict[str, tuple[int, str]] = {}
    written: dict[str, int] = {}
    for number, (source, target) in edges.items():
        into.setdefault(target, (number, source))
        written.setdefault(source, number)
    at = next(iter(into))
    seen: dict[str, int] = {}
    trail: list[str] = []
    while at not in seen:
        seen[at] = len(trail)
        trail.append(at)
        at = into[at][1]
    cycle = trail[seen[at] :][::-1]
    # Begun with the node that is written first.
    first = min(cycle, key=written.__getitem__)
    turn = cycle.index(first)
    cycle = cycle[turn:] + cycle[:turn]
    return into[cycle[0]][0], cycle
