"""Compiles the short form of flows to Flow IR 1.0.0.

The short form has `name`, `inputs`, `steps` and `outputs`, with a default for everything else. Steps run one
after another unless `after` says otherwise. The same text always compiles to the same flow, so that storing
it again creates no new version, and a repeated request to start a run finds the existing run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hutch.problems import JsonPath, NameSuggester, Problem, ProblemList, describe_value, format_path
from hutch.protocols.rep.ir.budget import UNLIMITED, ValidationBudget
from hutch.protocols.rep.ir.json_bounds import json_problem
from hutch.protocols.rep.ir.problems import VERSION, InvalidFlow
from hutch.protocols.rep.ir.references import BadReference, has_template, parse_reference
from hutch.protocols.rep.ir.schema import FOR_EACH, MAX_ID_CHARS, MAX_NESTED_FLOWS, MAX_PARALLEL_ITEMS
from hutch.protocols.rep.ir.source.source_map import FOR_EACH_RENAMES, SourceMap, StepOrigin
from hutch.protocols.rep.ir.source.yaml import InvalidYaml, decode_yaml
from hutch.protocols.rep.ir.switch import DEFAULT, case_name

DEFAULT_BACKOFF_MS = 1_000
# A fixed time, because the compiled flow must not depend on the time of the compilation.
_GENERATED_AT = "1970-01-01T00:00:00Z"
_IR_KEYS = frozenset({"version", "flow", "graph"})
_FLOW_KEYS = ("name", "inputs", "steps", "outputs", "timeout")
_STEP_KEYS = (
    *("id", "run", "with", "for_each", "max_parallel", "after", "after_failure", "when", "retry", "timeout"),
)
_RETRY_KEYS = ("max", "backoff")
_SYNONYMS = {
    "type": "run",
    "kind": "run",
    "uses": "run",
    "timeout_ms": "timeout",
    "needs": "after",
    "depends_on": "after",
    "if": "when",
    "retries": "retry",
    "on_error": "after_failure",
    "foreach": "for_each",
    "loop": "for_each",
    "with_items": "for_each",
    "concurrency": "max_parallel",
    "parallel": "max_parallel",
    "backoff_ms": "backoff",
    "inputs_schema": "inputs",
    "output": "outputs",
}
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_MAX_MS = 2**31 - 1
_CONDITION = re.compile(
    r"(?P<not>not\s+)?(?P<reference>\$\{[^{}]*\}|\$[^\s=!]+)"
    r"(?:\s*(?P<operator>==|!=|\bnot\s+in\b|\bin\b)\s*(?P<value>.+))?",
    re.S,
)
_CONDITION_FORMS = (
    "a condition: REFERENCE, not REFERENCE, REFERENCE == VALUE, REFERENCE != VALUE,"
    " REFERENCE in [A, B] or REFERENCE not in [A, B]"
)


def is_short_form(document: object) -> bool:
    return (
        isinstance(document, dict)
        and ("steps" in document or "name" in document)
        and _IR_KEYS.isdisjoint(document)
    )


class CompiledFlow(NamedTuple):
    document: dict[str, Any]
    """Flow IR. Values with a problem are replaced by defaults."""
    source: SourceMap
    problems: list[Problem]
    """Problems of the short form, with paths in the short form."""


def compile_flow(
    document: Mapping[str, Any],
    source_file: str,
    *,
    default_name: str = "",
    budget: ValidationBudget = UNLIMITED,
) -> CompiledFlow:
    """Compiles the short form without validating the result. Raises InvalidFlow if problems of the short form
    prevent the compilation.
    """
    limit_problem = json_problem(document, budget.check)
    if limit_problem is not None:
        raise InvalidFlow([limit_problem])
    return _Compiler(document, default_name).compile(source_file)


class _Condition(NamedTuple):
    key_from: str
    run_cases: list[str]
    skip_cases: list[str]


class _Step(NamedTuple):
    path: JsonPath
    id: str
    kind: str
    with_: dict[str, Any]
    after: list[str]
    after_failure: list[str]
    when: _Condition | None
    timeout_ms: int
    retry: dict[str, int]
    items: Any
    """Value of `for_each`, or None."""
    max_parallel: int | None


class _Compiler:
    def __init__(self, document: Mapping[str, Any], default_name: str, depth: int = 0) -> None:
        self._document = document
        self._default_name = default_name
        self._depth = depth
        self._problems = ProblemList(InvalidFlow)
        self._suggester = NameSuggester()
        self._source = SourceMap()
        self._nodes: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._ids: set[str] = set()
        self._has_unusable_steps = False
        self._nested: dict[str, SourceMap] = {}
        """Sources of nested flows, by step id."""

    def compile(self, source_file: str) -> CompiledFlow:
        self._check_keys((), self._document, _FLOW_KEYS)
        name = self._name()
        timeout_ms = self._duration(("timeout",), self._document.get("timeout"))
        inputs_schema = self._inputs(self._document.get("inputs"))
        steps = list(self._steps())
        if self._has_unusable_steps:
            # Stop here. If other steps refer to the unusable steps, these references would be reported as
            # mistakes.
            self._problems.raise_if_any()
        self._add_graph(steps)
        document = {
            "version": VERSION,
            "flow": {"name": name, "timeout_ms": timeout_ms},
            "constants": {"policyRef": "none", "policy": {}},
            "inputs_schema": inputs_schema,
            "graph": {"nodes": self._nodes, "edges": self._edges},
            "metadata": {"generated_at": _GENERATED_AT, "source_file": source_file},
        }
        return CompiledFlow(document, self._source, self._problems.as_list())

    # --- reading ---

    def _add(self, path: JsonPath, message: str) -> None:
        self._problems.add(format_path(path), message)

    def _check_keys(self, path: JsonPath, value: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in value:
            if key in known:
                continue
            close = _SYNONYMS.get(key)
            if close not in known:
                close = self._suggester.closest(key, known)
            hint = f"did you mean {close}?" if close else f"expected one of {', '.join(known)}"
            self._add((*path, key), f"unknown key; {hint}")

    def _name(self) -> str:
        name = self._document.get("name", self._default_name)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_ID_CHARS:
            expected = "a name of letters, digits, _, . and -"
            if "name" not in self._document and not name:
                reason = "because no file gives the flow a name"
                self._add(("name",), f"is missing; expected {expected}, {reason}")
            else:
                self._add(("name",), f"expected {expected}, got {describe_value(name)}")
            return ""
        return name

    def _duration(self, path: JsonPath, value: Any) -> int:
        """Returns a duration in milliseconds. A number is in seconds. None is 0."""
        if value is None:
            return 0
        milliseconds = -1.0
        if isinstance(value, int | float) and not isinstance(value, bool):
            milliseconds = value * 1_000
        elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
            milliseconds = float(match["number"]) * _UNIT_MS[match["unit"]]
        if not 0 <= milliseconds <= _MAX_MS:
            self._add(path, f"expected seconds, or a text such as 500ms, 5s, 2m; got {describe_value(value)}")
            return 0
        return round(milliseconds)

    def _inputs(self, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return {name: {"type": "any"} for name in value}
        if not isinstance(value, dict):
            self._add(("inputs",), f"expected an object of types by name, got {describe_value(value)}")
            return {}
        if value.get("type") == "object" and isinstance(value.get("properties"), dict):
            return value  # a JSON Schema
        return {name: self._input(name, entry) for name, entry in value.items()}

    def _input(self, name: str, entry: Any) -> dict[str, Any]:
        if entry is None:
            return {"type": "any"}
        if isinstance(entry, str):
            return {"type": entry}
        if isinstance(entry, dict):
            return entry
        self._add(("inputs", name), f"expected a type such as string, got {describe_value(entry)}")
        return {}

    def _steps(self) -> Iterator[_Step]:
        steps = self._document.get("steps")
        if not isinstance(steps, list) or not steps:
            got = "an empty list" if steps == [] else describe_value(steps)
            self._add(("steps",), f"expected a list of at least one step, got {got}")
            self._has_unusable_steps = True
            return
        previous: list[str] = []
        for number, entry in enumerate(steps):
            path: JsonPath = ("steps", number)
            if not isinstance(entry, dict):
                self._add(path, f"expected a step such as {{run: code.run}}, got {describe_value(entry)}")
                self._has_unusable_steps = True
                continue
            step = self._step(path, entry, previous)
            if step is None:
                self._has_unusable_steps = True
                continue
            yield step
            if not step.after_failure:
                previous = [step.id]

    def _step(self, path: JsonPath, entry: dict[str, Any], previous: list[str]) -> _Step | None:
        self._check_keys(path, entry, _STEP_KEYS)
        step_id = entry.get("id", f"step{int(path[-1]) + 1}")
        if not isinstance(step_id, str) or not _NAME.fullmatch(step_id) or len(step_id) > MAX_ID_CHARS:
            self._add((*path, "id"), f"expected letters, digits, _, . and -, got {describe_value(step_id)}")
            return None
        if step_id in self._ids:
            self._add((*path, "id"), f"{describe_value(step_id)} is already the id of another step")
            return None
        self._ids.add(step_id)
        kind = entry.get("run")
        if not isinstance(kind, str) or not kind:
            self._add((*path, "run"), f"expected a kind of step such as code.run, got {describe_value(kind)}")
            kind = ""
        parameters = entry.get("with")
        if parameters is not None and not isinstance(parameters, dict):
            self._add((*path, "with"), f"expected an object, got {describe_value(parameters)}")
            parameters = None
        after_failure = self._step_names((*path, "after_failure"), entry.get("after_failure"), [])
        default_after = [] if after_failure else previous
        return _Step(
            path=path,
            id=step_id,
            kind=kind,
            with_=self._with_nested_flow(path, step_id, kind, parameters or {}),
            after=self._step_names((*path, "after"), entry.get("after"), default_after),
            after_failure=after_failure,
            when=self._condition((*path, "when"), entry["when"]) if "when" in entry else None,
            timeout_ms=self._duration((*path, "timeout"), entry.get("timeout")),
            retry=self._retry((*path, "retry"), entry.get("retry")),
            items=self._items((*path, "for_each"), entry["for_each"]) if "for_each" in entry else None,
            max_parallel=self._max_parallel(path, entry) if "max_parallel" in entry else None,
        )

    def _items(self, path: JsonPath, value: Any) -> Any:
        if isinstance(value, list) or (isinstance(value, str) and value.strip().startswith("$")):
            return value
        expected = "a list, or a reference to one such as $input.items"
        self._add(path, f"expected {expected}, got {describe_value(value)}")
        return []

    def _max_parallel(self, path: JsonPath, entry: dict[str, Any]) -> int | None:
        value = entry["max_parallel"]
        if "for_each" not in entry:
            self._add((*path, "max_parallel"), "expected for_each in the same step")
        elif not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PARALLEL_ITEMS:
            expected = f"a number from 1 to {MAX_PARALLEL_ITEMS}"
            self._add((*path, "max_parallel"), f"expected {expected}, got {describe_value(value)}")
        else:
            return value
        return None

    def _step_names(self, path: JsonPath, value: Any, default: list[str]) -> list[str]:
        if value is None:
            return default
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._add(path, f"expected the id of a step, or a list of ids, got {describe_value(value)}")
            return []
        return list(dict.fromkeys(names))

    def _retry(self, path: JsonPath, value: Any) -> dict[str, int]:
        if value is None:
            return {"max": 0, "backoff_ms": 0}
        policy = value if isinstance(value, dict) else {"max": value}
        self._check_keys(path, policy, _RETRY_KEYS)
        count = policy.get("max", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            self._add(path, f"expected a number of retries, or {{max, backoff}}, got {describe_value(count)}")
            count = 0
        backoff_ms = DEFAULT_BACKOFF_MS
        if "backoff" in policy:
            backoff_ms = self._duration((*path, "backoff"), policy["backoff"])
        return {"max": count, "backoff_ms": backoff_ms if count else 0}

    def _with_nested_flow(
        self, path: JsonPath, step_id: str, kind: str, parameters: dict[str, Any]
    ) -> dict[str, Any]:
        """Compiles a flow in the short form that is nested in a `flow.run`."""
        flow = parameters.get("flow")
        if kind != "flow.run" or not isinstance(flow, dict) or not is_short_form(flow):
            return parameters
        if self._depth >= MAX_NESTED_FLOWS:
            self._add((*path, "with", "flow"), f"expected at most {MAX_NESTED_FLOWS} levels of nested flows")
            return parameters
        prefix = format_path((*path, "with", "flow"))
        try:
            compiled = _Compiler(flow, step_id, self._depth + 1).compile(f"{step_id}.flow")
        except InvalidFlow as error:
            self._problems.extend(Problem(f"{prefix}.{each.path}", each.message) for each in error.problems)
            self._has_unusable_steps = True
            return parameters
        self._problems.extend(Problem(f"{prefix}.{each.path}", each.message) for each in compiled.problems)
        self._nested[step_id] = compiled.source
        return {**parameters, "flow": compiled.document}

    def _condition(self, path: JsonPath, value: Any) -> _Condition | None:
        match = _CONDITION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or (match["not"] and match["operator"]):
            hint = ""
            if isinstance(value, str) and re.search(r"[<>]", value):
                hint = "; compare numbers in a code.run step, and use its result"
            self._add(path, f"expected {_CONDITION_FORMS}; got {describe_value(value)}{hint}")
            return None
        reference = match["reference"]
        if reference.startswith("${"):
            reference = f"${reference[2:-1]}"
        try:
            is_reference = parse_reference(reference) is not None
        except BadReference:
            is_reference = False
        if not is_reference:
            self._add(path, f"expected a reference such as $step.ID.KEY, got {describe_value(reference)}")
            return None
        operator = " ".join((match["operator"] or "").split())
        if not operator:
            # Null counts as false here, because an optional input that is not given is null.
            false = ["false", "null"] if reference.startswith("$input.") else ["false"]
            return (
                _Condition(reference, false, ["true"])
                if match["not"]
                else _Condition(reference, ["true"], false)
            )
        names = self._case_names(path, match["value"], is_list=operator.endswith("in"))
        if operator in ("==", "in"):
            return _Condition(reference, names, [DEFAULT])
        return _Condition(reference, [DEFAULT], names)

    def _case_names(self, path: JsonPath, text: str, *, is_list: bool) -> list[str]:
        try:
            value = decode_yaml(text)
        except InvalidYaml:
            value = text
        values = value if is_list else [value]
        names = [case_name(each) for each in values] if isinstance(values, list) else []
        if not names or None in names:
            expected = "a list of values such as [a, b]" if is_list else "a value"
            self._add(path, f"expected {expected} after the operator, got {describe_value(text)}")
        return [name for name in names if name is not None]

    # --- the graph ---

    def _add_graph(self, steps: list[_Step]) -> None:
        whens = {step.id: self._free_id(f"{step.id}-when") for step in steps if step.when is not None}
        conditions = {step.id: step.when for step in steps if step.when is not None}
        for step in steps:
            path = format_path(step.path)
            entry = step.id
            if step.when is not None:
                entry = whens[step.id]
                origin = StepOrigin(f"{path}.when", None)
                self._add_node(origin, entry, "switch", {"key_from": step.when.key_from})
                for case in step.when.run_cases:
                    self._add_edge(f"{path}.when", entry, step.id, case=case)
            self._add_step(step)
            self._add_edges(f"{path}.after", step.after, entry, whens, conditions)
            for name in step.after_failure:
                self._add_edge(f"{path}.after_failure", name, entry, on="failure")
        outputs = self._document.get("outputs")
        if outputs is not None or whens:
            finish = self._free_id("finish")
            parameters = {} if outputs is None else {"outputs": outputs}
            self._add_node(StepOrigin("", {"with.outputs": "outputs"}), finish, "finish", parameters)
            followed = {name for step in steps for name in step.after}
            last = [step.id for step in steps if step.id not in followed]
            self._add_edges("steps", last, finish, whens, conditions)

    def _add_step(self, step: _Step) -> None:
        path, nested = format_path(step.path), self._nested.get(step.id)
        if step.items is None:
            origin = StepOrigin(path, nested=nested)
            self._add_node(origin, step.id, step.kind, step.with_, step.timeout_ms, step.retry)
            return
        inner: dict[str, Any] = {
            "type": step.kind,
            "with": step.with_,
            "timeout_ms": step.timeout_ms,
            "retry": step.retry,
        }
        if has_template(step.kind, step.with_, in_item=True):
            inner["interpolate"] = True
        parameters = {"items": step.items, "step": inner}
        if step.max_parallel is not None:
            parameters["max_parallel"] = step.max_parallel
        self._add_node(StepOrigin(path, FOR_EACH_RENAMES, nested), step.id, FOR_EACH, parameters)

    def _free_id(self, name: str) -> str:
        """Returns an id that no step has."""
        number = 1
        candidate = name
        while candidate in self._ids:
            number += 1
            candidate = f"{name}{number}"
        self._ids.add(candidate)
        return candidate

    def _add_node(
        self,
        origin: StepOrigin,
        step_id: str,
        kind: str,
        parameters: dict[str, Any],
        timeout_ms: int = 0,
        retry: dict[str, int] | None = None,
    ) -> None:
        self._source.nodes.append(origin)
        self._nodes.append(
            {
                "id": step_id,
                "type": kind,
                "with": parameters,
                "timeout_ms": timeout_ms,
                "retry": retry or {"max": 0, "backoff_ms": 0},
                **({"interpolate": True} if has_template(kind, parameters) else {}),
            }
        )

    def _add_edges(
        self,
        path: str,
        sources: list[str],
        target: str,
        whens: Mapping[str, str],
        conditions: Mapping[str, _Condition],
    ) -> None:
        """Adds an edge from each source to the target. If a source has a condition, also adds edges from the
        condition to the target. These edges are taken when the source is skipped.
        """
        for name in sources:
            self._add_edge(path, name, target)
            if name in whens:
                for case in conditions[name].skip_cases:
                    self._add_edge(path, whens[name], target, case=case)

    def _add_edge(
        self, path: str, source: str, target: str, *, on: str = "success", case: str | None = None
    ) -> None:
        self._source.edges.append(path)
        edge = {"from": source, "to": target, "on": on}
        self._edges.append(edge if case is None else {**edge, "case": case})
