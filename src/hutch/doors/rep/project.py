"""The runtime that a project is bound to: `tm/config/runtime.yaml`, found, read and written."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from hutch.errors import ConfigError, SettingError

FILE = Path("tm/config/runtime.yaml")
OURS = ("hutch", "python")
"""Names of our own runtime; `python` is what the public CLI calls the one that it has in its process."""
LANGUAGES = ("python", "rust", "c", "cpp", "go", "java", "javascript", "typescript", "csharp", "zig")
_ENGINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_.-]{1,32}")
_MOST_BYTES = 1024 * 1024


class ProjectRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """What `runtime` in that file says."""

    engine: str
    language: str = "python"
    plugins_language: str = "python"
    executor_path: str | None = None
    """A program that speaks REP, relative to the project's folder; None for our own."""
    file: Path
    """Where it stands."""

    @property
    def folder(self) -> Path:
        """The project's."""
        return self.file.parent.parent.parent

    @property
    def is_ours(self) -> bool:
        return self.engine in OURS and self.executor_path is None

    @property
    def executor(self) -> Path | None:
        """The program, wherever one is: a bare name is looked for by whoever starts it."""
        if self.executor_path is None:
            return None
        path = Path(self.executor_path).expanduser()
        return path if len(path.parts) == 1 and not (self.folder / path).exists() else self.folder / path

    def mismatch(self) -> str | None:
        """What is wrong with the languages, and what to do (section 9); None if they are of one family."""
        if family(self.language) == family(self.plugins_language):
            return None
        return (
            f"{self.file}: the runtime {self.engine} is of the language {self.language}, its plugins are of"
            f" {self.plugins_language}. Both have to be of one family: run `hutch init --runtime NAME` with a"
            f" runtime of {self.plugins_language}, or, once the plugins are of {self.language}, `hutch init"
            f" --runtime {self.engine}`."
        )


def family(language: str) -> str:
    """Languages that share plugins have one name."""
    name = language.strip().lower()
    return _FAMILIES.get(name, name)


_FAMILIES = {
    "py": "python",
    "python3": "python",
    "rs": "rust",
    "c++": "cpp",
    "cxx": "cpp",
    "golang": "go",
    "js": "javascript",
    "node": "javascript",
    "nodejs": "javascript",
    "ts": "javascript",
    "typescript": "javascript",
    "c#": "csharp",
    "dotnet": "csharp",
}


def check_engine(name: str) -> str:
    """A runtime's name, which is also that of a file. Raises SettingError."""
    if not _ENGINE.fullmatch(name) or ".." in name:
        raise SettingError(
            f"There can be no runtime {name!r}.",
            remedy="Expected letters, digits, dots, dashes and underscores, not a dot first, at most 64.",
        )
    return name


def find(start: Path) -> ProjectRuntime | None:
    """What the project says that a folder is in: the nearest file, upwards. Raises ConfigError."""
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / FILE).is_file():
            return read(folder / FILE)
    return None


def read(file: Path) -> ProjectRuntime:
    """Raises ConfigError with all that is wrong."""
    section = _document(file).get("runtime")
    if not isinstance(section, dict):
        raise _fault(file, "runtime", "expected a section with engine, language and executor_path")
    told = {}
    for key in ("engine", "language", "plugins_language", "executor_path"):
        value = section.get(key)
        if isinstance(value, str) and value.strip():
            told[key] = value.strip()
        elif value is not None and not isinstance(value, str):
            raise _fault(file, f"runtime.{key}", "expected a string")
    engine = told.get("engine", "python")
    try:
        check_engine(engine)
    except SettingError as error:
        raise _fault(file, "runtime.engine", str(error)) from None
    language = told.get("language", "python")
    return ProjectRuntime(
        engine=engine,
        language=language,
        plugins_language=told.get("plugins_language", language),
        executor_path=told.get("executor_path"),
        file=file,
    )


def _document(file: Path) -> dict[str, Any]:
    from hutch.doors.rep.yamltext import InvalidYaml, decode

    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _fault(file, "", "is larger than 1 MiB")
        document = decode(file.read_text("utf-8-sig"))
    except OSError as error:
        raise _fault(file, "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _fault(file, "", "expected UTF-8") from None
    except InvalidYaml as error:
        raise _fault(file, "", f"expected YAML: {error}") from None
    if document is not None and not isinstance(document, dict):
        raise _fault(file, "", "expected a table with a section `runtime`")
    return document or {}


def _fault(file: Path, key: str, message: str) -> ConfigError:
    return ConfigError(
        str(file), None, key, message, remedy="Mend it, or write it anew with `hutch init --runtime NAME`."
    )


def bind(
    folder: Path,
    engine: str = "hutch",
    *,
    language: str | None = None,
    plugins_language: str | None = None,
    executor_path: str | None = None,
) -> ProjectRuntime:
    """Binds a project to a runtime: writes the file, or its section `runtime` if there is one already.

    What is not given stays as it was, if the runtime stays the same. Else its language is that of its name,
    if there is one, or Python, ours. Plugins are of the runtime's language, as the specification has it.
    Raises SettingError, ConfigError.
    """
    check_engine(engine)
    file = folder / FILE
    others: dict[str, Any] = {}
    before = None
    if file.is_file():
        others = _document(file)
        with contextlib.suppress(ConfigError):  # what is wrong with the section is about to be mended
            before = read(file)
    if before is not None and before.engine == engine:
        executor_path = executor_path or before.executor_path
        language = language or before.language
    own = language or (family(engine) if family(engine) in LANGUAGES else "python")
    bound = ProjectRuntime(
        engine=engine,
        language=_checked(own),
        plugins_language=_checked(plugins_language or own),
        executor_path=executor_path,
        file=file,
    )
    section = {
        "engine": bound.engine,
        "language": bound.language,
        "plugins_language": bound.plugins_language,
        "executor_path": bound.executor_path,
    }
    _write(file, {**others, "runtime": section})
    return bound


def _checked(language: str) -> str:
    if not _LANGUAGE.fullmatch(language.strip()):
        raise SettingError(
            f"There is no language {language!r}.", remedy=f"Such as {', '.join(LANGUAGES[:4])}."
        )
    return language.strip()


def _write(file: Path, document: dict[str, Any]) -> None:
    """As a whole or not at all."""
    import tempfile

    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".runtime-", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise ConfigError(str(file), None, "", f"cannot be written: {error.strerror}") from None
