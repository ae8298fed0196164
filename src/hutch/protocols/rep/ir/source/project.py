"""Finds, reads and writes `tm/config/runtime.yaml`, which binds a project to a runtime."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from hutch.errors import ConfigError, SettingError
from hutch.settings.config_text import ConfigText, read_config_text

FILE = Path("tm/config/runtime.yaml")
BUILTIN_ENGINES = ("hutch", "python")
"""Names of the built-in runtime. The public CLI calls its in-process runtime `python`."""
LANGUAGES = ("python", "rust", "c", "cpp", "go", "java", "javascript", "typescript", "csharp", "zig")
_ENGINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_.-]{1,32}")
_MAX_BYTES = 1024 * 1024


class ProjectRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The section `runtime` of the project file."""

    engine: str
    language: str = "python"
    plugins_language: str = "python"
    executor_path: str | None = None
    """Program that implements REP, relative to the project folder. None for the built-in runtime."""
    file: Path

    @property
    def folder(self) -> Path:
        return self.file.parent.parent.parent

    @property
    def is_builtin(self) -> bool:
        return self.engine in BUILTIN_ENGINES and self.executor_path is None

    @property
    def executor(self) -> Path | None:
        """Path of the runtime program. A bare name that is not a file in the project is looked up in PATH
        later.
        """
        if self.executor_path is None:
            return None
        path = Path(self.executor_path).expanduser()
        return path if len(path.parts) == 1 and not (self.folder / path).exists() else self.folder / path

    def language_mismatch(self) -> str | None:
        """Explains that the runtime and its plugins have different languages, and how to fix that (section
        9). Returns None if both languages belong to the same family.
        """
        if family(self.language) == family(self.plugins_language):
            return None
        return (
            f"{self.file}: the runtime {self.engine} uses the language {self.language}, its plugins use"
            f" {self.plugins_language}. Both must be of one family: run `hutch init --runtime NAME` with a"
            f" runtime of {self.plugins_language}, or, once the plugins are of {self.language}, `hutch init"
            f" --runtime {self.engine}`."
        )


def family(language: str) -> str:
    """Returns the common name of all languages that can share plugins with this language."""
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
    """Checks and returns the name of a runtime, which is also used as a file name. Raises SettingError."""
    if not _ENGINE.fullmatch(name) or ".." in name:
        raise SettingError(
            f"{name!r} is not a valid name for a runtime.",
            remedy="Use up to 64 letters, digits, dots, dashes and underscores. The first must not be a dot.",
        )
    return name


def locate(start: Path) -> Path | None:
    """Returns the nearest project file in `start` or a parent folder."""
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / FILE).is_file():
            return folder / FILE
    return None


def find(start: Path) -> ProjectRuntime | None:
    """Reads the nearest project file in `start` or a parent folder. Raises ConfigError."""
    file = locate(start)
    return None if file is None else read(file)


def read(file: Path) -> ProjectRuntime:
    """Reads a project file. Raises ConfigError."""
    source = read_config_text(file)
    if source is None:
        raise _config_error(file, "", "there is no such file")
    return parse(source)


def parse(source: ConfigText) -> ProjectRuntime:
    """Parses the content of a project file. Raises ConfigError."""
    file = source.path
    section = _document(source).get("runtime")
    if not isinstance(section, dict):
        raise _config_error(file, "runtime", "expected a section with engine, language and executor_path")
    values = {}
    for key in ("engine", "language", "plugins_language", "executor_path"):
        value = section.get(key)
        if isinstance(value, str) and value.strip():
            values[key] = value.strip()
        elif value is not None and not isinstance(value, str):
            raise _config_error(file, f"runtime.{key}", "expected a string")
    engine = values.get("engine", "python")
    try:
        check_engine(engine)
    except SettingError as error:
        raise _config_error(file, "runtime.engine", str(error)) from None
    language = values.get("language", "python")
    return ProjectRuntime(
        engine=engine,
        language=language,
        plugins_language=values.get("plugins_language", language),
        executor_path=values.get("executor_path"),
        file=file,
    )


def _document(source: ConfigText) -> dict[str, Any]:
    from hutch.protocols.rep.ir.source.yaml import InvalidYaml, decode_yaml

    file = source.path
    if len(source.data) > _MAX_BYTES:
        raise _config_error(file, "", "is larger than 1 MiB")
    try:
        document = decode_yaml(source.text)
    except InvalidYaml as error:
        raise _config_error(file, "", f"expected YAML: {error}") from None
    if document is not None and not isinstance(document, dict):
        raise _config_error(file, "", "expected a table with a section `runtime`")
    return document or {}


def _config_error(file: Path, key: str, message: str) -> ConfigError:
    return ConfigError(
        str(file), None, key, message, remedy="Fix it, or replace it with `hutch init --runtime NAME`."
    )


def bind(
    folder: Path,
    engine: str = "hutch",
    *,
    language: str | None = None,
    plugins_language: str | None = None,
    executor_path: str | None = None,
) -> ProjectRuntime:
    """Binds a project to a runtime: writes the project file or replaces its section `runtime`.

    If the engine stays the same, an omitted language or program keeps its previous value. Otherwise an
    omitted language is derived from the engine's name, or else it is Python. Plugins default to the runtime's
    language, as the specification requires. Raises SettingError and ConfigError.
    """
    check_engine(engine)
    file = folder / FILE
    other_sections: dict[str, Any] = {}
    previous = None
    if (source := read_config_text(file)) is not None:
        other_sections = _document(source)
        with contextlib.suppress(ConfigError):  # the invalid section is about to be replaced
            previous = parse(source)
    if previous is not None and previous.engine == engine:
        executor_path = executor_path or previous.executor_path
        language = language or previous.language
    runtime_language = language or (family(engine) if family(engine) in LANGUAGES else "python")
    bound = ProjectRuntime(
        engine=engine,
        language=_check_language(runtime_language),
        plugins_language=_check_language(plugins_language or runtime_language),
        executor_path=executor_path,
        file=file,
    )
    section = {
        "engine": bound.engine,
        "language": bound.language,
        "plugins_language": bound.plugins_language,
        "executor_path": bound.executor_path,
    }
    _write(file, {**other_sections, "runtime": section})
    return bound


def _check_language(language: str) -> str:
    if not _LANGUAGE.fullmatch(language.strip()):
        raise SettingError(
            f"{language!r} is not a valid language.",
            remedy=f"Use a name such as {', '.join(LANGUAGES[:4])}.",
        )
    return language.strip()


def _write(file: Path, document: dict[str, Any]) -> None:
    """Writes the project file atomically."""
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
