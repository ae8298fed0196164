"""Kinds of steps: what each takes, and what runs it. Ours, and those of a user's packages.

A package brings a kind with an entry point of the group `hutch.step_kinds`, whose name is the kind's:

```python
async def run(call: Call) -> object:
    return {"sum": call.params["a"] + call.params["b"]}

SUM = Kind("sum", run, schema={"type": "object", "required": ["a", "b"]})
```
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep import capabilities, schema
from hutch.doors.rep.literals import types_in, types_of
from hutch.doors.rep.problems import kind_of
from hutch.doors.rep.references import mentioned, resolve
from hutch.errors import HutchError
from hutch.session.schemas import Root

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hutch.doors.rep.context import Context
    from hutch.doors.rep.engine import FlowRun
    from hutch.doors.rep.flow import Flow, Node

MAX_MESSAGE = 8_000
_MOST_TOLD = 5


class StepFailed(Exception):
    """A step failed. Raise it from a kind; `details` is JSON for whoever reads the run's error."""

    def __init__(
        self, message: str, *, retriable: bool = True, details: Any = None, cause: str | None = None
    ) -> None:
        text = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
        super().__init__(text)
        self.message = text
        self.retriable = retriable
        self.details = details
        self.cause = cause


class Call:
    """One attempt at one step."""

    def __init__(
        self,
        *,
        run: FlowRun,
        node: Node,
        step_id: str,
        attempt: int,
        params: Any,
        log: Callable[[str, str], None],
        emit: Callable[..., None],
        deadline: float | None = None,
    ) -> None:
        self.run = run
        """The run that it is a step of."""
        self.node = node
        self.step_id = step_id
        """As events have it: in a sub-flow with the ids of the steps that it is in."""
        self.attempt = attempt
        self.params = params
        """`with`, its references resolved: a dict, or what the kind reads its parameters into."""
        self.log = log
        """Level (debug, info, warning, error) and message, as an event of the run."""
        self.emit = emit
        """An event of any other type."""
        self.deadline = deadline
        """When the attempt is cancelled, by time.monotonic()."""

    @property
    def context(self) -> Context:
        return self.run.context

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The run's."""
        return self.run.inputs

    @property
    def flow(self) -> Flow:
        return self.run.flow

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())


Run = Callable[[Call], Awaitable[Any]]
Expect = Callable[["Context", "Node"], Awaitable[None]]


class Kind:
    """What steps of a kind take, and what runs them."""

    def __init__(
        self,
        name: str,
        run: Run,
        *,
        params: type[msgspec.Struct] | None = None,
        schema: dict[str, Any] | None = None,
        waits: bool = False,
        expect: Expect | None = None,
    ) -> None:
        """Parameters are read into `params`, or else checked against `schema`, a JSON Schema.

        `waits`: a step of this kind does nothing by itself, and takes no place among those that run at once.
        `expect` gets ready what a step of this kind will need, while it cannot begin yet.
        """
        self.name = name
        self.run = run
        self.waits = waits
        self.expect = expect
        self._type = params
        self._schema = schema

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What `with` is to look like, as JSON Schema."""
        if self._type is None:
            return self._schema if self._schema is not None else {"type": "object"}
        (schema,), definitions = msgspec.json.schema_components((self._type,))
        own: dict[str, Any] = definitions.pop(schema["$ref"].rpartition("/")[2])
        return {**own, "$defs": definitions} if definitions else own

    def read(self, params: dict[str, Any]) -> Any:
        """The parameters as `run` gets them. Raises StepFailed, which no retry would mend."""
        if self._type is None:
            if self._schema is not None and (wrong := schema.check(self._schema, params, ("with",))):
                raise StepFailed("; ".join(map(str, wrong[:_MOST_TOLD])), retriable=False)
            return params
        try:
            return msgspec.convert(params, self._type)
        except msgspec.ValidationError as error:
            wrong = schema.check(self.schema, params, ("with",))
            told = "; ".join(map(str, wrong[:_MOST_TOLD])) or f"with{_located(str(error))}"
            raise StepFailed(told, retriable=False) from None

    def problems(self, params: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What is wrong whatever the references come to: which parameter, and what."""
        known = self.schema.get("properties", {})
        wrong = [(name, "is required") for name in self.schema.get("required", ()) if name not in params]
        if self.schema.get("additionalProperties") is False:
            takes = ", ".join(known) or "nothing"
            wrong += [
                (name, f"is unknown; {self.name} takes {takes}") for name in params if name not in known
            ]
        root = Root.of(self.schema, "")
        return wrong + [
            (name, f"expected {schema.describe(known[name], root)}, got {kind_of(value)}")
            for name, value in params.items()
            if not _may_be(value, known.get(name))
        ]


def _may_be(value: Any, wanted: Any) -> bool:
    """Whether a parameter can be of a type that is wanted: as it stands, or by what it refers to."""
    types = types_in(wanted)
    if types is None or next(mentioned(value), None) is not None:
        return True
    return any(each in types for each in types_of(resolve(value, {}, {}, schema=wanted)))


def _located(message: str) -> str:
    """msgspec says "Expected … - at `$.code`": the place comes first with us."""
    what, _, path = message.partition(" - at `$")
    return f"{path.rstrip('`')}: {what[:1].lower()}{what[1:]}"


class UnknownKind(HutchError):
    """There is no such kind of step."""

    code = "unknown_kind"


class Registry:
    """All kinds that this runtime has. Each is loaded when it is first used."""

    def __init__(self, kinds: Mapping[str, str | Kind], extensions: Mapping[str, EntryPoint]) -> None:
        self._kinds = dict(kinds)
        self._extensions = dict(extensions)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Registry:
        """Ours, and those of installed packages."""
        given = os.environ if environ is None else environ
        return cls(capabilities.own_kinds(given), capabilities.extensions())

    def only(self, names: Collection[str]) -> Registry:
        """One with no other kinds than these."""
        return Registry(
            {name: kind for name, kind in self._kinds.items() if name in names},
            {name: point for name, point in self._extensions.items() if name in names},
        )

    def names(self) -> list[str]:
        return [*self._kinds, *self._extensions]

    def __contains__(self, name: str) -> bool:
        return name in self._kinds or name in self._extensions

    def get(self, name: str) -> Kind:
        """Raises UnknownKind, and for a package's kind that cannot be loaded, HutchError."""
        found = self._kinds.get(name)
        if isinstance(found, Kind):
            return found
        kind = self._ours(found) if found is not None else self._theirs(name)
        self._kinds[name] = kind
        return kind

    def _ours(self, where: str) -> Kind:
        module, _, attribute = where.partition(":")
        kind = getattr(import_module(module), attribute)
        assert isinstance(kind, Kind)
        return kind

    def _theirs(self, name: str) -> Kind:
        point = self._extensions.get(name)
        if point is None:
            known = ", ".join(self.names())
            raise UnknownKind(f"there is no kind of step {name[:100]!r}; there is {known}")
        try:
            kind = point.load()
        except Exception as error:
            raise HutchError(f"the kind {name} of {point.value} cannot be loaded: {error!r}") from error
        if not isinstance(kind, Kind) or not asyncio.iscoroutinefunction(kind.run):
            what = "a hutch.doors.rep.kinds.registry.Kind whose `run` is an async function"
            raise HutchError(f"the kind {name}: expected {point.value} to be {what}")
        return kind
