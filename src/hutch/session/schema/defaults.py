"""Applies the defaults of a JSON Schema to a value."""

from __future__ import annotations

from typing import Any

from hutch.session.schema.walk import UNRESOLVED, SchemaRoot, as_dict, as_list, resolve

# Maximum number of schemas and values to process. Beyond that, missing properties stay missing.
_MAX_STEPS = 20_000
# Maximum number of references to follow for one value.
_MAX_REFERENCES = 10


def apply_defaults(schema: dict[str, Any], value: Any) -> Any:
    """Returns a copy of a value in which missing properties have the defaults of the schema.

    Follows `properties`, `items`, `allOf` and references. The defaults in alternatives such as `anyOf` are
    not applied, because it is not known which alternative is meant. If a default is itself an object, its
    missing properties stay missing.
    """
    return _Defaults(SchemaRoot.of(schema, "")).apply([schema], value)


class _Defaults:
    def __init__(self, root: SchemaRoot) -> None:
        self._root = root
        self._left = _MAX_STEPS

    def apply(self, schemas: list[Any], value: Any) -> Any:
        self._left -= 1
        if self._left < 0 or not isinstance(value, dict | list):
            return value
        parts = self._parts(schemas)
        if isinstance(value, list):
            items = [part["items"] for part in parts if isinstance(part.get("items"), dict)]
            return [self.apply(items, item) for item in value] if items else value
        return self._complete(parts, value)

    def _complete(self, parts: list[dict[str, Any]], value: dict[str, Any]) -> dict[str, Any]:
        properties: dict[str, list[Any]] = {}
        for part in parts:
            for name, schema in as_dict(part.get("properties")).items():
                properties.setdefault(name, []).append(schema)
        complete = {name: self.apply(properties.get(name, []), item) for name, item in value.items()}
        for name, schemas in properties.items():
            if name not in complete:
                for part in self._parts(schemas):
                    if "default" in part:
                        complete[name] = part["default"]
                        break
        return complete

    def _parts(self, schemas: list[Any]) -> list[dict[str, Any]]:
        """Returns these schemas, and all schemas to which they refer or which their `allOf` contains."""
        parts: list[dict[str, Any]] = []
        queue, references = list(schemas), 0
        while queue and self._left > 0:
            self._left -= 1
            schema = queue.pop(0)
            if not isinstance(schema, dict):
                continue
            parts.append(schema)
            queue += as_list(schema.get("allOf"))
            if isinstance(ref := schema.get("$ref"), str) and references < _MAX_REFERENCES:
                references += 1
                target = resolve(ref, self._root)
                if target is not UNRESOLVED:
                    queue.append(target)
        return parts
