"""Reads the source of a flow in either form: Flow IR, or the short form. Problems get their line and step.

`parse` reads only Flow IR, which is the form that the protocol sends.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.problems import Problem, without_consequences
from hutch.protocols.rep.ir.budget import UNLIMITED, ValidationBudget
from hutch.protocols.rep.ir.flow import Flow, FlowNode
from hutch.protocols.rep.ir.parse import parse_flow, readable_nodes
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source.files import decode_document, load_text

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.source.source_map import SourceMap

# Problems in a larger text get no line numbers, because finding the lines would take seconds.
_MAX_LINE_TEXT = 256 * 1024
_STEP_PATH = re.compile(r"(?P<list>graph\.nodes|steps)\[(?P<number>\d{1,6})\].*", re.S)
_LAST_SEGMENT = re.compile(r'(?:\.?[^.\[\]]+|\[(?:\d+|"(?:[^"\\]|\\.)*")\])\Z')


def load_flow(path: Path) -> Flow:
    """Loads a flow from a JSON or YAML file, depending on the suffix. Raises InvalidFlow."""
    return load_source(path).parse()


def load_source(path: Path) -> FlowSource:
    """Loads a JSON or YAML file. Raises InvalidFlow if it cannot be decoded."""
    text = load_text(path)
    return FlowSource(decode_document(path, text), text, path.name)


class FlowSource:
    """A decoded flow in either form, and the text that it was decoded from."""

    def __init__(self, document: object, text: str = "", file_name: str = "") -> None:
        """A flow in the short form that has no name gets the name of the file."""
        self._document = document
        self._text = text
        self._file_name = file_name
        self._map: SourceMap | None = None
        self._lines: dict[str, int] | None = None
        self._readable_document: object = None

    def parse(self, budget: ValidationBudget = UNLIMITED) -> Flow:
        """Validates the flow and compiles the short form. Raises InvalidFlow with located problems."""
        own: list[Problem] = []
        try:
            self._readable_document, own = self._compiled(budget)
            flow = parse_flow(self._readable_document, budget)
        except InvalidFlow as error:
            # Leave out problems of Flow IR that only result from problems of the short form.
            others = without_consequences(map(self.locate, error.problems), own)
            problems = [*map(self._at_source, own), *others]
            raise InvalidFlow(problems, received_version=error.received_version) from None
        if own:
            raise InvalidFlow(map(self._at_source, own))
        flow.locate = self.locate
        return flow

    def readable_nodes(self) -> list[FlowNode]:
        """Returns the readable steps of a flow for which `parse` raised InvalidFlow."""
        return readable_nodes(self._readable_document)

    def _compiled(self, budget: ValidationBudget) -> tuple[object, list[Problem]]:
        """Returns Flow IR, and the problems of the short form."""
        document = self._document
        if not isinstance(document, dict) or "graph" in document:
            return document, []
        from hutch.protocols.rep.ir.source import short_form

        if not short_form.is_short_form(document):
            return document, []
        compiled = short_form.compile_flow(
            document, self._file_name or "flow", default_name=Path(self._file_name).stem, budget=budget
        )
        self._map = compiled.source
        return compiled.document, compiled.problems

    def locate(self, problem: Problem) -> Problem:
        """Returns the problem with its path in the source, its line and its step."""
        path = problem.path if self._map is None else self._map.locate(problem.path)
        return self._at_source(msgspec.structs.replace(problem, path=path))

    def _at_source(self, problem: Problem) -> Problem:
        """Adds the line and the step to a problem. The problem's path must be a path in the source."""
        return msgspec.structs.replace(
            problem,
            line=problem.line or self._line(problem.path),
            step=problem.step or self._step_id(problem.path),
        )

    def _step_id(self, path: str) -> str | None:
        match = _STEP_PATH.fullmatch(path)
        if match is None:
            return None
        steps: Any = self._document
        for key in match["list"].split("."):
            steps = steps.get(key) if isinstance(steps, dict) else None
        number = int(match["number"])
        step = steps[number] if isinstance(steps, list) and number < len(steps) else None
        step_id = step.get("id") if isinstance(step, dict) else None
        return step_id if isinstance(step_id, str) else None

    def _line(self, path: str) -> int | None:
        """Returns the line of the value at a path. If there is no such value, returns the line of the
        innermost existing value that would contain it.
        """
        if self._lines is None:
            self._lines = {}
            if self._text and len(self._text) <= _MAX_LINE_TEXT:
                from hutch.protocols.rep.ir.source.yaml import find_lines

                self._lines = find_lines(self._text)
        while path:
            line = self._lines.get(path)
            if line is not None:
                return line
            shorter = _LAST_SEGMENT.sub("", path)
            if shorter == path:
                return None
            path = shorter
        return None
