"""Chooses the strongest isolation that passes the self-test, which tries forbidden actions inside the real
jail.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox.deno_binary import deno_version, find_deno, shared_libraries
from hutch.sandbox.jail import cgroup, jail
from hutch.sandbox.jail.cgroup import CgroupController
from hutch.sandbox.jail.jail import Bubblewrap, Isolation, Jail
from hutch.sandbox.jail.libraries import LibraryCopies, copies_name, find_copies, make_copies
from hutch.sandbox.selftest.result import JailCheck, SelfTestResult
from hutch.settings import Settings

logger = logging.getLogger("hutch")

_CACHE_FILE = "selftest.json"
# Source files that a cached result depends on. If one of them changes, the self-test runs again.
_SOURCES = (
    *(Path(jail.__file__).with_name(name) for name in ("jail.py", "libraries.py", "seccomp.py", "cgroup.py")),
    *(Path(__file__).with_name(name) for name in ("probe.py", "probe.js")),
)


class CachedResult(msgspec.Struct, frozen=True):
    """Cached result, with the configuration of the tested jail."""

    key: str
    result: SelfTestResult
    bwrap: Bubblewrap | None
    libraries: tuple[str, ...]
    library_copies: str
    """Name of the folder with copies of the libraries in the cache; empty if there are no copies."""
    use_seccomp: bool
    disable_userns: bool


def choose_jail(settings: Settings) -> tuple[Jail, SelfTestResult]:
    """Returns the strongest jail that passes the self-test, or the jail that the settings require.

    Raises SandboxUnavailable if no jail passes.
    """
    deno = find_deno()
    controller = cgroup.find_controller()
    failed: SelfTestResult | None = None
    for isolation in _isolations(settings):
        chosen, result = check_isolation(isolation, deno, controller, cache=settings.home_path / "cache")
        if chosen is not None and result.is_proven:
            return chosen, result
        failed = failed or result
    assert failed is not None
    assert failed.first_failure is not None
    raise SandboxUnavailable(
        f"The isolation {failed.isolation!r} is not proven on this machine: "
        f"{failed.first_failure.name}: {failed.first_failure.detail}",
        remedy=failed.remedy(),
    )


def check_isolation(
    isolation: Isolation,
    deno: str,
    controller: CgroupController | None,
    *,
    cache: Path | None = None,
    ignore_cache: bool = False,
) -> tuple[Jail | None, SelfTestResult]:
    """Tests one kind of isolation, or returns the cached result of the same test since boot.

    `cache`: folder for results and for copies of Deno's libraries. With `ignore_cache`, results in the folder
    are not used and the folder does not change. Returns None as the jail if bubblewrap is missing, so that
    there is no jail to test.
    """
    key = _cache_key(isolation, deno, controller)
    cached = _load_result(cache, isolation) if cache and not ignore_cache else None
    if cache and cached is not None and cached.key == _add_libraries(key, cached.libraries):
        cached_copies = (
            find_copies(cached.libraries, cache, cached.library_copies) if cached.library_copies else None
        )
        if cached_copies is not None or not cached.library_copies:
            return _restore_jail(cached, deno, controller, cached_copies), cached.result
    chosen, result = _test_isolation(isolation, deno, controller, cache, make=not ignore_cache)
    if cache and not ignore_cache and chosen is not None and result.is_proven:
        key = _add_libraries(key, chosen.libraries)
        folder_name = chosen.library_copies.name if chosen.library_copies else ""
        configuration = (
            chosen.bwrap,
            chosen.libraries,
            folder_name,
            chosen.use_seccomp,
            chosen.disable_userns,
        )
        try:
            _save_result(cache, isolation, CachedResult(key, result, *configuration))
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s), so every start repeats the self-test;"
                " set HUTCH_HOME to a writable directory",
                cache.parent,
                error.strerror,
            )
    return chosen, result


def _isolations(settings: Settings) -> tuple[Isolation, ...]:
    return ("container", "process") if settings.isolation == "auto" else (settings.isolation,)


def _test_isolation(
    isolation: Isolation, deno: str, controller: CgroupController | None, cache: Path | None, *, make: bool
) -> tuple[Jail | None, SelfTestResult]:
    if isolation == "process":
        return _test_jail(Jail("process", deno, controller=controller), deno)
    bwrap = jail.bubblewrap()
    if bwrap is None:
        missing = JailCheck("bubblewrap", False, jail.bubblewrap_missing()[0])
        return None, SelfTestResult("container", False, None, [missing], deno_version(deno), None)
    # Combinations of a seccomp filter and disabled user namespaces, strongest first. The machine may not
    # allow both.
    strengths = ((True, True), (True, False), (False, True))
    first_failed: tuple[Jail, SelfTestResult] | None = None
    # Copies of the libraries are optional. They cannot be used if the home is mounted noexec, for example.
    copies_choices = dict.fromkeys((_library_copies(deno, cache, make=make), None))
    for library_copies, (use_seccomp, disable_userns) in itertools.product(copies_choices, strengths):
        candidate = Jail(
            "container",
            deno,
            bwrap=bwrap,
            library_copies=library_copies,
            use_seccomp=use_seccomp,
            disable_userns=disable_userns,
            controller=controller,
        )
        tested = _test_jail(candidate, deno)
        failure = tested[1].first_failure
        if failure is None:
            return tested
        if library_copies is None:
            first_failed = first_failed or tested
            if failure.name != "starts":
                break
    assert first_failed is not None
    return first_failed


def _library_copies(deno: str, cache: Path | None, *, make: bool) -> LibraryCopies | None:
    """Returns copies of Deno's libraries, or None. Without copies, a jail only starts a little slower."""
    if cache is None:
        return None
    libraries = shared_libraries(deno)
    try:
        if make:
            return make_copies(libraries, cache)
        return find_copies(libraries, cache, copies_name(libraries))
    except OSError:
        return None


