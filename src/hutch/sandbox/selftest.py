"""Picks the strongest isolation that is proven by trying forbidden things from inside the real jail."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox import cgroup, copies, jail, runtime
from hutch.sandbox.cgroup import Controller
from hutch.sandbox.copies import stamp
from hutch.sandbox.jail import Bubblewrap, Isolation, Jail
from hutch.sandbox.verdict import Check, Verdict
from hutch.settings import Settings

__all__ = ["Check", "Verdict", "choose", "prove"]

logger = logging.getLogger("hutch")


_FILE = "selftest.json"
# A verdict is about these: an upgrade of Hutch, or a change while it is developed, needs a new one.
_SOURCES = ("jail.py", "copies.py", "seccomp.py", "cgroup.py", "probe.py", "probe.js")


class Record(msgspec.Struct, frozen=True):
    """A verdict as it is kept, with the jail that it is about and what it holds for."""

    key: str
    verdict: Verdict
    bwrap: Bubblewrap | None
    libraries: tuple[str, ...]
    copies: str
    filtered: bool
    disable_userns: bool


def choose(settings: Settings) -> tuple[Jail, Verdict]:
    """The strongest jail that is proven here, or the one that the settings ask for.

    Raises SandboxUnavailable, with the check that failed and the remedy, when there is none such.
    """
    deno = runtime.locate()
    controller = cgroup.find()
    failed: Verdict | None = None
    for isolation in _wanted(settings):
        chosen, verdict = prove(isolation, deno, controller, cache=settings.home_path / "cache")
        if chosen is not None and verdict.proven:
            return chosen, verdict
        failed = failed or verdict
    assert failed is not None
    assert failed.failure is not None
    raise SandboxUnavailable(
        f"The isolation {failed.isolation!r} is not proven on this machine: "
        f"{failed.failure.name}: {failed.failure.detail}",
        remedy=failed.remedy(),
    )


def prove(
    isolation: Isolation,
    deno: str,
    controller: Controller | None,
    *,
    cache: Path | None = None,
    again: bool = False,
) -> tuple[Jail | None, Verdict]:
    """Test one isolation, or take what an earlier test of the same things in this boot found.

    `cache`: the folder for what is found, and for copies of Deno's libraries. `again`: whatever was found
    earlier, of which nothing changes. The jail is None where there is not even one to test.
    """
    key = _key(isolation, deno, controller)
    kept = _load(cache, isolation) if cache and not again else None
    if kept is not None and kept.key == _with_libraries(key, kept.libraries, kept.copies):
        return _revive(kept, deno, controller), kept.verdict
    chosen, verdict = _test(isolation, deno, controller, cache)
    if cache and not again and chosen is not None and verdict.proven:
        key = _with_libraries(key, chosen.libraries, chosen.copies)
        made = (chosen.bwrap, chosen.libraries, chosen.copies, chosen.filtered, chosen.disable_userns)
        try:
            _save(cache, isolation, Record(key, verdict, *made))
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s), so every start makes the self-test;"
                " set HUTCH_HOME to a directory that this user may write",
                cache.parent,
                error.strerror,
            )
    return chosen, verdict


def _wanted(settings: Settings) -> tuple[Isolation, ...]:
    return ("container", "process") if settings.isolation == "auto" else (settings.isolation,)


def _test(
    isolation: Isolation, deno: str, controller: Controller | None, cache: Path | None
) -> tuple[Jail | None, Verdict]:
    if isolation == "process":
        return _judged(Jail("process", deno, controller=controller), deno)
    bwrap = jail.bubblewrap()
    if bwrap is None:
        missing = Check("bubblewrap", False, jail.no_bubblewrap()[0])
        return None, Verdict("container", False, None, [missing], runtime.version(deno), None)
    # What a machine may not let bubblewrap do, first what we would miss least.
    strengths = ((True, True), (True, False), (False, True))
    # Nothing can be executed from some homes.
    places = dict.fromkeys((_copies(deno, cache), ""))
    first: tuple[Jail, Verdict] | None = None
    for copied_to, (filtered, disable_userns) in itertools.product(places, strengths):
        candidate = Jail(
            "container",
            deno,
            bwrap=bwrap,
            copies=copied_to,
            filtered=filtered,
            disable_userns=disable_userns,
            controller=controller,
        )
        judged = _judged(candidate, deno)
        failure = judged[1].failure
        if failure is None or failure.name != "starts":
            return judged
        first = first or judged
    assert first is not None
    return first


def _copies(deno: str, cache: Path | None) -> str:
    """Of Deno's libraries; without them a jail only starts a little slower."""
    try:
        return copies.make(runtime.libraries(deno), cache) if cache else ""
    except OSError:
        return ""


def _judged(candidate: Jail, deno: str) -> tuple[Jail, Verdict]:
    from hutch.sandbox.probe import examine  # not needed when the verdict is kept

    checks = examine(candidate)
    if not all(check.ok for check in checks if check.name in ("memory", "tasks")):
        candidate.controller = None
    verdict = Verdict(
        isolation=candidate.isolation,
        seccomp=any(check.name == "seccomp" and check.ok for check in checks),
        cgroup=candidate.controller.version if candidate.controller else None,
        checks=checks,
        deno=runtime.version(deno),
        bwrap=candidate.bwrap.version if candidate.bwrap else None,
    )
    return candidate, verdict


def _revive(record: Record, deno: str, controller: Controller | None) -> Jail:
    return Jail(
        record.verdict.isolation,
        deno,
        bwrap=record.bwrap,
        libraries=record.libraries,
        copies=record.copies,
        filtered=record.filtered,
        disable_userns=record.disable_userns,
        controller=controller if record.verdict.cgroup else None,
    )


def _key(isolation: Isolation, deno: str, controller: Controller | None) -> str:
    """Everything that a verdict depends on and that can be had without starting a program."""
    sandbox = Path(__file__).parent
    parts = [
        isolation,
        _text("/proc/sys/kernel/random/boot_id"),
        *os.uname()[2:],
        f"{os.geteuid()}:{os.getegid()}",
        controller.version if controller else "",
        stamp(deno),
        stamp(jail.bubblewrap_path() or ""),
        *(_text(path) for path, *_ in jail.OBSTACLES),
        *(stamp(f"{sandbox}/{name}") for name in _SOURCES),
    ]
    return "\n".join(parts)


def _with_libraries(key: str, libraries: tuple[str, ...], copied_to: str) -> str:
    copied = [copied_to + each for each in libraries] if copied_to else []
    return "\n".join([key, *map(stamp, (*libraries, *copied))])


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _load(cache: Path, isolation: Isolation) -> Record | None:
    file = cache / _FILE
    try:
        status = file.stat()
        # What another user could have written proves nothing.
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Record]).get(isolation)
    except (OSError, msgspec.DecodeError):
        return None


def _save(cache: Path, isolation: Isolation, record: Record) -> None:
    """Keep a record beside the other isolation's. Raises OSError where the home cannot be written."""
    import tempfile

    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    other: Isolation = "process" if isolation == "container" else "container"
    kept = _load(cache, other)
    records = {isolation: record} | ({other: kept} if kept else {})
    handle, name = tempfile.mkstemp(dir=cache, prefix=".selftest-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(records))
        os.replace(name, cache / _FILE)
    except OSError:
        os.unlink(name)
        raise
