"""Reads package.json of an unpublished package, and reports missing fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from hutch.errors import InvalidPackage
from hutch.npm.package_spec import PackageSpec, parse_spec
from hutch.session.json_value import kind_of

MANIFEST = "package.json"
MAX_MANIFEST_BYTES = 1024 * 1024
DEFAULT_VERSION = "0.0.0"
# Conditions of `exports` that are true when Deno imports a package.
_CONDITIONS = frozenset({"deno", "node", "import", "module-sync", "default"})
_TYPESCRIPT = (".ts", ".mts", ".cts", ".tsx")
# Folders of compiled files. The source of `dist/tool.js` is usually `src/tool.ts` or `tool.ts`.
_BUILD_FOLDERS = frozenset({"dist", "build", "lib", "out", "esm"})
_ALIAS = re.compile(r"npm:(@?[^@]+)(?:@(.+))?")


class LocalManifest(msgspec.Struct, frozen=True):
    """Contents of package.json that Hutch uses."""

    spec: PackageSpec
    dependencies: dict[str, str]
    entry: str | None
    """File to import instead of the package, because it is TypeScript source; otherwise None."""
    note: str | None
    """Note for the author about the entry."""


def read_manifest(folder: Path, shown: str) -> LocalManifest:
    """Reads package.json in `folder`. Messages call the folder `shown`. Raises InvalidPackage."""
    document = _read_document(folder, shown)

    def invalid(why: str) -> InvalidPackage:
        return InvalidPackage(f"{shown}/{MANIFEST}", why)

    name, version = document.get("name"), document.get("version", DEFAULT_VERSION)
    if name is None:
        raise invalid('has no `name`. Add one, such as "name": "my-tool"')
    try:
        spec = parse_spec(name, version)
    except InvalidPackage as error:
        field = "version" if error.field == "version" else "name"
        raise invalid(f"`{field}` {error.message.partition(': ')[2]}") from None
    if not spec.is_exact:
        raise invalid(f"`version`: expected an exact version such as 1.0.0, got {spec.version!r}")
    dependencies = dict(_dependencies(document, invalid))
    if spec.name in dependencies:
        raise invalid(f"the package {spec.name} depends on itself. Remove it from the dependencies")
    entry, note = _find_entry(folder, document, invalid)
    return LocalManifest(spec, dependencies, entry, note)


def _read_document(folder: Path, shown: str) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError:
        raise InvalidPackage(
            shown, "has no package.json. Expected the folder of an npm package, or an archive of `npm pack`"
        ) from None
    if len(raw) > MAX_MANIFEST_BYTES:
        raise InvalidPackage(f"{shown}/{MANIFEST}", f"is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        # Use the json module, which reports the line of a mistake. msgspec does not.
        document = json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise InvalidPackage(f"{shown}/{MANIFEST}", f"is not valid JSON: {error.msg} ({position})") from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise InvalidPackage(f"{shown}/{MANIFEST}", "is not valid JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise InvalidPackage(f"{shown}/{MANIFEST}", f"expected an object, got {kind_of(document)}")
    return document


# --- dependencies ---


def _dependencies(document: dict[str, Any], invalid: Any) -> Iterator[tuple[str, str]]:
    """Yields the packages that npm installs with a package: its dependencies, and its peers unless they are
    optional.
    """
    optional = document.get("peerDependenciesMeta")
    for field in ("peerDependencies", "optionalDependencies", "dependencies"):
        listed = document.get(field) or {}
        if not isinstance(listed, dict):
            raise invalid(f"`{field}`: expected an object, got {kind_of(listed)}")
        for name, version in listed.items():
            meta = optional.get(name) if field == "peerDependencies" and isinstance(optional, dict) else None
            if isinstance(meta, dict) and meta.get("optional") is True:
                continue
            if not _is_in_registry(name, version):
                raise invalid(
                    f"`{field}.{name}`: expected a version, range or tag of the registry, got {version!r}. "
                    "Folders, workspaces, URLs and repositories cannot be installed"
                )
            yield name, version


def _is_in_registry(name: str, version: object) -> bool:
    alias = _ALIAS.fullmatch(version) if isinstance(version, str) else None
    try:
        parse_spec(name, "*" if alias or version == "" else version)
        if alias:
            parse_spec(alias[1], alias[2])
    except InvalidPackage:
        return False
    return True


# --- entry ---


def _find_entry(folder: Path, document: dict[str, Any], invalid: Any) -> tuple[str | None, str | None]:
    """Returns the TypeScript file to import and a note for the author. The file is None if the package is
    imported by name. The note may be None.
    """
    declared, field = _declared_entry(document, invalid)
    found = _existing(folder, declared or "index.js", exact=field == "exports")
    if found is not None:
        return (found if found.endswith(_TYPESCRIPT) else None), None
    source = next((path for path in _sources(declared) if (folder / path).is_file()), None)
    if source is None:
        if declared is None:
            raise invalid(
                "has no `exports` or `main`, and there is no index.js. "
                'Add "exports": "./FILE", with the file that exports the tools'
            )
        raise invalid(f"`{field}` names {declared}, which does not exist. {_build_advice(document)}")
    if declared is None:
        return source, (
            f"package.json has no `exports` or `main`, so {source} runs. Add one before you publish"
        )
    return source, (
        f"`{field}` in package.json names {declared}, which does not exist, so its source {source} runs"
    )


def _declared_entry(document: dict[str, Any], invalid: Any) -> tuple[str | None, str]:
    exports, main = document.get("exports"), document.get("main")
    if exports is not None:
        if isinstance(exports, dict) and any(key.startswith(".") for key in exports):
            if "." not in exports:
                raise invalid('`exports` has no entry ".", so the package cannot be imported by its name')
            exports = exports["."]
        target = _target(exports)
        if target is None:
            raise invalid("`exports` has no `import` or `default`, which importing the package needs")
        if not target.startswith("./"):
            raise invalid(f'`exports`: expected a path that starts with "./", got {target!r}')
        return target.removeprefix("./"), "exports"
    return (main.removeprefix("./") if isinstance(main, str) and main.strip("./") else None), "main"


def _target(exported: object) -> str | None:
    """Resolves the conditions of `exports` like Deno."""
    if isinstance(exported, str):
        return exported
    if isinstance(exported, list):
        return next((target for part in exported if (target := _target(part)) is not None), None)
    if isinstance(exported, dict):
        for condition, part in exported.items():
            if condition in _CONDITIONS and (target := _target(part)) is not None:
                return target
    return None


def _existing(folder: Path, path: str, *, exact: bool) -> str | None:
    """Returns the file that a path refers to. `main` may lack its extension or name a folder."""
    endings = ("",) if exact else ("", ".js", ".json", ".cjs", "/index.js", "/index.cjs")
    return next((f"{path}{ending}" for ending in endings if (folder / f"{path}{ending}").is_file()), None)


def _sources(declared: str | None) -> Iterator[str]:
    """Yields the paths where the TypeScript source of a compiled file may be."""
    if declared is not None:
        parts = PurePosixPath(declared).with_suffix("").parts
        inner = parts[1:] if len(parts) > 1 and parts[0] in _BUILD_FOLDERS else parts
        stem = "/".join(inner)
        for ending in _TYPESCRIPT:
            yield f"src/{stem}{ending}"
            yield f"{stem}{ending}"
    yield from ("src/index.ts", "index.ts")


def _build_advice(document: dict[str, Any]) -> str:
    scripts = document.get("scripts")
    has_build = isinstance(scripts, dict) and "build" in scripts
    return "Run `npm run build` first" if has_build else "Build the package first, or name an existing file"
