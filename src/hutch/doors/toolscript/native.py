"""Checks with the native compiler: processes that wait for scripts, and what they find put into our words."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from hutch.doors.toolscript.compiler import Compiler
from hutch.doors.toolscript.outline import Outline
from hutch.doors.toolscript.problems import MOST_SHOWN, Problem, ScriptRefused, problem, unchecked
from hutch.doors.toolscript.service import MEMORY_BYTES, Diagnostic, Lost, Service, apart
from hutch.doors.toolscript.text import Text
from hutch.sandbox.jail import Jail
from hutch.sandbox.meter import Meter
from hutch.settings import MIB

logger = logging.getLogger("hutch.toolscript")

START_SECONDS = 30.0
# More processes than cores would only wait for one another, and each takes some 60 MB.
MOST_PROCESSES = min(2, os.cpu_count() or 1)
LONGEST_SIGNATURE = 2_000
MOST_KEPT = 1_000
# "Cannot find namespace", "Namespace has no exported member" and "Cannot use namespace as a type".
_NO_SUCH_TYPE = (2503, 2694, 2709)
_NODE_MODULE = "'\"node:*\"'"
_FROM_NODE = re.compile(r"""from\s*["']node:""")
_LONGEST_IMPORT = 2_000
_WORD = re.compile(r"[\w$]+")

Files = Mapping[str, str]
T = TypeVar("T")


class Unavailable(Exception):
    """The compiler does not run here."""


class Native:
    """The compiler's processes. They belong to one event loop."""

    def __init__(self, compiler: Compiler, jail: Jail, seconds: float) -> None:
        self._compiler = compiler
        self._jail = jail
        self._seconds = seconds
        self._meter = Meter()
        self._idle: list[Service] = []
        self._places = asyncio.Semaphore(MOST_PROCESSES)
        self._warming = asyncio.Lock()
        self._closed = False

    async def start(self, *, warm: bool = False) -> None:
        """Has a process ready, and, if wanted, Deno's types in its memory. Raises Unavailable."""
        async with self._warming, self._places:
            service = await self._ready()
            try:
                async with asyncio.timeout(START_SECONDS):
                    if warm:
                        await service.warm()
            except (Lost, TimeoutError) as error:
                await service.close()
                raise Unavailable(str(error) or "it does not read Deno's types") from None
            except BaseException:
                await service.close()
                raise
            if self._closed:
                await service.close()
                raise Unavailable("it was closed meanwhile")
            self._idle.append(service)

    async def close(self) -> None:
        """Ends its processes; those at work when they are done."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
        self._meter.close()

    async def outlines(self, files: Files) -> dict[str, Outline]:
        """The outlines of files by their names. Raises ScriptRefused for what is no TypeScript."""
        return await self._do(_outlines, files)

    async def check(self, files: Files, declarations: str) -> list[Problem]:
        """What is wrong with files that are run together."""
        return await self._do(partial(_check, declarations), files)

    async def _do(self, work: Callable[[Service, Files], Awaitable[T]], files: Files) -> T:
        """Has a process do something. Raises Unavailable, and ScriptRefused if it cannot be done."""
        async with self._warming:
            # While one is made ready: another would be ready later still.
            pass
        async with self._places:
            for again in (True, False):
                service = await self._ready()
                sound = False
                try:
                    async with asyncio.timeout(self._seconds):
                        done = await work(service, files)
                    sound = True
                    return done
                except ScriptRefused:
                    sound = True
                    raise
                except TimeoutError:
                    raise _refused(files, f"that takes longer than {self._seconds:g} s.") from None
                except Lost as error:
                    logger.warning("the compiler failed with a script: %s", error)
                    # Perhaps it was not the script that ended it.
                    if not again:
                        break
                finally:
                    if sound and not service.is_spent and not self._closed:
                        self._idle.append(service)
                    else:
                        await service.close()
        raise _refused(files, f"it nests too deeply, or that takes more than {MEMORY_BYTES // MIB} MiB.")

    async def _ready(self) -> Service:
        while self._idle:
            service = self._idle.pop()
            if not service.is_spent:
                return service
            await service.close()
        return await self._start()

    async def _start(self) -> Service:
        try:
            async with asyncio.timeout(START_SECONDS):
                return await Service.start(self._compiler, self._jail, self._meter)
        except (Lost, OSError, TimeoutError) as error:
            raise Unavailable(str(error) or "it does not start") from None


async def _outlines(service: Service, files: Files) -> dict[str, Outline]:
    outlines: dict[str, Outline] = {}
    await service.parse(files)
    for name, source in files.items():
        text = Text(source)
        if wrong := await service.syntax_errors(name):
            raise ScriptRefused([_problem(service, name, text, each) for each in wrong])
        tree = await service.tree(name, text)
        # Of a megabyte of source, it takes half a second.
        outlines[name] = await apart(tree.outline, len(source))
    return outlines


async def _check(declarations: str, service: Service, files: Files) -> list[Problem]:
    problems: list[Problem] = []
    await service.load(files, declarations)
    for name, source in files.items():
        if name.endswith(".json"):
            continue
        text = Text(source)
        # What the types of something unreadable are is of no interest.
        if wrong := await service.syntax_errors(name):
            return [_problem(service, name, text, each) for each in wrong]
        wrong = _known(text, await service.errors(name))[:MOST_KEPT]
        tree = await service.tree(name, text) if wrong else None
        for number, each in enumerate(wrong):
            called = tree.called(text.index(each.pos)) if tree and number < MOST_SHOWN else None
            signature = await _signature(service, name, text, called) if called else None
            problems.append(_problem(service, name, text, each, signature))
    return problems


def _known(text: Text, found: list[Diagnostic]) -> list[Diagnostic]:
    """Those about things that the compiler knows: types of Node's modules it does not (see ambient.py)."""
    if not any(each.code in _NO_SUCH_TYPE for each in found):
        return found
    unknown = _of_node(text.text)

    def is_known(each: Diagnostic) -> bool:
        name = text.text[text.index(each.pos) : text.index(each.end)]
        return each.code not in _NO_SUCH_TYPE or (name not in unknown and _NODE_MODULE not in each.text)

    return [each for each in found if is_known(each)]


