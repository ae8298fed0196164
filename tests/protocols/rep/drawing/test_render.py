"""Drawings of flows: each box is below its predecessors, lines are connected, and a flow that would be too
wide is shown as a list.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, compiled, document, edge, step

from hutch.protocols.rep.drawing.layout import MAX_STEPS, lay_out
from hutch.protocols.rep.drawing.render import draw, mermaid
from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.text import columns


def picture(text: str) -> str:
    """Removes the indentation of an expected drawing."""
    lines = text.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[margin:].rstrip() for line in lines).rstrip("\n")


def body(flow: Flow, **options: Any) -> str:
    heading, _, rest = draw(flow, **options).partition("\n\n")
    assert heading.startswith(f"{flow.name}: ")
    margin = min(len(line) - len(line.lstrip()) for line in rest.splitlines() if line.strip())
    return "\n".join(line[margin:] for line in rest.splitlines())


def test_one_step() -> None:
    flow = parse_flow(document([step("only", "http.get")], timeout_ms=1500))
    assert draw(flow) == "demo: 1 step, ≤ 1.5 s\n\n" + picture(
        """
        ┌───────────┐
        │   only    │
        │ http.get  │
        └───────────┘
        """
    )


def test_branches_that_join() -> None:
    flow = parse_flow(
        document(
            [
                step("fetch", "http.get", retries=2, backoff_ms=500),
                step("check"),
                step("build", "shell.run", timeout_ms=30000),
                step("join", "finish"),
            ],
            [edge("fetch", "check"), edge("fetch", "build"), edge("check", "join"), edge("build", "join")],
        )
    )
    assert body(flow) == picture(
        """
         ┌─────────────────────────┐
         │          fetch          │
         │        http.get         │
         │ 2 retries after 500 ms  │
         └────────────┬────────────┘
              ╭───────┴───────╮
              ▼               ▼
        ┌───────────┐   ┌───────────┐
        │   check   │   │   build   │
        │ code.run  │   │ shell.run │
        └─────┬─────┘   │  ≤ 30 s   │
              │         └─────┬─────┘
              ╰───────┬───────╯
                      ▼
                 ╭─────────╮
                 │  join   │
                 │ finish  │
                 ╰─────────╯
        """
    )


def test_cases_are_labels_and_long_edges_go_around_boxes() -> None:
    assert body(parse_flow(compiled())) == picture(
        """
              ┌─────────────┐
              │    read     │
              │ opcua.read  │
              └──────┬──────┘
                     ▼
                ╭─────────╮
                │ when_0  │
                │ switch  │
                ╰────┬────╯
               ╭─────┴─────╮
               │           │
             = ok      otherwise
               ▼           │
        ┌─────────────┐    │
        │    write    │    │
        │ opcua.write │    │
        └──────┬──────┘    │
               ╰─────┬─────╯
                     ▼
               ╭───────────╮
               │  emit_1   │
               │ dsl.emit  │
               ╰─────┬─────╯
                     ▼
               ╭───────────╮
               │ finish_2  │
               │  finish   │
               ╰───────────╯
        """
    )


def test_wide_flow_is_listed() -> None:
    flow = parse_flow(
        document(
            [step("a", "http.get"), step("long-name"), step("c", "finish", timeout_ms=10)],
            [edge("a", "long-name", "failure"), edge("a", "c"), edge("long-name", "c")],
        )
    )
    assert draw(flow, columns=15).splitlines() == [
        "demo: 3 steps",
        "",
        "a          http.get  → long-name (failure), c",
        "long-name  code.run  → c",
        "c          finish    [≤ 10 ms]",
    ]


def test_flow_with_too_many_steps_is_listed() -> None:
    ids = [f"n{number}" for number in range(MAX_STEPS + 1)]
    lines = draw(parse_flow(document([step(name) for name in ids], chain(*ids)))).splitlines()
    assert len(lines) == 2 + len(ids)


def test_flow_with_too_many_edges_is_listed() -> None:
    ids = [f"n{number}" for number in range(60)]
    edges = [edge(source, target) for number, target in enumerate(ids) for source in ids[:number]]
    lines = draw(parse_flow(document([step(name) for name in ids], edges)), columns=100_000).splitlines()
    assert len(lines) == 2 + len(ids)


def test_ascii_drawing_is_ascii() -> None:
    text = draw(parse_flow(compiled()), ascii_only=True)
    assert text.isascii()
    assert len(text.splitlines()) == len(draw(parse_flow(compiled())).splitlines())


def test_control_characters_are_replaced_and_wide_characters_are_aligned() -> None:
    text = draw(parse_flow(document([step("a", "\x1b[31mred\n"), step("b", "日本")])))
    assert "\x1b" not in text
    assert "\ufffd[31mred\ufffd" in text
    lines = text.splitlines()[2:]
    assert len({columns(line.rstrip()) for line in lines}) == 1


def random_flow(seed: int) -> Flow:
    """Generates a flow with random success and failure edges."""
    rng = random.Random(seed)
    ids = [f"s{number}" for number in range(rng.randint(1, 12))]
    edges = []
    for number, target in enumerate(ids):
        for source in ids[:number]:
            if rng.random() < 0.25:
                edges.append(edge(source, target, rng.choice(["success", "success", "failure"])))
    return parse_flow(document([step(name, "k" * rng.randint(1, 9)) for name in ids], edges))


@pytest.mark.parametrize("seed", range(60))
def test_drawing_is_complete_and_nothing_overlaps(seed: int) -> None:
    flow = random_flow(seed)
    text = draw(flow, columns=10_000)
    for node in flow.nodes.values():
        assert text.count(f" {node.id} ") == 1
    assert text.count("failure") == len(
        {(edge.source, edge.target) for edge in flow.edges if edge.on == "failure"}
    )
    # The drawing has one arrow for every step with incoming edges.
    assert text.count("▼") == sum(1 for name in flow.nodes if flow.incoming(name))
    for layer in lay_out(flow):
        for left, right in pairwise(layer):
            assert left.centre + left.width // 2 < right.centre - right.width // 2
    for taken in flow.edges:
        assert text.index(f" {taken.source} ") < text.index(f" {taken.target} ")


def test_lines_are_connected() -> None:
    """Checks every cell: a line that leaves the cell must continue in the adjacent cell."""
    down, right = set("│╭╮├┤┬┼┌┐"), set("─╭╰├┬┴┼┌└")
    up, left = set("│╰╯├┤┴┼▼└┘"), set("─╮╯┤┬┴┼┐┘")
    for seed in range(60):
        rows = draw(random_flow(seed), columns=10_000).splitlines()[2:]
        size = max(map(len, rows))
        cells = [row.ljust(size) for row in rows]
        for row, line in enumerate(cells):
            for column, char in enumerate(line):
                if char in right:
                    neighbour = line[column + 1 : column + 2]
                    assert neighbour in left or neighbour == "│", f"seed {seed}, row {row}, column {column}"
                if char in down and char not in "┌┐" and row + 1 < len(cells):
                    below = cells[row + 1][column]
                    assert below in up or below.isalpha() or below == " ", f"seed {seed}, row {row}"


def test_mermaid() -> None:
    flow = parse_flow(
        document(
            [
                step("get", "http.get"),
                step(
                    "way",
                    "switch",
                    {"key_from": "$step.get.x", "cases": {'a "b"|': "end"}, "default": "mend"},
                ),
                step("mend", 'odd"];x'),
                step("end", "finish"),
            ],
            [
                edge("get", "way"),
                edge("get", "mend", "failure"),
                edge("way", "end", case='a "b"|'),
                edge("way", "mend"),
                edge("mend", "end"),
                edge("mend", "end", "failure"),
            ],
        )
    )
    assert mermaid(flow).splitlines() == [
        "flowchart TD",
        '    n0["get<br/>http.get"]',
        '    n1{"way<br/>switch"}',
        '    n2["mend<br/>odd#34;#93;#59;x"]',
        '    n3(["end<br/>finish"])',
        "    n0 --> n1",
        '    n0 -.->|"failure"| n2',
        '    n1 -->|"= a #34;b#34;#124;"| n3',
        "    n1 --> n2",
        '    n2 -->|"success or failure"| n3',
    ]