def _test_jail(candidate: Jail, deno: str) -> tuple[Jail, SelfTestResult]:
    from hutch.sandbox.selftest.probe import probe_jail  # imported here: not needed if the result is cached

    checks = probe_jail(candidate)
    if not all(check.ok for check in checks if check.name in ("memory", "tasks")):
        candidate.controller = None
    result = SelfTestResult(
        isolation=candidate.isolation,
        seccomp=any(check.name == "seccomp" and check.ok for check in checks),
        cgroup=candidate.controller.version if candidate.controller else None,
        checks=checks,
        deno=deno_version(deno),
        bwrap=candidate.bwrap.version if candidate.bwrap else None,
    )
    return candidate, result


def _restore_jail(
    cached: CachedResult, deno: str, controller: CgroupController | None, library_copies: LibraryCopies | None
) -> Jail:
    return Jail(
        cached.result.isolation,
        deno,
        bwrap=cached.bwrap,
        libraries=cached.libraries,
        library_copies=library_copies,
        use_seccomp=cached.use_seccomp,
        disable_userns=cached.disable_userns,
        controller=controller if cached.result.cgroup else None,
    )


def _cache_key(isolation: Isolation, deno: str, controller: CgroupController | None) -> str:
    """Returns the key of a cached result. It contains everything that affects the result and can be read
    without starting a program.
    """
    parts = [
        isolation,
        _read_text("/proc/sys/kernel/random/boot_id"),
        *os.uname()[2:],
        f"{os.geteuid()}:{os.getegid()}",
        controller.version if controller else "",
        _file_stamp(deno),
        _file_stamp(jail.bubblewrap_path() or ""),
        *(_read_text(path) for path, *_ in jail.OBSTACLES),
        *(_file_stamp(str(path)) for path in _SOURCES),
    ]
    return "\n".join(parts)


def _add_libraries(key: str, libraries: tuple[str, ...]) -> str:
    return "\n".join([key, *map(_file_stamp, libraries)])


def _file_stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return f"{path}:absent"
    return f"{path}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _load_result(cache: Path, isolation: Isolation) -> CachedResult | None:
    file = cache / _CACHE_FILE
    try:
        status = file.stat()
        # Do not trust a file that another user could have written.
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        return msgspec.json.decode(file.read_bytes(), type=dict[str, CachedResult]).get(isolation)
    except (OSError, msgspec.DecodeError):
        return None


def _save_result(cache: Path, isolation: Isolation, result: CachedResult) -> None:
    """Saves a result, and keeps the saved result of the other kind of isolation. Raises OSError if the home
    is not writable.
    """
    import tempfile

    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    other: Isolation = "process" if isolation == "container" else "container"
    other_result = _load_result(cache, other)
    results = {isolation: result} | ({other: other_result} if other_result else {})
    handle, name = tempfile.mkstemp(dir=cache, prefix=".selftest-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(results))
        os.replace(name, cache / _CACHE_FILE)
    except OSError:
        os.unlink(name)
        raise
