"""Checks requests and responses against an OpenAPI document."""

from __future__ import annotations

from typing import Any, Self

import httpx2
import jsonschema_rs

from hutch.http.openapi import ApiPart, Json, openapi_document, resolve_response


class OpenApiChecker:
    """Checks responses against a document, and records the operations whose responses it has checked."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.checked: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, part: ApiPart) -> Self:
        return cls(openapi_document("", "", [part], needs_key=True))

    def operation(self, method: str, path: str) -> Json:
        found: Json = self.document["paths"][path][method.lower()]
        return found

    def check_response(self, method: str, path: str, response: httpx2.Response) -> None:
        """Checks status, content type and body of a response. `path` is the path in the document, such as
        `/runs/{id}`.
        """
        responses = self.operation(method, path)["responses"]
        described = responses.get(str(response.status_code), responses.get("default"))
        assert described is not None, f"{method} {path}: {response.status_code} is not documented"
        content = resolve_response(self.document, described).get("content", {})
        if response.content:
            media_type = response.headers["content-type"].partition(";")[0]
            assert media_type in content, f"{method} {path}: {media_type} is not documented"
            if media_type == "application/json":
                self.validate(content[media_type]["schema"], response.json())
        self.checked.add((method.lower(), path))

    def check_body(self, method: str, path: str, body: Any) -> None:
        content = self.operation(method, path)["requestBody"]["content"]["application/json"]
        self.validate(content["schema"], body)

    def validate(self, schema: Json, value: Any) -> None:
        whole = {**schema, "components": self.document["components"]}
        jsonschema_rs.validator_for(whole, validate_formats=True).validate(value)
