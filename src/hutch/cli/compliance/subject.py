"""The executor under test: what it is asked with, and the answers that several checks look at."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from hutch.cli.compliance.answer import Answer, Object, is_whole
from hutch.cli.compliance.client import Client
from hutch.cli.compliance.load import Load, fire
from hutch.cli.compliance.outcome import Failed, NoAnswer, NotTested
from hutch.cli.compliance.progress import Progress

T = TypeVar("T")

EXECUTE = "/execute-tool"
# What no package and no tool is called.
NOBODY = f"hutch-check-{uuid.uuid4().hex}"


class Tool(msgspec.Struct, frozen=True):
    """An export of a package, and what it is called with."""

    package: str
    version: str | None
    name: str
    params: Object

    def request(self, **changes: Any) -> Object:
        """The body of an execution; a change to None leaves the field out."""
        fields = {
            "packageName": self.package,
            "version": self.version,
            "name": self.name,
            "params": self.params,
        }
        return {key: value for key, value in {**fields, **changes}.items() if value is not None}


DEFAULT_TOOL = Tool(
    package="@tpmjs/tools-template-render",
    version="0.1.0",
    name="templateRenderTool",
    params={"template": "Hello {{name}}!", "data": {"name": "Hutch"}},
)
DEFAULT_OUTPUT = "Hello Hutch!"


class Patience(msgspec.Struct, frozen=True):
    """For how many seconds to wait."""

    answer: float = 10.0
    """For what needs no execution."""
    execution: float = 185.0
    """For an execution: the specification's 180 s for a whole request, and the way."""
    timeout: float = 65.0
    """Beyond the longest execution, for the installation before it."""


class Subject:
    """Asks, and remembers what was answered."""

    def __init__(
        self,
        client: Client,
        progress: Progress,
        tool: Tool = DEFAULT_TOOL,
        slow: Tool | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.client = client
        self.progress = progress
        self.tool = tool
        self.slow = slow
        self.patience = patience or Patience()
        self._known: dict[str, Any] = {}

    # --- what is answered without an execution ---

    async def get(
        self, path: str, *, keyed: bool = False, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return await self.client.get(path, self.patience.answer, keyed=keyed, headers=headers)

    async def options(self, path: str, headers: Mapping[str, str]) -> Answer:
        return await self.client.ask("OPTIONS", path, self.patience.answer, headers=headers)

    async def health(self) -> Answer:
        return await self._once("health", lambda: self._open("/health"))

    async def info(self) -> Answer:
        return await self._once("info", lambda: self._open("/info"))

    async def _open(self, path: str) -> Answer:
        """The specification's words close everything when there is a key, its test suite wants these open."""
        answer = await self.get(path)
        if answer.status == 401 and self.client.key is not None:
            return await self.get(path, keyed=True)
        return answer

    async def capabilities(self) -> Object:
        """Raises NotTested when there are none to look at."""
        try:
            info = await self.info()
            info.expect(200)
            found = info.object().get("capabilities")
        except Failed as error:
            raise NotTested(f"there are no capabilities: {error}") from None
        if not isinstance(found, dict):
            raise NotTested("there are no capabilities in the answer of GET /info")
        return found

    async def capability(self, name: str) -> Any:
        """None when it is not told."""
        try:
            return (await self.capabilities()).get(name)
        except NotTested:
            return None

    async def limit(self, name: str) -> int | None:
        """A capability that is a number above 0."""
        value = await self.capability(name)
        return int(value) if is_whole(value) and value > 0 else None

    # --- executions ---

    async def valid(self) -> Answer:
        """The answer to the valid request, which is the first execution of all."""
        return await self._once("valid", lambda: self.post(self.tool.request()))

    async def ready(self) -> None:
        """Raises NotTested when it is known that executions are not even begun."""
        if (await self._answered()).status == 401:
            wrong = "it did not accept the one that was given"
            need = "give it with --api-key"
            why = need if self.client.key is None else wrong
            raise NotTested(f"the executor wants a key: {why}")

    async def _answered(self) -> Answer:
        """Where the first execution of all got no answer, nobody waits for the others'."""
        try:
            return await self.valid()
        except NoAnswer as error:
            raise NotTested(f"the valid request got no answer ({error})") from None

    async def works(self) -> None:
        """Raises NotTested when the valid request does not succeed."""
        await self.ready()
        try:
            succeeded = (await self.valid()).execution()["success"]
        except Failed:
            succeeded = False
        if not succeeded:
            raise NotTested("the valid request did not succeed")

    async def execute(
        self,
        body: Object | bytes,
        path: str = EXECUTE,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> Answer:
        """Raises NotTested as `ready` does."""
        await self.ready()
        return await self.post(body, path, headers, seconds=seconds)

    async def unknown_package(self) -> Answer:
        """The answer to an execution of a package that does not exist."""
        body = self.tool.request(packageName=NOBODY, version=None)
        return await self._once("unknown package", lambda: self.execute(body))

    async def malformed(self) -> Answer:
        return await self._once("malformed", lambda: self.execute(b'{"packageName": '))

    async def unknown_path(self) -> Answer:
        return await self._once("unknown path", lambda: self.get(f"/{NOBODY}", keyed=True))

    async def keyless(self) -> Answer:
        """The answer to the valid request when it is sent without a key."""
        answer = await self._answered()
        if self.client.key is None:
            return answer
        body = self.tool.request()
        return await self._once("keyless", lambda: self.post(body, keyed=False))

    async def locked(self) -> bool:
        """Whether an execution without a key is refused."""
        return (await self.keyless()).status == 401

    async def load(self) -> Load:
        """What came back from many executions at once."""
        await self.ready()
        body = msgspec.json.encode(self.tool.request())

        async def execute() -> Answer:
            return await self.client.post(EXECUTE, body, self.patience.execution, patient=False)

        return await self._once("load", lambda: fire(execute, lambda: self._open("/health")))

    async def post(
        self,
        body: Object | bytes,
        path: str = EXECUTE,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        keyed: bool = True,
    ) -> Answer:
        """Whether or not it makes sense."""
        sent = msgspec.json.encode(body) if isinstance(body, dict) else body
        seconds = seconds or self.patience.execution
        return await self.client.post(path, sent, seconds, keyed=keyed, headers=headers)

    async def _once(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        """What is known by this name, asked for when it is not; an answer that did not come is known too."""
        if name not in self._known:
            try:
                self._known[name] = await ask()
            except NoAnswer as error:
                self._known[name] = error
        known: T | NoAnswer = self._known[name]
        if isinstance(known, NoAnswer):
            raise known
        return known


Check = Callable[[Subject], Awaitable[str | None]]
"""Returns what it measured, if anything; raises one of the outcomes."""