def _of_node(text: str) -> frozenset[str]:
    """All words of the imports from Node's modules."""
    words: set[str] = set()
    for found in _FROM_NODE.finditer(text):
        before = text[max(0, found.start() - _LONGEST_IMPORT) : found.start()]
        words.update(_WORD.findall(before, max(0, before.rfind("import"))))
    return frozenset(words)


def _refused(files: Files, reason: str) -> ScriptRefused:
    return ScriptRefused([unchecked(next(iter(files)), reason)])


def _problem(
    service: Service, name: str, text: Text, found: Diagnostic, signature: str | None = None
) -> Problem:
    message = service.said("\n".join(found.lines()))
    start, end = text.index(found.pos), text.index(found.end)
    return problem(name, text, start, end, message, code=found.code, signature=signature)


async def _signature(service: Service, name: str, text: Text, called: tuple[int, int, int]) -> str | None:
    """How the tool is called whose call it is, if it is a tool's."""
    start, end, last = called
    kind = await service.tool_type(name, text, last)
    if kind is None:
        return None
    # JSON has no such thing; it is there because what may be absent may be set to it, too.
    kind = service.said(kind).replace(" | undefined", "")
    signature = " ".join(text.text[start:end].split()) + _as_declared(kind)
    return signature if len(signature) <= LONGEST_SIGNATURE else f"{signature[:LONGEST_SIGNATURE]}…"


def _as_declared(kind: str) -> str:
    """A function's type as it is declared: `(a: A): B` instead of `(a: A) => B`."""
    depth = 0
    for place, char in enumerate(kind):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 and kind.startswith(") => ", place):
            return f"{kind[: place + 1]}: {kind[place + 5 :]}"
        if depth == 0:
            break
    return f": {kind}"
