"""Step kinds: their parameters and the functions that run them.

Contains the built-in kinds and the kinds of other packages, which import from `hutch.step_kinds`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hutch.errors import HutchError
from hutch.problems import describe_value
from hutch.protocols.rep.ir.literals import types_in, types_of
from hutch.protocols.rep.ir.references import find_references
from hutch.protocols.rep.ir.resolve import ReferenceValues, resolve_references
from hutch.protocols.rep.runtime import handshake
from hutch.session.schema.problems import check_against_schema, describe_schema
from hutch.session.schema.walk import SchemaRoot
from hutch.text import cut, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hutch.protocols.rep.ir.flow import Flow, FlowNode
    from hutch.protocols.rep.runtime.context import RunContext
    from hutch.protocols.rep.runtime.models import RunSummary

MAX_MESSAGE_CHARS = 8_000
_MAX_SHOWN_PROBLEMS = 5
_MAX_NAME_CHARS = 100


class StepFailed(Exception):
    """The step failed. Raised by step kinds. `details` is JSON that becomes part of the run's error."""

    def __init__(
        self, message: str, *, retriable: bool = True, details: Any = None, cause: str | None = None
    ) -> None:
        text = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"
        super().__init__(text)
        self.message = text
        self.retriable = retriable
        self.details = details
        self.cause = cause


class StepRun(Protocol):
    """Interface of a run for step kinds."""

    @property
    def flow(self) -> Flow: ...
    @property
    def inputs(self) -> Mapping[str, Any]: ...
    @property
    def context(self) -> RunContext: ...
    @property
    def registry(self) -> Registry: ...

    async def run_nested(
        self, flow: Flow, inputs: Mapping[str, Any], parent_id: str, context: RunContext
    ) -> RunSummary:
        """Runs another flow as a step of this flow."""

    async def run_items(
        self, node: FlowNode, items: Sequence[Any], max_parallel: int, parent_id: str
    ) -> RunSummary:
        """Runs the inner step of a `for_each` for every item. The `outputs` of the summary are the outputs of
        the items as a list.
        """


