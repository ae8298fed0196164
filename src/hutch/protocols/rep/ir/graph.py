"""Graph algorithms: topological order, ancestors, cycles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CONTROL_KINDS = frozenset({"switch", "finish", "dsl.emit"})
"""Kinds that only control the flow. Runtimes do not have to declare them."""
MAX_CYCLES = 5


def order(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the nodes in topological order. Nodes in cycles, and nodes that can only be reached through a
    cycle, are left out.
    """
    missing = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {name: [] for name in missing}
    for source, target in edges:
        missing[target] += 1
        after[source].append(target)
    ready = [name for name, count in missing.items() if not count]
    for name in ready:  # the list grows during the loop
        for target in after[name]:
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return ready


def ancestors(ordered: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Returns the ancestors of every node as a bit set. Bit N stands for node N of `ordered`."""
    bits = {name: 1 << number for number, name in enumerate(ordered)}
    sources: dict[str, list[str]] = {name: [] for name in ordered}
    for source, target in edges:
        sources[target].append(source)
    ancestors_of: dict[str, int] = {}
    for name in ordered:
        reach = 0
        for source in sources[name]:
            reach |= ancestors_of[source] | bits[source]
        ancestors_of[name] = reach
    return ancestors_of


def cycles(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[tuple[int, list[str]]]:
    """Returns up to MAX_CYCLES cycles, each as the index of the closing edge and the nodes in order."""
    cycles: list[tuple[int, list[str]]] = []
    remaining = dict(enumerate(edges))
    while len(cycles) < MAX_CYCLES:
        sorted_nodes = set(order(nodes, remaining.values()))
        remaining = {
            number: (source, target)
            for number, (source, target) in remaining.items()
            if source not in sorted_nodes and target not in sorted_nodes
        }
        if not remaining:
            break
        closing, cycle = _find_cycle(remaining)
        cycles.append((closing, cycle))
        del remaining[closing]
    return cycles


def _find_cycle(edges: dict[int, tuple[str, str]]) -> tuple[int, list[str]]:
    """Finds a cycle by walking backwards. Every node of the given edges must have an incoming edge."""
    incoming: dict[str, tuple[int, str]] = {}
    first_edge: dict[str, int] = {}
    for number, (source, target) in edges.items():
        incoming.setdefault(target, (number, source))
        first_edge.setdefault(source, number)
    node = next(iter(incoming))
    seen: dict[str, int] = {}
    trail: list[str] = []
    while node not in seen:
        seen[node] = len(trail)
        trail.append(node)
        node = incoming[node][1]
    cycle = trail[seen[node] :][::-1]
    # Start with the node that comes first in the document.
    first = min(cycle, key=first_edge.__getitem__)
    start = cycle.index(first)
    cycle = cycle[start:] + cycle[:start]
    return incoming[cycle[0]][0], cycle
