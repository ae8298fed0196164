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
from hutch.sandbox.copies import Copies
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
    """The name of their folder in the cache; empty without."""
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
    if cache and kept is not None and kept.key == _with_libraries(key, kept.libraries):
        kept_copies = copies.find(kept.libraries, cache, kept.copies) if kept.copies else None
        if kept_copies is not None or not kept.copies:
            return _revive(kept, deno, controller, kept_copies), kept.verdict
    chosen, verdict = _test(isolation, deno, controller, cache, make=not again)
    if cache and not again and chosen is not None and verdict.proven:
        key = _with_libraries(key, chosen.libraries)
        name = chosen.copies.name if chosen.copies else ""
        made = (chosen.bwrap, chosen.libraries, name, chosen.filtered, chosen.disable_userns)
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
    isolation: Isolation, deno: str, controller: Controller | None, cache: Path | None, *, make: bool
) -> tuple[Jail | None, Verdict]:
    if isolation == "process":
        return _judged(Jail("process", deno, controller=controller), deno)
    bwrap = jail.bubblewrap()
    if bwrap is None:
        missing = Check("bubblewrap", False, jail.no_bubblewrap()[0])
        return None, Verdict("container", False, None, [missing], runtime.version(deno), None)
    # What a machine may not let bubblewrap do, first what we would miss least.
    strengths = ((True, True), (True, False), (False, True))
    first: tuple[Jail, Verdict] | None = None
    # From some homes nothing can be executed: whatever is wrong with copies, it can be done without.
    ways = dict.fromkeys((_copies(deno, cache, make=make), None))
    for copied, (filtered, disable_userns) in itertools.product(ways, strengths):
        candidate = Jail(
            "container",
            deno,
            bwrap=bwrap,
            copies=copied,
            filtered=filtered,
            disable_userns=disable_userns,
            controller=controller,
        )
        judged = _judged(candidate, deno)
        failure = judged[1].failure
        if failure is None:
            return judged
        if copied is None:
            first = first or judged
            if failure.name != "starts":
                break
    assert first is not None
    return first


def _copies(deno: str, cache: Path | None, *, make: bool) -> Copies | None:
    """Of Deno's libraries; without them a jail only starts a little slower."""
    if cache is None:
        return None
    libraries = runtime.libraries(deno)
    try:
        if make:
            return copies.make(libraries, cache)
        return copies.find(libraries, cache, copies.name_of(libraries))
    except OSError:
        return None


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


def _revive(record: Record, deno: str, controller: Controller | None, copied: Copies | None) -> Jail:
    return Jail(
        record.verdict.isolation,
        deno,
        bwrap=record.bwrap,
        libraries=record.libraries,
        copies=copied,
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
        _stamp(deno),
        _stamp(jail.bubblewrap_path() or ""),
        *(_text(path) for path, *_ in jail.OBSTACLES),
        *(_stamp(f"{sandbox}/{name}") for name in _SOURCES),
    ]
    return "\n".join(parts)


def _with_libraries(key: str, libraries: tuple[str, ...]) -> str:
    return "\n".join([key, *map(_stamp, libraries)])


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return f"{path}:absent"
    return f"{path}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


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