class Call:
    """One attempt at a step. It is the argument of a step kind's function."""

    def __init__(
        self,
        *,
        run: StepRun,
        node: FlowNode,
        step_id: str,
        attempt: int,
        params: Any,
        log: Callable[[str, str], None],
        emit: Callable[..., None],
        deadline: float | None = None,
    ) -> None:
        self.run = run
        self.node = node
        self.step_id = step_id
        """Step id as in events. In a sub-flow it starts with the ids of the parent steps."""
        self.attempt = attempt
        self.params = params
        """Parameters (`with`) after their references are resolved: a dict, or an instance of the kind's
        `params`.
        """
        self.log = log
        """Emits a log event. Takes the level (debug, info, warning, error) and the message."""
        self.emit = emit
        """Emits an event of another type."""
        self.deadline = deadline
        """Time of `time.monotonic()` at which the attempt is cancelled. None means never."""
        self.on_stored: list[Callable[[], Awaitable[None]]] = []
        """Awaited after the result of the step was stored, for example to delete intermediate data."""

    @property
    def context(self) -> RunContext:
        return self.run.context

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs of the run."""
        return self.run.inputs

    @property
    def flow(self) -> Flow:
        return self.run.flow

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())


StepFunction = Callable[[Call], Awaitable[Any]]
WarmUp = Callable[["RunContext", "FlowNode"], Awaitable[None]]


class Kind:
    """A kind of step: its parameters and the function that runs it."""

    def __init__(
        self,
        name: str,
        run: StepFunction,
        *,
        params: type[msgspec.Struct] | None = None,
        schema: dict[str, Any] | None = None,
        waits: bool = False,
        warm_up: WarmUp | None = None,
    ) -> None:
        """Parameters are converted to the type `params`, or validated against `schema`, a JSON Schema.

        With `waits`, steps of this kind only wait, so they do not count against the concurrency limit.
        `warm_up` prepares the resources of a step before the step can start.
        """
        self.name = name
        self.run = run
        self.waits = waits
        self.warm_up = warm_up
        self._type = params
        self._schema = schema

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the parameters (`with`)."""
        if self._type is None:
            return self._schema if self._schema is not None else {"type": "object"}
        (reference,), definitions = msgspec.json.schema_components((self._type,))
        root_schema: dict[str, Any] = definitions.pop(reference["$ref"].rpartition("/")[2])
        return {**root_schema, "$defs": definitions} if definitions else root_schema

    def read(self, params: dict[str, Any]) -> Any:
        """Converts or validates the parameters for `run`. Raises StepFailed, which is not retriable."""
        if self._type is None:
            if self._schema is not None and (
                problems := check_against_schema(self._schema, params, ("with",))
            ):
                raise StepFailed("; ".join(map(str, problems[:_MAX_SHOWN_PROBLEMS])), retriable=False)
            return params
        try:
            return msgspec.convert(params, self._type)
        except msgspec.ValidationError as error:
            problems = check_against_schema(self.schema, params, ("with",))
            message = (
                "; ".join(map(str, problems[:_MAX_SHOWN_PROBLEMS])) or f"with{_with_path_first(str(error))}"
            )
            raise StepFailed(message, retriable=False) from None

    def problems(self, params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yields (parameter, problem) pairs for problems that do not depend on the values of references."""
        known = self.schema.get("properties", {})
        for name in self.schema.get("required", ()):
            if name not in params:
                yield name, "is required"
        if self.schema.get("additionalProperties") is False:
            expected = ", ".join(known) or "nothing"
            for name in params:
                if name not in known:
                    close = did_you_mean(name, known)
                    hint = f"did you mean {close}? " if close else ""
                    yield cut(name, _MAX_NAME_CHARS), f"is unknown; {hint}{self.name} takes {expected}"
        for name, value in params.items():
            if not _may_be(value, known.get(name)):
                expected = describe_schema(known[name], SchemaRoot.of(self.schema, ""))
                yield name, f"expected {expected}, got {describe_value(value)}"


def _may_be(value: Any, expected_schema: Any) -> bool:
    """Returns True if a parameter has one of the expected types, or may get one when its references are
    resolved.
    """
    types = types_in(expected_schema)
    if types is None or next(find_references(value, in_item=True), None) is not None or _is_template(value):
        return True
    return any(
        type_name in types
        for type_name in types_of(resolve_references(value, ReferenceValues({}, {}), schema=expected_schema))
    )


def _is_template(value: Any) -> bool:
    """Returns True if the string may consist of one `${…}` reference. Such a template resolves to a value of
    any type, while every other template resolves to a string.
    """
    return isinstance(value, str) and value.startswith("${") and value.endswith("}")


def _with_path_first(message: str) -> str:
    """Moves the path in msgspec's message "Expected … - at `$.code`" to the front."""
    what, _, path = message.partition(" - at `$")
    return f"{path.rstrip('`')}: {what[:1].lower()}{what[1:]}"


class UnknownKind(HutchError):
    """The runtime has no such kind of step."""

    code = "unknown_kind"


class Registry:
    """The step kinds of this runtime. A kind is imported when it is first used."""

    def __init__(self, kinds: Mapping[str, str | Kind], extensions: Mapping[str, EntryPoint]) -> None:
        self._kinds = dict(kinds)
        self._extensions = dict(extensions)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Registry:
        """Creates a registry of the built-in kinds and the kinds of installed packages."""
        environment = os.environ if environ is None else environ
        return cls(handshake.builtin_kinds(environment), handshake.extension_kinds())

    def only(self, names: Collection[str]) -> Registry:
        """Returns a registry that contains only the named kinds."""
        return Registry(
            {name: kind for name, kind in self._kinds.items() if name in names},
            {name: point for name, point in self._extensions.items() if name in names},
        )

    def names(self) -> list[str]:
        return [*self._kinds, *self._extensions]

    def __contains__(self, name: str) -> bool:
        return name in self._kinds or name in self._extensions

    def get(self, name: str) -> Kind:
        """Returns the kind. Raises UnknownKind, or HutchError if an extension cannot be loaded."""
        target = self._kinds.get(name)
        if isinstance(target, Kind):
            return target
        kind = self._builtin(target) if target is not None else self._extension(name)
        self._kinds[name] = kind
        return kind

    def _builtin(self, where: str) -> Kind:
        module, _, attribute = where.partition(":")
        kind = getattr(import_module(module), attribute)
        assert isinstance(kind, Kind)
        return kind

    def _extension(self, name: str) -> Kind:
        point = self._extensions.get(name)
        if point is None:
            known = ", ".join(self.names())
            raise UnknownKind(f"there is no kind of step {name[:100]!r}; expected one of {known}")
        try:
            from hutch.protocols.rep.kinds.former_import_path import allow_old_path

            allow_old_path()
            kind = point.load()
        except Exception as error:
            raise HutchError(f"the kind {name} of {point.value} cannot be loaded: {error!r}") from error
        if not isinstance(kind, Kind) or not asyncio.iscoroutinefunction(kind.run):
            what = "a hutch.step_kinds.Kind whose `run` is an async function"
            raise HutchError(f"the kind {name}: expected {point.value} to be {what}")
        return kind
